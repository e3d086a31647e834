//! What the kernel's services cost a process: the part of section 4.3 of GISP
//! (paper 000) that is not about memory alone. Measured in a process with 64 MiB
//! of touched memory, as its size is what could make them dearer.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use quire_core::units::BASE_PAGE;
use rustix::fs::{Advice, fadvise};

use crate::memory::{Block, FileMap};
use crate::processors;
use crate::results::Sample;
use crate::worker::micro::each;
use crate::worker::{Setup, seconds};

const PAGE: usize = BASE_PAGE as usize;
/// Memory that the process holds.
const HELD: usize = 64 << 20;
/// Size of the file that is mapped.
const MAPPED: usize = 8 << 20;
/// The kernel reads and maps pages of a file together; faults are timed by
/// touches that are farther apart than that.
const STRIDE: usize = 128 << 10;

/// A process that sends back what it is sent; ends with this.
struct Echo<S> {
    child: Child,
    to: Option<S>,
}

impl<S> Drop for Echo<S> {
    fn drop(&mut self) {
        // Without its input, the child ends.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// Adds all costs to `sample`.
pub fn costs(setup: &Setup, sample: &mut Sample) -> Result<()> {
    let mut block = Block::map(HELD)?;
    block.touch(PAGE);
    let calls = setup.size(1_000_000, 10_000);
    let call = each(calls, || {
        std::hint::black_box(rustix::process::getppid());
        Ok(())
    })?;
    sample.put("syscall_ns", call * 1e9);
    let trips = setup.size(20_000, 200);
    sample.put("pipe_us", pipe(trips)? * 1e6);
    sample.put("socket_us", socket(trips)? * 1e6);
    // A round trip on one processor takes two switches.
    sample.put("switch_us", on_one_processor(|| pipe(trips))? / 2.0 * 1e6);
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("file");
    let create = each(setup.size(5_000, 50), || create_and_delete(&path))?;
    sample.put("create_us", create * 1e6);
    faults(setup, &path, sample)
}

/// Seconds for each of `trips` bytes to go to another process and back.
fn round_trips(trips: usize, to: &mut impl Write, from: &mut impl Read) -> Result<f64> {
    let mut byte = [0];
    let mut trip = || {
        to.write_all(&byte)?;
        from.read_exact(&mut byte)?;
        Ok(())
    };
    each(trips / 10 + 1, &mut trip)?;
    each(trips, trip)
}

fn pipe(trips: usize) -> Result<f64> {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cat")?;
    let to = child.stdin.take();
    let mut from = child.stdout.take().context("no pipe")?;
    let mut echo = Echo { child, to };
    round_trips(trips, echo.to.as_mut().context("no pipe")?, &mut from)
}

fn socket(trips: usize) -> Result<f64> {
    let (own, other) = UnixStream::pair()?;
    let child = Command::new("cat")
        .stdin(OwnedFd::from(other.try_clone()?))
        .stdout(OwnedFd::from(other))
        .spawn()
        .context("starting cat")?;
    let mut from = own.try_clone()?;
    let mut echo = Echo {
        child,
        to: Some(own),
    };
    let to = echo.to.as_mut().context("no socket")?;
    let trip = round_trips(trips, to, &mut from);
    to.shutdown(std::net::Shutdown::Both)?;
    trip
}

/// Runs `work`, and what it starts, on one of the processors of this thread.
fn on_one_processor<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = processors::of_this_thread()?;
    processors::stay_on(before.get(..1).context("no processor")?)?;
    let result = work();
    processors::stay_on(&before)?;
    result
}

fn create_and_delete(path: &Path) -> Result<()> {
    std::fs::write(path, [7; 10 << 10])?;
    std::fs::remove_file(path)?;
    Ok(())
}

/// Faults of a mapped file, with its data in memory and without.
fn faults(setup: &Setup, path: &Path, sample: &mut Sample) -> Result<()> {
    std::fs::write(path, vec![7; MAPPED])?;
    let file = File::open(path)?;
    rustix::fs::fsync(&file)?;
    let rounds = setup.size(10, 1);
    let fault = |cached: bool| -> Result<f64> {
        let (mut time, mut count) = (0.0, 0);
        for _ in 0..rounds {
            if !cached {
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            let map = FileMap::new(&file, MAPPED)?;
            time += seconds(|| count += map.read(STRIDE));
        }
        Ok(time / count as f64)
    };
    sample.put("major_fault_us", fault(false)? * 1e6);
    std::fs::read(path)?;
    sample.put("minor_fault_ns", fault(true)? * 1e9);
    Ok(())
}

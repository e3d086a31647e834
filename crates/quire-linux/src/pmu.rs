//! The processor's own counters: cycles, TLB and cache misses (`perf_event_open`), where
//! there are any: a virtual machine often has none.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use crate::raw::syscall;

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Cycles of the processor.
    Cycles,
    /// Instructions that were completed.
    Instructions,
    /// Reads of data whose translation no TLB had.
    DataReadMisses,
    /// Writes of data whose translation no TLB had.
    DataWriteMisses,
    /// Fetches of instructions whose translation no TLB had.
    CodeMisses,
    /// What the kernel calls cache misses on this processor: of the second level on
    /// AMD's since Zen, of the last level on Intel's.
    CacheMisses,
    /// Page faults, which the kernel counts itself on every machine.
    PageFaults,
}

impl Event {
    /// Type and number, as the kernel takes them.
    const fn config(self) -> (u32, u64) {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        const CACHE: u32 = 3;
        const DATA_TLB: u64 = 3;
        const CODE_TLB: u64 = 4;
        const WRITE: u64 = 1 << 8;
        const MISS: u64 = 1 << 16;
        match self {
            Event::DataReadMisses => (CACHE, DATA_TLB | MISS),
            Event::DataWriteMisses => (CACHE, DATA_TLB | WRITE | MISS),
            Event::CodeMisses => (CACHE, CODE_TLB | MISS),
            Event::Cycles => (HARDWARE, 0),
            Event::Instructions => (HARDWARE, 1),
            Event::CacheMisses => (HARDWARE, 3),
            Event::PageFaults => (SOFTWARE, 2),
        }
    }
}

/// `perf_event_attr` in its first version, of 64 bytes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const ENABLE_ON_EXEC: u64 = 1 << 12;
const TIMES: u64 = 0b11;
const CLOSE_ON_EXEC: usize = 1 << 3;

/// A counter for the programs that this thread starts, or for this thread.
#[derive(Debug)]
pub struct Counter(File);

impl Counter {
    /// Makes a counter of what happens in user mode in the programs that the
    /// calling thread executes from now on, and in their children. It does not
    /// count this process.
    ///
    /// # Errors
    /// `ENOENT` or `EOPNOTSUPP` where the machine does not count the event,
    /// `EACCES` or `EPERM` where `perf_event_paranoid` or a filter forbids it.
    pub fn of_children(event: Event) -> io::Result<Counter> {
        Counter::open(event, DISABLED | INHERIT | ENABLE_ON_EXEC)
    }

    /// Makes a counter of what the calling thread does in user mode from now on.
    ///
    /// # Errors
    /// As [`of_children`](Counter::of_children).
    pub fn of_this_thread(event: Event) -> io::Result<Counter> {
        Counter::open(event, 0)
    }

    fn open(event: Event, flags: u64) -> io::Result<Counter> {
        let (kind, config) = event.config();
        let attributes = Attributes {
            kind,
            size: size_of::<Attributes>() as u32,
            config,
            read_format: TIMES,
            flags: flags | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        let (this_thread, any_cpu, no_group) = (0, usize::MAX, usize::MAX);
        let address = (&raw const attributes) as usize;
        // SAFETY: the attributes have the size that they name and live for the
        // call, which reads them and makes a descriptor.
        let fd = unsafe {
            syscall(
                libc::SYS_perf_event_open,
                [address, this_thread, any_cpu, no_group, CLOSE_ON_EXEC, 0],
            )?
        };
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Counter(File::from(unsafe {
            OwnedFd::from_raw_fd(fd as i32)
        })))
    }

    /// The count so far. What a process has counted comes to it shortly after the
    /// process has ended, which its parent may see first. Where the processor had to share its counters among
    /// more events than it has, the part that it did not see is extrapolated.
    ///
    /// # Errors
    /// When the counter cannot be read.
    pub fn read(&self) -> io::Result<u64> {
        let mut bytes = [0; 24];
        (&self.0).read_exact(&mut bytes)?;
        let word = |at: usize| {
            bytes[at..at + 8]
                .iter()
                .rev()
                .fold(0, |w, b| w << 8 | u64::from(*b))
        };
        let (count, enabled, running) = (word(0), word(8), word(16));
        if running == 0 || running >= enabled {
            return Ok(count);
        }
        let scaled = u128::from(count) * u128::from(enabled) / u128::from(running);
        Ok(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn faults_of_children_are_counted() {
        let counter = match Counter::of_children(Event::PageFaults) {
            Ok(counter) => counter,
            Err(error) => {
                println!("SKIP: perf_event_open is refused: {error}");
                return;
            }
        };
        // Now and then a kernel loses what a child counted, if another thread of the
        // process runs meanwhile: then another child has to do.
        let runs_to_more_than = |least: u64| {
            let runs = (1..=10).find(|_| {
                assert!(Command::new("true").status().unwrap().success());
                let end = Instant::now() + Duration::from_secs(1);
                while counter.read().unwrap() <= least && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(1));
                }
                counter.read().unwrap() > least
            });
            assert!(runs.is_some(), "no more than {least} faults");
            counter.read().unwrap()
        };
        assert_eq!(counter.read().unwrap(), 0);
        let once = runs_to_more_than(10);
        runs_to_more_than(once);
    }

    #[test]
    fn faults_of_this_thread_are_counted() {
        let counter = match Counter::of_this_thread(Event::PageFaults) {
            Ok(counter) => counter,
            Err(error) => {
                println!("SKIP: perf_event_open is refused: {error}");
                return;
            }
        };
        let before = counter.read().unwrap();
        let memory = std::hint::black_box(vec![1u8; 4 << 20]);
        // On base pages 1024 of them, on superpages at least one.
        assert!(counter.read().unwrap() > before);
        drop(memory);
    }

    #[test]
    fn a_machine_without_counters_says_so() {
        match Counter::of_children(Event::DataReadMisses) {
            Ok(counter) => {
                assert!(Command::new("true").status().unwrap().success());
                assert!(counter.read().unwrap() > 0);
            }
            Err(error) => {
                let known = [
                    libc::ENOENT,
                    libc::EOPNOTSUPP,
                    libc::EACCES,
                    libc::EPERM,
                    libc::ENODEV,
                ];
                assert!(
                    error.raw_os_error().is_some_and(|n| known.contains(&n)),
                    "{error}"
                );
                println!("SKIP: no counter of TLB misses: {error}");
            }
        }
    }
}

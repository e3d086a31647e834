//! A helper process that takes the machine's memory until little is left, and
//! gives it back when it is told to, or killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use quire_core::units::BASE_PAGE;

use crate::cgroup;
use crate::launch;
use crate::memory::Block;
use crate::procfs;
use crate::variant::Environment;

/// Memory that is always left.
const LEFT: u64 = 1536 << 20;
/// Memory that is taken in one step.
const STEP: usize = 64 << 20;

/// A running helper.
#[derive(Debug)]
pub struct Ballast(Child);

impl Ballast {
    /// Starts the helper outside of this process's cgroup and waits until it
    /// has taken the memory.
    pub fn start() -> Result<Ballast> {
        let root = cgroup::root_group();
        let args = ["worker", "sparse-4g", "--ballast"];
        let mut command: Command = launch::command(
            &Environment::default(),
            root.as_ref(),
            launch::own_program()?,
            args,
        )?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no output")?;
        let ballast = Ballast(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the ballast ended early");
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes memory, says `ready`, and holds it until the standard input ends.
pub fn hold() -> Result<()> {
    // If memory runs out all the same, this process is the one to end.
    std::fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
    let mut blocks = Vec::new();
    while procfs::meminfo("MemAvailable").is_some_and(|free| free > LEFT + STEP as u64) {
        let mut block = Block::map(STEP)?;
        block.advise_huge()?;
        block.touch(BASE_PAGE as usize);
        blocks.push(block);
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

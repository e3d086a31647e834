//! A helper process that takes what a memory cgroup leaves, and gives it back
//! when it is told to, or killed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quire_core::units::BASE_PAGE;

use crate::cgroup::Group;
use crate::cli::Role;
use crate::launch;
use crate::memory::Block;
use crate::variant::Environment;

/// What is left of the limit.
const LEFT: u64 = 16 << 20;
/// Memory that is taken in one step.
const STEP: usize = 4 << 20;
/// How long it waits for others to give memory back.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running helper.
#[derive(Debug)]
pub struct Ballast(Child);

impl Ballast {
    /// Starts the helper beside `group` and waits until it has taken what the
    /// limit of both leaves.
    pub fn start(group: &Group) -> Result<Ballast> {
        let rival = group.rival().context("no group for the other program")?;
        let dir = rival.dir().display().to_string();
        let role = Role::Ballast.name();
        let args = ["worker", "sparse-4g", "--role", role, "--cgroup", &dir];
        let mut command: Command = launch::command(
            &Environment::default(),
            Some(&rival),
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
        ensure!(line.trim() == "ready", "the other program ended early");
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

/// Takes memory until little is left of the limit around `group` and nobody
/// gives any back, says `ready`, and holds it until the standard input ends.
pub fn hold(group: &Group) -> Result<()> {
    // If memory runs out all the same, this process is the one to end.
    std::fs::write("/proc/self/oom_score_adj", "1000").context("oom_score_adj")?;
    let outer = group.outer().context("no group around this one")?;
    let limit = outer.limit_set().context("no limit")?;
    let mut blocks = Vec::new();
    let mut last = Instant::now();
    while last.elapsed() < PATIENCE {
        if outer.usage().context("usage")? + LEFT + STEP as u64 > limit {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut block = Block::map(STEP)?;
        block.touch(BASE_PAGE as usize);
        blocks.push(block);
        last = Instant::now();
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

//! Runs a program as a child, with its input and output in files of one
//! directory, and notes there what it used: this process has no other child,
//! so what the kernel says of its children is the program's.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::memory;

/// The program's input.
pub const STDIN: &str = "stdin";
/// What it prints.
pub const STDOUT: &str = "stdout";
/// What it complains about.
pub const STDERR: &str = "stderr";
/// What it used.
const USAGE: &str = "usage.json";

/// What a program used, with all processes that it started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds from its start to its end.
    pub wall_s: f64,
    /// Seconds of processor time, of its threads and the kernel's for it.
    pub cpu_s: f64,
    /// The most that one of its processes had resident, in bytes.
    pub peak_bytes: u64,
}

impl Usage {
    /// What was noted in `dir`.
    pub fn read(dir: &Path) -> Result<Usage> {
        let text = std::fs::read_to_string(dir.join(USAGE)).context("nothing was noted")?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Runs `command` with its files in `dir`, and notes what it used.
pub fn run(mut command: Command, dir: &Path) -> Result<()> {
    command
        .current_dir(dir)
        .stdin(File::open(dir.join(STDIN)).context("no input")?)
        .stdout(File::create(dir.join(STDOUT))?)
        .stderr(File::create(dir.join(STDERR))?);
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("executing {}", command.get_program().display()))?;
    let wall_s = start.elapsed().as_secs_f64();
    if !status.success() {
        let said = std::fs::read(dir.join(STDERR)).unwrap_or_default();
        bail!("{status}: {}", String::from_utf8_lossy(&said).trim());
    }
    let (cpu_s, peak_bytes) = memory::used_by_children()?;
    let usage = Usage {
        wall_s,
        cpu_s,
        peak_bytes,
    };
    std::fs::write(dir.join(USAGE), serde_json::to_string(&usage)?)?;
    Ok(())
}

//! Machines as slow as they have to be: processes that get a fixed share of one processor, however
//! busy they are, and stay at it.
//!
//! The kernel's `cpu` controller gives a group so much time in each period, in version 1 and 2 of
//! control groups. A process is put into the group by a shell that then becomes it, so that nothing
//! runs outside. A group is removed with its [`Share`]; whoever is left in it then goes to the group
//! above. In version 1 threads of such a group get no real-time priority where the kernel
//! schedules groups of these as well; elsewhere they would get more than their share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::wrapped::wrapped;

const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";
/// The processes of a group.
const PROCESSES: &str = "cgroup.procs";
/// Puts itself into a group, and becomes a program.
const ENTER: &str = "echo $$ > \"$0\" && exec \"$@\"";
/// How often a group is tried to be removed: processes that have just ended may still be counted.
const TRIES: u32 = 50;
const AGAIN: Duration = Duration::from_millis(20);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A group of processes that together get so much of a processor, and no more.
#[derive(Debug)]
pub struct Share {
    group: PathBuf,
}

impl Share {
    /// A group whose processes get `time` in each `period`. The kernel takes at least 1 ms for both,
    /// and a second for the period at most.
    ///
    /// # Errors
    /// Where there is no `cpu` controller, this process may not use it, or a program cannot be
    /// started in the group.
    pub fn new(time: Duration, period: Duration) -> io::Result<Share> {
        let (version, above) = controller()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = above.join(format!("quire-share.{}.{number}", std::process::id()));
        fs::create_dir(&group).map_err(|error| of_file(&group, &error))?;
        let share = Share { group };
        let [time, period] = [time, period].map(|time| time.as_micros().to_string());
        match version {
            Version::One => {
                share.set("cpu.cfs_period_us", &period)?;
                share.set("cpu.cfs_quota_us", &time)?;
            }
            Version::Two => share.set("cpu.max", &format!("{time} {period}"))?,
        }
        share.try_out()?;
        Ok(share)
    }

    /// A command that runs the given one in the group and on one processor, with its arguments, its
    /// variables and its directory. Where input and output go has to be set on the command that is
    /// returned. It takes `sh` and `taskset`.
    #[must_use]
    pub fn command(&self, processor: usize, command: &Command) -> Command {
        let mut enter = Command::new("sh");
        enter.args(["-c", ENTER]).arg(self.group.join(PROCESSES));
        enter.args(["taskset", "-c", &processor.to_string()]);
        wrapped(enter, command)
    }

    fn try_out(&self) -> io::Result<()> {
        let nothing = Command::new("true");
        let output = self.command(0, &nothing).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        let why = format!("starting a program by `sh` and `taskset`: {}", why.trim());
        Err(io::Error::other(why))
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let file = self.group.join(file);
        fs::write(&file, value).map_err(|error| of_file(&file, &error))
    }

    /// Puts whoever is in the group into the one above.
    fn empty(&self) -> io::Result<()> {
        let above = self.group.join("..").join(PROCESSES);
        for process in fs::read_to_string(self.group.join(PROCESSES))?.lines() {
            // It may have ended.
            let _ = fs::write(&above, process);
        }
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if fs::remove_dir(&self.group).is_ok() {
                break;
            }
            let _ = self.empty();
            std::thread::sleep(AGAIN);
        }
    }
}

/// The version of control groups that has the controller.
#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

/// Where groups can be made that the controller knows.
fn controller() -> io::Result<(Version, &'static Path)> {
    let (v1, v2) = (Path::new(V1), Path::new(V2));
    if v1.join("cpu.cfs_quota_us").exists() || v1.join("cpu.shares").exists() {
        return Ok((Version::One, v1));
    }
    let names = |file: &str| fs::read_to_string(v2.join(file)).unwrap_or_default();
    let has = |file: &str| names(file).split_whitespace().any(|name| name == "cpu");
    if !has("cgroup.controllers") {
        return Err(io::Error::other("no cpu controller is in /sys/fs/cgroup"));
    }
    let below = v2.join("cgroup.subtree_control");
    if !has("cgroup.subtree_control") {
        fs::write(&below, "+cpu").map_err(|error| of_file(&below, &error))?;
    }
    Ok((Version::Two, v2))
}

fn of_file(file: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Child;
    use std::thread;

    const PERIOD: Duration = Duration::from_millis(4);

    fn share(time: Duration) -> Option<Share> {
        let share = Share::new(time, PERIOD);
        share.map_err(|why| println!("SKIP: {why}")).ok()
    }

    fn start(share: &Share, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "it");
        let mut command = share.command(0, &command);
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Seconds that a process has run.
    fn ran(process: &Child) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/schedstat", process.id())).unwrap();
        let nanoseconds: f64 = stat.split_whitespace().next().unwrap().parse().unwrap();
        nanoseconds / 1e9
    }

    #[test]
    fn a_busy_process_gets_its_share() {
        let Some(share) = share(PERIOD / 4) else {
            return;
        };
        let mut busy = start(&share, "while :; do :; done");
        thread::sleep(Duration::from_millis(200));
        let (before, start) = (ran(&busy), std::time::Instant::now());
        thread::sleep(Duration::from_millis(800));
        let part = (ran(&busy) - before) / start.elapsed().as_secs_f64();
        busy.kill().unwrap();
        busy.wait().unwrap();
        // Others may be busy, too.
        assert!((0.02..0.35).contains(&part), "{part}");
    }

    #[test]
    fn a_program_is_run_as_it_is() {
        let Some(share) = share(PERIOD / 2) else {
            return;
        };
        let output = start(&share, "echo $WORD; taskset -p $$").wait_with_output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(output.starts_with("it\n"), "{output}");
        assert!(output.trim_end().ends_with(": 1"), "{output}");
    }

    #[test]
    fn the_group_is_removed_also_with_a_process_in_it() {
        let Some(share) = share(PERIOD / 2) else {
            return;
        };
        let group = share.group.clone();
        let mut waits = start(&share, "echo; exec sleep 60");
        let mut output = waits.stdout.take().unwrap();
        io::Read::read_exact(&mut output, &mut [0]).unwrap();
        drop(share);
        assert!(!group.exists());
        assert!(waits.try_wait().unwrap().is_none());
        waits.kill().unwrap();
        waits.wait().unwrap();
    }
}

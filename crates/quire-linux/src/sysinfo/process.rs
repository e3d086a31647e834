//! What `/proc` says of one process: whether it lives, since when, and whose
//! it is.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use quire_core::units::{Bytes, PageCount};

/// Start time of process `pid` in clock ticks since boot: with the number it
/// names a process for ever. Nothing where there is no such process, or only
/// its exit status is left.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&super::read_small(format!("/proc/{pid}/stat")).ok()?)
}

/// What names this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Command name.
    pub comm: String,
}

/// What names this process; what cannot be read is left empty.
#[must_use]
pub fn own_identity() -> Identity {
    // Not by its number, which may be another process's in `/proc`: that may be of the namespace outside of this one.
    let stat = super::read_small("/proc/self/stat").ok();
    Identity {
        start_time: stat.and_then(|stat| parse_start_time(&stat)).unwrap_or(0),
        comm: super::read_trimmed("/proc/self/comm").unwrap_or_default(),
    }
}

/// What the kernel says of the first thread of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leader {
    /// Its effective user.
    pub user: u32,
    /// Whether it has ended, while other threads go on.
    pub has_ended: bool,
    /// Threads of the process, this one and that one among them.
    pub threads: u32,
}

/// Looks at the first thread of this process. Nothing where `/proc` cannot be read.
#[must_use]
pub fn leader() -> Option<Leader> {
    parse_leader(&super::read_small("/proc/self/status").ok()?)
}

fn parse_leader(status: &str) -> Option<Leader> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    Some(Leader {
        user: field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?,
        has_ended: field("State:")?.trim_start().starts_with(['Z', 'X']),
        threads: field("Threads:")?.trim().parse().ok()?,
    })
}

/// Whether the process `pid` that started at `start` still runs.
#[must_use]
pub fn is_alive(pid: u32, start: u64) -> bool {
    start_time(pid) == Some(start)
}

/// The user that process `pid` runs as.
#[must_use]
pub fn owner(pid: u32) -> Option<u32> {
    fs::metadata(format!("/proc/{pid}")).ok().map(|m| m.uid())
}

/// Field 22 of `/proc/PID/stat`. The command name may hold blanks and
/// parentheses, so fields are counted from the last closing one.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The process numbers of this machine, as far as `/proc` shows them.
#[must_use]
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(number).collect()
}

/// Command name of process `pid`.
#[must_use]
pub fn command(pid: u32) -> Option<String> {
    super::read_trimmed(format!("/proc/{pid}/comm"))
}

/// The variables that process `pid` was started with, those that are text. None where there is
/// no such process, or without the right to inspect it.
#[must_use]
pub fn environment(pid: u32) -> BTreeMap<String, String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let pairs = bytes.split(|byte| *byte == 0).filter_map(|pair| {
        let (name, value) = std::str::from_utf8(pair).ok()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    pairs.collect()
}

/// The file that process `pid` executes; nothing for a thread of the kernel or
/// without the right to inspect the process.
#[must_use]
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The control groups of process `pid`, by their paths, in every hierarchy.
#[must_use]
pub fn control_groups(pid: u32) -> Vec<String> {
    let text = super::read_trimmed(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = |line: &str| Some(line.splitn(3, ':').nth(2)?.to_owned());
    text.lines().filter_map(path).collect()
}

/// What process `pid` has in memory. Nothing where there is no such process.
#[must_use]
pub fn resident(pid: u32) -> Option<Bytes> {
    let text = super::read_trimmed(format!("/proc/{pid}/statm"))?;
    let pages = text.split(' ').nth(1)?.parse().ok()?;
    Some(PageCount(pages).to_bytes())
}

/// A number that is another one after the process has executed another
/// program: where its stack began.
#[must_use]
pub fn image(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(25)?.parse().ok()
}

/// Processor time that the first thread of process `pid` has used.
#[must_use]
pub fn run_time(pid: u32) -> Option<Duration> {
    let text = super::read_trimmed(format!("/proc/{pid}/schedstat"))?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

/// A right that a process may have (`capabilities(7)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Capability {
    /// To inspect processes of others.
    SysPtrace = 19,
    /// To know frames, among others.
    SysAdmin = 21,
    /// To advise about the memory of other processes.
    SysNice = 23,
}

/// Whether this process has a right.
#[must_use]
pub fn is_capable(of: Capability) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let mask = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> of as u32 & 1 == 1)
}

/// Whether huge pages are switched off for this process
/// (`PR_SET_THP_DISABLE`).
#[must_use]
pub fn huge_pages_disabled() -> bool {
    // SAFETY: the call reads a flag of the process.
    unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 }
}

/// Switches huge pages for this process off or on (`PR_SET_THP_DISABLE`). Its
/// children inherit the switch.
pub fn disable_huge_pages(disable: bool) {
    // SAFETY: the call sets a flag of the process. Every kernel that Quire runs
    // on knows it.
    unsafe {
        libc::prctl(
            libc::PR_SET_THP_DISABLE,
            libc::c_ulong::from(disable),
            0,
            0,
            0,
        )
    };
}

/// Switches huge pages for this process off but for memory of which it says that it
/// wants them; before Linux 6.18 they stay as the machine has them.
pub fn disable_unadvised_huge_pages() {
    const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;
    // SAFETY: the call sets a flag of the process; an older kernel refuses it.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) };
    if done != 0 {
        disable_huge_pages(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_is_looked_at() {
        let status = "Name:\tx\nState:\tZ (zombie)\nUid:\t1\t2\t3\t4\nThreads:\t2\n";
        let leader = Leader {
            user: 2,
            has_ended: true,
            threads: 2,
        };
        assert_eq!(parse_leader(status), Some(leader));
        assert_eq!(parse_leader("State:\tR"), None);
        let own = super::leader().expect("/proc is there");
        assert!(!own.has_ended && own.threads >= 1);
    }

    #[test]
    fn odd_names_do_not_shift_the_fields() {
        let fields = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 1";
        assert_eq!(
            parse_start_time(&format!("7 (a) b (c) {fields}")),
            Some(4242)
        );
        let zombie = fields.replacen('S', "Z", 1);
        assert_eq!(parse_start_time(&format!("7 (a) {zombie}")), None);
    }

    #[test]
    fn the_environment_is_read() {
        let own = environment(std::process::id());
        let path = std::env::var("PATH").ok();
        assert_eq!(own.get("PATH"), path.as_ref());
        // No process has this number.
        assert!(environment(u32::MAX).is_empty());
    }

    #[test]
    fn this_process_lives() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
        assert!(owner(pid).is_some());
        assert_eq!(own_identity().start_time, start);
        assert!(!own_identity().comm.is_empty());
    }

    #[test]
    fn facts_of_this_process_are_read() {
        let pid = std::process::id();
        assert!(all().contains(&pid));
        assert!(resident(pid).unwrap() > Bytes::mib(1));
        assert_eq!(executable(pid), std::env::current_exe().ok());
        assert!(command(pid).is_some() && run_time(pid).is_some());
        let groups = control_groups(pid);
        assert!(groups.iter().all(|path| path.starts_with('/')));
    }

    #[test]
    fn another_program_has_another_image() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo begun; read line; exec sleep 9"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The kernel may still be laying the image out.
        let mut begun = [0; 6];
        let output = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut begun).unwrap();
        let before = image(child.id()).unwrap();
        assert_eq!(image(child.id()), Some(before));
        drop(child.stdin.take());
        let changed = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            image(child.id()).is_some_and(|now| now != before)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(changed);
    }
}

//! What `/proc` says of one process: whether it lives, since when, and whose
//! it is.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Start time of process `pid` in clock ticks since boot: with the number it
/// names a process for ever. Nothing where there is no such process, or only
/// its exit status is left.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
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
    Identity {
        start_time: start_time(std::process::id()).unwrap_or(0),
        comm: super::read_trimmed("/proc/self/comm").unwrap_or_default(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn this_process_lives() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
        assert!(owner(pid).is_some());
        assert_eq!(own_identity().start_time, start);
        assert!(!own_identity().comm.is_empty());
    }
}

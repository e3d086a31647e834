//! Programs that are measured: what is set for them before they begin, and what they
//! have used when they have ended.
//!
//! All of it is set between fork and exec, so that no other program runs in between
//! and nothing of it holds for this process. The classes of scheduling are in
//! [`crate::scheduling`].

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use quire_core::units::Bytes;

use crate::scheduling::{self, Children, Scheduling};

/// Processors, by number, the lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// Their numbers.
    #[must_use]
    pub fn numbers(&self) -> &[usize] {
        &self.0
    }

    fn set(&self) -> libc::cpu_set_t {
        // SAFETY: all-zero is a valid, empty set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        for cpu in &self.0 {
            // SAFETY: numbers are below `CPU_SETSIZE`, which parsing checks.
            unsafe { libc::CPU_SET(*cpu, &mut set) };
        }
        set
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// A text that names no processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no processors; write 0, 0-1 or 0,2")]
pub struct UnknownCpus(String);

impl FromStr for Cpus {
    type Err = UnknownCpus;

    fn from_str(text: &str) -> Result<Cpus, UnknownCpus> {
        let unknown = || UnknownCpus(text.to_owned());
        let number = |part: &str| -> Option<usize> {
            let number = part.trim().parse().ok()?;
            (number < libc::CPU_SETSIZE as usize).then_some(number)
        };
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = number(first).ok_or_else(unknown)?;
            let last = number(last).ok_or_else(unknown)?;
            if first > last {
                return Err(unknown());
            }
            numbers.extend(first..=last);
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(Cpus(numbers))
    }
}

/// What is set for a program. What is `None` is as this process has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Its scheduling class.
    pub scheduling: Option<Scheduling>,
    /// Where it may run.
    pub cpus: Option<Cpus>,
    /// Its nice level, -20 to 19.
    pub nice: Option<i32>,
    /// Whether the kernel puts its memory at random addresses.
    pub aslr: Option<bool>,
    /// How long it may run in a real-time class without sleeping; then the kernel ends
    /// it, even when this process is gone.
    pub realtime_limit: Option<Duration>,
}

impl Settings {
    /// Lets `command` begin with them, and with the descriptors `keep`, which are closed
    /// on exec otherwise. The program is killed when the calling thread ends.
    pub fn apply(&self, command: &mut Command, keep: Vec<RawFd>) {
        let settings = self.clone();
        let cpus = self.cpus.as_ref().map(Cpus::set);
        let parent = rustix::process::getpid();
        let begin = move || {
            // SAFETY: the call takes a number and changes this process only.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
            if rustix::process::getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            for fd in &keep {
                // SAFETY: the call takes numbers and changes a flag of the descriptor.
                check(unsafe { libc::fcntl(*fd, libc::F_SETFD, 0) })?;
            }
            settings.aslr.map_or(Ok(()), set_aslr)?;
            if let Some(cpus) = &cpus {
                // SAFETY: the set lives for the call, which only reads it.
                check(unsafe { libc::sched_setaffinity(0, size_of_val(cpus), cpus) })?;
            }
            if let Some(nice) = settings.nice {
                // SAFETY: the call takes numbers and changes this process only.
                check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) })?;
            }
            let limit = settings.realtime_limit;
            limit.map_or(Ok(()), scheduling::kill_after)?;
            let class = settings.scheduling;
            class.map_or(Ok(()), |class| class.set(Children::Inherit))
        };
        // SAFETY: between fork and exec it makes only system calls, and does not
        // allocate.
        unsafe { command.pre_exec(begin) };
    }
}

fn set_aslr(on: bool) -> io::Result<()> {
    const ASK: libc::c_ulong = 0xffff_ffff;
    const FIXED: libc::c_ulong = libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
    // SAFETY: the call takes a number and only asks.
    let now = unsafe { libc::personality(ASK) };
    check(now)?;
    let now = now as libc::c_ulong;
    let wanted = if on { now & !FIXED } else { now | FIXED };
    if wanted == now {
        return Ok(());
    }
    // SAFETY: the call takes a number; where memory goes matters at exec only.
    check(unsafe { libc::personality(wanted) })
}

fn check(rc: i32) -> io::Result<()> {
    match rc {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// How a program ended, and what it used, with what those of its descendants used whose
/// end was waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// Its exit status, where it ended by itself.
    pub code: Option<i32>,
    /// The signal that killed it, where one did.
    pub signal: Option<i32>,
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Page faults that waited for a file or for swap.
    pub major_faults: u64,
    /// The most that one of the processes had resident.
    pub peak: Bytes,
    /// How often they waited.
    pub voluntary_switches: u64,
    /// How often others took the processor from them.
    pub involuntary_switches: u64,
}

impl Ended {
    /// What `wait4` says of a program that ended.
    pub(crate) fn of(status: i32, usage: &libc::rusage) -> Ended {
        let count = |count: i64| u64::try_from(count).unwrap_or(0);
        let time = |time: libc::timeval| {
            Duration::from_secs(count(time.tv_sec)) + Duration::from_micros(count(time.tv_usec))
        };
        Ended {
            code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
            signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            minor_faults: count(usage.ru_minflt),
            major_faults: count(usage.ru_majflt),
            peak: Bytes(count(usage.ru_maxrss) * 1024),
            voluntary_switches: count(usage.ru_nvcsw),
            involuntary_switches: count(usage.ru_nivcsw),
        }
    }
}

/// Whether the child `pid` has ended. It is to be waited for all the same.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    // SAFETY: all-zero is a valid `siginfo_t`; the call overwrites it.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let how = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    // SAFETY: the out-argument lives for the call.
    let rc = unsafe { libc::waitid(libc::P_PID, pid, &mut info, how) };
    // SAFETY: of a child that has not ended the call leaves the zeros.
    rc == 0 && unsafe { info.si_pid() } != 0
}

/// Waits for the end of the child `pid`.
///
/// # Errors
/// When it is no child of this process.
pub fn wait(pid: u32) -> io::Result<Ended> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`; the call overwrites it.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    loop {
        // SAFETY: both out-arguments live for the call.
        let rc = unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, &mut usage) };
        match check(rc) {
            Ok(()) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ended::of(status, &usage))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    fn output(settings: &Settings, script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        settings.apply(&mut command, Vec::new());
        let done = command.output().unwrap();
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn processors_are_understood() {
        assert_eq!("3,0-1,1".parse::<Cpus>().unwrap().numbers(), [0, 1, 3]);
        for wrong in ["", "1-0", "a", "0-", "99999999", "-1"] {
            assert!(wrong.parse::<Cpus>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_fixed_or_random() {
        let of = |aslr| Settings {
            aslr: Some(aslr),
            ..Settings::default()
        };
        let script = "cat /proc/self/personality";
        assert_eq!(output(&of(false), script), "00040000");
        assert_eq!(output(&of(true), script), "00000000");
    }

    #[test]
    fn processors_and_nice_level_are_set() {
        let settings = Settings {
            cpus: Some("0".parse().unwrap()),
            nice: Some(7),
            ..Settings::default()
        };
        let script = "grep Cpus_allowed_list /proc/self/status; nice";
        assert_eq!(output(&settings, script), "Cpus_allowed_list:\t0\n7");
    }

    #[test]
    fn a_runaway_real_time_program_is_ended_by_the_kernel() {
        let settings = Settings {
            scheduling: Some(Scheduling::Fifo(10)),
            cpus: Some("0".parse().unwrap()),
            realtime_limit: Some(Duration::from_millis(200)),
            ..Settings::default()
        };
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        settings.apply(&mut command, Vec::new());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("SKIP: no real-time class: {error}");
                return;
            }
        };
        let ended = wait(child.id()).unwrap();
        assert!(ended.signal.is_some(), "{ended:?}");
        assert!(ended.user + ended.system < Duration::from_secs(5));
    }

    #[test]
    fn what_a_program_used_is_counted() {
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "head -c 30000000 /dev/zero | tail -n 1 | wc -c; exit 3",
            ])
            .stdout(Stdio::piped());
        Settings::default().apply(&mut command, Vec::new());
        let mut child = command.spawn().unwrap();
        let mut text = String::new();
        child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        // Standard output is closed a moment before the end.
        while !has_ended(child.id()) {
            std::thread::yield_now();
        }
        let ended = wait(child.id()).unwrap();
        assert!(!has_ended(child.id()));
        assert_eq!(ended.code, Some(3));
        assert!(ended.peak >= Bytes(30_000_000), "{ended:?}");
        assert!(ended.minor_faults > 100 && ended.voluntary_switches > 0);
        assert!(child.wait().is_err(), "it was waited for");
    }
}

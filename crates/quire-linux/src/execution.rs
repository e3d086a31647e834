//! Programs that are measured: what is set for them before they begin, and what they
//! have used when they have ended.
//!
//! All of it is set between fork and exec, so that no other program runs in between
//! and nothing of it holds for this process.

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use quire_core::units::Bytes;

/// How the kernel gives a program processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduling {
    /// As all programs.
    Other,
    /// As a program that works for long and answers nobody.
    Batch,
    /// When nobody else wants it.
    Idle,
    /// Before all others, until it sleeps. The priority is 1 to 98.
    Fifo(u8),
    /// The same, by turns within a priority.
    RoundRobin(u8),
}

impl Scheduling {
    /// The priority, where it goes before all others.
    #[must_use]
    pub fn realtime_priority(self) -> Option<u8> {
        match self {
            Scheduling::Fifo(priority) | Scheduling::RoundRobin(priority) => Some(priority),
            Scheduling::Other | Scheduling::Batch | Scheduling::Idle => None,
        }
    }

    fn policy(self) -> i32 {
        match self {
            Scheduling::Other => libc::SCHED_OTHER,
            Scheduling::Batch => libc::SCHED_BATCH,
            Scheduling::Idle => libc::SCHED_IDLE,
            Scheduling::Fifo(_) => libc::SCHED_FIFO,
            Scheduling::RoundRobin(_) => libc::SCHED_RR,
        }
    }

    /// Sets it for the calling thread; `flags` are added to the policy.
    fn set(self, flags: i32) -> io::Result<()> {
        // SAFETY: all-zero is a valid `sched_param`.
        let mut parameter: libc::sched_param = unsafe { mem::zeroed() };
        parameter.sched_priority = self.realtime_priority().unwrap_or(0).into();
        // SAFETY: the parameter lives for the call, which only reads it.
        let rc = unsafe { libc::sched_setscheduler(0, self.policy() | flags, &parameter) };
        check(rc)
    }
}

impl fmt::Display for Scheduling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheduling::Other => f.write_str("other"),
            Scheduling::Batch => f.write_str("batch"),
            Scheduling::Idle => f.write_str("idle"),
            Scheduling::Fifo(priority) => write!(f, "fifo:{priority}"),
            Scheduling::RoundRobin(priority) => write!(f, "rr:{priority}"),
        }
    }
}

/// A text that names no scheduling class, or no processors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(String);

impl FromStr for Scheduling {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Scheduling, Unknown> {
        let (name, priority) = text.split_once(':').unwrap_or((text, "50"));
        let priority = priority.parse().ok().filter(|p| (1..=98).contains(p));
        match (name, text.contains(':'), priority) {
            ("other", false, _) => Ok(Scheduling::Other),
            ("batch", false, _) => Ok(Scheduling::Batch),
            ("idle", false, _) => Ok(Scheduling::Idle),
            ("fifo", _, Some(priority)) => Ok(Scheduling::Fifo(priority)),
            ("rr", _, Some(priority)) => Ok(Scheduling::RoundRobin(priority)),
            _ => Err(Unknown(format!(
                "`{text}` is no scheduling class; write other, batch, idle, fifo:PRIORITY or rr:PRIORITY, with a priority from 1 to 98"
            ))),
        }
    }
}

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

impl FromStr for Cpus {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Cpus, Unknown> {
        let unknown = || Unknown(format!("`{text}` names no processors; write 0, 0-1 or 0,2"));
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
            settings.realtime_limit.map_or(Ok(()), limit_realtime)?;
            settings.scheduling.map_or(Ok(()), |class| class.set(0))
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

fn limit_realtime(limit: Duration) -> io::Result<()> {
    let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let limit = libc::rlimit {
        rlim_cur: micros,
        rlim_max: micros,
    };
    // SAFETY: the limit lives for the call, which only reads it.
    check(unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &limit) })
}

fn check(rc: i32) -> io::Result<()> {
    match rc {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The calling thread goes before every program of a real-time priority while this
/// lives, so that it can stop one that never sleeps.
#[derive(Debug)]
#[must_use]
pub struct Watchdog {
    policy: i32,
    parameter: libc::sched_param,
}

impl Watchdog {
    /// Goes before `priority`. Programs that the thread starts do not inherit it.
    ///
    /// # Errors
    /// `EPERM` without the privilege for real-time classes.
    pub fn above(priority: u8) -> io::Result<Watchdog> {
        // SAFETY: all-zero is a valid `sched_param`; the call overwrites it.
        let mut parameter: libc::sched_param = unsafe { mem::zeroed() };
        // SAFETY: the call takes a number and only asks.
        let policy = unsafe { libc::sched_getscheduler(0) };
        check(policy)?;
        // SAFETY: the parameter lives for the call.
        check(unsafe { libc::sched_getparam(0, &mut parameter) })?;
        Scheduling::Fifo(priority + 1).set(libc::SCHED_RESET_ON_FORK)?;
        Ok(Watchdog { policy, parameter })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SAFETY: the parameter lives for the call, which only reads it.
        let rc = unsafe { libc::sched_setscheduler(0, self.policy, &self.parameter) };
        // Who was allowed to go before all is allowed to go back.
        let _ = check(rc);
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
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    let count = |count: libc::c_long| u64::try_from(count).unwrap_or(0);
    Ok(Ended {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        minor_faults: count(usage.ru_minflt),
        major_faults: count(usage.ru_majflt),
        peak: Bytes(count(usage.ru_maxrss) * 1024),
        voluntary_switches: count(usage.ru_nvcsw),
        involuntary_switches: count(usage.ru_nivcsw),
    })
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
    fn texts_are_understood() {
        for text in ["other", "batch", "idle", "fifo:1", "rr:98"] {
            assert_eq!(text.parse::<Scheduling>().unwrap().to_string(), text);
        }
        assert_eq!("fifo".parse(), Ok(Scheduling::Fifo(50)));
        for wrong in ["", "fifo:0", "fifo:99", "rr:x", "other:1", "deadline"] {
            assert!(wrong.parse::<Scheduling>().is_err(), "{wrong}");
        }
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
        let ended = wait(child.id()).unwrap();
        assert_eq!(ended.code, Some(3));
        assert!(ended.peak >= Bytes(30_000_000), "{ended:?}");
        assert!(ended.minor_faults > 100 && ended.voluntary_switches > 0);
        assert!(child.wait().is_err(), "it was waited for");
    }
}

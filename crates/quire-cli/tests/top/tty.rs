//! A terminal that `quire top` runs in: a pseudo terminal, and a screen that
//! understands what is written to it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// How long anything may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// `quire top` in a terminal.
pub struct Tty {
    child: Child,
    master: File,
    slave: OwnedFd,
    before: Termios,
    parser: vt100::Parser,
    raw: Vec<u8>,
}

impl Tty {
    /// Starts `quire top` with these arguments and variables in a terminal of
    /// this size.
    pub fn start(args: &[&str], variables: &[(&str, &str)], columns: u16, rows: u16) -> Tty {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(&*name, flags, Mode::empty()).unwrap();
        tcsetwinsize(&slave, size(columns, rows)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let end = || slave.try_clone().unwrap();
        // In a session of its own the terminal sends signals, as a real one does.
        let child = Command::new("setsid")
            .args(["--ctty", env!("CARGO_BIN_EXE_quire"), "top"])
            .args(["--interval", "0.1"])
            .args(args)
            .env_remove("NO_COLOR")
            .envs([("TERM", "xterm-256color"), ("LC_ALL", "C.UTF-8")])
            .envs(variables.iter().copied())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Tty {
            child,
            master: master.into(),
            slave,
            before,
            parser: vt100::Parser::new(count(rows), count(columns), 0),
            raw: Vec::new(),
        }
    }

    /// The process number of `quire top`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types.
    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Gives the terminal another size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        self.parser
            .screen_mut()
            .set_size(count(rows), count(columns));
        tcsetwinsize(&self.slave, size(columns, rows)).unwrap();
    }

    /// The lines of the screen, without the blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let (_, columns) = self.parser.screen().size();
        let rows = self.parser.screen().rows(0, columns.get());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    /// Everything that was written so far.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }

    /// Whether the other screen, which programs draw on, is shown.
    pub fn is_taken_over(&self) -> bool {
        self.parser.screen().alternate_screen()
    }

    /// Reads what is written within the time.
    fn read(&mut self, time: Duration) {
        let timeout = Timespec::try_from(time).unwrap();
        let mut polled = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut polled, Some(&timeout)).unwrap() == 0 {
            return;
        }
        let mut bytes = [0; 65536];
        let len = self.master.read(&mut bytes).unwrap();
        self.raw.extend_from_slice(&bytes[..len]);
        self.parser.process(&bytes[..len]);
    }

    /// Waits until the screen is as it should be.
    pub fn wait_for(&mut self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(&self.lines()) {
            let screen = self.lines().join("\n");
            assert!(Instant::now() < end, "no {what} on the screen:\n{screen}");
            self.read(Duration::from_millis(50));
        }
    }

    /// Waits until a line holds all these texts in this order.
    pub fn wait_for_line(&mut self, texts: &[&str]) {
        self.wait_for(&texts.join("..."), |lines| {
            lines.iter().any(|line| holds(line, texts))
        });
    }

    /// The line that holds these texts in this order.
    pub fn line(&self, texts: &[&str]) -> Option<usize> {
        self.lines().iter().position(|line| holds(line, texts))
    }

    /// Waits for the end and checks that the terminal is as it was before.
    pub fn finish(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "quire top does not end");
            self.read(Duration::from_millis(20));
        };
        self.check_given_back();
        status
    }

    /// Waits until the process is stopped, and checks that the terminal is as
    /// it was before.
    pub fn wait_until_stopped(&mut self) {
        let end = Instant::now() + PATIENCE;
        let is_stopped = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            text.contains(") T ")
        };
        while !is_stopped(self.pid()) {
            assert!(Instant::now() < end, "quire top does not stop");
            self.read(Duration::from_millis(20));
        }
        self.check_given_back();
    }

    /// What was written last may arrive in several parts, and late where the
    /// machine is busy.
    fn check_given_back(&mut self) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.read(Duration::from_millis(20));
            let screen = self.parser.screen();
            if !screen.alternate_screen() && !screen.hide_cursor() {
                break;
            }
            assert!(Instant::now() < end, "the screen is not given back");
        }
        let after = tcgetattr(self.slave.as_fd()).unwrap();
        let modes = |t: &Termios| (t.local_modes, t.input_modes, t.output_modes);
        assert_eq!(modes(&after), modes(&self.before));
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        // It has ended already where a test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a line holds texts in this order.
fn holds(line: &str, texts: &[&str]) -> bool {
    let mut rest = line;
    texts.iter().all(|text| match rest.split_once(text) {
        Some((_, after)) => {
            rest = after;
            true
        }
        None => false,
    })
}

fn count(n: u16) -> NonZeroU16 {
    NonZeroU16::new(n).unwrap()
}

fn size(columns: u16, rows: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

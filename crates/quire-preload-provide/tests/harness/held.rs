//! A program that fills its memory, says so, and waits until its input ends, so
//! that a test can look at the process from outside.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use quire_linux::control;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::scratch::Scratch;
use super::setting::Setting;
use super::{build, process};

/// The library answers within this, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

/// The program while it waits.
pub struct Held {
    pub child: Child,
    /// The directory of its statistics page and its control socket.
    pub session: PathBuf,
    what: String,
    scratch: Scratch,
}

impl Held {
    /// Starts a program with an argument, and waits until it is ready.
    pub fn start(setting: &Setting, program: &str, argument: &str) -> Held {
        let mut held = Held::launch(setting, program, argument);
        held.hear("ready");
        held
    }

    /// Starts a program with an argument.
    pub fn launch(setting: &Setting, program: &str, argument: &str) -> Held {
        let what = format!("{program} {argument} under {}", setting.name);
        let scratch = Scratch::new(setting.unprivileged);
        let session = scratch.session();
        let argv = [build::program(program).into(), argument.into()];
        let argv = process::in_session(&session, argv);
        let command = setting.command(&argv, &setting.libraries(), None);
        let child = process::start(&command, scratch.path());
        Held {
            child,
            session,
            what,
            scratch,
        }
    }

    /// The socket at which the library answers. Its thread makes it a moment after the program
    /// has begun.
    pub fn control(&self) -> PathBuf {
        let socket = control::socket_path(&self.session, self.child.id());
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < PATIENCE, "{}: no control", self.what);
            sleep(Duration::from_millis(1));
        }
        socket
    }

    /// Waits until the program says a line.
    pub fn hear(&mut self, wanted: &str) {
        assert_eq!(self.line(), format!("{wanted}\n"), "{}", self.what);
    }

    /// The next line that the program says.
    pub fn line(&mut self) -> String {
        let output = self.child.stdout.as_mut().expect("stdout is a pipe");
        // A byte at a time: what is read ahead here would be lost.
        let mut line = String::new();
        let mut byte = [0];
        while !line.ends_with('\n') && output.read(&mut byte).expect("the pipe can be read") == 1 {
            line.push(char::from(byte[0]));
        }
        line
    }

    /// Lets the kernel dump the program, up to so many bytes.
    pub fn allow_core(&self, bytes: u64) {
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        let pid = Pid::from_child(&self.child);
        prlimit(Some(pid), Resource::Core, limit).expect("the child is ours");
    }

    /// Where it runs.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    /// Answers it by a line, written at once: programs read what there is.
    pub fn tell(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("stdin is a pipe");
        let answer = input.write_all(format!("{line}\n").as_bytes());
        answer.expect("the child waits for it");
    }

    /// Its statistics page.
    pub fn page(&self) -> PathBuf {
        self.session.join(format!("stat.{}", self.child.id()))
    }

    /// Lets the program check its memory and end.
    pub fn end(self) {
        process::finish(self.child, &self.what);
    }
}

//! A server, and programs that share memory through it. What is run is built here: the
//! programs with the C compiler, the libraries and the command by Cargo, once per test run.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// No program takes longer, in seconds.
const LIMIT: &str = "60";

fn target_dir() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent()
        .expect("the directory for tests lies in target")
}

/// Has Cargo build something, unless `QUIRE_BUILT` says that all is built. For a package alone it
/// builds much anew that it has for the workspace, as what packages need of others is another set.
fn cargo_builds(arguments: &[&str]) {
    if std::env::var_os("QUIRE_BUILT").is_some() {
        return;
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--target-dir"])
        .arg(target_dir())
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("Cargo can be run");
    assert!(status.success(), "{arguments:?} cannot be built");
}

/// The library that is tested: `QUIRE_DSM_LIB`, or what Cargo builds.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("QUIRE_DSM_LIB") {
        Some(path) => fs::canonicalize(path).expect("QUIRE_DSM_LIB names a file"),
        None => {
            cargo_builds(&["--package", "quire-shm"]);
            target_dir().join("debug/libquire_dsm.so")
        }
    });
    &LIBRARY
}

/// The `quire` command.
fn command() -> &'static Path {
    static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| {
        cargo_builds(&["--package", "quire-cli"]);
        target_dir().join("debug/quire")
    });
    &COMMAND
}

/// A `PATH` on which the command is.
pub fn path_with_command() -> OsString {
    let mut path = command()
        .parent()
        .expect("a directory")
        .as_os_str()
        .to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// `libquire.so`: `QUIRE_LIB`, or what Cargo builds.
pub fn manager() -> &'static Path {
    static MANAGER: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("QUIRE_LIB") {
        Some(path) => path.into(),
        None => {
            // The command takes the libraries that provide memory from beside this one.
            cargo_builds(&["--profile", "preload", "--package", "quire-preload*"]);
            target_dir().join("preload/libquire.so")
        }
    });
    &MANAGER
}

/// A file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program, which is compiled once, however many tests run it.
pub fn built(path: &str, options: &[&str]) -> PathBuf {
    type Programs = HashMap<u64, Arc<OnceLock<PathBuf>>>;
    static BUILT: LazyLock<Mutex<Programs>> = LazyLock::new(Mutex::default);
    let name = BuildHasherDefault::<DefaultHasher>::default().hash_one((path, options));
    let cell = {
        let mut all = BUILT.lock().unwrap_or_else(|e| e.into_inner());
        Arc::clone(all.entry(name).or_default())
    };
    let build = || {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shared/{name:x}"));
        // Another test run may be using the program of this name.
        let fresh = directory.join(std::process::id().to_string());
        fs::create_dir_all(&fresh).expect("the target directory is writable");
        let program = compile(path, &fresh, options);
        let to = directory.join(program.file_name().expect("a program has a name"));
        fs::rename(&program, &to).expect("the target directory is writable");
        fs::remove_dir(&fresh).expect("it is empty");
        to
    };
    cell.get_or_init(build).clone()
}

/// Compiles a program into a directory.
pub fn compile(path: &str, directory: &Path, options: &[&str]) -> PathBuf {
    let from = source(path);
    let to = directory.join(from.file_stem().expect("a source has a name"));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let how = [
        "-D_GNU_SOURCE",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-g",
        "-pthread",
    ];
    let status = Command::new(compiler)
        .args(how)
        .arg("-I")
        .arg(source("include"))
        .arg("-o")
        .args([&to, &from])
        .args(options)
        .status()
        .expect("the compiler can be run");
    assert!(status.success(), "{path} does not compile");
    to
}

/// A program that is linked with the library.
pub fn link(path: &str, more: &[&str]) -> PathBuf {
    let libraries = library().parent().expect("a file has a directory");
    let libraries = libraries.display();
    let options = [
        &format!("-L{libraries}"),
        "-lquire_dsm",
        &format!("-Wl,-rpath,{libraries}"),
    ];
    built(path, &[&options[..], more].concat())
}

/// A server of its own.
pub struct Served {
    process: Child,
    pub address: String,
    pub directory: TempDir,
    options: Vec<String>,
    /// Whether programs are told to keep pages of their own.
    pub own_pages: bool,
}

/// Starts a server, and waits until it serves. Says where.
fn serve(options: &[String]) -> (Child, String) {
    let mut process = Command::new(command())
        .args(["serve", "--lease", "4"])
        .args(options)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command was built");
    let mut line = String::new();
    let stdout = process.stdout.as_mut().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let address = line.strip_prefix("serving at ").expect("an address");
    let address = address.trim().to_owned();
    (process, address)
}

impl Served {
    /// At a Unix socket.
    pub fn start() -> Served {
        let directory = TempDir::new().expect("a directory");
        let listen = format!("unix:{}/socket", directory.path().display());
        Served::start_with(directory, &["--listen", &listen])
    }

    /// Two, at Unix sockets: programs share the copies of one, and have pages of their own at
    /// the other.
    pub fn both() -> [Served; 2] {
        [false, true].map(|own_pages| {
            let mut served = Served::start();
            served.own_pages = own_pages;
            served
        })
    }

    /// At a Unix socket, with a store.
    pub fn start_with_store() -> Served {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().display().to_string();
        let (listen, store) = (format!("unix:{path}/socket"), format!("{path}/store"));
        Served::start_with(directory, &["--listen", &listen, "--store", &store])
    }

    pub fn start_with(directory: TempDir, options: &[&str]) -> Served {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (process, address) = serve(&options);
        Served {
            process,
            address,
            directory,
            options,
            own_pages: false,
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The number of the server's process.
    pub fn process(&self) -> u32 {
        self.process.id()
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        self.process.kill().expect("it is ours");
        self.process.wait().expect("it is ours");
    }

    /// Tells the server to end, and waits until it has.
    pub fn end(&mut self) {
        let process = Pid::from_raw(self.process.id().cast_signed()).expect("a process");
        kill_process(process, Signal::TERM).expect("it is there");
        let status = self.process.wait().expect("it is ours");
        assert!(status.success(), "{status}");
    }

    /// Starts a server that was killed, at the same address.
    pub fn start_again(&mut self) {
        (self.process, self.address) = serve(&self.options);
    }

    pub fn quire(&self, arguments: &[&str]) -> Output {
        quire()
            .args(arguments)
            .env("QUIRE_SERVER", &self.address)
            .output()
            .expect("the command was built")
    }

    /// What a command prints that does well.
    pub fn does(&self, arguments: &[&str]) -> String {
        let output = self.quire(arguments);
        assert_well(&output);
        String::from_utf8(output.stdout).expect("text")
    }

    /// The names of all objects.
    pub fn objects(&self) -> Vec<String> {
        let list = self.does(&["object", "ls"]);
        let names = list
            .lines()
            .skip(1)
            .filter_map(|line| line.split(' ').next());
        names.map(str::to_owned).collect()
    }

    /// The contents of an object, as the server has them.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        let file = self.path().join("contents");
        let to = file.to_str().expect("text");
        self.does(&["object", "cp", &format!(":{name}"), to]);
        fs::read(file).expect("it was written")
    }

    /// A command by which a program gets an object as shared memory.
    pub fn run(&self, object: &str, program: &Path, arguments: &[&str]) -> Command {
        let mut command = self.run_with(object, &[], program);
        command.args(arguments);
        command
    }

    /// The same with more options. The program is ended when it takes too long.
    pub fn run_with(&self, object: &str, options: &[&str], program: &Path) -> Command {
        let mut command = self.attach(object, options);
        command.args(["timeout", "-s", "KILL", LIMIT]).arg(program);
        command
    }

    /// The same for a program that must not start.
    pub fn run_directly(&self, object: &str, program: &Path) -> Command {
        let mut command = self.attach(object, &[]);
        command.arg(program);
        command
    }

    fn attach(&self, object: &str, options: &[&str]) -> Command {
        let mut command = quire();
        command
            .args(["run", "--quiet", "--dsm"])
            .arg(format!("{object}@{}", self.address))
            // Programs of several runs remove each other's objects; `keeping` has what does not.
            .arg("--no-keep")
            .args(options);
        if self.own_pages {
            command.arg("--own-pages");
        }
        command.arg("--");
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command, with the libraries that are tested.
pub fn quire() -> Command {
    let mut quire = Command::new(command());
    quire
        .env("QUIRE_LIB", manager())
        .env("QUIRE_DSM_LIB", library());
    quire
}

pub fn assert_well(output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
}

/// A program while it runs, which ends with the test.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, output }
    }

    /// Says a line to it.
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("a pipe");
        writeln!(input, "{line}").expect("it listens");
    }

    /// Waits until it says a line.
    pub fn hear(&mut self, wanted: &str) {
        assert_eq!(self.listen(), wanted);
    }

    /// Waits until it says something.
    pub fn listen(&mut self) -> String {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .expect("the pipe can be read");
        line.trim_end().to_owned()
    }

    /// Lets it go on, and asserts that it ends well.
    pub fn go_on(self) {
        let status = self.status();
        assert!(status.success(), "{status}");
    }

    /// Lets it go on, and waits for its end.
    pub fn status(mut self) -> ExitStatus {
        if let Some(mut input) = self.child.stdin.take() {
            // It may have ended.
            let _ = input.write_all(b"\n");
        }
        self.child.wait().expect("it is ours")
    }
}

/// The signal that ended a program, also as `timeout` tells it.
pub fn signal(status: ExitStatus) -> Option<i32> {
    status.signal().or(status.code().map(|code| code - 128))
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

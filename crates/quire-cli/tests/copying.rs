//! `quire object cp` where something goes wrong: a disk that is full, a server that refuses, a
//! signal, several who copy to one name at once. What was there before stays, and nothing is left
//! behind half made.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/serving.rs"]
mod serving;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/tmpfs.rs"]
mod tmpfs;

use refusal::assert_refused;
use serving::started;
use tmpfs::Small;

fn skip(reason: &str) {
    let test = thread::current().name().unwrap_or("test").to_owned();
    eprintln!("SKIP: {test}: {reason}");
}

fn quire() -> Command {
    Command::new(env!("CARGO_BIN_EXE_quire"))
}

/// A server, with a directory for files.
struct Served {
    process: Child,
    address: String,
    directory: TempDir,
}

impl Served {
    fn start(args: &[&str]) -> Served {
        let directory = TempDir::new().unwrap();
        let address = format!("unix:{}/socket", directory.path().display());
        let mut command = quire();
        command
            .args(["serve", "--lease", "1", "--listen", &address])
            .args(args)
            .stderr(Stdio::null());
        Served {
            process: started(&mut command),
            address,
            directory,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = quire();
        command.args(args).env("QUIRE_SERVER", &self.address);
        command
    }

    fn quire(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn does(&self, args: &[&str]) -> Vec<u8> {
        let output = self.quire(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        output.stdout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes an object with these contents.
    fn has(&self, name: &str, contents: &[u8]) {
        let from = self.path("contents");
        fs::write(&from, contents).unwrap();
        self.does(&["object", "cp", text(&from), &format!(":{name}")]);
    }

    /// The names of all objects.
    fn objects(&self) -> Vec<String> {
        let list = self.does(&["object", "ls", "--json"]);
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let name = |object: &serde_json::Value| object["name"].as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(name).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A command that runs, and ends with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        let command = command.stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    fn wait(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|n| (n * 7 % 251) as u8).collect()
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "it does not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

/// What is in a directory.
fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_keeps_its_contents_until_the_new_ones_are_whole() {
    let Some(small) = Small::mount("1m") else {
        return skip("no tmpfs can be mounted");
    };
    let served = Served::start(&[]);
    served.has("large", &noise(2 << 20));
    let file = small.path().join("file");
    fs::write(&file, "what was there").unwrap();
    small.fill();
    let full = served.quire(&["object", "cp", ":large", text(&file)]);
    assert_refused(&full, 1, &[text(&file), "No space left"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "what was there");
    assert_eq!(names(small.path()), ["ballast", "file"]);
    let new = small.path().join("new");
    let full = served.quire(&["object", "cp", ":large", text(&new)]);
    assert_refused(&full, 1, &[text(&new), "No space left"]);
    assert_eq!(names(small.path()), ["ballast", "file"]);
    // A path that cannot be one is bad input.
    let wrong = served.quire(&["object", "cp", ":large", "/nonexistent/file"]);
    assert_refused(&wrong, 2, &["/nonexistent/file"]);
    let wrong = served.quire(&["object", "cp", ":large", text(small.path())]);
    assert_refused(&wrong, 2, &[text(small.path())]);
    let wrong = served.quire(&["object", "cp", text(small.path()), ":new"]);
    assert_refused(&wrong, 2, &[text(small.path())]);
    assert_eq!(served.objects(), ["large"]);
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions_and_links() {
    let served = Served::start(&[]);
    let bytes = noise(10_000);
    served.has("some", &bytes);
    let place = served.path("place");
    fs::create_dir_all(place.join("below")).unwrap();
    let file = place.join("below/file");
    fs::write(&file, "what was there").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&file).unwrap().ino();
    for (link, to) in [("one", "two"), ("two", "below/file"), ("new", "below/made")] {
        symlink(to, place.join(link)).unwrap();
    }
    served.does(&["object", "cp", ":some", text(&place.join("one"))]);
    assert!(fs::read(&file).unwrap() == bytes);
    let after = fs::metadata(&file).unwrap();
    assert_eq!(after.permissions().mode() & 0o7777, 0o640);
    assert_ne!(after.ino(), before, "it was written to where it was");
    served.does(&["object", "cp", ":some", text(&place.join("new"))]);
    assert!(fs::read(place.join("below/made")).unwrap() == bytes);
    assert_eq!(names(&place), ["below", "new", "one", "two"]);
    assert_eq!(names(&place.join("below")), ["file", "made"]);
    assert!(
        fs::symlink_metadata(place.join("one"))
            .unwrap()
            .is_symlink()
    );
    // A name of a file without its directory.
    let mut here = served.command(&["object", "cp", ":some", "here"]);
    assert!(here.current_dir(&place).status().unwrap().success());
    assert!(fs::read(place.join("here")).unwrap() == bytes);
}

#[test]
fn pipes_and_what_is_open_are_written_to_as_they_are() {
    let served = Served::start(&[]);
    let bytes = noise(300_000);
    served.has("some", &bytes);
    // A pipe, by its name and by that of standard output.
    let pipe = served.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut writes = Running::start(&mut served.command(&["object", "cp", ":some", text(&pipe)]));
    assert!(fs::read(&pipe).unwrap() == bytes);
    assert_eq!(writes.wait(), Some(0));
    assert!(served.does(&["object", "cp", ":some", "/dev/stdout"]) == bytes);
    // A file that is open already, by the same name.
    let file = served.path("file");
    let open = fs::File::create(&file).unwrap();
    let before = open.metadata().unwrap().ino();
    let mut writes = served.command(&["object", "cp", ":some", "/dev/stdout"]);
    assert!(writes.stdout(open).status().unwrap().success());
    assert!(fs::read(&file).unwrap() == bytes);
    assert_eq!(fs::metadata(&file).unwrap().ino(), before);
    // A device that takes nothing.
    let full = served.quire(&["object", "cp", ":some", "/dev/full"]);
    assert_refused(&full, 1, &["/dev/full", "No space left"]);
}

/// An object that was made for a file and is not filled goes again: where the server's disk is
/// full, and where a signal comes.
#[test]
fn an_object_that_could_not_be_filled_is_removed_again() {
    let Some(small) = Small::mount("40m") else {
        return skip("no tmpfs can be mounted");
    };
    let store = small.path().join("store");
    let served = Served::start(&["--store", text(&store)]);
    let from = served.path("from");
    fs::write(&from, noise(24 << 20)).unwrap();
    let full = served.quire(&["object", "cp", text(&from), ":new"]);
    assert_refused(&full, 1, &["disk is full"]);
    assert!(served.objects().is_empty());
    // One that was there stays, with whatever it has.
    served.does(&["object", "create", "there", "--size", "24M"]);
    let full = served.quire(&["object", "cp", text(&from), ":there"]);
    assert_refused(&full, 1, &["disk is full"]);
    assert_eq!(served.objects(), ["there"]);
}

#[test]
fn a_signal_leaves_nothing_half_copied() {
    let served = Served::start(&[]);
    let from = served.path("from");
    // All holes: so large that it takes a while, and takes no space.
    fs::File::create(&from).unwrap().set_len(200 << 30).unwrap();
    let mut copies = Running::start(&mut served.command(&["object", "cp", text(&from), ":new"]));
    wait_for(|| !served.objects().is_empty());
    signals::send("INT", copies.0.id());
    assert_eq!(copies.wait(), Some(130));
    assert!(served.objects().is_empty());

    served.does(&["object", "create", "large", "--size", "200G"]);
    let place = served.path("place");
    fs::create_dir(&place).unwrap();
    let file = place.join("file");
    fs::write(&file, "what was there").unwrap();
    let mut copies = Running::start(&mut served.command(&["object", "cp", ":large", text(&file)]));
    wait_for(|| names(&place).len() == 2);
    signals::send("TERM", copies.0.id());
    assert_eq!(copies.wait(), Some(143));
    assert_eq!(fs::read_to_string(&file).unwrap(), "what was there");
    assert_eq!(names(&place), ["file"]);
}

/// Who finds that another one has made the object meanwhile copies to that.
#[test]
fn several_copy_to_one_name_at_once() {
    let served = Served::start(&[]);
    let bytes = noise(1 << 20);
    let from = served.path("from");
    fs::write(&from, &bytes).unwrap();
    for round in 0..10 {
        let name = format!(":new-{round}");
        let args = ["object", "cp", text(&from), &name];
        let copies = [(); 4].map(|()| Running::start(&mut served.command(&args)));
        for mut copy in copies {
            let mut error = String::new();
            let mut said = copy.0.stderr.take().unwrap();
            said.read_to_string(&mut error).unwrap();
            assert_eq!(copy.wait(), Some(0), "{error}");
        }
        assert!(served.does(&["object", "cp", &name, "-"]) == bytes);
    }
}

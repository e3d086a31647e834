//! PostgreSQL, as an ordinary user, with all that its processes share in an object: segments of
//! System V, semaphores in them, forks, reads and writes from there, processes that are killed, and
//! memory that is removed and made anew. Where the object is not the server's own copy, each of its
//! processes has pages of its own, as on a machine of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::descriptors::until;
use crate::harness::{Running, Served, assert_well, library, quire};

/// The user `nobody`, and the group.
const NOBODY: u32 = 65534;

/// Where Debian has what belongs to the server of a version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A database of its own.
struct Database<'a> {
    served: &'a Served,
    programs: PathBuf,
}

fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?;
    let all = versions.flatten().map(|version| version.path().join("bin"));
    all.filter(|programs| programs.join("initdb").exists())
        .max()
}

impl Database<'_> {
    fn data(&self) -> PathBuf {
        self.served.path().join("data")
    }

    /// What a program of it says, as an ordinary user.
    fn does(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        assert_well(&output);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(program, arguments);
        command.output().expect("setpriv is there")
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(AS_NOBODY[0]);
        command
            .args(&AS_NOBODY[1..])
            .arg(self.programs.join(program));
        command.args(arguments).env("PGHOST", self.served.path());
        command.env("PGDATA", self.data()).current_dir("/");
        command
    }

    fn asks(&self, question: &str) -> String {
        self.does("psql", &["-X", "-A", "-t", "-c", question, "postgres"])
    }

    /// Kills the process that works for somebody.
    fn kill_one(&self) {
        let mut sleeps = self.command("psql", &["-X", "-c", "select pg_sleep(60)", "postgres"]);
        let mut sleeps = sleeps.spawn().expect("setpriv is there");
        let which = "select pid from pg_stat_activity where query = 'select pg_sleep(60)'";
        until(|| !self.asks(which).is_empty());
        let killed = Command::new("kill")
            .args(["-9", &self.asks(which)])
            .status();
        assert!(killed.expect("there is kill").success());
        let ended = sleeps.wait().expect("it is ours");
        assert!(!ended.success());
    }

    /// Starts it with an object for its memory.
    fn start(&self, libraries: &Path) -> Running {
        let key = fs::metadata(self.data()).expect("it was made").ino();
        let mut command = quire();
        command.args(["run", "--quiet", "--dsm"]);
        // The key of a data directory's memory.
        command.arg(format!("pg={:#x}@{}", key as u32, self.served.address));
        if self.served.own_pages {
            command.arg("--own-pages");
        }
        command.arg("--").args(AS_NOBODY);
        command.arg(self.programs.join("postgres"));
        command.args(["-D", &self.data().display().to_string(), "-F"]);
        command.args(["-c", "listen_addresses=", "-c", "shared_buffers=4MB"]);
        command.arg("-c");
        command.arg(format!(
            "unix_socket_directories={}",
            self.served.path().display()
        ));
        command.args(["-c", "shared_memory_type=sysv", "-c", "huge_pages=off"]);
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        command.args(["-c", "max_connections=10", "-c", "autovacuum=off"]);
        command.env("QUIRE_DSM_LIB", libraries.join("libquire_dsm.so"));
        command.env("QUIRE_LIB", libraries.join("libquire.so"));
        let running = Running::start(command.current_dir("/"));
        until(|| self.run("pg_isready", &[]).status.success());
        running
    }
}

const AS_NOBODY: [&str; 4] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
];

/// Copies of the libraries that an ordinary user may load.
fn libraries(served: &Served) -> PathBuf {
    let to = served.path().join("lib");
    fs::create_dir(&to).expect("there is room");
    fs::copy(library(), to.join("libquire_dsm.so")).expect("there is room");
    let manager = crate::harness::manager();
    fs::copy(manager, to.join("libquire.so")).expect("there is room");
    to
}

#[test]
fn postgres_runs_on_shared_memory() {
    let Some(programs) = programs() else {
        eprintln!("SKIP: postgres_runs_on_shared_memory: there is no PostgreSQL");
        return;
    };
    for served in Served::both() {
        // Its files and sockets are an ordinary user's.
        fs::set_permissions(served.path(), Permissions::from_mode(0o777)).expect("it is ours");
        let socket = served.path().join("socket");
        fs::set_permissions(socket, Permissions::from_mode(0o777)).expect("it is ours");
        let libraries = libraries(&served);
        let database = Database {
            served: &served,
            programs: programs.clone(),
        };
        fs::create_dir(database.data()).expect("there is room");
        chown(database.data(), Some(NOBODY), Some(NOBODY)).expect("it is ours");
        database.does("initdb", &["-N", "-A", "trust", "-E", "UTF8"]);
        let server = database.start(&libraries);
        assert_eq!(served.objects(), ["pg"]);
        let rows = if served.own_pages { 200 } else { 20_000 };
        database.asks("create table t (n bigint, s text)");
        let insert =
            format!("insert into t select n, repeat('x', 100) from generate_series(1, {rows}) n");
        database.asks(&insert);
        let sum = format!("{}", rows * (rows + 1) / 2);
        assert_eq!(database.asks("select sum(n) from t"), sum);
        // One of its processes is killed: the others end, and begin anew with new memory.
        database.kill_one();
        until(|| {
            database
                .run("psql", &["-X", "-c", "select", "postgres"])
                .status
                .success()
        });
        assert_eq!(database.asks("select sum(n) from t"), sum);
        database.does("pg_ctl", &["stop", "-m", "fast"]);
        server.go_on();
        // Of those of its processes that had it, the one that removed it need not be the last to be missed.
        until(|| served.objects().is_empty());
    }
}

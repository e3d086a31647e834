//! An etcd of the tests.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// It is well after this at the latest.
const SOON: Duration = Duration::from_secs(60);

/// An etcd, killed when it is dropped.
pub struct Etcd {
    pub process: Child,
    pub url: String,
    _data: TempDir,
}

impl Etcd {
    /// Starts one by a command, at two addresses: for clients, and for others of its kind.
    /// Waits until it is well, as whoever asks the first of them finds. None, with a line,
    /// where there is no etcd.
    pub fn start(
        command: Command,
        addresses: [String; 2],
        is_well: impl Fn(&str) -> bool,
    ) -> Option<Etcd> {
        Etcd::start_as("http", command, addresses, is_well)
    }

    /// The same, where clients come over `http` or `https`.
    pub fn start_as(
        scheme: &str,
        mut command: Command,
        [client, peer]: [String; 2],
        is_well: impl Fn(&str) -> bool,
    ) -> Option<Etcd> {
        let data = in_memory();
        let [url, peer] = [format!("{scheme}://{client}"), format!("http://{peer}")];
        let started = command
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &url])
            .args(["--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(error) => {
                println!("SKIP: no etcd, run ./setup: {error}");
                return None;
            }
        };
        let etcd = Etcd {
            process,
            url,
            _data: data,
        };
        let end = Instant::now() + SOON;
        while !is_well(&client) {
            assert!(Instant::now() < end, "etcd does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        Some(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A directory in memory, where there is room for etcd's log: others write to disks, and leases
/// are short here.
fn in_memory() -> TempDir {
    const ROOM: u64 = 1 << 30;
    let memory = "/dev/shm";
    let has_room = rustix::fs::statvfs(memory).is_ok_and(|it| it.f_bavail * it.f_frsize > ROOM);
    let directory = has_room.then(|| TempDir::new_in(memory).ok()).flatten();
    directory.unwrap_or_else(|| TempDir::new().unwrap())
}

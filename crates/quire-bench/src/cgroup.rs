//! A memory cgroup of its own for a process: says what the kernel charges it
//! for, and can put it under pressure. Versions 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";
/// Name of the group for a competing program.
const RIVAL: &str = "rival";
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A memory cgroup.
#[derive(Clone, Debug)]
pub struct Group {
    dir: PathBuf,
}

/// A memory cgroup with one group inside for the program that is measured and
/// one for another that competes with it. All are removed with it.
#[derive(Debug)]
pub struct OwnedGroup {
    outer: Group,
    program: Group,
}

/// The directory in which cgroups with a memory controller can be made.
fn root() -> Option<&'static Path> {
    if Path::new(V1).join("memory.limit_in_bytes").exists() {
        return Some(Path::new(V1));
    }
    let control = fs::read_to_string(Path::new(V2).join("cgroup.subtree_control")).ok()?;
    control
        .split_whitespace()
        .any(|c| c == "memory")
        .then(|| Path::new(V2))
}

impl OwnedGroup {
    /// Makes the cgroups, or says why that is not possible.
    pub fn create() -> Result<OwnedGroup> {
        let root = root().context("no memory controller is mounted in /sys/fs/cgroup")?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let outer = Group {
            dir: root.join(format!("quire-bench.{}.{number}", std::process::id())),
        };
        let owned = OwnedGroup {
            program: outer.inner("program"),
            outer,
        };
        let make = |group: &Group| {
            fs::create_dir(&group.dir).with_context(|| format!("making {}", group.dir.display()))
        };
        make(&owned.outer)?;
        // Version 1 has no such file, and its groups nest without it.
        let _ = fs::write(owned.outer.dir.join("cgroup.subtree_control"), "+memory");
        make(&owned.program)?;
        make(&owned.outer.inner(RIVAL))?;
        Ok(owned)
    }

    /// The group for the program that is measured.
    pub fn program(&self) -> &Group {
        &self.program
    }
}

impl Drop for OwnedGroup {
    fn drop(&mut self) {
        for group in [&self.program, &self.outer.inner(RIVAL), &self.outer] {
            // Processes that have just ended may still be counted.
            for _ in 0..50 {
                if fs::remove_dir(&group.dir).is_ok() || !group.dir.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

impl Group {
    /// The cgroup whose directory is `dir`.
    pub fn at(dir: &Path) -> Group {
        Group {
            dir: dir.to_owned(),
        }
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn inner(&self, name: &str) -> Group {
        Group {
            dir: self.dir.join(name),
        }
    }

    /// The group around it.
    pub fn outer(&self) -> Option<Group> {
        self.dir.parent().map(Group::at)
    }

    /// The group beside it for a program that competes with this one's.
    pub fn rival(&self) -> Option<Group> {
        self.outer().map(|outer| outer.inner(RIVAL))
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.dir.join(file))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn stat(&self, key: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dir.join("memory.stat")).ok()?;
        let mut words = text.lines().filter_map(|l| l.split_once(' '));
        words.find(|(k, _)| *k == key)?.1.trim().parse().ok()
    }

    /// Everything that is charged: memory of programs, page cache, and the
    /// kernel's own structures, in bytes.
    pub fn usage(&self) -> Option<u64> {
        self.number("memory.usage_in_bytes")
            .or_else(|| self.number("memory.current"))
    }

    /// Anonymous and shared memory that is charged, in bytes. Reserved
    /// superpages count as a whole.
    pub fn program_memory(&self) -> Option<u64> {
        let anonymous = self.stat("rss").or_else(|| self.stat("anon"))?;
        Some(anonymous + self.stat("shmem").unwrap_or(0))
    }

    /// Limits its memory to `bytes`.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let v1 = self.dir.join("memory.limit_in_bytes");
        let file = if v1.exists() {
            v1
        } else {
            self.dir.join("memory.max")
        };
        fs::write(&file, bytes.to_string()).with_context(|| format!("limit of {bytes} bytes"))
    }

    /// The limit of its memory, in bytes.
    pub fn limit_set(&self) -> Option<u64> {
        self.number("memory.limit_in_bytes")
            .or_else(|| self.number("memory.max"))
    }
}

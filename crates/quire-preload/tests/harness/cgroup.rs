//! A memory cgroup of either version, for programs that must fit.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The cgroup; dropping removes it.
pub struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Makes a cgroup that holds `bytes`; says why where that is not possible.
    pub fn new(bytes: u64) -> Result<MemoryCgroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let root = Path::new(if unified {
            "/sys/fs/cgroup"
        } else {
            "/sys/fs/cgroup/memory"
        });
        let name = format!(
            "quire-test.{}.{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = root.join(name);
        fs::create_dir(&path)
            .map_err(|e| format!("no memory cgroup at {}: {e}", root.display()))?;
        let cgroup = MemoryCgroup(path);
        let (limit, swap) = if unified {
            ("memory.max", ("memory.swap.max", 0))
        } else {
            (
                "memory.limit_in_bytes",
                ("memory.memsw.limit_in_bytes", bytes),
            )
        };
        fs::write(cgroup.0.join(limit), bytes.to_string())
            .map_err(|e| format!("the memory cgroup cannot be limited: {e}"))?;
        // Present only where swap is accounted.
        let _ = fs::write(cgroup.0.join(swap.0), swap.1.to_string());
        Ok(cgroup)
    }

    /// Writing 0 to this file enters the cgroup.
    pub fn procs_file(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

//! The kernel's hugetlb pool, enlarged for a test and put back after it.

use std::fs;
use std::sync::{Mutex, MutexGuard};

use super::process;

/// Pages of 1 GiB come from the boot; a test takes them as they are.
const FREE_GIGAPAGES: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages";

const SIZE_FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Tests that need the pool run one after the other.
static IN_USE: Mutex<()> = Mutex::new(());

/// A pool of a certain size; dropping restores the size before.
pub struct Pool {
    before: Option<u64>,
    given: u64,
    _turn: MutexGuard<'static, ()>,
}

fn number(file: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn size() -> u64 {
    number(SIZE_FILE)
}

/// Why there are not `pages` of 1 GiB.
pub fn missing_gigapages(pages: u64) -> Option<String> {
    (number(FREE_GIGAPAGES) < pages)
        .then(|| "no page of 1 GiB is free (boot with hugepagesz=1G hugepages=2)".to_owned())
}

/// Why there is no pool of `pages`.
pub fn missing(pages: u64) -> Option<String> {
    if !fs::exists(SIZE_FILE).unwrap_or(false) {
        return Some("the kernel has no hugetlb pool of 2 MiB pages".to_owned());
    }
    (!process::is_root() && size() < pages).then(|| {
        format!("the hugetlb pool has less than {pages} pages and only root may enlarge it")
    })
}

impl Pool {
    /// Gives the pool the size `pages`, or as near as the memory allows. Who
    /// is not root takes it as it is.
    pub fn with(pages: u64) -> Pool {
        let turn = IN_USE.lock().unwrap_or_else(|e| e.into_inner());
        let before = process::is_root().then(size);
        if before.is_some() {
            fs::write(SIZE_FILE, pages.to_string()).expect("root may size the pool");
        }
        Pool {
            before,
            given: size(),
            _turn: turn,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Where somebody else has sized the pool since, it is theirs.
        if let (Some(before), true) = (self.before, size() == self.given) {
            let _ = fs::write(SIZE_FILE, before.to_string());
        }
    }
}

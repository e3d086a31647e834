//! Statistics pages for processes that are attached to, so that `quire stat`, `quire top`
//! and Prometheus show them like those that Quire manages from inside.
//!
//! A page stays mapped for as long as this process lives, so pages of processes that are
//! gone serve for others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quire_core::config::Policy;
use quire_core::stat::{Privilege, STAT_FILE_PREFIX, StatPage};
use quire_linux::stat_map;
use quire_linux::sysinfo::process;

/// How the names of such pages end. Whose page is named so is managed from outside only.
pub const ATTACHED_SUFFIX: &str = ".attached";

/// The page of one process. Its file goes with it.
pub struct Page {
    stats: &'static StatPage,
    path: PathBuf,
}

impl Page {
    /// Where things are written down.
    #[must_use]
    pub const fn stats(&self) -> &'static StatPage {
        self.stats
    }

    fn rename(&mut self, path: PathBuf) -> io::Result<()> {
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }

    /// Makes it that of a process; of none, when the number is zero.
    fn identify(&self, pid: u32, start_time: u64, comm: &str) {
        self.stats.reset();
        self.stats.set_privilege(Privilege::Advised);
        self.stats.identify(pid, start_time, comm, Policy::Adaptive);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Where it cannot be removed, whoever clears the directory tries again.
        let _ = fs::remove_file(&self.path);
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Page").field(&self.path).finish()
    }
}

/// The pages in a session directory.
#[derive(Debug)]
pub struct Pages {
    dir: PathBuf,
    spare: Vec<Page>,
    given_back: u64,
}

impl Pages {
    /// Pages in this directory, which belongs to this process.
    #[must_use]
    pub fn new(dir: &Path) -> Pages {
        Pages {
            dir: dir.to_owned(),
            spare: Vec::new(),
            given_back: 0,
        }
    }

    /// A page for process `pid`.
    ///
    /// # Errors
    /// When the process is gone, or there is no room for a page.
    pub fn take(&mut self, pid: u32, comm: &str) -> io::Result<Page> {
        let start_time = process::start_time(pid).ok_or(io::ErrorKind::NotFound)?;
        let mut page = match self.spare.pop() {
            Some(page) => page,
            None => self.make(pid)?,
        };
        page.identify(pid, start_time, comm);
        page.rename(self.path(&pid.to_string()))?;
        Ok(page)
    }

    fn make(&self, pid: u32) -> io::Result<Page> {
        let dir = self.dir.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let stats = stat_map::create(dir, pid)?;
        let path = self.dir.join(format!("{STAT_FILE_PREFIX}{pid}"));
        Ok(Page { stats, path })
    }

    /// Takes back the page of a process that is let go of.
    pub fn give_back(&mut self, mut page: Page) {
        page.identify(0, 0, "");
        page.stats.set_regions([]);
        let name = format!("0.{}", self.given_back);
        self.given_back += 1;
        // A page that cannot be renamed is removed.
        if page.rename(self.path(&name)).is_ok() {
            self.spare.push(page);
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        let name = format!("{STAT_FILE_PREFIX}{name}{ATTACHED_SUFFIX}");
        self.dir.join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_core::stat::Counter;
    use quire_linux::sysinfo::read_stat_file;

    #[test]
    fn pages_serve_one_process_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut pages = Pages::new(dir.path());
        let own = std::process::id();
        let file = dir.path().join(format!("stat.{own}.attached"));
        let mut places = Vec::new();
        for round in 0..3 {
            let page = pages.take(own, "some").unwrap();
            let stat = read_stat_file(&file).unwrap();
            assert_eq!((stat.pid, stat.comm.as_str()), (own, "some"));
            assert_eq!(stat.privilege, Privilege::Advised);
            assert_eq!(stat.totals.promotions, 0, "round {round}");
            page.stats().add(Counter::Promotions, 1);
            places.push(std::ptr::from_ref(page.stats()));
            pages.give_back(page);
            assert!(!file.exists());
        }
        assert!(places.iter().all(|place| *place == places[0]));
        // One that is not in use belongs to nobody.
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        let spare = read_stat_file(&left[0].as_ref().unwrap().path()).unwrap();
        assert!(!process::is_alive(spare.pid, spare.start_time));
        assert!(pages.take(u32::MAX, "nobody").is_err());
        let page = pages.take(own, "some").unwrap();
        drop(page);
        drop(pages);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn without_room_there_are_none() {
        let mut pages = Pages::new(Path::new("/no/such/directory"));
        assert!(pages.take(std::process::id(), "some").is_err());
    }
}

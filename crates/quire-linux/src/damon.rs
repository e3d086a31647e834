//! Which frames are accessed, asked of the kernel's access monitor (DAMON) by
//! its files in `/sys` (Linux 6.2).
//!
//! The monitor is given single frames. At every step it looks at the accessed
//! mark of each and clears it, in such a way that reclaim is not misled. It
//! belongs to the whole machine: a [`Session`] begins only where nobody uses it,
//! and ends it when dropped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use quire_core::units::{BASE_PAGE, Frame};

const ROOT: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The first and only context of the first and only monitor.
const CONTEXT: &str = "0/contexts/0";
/// No bound.
const ANY: u64 = 1 << 30;

/// The monitor at work.
#[derive(Debug)]
pub struct Session {
    root: PathBuf,
}

/// How long the monitor watches.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time between two steps.
    pub step: Duration,
    /// Steps in a count.
    pub steps: u32,
}

impl Timing {
    /// How long one count takes.
    #[must_use]
    pub fn total(self) -> Duration {
        self.step * self.steps
    }
}

/// Whether the monitor can be used now: it is there, and nobody uses it.
#[must_use]
pub fn is_free() -> bool {
    is_free_at(Path::new(ROOT))
}

fn is_free_at(root: &Path) -> bool {
    let count = fs::read_to_string(root.join("nr_kdamonds"));
    count.is_ok_and(|count| count.trim() == "0")
}

impl Session {
    /// Begins to watch frames.
    ///
    /// # Errors
    /// `EBUSY` when somebody uses the monitor; else as the kernel refuses.
    pub fn start(frames: &[Frame], timing: Timing) -> io::Result<Session> {
        let root = PathBuf::from(ROOT);
        if !is_free_at(&root) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let session = Session { root };
        session.set("nr_kdamonds", 1)?;
        session.configure(timing, frames.len())?;
        session.set_regions(frames)?;
        session.write("0/state", "on")?;
        Ok(session)
    }

    fn configure(&self, timing: Timing, frames: usize) -> io::Result<()> {
        self.set("0/contexts/nr_contexts", 1)?;
        self.write(&format!("{CONTEXT}/operations"), "paddr")?;
        let attributes = format!("{CONTEXT}/monitoring_attrs");
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let intervals = [
            ("sample_us", micros(timing.step)),
            ("aggr_us", micros(timing.total())),
            ("update_us", micros(timing.total()).saturating_mul(100)),
        ];
        for (name, value) in intervals {
            self.set(&format!("{attributes}/intervals/{name}"), value)?;
        }
        // More than there are frames, so that none are merged.
        self.set(&format!("{attributes}/nr_regions/max"), frames as u64 + 16)?;
        self.set(&format!("{attributes}/nr_regions/min"), 3)?;
        self.set(&format!("{CONTEXT}/schemes/nr_schemes"), 1)?;
        let scheme = format!("{CONTEXT}/schemes/0");
        self.write(&format!("{scheme}/action"), "stat")?;
        for bound in ["sz", "nr_accesses", "age"] {
            self.set(&format!("{scheme}/access_pattern/{bound}/max"), ANY)?;
        }
        self.set(&format!("{CONTEXT}/targets/nr_targets"), 1)
    }

    /// The monitor takes regions in order of address.
    fn set_regions(&self, frames: &[Frame]) -> io::Result<()> {
        let mut frames = frames.to_vec();
        frames.sort_unstable();
        frames.dedup();
        let regions = format!("{CONTEXT}/targets/0/regions");
        self.set(&format!("{regions}/nr_regions"), frames.len() as u64)?;
        for (number, frame) in frames.iter().enumerate() {
            let start = frame.0 * BASE_PAGE;
            self.set(&format!("{regions}/{number}/start"), start)?;
            self.set(&format!("{regions}/{number}/end"), start + BASE_PAGE)?;
        }
        Ok(())
    }

    /// In how many steps of the last count each frame was found accessed. Waits
    /// for the end of the count.
    ///
    /// # Errors
    /// As the kernel refuses.
    pub fn counts(&self) -> io::Result<BTreeMap<Frame, u32>> {
        self.write("0/state", "update_schemes_tried_regions")?;
        let regions = self.root.join(CONTEXT).join("schemes/0/tried_regions");
        let mut counts = BTreeMap::new();
        for entry in fs::read_dir(regions)?.flatten() {
            let number = |file| self::number(&entry.path().join(file));
            if let (Some(start), Some(end), Some(times)) =
                (number("start"), number("end"), number("nr_accesses"))
            {
                let times = u32::try_from(times).unwrap_or(u32::MAX);
                // Neighbouring frames may have been merged.
                for frame in start / BASE_PAGE..end / BASE_PAGE {
                    counts.insert(Frame(frame), times);
                }
            }
        }
        Ok(counts)
    }

    /// The number of the kernel thread that watches.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        let pid = number(&self.root.join("0/pid"))?;
        u32::try_from(pid).ok()
    }

    fn set(&self, file: &str, value: u64) -> io::Result<()> {
        self.write(file, &value.to_string())
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.root.join(file), value)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Off already when it was never on; there is nobody to tell otherwise.
        let _ = self.write("0/state", "off");
        let _ = self.set("nr_kdamonds", 0);
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

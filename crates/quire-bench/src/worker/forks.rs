//! A server that forks again and again while its memory is written to: does it
//! keep its superpages (GISP 3.7)?

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quire_core::units::BASE_PAGE;

use crate::memory::fork_and_do;
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::worker::Setup;

/// How long a child lives and reads.
const CHILD: Duration = Duration::from_millis(3);
/// How long superpages may take to come back after the last child.
const PATIENCE: Duration = Duration::from_secs(2);
/// The low half of a word says which one it is, the high half how often it was
/// written to.
const INDEX: u64 = (1 << 32) - 1;

/// Forks under write load, and waits for the superpages.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut block = setup.mapping(setup.size(256 << 20, 64 << 20))?;
    block.touch(BASE_PAGE as usize);
    for (index, word) in block.words().iter_mut().enumerate() {
        *word = index as u64;
    }
    setup.sleep(1500);
    let words = block.cells();
    let before = huge()?;
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let mut sample = Sample::default();
    std::thread::scope(|scope| {
        scope.spawn(|| write(words, &stop, &written));
        let outcome = serve(setup, words, &written, &mut sample)
            .and_then(|()| await_superpages(before, &mut sample));
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    let after = huge()?;
    sample.put("huge_before_mib", before as f64 / MIB);
    sample.put("huge_after_mib", after as f64 / MIB);
    if before > 0 {
        sample.put("kept_pct", after as f64 * 100.0 / before as f64);
    }
    let parent = intact(words) && writes_in(words) == written.into_inner();
    let children = sample.metrics.remove("children_intact") == Some(1.0);
    sample.put("intact", f64::from(parent && children));
    Ok(sample)
}

fn huge() -> Result<u64> {
    procfs::huge_mapped(std::process::id()).context("superpages of this process")
}

/// Forks one child after the other.
fn serve(
    setup: &Setup,
    words: &[AtomicU64],
    written: &AtomicU64,
    sample: &mut Sample,
) -> Result<()> {
    let forks = setup.size(1000, 20);
    let mut broken = 0;
    let mut forking = Duration::ZERO;
    let (start, first) = (Instant::now(), written.load(Ordering::Relaxed));
    for n in 0..forks {
        match fork_and_do(|| read(words, n)) {
            Ok(took) => forking += took,
            Err(error) => {
                if broken == 0 {
                    sample.note(format!("child {n}: {error:#}"));
                }
                broken += 1;
            }
        }
    }
    let writes = written.load(Ordering::Relaxed) - first;
    let seconds = start.elapsed().as_secs_f64();
    sample.put("writes_mps", writes as f64 * 1e-6 / seconds);
    sample.put("fork_ms", forking.as_secs_f64() * 1e3 / f64::from(forks));
    sample.put("children_intact", f64::from(broken == 0));
    Ok(())
}

/// What a child does: looks at a word of every page of some memory. Says
/// whether all are what they have to be.
fn read(words: &[AtomicU64], child: u32) -> bool {
    let start = Instant::now();
    let page = BASE_PAGE as usize / size_of::<u64>();
    let pages = words.len() / page;
    let mut at = child as usize * 7919 % pages;
    while start.elapsed() < CHILD {
        let index = at * page;
        if words[index].load(Ordering::Relaxed) & INDEX != index as u64 {
            return false;
        }
        at = (at + 1) % pages;
    }
    true
}

/// Writes at random until it is told to stop. Only one thread may do so.
fn write(words: &[AtomicU64], stop: &AtomicBool, written: &AtomicU64) {
    const BATCH: u64 = 256;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let word = &words[(state >> 16) as usize % words.len()];
            let value = word.load(Ordering::Relaxed);
            word.store(value.wrapping_add(INDEX + 1), Ordering::Relaxed);
        }
        written.fetch_add(BATCH, Ordering::Relaxed);
    }
}

/// Waits until as many bytes are on superpages as before. Looks seldom: the
/// kernel holds up the process's memory calls meanwhile.
fn await_superpages(before: u64, sample: &mut Sample) -> Result<()> {
    let ended = Instant::now();
    while before > 0 && ended.elapsed() < PATIENCE {
        if huge()? >= before {
            sample.put("back_s", ended.elapsed().as_secs_f64());
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Whether every word still says which one it is.
fn intact(words: &[AtomicU64]) -> bool {
    let mut all = words.iter().enumerate();
    all.all(|(index, word)| word.load(Ordering::Relaxed) & INDEX == index as u64)
}

/// How many writes the words hold.
fn writes_in(words: &[AtomicU64]) -> u64 {
    words.iter().map(|w| w.load(Ordering::Relaxed) >> 32).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..4096).map(AtomicU64::new).collect()
    }

    #[test]
    fn every_write_is_found_again() {
        let (words, stop, written) = (words(), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| write(&words, &stop, &written));
            std::thread::sleep(Duration::from_millis(5));
            stop.store(true, Ordering::Relaxed);
        });
        assert!(intact(&words));
        assert_eq!(writes_in(&words), written.into_inner());
    }

    #[test]
    fn a_word_that_is_wrong_is_seen() {
        let words = words();
        assert!(intact(&words) && read(&words, 3));
        words[512].store(0, Ordering::Relaxed);
        assert!(!intact(&words) && !read(&words, 3));
    }
}

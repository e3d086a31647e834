//! First touches: a block after an idle moment, a large block at once, and
//! page by page.

use std::time::Duration;

use anyhow::{Context, Result};
use quire_core::units::BASE_PAGE;

use crate::cpu::cpu_seconds;
use crate::results::Sample;
use crate::worker::{Setup, seconds};

const PAGE: usize = BASE_PAGE as usize;

/// 256 MiB after 300 ms in which nothing happens.
pub fn after_idle(setup: &Setup) -> Result<Sample> {
    std::thread::sleep(Duration::from_millis(300));
    block(setup, setup.size(256 << 20, 64 << 20))
}

/// 4 GiB at once.
pub fn at_once(setup: &Setup) -> Result<Sample> {
    block(setup, setup.size(4 << 30, 256 << 20))
}

fn block(setup: &Setup, len: usize) -> Result<Sample> {
    let mut block = Ok(None);
    let before = cpu_seconds();
    let wall = seconds(|| {
        block = setup.memory(len).map(|mut block| {
            block.touch(PAGE);
            Some(block)
        });
    });
    let cpu = cpu_seconds() - before;
    block?;
    let mut sample = Sample::default();
    sample.put("wall_ms", wall * 1e3);
    sample.put("cpu_ms", cpu * 1e3);
    Ok(sample)
}

/// 64 MiB at a time, with idle moments between; each touch by itself.
pub fn single(setup: &Setup) -> Result<Sample> {
    let chunks = setup.size(8, 3);
    let len = 64 << 20;
    let mut times: Vec<u32> = vec![1; chunks * len / PAGE];
    times.clear();
    let mut kept = Vec::new();
    for _ in 0..chunks {
        std::thread::sleep(Duration::from_millis(100));
        let mut block = setup.memory(len)?;
        block.touch_timed(&mut times);
        kept.push(block);
    }
    times.sort_unstable();
    let mut sample = Sample::default();
    for (name, q) in [
        ("p50_ns", 0.5),
        ("p99_ns", 0.99),
        ("p999_ns", 0.999),
        ("p9999_ns", 0.9999),
        ("max_ns", 1.0),
    ] {
        sample.put(name, f64::from(rank(&times, q).context("no touches")?));
    }
    Ok(sample)
}

/// The smallest of the sorted `values` that a share of `q` does not exceed.
fn rank(values: &[u32], q: f64) -> Option<u32> {
    let index = (values.len() as f64 * q).ceil() as usize;
    values.get(index.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let values: Vec<u32> = (1..=1000).collect();
        assert_eq!(rank(&values, 0.5), Some(500));
        assert_eq!(rank(&values, 0.999), Some(999));
        assert_eq!(rank(&values, 1.0), Some(1000));
        assert_eq!(rank(&[], 0.5), None);
    }
}

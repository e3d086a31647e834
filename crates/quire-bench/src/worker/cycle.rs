//! Buffers that are taken, written to and given back again and again: what a
//! region alone never lives long enough to show.

use anyhow::Result;
use quire_core::units::{BASE_PAGE, SUPERPAGE};

use crate::memory::Block;
use crate::results::Sample;
use crate::worker::Setup;
use crate::worker::micro::each;

const MIB: usize = 1 << 20;
/// Memory that all cycles of one figure touch together.
const TOUCHED: usize = 1 << 30;
/// Cycles of one figure at most, and of the sparse ones.
const MOST: usize = 200;

/// One kind of buffer.
struct Case {
    name: &'static str,
    len: usize,
    stride: u64,
}

const CASES: [Case; 4] = [
    dense("4m", 4 * MIB),
    dense("16m", 16 * MIB),
    dense("64m", 64 * MIB),
    Case {
        name: "sparse",
        len: 64 * MIB,
        stride: SUPERPAGE,
    },
];

const fn dense(name: &'static str, len: usize) -> Case {
    Case {
        name,
        len,
        stride: BASE_PAGE,
    }
}

impl Case {
    fn cycles(&self, setup: &Setup) -> usize {
        let touched = self.len / self.stride as usize * BASE_PAGE as usize;
        let cycles = (TOUCHED / touched).min(MOST);
        setup.size(cycles, cycles.div_ceil(8).min(16))
    }

    /// Milliseconds of a cycle in which `take` gives the buffer.
    fn cycle_ms(&self, setup: &Setup, take: impl Fn(usize) -> Result<Block>) -> Result<f64> {
        let cycles = self.cycles(setup);
        let time = each(cycles, || {
            take(self.len)?.touch(self.stride as usize);
            Ok(())
        })?;
        Ok(time * 1e3)
    }
}

/// Every kind of buffer from either source.
pub fn run(setup: &Setup) -> Result<Sample> {
    let mut sample = Sample::default();
    for case in &CASES {
        let mapped = case.cycle_ms(setup, |len| setup.mapping(len))?;
        sample.put(format!("mmap_{}_ms", case.name), mapped);
        let allocated = case.cycle_ms(setup, |len| setup.memory(len))?;
        sample.put(format!("malloc_{}_ms", case.name), allocated);
    }
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Workload;

    #[test]
    fn every_case_is_a_metric() {
        let setup = Setup {
            quick: true,
            madvise: false,
            cgroup: None,
        };
        let sample = run(&setup).unwrap();
        assert_eq!(sample.metrics.len(), Workload::Cycle.metrics().len());
        for (name, value) in sample.metrics {
            assert!(Workload::Cycle.metric(&name).is_some(), "{name}");
            assert!(value > 0.0, "{name}");
        }
    }
}

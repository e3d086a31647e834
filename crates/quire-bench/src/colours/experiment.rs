//! What is measured of every allocation.

use clap::ValueEnum;
use quire_core::units::Bytes;
use serde::{Serialize, Serializer};

use crate::colours::allocation::Allocation;
use crate::kernels::Kernel;
use crate::spec::{Metric, info, lower};

/// A part of the experiments that can be asked for by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// First touches, page after page
    Populate,
    /// First touches in an order at random
    PopulateRandom,
    /// An array that is read again and again
    Array,
    /// Fast Fourier transformation
    Fft,
    /// LU factorisation
    Lu,
    /// Successive over-relaxation
    Sor,
    /// Sparse matrix times vector
    Sparse,
}

/// The memory of a kernel in relation to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// Half of it.
    Half,
    /// As much.
    Equal,
    /// Twice as much.
    Double,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Experiment {
    /// Touches memory for the first time, page after page.
    Populate,
    /// The same in an order at random.
    PopulateRandom,
    /// Runs a kernel.
    Kernel(Kernel, Size),
}

const POPULATE: &[Metric] = &[
    lower("gib_ms", "time for 1 GiB", "ms"),
    lower("page_ns", "time for a page", "ns"),
    lower("cpu_gib_ms", "CPU time of all threads for 1 GiB", "ms"),
    info("fault_ns", "time for a fault", "ns"),
    info("pages_per_fault", "pages for a fault", ""),
    info("chosen_pct", "pages in frames that the strategy chose", "%"),
    info(
        "host_took_mib",
        "memory that the host took meanwhile",
        "MiB",
    ),
];
const KERNEL: &[Metric] = &[
    lower("pass_us", "time of a pass", "us"),
    lower("conflict", "conflict misses of a pass, modelled", ""),
    info("capacity", "capacity misses of a pass, modelled", ""),
    info("cold", "first uses of lines, modelled", ""),
    info("accesses", "accesses of a pass", ""),
    info("pmu_misses", "cache misses of a pass, counted", ""),
    info("crowd", "pages of the colour that has most", "pages"),
    info("moved", "pages that got another frame meanwhile", "pages"),
    info("chosen_pct", "pages in frames that the strategy chose", "%"),
];

impl Size {
    /// All sizes.
    pub const ALL: [Size; 3] = [Size::Half, Size::Equal, Size::Double];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Size::Half => "half",
            Size::Equal => "equal",
            Size::Double => "double",
        }
    }

    /// In relation to `reference`.
    pub const fn of(self, reference: Bytes) -> Bytes {
        match self {
            Size::Half => Bytes(reference.0 / 2),
            Size::Equal => reference,
            Size::Double => Bytes(reference.0 * 2),
        }
    }
}

impl Part {
    /// The experiments that belong to it.
    pub fn experiments(self) -> Vec<Experiment> {
        let sized = |kernel| {
            Size::ALL
                .map(|size| Experiment::Kernel(kernel, size))
                .to_vec()
        };
        match self {
            Part::Populate => vec![Experiment::Populate],
            Part::PopulateRandom => vec![Experiment::PopulateRandom],
            Part::Array => sized(Kernel::Array),
            Part::Fft => sized(Kernel::Fft),
            Part::Lu => sized(Kernel::Lu),
            Part::Sor => sized(Kernel::Sor),
            Part::Sparse => sized(Kernel::Sparse),
        }
    }
}

impl Experiment {
    /// The name in reports.
    pub fn name(self) -> String {
        match self {
            Experiment::Populate => "populate".to_owned(),
            Experiment::PopulateRandom => "populate-random".to_owned(),
            Experiment::Kernel(kernel, size) => format!("{}-{}", kernel.name(), size.name()),
        }
    }

    /// What happens in it, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Experiment::Populate => {
                "Private memory is mapped, and one byte of each page written in order."
            }
            Experiment::PopulateRandom => {
                "The same with the pages in an order at random, a quarter of the memory."
            }
            Experiment::Kernel(kernel, _) => kernel.description(),
        }
    }

    /// What it measures; the first is the most important.
    pub const fn metrics(self) -> &'static [Metric] {
        match self {
            Experiment::Populate | Experiment::PopulateRandom => POPULATE,
            Experiment::Kernel(..) => KERNEL,
        }
    }

    /// Whether it is done under an allocation. Where free memory is scattered, first
    /// touches cost what they cost elsewhere.
    pub fn is_for(self, allocation: Allocation) -> bool {
        matches!(self, Experiment::Kernel(..)) || allocation != Allocation::Aged
    }

    /// How much memory it may use: `populated` and `reference` are those of the run.
    pub fn bytes(self, populated: Bytes, reference: Bytes) -> Bytes {
        match self {
            Experiment::Populate => populated,
            Experiment::PopulateRandom => Bytes(populated.0 / 4),
            Experiment::Kernel(kernel, size) => kernel.bytes(size.of(reference)),
        }
    }
}

impl Serialize for Experiment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_have_all_experiments_once() {
        let parts = Part::value_variants().iter();
        let all: Vec<Experiment> = parts.flat_map(|part| part.experiments()).collect();
        let names: BTreeSet<String> = all.iter().map(|e| e.name()).collect();
        assert_eq!((all.len(), names.len()), (2 + 3 * 5, 2 + 3 * 5));
    }

    #[test]
    fn kernels_use_what_they_are_named_after() {
        let reference = Bytes::mib(1);
        for part in Part::value_variants() {
            for experiment in part.experiments() {
                let Experiment::Kernel(_, size) = experiment else {
                    continue;
                };
                let bytes = experiment.bytes(Bytes::mib(64), reference).0 as f64;
                let ratio = bytes / size.of(reference).0 as f64;
                assert!((0.99..=1.0).contains(&ratio), "{experiment:?} {ratio}");
            }
        }
    }
}

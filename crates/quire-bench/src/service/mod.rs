//! Workloads that drive other programs under a variant.

mod compete;
pub mod fragmented;
pub mod programs;
mod redis;

use anyhow::{Result, bail};

use crate::launch::Interrupt;
use crate::results::Sample;
use crate::spec::Workload;
use crate::system::find_program;
use crate::variant::Environment;

/// What a workload is given.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// What the variant sets.
    pub environment: &'a Environment,
    /// Small sizes.
    pub quick: bool,
    /// Whether the user asked to stop.
    pub interrupt: &'a Interrupt,
}

/// Whether `workload` is run here, and is not a single worker.
pub const fn drives(workload: Workload) -> bool {
    matches!(
        workload,
        Workload::Redis | Workload::Slowdown | Workload::Compete
    )
}

/// What `workload` cannot do without, where that is missing.
pub fn missing(workload: Workload, quick: bool) -> Option<String> {
    match workload {
        Workload::Compete => compete::missing(),
        Workload::Fragmented => fragmented::missing(quick),
        _ => missing_program(workload),
    }
}

fn missing_program(workload: Workload) -> Option<String> {
    let needed: &[(&str, &str)] = match workload {
        Workload::Redis => &[
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
        ],
        _ => &[],
    };
    let (program, package) = needed.iter().find(|(p, _)| find_program(p).is_none())?;
    Some(format!("{program} is missing (apt-get install {package})"))
}

/// Runs a workload that is not a worker.
pub fn measure(workload: Workload, setup: Setup) -> Result<Sample> {
    match workload {
        Workload::Redis => redis::run(setup),
        Workload::Slowdown => programs::run(setup),
        Workload::Compete => compete::run(setup),
        _ => bail!("{} is a worker", workload.name()),
    }
}

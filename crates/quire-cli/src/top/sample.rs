//! One look at every process and at the machine.

use std::time::Instant;

use quire_core::stat::ProcessStat;
use quire_linux::sysinfo::{MemInfo, meminfo};

use crate::session::managed_processes;
use crate::stat::machine::Machine;

/// What one look saw.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The managed processes.
    pub processes: Vec<ProcessStat>,
    /// Free blocks and memory pressure.
    pub machine: Machine,
    /// The machine's memory, where the kernel tells it.
    pub memory: Option<MemInfo>,
}

impl Sample {
    /// Looks at all processes, or at the one with number `only`.
    pub fn take(only: Option<u32>) -> Sample {
        let at = Instant::now();
        let processes = managed_processes().into_iter().map(|p| p.stat);
        Sample {
            at,
            processes: processes
                .filter(|stat| only.is_none_or(|pid| pid == stat.pid))
                .collect(),
            machine: Machine::read(),
            memory: meminfo().ok(),
        }
    }
}

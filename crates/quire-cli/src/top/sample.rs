//! One look at every process and at the machine.

use std::time::Instant;

use quire_core::stat::ProcessStat;
use quire_linux::sysinfo::{MemInfo, meminfo};

use crate::session::managed_processes;
use crate::stat::machine::Machine;
use crate::stat::objects::SharedObject;

/// What one look saw.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// The managed processes.
    pub processes: Vec<ProcessStat>,
    /// What servers have said of the objects that they have.
    pub objects: Vec<SharedObject>,
    /// Free blocks and memory pressure.
    pub machine: Machine,
    /// The machine's memory, where the kernel tells it.
    pub memory: Option<MemInfo>,
}

impl Sample {
    /// Looks at all processes, or at the one with number `only`, and at what `asked` knows of
    /// their objects.
    pub fn take(
        only: Option<u32>,
        asked: impl FnOnce(&[ProcessStat]) -> Vec<SharedObject>,
    ) -> Sample {
        let at = Instant::now();
        let processes = managed_processes().into_iter().map(|p| p.stat);
        let processes: Vec<ProcessStat> = processes
            .filter(|stat| only.is_none_or(|pid| pid == stat.pid))
            .collect();
        Sample {
            at,
            objects: asked(&processes),
            processes,
            machine: Machine::read(),
            memory: meminfo().ok(),
        }
    }
}

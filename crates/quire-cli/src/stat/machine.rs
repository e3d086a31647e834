//! The machine's memory, as far as it matters to superpages.

use quire_linux::sysinfo::{Psi, buddyinfo, psi_memory};
use serde::Serialize;

/// Free blocks and memory pressure.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// Free blocks by order: entry n counts blocks of 2ⁿ base pages.
    pub free_blocks: Vec<u64>,
    /// Memory pressure, where the kernel tells it.
    pub pressure: Option<Psi>,
}

impl Machine {
    /// Reads the state. What the kernel does not tell is left empty.
    pub fn read() -> Machine {
        Machine {
            free_blocks: buddyinfo().unwrap_or_default(),
            pressure: psi_memory().ok(),
        }
    }
}

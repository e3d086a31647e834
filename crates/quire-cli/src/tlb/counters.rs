//! The processor's own counters of TLB misses, for a program and its children.

use std::io;
use std::time::Duration;

use quire_linux::pmu::{Counter, Event};
use rustix::io::Errno;
use serde::Serialize;

/// What the counters said. An event that the processor does not count is
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Misses {
    /// Reads of data.
    pub data_reads: u64,
    /// Writes of data.
    pub data_writes: Option<u64>,
    /// Fetches of instructions.
    pub code: Option<u64>,
}

/// How long after the end of a program its counts may come.
const LATE: Duration = Duration::from_millis(10);

/// The counters, of the programs that this thread starts after.
pub struct Counters {
    data_reads: Counter,
    data_writes: Option<Counter>,
    code: Option<Counter>,
}

impl Counters {
    /// Opens them. Some processors count only some events; reads of data must
    /// be among them.
    pub fn open() -> io::Result<Counters> {
        Ok(Counters {
            data_reads: Counter::of_children(Event::DataReadMisses)?,
            data_writes: Counter::of_children(Event::DataWriteMisses).ok(),
            code: Counter::of_children(Event::CodeMisses).ok(),
        })
    }

    /// Why they could not be opened, and what helps.
    pub fn refusal(error: &io::Error) -> String {
        match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => {
                "this machine has no counter of them, as many virtual machines".to_owned()
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                "not allowed: set kernel.perf_event_paranoid to 2 or less".to_owned()
            }
            _ => error.to_string(),
        }
    }

    /// What they counted, when the program is over.
    pub fn read(&self) -> io::Result<Misses> {
        std::thread::sleep(LATE);
        let other = |counter: &Option<Counter>| counter.as_ref().map(Counter::read).transpose();
        Ok(Misses {
            data_reads: self.data_reads.read()?,
            data_writes: other(&self.data_writes)?,
            code: other(&self.code)?,
        })
    }
}

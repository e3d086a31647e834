//! `quire stat`: the managed processes, region by region, and the state of the
//! machine's memory, for people, as JSON, or as metrics.

pub mod frames;
pub mod machine;
mod prometheus;
mod view;

use std::io::{self, Write};

use quire_core::stat::ProcessStat;
use serde::Serialize;

use crate::args::StatArgs;
use crate::failure::Outcome;
use crate::session::{managed_process, managed_processes};
use machine::Machine;
pub use view::printable;

#[derive(Serialize)]
struct Snapshot {
    processes: Vec<ProcessStat>,
    machine: Machine,
}

/// Prints the state of managed processes and of the machine.
pub fn stat(options: &StatArgs) -> Outcome<()> {
    let managed = match options.pid {
        Some(pid) => vec![managed_process(pid, "stat")?],
        None => managed_processes(),
    };
    let snapshot = Snapshot {
        processes: managed.into_iter().map(|process| process.stat).collect(),
        machine: Machine::read(),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &snapshot)?;
        writeln!(out)?;
    } else if options.prometheus {
        let text = prometheus::metrics(&snapshot.processes, &snapshot.machine);
        out.write_all(text.as_bytes())?;
    } else {
        view::write_processes(&mut out, &snapshot.processes)?;
        view::write_machine(&mut out, &snapshot.machine)?;
    }
    Ok(out.flush()?)
}

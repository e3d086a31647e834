//! `quire stat`: the managed processes, region by region, and the state of the
//! machine's memory, for people, as JSON, or as metrics.

pub mod frames;
pub mod machine;
pub mod objects;
mod prometheus;
mod view;

use std::io::{self, Write};

use quire_core::stat::ProcessStat;
use serde::Serialize;

use crate::args::StatArgs;
use crate::failure::Outcome;
use crate::session::{managed_process, managed_processes};
use machine::Machine;
use objects::SharedObject;
pub use view::printable;

#[derive(Serialize)]
struct Snapshot {
    processes: Vec<ProcessStat>,
    #[serde(rename = "shared_objects")]
    objects: Vec<SharedObject>,
    machine: Machine,
}

/// Prints the state of managed processes and of the machine.
pub fn stat(options: &StatArgs) -> Outcome<()> {
    let managed = match options.pid {
        Some(pid) => vec![managed_process(pid, "stat")?],
        None => managed_processes(),
    };
    let processes: Vec<ProcessStat> = managed.into_iter().map(|process| process.stat).collect();
    let objects = match options.prometheus {
        true => Vec::new(),
        false => objects::look(&processes, objects::PATIENCE),
    };
    let snapshot = Snapshot {
        processes,
        objects,
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
        objects::write(&mut out, &snapshot.objects)?;
        view::write_machine(&mut out, &snapshot.machine)?;
    }
    Ok(out.flush()?)
}

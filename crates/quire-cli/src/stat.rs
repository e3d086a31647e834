//! `quire stat`: the managed processes, region by region, and the state of the
//! machine's memory.

mod machine;
mod view;

use std::io::{self, Write};

use quire_core::stat::ProcessStat;
use quire_linux::sysinfo::process;
use serde::Serialize;

use crate::args::StatArgs;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use machine::Machine;

#[derive(Serialize)]
struct Snapshot {
    processes: Vec<ProcessStat>,
    machine: Machine,
}

/// Prints the state of managed processes and of the machine.
pub fn stat(options: &StatArgs) -> Outcome<()> {
    let mut processes = managed_processes();
    if let Some(pid) = options.pid {
        processes.retain(|stat| stat.pid == pid);
        if processes.is_empty() {
            return Err(not_shown(pid));
        }
    }
    let snapshot = Snapshot {
        processes,
        machine: Machine::read(),
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &snapshot)?;
        writeln!(out)?;
    } else {
        view::write_processes(&mut out, &snapshot.processes)?;
        view::write_machine(&mut out, &snapshot.machine)?;
    }
    Ok(out.flush()?)
}

/// The processes that are managed now. What dead ones left is removed on the
/// way.
fn managed_processes() -> Vec<ProcessStat> {
    let mut processes = Vec::new();
    for session in Session::all() {
        for entry in session.entries() {
            if entry.is_alive()
                && let Ok(stat) = entry.stat
            {
                processes.push(stat);
            }
        }
        session.tidy();
    }
    processes.sort_by_key(|stat| stat.pid);
    processes
}

/// Why there is nothing to show of process `pid`.
fn not_shown(pid: u32) -> Failure {
    let user = rustix::process::geteuid();
    Failure::bad_usage(match (process::start_time(pid), process::owner(pid)) {
        (None, _) => {
            format!("there is no process {pid}: `quire stat` lists those that are managed")
        }
        (_, Some(owner)) if owner != user.as_raw() && !user.is_root() => {
            format!("process {pid} belongs to another user: try `sudo quire stat {pid}`")
        }
        _ => format!("process {pid} is not managed: start it with `quire run -- PROGRAM`"),
    })
}

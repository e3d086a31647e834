//! `quire attach`: superpages for processes that were not started under Quire.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use quire_attach::AttachError;
use quire_attach::attach::{Attach, Log, preflight};
use quire_attach::config;
use quire_attach::metrics::{ProcessSnapshot, Snapshot};
use quire_attach::plan::{INTERVAL, LIVED, Plan, Who};
use quire_attach::select::group_dir;
use quire_attach::service::{self, Service};
use quire_core::attach::CpuShare;
use quire_core::config::Way;

use crate::args::AttachArgs;
use crate::failure::{Failure, Outcome};
use crate::session::Session;
use crate::table::Table;

/// The time between two lines about progress.
const PROGRESS_APART: Duration = Duration::from_secs(10);

/// What cannot be attached to, or watched, as the command fails of it.
fn refused(error: AttachError) -> Failure {
    let message = error.to_string();
    match error {
        AttachError::NoProcess(_)
        | AttachError::NoGroup(_)
        | AttachError::Unsuitable { .. }
        | AttachError::Config(_) => Failure::bad_usage(message),
        AttachError::NotSupported(_)
        | AttachError::NotPermitted { .. }
        | AttachError::Listen { .. }
        | AttachError::Signals(_) => Failure::system(message),
    }
}

/// Attaches to processes, and says what was done.
pub fn attach(options: &AttachArgs) -> Outcome<()> {
    let (plan, metrics) = match &options.config {
        Some(path) => {
            let read = config::read(path).map_err(|error| refused(error.into()))?;
            (read.plan, options.metrics.or(read.metrics))
        }
        None => (plan(options)?, options.metrics),
    };
    preflight().map_err(refused)?;
    let events = service::signals().map_err(refused)?;
    let mut tell = log(options.quiet);
    let mut attach = Attach::new(plan, options.once, log(options.quiet)).map_err(refused)?;
    let session = show(&mut attach, options.quiet);
    let mut progress = Progress::new(options.quiet);
    let service = Service {
        config: options.config.as_deref(),
        metrics,
        say: &mut tell,
        warn: &mut say,
        progress: &mut |snapshot| progress.show(snapshot),
    };
    let last = service::run(attach, &events, service);
    if let Some(session) = session {
        // The pages are gone with what is attached to.
        session.sweep();
    }
    Ok(report(options, &last.map_err(refused)?)?)
}

/// Lets `quire stat` and the others see what is attached to.
fn show(attach: &mut Attach, quiet: bool) -> Option<Session> {
    match Session::create(Way::Provide) {
        Ok(session) => {
            attach.show_in(session.dir());
            Some(session)
        }
        Err(error) => {
            if !quiet {
                say(&error.to_string());
            }
            None
        }
    }
}

fn plan(options: &AttachArgs) -> Outcome<Plan> {
    let threshold = options.threshold;
    let who = if let Some(name) = &options.cgroup {
        Who::Group(group_dir(name).map_err(refused)?, threshold)
    } else if let Some(size) = options.all_above {
        Who::all_above(size, threshold)
    } else {
        Who::Pids(options.pids.clone(), threshold)
    };
    let unbounded = CpuShare::from_percent(100.0).filter(|_| options.once);
    Ok(Plan {
        who,
        cpu: options.cpu.or(unbounded).unwrap_or(CpuShare::DEFAULT),
        interval: options.interval.unwrap_or(INTERVAL),
        accesses: options.accesses,
        lived: LIVED,
    })
}

fn say(line: &str) {
    // Where standard error is closed nobody wants to know.
    let _ = writeln!(io::stderr(), "quire: {line}");
}

fn log(quiet: bool) -> Log {
    Box::new(move |line| {
        if !quiet {
            say(line);
        }
    })
}

/// Lines about promotions, now and then while there are any.
struct Progress {
    quiet: bool,
    last: Instant,
    promoted: u64,
}

impl Progress {
    fn new(quiet: bool) -> Progress {
        Progress {
            quiet,
            last: Instant::now(),
            promoted: 0,
        }
    }

    fn show(&mut self, snapshot: &Snapshot) {
        let promoted = snapshot.total.promoted;
        if self.quiet || promoted == self.promoted || self.last.elapsed() < PROGRESS_APART {
            return;
        }
        self.last = Instant::now();
        self.promoted = promoted;
        let waiting: u64 = snapshot.processes.iter().map(|p| p.waiting).sum();
        let processes = snapshot.processes.len();
        say(&format!(
            "{promoted} extents promoted, {waiting} wait, in {processes} processes; {:.2} % of one processor",
            share(snapshot)
        ));
    }
}

fn share(snapshot: &Snapshot) -> f64 {
    100.0 * snapshot.cpu_seconds / snapshot.elapsed_seconds.max(0.001)
}

fn report(options: &AttachArgs, last: &Snapshot) -> io::Result<()> {
    if options.json {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, last)?;
        writeln!(out)?;
    } else if options.once {
        write_table(&mut io::stdout().lock(), last)?;
    }
    if !options.quiet && !options.once {
        let total = &last.total;
        say(&format!(
            "{} extents promoted, {} given up again; {:.2} % of one processor",
            total.promoted,
            total.demoted,
            share(last)
        ));
    }
    Ok(())
}

fn write_table(out: &mut impl Write, last: &Snapshot) -> io::Result<()> {
    let header = [
        "PROGRAM",
        "PID",
        "SUPERPAGES",
        "PROMOTED",
        "BUSY",
        "MAPPING",
        "SHARED",
        "NO BLOCK",
    ];
    let mut table = Table::new(1, &header);
    for process in last.processes.iter().chain(&last.ended) {
        table.row(row(process));
    }
    table.write(out, 0)
}

fn row(process: &ProcessSnapshot) -> Vec<String> {
    let counts = &process.counts;
    let mut cells = vec![
        process.program.clone(),
        process.pid.to_string(),
        process.superpages.to_string(),
    ];
    let numbers = [
        counts.promoted,
        counts.refused_busy,
        counts.refused_mapping,
        counts.refused_shared,
        counts.no_block,
    ];
    cells.extend(numbers.map(|number| number.to_string()));
    cells
}

//! `quire dsm demo`: parallel programs on one node, two, and so on, each node a process with
//! memory and, where that is allowed, a network namespace of its own; their times beside those of paper 003, Table 3.

//!
//! After the runs that are measured each program runs once more while the server is watched:
//! that gives the pictures of who had which page when. Watching costs the server time.
//!
//! | module | holds |
//! |---|---|
//! | [`nodes`] | the server and the processes |
//! | [`ownership`] | from messages to who had a page when |
//! | [`picture`] | the same as characters, SVG and HTML |

mod nodes;
mod ownership;
mod picture;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quire_core::units::Bytes;
use quire_lab::network::{MOST_NODES, Network};
use serde_json::json;
use tracing::Level;

use self::nodes::{Job, Served};
use self::ownership::Ownership;
use self::picture::Drawn;
use super::program;
use crate::args::dsm::{DemoArgs, ProgramName};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::serve;
use crate::table::Table;

/// A row of the table: a program, its size here, its size with `--quick`, what the paper
/// ran, and how long that took there on 1, 2 and 3 machines, in seconds.
struct Row {
    name: ProgramName,
    size: usize,
    quick: usize,
    paper: &'static str,
    seconds: Option<[f64; 3]>,
}

const ROWS: [Row; 5] = [
    Row {
        name: ProgramName::Matrix,
        size: 512,
        quick: 128,
        paper: "Matrix 256x256",
        seconds: Some([241.0, 122.0, 80.0]),
    },
    Row {
        name: ProgramName::Paths,
        size: 200,
        quick: 40,
        paper: "ShortestPath",
        seconds: Some([60.0, 60.0, 40.0]),
    },
    Row {
        name: ProgramName::Router,
        size: 20_000,
        quick: 100,
        paper: "LocusRoute",
        seconds: Some([277.0, 333.0, 397.0]),
    },
    Row {
        name: ProgramName::Particles,
        size: 500_000,
        quick: 1000,
        paper: "Mp3d",
        seconds: Some([8.6, 16.1, 23.0]),
    },
    Row {
        name: ProgramName::Hotspot,
        size: 2000,
        quick: 100,
        paper: "write hotspot",
        seconds: None,
    },
];

/// A program with its times: for each number of nodes those of all runs, in seconds.
struct Timed {
    row: &'static Row,
    size: usize,
    seconds: Vec<Vec<f64>>,
}

/// Runs the programs, prints the table, and shows who had which page when.
pub fn demo(options: &DemoArgs) -> Outcome<()> {
    // What goes wrong is told by the error.
    serve::log(Level::ERROR);
    let file = match &options.picture {
        Some(path) => Some((picture::Form::of(path)?, Output::create(path)?)),
        None => None,
    };
    let shows = !options.json && !options.no_picture;
    let network = network(options)?;
    let place = place(&network, options.delay);
    let served = Served::start(network)?;
    let wanted = |row: &&Row| options.programs.is_empty() || options.programs.contains(&row.name);
    let rows = ROWS.iter().filter(wanted);
    let mut timed: Vec<Timed> = rows.map(|row| Timed::new(row, options)).collect();
    let bar = progress(timed.len() * (options.nodes.get() * options.runs.get() + 1));
    measure(&served, &mut timed, options, &bar)?;
    let drawn = match shows || file.is_some() {
        true => watch(&served, &timed, options, &bar)?,
        false => Vec::new(),
    };
    bar.finish_and_clear();
    drop(served);
    match options.json {
        true => print_json(&timed)?,
        false => {
            print(&timed, options.nodes.get())?;
            writeln!(io::stdout(), "{place}")?;
        }
    }
    if shows {
        print_pictures(&drawn)?;
    }
    match file {
        Some((form, output)) => {
            let table = table(&timed, options.nodes.get());
            output.write(&picture::page(form, &table, &place, &drawn))
        }
        None => Ok(()),
    }
}

/// The nodes of the members and the one of the server.
fn network(options: &DemoArgs) -> Outcome<Network> {
    let nodes = options.nodes.get() + 1;
    if nodes > MOST_NODES {
        let most = MOST_NODES - 1;
        return Err(Failure::bad_usage(format!("--nodes: at most {most}")));
    }
    if options.loopback {
        return Ok(Network::loopback(nodes));
    }
    let network = Network::new(nodes, options.delay);
    if let Some(why) = network.refused() {
        if options.delay > Duration::ZERO {
            return Err(Failure::system(format!("--delay: {why}")));
        }
        // Where standard error is closed nobody is told.
        let _ = writeln!(io::stderr(), "quire: {why}");
    }
    Ok(network)
}

/// Where the nodes are, in words.
fn place(network: &Network, delay: Duration) -> String {
    match network.is_separate() {
        true => format!(
            "nodes are network namespaces of this machine, {} us from each other",
            delay.as_micros()
        ),
        false => "nodes are processes of this machine, over its loopback".to_owned(),
    }
}

fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} {msg}");
    ProgressBar::new(steps as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Runs each program on each number of nodes.
fn measure(
    served: &Served,
    timed: &mut [Timed],
    options: &DemoArgs,
    bar: &ProgressBar,
) -> Outcome<()> {
    for _ in 0..options.runs.get() {
        for program in &mut *timed {
            for members in 1..=options.nodes.get() {
                bar.set_message(program.name());
                let seconds = served.run(&program.job(members, options))?;
                program.seconds[members - 1].push(seconds);
                bar.inc(1);
            }
        }
    }
    Ok(())
}

/// Runs each program once more on all nodes, and watches.
fn watch(
    served: &Served,
    timed: &[Timed],
    options: &DemoArgs,
    bar: &ProgressBar,
) -> Outcome<Vec<Drawn>> {
    let mut drawn = Vec::new();
    for program in timed {
        bar.set_message(format!("watching {}", program.name()));
        let nodes = options.nodes.get();
        let ownership: Ownership = served.watched(&program.job(nodes, options))?;
        drawn.push(Drawn {
            name: program.name(),
            nodes,
            ownership,
        });
        bar.inc(1);
    }
    Ok(drawn)
}

fn print_pictures(drawn: &[Drawn]) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = stdout.is_terminal() && !is_plain;
    for picture in drawn {
        write!(stdout, "\n{}", picture::characters(picture, colour))?;
    }
    Ok(writeln!(stdout, "\n{}", picture::LEGEND)?)
}

impl Timed {
    fn new(row: &'static Row, options: &DemoArgs) -> Timed {
        Timed {
            row,
            size: match options.quick {
                true => row.quick,
                false => row.size,
            },
            seconds: vec![Vec::new(); options.nodes.get()],
        }
    }

    fn name(&self) -> String {
        format!("{:?} {}", self.row.name, self.size).to_lowercase()
    }

    /// What the paper ran, and how long that took on 1, 2 and 3 machines, in seconds.
    fn paper(&self) -> (&'static str, Option<[f64; 3]>) {
        match (self.row.name, self.size) {
            (ProgramName::Matrix, 128) => ("Matrix 128x128", Some([29.0, 15.0, 10.0])),
            _ => (self.row.paper, self.row.seconds),
        }
    }

    /// One run on so many nodes.
    fn job(&self, members: usize, options: &DemoArgs) -> Job {
        Job {
            title: self.name(),
            program: format!("{:?}", self.row.name).to_lowercase(),
            size: self.size,
            memory: self.memory(members),
            members,
            scheduler: options.scheduler,
        }
    }

    fn memory(&self, members: usize) -> Bytes {
        program(self.row.name, self.size).memory(members)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// A time, in seconds, and how many times faster than on one node that is.
fn faster(seconds: f64, alone: f64, digits: usize) -> String {
    let times = alone / seconds;
    let precise = if times < 0.95 { 2 } else { 1 };
    format!("{seconds:.digits$} ({times:.precise$}x)")
}

/// So many digits behind the point the paper has for such a time.
const fn digits(seconds: f64) -> usize {
    if seconds < 30.0 { 1 } else { 0 }
}

/// The table: its header, and its rows.
fn table(timed: &[Timed], nodes: usize) -> Vec<Vec<String>> {
    let mut header = vec!["PROGRAM".to_owned()];
    let unit = |nodes| if nodes == 1 { "NODE" } else { "NODES" };
    header.extend((1..=nodes).map(|nodes| format!("{nodes} {}, s", unit(nodes))));
    header.push("PAPER".to_owned());
    header.extend((1..=3).map(|machines| format!("{machines}, s")));
    let row = |program: &Timed| {
        let alone = median(&program.seconds[0]);
        let mut cells = vec![program.name(), format!("{alone:.3}")];
        let others = program.seconds[1..].iter();
        cells.extend(others.map(|runs| faster(median(runs), alone, 3)));
        let (paper, seconds) = program.paper();
        cells.push(paper.to_owned());
        cells.extend(match seconds {
            Some([alone, two, three]) => [
                format!("{alone}"),
                faster(two, alone, digits(two)),
                faster(three, alone, digits(three)),
            ],
            None => ["-"; 3].map(str::to_owned),
        });
        cells
    };
    std::iter::once(header)
        .chain(timed.iter().map(row))
        .collect()
}

fn print(timed: &[Timed], nodes: usize) -> Outcome<()> {
    let mut aligned = Table::new(1, &[]);
    for row in table(timed, nodes) {
        aligned.row(row);
    }
    let mut stdout = io::stdout().lock();
    aligned.write(&mut stdout, 0)?;
    Ok(writeln!(stdout, "{}", picture::CAPTION)?)
}

fn print_json(timed: &[Timed]) -> Outcome<()> {
    let rows: Vec<_> = timed
        .iter()
        .map(|program| {
            json!({
                "program": program.name(),
                "seconds_by_nodes": program.seconds,
                "paper": program.paper().0,
                "paper_seconds_by_machines": program.paper().1,
            })
        })
        .collect();
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, &rows)?;
    Ok(writeln!(stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_papers_figures_and_how_much_faster_more_nodes_are() {
        let timed = [Timed {
            row: &ROWS[0],
            size: 512,
            seconds: vec![vec![1.0, 3.0, 2.0], vec![1.0]],
        }];
        let expected = ["matrix 512", "2.000", "1.000 (2.0x)", "Matrix 256x256"];
        let rows = table(&timed, 2);
        assert_eq!(rows[1][..4], expected);
        assert_eq!(rows[1][4..], ["241", "122 (2.0x)", "80 (3.0x)"]);
        assert_eq!(rows[0].len(), rows[1].len());
    }
}

//! `quire dsm demo`: parallel programs on one node, two, and so on, each node a process with
//! memory of its own; their times beside those of paper 003, Table 3.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use indicatif::ProgressBar;
use quire_dsm::client::{Client, Options};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, NameError, Object, PageSize, Role, SchedulerKind,
};
use serde_json::json;
use tracing::Level;

use super::program;
use crate::args::dsm::{DemoArgs, ProgramName};
use crate::failure::{Failure, Outcome};
use crate::object::failed;
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
        size: 2000,
        quick: 100,
        paper: "LocusRoute",
        seconds: Some([277.0, 333.0, 397.0]),
    },
    Row {
        name: ProgramName::Particles,
        size: 20_000,
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

/// Runs the programs and prints the table.
pub fn demo(options: &DemoArgs) -> Outcome<()> {
    // What goes wrong is told by the error.
    serve::log(Level::ERROR);
    let served = Served::start()?;
    let wanted = |row: &&Row| options.programs.is_empty() || options.programs.contains(&row.name);
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let (nodes, runs) = (options.nodes.get(), options.runs.get());
    let bar = ProgressBar::new((rows.len() * nodes * runs) as u64);
    let mut timed: Vec<Timed> = rows
        .into_iter()
        .map(|row| Timed::new(row, options))
        .collect();
    for _ in 0..runs {
        for program in &mut timed {
            for members in 1..=nodes {
                let seconds = served.run(program, members, options.scheduler)?;
                program.seconds[members - 1].push(seconds);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    served.stop()?;
    match options.json {
        true => print_json(&timed),
        false => print(&timed, nodes),
    }
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
}

/// The server of the demonstration, a thread.
struct Served {
    address: Address,
    end: UnixStream,
    thread: JoinHandle<io::Result<()>>,
}

fn refused(error: io::Error) -> Failure {
    Failure::system(error.to_string())
}

fn named(text: &str) -> Outcome<Name> {
    let name: Result<Name, NameError> = text.parse();
    name.map_err(|error| Failure::bad_usage(error.to_string()))
}

impl Served {
    fn start() -> Outcome<Served> {
        let name = named("demo")?;
        let mut turn = Turn::new(Config::new(Hello {
            name: name.clone(),
            role: Role::Server,
            machine: MachineCode(0),
            page_size: PageSize::BASE,
            features: 0,
        }))
        .map_err(refused)?;
        let any = Address::Tcp(([127, 0, 0, 1], 0).into());
        let at = server::listen(&mut turn, &[any], &Security::Automatic(None)).map_err(refused)?;
        let address = at.into_iter().next();
        let address = address.ok_or_else(|| Failure::system("no address to listen at"))?;
        let (end, ended) = UnixStream::pair().map_err(refused)?;
        let thread = thread::Builder::new()
            .name("quire-serve".into())
            .spawn(move || {
                let mut server = Server::new(name, server::LEASE);
                server::serve(&mut turn, &mut server, ended.as_fd())
            })
            .map_err(refused)?;
        Ok(Served {
            address,
            end,
            thread,
        })
    }

    fn stop(mut self) -> Outcome<()> {
        self.end.write_all(b"e").map_err(refused)?;
        match self.thread.join() {
            Ok(ended) => ended.map_err(refused),
            Err(_) => Err(Failure::system("the server panicked")),
        }
    }

    /// Runs a program once. Returns how long it took, in seconds.
    fn run(&self, timed: &Timed, members: usize, scheduler: SchedulerKind) -> Outcome<f64> {
        let name = named("demo")?;
        let client = Client::connect(Options::new(self.address.clone(), name.clone()));
        let client = client.map_err(failed)?;
        let object = Object {
            name: name.clone(),
            size: program(timed.row.name, timed.size).memory(members),
            page_size: PageSize::BASE,
            scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        };
        client.create(object).map_err(failed)?;
        let started: io::Result<Vec<Child>> = (0..members)
            .map(|me| self.member(timed, me, members))
            .collect();
        let mut longest: f64 = 0.0;
        for child in started.map_err(refused)? {
            let output = child.wait_with_output().map_err(refused)?;
            let text = String::from_utf8_lossy(&output.stdout);
            let seconds: Option<f64> = text.trim().parse().ok();
            let seconds = seconds.filter(|_| output.status.success());
            let seconds = seconds.ok_or_else(|| {
                let name = timed.name();
                Failure::system(format!("{name}: a node failed ({})", output.status))
            })?;
            longest = longest.max(seconds);
        }
        client.remove(name).map_err(failed)?;
        Ok(longest)
    }

    fn member(&self, timed: &Timed, me: usize, members: usize) -> io::Result<Child> {
        let program = format!("{:?}", timed.row.name).to_lowercase();
        Command::new(std::env::current_exe()?)
            .args(["dsm", "member", "--object", "demo", "--program", &program])
            .args(["--server", &self.address.to_string()])
            .args(["--size", &timed.size.to_string(), "--me", &me.to_string()])
            .args(["--members", &members.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
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

fn print(timed: &[Timed], nodes: usize) -> Outcome<()> {
    let mut header = vec!["PROGRAM".to_owned()];
    let unit = |nodes| if nodes == 1 { "NODE" } else { "NODES" };
    header.extend((1..=nodes).map(|nodes| format!("{nodes} {}, s", unit(nodes))));
    header.push("PAPER".to_owned());
    header.extend((1..=3).map(|machines| format!("{machines}, s")));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(1, &header);
    for program in timed {
        let mut cells = vec![program.name()];
        cells.extend(
            program
                .seconds
                .iter()
                .map(|runs| format!("{:.3}", median(runs))),
        );
        cells.push(program.row.paper.to_owned());
        let paper = program
            .row
            .seconds
            .map(|seconds| seconds.map(|s| format!("{s}")));
        cells.extend(paper.unwrap_or_else(|| ["-"; 3].map(str::to_owned)));
        table.row(cells);
    }
    let mut stdout = io::stdout().lock();
    table.write(&mut stdout, 0)?;
    writeln!(
        stdout,
        "medians; the paper's are of IBM RTs on a token ring (paper 003, Table 3)"
    )?;
    Ok(())
}

fn print_json(timed: &[Timed]) -> Outcome<()> {
    let rows: Vec<_> = timed
        .iter()
        .map(|program| {
            json!({
                "program": program.name(),
                "seconds_by_nodes": program.seconds,
                "paper": program.row.paper,
                "paper_seconds_by_machines": program.row.seconds,
            })
        })
        .collect();
    let mut stdout = io::stdout().lock();
    serde_json::to_writer_pretty(&mut stdout, &rows)?;
    Ok(writeln!(stdout)?)
}

//! The `quire` command: starts programs under Quire, shows what they have, and
//! checks what the machine offers.
//!
//! | module | does |
//! |---|---|
//! | [`args`] | the command line |
//! | [`failure`] | errors, each one line and an exit status |
//! | [`session`] | the directories in which managed processes keep statistics |
//! | [`run`] | `quire run` |
//! | [`stat`] | `quire stat` |
//! | [`top`] | `quire top` |
//! | [`set`] | `quire set` |
//! | [`attach`] | `quire attach` |
//! | [`tlb`] | `quire tlb` |
//! | [`cache`] | `quire cache` |
//! | [`map`] | `quire map` |
//! | [`mod@bench`] | `quire bench` |
//! | [`plan`] | `quire plan` |
//! | [`tune`] | `quire tune` |
//! | [`perf_map`] | `quire perf-map` |
//! | [`report`] | `quire report` |
//! | [`compare`] | `quire compare` |
//! | [`serve`] | `quire serve` |
//! | [`object`] | `quire object` |
//! | [`dsm`] | `quire dsm` |
//! | [`doctor`] | `quire doctor` |
//! | [`pages`] | `quire completions` and `quire man` |
//! | [`output`] | files that are written at the end |
//! | [`table`] | aligned columns |

mod args;
mod attach;
mod bench;
mod cache;
mod compare;
mod doctor;
mod dsm;
mod failure;
mod map;
mod object;
mod output;
mod pages;
mod perf_map;
mod plan;
mod progress;
mod remap;
mod report;
mod run;
mod serve;
mod session;
mod set;
mod stat;
mod table;
mod tlb;
mod top;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use args::{Cli, Command};
use failure::{Failure, Outcome};

quire_linux::record_sigpipe!();

fn main() -> ExitCode {
    match Cli::read() {
        Ok(cli) => finish(dispatch(cli)),
        Err(error) => usage(&error),
    }
}

fn dispatch(cli: Cli) -> Outcome<u8> {
    match cli.command {
        Command::Run(options) => run::run(&options),
        Command::Stat(options) => stat::stat(&options).map(|()| 0),
        Command::Top(options) => top::top(&options).map(|()| 0),
        Command::Set(options) => set::set(&options).map(|()| 0),
        Command::Attach(options) => attach::attach(&options).map(|()| 0),
        Command::Tlb(options) => tlb::tlb(&options),
        Command::Cache(options) => cache::cache(&options).map(|()| 0),
        Command::Map(options) => map::map(&options).map(|()| 0),
        Command::Remap(options) => remap::remap(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Plan(options) => plan::plan(&options).map(|()| 0),
        Command::Tune(options) => tune::tune(&options),
        Command::PerfMap(options) => perf_map::perf_map(&options).map(|()| 0),
        Command::Report(options) => report::report(&options).map(|()| 0),
        Command::Compare(options) => compare::compare(&options),
        Command::Serve(options) => serve::serve(&options).map(|()| 0),
        Command::Object(options) => object::object(&options).map(|()| 0),
        Command::Dsm(options) => dsm::dsm(&options).map(|()| 0),
        Command::Doctor(options) => doctor::doctor(&options).map(|()| 0),
        Command::Completions { shell } => pages::completions(shell).map(|()| 0),
        Command::Man { dir } => pages::man(dir.as_deref()).map(|()| 0),
    }
}

fn finish(outcome: Outcome<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => tell(&failure),
    }
}

/// Prints help as it is, and any error of the command line on one line.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody is left to be told when the output is closed.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() {
                failure::BAD_USAGE
            } else {
                0
            })
        }
        _ => tell(&Failure::bad_usage(one_line(&error.to_string()))),
    }
}

/// The message of a command line error without the usage that follows it.
fn one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let mut line = String::new();
    let kept = message
        .lines()
        .map(str::trim)
        .take_while(|part| !part.starts_with("Usage:") && !part.starts_with("For more"))
        .filter(|part| !part.is_empty());
    for part in kept {
        let separator = match part.strip_prefix("tip: ") {
            _ if line.is_empty() => "",
            Some(_) => "; ",
            None => " ",
        };
        line.push_str(separator);
        line.push_str(part.strip_prefix("tip: ").unwrap_or(part));
    }
    line + " (see `quire --help`)"
}

fn tell(failure: &Failure) -> ExitCode {
    if failure.is_worth_telling() {
        // Where standard error is closed the exit status has to do.
        let _ = writeln!(io::stderr(), "quire: {failure}");
    }
    ExitCode::from(failure.status())
}

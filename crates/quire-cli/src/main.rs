//! The `quire` command: starts programs under Quire, shows what they have, and
//! checks what the machine offers.
//!
//! | module | does |
//! |---|---|
//! | [`args`] | the command line |
//! | [`quire_measure`] | `quire bench`, `plan`, `report` and `compare`; errors, files that are written at the end, and tables |
//! | [`session`] | the directories in which managed processes keep statistics |
//! | [`run`] | `quire run` |
//! | [`stat`] | `quire stat` |
//! | [`top`] | `quire top` |
//! | [`set`] | `quire set` |
//! | [`attach`] | `quire attach` |
//! | [`tlb`] | `quire tlb` |
//! | [`cache`] | `quire cache` |
//! | [`map`] | `quire map` |
//! | [`tune`] | `quire tune` |
//! | [`perf_map`] | `quire perf-map` |
//! | [`serve`] | `quire serve` |
//! | [`object`] | `quire object` |
//! | [`dsm`] | `quire dsm` |
//! | [`doctor`] | `quire doctor` |
//! | [`pages`] | `quire completions` and `quire man` |

mod args;
mod attach;
mod cache;
mod doctor;
mod dsm;
mod map;
mod object;
mod pages;
mod perf_map;
mod progress;
mod remap;
mod run;
mod serve;
mod session;
mod set;
mod stat;
mod tlb;
mod top;
mod tune;

use std::process::ExitCode;

use args::{Cli, Command};
use failure::{Outcome, finish, usage};
use quire_measure::{bench, compare, failure, output, plan, report, table};

quire_linux::record_start!();

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

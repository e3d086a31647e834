//! `quire-measure`: benchmarks and what they say, without the rest of Quire.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quire_measure::args::{self, BenchArgs, CompareArgs, PlanArgs, ReportArgs};
use quire_measure::failure::{Outcome, finish, usage};
use quire_measure::{bench, compare, plan, report};

quire_linux::record_start!();

/// Benchmarks that tell noise from truth; the same as in `quire`.
#[derive(Debug, Parser)]
#[command(name = "quire-measure", version, max_term_width = 100)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Compare commands, or run a whole experiment, and tell noise from truth
    #[command(after_help = own(args::BENCH_EXAMPLES))]
    Bench(Box<BenchArgs>),
    /// Say how many executions and measurements a wanted precision takes
    #[command(after_help = own(args::PLAN_EXAMPLES))]
    Plan(PlanArgs),
    /// Say what results of benchmarks mean: intervals, non-determinism, plots
    #[command(after_help = own(args::REPORT_EXAMPLES))]
    Report(ReportArgs),
    /// Say whether new results of benchmarks are worse than old ones, for CI
    #[command(after_help = own(args::COMPARE_EXAMPLES))]
    Compare(CompareArgs),
}

/// Examples as they are typed for this program.
fn own(examples: &str) -> String {
    examples.replace("quire ", "quire-measure ")
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => finish(dispatch(&cli.command)),
        Err(error) => usage(&error),
    }
}

fn dispatch(command: &Command) -> Outcome<u8> {
    match command {
        Command::Bench(options) => bench::bench(options),
        Command::Plan(options) => plan::plan(options).map(|()| 0),
        Command::Report(options) => report::report(options).map(|()| 0),
        Command::Compare(options) => compare::compare(options),
    }
}

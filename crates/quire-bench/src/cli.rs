//! The command line. Everything that can be wrong with it is found here, so
//! that bad input ends with status 2 before anything is measured.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::figure3::PROGRAMS;
use crate::spec::Workload;
use crate::variant::Variant;

const EXAMPLES: &str = "\
Examples:
  quire-bench superpages
      every workload under every variant, five times; report in target/bench
  quire-bench superpages --quick
      everything on small sizes, to see that it works (about a minute)
  quire-bench superpages --only touch-256m,random-1g --variants 4k,thp,quire-reserve
      two workloads, three variants
  quire-bench superpages --only figure3 --programs xz,stockfish
      two of the programs that ./setup-bench installs
  QUIRE_LIB=/usr/lib/libquire.so quire-bench superpages --runs 9 --out results
      another build of the library, more repetitions

Root is needed for the variants that change a setting of the kernel (thp,
quire-static) and for physical frame numbers; the report says what was left
out and why. Settings are put back after each run, and if the program is
interrupted or killed.

The workload `fragmented` takes all of the machine's memory but about 2 GiB for
as long as it runs (a minute for each repetition of five variants), and refuses to
where other programs use more than half of the machine. Close what you need.";

/// Experiments and workloads that measure what Quire gains.
#[derive(Debug, Parser)]
#[command(name = "quire-bench", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure superpage policies against the kernel and other allocators
    Superpages(Superpages),
    /// Run one workload in this process and print its sample
    #[command(hide = true)]
    Worker(Worker),
    /// Set up this process and execute a program in its place
    #[command(hide = true)]
    Launch(Launch),
    /// Put settings back that the standard input says were changed, at its end
    #[command(hide = true)]
    Guard,
}

/// Options of the superpage experiments.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Superpages {
    /// Repetitions of every workload under every variant [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Run only these workloads
    #[arg(long, value_name = "WORKLOAD,..", value_delimiter = ',')]
    pub only: Vec<Workload>,
    /// Run only these variants
    #[arg(long, value_name = "VARIANT,..", value_delimiter = ',')]
    pub variants: Vec<Variant>,
    /// Run only these programs of the workload figure3
    #[arg(long, value_name = "PROGRAM,..", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(PROGRAMS.iter().map(|p| p.name)))]
    pub programs: Vec<String>,
    /// Small sizes: shows that everything works, measures nothing of worth
    #[arg(long)]
    pub quick: bool,
    /// Directory of the report
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub out: PathBuf,
}

/// Options of a worker.
#[derive(Args, Debug)]
pub struct Worker {
    /// What to run
    pub workload: Workload,
    /// Small sizes
    #[arg(long)]
    pub quick: bool,
    /// Ask for huge pages with madvise
    #[arg(long)]
    pub madvise: bool,
    /// Memory cgroup that holds this process
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Part that this process plays in a workload of several
    #[arg(long, hide = true)]
    pub role: Option<Role>,
}

/// The part of a process in a workload of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Takes what a memory cgroup leaves
    Ballast,
    /// Touches one page in each superpage
    Sparse,
    /// Fills its memory
    Dense,
    /// Leaves free memory in holes
    Holes,
}

impl Role {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Ballast => "ballast",
            Role::Sparse => "sparse",
            Role::Dense => "dense",
            Role::Holes => "holes",
        }
    }
}

/// Options of a launch.
#[derive(Args, Debug)]
pub struct Launch {
    /// Disable transparent huge pages for the program and its children
    #[arg(long)]
    pub no_thp: bool,
    /// Enter this cgroup first
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Run the program as a child with its files in this directory, and note
    /// there what it used
    #[arg(long)]
    pub measure: Option<PathBuf>,
    /// Set an environment variable for the program
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub vars: Vec<String>,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn roles_are_named_as_they_are_parsed() {
        for role in Role::value_variants() {
            assert_eq!(Role::from_str(role.name(), false), Ok(*role));
        }
    }

    #[test]
    fn names_are_checked() {
        let parse = |args: &[&str]| {
            Cli::try_parse_from(args)
                .map(|_| ())
                .map_err(|e| e.exit_code())
        };
        assert_eq!(
            parse(&["b", "superpages", "--only", "touch-4g,nosuch"]),
            Err(2)
        );
        assert_eq!(parse(&["b", "superpages", "--variants", "5k"]), Err(2));
        assert_eq!(parse(&["b", "superpages", "--runs", "0"]), Err(2));
        assert_eq!(
            parse(&["b", "superpages", "--only", "touch-4g,redis"]),
            Ok(())
        );
    }
}

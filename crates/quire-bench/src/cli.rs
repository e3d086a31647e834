//! The command line. Everything that can be wrong with it is found here, so
//! that bad input ends with status 2 before anything is measured.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use quire_core::frames::cache::Override;
use quire_core::units::Bytes;

use crate::colours::allocation::Allocation;
use crate::colours::experiment::Part;
use crate::dsm::{Part as DsmPart, worker::DsmWorker};
use crate::figure3::PROGRAMS;
use crate::kernels::Kernel;
use crate::set;
use crate::set::ping::Protocol;
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
  QUIRE_JEMALLOC_LIB=/usr/lib/libquire_provide_jemalloc.so quire-bench superpages --runs 9 --out results
      another build of the library, more repetitions

Root is needed for the variants that change a setting of the kernel (thp,
quire-static) and for physical frame numbers; the report says what was left
out and why. Settings are put back after each run, and if the program is
interrupted or killed.

The workload `fragmented` takes all of the machine's memory but about 2 GiB for
as long as it runs (a minute for each repetition of five variants), and refuses to
where other programs use more than half of the machine. Close what you need.";

const COLOURS_EXAMPLES: &str = "\
Examples:
  quire-bench colours
      what a first touch costs under every strategy for frames, and what FFT, LU, SOR
      and sparse gain by them; report in target/bench (about ten minutes)
  quire-bench colours --quick
      everything on small sizes and in a smaller cache, to see that it works (a minute)
  quire-bench colours --only populate --strategies default,colour,binhop --runs 15
      first touches alone
  quire-bench colours --only array,fft --set level=3,colour-bits=12^18,13^19 --level 3
      a cache whose hash you know

Run it as root: the kernel shows the frames of pages only to root. Without, the misses
are those of frames that are made up, and the report says so.";

const NONDETERMINISM_EXAMPLES: &str = "\
Examples:
  quire-bench nondeterminism
      the whole study; results in target/bench/nondeterminism.jsonl, percentages beside
      those of the paper (an hour or two)
  quire-bench nondeterminism --quick
      few executions of everything, to see that it works (less than ten minutes)
  sudo quire-bench nondeterminism --realtime
      the same with first-in, first-out scheduling
  quire-bench nondeterminism --only fft-equal,gzip --executions 10 -o two.jsonl
      two benchmarks
  quire report target/bench/nondeterminism.jsonl
      the figures

The results are written after each execution. After an interruption the same command goes
on where it stopped. With more --executions it goes on with a study that had ended.";

const DSM_EXAMPLES: &str = "\
Examples:
  quire-bench dsm
      all of it, over loopback and between nodes 50 us and 500 us from each other; report in
      target/bench (most of an hour)
  quire-bench dsm --quick
      everything on small sizes, to see that it works (a minute)
  quire-bench dsm --only faults,hotspot --delay 0
      two parts, over loopback only

Run it as root, with `ip` and `nsenter`, for the nodes with a delay: each is a network
namespace, and nothing of it is left behind. Keep the machine quiet.";

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
    /// Measure strategies for frames: what a first touch costs, conflict misses, time
    Colours(Colours),
    /// Measure non-determinism under default, colour and binhop (paper 002)
    Nondeterminism(Nondeterminism),
    /// Measure shared memory across machines: faults, messages, translation, programs (paper 003)
    Dsm(Dsm),
    /// Be a node of a measurement of shared memory
    #[command(hide = true)]
    DsmWorker(DsmWorker),
    /// Run one benchmark of the set and report each repetition (`quire: time VALUE s`)
    Workload(WorkloadRun),
    /// Answer the pings of a benchmark
    #[command(hide = true)]
    PingServer {
        /// How to talk
        protocol: Protocol,
    },
    /// Run one workload in this process and print its sample
    #[command(hide = true)]
    Worker(Worker),
    /// Run one experiment with frames in this process and print its sample
    #[command(hide = true)]
    ColoursWorker(ColoursWorker),
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

/// Options of the experiments with frames.
#[derive(Args, Debug)]
#[command(after_help = COLOURS_EXAMPLES)]
pub struct Colours {
    /// Rounds, in each of which every strategy has its turn [default: 5, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Run only these parts
    #[arg(long, value_name = "PART,..", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Run only these strategies; default always runs, since others are compared with it
    #[arg(long, value_name = "STRATEGY,..", value_delimiter = ',')]
    pub strategies: Vec<Allocation>,
    /// Memory that `populate` touches [default: 1G, with --quick 32M]
    #[arg(long, value_name = "SIZE", value_parser = populated)]
    pub size: Option<Bytes>,
    /// The cache whose colours count
    #[command(flatten)]
    pub cache: CacheChoice,
    /// Small sizes: shows that everything works, measures nothing of worth
    #[arg(long)]
    pub quick: bool,
    /// Directory of the report
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub out: PathBuf,
}

/// Which cache is meant, and what it is like.
#[derive(Args, Clone, Debug, Default)]
pub struct CacheChoice {
    /// Level of the cache whose colours count [default: the one of `quire cache`]
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u32).range(1..=7))]
    pub level: Option<u32>,
    /// What the machine says wrong of a cache, as for `quire cache`
    #[arg(long, value_name = "level=..,sets=..,ways=..")]
    pub set: Vec<SetCache>,
    /// Size whose half, equal and double the kernels use [default: the cache's]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    pub cache_size: Option<Bytes>,
}

/// What a user says of a cache, and in which words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetCache {
    /// The words.
    pub text: String,
    /// What they mean.
    pub meant: Override,
}

impl std::str::FromStr for SetCache {
    type Err = <Override as std::str::FromStr>::Err;

    fn from_str(text: &str) -> Result<SetCache, Self::Err> {
        let meant = text.parse()?;
        let text = text.to_owned();
        Ok(SetCache { text, meant })
    }
}

impl CacheChoice {
    /// The arguments that say the same.
    pub fn to_args(&self) -> Vec<String> {
        let level = self.level.map(|level| format!("--level={level}"));
        let set = self.set.iter().map(|set| format!("--set={}", set.text));
        level.into_iter().chain(set).collect()
    }
}

/// A size between bounds, both included.
fn bounded(text: &str, least: Bytes, most: Bytes) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    if (least..=most).contains(&size) {
        return Ok(size);
    }
    Err(format!("it must be from {least} to {most}"))
}

fn populated(text: &str) -> Result<Bytes, String> {
    bounded(text, Bytes::mib(1), Bytes(1 << 40))
}

fn cache_size(text: &str) -> Result<Bytes, String> {
    bounded(text, Bytes(16 << 10), Bytes(1 << 30))
}

/// Options of the study of non-determinism.
#[derive(Args, Debug)]
#[command(after_help = NONDETERMINISM_EXAMPLES)]
pub struct Nondeterminism {
    /// Executions of every benchmark under every strategy [default: 20, with --quick 3]
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub executions: Option<u32>,
    /// Measurements of each execution, where there are several [default: 20, with --quick 5]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub measurements: Option<u32>,
    /// Run only these benchmarks
    #[arg(long, value_name = "BENCHMARK,..", value_delimiter = ',',
          value_parser = clap::builder::PossibleValuesParser::new(set::names()))]
    pub only: Vec<String>,
    /// Schedule the benchmarks first-in, first-out, with a watchdog
    #[arg(long)]
    pub realtime: bool,
    /// Few executions: shows that everything works, says nothing of worth
    #[arg(long)]
    pub quick: bool,
    /// What the order and the intervals depend on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Size whose half, equal and double the numerical benchmarks use [default: the L2 cache's]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    pub cache_size: Option<Bytes>,
    /// File of the results [default: target/bench/nondeterminism.jsonl; with --realtime
    /// and --quick, names that say so]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Options of the measurements of shared memory across machines.
#[derive(Args, Debug)]
#[command(after_help = DSM_EXAMPLES)]
pub struct Dsm {
    /// Rounds, in each of which every variant has its turn [default: 7, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Run only these parts
    #[arg(long, value_name = "PART,..", value_delimiter = ',')]
    pub only: Vec<DsmPart>,
    /// How far nodes are from each other, in microseconds one way; 0 is loopback
    /// [default: 0,50,500]
    #[arg(long, value_name = "US,..", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub delay: Vec<u64>,
    /// Small sizes: shows that everything works, measures nothing of worth
    #[arg(long)]
    pub quick: bool,
    /// Directory of the report
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub out: PathBuf,
}

impl Dsm {
    /// The delays that are measured, in microseconds.
    pub fn delays(&self) -> Vec<u64> {
        match self.delay.is_empty() {
            true => vec![0, 50, 500],
            false => self.delay.clone(),
        }
    }
}

/// Options of a benchmark of the set.
#[derive(Args, Debug)]
pub struct WorkloadRun {
    /// Which one
    #[arg(value_name = "BENCHMARK",
          value_parser = clap::builder::PossibleValuesParser::new(set::names()))]
    pub name: String,
    /// How often its operation is measured [default: QUIRE_BENCH_MEASUREMENTS, else 20]
    #[arg(short, long, value_name = "M",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repetitions: Option<u32>,
    /// Size whose half, equal and double numerical benchmarks use [default: the L2 cache's]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    pub cache_size: Option<Bytes>,
    /// Say also, where it can be had (FFT, as root), what a model of the cache makes of it
    #[arg(long)]
    pub model: bool,
    /// Spoil the result before it is checked, to see that the check can fail
    #[arg(long)]
    pub spoil: bool,
}

/// Ends the program for what is wrong with its arguments: one line, and status 2.
pub fn usage(why: impl std::fmt::Display) -> ! {
    let error = clap::error::ErrorKind::ValueValidation;
    Cli::command().error(error, why).exit()
}

/// Options of a worker for frames.
#[derive(Args, Debug)]
pub struct ColoursWorker {
    /// What to run
    #[command(subcommand)]
    pub task: Task,
    /// The strategy that this process has
    #[arg(long, global = true, default_value = "default")]
    pub allocation: Allocation,
    /// Fewer passes
    #[arg(long, global = true)]
    pub quick: bool,
}

/// What a worker for frames does.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Touches memory for the first time
    Populate {
        /// So much of it
        bytes: u64,
        /// Page after page at random, in an order that follows from this number
        #[arg(long)]
        at_random: Option<u64>,
    },
    /// Runs a kernel, and traces it
    Kernel {
        /// Which one
        kernel: Kernel,
        /// Memory that it may use
        bytes: u64,
        /// The cache that is modelled
        #[command(flatten)]
        cache: CacheChoice,
    },
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
    /// Schedule the program first-in, first-out
    #[arg(long)]
    pub realtime: bool,
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
    fn a_cache_is_handed_on_as_it_was_given() {
        let given = ["b", "colours", "--level", "3", "--set", "level=3,ways=8"];
        let cli = Cli::try_parse_from(given).unwrap();
        let Command::Colours(options) = cli.command else {
            panic!("colours");
        };
        assert_eq!(
            options.cache.to_args(),
            ["--level=3", "--set=level=3,ways=8"]
        );
        let args = ["b", "colours-worker", "kernel", "fft", "4096"].map(str::to_owned);
        let args = args.into_iter().chain(options.cache.to_args());
        assert!(Cli::try_parse_from(args).is_ok());
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

//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use quire_core::config::Policy;
use quire_core::units::Bytes;

const EXAMPLES: &str = "\
EXAMPLES:
  quire run -- ./solver input.dat     run a program with superpages by reservation
  quire run --policy eager redis-server
  quire stat                          show every managed process, now
  quire doctor                        check what this machine offers";

const RUN_EXAMPLES: &str = "\
EXAMPLES:
  quire run -- ./solver input.dat
  quire run --policy eager --quiet redis-server redis.conf
  quire run --ahead --reserve-limit 2G -- python3 train.py
  quire run --stats run.json -- make -j8

The exit status is that of PROGRAM; if a signal kills PROGRAM, quire dies by the
same signal. 127: PROGRAM was not found; 126: it cannot be executed; 2: bad usage.
QUIRE_LIB names the libquire.so to use, where it is not found by itself.";

const STAT_EXAMPLES: &str = "\
EXAMPLES:
  quire stat                every process under quire that you may see
  quire stat 4242           one process
  quire stat --json | jq '.processes[].superpages'
  watch -n1 quire stat";

const SET_EXAMPLES: &str = "\
EXAMPLES:
  quire set 4242 policy=eager             superpages at the first touch from now on
  quire set 4242 align=on policy=adaptive
  quire set 4242 ahead=512M reserve-limit=1G
  quire set 4242 policy=base              make no new superpages

SETTINGS:
  policy=NAME          base, eager, reserve, adaptive or static; holds for memory
                       that is mapped from now on and for what holds nothing yet
  align=on|off         own mappings of 2 MiB and more begin on a superpage boundary
  ahead=SIZE           zero superpages ahead of need, up to SIZE
  reserve-limit=SIZE   bound of the memory that is reserved and not used

2: no such process, or a setting that does not exist.";

const PERF_MAP_EXAMPLES: &str = "\
EXAMPLES:
  perf record -p 4242 sleep 10 && quire perf-map 4242 && perf report
  quire perf-map $(pgrep postgres)

Text that --text has copied is private memory, which perf does not know when it is
attached to a running program. This writes the names into /tmp/perf-PID.map. The
process must still run. A perf that has started the program needs no map.";

const DOCTOR_EXAMPLES: &str = "\
EXAMPLES:
  quire doctor
  sudo quire doctor         what root would get
  quire doctor --json | jq -r '.checks[] | select(.status != \"ok\") | .remedy'";

const COMPLETIONS_EXAMPLES: &str = "\
EXAMPLES:
  quire completions bash > ~/.local/share/bash-completion/completions/quire
  quire completions zsh  > \"${fpath[1]}/_quire\"
  quire completions fish > ~/.config/fish/completions/quire.fish";

const MAN_EXAMPLES: &str = "\
EXAMPLES:
  quire man | man -l -
  sudo quire man /usr/local/share/man/man1";

/// Superpages for unmodified programs, from user space.
#[derive(Debug, Parser)]
#[command(name = "quire", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program with superpages
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Show managed processes, free memory blocks and memory pressure
    #[command(after_help = STAT_EXAMPLES)]
    Stat(StatArgs),
    /// Change the settings of a running process
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Tell perf the names of program text that was copied (--text)
    #[command(after_help = PERF_MAP_EXAMPLES)]
    PerfMap(PerfMapArgs),
    /// Check what this machine offers, and say how to provide what is missing
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// Print completions for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        #[arg(value_parser = shell_parser())]
        shell: Shell,
    },
    /// Print the manual page, or write all manual pages into a directory
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Directory for all pages; without it, the main page is printed
        dir: Option<PathBuf>,
    },
}

/// What `quire run` takes.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How big the program's pages are: `base` pages only, a superpage at the
    /// first touch (`eager`), reserve and promote when full (`reserve`), or the
    /// hugetlb pool (`static`)
    #[arg(long, default_value = "reserve", value_parser = policy_parser())]
    pub policy: Policy,
    /// Write what was measured to this file, as JSON
    #[arg(long, value_name = "FILE.json")]
    pub stats: Option<PathBuf>,
    /// Do not print the summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Bound of the memory that is reserved and not used, such as 512M or 2G
    #[arg(long, value_name = "SIZE")]
    pub reserve_limit: Option<Bytes>,
    /// Zero superpages ahead of need, up to SIZE [256M when no SIZE is given]
    #[arg(
        long,
        value_name = "SIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "256M"
    )]
    pub ahead: Option<Bytes>,
    /// Let the program's own mappings of 2 MiB and more begin on a superpage
    /// boundary
    #[arg(long)]
    pub align: bool,
    /// Put program text and read-only data of 2 MiB and more onto superpages
    #[arg(long)]
    pub text: bool,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// What `quire stat` takes.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// Show this process only
    pub pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `quire set` takes.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// The process
    pub pid: u32,
    /// What to change
    #[arg(value_name = "NAME=VALUE", required = true)]
    pub settings: Vec<String>,
}

/// What `quire perf-map` takes.
#[derive(Debug, Args)]
pub struct PerfMapArgs {
    /// The processes
    #[arg(value_name = "PID", required = true)]
    pub pids: Vec<u32>,
}

/// What `quire doctor` takes.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name)).try_map(|name| name.parse::<Policy>())
}

fn shell_parser() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>())
}

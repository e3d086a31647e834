//! The command line.

pub mod dsm;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{ArgPredicate, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use quire_attach::config::interval_of;
use quire_attach::heat::Accesses;
use quire_core::attach::{CpuShare, Threshold};
use quire_core::config::{Malloc, Policy};
use quire_core::frames::cache::Override;
use quire_core::frames::colour::Colours;
use quire_core::frames::hints::Hint;
use quire_core::frames::mapping::part::Part;
use quire_core::frames::spec::StrategySpec;
use quire_core::level::Level;
use quire_core::pool::PoolPage;
use quire_core::tlb::Geometry;
use quire_core::units::Bytes;
use quire_lab::tune::candidate::Candidate;
use quire_linux::execution::Cpus;
use quire_measure::args::{self as measure, From, bench_time, percent};

const EXAMPLES: &str = "\
EXAMPLES:
  quire run -- ./solver input.dat     run a program with superpages
  quire run --policy eager redis-server
  quire stat                          show every managed process, now
  quire top                           watch them, and change their policy
  quire doctor                        check what this machine offers
  quire bench './old' './new'         say whether one is faster than the other";

const RUN_EXAMPLES: &str = "\
EXAMPLES:
  quire run -- ./solver input.dat
  quire run --policy eager --quiet redis-server redis.conf
  quire run --cpu 25 -- python3 train.py                 copies may take more time
  quire run --stats run.json -- make -j8
  quire run --policy reserve --reserve-limit 2G -- ./solver
  quire run --policy static --pool-page 2M -- ./solver   no pages of 1 GiB
  quire run --policy reserve --malloc jemalloc -- ./solver   its malloc, too
  quire run --dsm grid@127.0.0.1:7450 -- ./solver        its shared memory /grid
  quire run --dsm '*' -- python3 program.py              all of it, at the server of dsm.toml

TWO WAYS:
  Under adaptive, eager and base, memory stays the kernel's, and the kernel is advised
  (libquire.so). A process has a thread that looks and advises once it has grown to
  64 MiB. Under reserve and static, and with --ahead, --reserve-limit, --largest,
  --pool-page, --align, --text, --malloc, --frames, --hint, --stock or --colour-bits,
  Quire provides the memory (libquire_provide.so); docs/limits.md says what differs then.

The exit status is that of PROGRAM; if a signal kills PROGRAM, quire dies by the
same signal. 127: PROGRAM was not found; 126: it cannot be executed; 2: bad usage.
QUIRE_LIB names the libquire.so to use, where it is not found by itself,
QUIRE_PROVIDE_LIB the libquire_provide.so, which is also looked for beside the one that
QUIRE_LIB names, and QUIRE_DSM_LIB the libquire_dsm.so for --dsm. The
libquire_provide_jemalloc.so of --malloc jemalloc is looked for like libquire_provide.so;
QUIRE_JEMALLOC_LIB names it. QUIRE_MALLOC holds libc or jemalloc, which is taken where
memory is provided and --malloc is not given.";

const STAT_EXAMPLES: &str = "\
EXAMPLES:
  quire stat                every process under quire that you may see
  quire stat 4242           one process
  quire stat --json | jq '.processes[].superpages'
  quire stat --prometheus   metrics for the textfile collector of Prometheus";

const TOP_EXAMPLES: &str = "\
EXAMPLES:
  quire top                 every process under quire that you may see
  quire top 4242            one process
  quire top --interval 0.2
  quire top --once          one frame as text, for scripts

KEYS:
  Up Down j k               choose a process, or a region of it
  Enter Tab                 go to the regions of the process, and back
  < > s S                   choose the column to sort by
  r                         reverse the order
  p                         choose the policy of the process
  a                         switch the alignment of its mappings on or off
  /                         show only the commands that hold a text
  Space                     pause
  + -                       longer or shorter intervals
  h ?                       help
  q Esc Ctrl-C              quit

NO_COLOR=1 leaves colours out. 2: no such process, or standard output is no
terminal.";

const SET_EXAMPLES: &str = "\
EXAMPLES:
  quire set 4242 policy=eager             superpages at the first touch from now on
  quire set 4242 cpu=25                   copies may take a quarter of a processor
  quire set 4242 policy=base              make no new superpages
  quire set 4242 ahead=512M reserve-limit=1G

SETTINGS of processes that are advised:
  policy=NAME          adaptive, eager or base
  cpu=PERCENT          the share of one processor that copies may take

SETTINGS of processes whose memory Quire provides (quire run --policy reserve and others):
  policy=NAME          base, eager, reserve, adaptive or static; holds for memory
                       that is mapped from now on and for what holds nothing yet
  align=on|off         own mappings of 2 MiB and more begin on a superpage boundary
  ahead=SIZE           zero superpages ahead of need, up to SIZE
  reserve-limit=SIZE   bound of the memory that is reserved and not used
  largest=SIZE         largest superpage that reservations make, 16K to 2M
  pool-page=2M|1G      the largest page that static takes from the hugetlb pools

2: no such process, or a setting that does not exist. 1: the process refuses, and says why.";

const ATTACH_EXAMPLES: &str = "\
EXAMPLES:
  sudo quire attach 4242                   until process 4242 ends
  sudo quire attach --once --json 4242     one pass, and what came of it
  sudo quire attach --cgroup /system.slice/web.service --threshold 75%
  sudo quire attach --all-above 1G --cpu 0.5 --metrics 127.0.0.1:9435
  sudo quire attach --config /etc/quire/attach.toml

SIGNALS:
  TERM and INT end it; superpages stay. HUP reads the configuration anew.

2: no such process or control group, or a configuration that is not understood.";
const TLB_EXAMPLES: &str = "\
EXAMPLES:
  quire tlb -- ./solver input.dat
  quire tlb --policy eager --windows 32 -- ./solver input.dat
  quire tlb --plain -- ./solver input.dat       what the kernel alone gives
  quire tlb --json --output tlb.json -- ./solver input.dat
  quire tlb --tlb l1d=64:4:4K,l1d=32:4:2M,l1i=64:8:4K,l2=1536:12:4K+2M -- ./solver

METHOD:
  PROGRAM runs natively, under quire. At intervals one of its threads is stopped
  and executes a window of instructions one by one. Their addresses are fed to a
  model of the machine's TLBs, once with 4 KiB pages only and once with the pages
  that the process has. docs/tlb.md says what the model leaves out.

EXIT STATUS:
  That of PROGRAM; if a signal kills PROGRAM, quire dies by the same signal. 127:
  PROGRAM was not found; 126: it cannot be executed; 2: bad usage, or tracing is
  not allowed.";
const CACHE_EXAMPLES: &str = "\
EXAMPLES:
  quire cache
  quire cache --json | jq '.colour_cache'
  quire cache --set level=2,sets=2048,ways=16     where the machine says it wrong
  quire cache --set level=3,colour-bits=12^18,13^19,14^20

COLOURS:
  Pages of one colour compete for the same sets of a cache. In a plain index the
  colour is a run of bits of the physical address; in one that is a hash, each bit
  of the colour is an XOR of several. Where the hash is not known, colours mean
  nothing. --set stands for the caches for data of its level, and adds one where
  there is none and sets, ways and line are given; colour-bits comes last, and
  without a level it is for the cache that has the colours already.

EXIT STATUS:
  2: bad usage, or a --set that does not fit.";
const MAP_EXAMPLES: &str = "\
EXAMPLES:
  sudo quire map 4242                            every mapping, and the colours
  sudo quire map 4242 '[heap]'
  sudo quire map 4242 7f0000200000-7f0000600000 --csv > frames.csv
  sudo quire map 4242 --image colours.png
  sudo quire map 4242 --colour-bits 12^17,13^18,14^19
  quire map 4242 --json | jq '.totals'           frames are known to root only

TABLE:
  A run is a row of pages in a row of frames, of one page size and one kind. The
  columns of --csv are address, pages (of 4 KiB), frame, colour (of the first page),
  page_size (of what one page table entry maps: folios of 16 KiB to 1 MiB are mapped
  by entries of 4 KiB), kind (anonymous, file, shared, swapped or zero) and name.
  A process that runs changes while it is looked at.

PICTURE:
  One block for each page, in rows of 64 pages or more, each mapping below the last;
  the blocks stand for more pages where there are many. The hue is the colour, light
  where a superpage maps the page. Black: absent; white: in swap; grey: the page of
  zeros; dull blue: the frame is hidden; dark grey: no mapping. Rows in which nothing
  is present are left out.

2: no such process, or one that may not be looked at; a range that holds nothing.";
const REMAP_EXAMPLES: &str = "\
EXAMPLES:
  quire run --frames default -- ./solver &    a program whose pages can be moved
  quire remap 4242 7f0000200000-7f0000600000 colour
  quire remap 4242 7f0000200000-7f0000600000 modulo:0-3 --json | jq '.left'
  sudo quire map 4242 --csv > frames.csv; sudo quire remap 4242 7f0000200000-7f0000600000 exact:frames.csv

Pages are moved one by one while the program runs; whoever touches one that is on
its way waits. Pages that are first written to later get their frames by the strategy, too.
What has to stay where it is is listed with the reason.

EXIT STATUS:
  0: all pages are where the strategy wants them. 1: some stay where they are. 2: no
  such process, or one that was not started with --frames; a bad range or strategy.";
const TUNE_EXAMPLES: &str = "\
EXAMPLES:
  quire tune -- ./solver input.dat
  quire tune --for determinism -- ./solver input.dat
  quire tune --policy eager,reserve --frames colour -- ./solver input.dat
  quire tune --candidates eager,reserve+binhop -- ./solver input.dat
  quire tune --time-limit 600 --save tune.jsonl -- ./solver input.dat
  quire tune --regex 'took ([0-9.]+) ms' --unit ms -- ./server-test
  quire report tune.jsonl                 the search and the confirmation, plotted

METHOD:
  All candidates and the program without quire (plain) run in interleaved rounds, in
  random order; those that are significantly worse than the best leave. The one or two
  best run again beside plain, and only these fresh executions decide: a candidate is
  better when the interval of its ratio to plain lies below 1, corrected for the number
  of comparisons, and the ratio is beyond the threshold. docs/tune.md says more.

CANDIDATES:
  Unless chosen: the policies base, eager, reserve, adaptive and static, the strategies
  colour, colour:hashed and binhop with base pages, and the best policy with the best
  strategy. What cannot be offered here or fails is named with its reason, and left out.

EXIT STATUS:
  0: the best is named, or none differs. 1: nothing can be said, as the program fails
  without quire, too, or the time was too short. 2: bad usage. With --save, the same
  command goes on after Ctrl-C.";
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

impl Cli {
    /// What the process was called with.
    ///
    /// # Errors
    /// What is wrong with that, or the help that was asked for.
    pub fn read() -> Result<Cli, clap::Error> {
        let mut command = Cli::command();
        if std::env::var_os(dsm::SERVER).is_some_and(|text| text.is_empty()) {
            // It is as good as not set.
            let without = |arg: Arg| arg.env(None);
            command = command
                .mut_subcommand("object", |object| object.mut_arg("server", without))
                .mut_subcommand("dsm", |dsm| {
                    dsm.mut_subcommand("member", |member| member.mut_arg("server", without))
                });
        }
        Cli::from_arg_matches(&command.try_get_matches()?)
    }
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
    /// Watch managed processes, and what their regions look like
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Change the settings of a running process
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
    /// Make superpages for processes that were not started under quire
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(AttachArgs),
    /// Show how many TLB misses a program has with 4 KiB pages and with Quire's
    #[command(after_help = TLB_EXAMPLES)]
    Tlb(TlbArgs),
    /// Show the caches, and which of them page colouring can use
    #[command(after_help = CACHE_EXAMPLES)]
    Cache(CacheArgs),
    /// Show which physical frames a process has, and their cache colours
    #[command(after_help = MAP_EXAMPLES)]
    Map(MapArgs),
    /// Move pages that a running program has to frames by another strategy
    #[command(after_help = REMAP_EXAMPLES)]
    Remap(RemapArgs),
    /// Compare commands, or run a whole experiment, and tell noise from truth
    #[command(after_help = measure::BENCH_EXAMPLES)]
    Bench(Box<measure::BenchArgs>),
    /// Say how many executions and measurements a wanted precision takes
    #[command(after_help = measure::PLAN_EXAMPLES)]
    Plan(measure::PlanArgs),
    /// Try policies and frame strategies on a program, and name the best if one differs
    #[command(after_help = TUNE_EXAMPLES)]
    Tune(Box<TuneArgs>),
    /// Tell perf the names of program text that was copied (--text)
    #[command(after_help = PERF_MAP_EXAMPLES)]
    PerfMap(PerfMapArgs),
    /// Say what results of benchmarks mean: intervals, non-determinism, plots
    #[command(after_help = measure::REPORT_EXAMPLES)]
    Report(measure::ReportArgs),
    /// Say whether new results of benchmarks are worse than old ones, for CI
    #[command(after_help = measure::COMPARE_EXAMPLES)]
    Compare(measure::CompareArgs),
    /// Serve memory objects that programs on several machines share
    #[command(after_help = dsm::SERVE_EXAMPLES)]
    Serve(dsm::ServeArgs),
    /// Make, list and copy shared memory objects
    #[command(after_help = dsm::OBJECT_EXAMPLES)]
    Object(dsm::ObjectArgs),
    /// Try shared memory across machines
    Dsm(dsm::DsmArgs),
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
    /// How big the program's pages are. Under `adaptive`, `eager` and `base` the kernel
    /// is advised. `adaptive`: full extents become superpages by a copy in the
    /// background, and where neighbours filled up the next ones are superpages at the
    /// first touch. `eager`: all private anonymous memory may have superpages at the
    /// first touch. `base`: none has. Under the others Quire provides the memory.
    /// `reserve`: extents are reserved at the first touch, and promoted in place when
    /// full. `static`: the hugetlb pools, 1 GiB where that fits and is free, then 2 MiB.
    /// With `--frames` it is `base` unless it is given, and holds for what has no strategy
    #[arg(
        long,
        default_value_t = Policy::default(),
        default_value_if("frames", ArgPredicate::IsPresent, Policy::Base.name()),
        value_parser = policy_parser()
    )]
    pub policy: Policy,
    /// Which physical frames new pages get; Quire provides the memory then: page colouring (`colour`,
    /// `colour:hashed`), bin hopping (`binhop`, `binhop:thread`), colours by turns
    /// (`modulo:0-3`), the colours or the frames of a recorded mapping
    /// (`modulo:@FILE`, `exact:FILE`, from `quire map --csv`), a plug-in of your own
    /// (`./mine.so`, `./mine.so:ARGUMENT`), or the kernel's choice (`default`)
    #[arg(long, value_name = "STRATEGY")]
    pub frames: Option<StrategySpec>,
    /// Another strategy for a part of memory: `heap=STRATEGY`, `stack=STRATEGY` (those of
    /// threads, too), `map:NAME=STRATEGY` (the static data of the program or library of
    /// this file name, or mappings that the program names so), or a range of addresses,
    /// as 7f0000000000-7f0000200000=STRATEGY. May be given again. Quire provides the
    /// memory then
    #[arg(long, value_name = "PART=STRATEGY")]
    pub hint: Vec<Hint>,
    /// The address bits that make a colour, such as 12,13,14,15 or 12^18,13^19,
    /// instead of those of this machine's cache (see `quire cache`). Quire provides the
    /// memory then
    #[arg(long, value_name = "BITS")]
    pub colour_bits: Option<Colours>,
    /// Keep no more pages ready for strategies than this, beyond one superpage [default:
    /// 64M]. It is never more than a twentieth of what the program uses. Quire provides the
    /// memory then
    #[arg(long, value_name = "SIZE")]
    pub stock: Option<Bytes>,
    /// Do not hand the strategies down to programs that the program starts
    #[arg(long)]
    pub no_inherit: bool,
    /// Write what was measured to this file, as JSON
    #[arg(long, value_name = "FILE.json")]
    pub stats: Option<PathBuf>,
    /// Do not print the summary
    #[arg(long, short)]
    pub quiet: bool,
    /// The share of one processor that copies may take where the kernel is advised [default:
    /// 10]
    #[arg(long, value_name = "PERCENT")]
    pub cpu: Option<CpuShare>,
    /// Bound of the memory that is reserved and not used, such as 512M or 2G. Quire
    /// provides the memory then
    #[arg(long, value_name = "SIZE")]
    pub reserve_limit: Option<Bytes>,
    /// Largest superpage that reservations make, 16K to 2M. Smaller ones are made
    /// anyway where no block of 2 MiB is free. Quire provides the memory then
    #[arg(long, value_name = "SIZE")]
    pub largest: Option<Level>,
    /// Zero superpages ahead of need, up to SIZE [256M when no SIZE is given]. Quire
    /// provides the memory then
    #[arg(
        long,
        value_name = "SIZE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "256M"
    )]
    pub ahead: Option<Bytes>,
    /// The largest page that `static` takes from the hugetlb pools. With another than the
    /// default, Quire provides the memory
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = pool_page_parser())]
    pub pool_page: PoolPage,
    /// Let the program's own mappings of 2 MiB and more begin on a superpage
    /// boundary. Quire provides the memory then
    #[arg(long)]
    pub align: bool,
    /// Put program text and read-only data of 2 MiB and more onto superpages. Quire
    /// provides the memory then
    #[arg(long)]
    pub text: bool,
    /// Whose `malloc` the program has where Quire provides memory. `libc`: its own, and
    /// only its mappings of 2 MiB and more are managed. `jemalloc`: one that takes all of
    /// its memory from Quire; not for PHP and Valgrind, nor for other programs that open
    /// libraries with RTLD_DEEPBIND. Quire provides the memory then [default: libc; with
    /// `--frames` or `--hint`, jemalloc]
    #[arg(long, value_name = "WHOSE", value_parser = malloc_parser())]
    pub malloc: Option<Malloc>,
    #[command(flatten)]
    pub dsm: dsm::AttachArgs,
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
    /// Print metrics in the text format that Prometheus reads
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// What `quire top` takes.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show this process only
    pub pid: Option<u32>,
    /// Time between two looks, such as 0.5
    #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Print one frame as text, with rates over one interval, and end
    #[arg(long)]
    pub once: bool,
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

/// What `quire attach` takes.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("who").required(true))]
pub struct AttachArgs {
    /// These processes, until they end
    #[arg(value_name = "PID", group = "who")]
    pub pids: Vec<u32>,
    /// All processes in a control group and below it
    #[arg(long, value_name = "PATH", group = "who")]
    pub cgroup: Option<String>,
    /// All processes that have at least SIZE in memory
    #[arg(long, value_name = "SIZE", group = "who")]
    pub all_above: Option<Bytes>,
    /// Run as a service, by the rules of this file
    #[arg(long, value_name = "FILE.toml", group = "who")]
    pub config: Option<PathBuf>,
    /// Promote extents of 2 MiB from so many populated pages on: 1 to 512, or a
    /// percentage
    #[arg(long, default_value = "100%", conflicts_with = "config")]
    pub threshold: Threshold,
    /// The share of one processor that may be used: 1.5 unless given, 100 with
    /// --once
    #[arg(long, value_name = "PERCENT", conflicts_with = "config")]
    pub cpu: Option<CpuShare>,
    /// The time between looks at a process that changes, 1 unless given; others
    /// are looked at more rarely
    #[arg(long, value_name = "SECONDS", conflicts_with = "config", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// How to find out what is accessed most: the kernel's access monitor
    /// (`damon`), accessed marks of mappings (`smaps`), or not at all
    #[arg(long, default_value = "auto", conflicts_with = "config", value_parser = accesses_parser())]
    pub accesses: Accesses,
    /// Make one pass, and end
    #[arg(long, conflicts_with = "config")]
    pub once: bool,
    /// Let Prometheus fetch metrics at this address
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "once")]
    pub metrics: Option<SocketAddr>,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
}

/// What `quire tlb` takes.
#[derive(Debug, Args)]
pub struct TlbArgs {
    /// How big the program's pages are, as for `quire run`
    #[arg(long, default_value_t = Policy::default(), value_parser = policy_parser())]
    pub policy: Policy,
    /// Run the program without quire
    #[arg(long, conflicts_with = "policy")]
    pub plain: bool,
    /// Instructions in a window; the first quarter warms the model up and is not
    /// counted
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(4..=1_000_000_000))]
    pub window: u64,
    /// Windows that the result stands on, an even number: when there are more,
    /// every second one is dropped and the interval doubles
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub windows: u64,
    /// Milliseconds that the program runs freely between windows, at first; never
    /// less than the last window took
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(..=86_400_000))]
    pub every: u64,
    /// Milliseconds that the program runs freely before the first window
    #[arg(long, value_name = "MS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=86_400_000))]
    pub after: u64,
    /// One window without an end instead, for the thread that runs at its
    /// beginning; slows it down some thousand times
    #[arg(long, conflicts_with_all = ["window", "windows", "every"])]
    pub whole: bool,
    /// The TLBs to model, as place=entries:ways:sizes,... (see the examples),
    /// instead of this machine's
    #[arg(long, value_name = "SPEC")]
    pub tlb: Option<Geometry>,
    /// Count with the processor's own counters, too, where there are any
    /// (`auto`), do not (`off`), or run the program twice, without and with
    /// quire, and only count (`only`)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub pmu: Pmu,
    /// Print JSON, to standard output
    #[arg(long)]
    pub json: bool,
    /// Write the result to this file, instead of to standard error, or to
    /// standard output for JSON
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// When the processor's own counters are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pmu {
    /// Where there are any, besides the model.
    Auto,
    /// Never.
    Off,
    /// Instead of the model.
    Only,
}

/// What `quire cache` takes.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// What is to be taken for true of a cache: a level, and any of sets, ways, line
    /// (bytes) and colour-bits (see the examples)
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub set: Vec<Override>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `quire map` takes.
#[derive(Debug, Args)]
pub struct MapArgs {
    /// The process
    pub pid: u32,
    /// Only these addresses, START-END in hexadecimal, or the mappings of this name,
    /// as in /proc/PID/maps
    #[arg(value_name = "RANGE")]
    pub part: Option<Part>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print a row for each run, separated by commas
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Write a picture of the colours by address to this file
    #[arg(long, value_name = "FILE.png")]
    pub image: Option<PathBuf>,
    /// The bits of a physical address that make a colour, the lowest first; those of
    /// the cache that `quire cache` names, unless given. A bit of a hashed index is written 12^18
    #[arg(long, value_name = "BITS")]
    pub colour_bits: Option<Colours>,
}

/// What `quire remap` takes.
#[derive(Debug, Args)]
pub struct RemapArgs {
    /// The process, started by `quire run --frames`
    pub pid: u32,
    /// The addresses, START-END in hexadecimal, or the mappings of this name, as in
    /// /proc/PID/maps
    #[arg(value_name = "RANGE")]
    pub part: Part,
    /// The strategy, as for `quire run --frames`
    pub strategy: StrategySpec,
    /// The address bits that make a colour, instead of those of this machine's cache
    /// (see `quire cache`)
    #[arg(long, value_name = "BITS")]
    pub colour_bits: Option<Colours>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `quire tune` takes.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// What is wanted: the best mean, or the least variation over all executions
    #[arg(long = "for", value_name = "GOAL", default_value = "mean")]
    pub goal: TuneGoal,
    /// Try these policies; may be given again
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',', value_parser = policy_parser())]
    pub policy: Vec<Policy>,
    /// Try this frame strategy, as for `quire run`; may be given again. `default` is the
    /// kernel's choice
    #[arg(long, value_name = "STRATEGY")]
    pub frames: Vec<StrategySpec>,
    /// Try these: a policy, a strategy, or both as POLICY+STRATEGY
    #[arg(long, value_name = "CANDIDATE,...", value_delimiter = ',', conflicts_with_all = ["policy", "frames"])]
    pub candidates: Vec<Candidate>,
    /// Execute each candidate so often at most, in the search and again in the
    /// confirmation [default: 20; 30 for determinism]
    #[arg(long, short, value_name = "N")]
    pub executions: Option<u64>,
    /// Begin no round that would end after this time, all in all
    #[arg(long, value_name = "SECONDS", value_parser = bench_time)]
    pub time_limit: Option<f64>,
    /// A difference of at most this is none
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    pub threshold: f64,
    /// How much worse the mean may be for the sake of determinism
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub tolerance: f64,
    /// Where the program reports measurements of its own
    #[arg(long, default_value = "fd")]
    pub from: From,
    /// Take measurements from standard output: a regular expression for a line, with
    /// one group around the number
    #[arg(long, value_name = "REGEX")]
    pub regex: Option<String>,
    /// The metric to judge by; with --regex, what it measures [default: time, or the first
    /// that the program reports]
    #[arg(long, value_name = "NAME")]
    pub metric: Option<String>,
    /// The unit of what --regex finds [default: s]
    #[arg(long, value_name = "UNIT", requires = "regex")]
    pub unit: Option<String>,
    /// How many measurements the program shall make in an execution; it is told so by
    /// QUIRE_BENCH_MEASUREMENTS
    #[arg(long, short, value_name = "M")]
    pub measurements: Option<u64>,
    /// Leave out so many of the first measurements of each execution
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub discard: u64,
    /// Execute each candidate so often before, without a record
    #[arg(long, short, value_name = "N", default_value_t = 0)]
    pub warmup: u64,
    /// Stop an execution after this time, with all its processes
    #[arg(long, value_name = "SECONDS", value_parser = bench_time)]
    pub timeout: Option<f64>,
    /// Run this before each execution
    #[arg(long, short, value_name = "COMMAND")]
    pub prepare: Option<String>,
    /// What the program reads from standard input [default: nothing]
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Take any exit status for success
    #[arg(long, short)]
    pub ignore_failure: bool,
    /// Run the program on these processors only, such as 1 or 2-3
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Cpus>,
    /// What the order depends on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Keep results in this file, and go on with those that it holds already
    #[arg(long, value_name = "FILE.jsonl")]
    pub save: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// What `quire tune` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TuneGoal {
    /// The best mean.
    Mean,
    /// The least variation.
    Determinism,
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

fn pool_page_parser() -> impl TypedValueParser<Value = PoolPage> {
    PossibleValuesParser::new(PoolPage::ALL.map(PoolPage::name))
        .try_map(|name| name.parse::<PoolPage>())
}

fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name)).try_map(|name| name.parse::<Policy>())
}

fn malloc_parser() -> impl TypedValueParser<Value = Malloc> {
    PossibleValuesParser::new(Malloc::ALL.map(Malloc::name)).try_map(|name| name.parse::<Malloc>())
}

/// An interval in seconds, from a tenth of one to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    seconds
        .filter(|seconds| (0.1..=3600.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give a number of seconds from 0.1 to 3600".to_owned())
}

fn accesses_parser() -> impl TypedValueParser<Value = Accesses> {
    PossibleValuesParser::new(Accesses::ALL.map(Accesses::name))
        .try_map(|name| name.parse::<Accesses>())
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let number = text.parse().ok().and_then(interval_of);
    number.ok_or("write a number of seconds, from 0.01 to 3600")
}

fn shell_parser() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>())
}

//! The command lines of `bench`, `plan`, `report` and `compare`.

use std::path::PathBuf;

use clap::Args;
use quire_lab::experiment::Ignored;
use quire_linux::execution::Cpus;
use quire_linux::scheduling::Scheduling;

/// What the help of `bench` ends with.
pub const BENCH_EXAMPLES: &str = "\
EXAMPLES:
  quire bench 'sort -u big.txt' 'sort big.txt | uniq'
  quire bench --runs 30 --warmup 3 'gzip -k -f data' 'zstd -f data'
  quire bench --precision 1% -n old -n new './old' './new'
  quire bench -L level 1,6,9 'gzip -k -f -{level} data'
  quire bench -P threads 1 8 --export-json out.json './solver {threads}'
  quire bench --regex 'took ([0-9.]+) ms' --unit ms './server-test'
  quire bench -f experiment.toml          results go to experiment.jsonl
  quire bench --resume experiment.jsonl   go on after an interruption
  sudo quire bench --prepare-machine --cpus 1 -f experiment.toml
  sudo quire bench --restore              after a run that was killed

MEASUREMENTS:
  The whole run is one measurement, unless the program reports its own: lines such
  as `iteration 12.5 ms` on the descriptor that QUIRE_BENCH_FD names, or, with
  --from stdout, `quire: iteration 12.5 ms` on standard output. docs/bench.md says
  more, and describes the file of an experiment.

ORDER:
  A round executes every command once, in random order; --runs is the number of
  rounds. With --save, each result is in the file before the next execution begins.

EXIT STATUS:
  0: all executions gave something. 1: one failed, or the results could not be
  written. 2: bad usage. Ctrl-C and TERM put the machine back as it was first.";

/// What the help of `plan` ends with.
pub const PLAN_EXAMPLES: &str = "\
EXAMPLES:
  quire bench -f experiment.toml --runs 10 --save pilot.jsonl
  quire plan pilot.jsonl --precision 1%
  quire plan pilot.jsonl --cost-execution 20      an execution has to be built first
  quire plan pilot.jsonl --json | jq '.plans[].spend'

METHOD:
  The pilot says how much executions differ, and how much measurements within one.
  The cheapest mixture of both follows from what each costs (docs/bench.md).

EXIT STATUS:
  2: the file holds no results.";

/// What the help of `report` ends with.
pub const REPORT_EXAMPLES: &str = "\
EXAMPLES:
  quire report run.jsonl                         quire-report.html
  quire report run.jsonl -o run.md               Markdown, by the name of the file
  quire report --format json run.jsonl | jq '.pairs[].sentence'
  quire report hyperfine.json                    results of other tools
  quire report target/criterion -o criterion.html
  quire report 1.json 2.json 3.json              three executions of one program
  quire report --format data pyperf.json > measurements.csv

RESULTS:
  Files of quire bench, hyperfine (--export-json), Criterion (target/criterion, or
  target/criterion@NAME for a baseline), Google Benchmark (JSON), pyperf (JSON),
  ReBench (.data), or CSV with a header and any of the columns benchmark, variant,
  execution, metric, unit, better and value. What a file holds tells which it is. A
  directory stands for the files in it. The same benchmark and variant in several
  files are further executions of it. docs/report.md says more.

EXIT STATUS:
  2: results that cannot be read; the file and the place are named.";

/// What the help of `compare` ends with.
pub const COMPARE_EXAMPLES: &str = "\
EXAMPLES:
  quire compare old.jsonl new.jsonl --threshold 3%
  quire compare old/ new/ --junit junit.xml --markdown comment.md
  quire compare target/criterion@base target/criterion@new
  quire compare old.json new.json --json | jq '.compared[].outcome'

RESULTS:
  As of `quire report`. What both have, by benchmark, variant and metric, is compared;
  what only one has is listed.

EXIT STATUS:
  0: nothing is worse. 1: something is worse by more than the threshold, and beyond
  noise, by the rule of quire report (docs/statistics.md). 2: bad input, or
  results that have nothing in common.";

/// What `quire bench` takes.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The commands to compare, each as one argument
    #[arg(value_name = "COMMAND", value_hint = clap::ValueHint::CommandString)]
    pub commands: Vec<String>,
    /// Run the experiment of this file: benchmarks and variants
    #[arg(long, short, value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Keep results in this file, and go on with those that it holds already [default:
    /// none for commands, NAME.jsonl for NAME.toml]
    #[arg(
        long,
        short = 'o',
        value_name = "FILE.jsonl",
        conflicts_with = "resume"
    )]
    pub save: Option<PathBuf>,
    /// Go on with the run whose results these are
    #[arg(long, value_name = "FILE.jsonl")]
    pub resume: Option<PathBuf>,
    /// Execute each command so often [default: 10; with --precision, 1000 at most]
    #[arg(long, short, value_name = "N", conflicts_with_all = ["min_runs", "max_runs"])]
    pub runs: Option<u64>,
    /// Execute each command so often at least, and until 3 s were spent on it
    #[arg(long, short, value_name = "N", conflicts_with = "file")]
    pub min_runs: Option<u64>,
    /// Execute each command so often at most
    #[arg(long, short = 'M', value_name = "N", conflicts_with = "file")]
    pub max_runs: Option<u64>,
    /// Compare with this command: one of those that are given, by its name, or another one, which
    /// is executed too [default: the first one]
    #[arg(long, value_name = "COMMAND", conflicts_with = "file")]
    pub reference: Option<String>,
    /// What the command of --reference is called
    #[arg(long, value_name = "NAME", requires = "reference")]
    pub reference_name: Option<String>,
    /// Put each of these values, separated by commas, in place of {VAR} in the commands; may be
    /// given again for another VAR
    #[arg(long, short = 'L', value_names = ["VAR", "VALUES"], num_args = 2,
        allow_hyphen_values = true, conflicts_with = "file")]
    pub parameter_list: Vec<String>,
    /// Put each number from MIN to MAX in place of {VAR} in the commands
    #[arg(long, short = 'P', value_names = ["VAR", "MIN", "MAX"], num_args = 3,
        allow_negative_numbers = true, conflicts_with_all = ["file", "parameter_list"])]
    pub parameter_scan: Vec<String>,
    /// How far the numbers of --parameter-scan are apart [default: 1]
    #[arg(long, short = 'D', value_name = "DELTA", requires = "parameter_scan")]
    pub parameter_step_size: Option<String>,
    /// Execute each command so often before, without a record
    #[arg(long, short, value_name = "N")]
    pub warmup: Option<u64>,
    /// Stop when half the interval of each mean is this part of it, such as 1%
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub precision: Option<f64>,
    /// How many measurements a program shall make in an execution; it is told so by
    /// QUIRE_BENCH_MEASUREMENTS
    #[arg(long, value_name = "M")]
    pub measurements: Option<u64>,
    /// Leave out so many of the first measurements of each execution
    #[arg(long, value_name = "N")]
    pub discard: Option<u64>,
    /// What the order depends on [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Stop an execution after this time, with all its processes
    #[arg(long, value_name = "SECONDS", value_parser = bench_time)]
    pub timeout: Option<f64>,
    /// Names for the commands, in their order; with parameters, one for all or one for each
    #[arg(long, short = 'n', value_name = "NAME")]
    pub command_name: Vec<String>,
    /// Run this before each execution; give it once, or once for each command
    #[arg(long, short, value_name = "COMMAND")]
    pub prepare: Vec<String>,
    /// Run this after each execution; give it once, or once for each command
    #[arg(long, short = 'C', value_name = "COMMAND")]
    pub conclude: Vec<String>,
    /// Run this for each command before all executions
    #[arg(long, short, value_name = "COMMAND")]
    pub setup: Option<String>,
    /// Run this for each command after all executions
    #[arg(long, short, value_name = "COMMAND")]
    pub cleanup: Option<String>,
    /// What reads the commands: a shell, `default` for sh, `none`, or `auto`: none for a program
    /// with plain words, else sh
    #[arg(
        long,
        short = 'S',
        value_name = "SHELL",
        default_value = "auto",
        overrides_with = "shell"
    )]
    pub shell: String,
    /// Use no shell
    #[arg(short = 'N', conflicts_with = "shell")]
    pub no_shell: bool,
    /// Take any exit status for success, or those that MODE names: all-non-zero, or some with commas
    /// between them, as in --ignore-failure=1,2
    #[arg(long, short, value_name = "MODE", num_args = 0..=1, require_equals = true,
        default_missing_value = "all-non-zero")]
    pub ignore_failure: Option<Ignored>,
    /// What commands read from standard input: a file, or `null` for nothing [default: null]
    #[arg(long, value_name = "WHERE")]
    pub input: Option<PathBuf>,
    /// Where the standard output of commands goes: `null`, `pipe` (it is read and thrown away),
    /// `inherit`, or a file, named with its directory, such as ./out [default: null]; give it once,
    /// or once for each command
    #[arg(long, value_name = "WHERE", conflicts_with_all = ["regex", "show_output"])]
    pub output: Vec<String>,
    /// Show what commands print; the same as `--output inherit`
    #[arg(long, conflicts_with = "regex")]
    pub show_output: bool,
    /// The unit of times in tables [default: the one that is read best]
    #[arg(long, short = 'u', value_name = "UNIT")]
    pub time_unit: Option<TimeUnit>,
    /// What is shown on a terminal: `basic` has no colours and no bar, `full` has both whatever
    /// the output is, `nocolor` and `color` say it of colours, `none` shows nothing
    #[arg(long, value_name = "STYLE", default_value = "auto")]
    pub style: Style,
    /// The order of tables
    #[arg(long, value_name = "ORDER", default_value = "auto")]
    pub sort: Order,
    /// Where programs report measurements of their own
    #[arg(long, default_value = "fd")]
    pub from: From,
    /// Take measurements from standard output: a regular expression for a line, with
    /// one group around the number
    #[arg(long, value_name = "REGEX")]
    pub regex: Option<String>,
    /// What --regex measures [default: time]
    #[arg(long, value_name = "NAME", requires = "regex")]
    pub metric: Option<String>,
    /// The unit of what --regex finds [default: s]
    #[arg(long, value_name = "UNIT", requires = "regex")]
    pub unit: Option<String>,
    /// Keep the machine from changing meanwhile: governor performance, no turbo, no
    /// merging of pages, no NUMA balancing. It is put back afterwards
    #[arg(long)]
    pub prepare_machine: bool,
    /// Put back what a run that was killed has left, and end
    #[arg(long, conflicts_with_all = ["commands", "file", "resume"])]
    pub restore: bool,
    /// Run programs on these processors only, such as 1 or 2-3
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<Cpus>,
    /// The scheduling class of programs: other, batch, idle, fifo:PRIORITY or
    /// rr:PRIORITY. Real-time programs are stopped after 60 s unless --timeout says else
    #[arg(long, value_name = "CLASS")]
    pub scheduling: Option<Scheduling>,
    /// Whether programs have their memory at random addresses [default: as the kernel
    /// is set]
    #[arg(long, value_name = "WHEN")]
    pub aslr: Option<Switch>,
    /// Give each execution an environment of another size
    #[arg(long)]
    pub random_environment: bool,
    /// Write what came of it to this file (`-`: standard output), as JSON that hyperfine's scripts
    /// read
    #[arg(long, value_name = "FILE")]
    pub export_json: Option<PathBuf>,
    /// Write tables to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub export_markdown: Option<PathBuf>,
    /// Write tables to this file, as AsciiDoc
    #[arg(long, value_name = "FILE")]
    pub export_asciidoc: Option<PathBuf>,
    /// Write tables to this file, for Org
    #[arg(long, value_name = "FILE")]
    pub export_orgmode: Option<PathBuf>,
    /// Write the times of each command to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub export_csv: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short)]
    pub quiet: bool,
    /// Where the file is that says what --prepare-machine has changed [default:
    /// /run/quire-bench.json]
    #[arg(long, value_name = "FILE", hide = true)]
    pub state: Option<PathBuf>,
    /// What stands before /proc and /sys where the machine is prepared
    #[arg(long, value_name = "DIR", hide = true)]
    pub machine_root: Option<PathBuf>,
}

/// Where programs report measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum From {
    /// On the descriptor that `QUIRE_BENCH_FD` names.
    Fd,
    /// On standard output, in lines that begin with `quire:`.
    Stdout,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TimeUnit {
    /// 0.000001 s.
    Microsecond,
    /// 0.001 s.
    Millisecond,
    /// 1 s.
    Second,
}

impl TimeUnit {
    /// What seconds are multiplied with, and its sign.
    pub fn scale(self) -> (f64, Option<&'static str>) {
        match self {
            TimeUnit::Microsecond => (1e6, Some("µs")),
            TimeUnit::Millisecond => (1e3, Some("ms")),
            TimeUnit::Second => (1.0, Some("s")),
        }
    }
}

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Style {
    /// Colours and a bar on a terminal.
    Auto,
    /// Neither.
    Basic,
    /// Both, whatever the output is.
    Full,
    /// A bar without colours.
    Nocolor,
    /// Colours without a bar.
    Color,
    /// Nothing.
    None,
}

/// The order of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// That of the commands.
    Auto,
    /// That of the commands.
    Command,
    /// By the mean, the best first.
    MeanTime,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// What `quire plan` takes.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The results of a pilot run, of `bench` or of another tool that `report` reads
    #[arg(value_name = "RESULTS", value_hint = clap::ValueHint::AnyPath)]
    pub results: PathBuf,
    /// Take runs of hyperfine for good ones whatever their exit status was
    #[arg(long, short)]
    pub ignore_failure: bool,
    /// Half the interval of the mean that is wanted, as a part of the mean
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    pub precision: f64,
    /// What an execution costs besides its measurements, in seconds [default: as in the
    /// pilot]
    #[arg(long, value_name = "SECONDS", value_parser = bench_time)]
    pub cost_execution: Option<f64>,
    /// What a measurement costs, in seconds [default: as in the pilot]
    #[arg(long, value_name = "SECONDS", value_parser = bench_time)]
    pub cost_measurement: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `quire report` takes.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Files or directories of results
    #[arg(value_name = "RUN", required = true, value_hint = clap::ValueHint::AnyPath)]
    pub runs: Vec<PathBuf>,
    /// Compare with this variant [default: the first one]
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,
    /// Take runs of hyperfine for good ones whatever their exit status was
    #[arg(long, short)]
    pub ignore_failure: bool,
    /// What to write; without it, the ending of the output's name says it, else it is HTML
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ReportFormat>,
    /// Where to; `-` is standard output. Without it, HTML goes to quire-report.html, and
    /// all else to standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which intervals the unclassified variation and the impact factor have
    #[arg(long, value_name = "METHOD", default_value = "percentile")]
    pub intervals: IntervalMethod,
    /// How intervals are computed.
    #[command(flatten)]
    pub statistics: StatisticsArgs,
}

/// What `quire compare` takes.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The results to compare with
    #[arg(value_name = "OLD", value_hint = clap::ValueHint::AnyPath)]
    pub old: PathBuf,
    /// The results to be judged
    #[arg(value_name = "NEW", value_hint = clap::ValueHint::AnyPath)]
    pub new: PathBuf,
    /// Take runs of hyperfine for good ones whatever their exit status was
    #[arg(long, short)]
    pub ignore_failure: bool,
    /// How much worse something may become
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
    pub threshold: f64,
    /// Write JUnit XML to this file, too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write Markdown for a pull request to this file, too
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// How intervals are computed.
    #[command(flatten)]
    pub statistics: StatisticsArgs,
}

/// How intervals are computed.
#[derive(Debug, Args)]
pub struct StatisticsArgs {
    /// What the draws of the bootstrap depend on; that of the results, unless given
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How often data are drawn anew
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub resamples: u64,
    /// The share of intervals that should hold the true value
    #[arg(long, value_name = "PERCENT", default_value = "95%", value_parser = confidence)]
    pub confidence: f64,
}

/// How intervals follow from data that are drawn anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IntervalMethod {
    /// The middle part of the draws, as in the paper that the figures are from.
    Percentile,
    /// Corrected for bias and skewness: less too narrow with few executions.
    Bca,
}

/// The forms of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// A page with plots.
    Html,
    /// Tables and sentences.
    Markdown,
    /// All figures, for programs.
    Json,
    /// All figures, a line each.
    Csv,
    /// All measurements as CSV, which can be read again.
    Data,
}

/// A percentage as a fraction, from 0 on.
///
/// # Errors
/// When it is none.
pub fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').and_then(|n| n.trim().parse().ok());
    let number = number.filter(|number| number.is_finite() && *number >= 0.0);
    let number = number.ok_or_else(|| "write a percentage from 0 on, such as 3%".to_owned())?;
    Ok(number / 100.0)
}

/// A percentage as a fraction, from 50% to 99.9%.
fn confidence(text: &str) -> Result<f64, String> {
    percent(text)
        .ok()
        .filter(|fraction| (0.5..=0.999).contains(fraction))
        .ok_or_else(|| "write a percentage from 50% to 99.9%, such as 95%".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    quire_lab::experiment::file::share(text)
}

/// A number of seconds above 0.
///
/// # Errors
/// When it is none.
pub fn bench_time(text: &str) -> Result<f64, &'static str> {
    let seconds = text.parse().ok().filter(|s: &f64| (1e-9..=1e7).contains(s));
    seconds.ok_or("write a number of seconds above 0")
}

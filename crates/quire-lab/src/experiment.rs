//! What is run: benchmarks, variants, and how often.
//!
//! It is read from a file ([`mod@file`]) or made of a command line, and kept in the header of
//! the results, so that a run that was interrupted can go on.

pub mod file;
pub mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use quire_linux::execution::Cpus;
use quire_linux::scheduling::Scheduling;
use serde::{Deserialize, Serialize};

use crate::run::{Better, Metric};

/// So many seconds of executions of a pair are enough, where an experiment says how often it is
/// executed at least.
pub const ENOUGH: f64 = 3.0;

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// What the user calls it.
    pub title: String,
    /// What the order depends on.
    pub seed: u64,
    /// How often each pair of benchmark and variant is executed at most.
    pub executions: u64,
    /// It is enough when each pair was executed so often, and for [`ENOUGH`] in all.
    #[serde(default)]
    pub at_least: Option<u64>,
    /// How often each pair is executed before, without a record.
    pub warmup: u64,
    /// How many measurements a program shall make in an execution; it is told so.
    pub measurements: Option<u64>,
    /// As many of the first measurements of an execution are left out.
    pub discard: u64,
    /// It is enough when half the interval of each mean is this part of it.
    pub precision: Option<f64>,
    /// Seconds after which an execution is stopped.
    pub timeout: Option<f64>,
    /// Which exit statuses other than 0 are no failures.
    pub ignore_failure: Ignored,
    /// Units and directions of metrics that programs report.
    pub metrics: BTreeMap<String, Metric>,
    /// What the machine shall be like meanwhile.
    pub machine: Machine,
    /// What is executed.
    pub benchmarks: Vec<Benchmark>,
    /// How.
    pub variants: Vec<Variant>,
}

/// Which exit statuses other than 0 are no failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "true, false, or a list of exit statuses")]
pub enum Ignored {
    /// All of them, or none.
    All(bool),
    /// These.
    These(Vec<i32>),
}

impl Ignored {
    /// Whether a program that ends with this status has not failed.
    #[must_use]
    pub fn holds(&self, status: i32) -> bool {
        match self {
            Ignored::All(all) => *all || status == 0,
            Ignored::These(some) => status == 0 || some.contains(&status),
        }
    }
}

impl Default for Ignored {
    fn default() -> Ignored {
        Ignored::All(false)
    }
}

impl FromStr for Ignored {
    type Err = String;

    /// `all-non-zero`, or exit statuses with commas between them.
    fn from_str(text: &str) -> Result<Ignored, String> {
        if matches!(text, "" | "all-non-zero") {
            return Ok(Ignored::All(true));
        }
        let statuses = text.split(',').map(|one| one.trim().parse());
        let statuses: Result<Vec<i32>, _> = statuses.collect();
        let unknown = |_| format!("`{text}`: write all-non-zero, or exit statuses such as 1,2");
        statuses.map(Ignored::These).map_err(unknown)
    }
}

/// What is executed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Benchmark {
    /// What the user calls it.
    pub name: String,
    /// What runs; variants may have commands of their own.
    pub command: Option<Command>,
    /// The shell of texts.
    pub shell: Shell,
    /// Where it runs.
    pub directory: Option<PathBuf>,
    /// What it reads; nothing unless given.
    pub input: Option<PathBuf>,
    /// Where what it prints goes, where that is not read.
    #[serde(default)]
    pub output: Output,
    /// Its environment, beyond this one.
    pub env: BTreeMap<String, String>,
    /// Where its measurements come from.
    pub measure: Measure,
    /// Seconds after which an execution is stopped, instead of those of the experiment.
    pub timeout: Option<f64>,
    /// The variants that are for it; all unless given.
    pub variants: Option<Vec<String>>,
    /// Commands that run besides.
    pub besides: Besides,
}

/// Where the standard output of a program goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// Nowhere.
    #[default]
    Null,
    /// Into a pipe, and nowhere from there.
    Pipe,
    /// Where that of this process goes; standard error, too.
    Inherit,
    /// Into this file, which each execution begins anew.
    File(PathBuf),
}

/// Commands that run besides a benchmark. They are not measured; one that fails is a
/// failure of the execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Besides {
    /// Once for each pair, before all executions.
    pub setup: Option<String>,
    /// Before each execution.
    pub prepare: Option<String>,
    /// After each execution.
    pub conclude: Option<String>,
    /// Once for each pair, after all executions.
    pub cleanup: Option<String>,
}

/// How a benchmark is executed. What is `None` is as the benchmark or the machine has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// What the user calls it.
    pub name: String,
    /// What runs, instead of the benchmark's command.
    pub command: Option<Command>,
    /// What runs before each execution, instead of the benchmark's.
    pub prepare: Option<String>,
    /// What else runs besides, where it is given, instead of the benchmark's.
    #[serde(default)]
    pub besides: Besides,
    /// Where what it prints goes, instead of where the benchmark says.
    #[serde(default)]
    pub output: Option<Output>,
    /// What the command was made of, by name.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Environment variables, beyond the benchmark's.
    pub env: BTreeMap<String, String>,
    /// The page-size policy of `quire run`.
    pub policy: Option<String>,
    /// The frame strategy of `quire run`.
    pub frames: Option<String>,
    /// Other options of `quire run`.
    pub run: Vec<String>,
    /// The scheduling class.
    #[serde(with = "as_text")]
    pub scheduling: Option<Scheduling>,
    /// Where it may run.
    #[serde(with = "as_text")]
    pub cpus: Option<Cpus>,
    /// Whether its memory is at random addresses.
    pub aslr: Option<bool>,
    /// Its nice level.
    pub nice: Option<i32>,
}

impl Variant {
    /// Whether it runs under quire.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.policy.is_some() || self.frames.is_some() || !self.run.is_empty()
    }
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a text, or a list of words")]
pub enum Command {
    /// For a shell, or for none where it is simple.
    Text(String),
    /// A program and its arguments.
    Words(Vec<String>),
}

/// What reads the text of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Shell {
    /// None for a program with plain words; else `sh`.
    #[default]
    Auto,
    /// None.
    None,
    /// A program that takes the text after `-c`, with arguments before that.
    Program(String),
}

impl From<String> for Shell {
    fn from(text: String) -> Shell {
        match text.as_str() {
            "auto" => Shell::Auto,
            "none" => Shell::None,
            "default" => Shell::Program("sh".into()),
            _ => Shell::Program(text),
        }
    }
}

impl From<Shell> for String {
    fn from(shell: Shell) -> String {
        match shell {
            Shell::Auto => "auto".into(),
            Shell::None => "none".into(),
            Shell::Program(text) => text,
        }
    }
}

/// Where measurements come from. Where a program reports none, its whole run is one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Measure {
    /// Lines on the descriptor that `QUIRE_BENCH_FD` names.
    #[default]
    Descriptor,
    /// Lines of standard output that begin with `quire:`; the descriptor counts, too.
    Output,
    /// Lines of standard output that match.
    Pattern {
        /// A regular expression with one group, which holds a number.
        regex: String,
        /// What it measures.
        metric: String,
        /// What it is counted in.
        unit: String,
        /// Whether less of it is better.
        better: Better,
    },
}

/// What the machine shall be like while programs run. What is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The governor of processor frequencies.
    pub governor: Option<String>,
    /// Whether processors may go above their nominal frequency.
    pub turbo: Option<bool>,
    /// Whether programs have their memory at random addresses.
    pub aslr: Option<bool>,
    /// Transparent huge pages: always, madvise or never.
    pub thp: Option<String>,
    /// Whether the kernel merges pages of the same content.
    pub ksm: Option<bool>,
    /// Whether the kernel moves pages between nodes.
    pub numa_balancing: Option<bool>,
    /// The scheduling class of programs.
    #[serde(with = "as_text")]
    pub scheduling: Option<Scheduling>,
    /// Where programs may run.
    #[serde(with = "as_text")]
    pub cpus: Option<Cpus>,
    /// Whether each execution has an environment of another size, because that moves
    /// its stack.
    pub random_environment: bool,
}

impl Machine {
    /// What keeps the machine from changing by itself: the governor `performance`, and
    /// neither turbo, nor merging, nor moving of pages. Addresses, huge pages, classes and
    /// pinning are the user's choice.
    #[must_use]
    pub fn quiet() -> Machine {
        Machine {
            governor: Some("performance".into()),
            turbo: Some(false),
            ksm: Some(false),
            numa_balancing: Some(false),
            ..Machine::default()
        }
    }

    /// This, with what `other` has where this has nothing.
    #[must_use]
    pub fn or(self, other: Machine) -> Machine {
        Machine {
            governor: self.governor.or(other.governor),
            turbo: self.turbo.or(other.turbo),
            aslr: self.aslr.or(other.aslr),
            thp: self.thp.or(other.thp),
            ksm: self.ksm.or(other.ksm),
            numa_balancing: self.numa_balancing.or(other.numa_balancing),
            scheduling: self.scheduling.or(other.scheduling),
            cpus: self.cpus.or(other.cpus),
            random_environment: self.random_environment || other.random_environment,
        }
    }
}

/// A benchmark under a variant.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// What.
    pub benchmark: &'a Benchmark,
    /// How.
    pub variant: &'a Variant,
}

impl Pair<'_> {
    /// What runs. An experiment that was checked has it.
    #[must_use]
    pub fn command(&self) -> Option<&Command> {
        let own = self.variant.command.as_ref();
        own.or(self.benchmark.command.as_ref())
    }

    /// A command that runs besides.
    #[must_use]
    pub fn besides(&self, of: impl Fn(&Besides) -> &Option<String>) -> Option<&str> {
        let own = of(&self.variant.besides).as_deref();
        own.or(of(&self.benchmark.besides).as_deref())
    }
}

impl Default for Experiment {
    fn default() -> Experiment {
        Experiment {
            title: String::new(),
            seed: 1,
            executions: 10,
            at_least: None,
            warmup: 0,
            measurements: None,
            discard: 0,
            precision: None,
            timeout: None,
            ignore_failure: Ignored::default(),
            metrics: BTreeMap::new(),
            machine: Machine::default(),
            benchmarks: Vec::new(),
            variants: Vec::new(),
        }
    }
}

impl Experiment {
    /// All pairs, in the order of the benchmarks.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair<'_>> {
        let of = |benchmark| {
            let variants = self.variants.iter();
            variants.map(move |variant| Pair { benchmark, variant })
        };
        let wanted = |pair: &Pair| match &pair.benchmark.variants {
            Some(names) => names.contains(&pair.variant.name),
            None => true,
        };
        self.benchmarks.iter().flat_map(of).filter(wanted).collect()
    }

    /// What is wrong with it, where a single line of a file is not to blame.
    ///
    /// # Errors
    /// A line that says what, and what to do.
    pub fn check(&self) -> Result<(), String> {
        if self.executions == 0 {
            return Err("executions: 0 make no result; give at least 1".into());
        }
        unique("benchmark", self.benchmarks.iter().map(|b| &*b.name))?;
        unique("variant", self.variants.iter().map(|v| &*v.name))?;
        for benchmark in &self.benchmarks {
            let known = |name: &&String| !self.variants.iter().any(|v| v.name == **name);
            if let Some(name) = benchmark.variants.iter().flatten().find(known) {
                let of = &benchmark.name;
                return Err(format!("variants of benchmark `{of}`: no variant `{name}`"));
            }
        }
        for pair in self.pairs() {
            if pair.command().is_none() {
                let (of, under) = (&pair.benchmark.name, &pair.variant.name);
                return Err(format!(
                    "benchmark `{of}` has no command under variant `{under}`; add `command`"
                ));
            }
        }
        match (self.pairs().is_empty(), self.measurements) {
            (true, _) => Err("there is nothing to execute; add a [[benchmark]]".into()),
            (_, Some(all)) if all <= self.discard => Err(format!(
                "discard: of {all} measurements none is left; discard fewer"
            )),
            _ => Ok(()),
        }
    }

    /// Whether results of this and of `other` belong together: all but how often, how
    /// long and how precise is the same.
    #[must_use]
    pub fn continues(&self, other: &Experiment) -> bool {
        let bare = |experiment: &Experiment| {
            let mut bare = Experiment {
                title: String::new(),
                executions: 0,
                at_least: None,
                precision: None,
                timeout: None,
                ..experiment.clone()
            };
            bare.benchmarks.iter_mut().for_each(|b| b.timeout = None);
            bare
        };
        bare(self) == bare(other)
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = Vec::new();
    for name in names {
        if seen.contains(&name) {
            return Err(format!("two {what}s are called `{name}`; rename one"));
        }
        seen.push(name);
    }
    Ok(())
}

/// Values as the text that people write.
mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        let value = text.map(|text| text.parse());
        value.transpose().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Experiment {
        let variant = |name: &str| Variant {
            name: name.into(),
            cpus: Some("0-1".parse().unwrap()),
            scheduling: Some(Scheduling::Fifo(3)),
            ..Variant::default()
        };
        Experiment {
            benchmarks: vec![Benchmark {
                name: "b".into(),
                command: Some(Command::Text("true".into())),
                ..Benchmark::default()
            }],
            variants: vec![variant("x"), variant("y")],
            ..Experiment::default()
        }
    }

    #[test]
    fn it_is_kept_as_it_is() {
        let text = serde_json::to_string(&two()).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&text).unwrap(), two());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(two().check(), Ok(()));
        let refused = |change: fn(&mut Experiment)| {
            let mut experiment = two();
            change(&mut experiment);
            experiment.check().unwrap_err()
        };
        assert!(refused(|e| e.executions = 0).contains("executions"));
        assert!(refused(|e| e.variants.clear()).contains("nothing"));
        assert!(refused(|e| e.variants[1].name = "x".into()).contains("`x`"));
        assert!(refused(|e| e.benchmarks[0].command = None).contains("command"));
        assert!(refused(|e| e.benchmarks[0].variants = Some(vec!["z".into()])).contains("`z`"));
        assert!(refused(|e| (e.measurements, e.discard) = (Some(2), 2)).contains("discard"));
    }

    #[test]
    fn exit_statuses_are_ignored_that_were_named() {
        let of = |text: &str| text.parse::<Ignored>();
        let all = of("all-non-zero").unwrap();
        assert!(all.holds(0) && all.holds(7));
        let some = of("1, 7").unwrap();
        assert!(some.holds(0) && some.holds(7) && !some.holds(2));
        assert!(!Ignored::default().holds(1) && of("x").is_err());
        let kept = serde_json::to_string(&[all, some]).unwrap();
        assert_eq!(kept, "[true,[1,7]]");
    }

    #[test]
    fn more_executions_continue_and_another_command_does_not() {
        let mut more = two();
        (more.executions, more.precision) = (99, Some(0.01));
        assert!(more.continues(&two()));
        more.benchmarks[0].command = Some(Command::Text("false".into()));
        assert!(!more.continues(&two()));
    }
}

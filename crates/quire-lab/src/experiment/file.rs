//! The file of an experiment (TOML).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use quire_core::config::Policy;
use quire_core::frames::spec::StrategySpec;
use quire_core::located::{self, Wrong};
use serde::Deserialize;
use toml::Spanned;

use super::{
    Benchmark, Besides, Command, Experiment, Ignored, Machine, Measure, Output, Shell, Variant,
};
use crate::protocol::{self, Pattern};
use crate::run::{Better, Metric, TIME};

/// A file that could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read, or says something that is not understood.
    #[error(transparent)]
    File(#[from] located::FileError),
    /// Its parts do not fit together.
    #[error("{}: {message}", path.display())]
    Whole {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: Option<String>,
    seed: Option<u64>,
    executions: Option<u64>,
    warmup: Option<u64>,
    measurements: Option<u64>,
    discard: Option<u64>,
    precision: Option<Spanned<String>>,
    timeout: Option<Spanned<f64>>,
    ignore_failure: Option<Ignored>,
    shell: Option<String>,
    measure: Option<FileMeasure>,
    #[serde(default)]
    metrics: BTreeMap<String, FileMetric>,
    machine: Option<FileMachine>,
    #[serde(default)]
    benchmark: Vec<FileBenchmark>,
    #[serde(default)]
    variant: Vec<FileVariant>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMetric {
    unit: Option<Spanned<String>>,
    better: Option<Better>,
    primary: Option<bool>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMeasure {
    from: Option<Spanned<String>>,
    regex: Option<Spanned<String>>,
    metric: Option<String>,
    unit: Option<String>,
    better: Option<Better>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMachine {
    #[serde(default)]
    quiet: bool,
    governor: Option<String>,
    turbo: Option<bool>,
    aslr: Option<bool>,
    thp: Option<Spanned<String>>,
    ksm: Option<bool>,
    numa_balancing: Option<bool>,
    scheduling: Option<Spanned<String>>,
    cpus: Option<Spanned<String>>,
    #[serde(default)]
    random_environment: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBenchmark {
    name: String,
    command: Option<Command>,
    shell: Option<String>,
    directory: Option<PathBuf>,
    input: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    measure: Option<FileMeasure>,
    timeout: Option<Spanned<f64>>,
    variants: Option<Vec<String>>,
    setup: Option<String>,
    prepare: Option<String>,
    conclude: Option<String>,
    cleanup: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileVariant {
    name: String,
    command: Option<Command>,
    prepare: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    policy: Option<Spanned<String>>,
    frames: Option<Spanned<String>>,
    #[serde(default)]
    run: Vec<String>,
    scheduling: Option<Spanned<String>>,
    cpus: Option<Spanned<String>>,
    aslr: Option<bool>,
    nice: Option<Spanned<i32>>,
}

/// Reads the experiment of a file. Paths in it are relative to its directory.
///
/// # Errors
/// When it cannot be read, or says something that is not understood: the message names
/// the line and the key.
pub fn read(path: &Path) -> Result<Experiment, FileError> {
    let text = fs::read_to_string(path).map_err(located::FileError::unread(path))?;
    let located = |wrong: Wrong| located::FileError::from(wrong.in_file(path, &text));
    let mut experiment = parse(&text).map_err(located)?;
    let whole = |message| FileError::Whole {
        path: path.to_owned(),
        message,
    };
    if experiment.title.is_empty() {
        let stem = path.file_stem().unwrap_or_default();
        experiment.title = stem.to_string_lossy().into_owned();
    }
    let base = path.parent().filter(|base| *base != Path::new(""));
    for benchmark in &mut experiment.benchmarks {
        let benchmark = (&mut benchmark.directory, &mut benchmark.input);
        for relative in [benchmark.0, benchmark.1].into_iter().flatten() {
            *relative = base.map_or(relative.clone(), |base| base.join(&relative));
        }
    }
    experiment.check().map_err(whole)?;
    Ok(experiment)
}

fn parse(text: &str) -> Result<Experiment, Wrong> {
    let file: File = toml::from_str(text)
        .map_err(|error| Wrong::new(error.span().unwrap_or(0..0), error.message()))?;
    let default = Experiment::default();
    let shell: Shell = file.shell.map(Shell::from).unwrap_or_default();
    let shared = file.measure;
    // It is at fault also where no benchmark follows it.
    shared.clone().map(measure).transpose()?;
    let metrics = file.metrics.into_iter();
    let metrics = metrics.map(|(name, of)| Ok((name, metric(of)?)));
    let benchmarks = file.benchmark.into_iter();
    let benchmarks = benchmarks.map(|of| benchmark(of, &shell, shared.as_ref()));
    let variants = file.variant.into_iter().map(variant);
    let mut variants: Vec<Variant> = variants.collect::<Result<_, _>>()?;
    if variants.is_empty() {
        let name = "default".into();
        variants.push(Variant {
            name,
            ..Variant::default()
        });
    }
    Ok(Experiment {
        at_least: None,
        title: file.title.unwrap_or_default(),
        seed: file.seed.unwrap_or(default.seed),
        executions: file.executions.unwrap_or(default.executions),
        warmup: file.warmup.unwrap_or(default.warmup),
        measurements: file.measurements,
        discard: file.discard.unwrap_or(default.discard),
        precision: file.precision.map(precision).transpose()?,
        timeout: file.timeout.map(timeout).transpose()?,
        ignore_failure: file.ignore_failure.unwrap_or_default(),
        metrics: metrics.collect::<Result<_, Wrong>>()?,
        machine: file.machine.map(machine).transpose()?.unwrap_or_default(),
        benchmarks: benchmarks.collect::<Result<_, _>>()?,
        variants,
    })
}

fn metric(file: FileMetric) -> Result<Metric, Wrong> {
    let unit = file.unit.as_ref().map_or("", |unit| unit.get_ref());
    let kept_in = protocol::kept_in(unit);
    if let Some(written) = file.unit.as_ref().filter(|_| kept_in != unit) {
        let message = format!("write {kept_in}: what is reported in {unit} is kept in {kept_in}");
        return Err(Wrong::new(written.span(), message));
    }
    Ok(Metric {
        unit: unit.into(),
        better: file.better.unwrap_or_else(|| protocol::better_of(unit)),
        primary: file.primary.unwrap_or(true),
    })
}

fn benchmark(
    file: FileBenchmark,
    shell: &Shell,
    shared: Option<&FileMeasure>,
) -> Result<Benchmark, Wrong> {
    let own = file.measure.or_else(|| shared.cloned());
    Ok(Benchmark {
        output: Output::Null,
        name: file.name,
        command: file.command,
        shell: file.shell.map_or_else(|| shell.clone(), Shell::from),
        directory: file.directory,
        input: file.input,
        env: file.env,
        measure: own.map(measure).transpose()?.unwrap_or_default(),
        timeout: file.timeout.map(timeout).transpose()?,
        variants: file.variants,
        besides: Besides {
            setup: file.setup,
            prepare: file.prepare,
            conclude: file.conclude,
            cleanup: file.cleanup,
        },
    })
}

fn variant(file: FileVariant) -> Result<Variant, Wrong> {
    read_as::<Policy>(file.policy.clone())?;
    read_as::<StrategySpec>(file.frames.clone())?;
    if let Some(nice) = &file.nice
        && !(-20..=19).contains(nice.get_ref())
    {
        return Err(Wrong::new(nice.span(), "a nice level is from -20 to 19"));
    }
    Ok(Variant {
        besides: Besides::default(),
        output: None,
        parameters: BTreeMap::new(),
        name: file.name,
        command: file.command,
        prepare: file.prepare,
        env: file.env,
        policy: file.policy.map(Spanned::into_inner),
        frames: file.frames.map(Spanned::into_inner),
        run: file.run,
        scheduling: read_as(file.scheduling)?,
        cpus: read_as(file.cpus)?,
        aslr: file.aslr,
        nice: file.nice.map(Spanned::into_inner),
    })
}

fn machine(file: FileMachine) -> Result<Machine, Wrong> {
    if let Some(thp) = &file.thp
        && !["always", "madvise", "never"].contains(&thp.get_ref().as_str())
    {
        return Err(Wrong::new(thp.span(), "write always, madvise or never"));
    }
    let own = Machine {
        governor: file.governor,
        turbo: file.turbo,
        aslr: file.aslr,
        thp: file.thp.map(Spanned::into_inner),
        ksm: file.ksm,
        numa_balancing: file.numa_balancing,
        scheduling: read_as(file.scheduling)?,
        cpus: read_as(file.cpus)?,
        random_environment: file.random_environment,
    };
    Ok(match file.quiet {
        true => own.or(Machine::quiet()),
        false => own,
    })
}

fn measure(file: FileMeasure) -> Result<Measure, Wrong> {
    let Some(regex) = file.regex else {
        let Some(from) = file.from else {
            return Ok(Measure::Descriptor);
        };
        return match from.get_ref().as_str() {
            "fd" => Ok(Measure::Descriptor),
            "stdout" => Ok(Measure::Output),
            _ => Err(Wrong::new(
                from.span(),
                "write fd or stdout, or give `regex`",
            )),
        };
    };
    let metric = file.metric.unwrap_or_else(|| TIME.into());
    let unit = file.unit.unwrap_or_else(|| match metric.as_str() {
        TIME => "s".into(),
        _ => String::new(),
    });
    let better = file.better.unwrap_or_else(|| protocol::better_of(&unit));
    let checked = Pattern::new(regex.get_ref(), &metric, &unit, better);
    checked.map_err(|why| Wrong::new(regex.span(), why))?;
    Ok(Measure::Pattern {
        regex: regex.into_inner(),
        metric,
        unit,
        better,
    })
}

fn precision(text: Spanned<String>) -> Result<f64, Wrong> {
    share(text.get_ref()).map_err(|why| Wrong::new(text.span(), why))
}

/// A share of one, written as `1%` or `0.01`.
///
/// # Errors
/// What to write.
pub fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    let share = number.parse().ok().map(|number: f64| number / scale);
    let share = share.filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| format!("`{text}` is no share; write one such as 1% or 0.01"))
}

fn timeout(seconds: Spanned<f64>) -> Result<f64, Wrong> {
    let is_time = (0.001..=1e7).contains(seconds.get_ref());
    let wrong = || Wrong::new(seconds.span(), "write a number of seconds above 0");
    is_time.then_some(*seconds.get_ref()).ok_or_else(wrong)
}

fn read_as<T>(text: Option<Spanned<String>>) -> Result<Option<T>, Wrong>
where
    T: FromStr<Err: Display>,
{
    text.map(|text| located::parse(text.get_ref(), text.span()))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
title = "allocators"
executions = 20
measurements = 50
discard = 5
precision = "1%"
timeout = 60
[measure]
regex = 'took (\d+) ms'
unit = "ms"
[metrics.rate]
unit = "1/s"
better = "higher"
primary = true
[machine]
quiet = true
turbo = true
cpus = "1"
[[benchmark]]
name = "fft"
command = "./fft 1024"
[[benchmark]]
name = "lu"
command = ["./lu", "a b"]
measure = { from = "stdout" }
variants = ["base"]
[[variant]]
name = "base"
policy = "base"
[[variant]]
name = "colour"
frames = "colour"
scheduling = "fifo:50"
aslr = false
nice = -5
env = { MALLOC_ARENA_MAX = "1" }
"#;

    #[test]
    fn a_whole_file_is_understood() {
        let experiment = parse(WHOLE).ok().unwrap();
        assert_eq!(experiment.check(), Ok(()));
        let pairs = experiment.pairs();
        let names = pairs.iter().map(|p| (&*p.benchmark.name, &*p.variant.name));
        let names: Vec<_> = names.collect();
        assert_eq!(names, [("fft", "base"), ("fft", "colour"), ("lu", "base")]);
        assert_eq!(experiment.precision, Some(0.01));
        assert_eq!(experiment.machine.turbo, Some(true));
        assert_eq!(experiment.machine.ksm, Some(false));
        assert!(
            matches!(&experiment.benchmarks[0].measure, Measure::Pattern { metric, .. } if metric == TIME)
        );
        assert_eq!(experiment.benchmarks[1].measure, Measure::Output);
        assert_eq!(experiment.variants[1].aslr, Some(false));
    }

    /// The line and the message for a file that is wrong.
    fn refused(text: &str) -> (usize, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.toml");
        fs::write(&path, text).unwrap();
        match read(&path).unwrap_err() {
            FileError::File(located::FileError::Content(wrong)) => (wrong.line, wrong.message),
            FileError::Whole { message, .. } => (0, message),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_key() {
        let cases = [
            ("title = \"a\"\nexecution = 3\n", 2, "`execution`"),
            ("\nexecutions = \"many\"\n", 2, "executions"),
            ("executions = -1\n", 1, "executions"),
            ("precision = \"200%\"\n", 1, "precision"),
            ("timeout = 0\n", 1, "timeout"),
            ("[[benchmark]]\ncommand = \"a\"\n", 1, "name"),
            ("[[benchmark]]\nname = \"a\"\ncommand = 3\n", 3, "command"),
            (
                "[[benchmark]]\nname = \"a\"\ncommand = \"b\"\nfoo = 1\n",
                4,
                "`foo`",
            ),
            ("[measure]\nfrom = \"stderr\"\n", 2, "from"),
            (
                "[measure]\nregex = \"a(b\"\n[[benchmark]]\nname=\"a\"\n",
                2,
                "regex",
            ),
            ("[[variant]]\nname = \"a\"\npolicy = \"huge\"\n", 3, "huge"),
            (
                "[[variant]]\nname = \"a\"\nscheduling = \"fifo:99\"\n",
                3,
                "scheduling",
            ),
            ("[[variant]]\nname = \"a\"\ncpus = \"x\"\n", 3, "cpus"),
            ("[[variant]]\nname = \"a\"\nnice = 40\n", 3, "nice"),
            ("[machine]\nthp = \"yes\"\n", 2, "thp"),
            ("[machine]\nturbo = 1\n", 2, "turbo"),
            ("[[benchmark]]\nname = \"a\"\n", 0, "command"),
            ("[metrics.t]\nunit = \"ms\"\n", 2, "write s"),
            ("title = \"a\"\n", 0, "[[benchmark]]"),
            ("title = \n", 1, "title"),
        ];
        for (text, line, word) in cases {
            let (found, message) = refused(text);
            assert_eq!(found, line, "{text}: {message}");
            assert!(message.contains(word), "{text}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn shares_are_read() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.5 %"), Ok(0.005));
        assert_eq!(share("0.03"), Ok(0.03));
        for wrong in ["", "%", "0", "100%", "-1%", "nan", "1 %%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}

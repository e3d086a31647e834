//! What is started for a pair of benchmark and variant.

use std::ffi::OsString;
use std::time::Duration;

use quire_linux::execution::Settings;
use quire_stats::random::SplitMix64;

use super::Tools;
use super::execute::{Job, Undone, execute};
use super::interrupt::Interrupt;
use crate::experiment::{Command, Experiment, Ignored, Measure, Output, Pair, Shell, words};
use crate::protocol::{ENV_MEASUREMENTS, Pattern, Reader};

/// A program of a real-time class is stopped after this many seconds, where no other time
/// is given: it might keep the machine from doing anything else.
const REALTIME_LIMIT: f64 = 60.0;
/// The variable that says which execution it is; scripts for hyperfine know it by this name.
const ITERATION: &str = "HYPERFINE_ITERATION";
/// The variable that makes environments differ in size.
const PADDING: &str = "QUIRE_BENCH_PADDING";

/// The job of a pair.
pub(super) fn job(experiment: &Experiment, pair: &Pair, tools: &Tools) -> Result<Job, String> {
    let Pair { benchmark, variant } = pair;
    let machine = &experiment.machine;
    let scheduling = variant.scheduling.or(machine.scheduling);
    let realtime = scheduling.and_then(|class| class.realtime_priority());
    let timeout = benchmark.timeout.or(experiment.timeout);
    let timeout = timeout.or(realtime.map(|_| REALTIME_LIMIT));
    let timeout = timeout.map(Duration::from_secs_f64);
    let mut env = benchmark.env.clone();
    env.extend(variant.env.clone());
    if let Some(wanted) = experiment.measurements {
        env.insert(ENV_MEASUREMENTS.into(), wanted.to_string());
    }
    let (words, shell) = words_of(pair)?;
    Ok(Job {
        words: under_quire(pair, tools, words),
        // Under quire the shell takes longer, and what it takes is a part of what is measured.
        shell: shell.filter(|_| !variant.is_managed()),
        env,
        directory: benchmark.directory.clone(),
        input: benchmark.input.clone(),
        settings: Settings {
            scheduling,
            cpus: variant.cpus.clone().or(machine.cpus.clone()),
            nice: variant.nice,
            aslr: variant.aslr,
            realtime_limit: timeout.filter(|_| realtime.is_some()),
        },
        timeout,
        to: variant.output.as_ref().unwrap_or(&benchmark.output).clone(),
        output: reader(&benchmark.measure)?,
        ignore_failure: experiment.ignore_failure.clone(),
        ends_all: true,
    })
}

fn reader(measure: &Measure) -> Result<Option<Reader>, String> {
    Ok(match measure {
        Measure::Descriptor => None,
        Measure::Output => Some(Reader::Output),
        Measure::Pattern {
            regex,
            metric,
            unit,
            better,
        } => {
            let pattern = Pattern::new(regex, metric, unit, *better);
            let pattern = pattern.map_err(|why| format!("regex `{regex}`: {why}"))?;
            Some(Reader::Pattern(Box::new(pattern)))
        }
    })
}

/// The words that the command of a pair is started with, and those of its shell, if it has one.
fn words_of(pair: &Pair) -> Result<(Vec<OsString>, Option<Vec<OsString>>), String> {
    let list: (Vec<String>, Option<Vec<String>>) = match (pair.command(), &pair.benchmark.shell) {
        (None, _) => {
            return Err(format!(
                "benchmark `{}` has no command",
                pair.benchmark.name
            ));
        }
        (Some(Command::Words(words)), _) => (words.clone(), None),
        (Some(Command::Text(text)), Shell::Program(shell)) => with_shell(shell, text)?,
        (Some(Command::Text(text)), Shell::None) => {
            let words = words::split(text).ok_or_else(|| {
                format!("`{text}` takes a shell to understand; leave `--shell none` out")
            })?;
            (words, None)
        }
        (Some(Command::Text(text)), Shell::Auto) => match words::split(text) {
            Some(words) if is_program(&words[0]) => (words, None),
            _ => with_shell("sh", text)?,
        },
    };
    let (words, shell) = list;
    let os = |words: Vec<String>| words.into_iter().map(OsString::from).collect();
    match words.first().is_some_and(|program| !program.is_empty()) {
        true => Ok((os(words), shell.map(os))),
        false => Err(format!("the command of `{}` is empty", pair.benchmark.name)),
    }
}

/// The words that a shell is started with for a text, and those of the shell itself.
fn with_shell(shell: &str, text: &str) -> Result<(Vec<String>, Option<Vec<String>>), String> {
    let shell = words::split(shell).ok_or(format!("`{shell}` is no shell"))?;
    let rest = ["-c", text].map(String::from);
    let words = shell.iter().cloned().chain(rest).collect();
    Ok((words, Some(shell)))
}

/// Whether there is a program of this name. What is none may be a word that a shell
/// understands.
fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    name.contains('/') || std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

/// Words that run others under quire, where the variant says so.
fn under_quire(pair: &Pair, tools: &Tools, words: Vec<OsString>) -> Vec<OsString> {
    let variant = pair.variant;
    if !variant.is_managed() {
        return words;
    }
    let mut all = vec![
        tools.quire.clone().into_os_string(),
        "run".into(),
        "--quiet".into(),
    ];
    let options = [("--policy", &variant.policy), ("--frames", &variant.frames)];
    for (option, value) in options {
        if let Some(value) = value {
            all.extend([option.into(), value.into()]);
        }
    }
    all.extend(variant.run.iter().map(OsString::from));
    all.push("--".into());
    all.extend(words);
    all
}

/// A job that is told which execution it is, as hyperfine tells: by its number, from 0 on.
pub(super) fn numbered(job: &Job, number: &str) -> Job {
    let mut job = job.clone();
    job.env.insert(ITERATION.into(), number.into());
    job
}

/// A job with an environment of another size, up to a page more.
pub(super) fn padded(job: &Job, seed: u64, order: u64) -> Job {
    let mut random = SplitMix64::new(seed ^ order.wrapping_mul(0xa24b_aed4_963e_e407));
    let mut job = job.clone();
    let padding = "x".repeat(random.below(4096));
    job.env.insert(PADDING.into(), padding);
    job
}

/// Finds out whether the settings of jobs can be set here.
pub(super) fn check(jobs: &[Job], interrupt: &Interrupt) -> Result<(), String> {
    let mut known: Vec<&Settings> = Vec::new();
    for job in jobs {
        if known.contains(&&job.settings) {
            continue;
        }
        known.push(&job.settings);
        for (settings, what, remedy) in each(&job.settings) {
            let probe = Job {
                words: vec!["true".into()],
                shell: None,
                to: Output::Null,
                env: job.env.clone(),
                directory: None,
                input: None,
                settings,
                timeout: None,
                output: None,
                ignore_failure: Ignored::All(true),
                ends_all: true,
            };
            if let Err(Some(why)) = execute(&probe, interrupt).map_err(Undone::reason) {
                let why = why.rsplit(": ").next().unwrap_or_default();
                return Err(format!("{what} is refused: {why}; {remedy}"));
            }
        }
    }
    Ok(())
}

/// Each of the settings alone, its name, and what helps where it is refused.
fn each(all: &Settings) -> Vec<(Settings, String, &'static str)> {
    let none = Settings::default;
    let mut list = Vec::new();
    if let Some(class) = all.scheduling {
        let settings = Settings {
            scheduling: all.scheduling,
            ..none()
        };
        let remedy = "run as root, or raise RLIMIT_RTPRIO (`ulimit -r`)";
        list.push((settings, format!("scheduling class {class}"), remedy));
    }
    if let Some(cpus) = &all.cpus {
        let settings = Settings {
            cpus: all.cpus.clone(),
            ..none()
        };
        let remedy = "name processors that this process may use (see `nproc` and `taskset -p $$`)";
        list.push((settings, format!("pinning to processors {cpus}"), remedy));
    }
    if let Some(nice) = all.nice {
        let settings = Settings {
            nice: all.nice,
            ..none()
        };
        let remedy = "run as root, or choose a nice level above that of your shell";
        list.push((settings, format!("nice level {nice}"), remedy));
    }
    if all.aslr.is_some() {
        let settings = Settings {
            aslr: all.aslr,
            ..none()
        };
        let remedy = "a filter of the container forbids `personality`; allow it";
        list.push((settings, "the choice of ASLR".into(), remedy));
    }
    list
}

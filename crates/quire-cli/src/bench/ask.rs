//! Makes the experiment of a command line.

use std::path::{Path, PathBuf};

use quire_lab::experiment::{
    Benchmark, Besides, Command, Experiment, Machine, Measure, Output, Shell, Variant, file,
};
use quire_lab::protocol::better_of;
use quire_lab::run::{Run, TIME};

use super::parameters::{self, Parameters};
use crate::args::{BenchArgs, From};
use crate::failure::{Failure, Outcome};

/// What is asked for.
pub struct Asked {
    /// What to run.
    pub experiment: Experiment,
    /// Where to keep what comes of it.
    pub file: Option<PathBuf>,
}

/// Executions of a command where nothing says how many: enough for an interval. With a
/// wanted precision there may be more.
const EXECUTIONS: u64 = 10;
const MOST_EXECUTIONS: u64 = 1000;

/// The experiment that the arguments ask for.
pub fn asked(options: &BenchArgs) -> Outcome<Asked> {
    if let Some(path) = options.resume.as_ref().filter(|path| !path.exists()) {
        let path = path.display();
        return Err(Failure::bad_usage(format!(
            "cannot resume {path}: there is no such file; use --save to begin one"
        )));
    }
    let (mut experiment, file) = match (&options.file, &options.resume) {
        (Some(path), _) => of_file(path, options)?,
        (None, Some(path)) if options.commands.is_empty() => {
            (of_results(path)?, Some(path.clone()))
        }
        _ => (of_commands(options)?, options.save.clone()),
    };
    let file = options.resume.clone().or(file);
    override_by(&mut experiment, options);
    experiment.check().map_err(Failure::bad_usage)?;
    Ok(Asked { experiment, file })
}

fn of_file(path: &Path, options: &BenchArgs) -> Outcome<(Experiment, Option<PathBuf>)> {
    if !options.commands.is_empty() {
        return Err(Failure::bad_usage(
            "give commands or --file, not both; a file has commands of its own",
        ));
    }
    let experiment = file::read(path).map_err(|error| Failure::bad_usage(error.to_string()))?;
    let stem = path.file_stem().unwrap_or_default();
    let beside = PathBuf::from(stem).with_extension("jsonl");
    Ok((experiment, Some(options.save.clone().unwrap_or(beside))))
}

fn of_results(path: &Path) -> Outcome<Experiment> {
    let run = Run::read(path).map_err(|error| Failure::bad_usage(error.to_string()))?;
    serde_json::from_value(run.header.experiment).map_err(|_| {
        let path = path.display();
        Failure::bad_usage(format!(
            "cannot resume {path}: it holds no experiment of `quire bench`"
        ))
    })
}

/// The commands are the variants of one benchmark.
fn of_commands(options: &BenchArgs) -> Outcome<Experiment> {
    if options.commands.is_empty() {
        return Err(Failure::bad_usage(
            "nothing to run; give commands, such as quire bench 'sleep 0.1' 'sleep 0.2', or --file",
        ));
    }
    let all = parameters::all(options)?;
    let count = options.commands.len() * all.len();
    fits("--command-name", options.command_name.len(), count)?;
    if options.prepare.len() > 1 {
        fits("--prepare", options.prepare.len(), options.commands.len())?;
        if options.prepare.len() != options.commands.len() {
            return Err(Failure::bad_usage(
                "give --prepare once, or once for each command",
            ));
        }
    }
    let shell = match options.no_shell {
        true => Shell::None,
        false => Shell::from(options.shell.clone()),
    };
    let input = options.input.clone();
    let limit = match (options.precision, options.min_runs) {
        (None, None) if options.max_runs.is_none() => EXECUTIONS,
        _ => MOST_EXECUTIONS,
    };
    let least = options
        .min_runs
        .or(options.max_runs.map(|most| most.min(EXECUTIONS)));
    Ok(Experiment {
        title: "commands".into(),
        benchmarks: vec![Benchmark {
            name: "commands".into(),
            shell,
            input: input.filter(|path| path.as_os_str() != "null"),
            output: output(options)?,
            measure: measure(options),
            ..Benchmark::default()
        }],
        executions: options
            .max_runs
            .unwrap_or(limit.max(options.min_runs.unwrap_or(0))),
        at_least: least.filter(|_| options.precision.is_none()),
        variants: variants(options, &all),
        ..Experiment::default()
    })
}

/// Where what commands print goes.
fn output(options: &BenchArgs) -> Outcome<Output> {
    match options.output.as_deref() {
        None if options.show_output => Ok(Output::Inherit),
        None | Some("null") => Ok(Output::Null),
        Some("pipe") => Ok(Output::Pipe),
        Some("inherit") => Ok(Output::Inherit),
        Some(path) if path.ends_with(".jsonl") => Err(Failure::bad_usage(format!(
            "--output {path}: that is where commands print to; results are kept with --save"
        ))),
        Some(path) => Ok(Output::File(path.into())),
    }
}

/// The commands with each of these parameters, the one to compare with first.
fn variants(options: &BenchArgs, all: &[Parameters]) -> Vec<Variant> {
    let each = all.iter().flat_map(|values| {
        let commands = options.commands.iter().enumerate();
        commands.map(move |(n, command)| variant(options, (n, command), values))
    });
    let mut variants: Vec<Variant> = each.collect();
    for (variant, name) in variants.iter_mut().zip(&options.command_name) {
        variant.name = parameters::put(name, &variant.parameters);
    }
    if let Some(reference) = &options.reference {
        let is_it = |variant: &Variant| {
            let command =
                matches!(&variant.command, Some(Command::Text(text)) if text == reference);
            command || variant.name == *reference
        };
        let first = match variants.iter().position(is_it) {
            Some(at) => variants.remove(at),
            None => variant(options, (usize::MAX, reference), &Parameters::new()),
        };
        variants.insert(0, first);
    }
    // One that is given again, to see how much noise there is, has its number.
    for n in 0..variants.len() {
        let own = variants[n].name.clone();
        let before = variants[..n]
            .iter()
            .filter(|other| other.name == own || other.name.starts_with(&format!("{own} (")));
        if let count @ 1.. = before.count() {
            variants[n].name = format!("{own} ({})", count + 1);
        }
    }
    variants
}

/// A command with parameters.
fn variant(options: &BenchArgs, (n, command): (usize, &String), values: &Parameters) -> Variant {
    let put = |text: &String| parameters::put(text, values);
    let prepare = match options.prepare.len() {
        0 | 1 => options.prepare.first(),
        _ => options.prepare.get(n),
    };
    Variant {
        name: put(command),
        command: Some(Command::Text(put(command))),
        besides: Besides {
            setup: options.setup.as_ref().map(put),
            prepare: prepare.map(put),
            conclude: options.conclude.as_ref().map(put),
            cleanup: options.cleanup.as_ref().map(put),
        },
        parameters: values.clone(),
        ..Variant::default()
    }
}

fn fits(option: &str, given: usize, commands: usize) -> Outcome<()> {
    if given > commands {
        return Err(Failure::bad_usage(format!(
            "{option} is given {given} times for {commands} commands; give it once for each"
        )));
    }
    Ok(())
}

fn measure(options: &BenchArgs) -> Measure {
    measure_of(
        options.regex.as_deref(),
        options.metric.as_deref(),
        options.unit.as_deref(),
        options.from,
    )
}

/// Where measurements come from: a regular expression, which has a metric and a unit, or
/// the lines of the protocol.
pub(crate) fn measure_of(
    regex: Option<&str>,
    metric: Option<&str>,
    unit: Option<&str>,
    from: From,
) -> Measure {
    match (regex, from) {
        (Some(regex), _) => Measure::Pattern {
            regex: regex.into(),
            metric: metric.unwrap_or(TIME).into(),
            unit: unit.unwrap_or("s").into(),
            better: better_of(unit.unwrap_or("s")),
        },
        (None, From::Stdout) => Measure::Output,
        (None, From::Fd) => Measure::Descriptor,
    }
}

/// What is given on the command line counts before what a file says.
fn override_by(experiment: &mut Experiment, options: &BenchArgs) {
    let BenchArgs {
        runs,
        warmup,
        measurements,
        discard,
        seed,
        ..
    } = options;
    experiment.executions = runs.unwrap_or(experiment.executions);
    experiment.warmup = warmup.unwrap_or(experiment.warmup);
    experiment.measurements = measurements.or(experiment.measurements);
    experiment.discard = discard.unwrap_or(experiment.discard);
    experiment.seed = seed.unwrap_or(experiment.seed);
    experiment.precision = options.precision.or(experiment.precision);
    experiment.timeout = options.timeout.or(experiment.timeout);
    experiment.ignore_failure |= options.ignore_failure;
    let own = Machine {
        cpus: options.cpus.clone(),
        scheduling: options.scheduling,
        random_environment: options.random_environment,
        ..Machine::default()
    };
    let machine = own.or(std::mem::take(&mut experiment.machine));
    experiment.machine = super::quiet_machine(options.prepare_machine, machine);
    if let Some(aslr) = options.aslr {
        for variant in &mut experiment.variants {
            variant.aslr = variant.aslr.or(Some(aslr == crate::args::Switch::On));
        }
    }
}

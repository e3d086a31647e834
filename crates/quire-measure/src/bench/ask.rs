//! Makes the experiment of a command line.

use std::path::{Path, PathBuf};

use quire_lab::experiment::{
    Benchmark, Besides, Command, Experiment, Machine, Measure, Output, Shell, Variant, file,
};
use quire_lab::protocol::better_of;
use quire_lab::run::{Run, TIME};

use super::parameters::{self, Parameters};
use crate::args::{BenchArgs, From};
use crate::failure::{Failure, Outcome, called};

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
            "cannot resume {path}: it holds no experiment of `{} bench`",
            called()
        ))
    })
}

/// Refuses what would run nothing.
fn check_commands(options: &BenchArgs) -> Outcome<()> {
    if options.commands.is_empty() {
        return Err(Failure::bad_usage(format!(
            "nothing to run; give commands, such as {} bench 'sleep 0.1' 'sleep 0.2', or --file",
            called()
        )));
    }
    let mut given = options.commands.iter().chain(&options.reference);
    if given.any(|command| command.trim().is_empty()) {
        return Err(Failure::bad_usage(
            "a command is empty; give `:` for a shell that does nothing",
        ));
    }
    let is_missing = |path: &&PathBuf| path.as_os_str() != "null" && !path.exists();
    if let Some(path) = options.input.as_ref().filter(is_missing) {
        let path = path.display();
        return Err(Failure::bad_usage(format!(
            "--input {path}: there is no such file; give one that is there, or null"
        )));
    }
    let least = options.min_runs.unwrap_or(1);
    if least == 0 || options.max_runs.is_some_and(|most| most < least) {
        return Err(Failure::bad_usage(
            "--min-runs has to be at least 1, and at most --max-runs",
        ));
    }
    Ok(())
}

/// The commands are the variants of one benchmark.
fn of_commands(options: &BenchArgs) -> Outcome<Experiment> {
    check_commands(options)?;
    let all = parameters::all(options)?;
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
            output: match options.show_output {
                true => Output::Inherit,
                false => Output::Null,
            },
            measure: measure(options),
            ..Benchmark::default()
        }],
        executions: options
            .max_runs
            .unwrap_or(limit.max(options.min_runs.unwrap_or(0))),
        at_least: least.filter(|_| options.precision.is_none()),
        variants: variants(options, &all)?,
        ..Experiment::default()
    })
}

/// Where what a command prints goes, by what `--output` says.
fn output(said: &str) -> Outcome<Output> {
    match said {
        "null" => Ok(Output::Null),
        "pipe" => Ok(Output::Pipe),
        "inherit" => Ok(Output::Inherit),
        path if path.contains('/') => Ok(Output::File(path.into())),
        other => Err(Failure::bad_usage(format!(
            "--output {other}: write null, pipe, inherit, or ./{other} for a file that commands print to \
             (results are kept with --save)"
        ))),
    }
}

/// A command with parameters, and where it stands among the commands.
struct Wanted<'a> {
    command: &'a String,
    values: &'a Parameters,
    name: Option<&'a String>,
    /// Its number among the commands with their parameters, and among the commands alone.
    at: [usize; 2],
}

/// The commands with each of these parameters, the one to compare with first.
fn variants(options: &BenchArgs, all: &[Parameters]) -> Outcome<Vec<Variant>> {
    let none = Parameters::new();
    let is_other = |reference: &&String| {
        let mut known = options.commands.iter().chain(&options.command_name);
        !known.any(|one| one == *reference)
    };
    let other = options.reference.as_ref().filter(is_other);
    let first = usize::from(other.is_some());
    let count = options.commands.len();
    let names = &options.command_name;
    let mut asked: Vec<Wanted> = Vec::new();
    asked.extend(other.map(|command| Wanted {
        command,
        values: &none,
        name: options.reference_name.as_ref(),
        at: [0, 0],
    }));
    for (round, values) in all.iter().enumerate() {
        for (n, command) in options.commands.iter().enumerate() {
            let own = names.get(round * count + n);
            let is_reference = options.reference.as_ref() == Some(command);
            let named = options.reference_name.as_ref().filter(|_| is_reference);
            asked.push(Wanted {
                command,
                values,
                name: named.or(own).or(names.first().filter(|_| all.len() > 1)),
                at: [first + round * count + n, first + n],
            });
        }
    }
    check_names(names.len(), count, all.len())?;
    let counts = [asked.len(), first + count];
    let made = asked.iter().map(|one| variant(options, one, counts));
    let mut variants = made.collect::<Outcome<Vec<Variant>>>()?;
    if let Some(reference) = options.reference.as_ref().filter(|_| other.is_none()) {
        let is_it = |variant: &Variant| {
            let command =
                matches!(&variant.command, Some(Command::Text(text)) if text == reference);
            command || variant.name == *reference
        };
        if let Some(at) = variants.iter().position(is_it) {
            let first = variants.remove(at);
            variants.insert(0, first);
        }
    }
    number(&mut variants);
    Ok(variants)
}

/// A command that is given again, to see how much noise there is, has its number.
fn number(variants: &mut [Variant]) {
    for n in 0..variants.len() {
        let own = variants[n].name.clone();
        let before = variants[..n]
            .iter()
            .filter(|other| other.name == own || other.name.starts_with(&format!("{own} (")));
        if let count @ 1.. = before.count() {
            variants[n].name = format!("{own} ({})", count + 1);
        }
    }
}

fn variant(options: &BenchArgs, of: &Wanted, counts: [usize; 2]) -> Outcome<Variant> {
    let put = |text: &String| parameters::put(text, of.values);
    let prepare = of.own("--prepare", &options.prepare, counts)?;
    let conclude = of.own("--conclude", &options.conclude, counts)?;
    let output_of = of.own("--output", &options.output, counts)?;
    Ok(Variant {
        name: parameters::named(of.name.unwrap_or(of.command), of.command, of.values),
        command: Some(Command::Text(put(of.command))),
        besides: Besides {
            setup: options.setup.as_ref().map(put),
            prepare: prepare.map(put),
            conclude: conclude.map(put),
            cleanup: options.cleanup.as_ref().map(put),
        },
        output: output_of.map(|said| output(said)).transpose()?,
        parameters: of.values.clone(),
        ..Variant::default()
    })
}

impl Wanted<'_> {
    /// What an option says of it that is given once, once for each command, or once for each command
    /// with each of its parameters.
    fn own<'a>(
        &self,
        option: &str,
        given: &'a [String],
        counts: [usize; 2],
    ) -> Outcome<Option<&'a String>> {
        let at = match given.len() {
            0 | 1 => 0,
            len if len == counts[0] => self.at[0],
            len if len == counts[1] => self.at[1],
            len => {
                return Err(Failure::bad_usage(format!(
                    "{option} is given {len} times for {} commands; give it once, or once for each \
                     command",
                    counts[1]
                )));
            }
        };
        Ok(given.get(at))
    }
}

/// Names are for commands in their order; with parameters, one for all or one for each.
fn check_names(given: usize, commands: usize, parameters: usize) -> Outcome<()> {
    let all = commands * parameters;
    let is_good = match parameters {
        1 => given <= commands,
        _ => given <= 1 || given == all,
    };
    match is_good {
        true => Ok(()),
        false => Err(Failure::bad_usage(format!(
            "--command-name is given {given} times for {all} commands; give it once for each"
        ))),
    }
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
pub fn measure_of(
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
    if let Some(ignored) = &options.ignore_failure {
        experiment.ignore_failure = ignored.clone();
    }
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

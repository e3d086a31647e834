//! `quire tune`: tries policies and frame strategies on a program, and names the best, or
//! says that none differs.

mod field;
mod show;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quire_core::config::{Config, Malloc, Way};
use quire_lab::environment;
use quire_lab::experiment::{Benchmark, Besides, Command, Experiment, Ignored, Machine};
use quire_lab::prepare::{self, Places};
use quire_lab::run::Run;
use quire_lab::runner::{self, Interrupt, Over, Results, Tools};
use quire_lab::tune::candidate::Candidate;
use quire_lab::tune::guide::Pilot;
use quire_lab::tune::verdict::Outcome as Said;
use quire_lab::tune::{Goal, Plan, Rules, facts, words};
use quire_linux::sysinfo::signals;
use quire_measure::args::Style;

use crate::args::{TuneArgs, TuneGoal};
use crate::bench::progress::Bar;
use crate::bench::{ask, results_failure, runner_failure, tell_warnings};
use crate::failure::{Failure, Outcome};
use crate::run::library::Managers;
use crate::run::program::Program;

/// Executions of a candidate where nothing says how many. How much something varies takes
/// more of them to be known than its mean.
const EXECUTIONS: u64 = 20;
const EXECUTIONS_FOR_DETERMINISM: u64 = 30;

/// Tries what is to be tried and returns the exit status: 1 where nothing can be said.
/// Does not return where a signal ended it.
pub fn tune(options: &TuneArgs) -> Outcome<u8> {
    let program = Program::find(&options.command)?;
    let words = words_of(&options.command)?;
    let plan = plan(options)?;
    libraries(&plan)?;
    let experiment = plan.experiment(experiment(options, &program, &words)?);
    experiment.check().map_err(Failure::bad_usage)?;
    let interrupt = Interrupt::listen()
        .map_err(|error| Failure::system(format!("cannot listen for signals: {error}")))?;
    let mut results = match &options.save {
        Some(path) => Results::in_file(path).map_err(results_failure)?,
        None => Results::in_memory(),
    };
    if !results.is_new() {
        plan.resumes(results.run()).map_err(Failure::bad_usage)?;
    }
    let tools = tools(&program, &plan);
    if !options.quiet {
        tell_warnings(&tools.warnings);
    }
    let mut pilot = Pilot::new(&plan);
    let mut bar = Bar::new(options.quiet, Style::Auto);
    let over = runner::guided(
        &experiment,
        &tools,
        &mut results,
        &interrupt,
        &mut pilot,
        &mut bar,
    );
    bar.clear();
    let over = over.map_err(runner_failure)?;
    if let Over::Interrupted(signal) = over {
        tell_interruption(options, results.run());
        drop(results);
        signals::die_by(signal);
    }
    tell(options, &plan, &pilot, results.run(), &words)
}

/// The words of the program, as results keep them.
fn words_of(command: &[OsString]) -> Outcome<Vec<String>> {
    let text = |word: &OsString| {
        word.to_str().map(String::from).ok_or_else(|| {
            let word = word.to_string_lossy();
            Failure::bad_usage(format!(
                "{word} is not UTF-8, and results could not name it; call the program by a script"
            ))
        })
    };
    command.iter().map(text).collect()
}

fn plan(options: &TuneArgs) -> Outcome<Plan> {
    let goal = match options.goal {
        TuneGoal::Mean => Goal::Mean,
        TuneGoal::Determinism => Goal::Determinism,
    };
    let default = match goal {
        Goal::Mean => EXECUTIONS,
        Goal::Determinism => EXECUTIONS_FOR_DETERMINISM,
    };
    let field = field::of(options)?;
    let plan = Plan {
        rules: Rules {
            goal,
            threshold: options.threshold,
            tolerance: options.tolerance,
            executions: options.executions.unwrap_or(default),
        },
        metric: options.metric.clone(),
        time_limit: options.time_limit.map(Duration::from_secs_f64),
        candidates: field.candidates,
        left_out: field.left_out,
    };
    if let Err(why) = plan.check() {
        let left_out = plan.left_out.iter().map(|(c, why)| format!("; {c}: {why}"));
        return Err(Failure::bad_usage(why + &left_out.collect::<String>()));
    }
    Ok(plan)
}

/// Makes sure that the libraries are there which the candidates need.
fn libraries(plan: &Plan) -> Outcome<()> {
    let mut candidates = plan.candidates.iter().map(|(candidate, _)| candidate);
    candidates.try_for_each(|candidate| managers(candidate).map(drop))
}

/// The libraries for a candidate; nothing without quire.
fn managers(candidate: &Candidate) -> Outcome<Option<Managers>> {
    let Some(policy) = candidate.policy else {
        return Ok(None);
    };
    let config = Config {
        policy,
        ..Config::default()
    };
    let (way, malloc) = match &candidate.frames {
        Some(_) => (Way::Provide, Malloc::Jemalloc),
        None => (config.way(), Malloc::Libc),
    };
    Managers::find(way, malloc, policy, candidate.frames.is_some()).map(Some)
}

/// The program as an experiment, which the plan gives its parts and variants.
fn experiment(options: &TuneArgs, program: &Program, words: &[String]) -> Outcome<Experiment> {
    let directory = std::env::current_dir().map_err(|error| {
        Failure::system(format!("cannot find out the current directory: {error}"))
    })?;
    let name = Path::new(&program.name).file_name().unwrap_or_default();
    Ok(Experiment {
        seed: options.seed,
        warmup: options.warmup,
        measurements: options.measurements,
        discard: options.discard,
        timeout: options.timeout,
        ignore_failure: Ignored::All(options.ignore_failure),
        machine: Machine {
            cpus: options.cpus.clone(),
            ..Machine::default()
        },
        benchmarks: vec![Benchmark {
            name: name.to_string_lossy().into_owned(),
            command: Some(Command::Words(words.to_vec())),
            directory: Some(directory),
            input: options.input.clone(),
            measure: ask::measure_of(
                options.regex.as_deref(),
                options.metric.as_deref(),
                options.unit.as_deref(),
                options.from,
            ),
            besides: Besides {
                prepare: options.prepare.clone(),
                ..Besides::default()
            },
            ..Benchmark::default()
        }],
        ..Experiment::default()
    })
}

/// What is needed besides; the warnings name what is left out, too.
fn tools(program: &Program, plan: &Plan) -> Tools {
    let places = Places::default();
    let mut warnings = Vec::new();
    warnings.extend(program.unmanaged.map(|why| {
        let name = &program.name;
        format!("quire cannot manage {name}, which {why}: only programs that it starts can differ")
    }));
    let left_out = plan.left_out.iter();
    warnings.extend(left_out.map(|(candidate, why)| format!("{candidate} is left out: {why}")));
    warnings.extend(prepare::warnings(&Machine::default(), &places));
    warnings.extend(environment::warnings());
    Tools {
        quire: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("quire")),
        environment: environment::of_this_machine(&places),
        warnings,
    }
}

fn tell_interruption(options: &TuneArgs, run: &Run) {
    let made = run.executions.len();
    let resume = match &options.save {
        Some(_) => "; the same command goes on",
        None => "; with --save, it could go on",
    };
    if !options.quiet {
        // Where standard error is closed nobody is to be told.
        let _ = writeln!(
            io::stderr(),
            "quire: interrupted after {made} executions{resume}"
        );
    }
}

/// Prints what came of it.
fn tell(
    options: &TuneArgs,
    plan: &Plan,
    pilot: &Pilot,
    run: &Run,
    program: &[String],
) -> Outcome<u8> {
    let verdict = pilot.verdict(run);
    let metric = facts::metric(run, options.metric.as_deref()).unwrap_or_default();
    let mut stdout = io::stdout().lock();
    if options.json {
        let json = words::json(plan, &verdict, &metric, program);
        serde_json::to_writer_pretty(&mut stdout, &json)?;
        writeln!(stdout)?;
    } else if !options.quiet {
        let unit = run
            .header
            .metrics
            .get(&metric)
            .map_or("", |kind| &kind.unit);
        show::verdict(&mut stdout, plan, &verdict, (&metric, unit), program)?;
    }
    drop(stdout);
    let mut stderr = io::stderr().lock();
    if !options.quiet {
        if pilot.is_late() {
            writeln!(stderr, "quire: the time limit ended it early")?;
        }
        if let Some(path) = &options.save {
            let (made, path) = (run.executions.len(), path.display());
            writeln!(stderr, "quire: {made} executions; results in {path}")?;
        }
    }
    if let Said::Unknown(why) = &verdict.outcome {
        return Err(Failure::system(format!("nothing can be said: {why}")));
    }
    Ok(0)
}

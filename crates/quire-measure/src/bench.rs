//! `quire bench`: runs experiments, and says what came of them.

pub mod ask;
mod export;
mod parameters;
pub mod progress;
pub mod show;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use quire_lab::environment;
use quire_lab::experiment::{Experiment, Machine};
use quire_lab::prepare::{self, Places, PrepareError};
use quire_lab::run::Run;
use quire_lab::runner::{self, Interrupt, Over, Results, ResultsError, RunnerError, Tools};
use quire_linux::sysinfo::signals;

use crate::args::{BenchArgs, Order, Style};
use crate::failure::{Failure, Outcome, called};
use progress::Bar;

/// Runs what is asked for and returns the exit status: 1 where an execution failed.
/// Does not return where a signal ended it.
pub fn bench(options: &BenchArgs) -> Outcome<u8> {
    let places = places(options);
    if options.restore {
        return restore(&places);
    }
    let ask::Asked { experiment, file } = ask::asked(options)?;
    let exports = export::check(options)?;
    let interrupt = Interrupt::listen()
        .map_err(|error| Failure::system(format!("cannot listen for signals: {error}")))?;
    let mut results = match &file {
        Some(path) => Results::in_file(path).map_err(results_failure)?,
        None => Results::in_memory(),
    };
    let (prepared, mut warnings) =
        prepare::prepare(&experiment.machine, &places).map_err(|error| match error {
            PrepareError::Left(_) => Failure::system(error.to_string()),
            _ => Failure::bad_usage(error.to_string()),
        })?;
    warnings.extend(prepare::warnings(&experiment.machine, &places));
    warnings.extend(environment::warnings());
    let tools = Tools {
        quire: quire(),
        environment: environment::of_this_machine(&places),
        warnings,
    };
    if !is_quiet(options) {
        tell_warnings(&tools.warnings);
    }
    let mut bar = Bar::new(is_quiet(options), options.style);
    let over = runner::run(&experiment, &tools, &mut results, &interrupt, &mut bar);
    bar.clear();
    let restored = prepared.restore();
    let over = over.map_err(runner_failure)?;
    tell(options, &experiment, results.run(), over, exports)?;
    restored.map_err(|error| Failure::system(error.to_string()))?;
    if let Over::Interrupted(signal) = over {
        drop(results);
        signals::die_by(signal);
    }
    Ok(u8::from(!results.run().failures.is_empty()))
}

/// The command that manages memory: this program, or the one beside it, or the one in `PATH`.
fn quire() -> PathBuf {
    let name = Path::new("quire");
    let own = std::env::current_exe().unwrap_or_default();
    match own.with_file_name(name) {
        beside if own.is_absolute() && beside.exists() => beside,
        _ if own.file_name() == Some("quire-measure".as_ref()) => name.into(),
        _ => own,
    }
}

/// Whether nothing but errors is shown.
fn is_quiet(options: &BenchArgs) -> bool {
    options.quiet || options.style == Style::None
}

fn places(options: &BenchArgs) -> Places {
    let default = Places::default();
    Places {
        root: options.machine_root.clone().unwrap_or(default.root),
        state: options.state.clone().unwrap_or(default.state),
    }
}

/// Puts back what a run has changed that was killed.
fn restore(places: &Places) -> Outcome<u8> {
    let settings = prepare::restore(places).map_err(|error| match error {
        PrepareError::Busy { .. } => Failure::bad_usage(error.to_string()),
        _ => Failure::system(error.to_string()),
    })?;
    match settings {
        0 => writeln!(io::stdout(), "nothing to put back")?,
        n => writeln!(io::stdout(), "{n} settings were put back")?,
    }
    Ok(0)
}

/// Results that cannot be kept, as the command fails of it.
pub fn results_failure(error: ResultsError) -> Failure {
    match error {
        ResultsError::Write { .. } => Failure::system(error.to_string()),
        _ => Failure::bad_usage(error.to_string()),
    }
}

/// An experiment that cannot be run, as the command fails of it.
pub fn runner_failure(error: RunnerError) -> Failure {
    match error {
        RunnerError::Experiment(_) => Failure::bad_usage(error.to_string()),
        RunnerError::Setup { .. } => Failure::system(error.to_string()),
        RunnerError::Results(error) => results_failure(error),
    }
}

/// Prints warnings to standard error.
pub fn tell_warnings(warnings: &[String]) {
    let mut stderr = io::stderr().lock();
    for warning in warnings {
        // Where standard error is closed nobody is to be warned.
        let _ = writeln!(stderr, "{}: warning: {warning}", called());
    }
}

/// Prints and exports what came of it.
fn tell(
    options: &BenchArgs,
    experiment: &Experiment,
    run: &Run,
    over: Over,
    exports: export::Exports,
) -> Outcome<()> {
    let tables = quire_lab::summary::tables(run);
    let wish = show::Wish {
        unit: options.time_unit,
        by_mean: options.sort == Order::MeanTime,
    };
    let mut stdout = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut stdout, &export::json(run, &tables))?;
        writeln!(stdout)?;
    } else if !is_quiet(options) {
        let look = show::Look::of(stdout.is_terminal(), options.style);
        show::tables(&mut stdout, run, &tables, &look, wish)?;
    }
    drop(stdout);
    exports.write(export::Came {
        run,
        tables: &tables,
        wish,
    })?;
    let mut stderr = io::stderr().lock();
    for (what, text) in &run.header.environment {
        if what.starts_with("shell start") && !is_quiet(options) && !options.json {
            writeln!(stderr, "{}: {what}: {text}", called())?;
        }
    }
    let path = (!run.path.as_os_str().is_empty()).then_some(run.path.as_path());
    if let Some(line) = ending(experiment, run, over, path).filter(|_| !is_quiet(options)) {
        writeln!(stderr, "{}: {line}", called())?;
    }
    Ok(())
}

/// Why it is over and where the results are, where that is worth a line.
fn ending(experiment: &Experiment, run: &Run, over: Over, path: Option<&Path>) -> Option<String> {
    let made = run.executions.len();
    let kept = path.map(|path| path.display().to_string());
    let resume = kept
        .as_ref()
        .map(|path| format!("; go on with `{} bench --resume {path}`", called()));
    match over {
        Over::Interrupted(_) => {
            let resume = resume.unwrap_or_default();
            Some(format!("interrupted after {made} executions{resume}"))
        }
        Over::Precise => {
            let precision = experiment.precision.unwrap_or_default() * 100.0;
            let kept = kept
                .map(|path| format!("; results in {path}"))
                .unwrap_or_default();
            Some(format!(
                "{made} executions were enough: all means are known to ±{precision} %{kept}"
            ))
        }
        Over::Complete => kept.map(|path| format!("{made} executions; results in {path}")),
    }
}

/// What `--prepare-machine` stands for.
fn quiet_machine(wanted: bool, own: Machine) -> Machine {
    match wanted {
        true => own.or(Machine::quiet()),
        false => own,
    }
}

//! One execution: a process of its own, with all its children under a strategy.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::colours::allocation::Allocation;
use crate::host;
use crate::launch::{self, Interrupt, Process};
use crate::nondeterminism::plan::{Plan, Turn};
use crate::set::Class;
use crate::set::protocol::{self, ENV_FD};
use crate::set::worker::TIME;
use crate::statpage;
use crate::variant::{Environment, Libraries};

/// How long an execution may take.
const LIMIT: Duration = Duration::from_secs(600);
/// What an execution that is measured from its start touches for the first time, in bytes,
/// as far as it is warmed up before.
const FOOTPRINT: u64 = 32 << 20;
/// Pages in frames that the strategy chose, of those that it was asked for, in percent.
pub const CHOSEN: &str = "chosen";

/// Measurements by metric.
pub type Metrics = BTreeMap<String, Vec<f64>>;

/// What executions need.
pub struct Bench<'a> {
    plan: &'a Plan,
    libraries: Libraries,
}

impl Bench<'_> {
    /// Finds the library.
    ///
    /// # Errors
    /// When it is not there: what to do.
    pub fn new(plan: &Plan) -> Result<Bench<'_>> {
        let libraries = Libraries::find(true);
        if let Some(missing) = libraries.missing() {
            anyhow::bail!("{missing}");
        }
        Ok(Bench { plan, libraries })
    }

    /// Makes one.
    ///
    /// # Errors
    /// When it gave nothing: why.
    pub fn execute(&self, turn: &Turn, interrupt: &Interrupt) -> Result<Metrics> {
        let frames = self.plan.frames(turn.variant).map_err(anyhow::Error::msg)?;
        let environment = Environment::frames_of_base_pages(&self.libraries, &frames)?;
        let measurements = self.plan.measurements(turn.benchmark);
        let args = [
            "workload".to_owned(),
            turn.benchmark.name.clone(),
            format!("--repetitions={measurements}"),
            format!("--cache-size={}", self.plan.experiment.cache),
            "--model".to_owned(),
        ];
        let realtime = self.plan.experiment.realtime;
        let options: &[_] = if realtime {
            &["--realtime".into()]
        } else {
            &[]
        };
        let own = launch::own_program()?;
        let mut command = launch::command_with(&environment, None, options, own, args)?;
        command.env_remove(ENV_FD);
        if turn.benchmark.class() == Class::Single {
            // Its first touches are measured, too.
            host::warm_up(FOOTPRINT)?;
        }
        let text = Process::start(command)?.wait(LIMIT, interrupt)?.output()?;
        let mut metrics = protocol::read(&text)?;
        let got = metrics.get(TIME).map_or(0, Vec::len);
        ensure!(
            got == measurements as usize,
            "it gave {got} of {measurements} measurements"
        );
        if turn.variant != Allocation::Default {
            metrics.insert(CHOSEN.to_owned(), vec![chosen(&environment)?]);
        }
        Ok(metrics)
    }
}

/// The share of pages, over all processes of the execution, whose frames the strategy
/// chose. Where it chose none, it was not measured.
fn chosen(environment: &Environment) -> Result<f64> {
    let session = environment.session().context("no session of Quire")?;
    let pages = statpage::all(session);
    ensure!(!pages.is_empty(), "Quire kept no statistics page");
    let (mut chosen, mut given) = (0, 0);
    for totals in pages.iter().map(|page| &page.totals) {
        chosen += totals.frames_chosen;
        given += totals.frames_chosen + totals.frames_other + totals.frames_left;
    }
    let remarks: Vec<String> = pages.iter().flat_map(|page| page.remarks()).collect();
    ensure!(chosen > 0, "Quire chose no frames: {}", remarks.join("; "));
    Ok(chosen as f64 / given as f64 * 100.0)
}

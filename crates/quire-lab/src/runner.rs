//! Runs an experiment: executes what is left to execute, and keeps what comes of it.

mod begin;
mod execute;
mod interrupt;
mod jobs;
mod orphans;
mod results;
mod shells;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use crate::experiment::{ENOUGH, Experiment, Pair};
use crate::judge;
use crate::protocol::Reported;
use crate::run::{Execution, FORMAT, Failure, Header, Metric, Run, TIME};
use crate::schedule::{self, Step};
use crate::usage;
use execute::{Done, Job, Undone, besides, execute};
pub use interrupt::Interrupt;
use orphans::Adoption;
pub use results::{Results, ResultsError};
use shells::Start;

/// A pair that failed so often, and never succeeded, is given up.
const HOPELESS: usize = 3;
/// So many executions of each pair are made before their precision is looked at.
const FEW: u64 = 5;
/// How long setup and cleanup may take, and, where executions have no timeout, what runs
/// before and after each.
const BESIDES_LIMIT: Duration = Duration::from_secs(3600);

/// What is needed besides the experiment.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `quire` command, for variants that run under it.
    pub quire: PathBuf,
    /// The machine, to be shown.
    pub environment: BTreeMap<String, String>,
    /// What was not prepared.
    pub warnings: Vec<String>,
}

/// Who wants to know how it goes.
pub trait Watcher {
    /// An execution begins.
    fn begins(&mut self, progress: &Progress<'_>);
    /// An execution failed.
    fn failed(&mut self, failure: &Failure);
}

/// How far it is.
#[derive(Debug)]
pub struct Progress<'a> {
    /// What is executed now.
    pub pair: Pair<'a>,
    /// How many executions were made or given up.
    pub done: u64,
    /// How many there will be at most.
    pub all: u64,
    /// How long the rest takes, as far as it is known.
    pub left: Option<Duration>,
}

/// Who says before each round what it executes, where that is not everything.
pub trait Guide {
    /// What a round executes, after what `run` holds of those before it. It must depend on
    /// nothing else for rounds that are there already, so that a run can be resumed.
    fn round(&mut self, round: u64, run: &Run) -> Round;
}

/// A round of some pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The pairs, by number, in any order; none to end.
    pub pairs: Vec<usize>,
    /// How many executions there are from this round on, at most.
    pub rest: u64,
    /// How long all of it may still take.
    pub left: Option<Duration>,
    /// How long an execution may take; one that takes longer is stopped.
    pub each: Option<Duration>,
}

/// Why it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// All executions were made.
    Complete,
    /// The means are as precise as was wanted.
    Precise,
    /// The user wanted to end, by this signal.
    Interrupted(i32),
}

/// Why it cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The experiment is at fault.
    #[error("{0}")]
    Experiment(String),
    /// A setup failed.
    #[error("the setup of {of}: {why}")]
    Setup {
        /// Of which benchmark and variant.
        of: String,
        /// Why.
        why: String,
    },
    /// Results cannot be kept.
    #[error(transparent)]
    Results(#[from] ResultsError),
}

/// Runs what is left of an experiment.
///
/// # Errors
/// When nothing can be executed, or results cannot be kept; those that were kept stay.
pub fn run(
    experiment: &Experiment,
    tools: &Tools,
    results: &mut Results,
    interrupt: &Interrupt,
    watcher: &mut dyn Watcher,
) -> Result<Over, RunnerError> {
    let mut session = Session::begin(experiment, tools, results, interrupt)?;
    let over = session.whole(watcher);
    session.clean_up();
    results.sync()?;
    over
}

/// Runs an experiment of which a guide says, round by round, what is executed. How many
/// rounds there are is the guide's business, too.
///
/// # Errors
/// As of [`run`].
pub fn guided(
    experiment: &Experiment,
    tools: &Tools,
    results: &mut Results,
    interrupt: &Interrupt,
    guide: &mut dyn Guide,
    watcher: &mut dyn Watcher,
) -> Result<Over, RunnerError> {
    let mut session = Session::begin(experiment, tools, results, interrupt)?;
    let over = session.guided(guide, watcher);
    session.clean_up();
    results.sync()?;
    over
}

/// Whether results belong to an experiment.
fn may_continue(experiment: &Experiment, run: &Run) -> Result<(), RunnerError> {
    let path = run.path.display();
    let kept = serde_json::from_value::<Experiment>(run.header.experiment.clone());
    let why = match kept {
        Err(_) => "no experiment of `bench`",
        Ok(kept) if !experiment.continues(&kept) => "results of another experiment",
        Ok(_) => return Ok(()),
    };
    Err(RunnerError::Experiment(format!(
        "{path} holds {why}; name another file, or remove it"
    )))
}

fn header(experiment: &Experiment, tools: &Tools, before: &Run) -> Header {
    let mut metrics = usage::metrics();
    let time = Metric {
        unit: "s".into(),
        ..Metric::default()
    };
    metrics.insert(TIME.into(), time);
    metrics.extend(before.header.metrics.clone());
    metrics.extend(experiment.metrics.clone());
    Header {
        format: FORMAT,
        title: experiment.title.clone(),
        started: now(),
        seed: experiment.seed,
        metrics,
        environment: tools.environment.clone(),
        warnings: tools.warnings.clone(),
        // What cannot be written as JSON could not have been read.
        experiment: serde_json::to_value(experiment).unwrap_or_default(),
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Whether it is worth looking at the precision after so many rounds: in steps of a
/// twentieth, because looking takes time, too.
fn is_looked_at(rounds: u64) -> bool {
    rounds >= FEW && rounds.is_multiple_of((rounds / 20).max(1))
}

/// What is kept of an execution.
struct Kept {
    values: BTreeMap<String, Vec<f64>>,
    /// What the metrics are that its program reported.
    kinds: BTreeMap<String, Metric>,
}

/// Whether a pair failed so often, and never succeeded, that it is given up.
fn is_hopeless(run: &Run, benchmark: &str, variant: &str) -> bool {
    let is_it = |b: &str, v: &str| b == benchmark && v == variant;
    let failures = run.failures.iter();
    let failures = failures.filter(|f| is_it(&f.benchmark, &f.variant));
    let mut executions = run.executions.iter();
    failures.count() >= HOPELESS && !executions.any(|e| is_it(&e.benchmark, &e.variant))
}

/// The places of executions that are not made again: those that gave something, and the
/// failures of pairs that were given up. Any other failure has another chance.
fn recorded(run: &Run) -> BTreeSet<u64> {
    let given_up = |f: &&Failure| is_hopeless(run, &f.benchmark, &f.variant);
    let failed = run.failures.iter().filter(given_up).map(|f| f.order);
    let made = run.executions.iter().map(|execution| execution.order);
    made.chain(failed).collect()
}

/// Says of an execution that took too long that its limit is the guide's, where it is.
fn with_limit(undone: Undone, is_of_guide: bool) -> Undone {
    match undone {
        Undone::TooLong(_) if is_of_guide => {
            let why = undone.reason().unwrap_or_default();
            Undone::Failed(format!(
                "{why}: the time limit leaves each execution no more"
            ))
        }
        undone => undone,
    }
}

struct Session<'a> {
    experiment: &'a Experiment,
    pairs: Vec<Pair<'a>>,
    jobs: Vec<Job>,
    /// What the shell of each job takes to start.
    shells: Vec<Option<Start>>,
    results: &'a mut Results,
    interrupt: &'a Interrupt,
    /// The places of executions that were made or have failed.
    recorded: BTreeSet<u64>,
    /// What executions of this session took, and how many they were.
    spent: Duration,
    made: u32,
    /// How many executions there will be in all, at most.
    most: u64,
    /// When all has to be over, and how long an execution may take, where a guide says that.
    end: Option<Instant>,
    each: Option<Duration>,
    _adoption: Adoption,
}

impl<'a> Session<'a> {
    /// Checks that everything can be executed, and writes the header.
    fn begin(
        experiment: &'a Experiment,
        tools: &Tools,
        results: &'a mut Results,
        interrupt: &'a Interrupt,
    ) -> Result<Session<'a>, RunnerError> {
        experiment.check().map_err(RunnerError::Experiment)?;
        if !results.is_new() {
            may_continue(experiment, results.run())?;
        }
        let pairs = experiment.pairs();
        let jobs: Result<Vec<Job>, String> = pairs
            .iter()
            .map(|pair| jobs::job(experiment, pair, tools))
            .collect();
        let jobs = jobs.map_err(RunnerError::Experiment)?;
        jobs::check(&jobs, interrupt).map_err(RunnerError::Experiment)?;
        let shells = shells::starts(&jobs, interrupt).map_err(RunnerError::Experiment)?;
        let mut header = header(experiment, tools, results.run());
        header.environment.extend(shells::told(&jobs, &shells));
        results.begin(header)?;
        Ok(Session {
            recorded: recorded(results.run()),
            most: pairs.len() as u64 * experiment.executions,
            experiment,
            pairs,
            jobs,
            shells,
            results,
            interrupt,
            spent: Duration::ZERO,
            made: 0,
            end: None,
            each: None,
            _adoption: Adoption::begin(),
        })
    }

    fn whole(&mut self, watcher: &mut dyn Watcher) -> Result<Over, RunnerError> {
        let interrupted = |session: &Self| session.interrupt.signal().map(Over::Interrupted);
        if self.is_over() {
            return Ok(self.why_over());
        }
        self.set_up()?;
        self.warm_up(&(0..self.pairs.len()).collect::<Vec<usize>>());
        for round in 0..self.experiment.executions {
            for step in schedule::steps(self.pairs.len(), round, self.experiment.seed) {
                if let Some(over) = interrupted(self) {
                    return Ok(over);
                }
                if !self.is_done(step) {
                    self.step(step, watcher)?;
                }
            }
            if let Some(over) = interrupted(self) {
                return Ok(over);
            }
            if is_looked_at(round + 1) && self.is_precise() {
                return Ok(Over::Precise);
            }
            if self.is_enough(round + 1) {
                return Ok(Over::Complete);
            }
        }
        Ok(Over::Complete)
    }

    /// Rounds of what the guide names, until it names nothing.
    fn guided(
        &mut self,
        guide: &mut dyn Guide,
        watcher: &mut dyn Watcher,
    ) -> Result<Over, RunnerError> {
        let mut is_set_up = false;
        for number in 0.. {
            let round = guide.round(number, self.results.run());
            if round.pairs.is_empty() {
                break;
            }
            self.most = self.done() + round.rest;
            self.end = round.left.map(|left| Instant::now() + left);
            self.each = round.each;
            let mut steps = schedule::steps(self.pairs.len(), number, self.experiment.seed);
            if number == 0 {
                // Whether the first pair can be executed at all is known before the others are tried.
                steps.sort_by_key(|step| step.pair != 0);
            }
            for step in steps {
                if let Some(signal) = self.interrupt.signal() {
                    return Ok(Over::Interrupted(signal));
                }
                if !round.pairs.contains(&step.pair) || self.is_done(step) {
                    continue;
                }
                if self.end.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
                if !is_set_up {
                    self.set_up()?;
                    self.warm_up(&round.pairs);
                    is_set_up = true;
                }
                self.step(step, watcher)?;
            }
        }
        Ok(match self.interrupt.signal() {
            Some(signal) => Over::Interrupted(signal),
            None => Over::Complete,
        })
    }

    /// Whether nothing is left to be done.
    fn is_over(&self) -> bool {
        let rounds = 0..self.experiment.executions;
        let seed = self.experiment.seed;
        let all = |round| schedule::steps(self.pairs.len(), round, seed);
        let done = rounds.clone().flat_map(all).all(|step| self.is_done(step));
        let made = self.rounds_made();
        done || (made >= FEW && self.is_precise()) || self.is_enough(made)
    }

    /// Whether all pairs have run so often, and so long, as is enough after so many rounds.
    fn is_enough(&self, rounds: u64) -> bool {
        let Some(least) = self.experiment.at_least.filter(|least| rounds >= *least) else {
            return false;
        };
        let run = self.results.run();
        let is_enough = |pair: &Pair| {
            let of = |metric| run.measurements(&pair.benchmark.name, &pair.variant.name, metric);
            let seconds = |metric| of(metric).iter().flatten().sum::<f64>();
            let whole = seconds(usage::WALL_TIME);
            let whole = if whole > 0.0 { whole } else { seconds(TIME) };
            whole >= ENOUGH || (whole == 0.0 && rounds >= least)
        };
        self.pairs.iter().all(is_enough)
    }

    fn why_over(&self) -> Over {
        match self.is_precise() {
            true => Over::Precise,
            false => Over::Complete,
        }
    }

    /// How many rounds are complete.
    fn rounds_made(&self) -> u64 {
        let seed = self.experiment.seed;
        let mut rounds = 0..self.experiment.executions;
        let is_open = |round: &u64| {
            let steps = schedule::steps(self.pairs.len(), *round, seed);
            !steps.into_iter().all(|step| self.is_done(step))
        };
        rounds.find(is_open).unwrap_or(self.experiment.executions)
    }

    /// Whether an execution was made, or its pair was given up.
    fn is_done(&self, step: Step) -> bool {
        self.recorded.contains(&step.order) || self.is_hopeless(step.pair)
    }

    fn is_hopeless(&self, pair: usize) -> bool {
        let Pair { benchmark, variant } = self.pairs[pair];
        is_hopeless(self.results.run(), &benchmark.name, &variant.name)
    }

    /// Whether the means of all pairs are as precise as was wanted.
    fn is_precise(&self) -> bool {
        let Some(precision) = self.experiment.precision else {
            return false;
        };
        let run = self.results.run();
        let metrics = run.primary_metrics();
        let is_precise = |pair: &Pair, metric: &str| {
            let values = run.measurements(&pair.benchmark.name, &pair.variant.name, metric);
            values.is_empty() || judge::is_precise(values, precision)
        };
        let hopeful = self.pairs.iter().enumerate();
        let mut hopeful = hopeful
            .filter(|(n, _)| !self.is_hopeless(*n))
            .map(|(_, pair)| pair);
        hopeful.all(|pair| metrics.iter().all(|metric| is_precise(pair, metric)))
    }

    fn step(&mut self, step: Step, watcher: &mut dyn Watcher) -> Result<(), RunnerError> {
        let pair = self.pairs[step.pair];
        watcher.begins(&self.progress(pair));
        let (started, clock) = (now(), Instant::now());
        let made = self.execute(step, &self.number(step).to_string());
        self.spent += clock.elapsed();
        self.made += 1;
        let (benchmark, variant) = (pair.benchmark.name.clone(), pair.variant.name.clone());
        let order = step.order;
        let kept = made.and_then(|done| self.values(done));
        match kept.map_err(Undone::reason) {
            Ok(Kept {
                values: metrics,
                kinds,
            }) => {
                self.announce(kinds)?;
                self.results.add(Execution {
                    benchmark,
                    variant,
                    order,
                    started,
                    metrics: metrics.into(),
                })?;
                self.recorded.insert(order);
            }
            Err(None) => {}
            Err(Some(reason)) => {
                let number = self.number(step) + 1;
                let failure = Failure {
                    benchmark,
                    variant,
                    order,
                    reason: format!("execution {number}: {reason}"),
                    ..Failure::default()
                };
                watcher.failed(&failure);
                self.results.fail(failure)?;
                self.recorded.insert(order);
            }
        }
        Ok(())
    }

    /// Which execution of its pair it is, from 0 on.
    fn number(&self, step: Step) -> u64 {
        step.order / self.pairs.len() as u64
    }

    /// How many executions were made or failed.
    fn done(&self) -> u64 {
        let run = self.results.run();
        (run.executions.len() + run.failures.len()) as u64
    }

    fn progress<'b>(&self, pair: Pair<'b>) -> Progress<'b> {
        let (all, done) = (self.most, self.done());
        let rest = u32::try_from(all.saturating_sub(done)).unwrap_or(u32::MAX);
        let each = self.spent.checked_div(self.made);
        Progress {
            pair,
            done,
            all,
            left: self.in_time(each.map(|each| each.saturating_mul(rest))),
        }
    }

    /// A time, or what is left until the end, if that is less.
    fn in_time(&self, time: Option<Duration>) -> Option<Duration> {
        let left = self
            .end
            .map(|end| end.saturating_duration_since(Instant::now()));
        match (time, left) {
            (Some(time), Some(left)) => Some(time.min(left)),
            (time, left) => time.or(left),
        }
    }

    /// The job of a step, which is told by `number` which execution it is.
    fn job(&self, step: Step, number: &str) -> Job {
        let mut job = jobs::numbered(&self.jobs[step.pair], number);
        if self.experiment.machine.random_environment {
            job = jobs::padded(&job, self.experiment.seed, step.order);
        }
        if let Some(each) = self.each {
            job.timeout = Some(job.timeout.map_or(each, |own| own.min(each)));
        }
        job
    }

    fn execute(&self, step: Step, number: &str) -> Result<Done, Undone> {
        let (pair, job) = (self.pairs[step.pair], &self.jobs[step.pair]);
        let prepare = pair.variant.prepare.as_deref();
        let limit = job.timeout.unwrap_or(BESIDES_LIMIT);
        if let Some(text) = prepare.or(pair.besides(|all| &all.prepare)) {
            besides(text, job, limit, self.interrupt)?;
        }
        let own = self.job(step, number);
        let done = execute(&own, self.interrupt);
        let mut done = done.map_err(|undone| with_limit(undone, own.timeout == self.each))?;
        if let Some(start) = &self.shells[step.pair] {
            start.take_off(&mut done);
        }
        if let Some(text) = pair.besides(|all| &all.conclude) {
            besides(text, job, limit, self.interrupt)?;
        }
        Ok(done)
    }

    /// What is kept of an execution.
    fn values(&self, done: Done) -> Result<Kept, Undone> {
        let mut values = usage::values(&done.ended);
        values.extend(done.counted);
        let wall = vec![done.wall.as_secs_f64()];
        let Reported {
            values: reported,
            kinds,
            ..
        } = done.reported;
        if reported.is_empty() {
            if self.experiment.measurements.is_some() {
                return Err(Undone::Failed("it reported no measurement".into()));
            }
            values.insert(TIME.into(), wall);
            let kinds = BTreeMap::new();
            return Ok(Kept { values, kinds });
        }
        values.insert(usage::WALL_TIME.into(), wall);
        for (name, reported) in reported {
            self.check_unit(&name, &kinds).map_err(Undone::Failed)?;
            let kept = self.counted(&name, reported).map_err(Undone::Failed)?;
            values.insert(name, kept);
        }
        Ok(Kept { values, kinds })
    }

    /// A metric has the unit that the experiment says, if it says one.
    fn check_unit(&self, name: &str, kinds: &BTreeMap<String, Metric>) -> Result<(), String> {
        let wanted = self.experiment.metrics.get(name).map(|metric| &metric.unit);
        let got = kinds.get(name).map(|metric| &metric.unit);
        match (wanted, got) {
            (Some(wanted), Some(got)) if wanted != got => Err(format!(
                "it reported {name} in `{got}`, and the experiment has it in `{wanted}`"
            )),
            _ => Ok(()),
        }
    }

    /// The measurements that are kept. A metric has as many as were asked for, or one.
    fn counted(&self, name: &str, mut values: Vec<f64>) -> Result<Vec<f64>, String> {
        let (got, discard) = (values.len(), self.experiment.discard as usize);
        if let Some(wanted) = self.experiment.measurements
            && got as u64 != wanted
            && got != 1
        {
            return Err(format!(
                "it reported {got} measurements of {name}, and {wanted} were asked for"
            ));
        }
        if got > 1 && got <= discard {
            return Err(format!(
                "it reported {got} measurements of {name}, of which {discard} are discarded"
            ));
        }
        if got > 1 {
            values.drain(..discard);
        }
        Ok(values)
    }

    /// Writes down what metrics are that were not known.
    fn announce(&mut self, kinds: BTreeMap<String, Metric>) -> Result<(), ResultsError> {
        let header = &self.results.run().header;
        let metrics: BTreeMap<String, Metric> = kinds
            .into_iter()
            .filter(|(name, _)| !self.experiment.metrics.contains_key(name))
            .filter(|(name, kind)| header.metrics.get(name) != Some(kind))
            .collect();
        if metrics.is_empty() {
            return Ok(());
        }
        let mut header = header.clone();
        header.metrics.extend(metrics);
        self.results.begin(header)
    }

    fn set_up(&self) -> Result<(), RunnerError> {
        for (pair, job) in self.pairs.iter().zip(&self.jobs) {
            if let Some(text) = pair.besides(|all| &all.setup)
                && let Err(undone) = besides(text, job, BESIDES_LIMIT, self.interrupt)
                && let Some(why) = undone.reason()
            {
                let of = format!("{} ({})", pair.benchmark.name, pair.variant.name);
                return Err(RunnerError::Setup { of, why });
            }
        }
        Ok(())
    }

    /// Executes without a record. What fails here fails again where it counts.
    fn warm_up(&self, pairs: &[usize]) {
        for n in 0..self.experiment.warmup {
            for pair in pairs.iter().copied() {
                let order = u64::MAX;
                if self.interrupt.signal().is_none() {
                    let _ = self.execute(Step { order, pair }, &format!("warmup-{n}"));
                }
            }
        }
    }

    /// Runs the commands of the end, also after Ctrl-C.
    fn clean_up(&self) {
        let interrupted = self.interrupt.signal();
        self.interrupt.forget();
        for (pair, job) in self.pairs.iter().zip(&self.jobs) {
            if let Some(text) = pair.besides(|all| &all.cleanup) {
                // The results are there whatever comes of it.
                let _ = besides(text, job, BESIDES_LIMIT, self.interrupt);
            }
        }
        self.interrupt.remember(interrupted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guide that wants a thousand rounds and has a second.
    struct Hurried;

    impl Guide for Hurried {
        fn round(&mut self, number: u64, _: &Run) -> Round {
            Round {
                pairs: if number < 3 { vec![0] } else { Vec::new() },
                rest: 1000,
                left: Some(Duration::from_secs(1)),
                each: None,
            }
        }
    }

    /// Keeps what was said of the time that is left.
    struct Left(Vec<Option<Duration>>);

    impl Watcher for Left {
        fn begins(&mut self, progress: &Progress<'_>) {
            self.0.push(progress.left);
        }

        fn failed(&mut self, failure: &Failure) {
            panic!("{}", failure.reason);
        }
    }

    #[test]
    fn no_more_time_is_said_to_be_left_than_there_is() {
        let experiment = Experiment {
            benchmarks: vec![crate::experiment::Benchmark {
                name: "b".into(),
                command: Some(crate::experiment::Command::Text("sleep 0.05".into())),
                ..Default::default()
            }],
            variants: vec![crate::experiment::Variant::default()],
            ..Experiment::default()
        };
        let tools = Tools {
            quire: PathBuf::new(),
            environment: BTreeMap::new(),
            warnings: Vec::new(),
        };
        let (mut results, mut left) = (Results::in_memory(), Left(Vec::new()));
        let interrupt = Interrupt::listen().unwrap();
        guided(
            &experiment,
            &tools,
            &mut results,
            &interrupt,
            &mut Hurried,
            &mut left,
        )
        .unwrap();
        // A thousand executions would take 50 s.
        assert_eq!(left.0.len(), 3);
        for left in left.0 {
            let left = left.expect("there is an end, so there is an estimate");
            assert!(left <= Duration::from_secs(1), "{left:?}");
        }
    }

    #[test]
    fn only_of_an_execution_that_took_too_long_the_limit_is_told() {
        let told = |undone, is_of_guide| with_limit(undone, is_of_guide).reason();
        let too_long = || Undone::TooLong(Duration::from_millis(1500));
        let why = "it did not end within 1.5 s, and was killed";
        assert_eq!(told(too_long(), false).as_deref(), Some(why));
        let with_limit = format!("{why}: the time limit leaves each execution no more");
        assert_eq!(told(too_long(), true), Some(with_limit));
        // Whatever else a reason says, it is no limit.
        let other = || Undone::Failed(why.to_owned());
        assert_eq!(told(other(), true).as_deref(), Some(why));
        assert_eq!(told(Undone::Interrupted, true), None);
    }

    #[test]
    fn precision_is_looked_at_often_first_and_rarely_later() {
        let looks: Vec<u64> = (0..48).filter(|n| is_looked_at(*n)).collect();
        assert_eq!(looks[..3], [5, 6, 7]);
        assert_eq!(looks[looks.len() - 4..], [40, 42, 44, 46]);
        let all = (0..1000).filter(|n| is_looked_at(*n)).count();
        assert!(all < 200, "{all}");
    }
}

//! What a shell takes to start, which is no part of the command that it reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use super::execute::{Done, Job, Undone, execute};
use super::interrupt::Interrupt;
use crate::experiment::{Ignored, Output};

/// So often a shell is started with nothing to do; the median counts.
const TIMES: usize = 41;
/// What the figure is called that is kept with results.
const NAME: &str = "shell start";

/// What a shell takes to start and to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    wall: Duration,
    user: Duration,
    system: Duration,
}

impl Start {
    /// Takes it off what an execution took.
    pub(super) fn take_off(&self, done: &mut Done) {
        done.wall = done.wall.saturating_sub(self.wall);
        done.ended.user = done.ended.user.saturating_sub(self.user);
        done.ended.system = done.ended.system.saturating_sub(self.system);
    }
}

/// What the shell of each job takes; nothing where it has none. Each is measured once.
pub(super) fn starts(jobs: &[Job], interrupt: &Interrupt) -> Result<Vec<Option<Start>>, String> {
    let mut known: Vec<(Job, Start)> = Vec::new();
    let mut starts = Vec::new();
    for job in jobs {
        let Some(idle) = idle(job) else {
            starts.push(None);
            continue;
        };
        let start = match known.iter().find(|(other, _)| is_alike(other, &idle)) {
            Some((_, start)) => *start,
            None => {
                let start = measure(&idle, interrupt)?;
                known.push((idle, start));
                start
            }
        };
        starts.push(Some(start));
    }
    Ok(starts)
}

/// What was taken off, by shell, for those who read the results.
pub(super) fn told(jobs: &[Job], starts: &[Option<Start>]) -> BTreeMap<String, String> {
    let both = jobs.iter().zip(starts);
    let told = both.filter_map(|(job, start)| {
        let shell = job.shell.as_ref()?.first()?.to_string_lossy();
        let ms = start.as_ref()?.wall.as_secs_f64() * 1e3;
        let text = format!("{ms:.2} ms, measured and taken off");
        Some((format!("{NAME} ({shell})"), text))
    });
    told.collect()
}

/// The shell of a job, with nothing to do.
fn idle(job: &Job) -> Option<Job> {
    let mut words = job.shell.clone()?;
    words.extend(["-c", ""].map(OsString::from));
    Some(Job {
        words,
        input: None,
        to: Output::Null,
        output: None,
        ignore_failure: Ignored::default(),
        ..job.clone()
    })
}

fn is_alike(a: &Job, b: &Job) -> bool {
    (&a.words, &a.env, &a.directory, &a.settings) == (&b.words, &b.env, &b.directory, &b.settings)
}

fn measure(idle: &Job, interrupt: &Interrupt) -> Result<Start, String> {
    let mut all = [const { Vec::new() }; 3];
    for _ in 0..TIMES {
        match execute(idle, interrupt).map_err(Undone::reason) {
            Ok(done) => {
                let times = [done.wall, done.ended.user, done.ended.system];
                all.iter_mut()
                    .zip(times)
                    .for_each(|(all, time)| all.push(time));
            }
            // The runner hears of it, too.
            Err(None) => return Ok(Start::default()),
            Err(Some(why)) => {
                let shell = idle.words.first().map(|word| word.to_string_lossy());
                let shell = shell.unwrap_or_default();
                return Err(format!("the shell `{shell}` does not start: {why}"));
            }
        }
    }
    let [wall, user, system] = all.map(|mut times| {
        times.sort_unstable();
        times[TIMES / 2]
    });
    Ok(Start { wall, user, system })
}

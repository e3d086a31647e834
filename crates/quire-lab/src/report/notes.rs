//! What readers of an experiment's figures should bear in mind: intervals that are too
//! narrow, and executions that do not become steady. What holds for several variants is
//! said once.

use crate::caution::{each_once, listed, sentence};
use crate::judge;
use crate::report::experiment::Experiment;
use crate::report::{Report, number};

/// What the intervals of a report are.
pub fn on_intervals(report: &Report) -> String {
    let few = |one: &&Experiment| one.primary && !one.few.is_empty();
    let less = match report.experiments.iter().find(few) {
        Some(_) => " With few executions they do so less often, as is noted with each benchmark.",
        None => "",
    };
    format!(
        "Intervals, in brackets, hold the true value with {} confidence ({}).{less}",
        number::percent(report.settings.confidence),
        judge::method(&report.settings)
    )
}

/// The notes on the experiments of a benchmark.
pub fn of(rows: &[Experiment]) -> Vec<String> {
    let mut primary: Vec<&Experiment> = rows.iter().filter(|one| one.primary).collect();
    primary.sort_by(|a, b| a.metric.cmp(&b.metric));
    let mut notes = Vec::new();
    for metric in primary.chunk_by(|a, b| a.metric == b.metric) {
        let few = metric
            .iter()
            .filter_map(|one| Some((one.variant.clone(), sentence(&one.few)?)));
        let steady = metric
            .iter()
            .filter_map(|one| Some((one.variant.clone(), steady(one)?)));
        let said = each_once(few).into_iter().chain(each_once(steady));
        let name = &metric[0].metric;
        notes.extend(said.map(|(variants, text)| {
            let variants = listed(&variants);
            format!("{name} of {variants}: {text}")
        }));
    }
    notes
}

/// When the executions become steady, where they have several measurements.
fn steady(one: &Experiment) -> Option<String> {
    Some(match one.settling.as_ref()? {
        Ok(settling) => settling.sentence(),
        Err(why) => format!("Whether executions become steady is not known: {why}."),
    })
}

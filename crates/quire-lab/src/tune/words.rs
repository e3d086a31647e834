//! The verdict as a sentence for people, and as JSON for programs.

use quire_stats::Estimate;
use serde_json::{Value, json};

use super::interval::Interval;
use super::search::State;
use super::verdict::{Outcome, Row, Verdict};
use super::{Goal, Plan};

/// The verdict in plain words.
#[must_use]
pub fn sentence(plan: &Plan, verdict: &Verdict) -> String {
    let name = |n: usize| format!("`{}`", plan.candidates[n].0);
    match &verdict.outcome {
        Outcome::Unknown(why) => format!("Nothing can be said: {why}."),
        Outcome::None => none(plan, verdict),
        Outcome::Best { candidate, as_good } => {
            let row = &verdict.rows[*candidate];
            let mut text = format!("{} is best: {}.", name(*candidate), gain(plan, row));
            if !as_good.is_empty() {
                let others: Vec<String> = as_good.iter().map(|n| name(*n)).collect();
                let whether = "is better than plain, too, and not known to be worse than that";
                text.push_str(&format!(" {} {whether}.", others.join(" and ")));
            }
            text
        }
    }
}

/// What the winner gains.
fn gain(plan: &Plan, row: &Row) -> String {
    let times = |ratio: &Option<Result<Estimate, String>>| match ratio {
        Some(Ok(r)) => format!("{:.3} times ({:.3} to {:.3})", r.value, r.ci_low, r.ci_high),
        _ => "an unknown part of".into(),
    };
    match plan.rules.goal {
        Goal::Mean => format!("its mean is {} that of plain", times(&row.ratio)),
        Goal::Determinism => format!(
            "it varies {} as much as plain, and its mean is {} that of plain",
            times(&row.variation_ratio),
            times(&row.ratio)
        ),
    }
}

fn none(plan: &Plan, verdict: &Verdict) -> String {
    let threshold = plan.rules.threshold * 100.0;
    let what = match plan.rules.goal {
        Goal::Mean => "a better mean",
        Goal::Determinism => "less variation",
    };
    let is_worse = |row: &&Row| matches!(row.state, State::Worse { .. } | State::Slow);
    let worse = match verdict.rows.iter().filter(is_worse).count() {
        0 => String::new(),
        1 => "; one is worse than the best of the others".into(),
        n => format!("; {n} are worse than the best of the others"),
    };
    let intolerable = intolerable(plan, verdict);
    format!(
        "None differs for the better: no candidate is known to have {what} than plain, significantly and by more than {threshold} %{worse}.{intolerable} Run it as it is."
    )
}

/// Those that vary less, and whose mean may be beyond the tolerance.
fn intolerable(plan: &Plan, verdict: &Verdict) -> String {
    let varies_less = |row: &Row| {
        let ratio = row
            .variation_ratio
            .as_ref()
            .and_then(|ratio| ratio.as_ref().ok());
        row.is_confirmed && ratio.is_some_and(|ratio| ratio.ci_high < 1.0 - plan.rules.threshold)
    };
    let rows = plan.candidates.iter().zip(&verdict.rows);
    let names = rows.filter(|(_, row)| plan.rules.goal == Goal::Determinism && varies_less(row));
    let names: Vec<String> = names.map(|((c, _), _)| format!("`{c}`")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            " {} varies less, but its mean is not known to be within {} % of that of plain (--tolerance).",
            names.join(" and "),
            plan.rules.tolerance * 100.0
        ),
    }
}

/// Where a candidate ended, in a few words; nothing for one that ran to the end.
#[must_use]
pub fn fate(plan: &Plan, row: &Row) -> String {
    match &row.state {
        State::In => String::new(),
        State::Waiting => "not tried: its parts were not the best, or no better than plain".into(),
        State::Failed(why) => format!("left out: {why}"),
        State::Worse { than } => format!("worse than {}", plan.candidates[*than].0),
        State::Slow => format!(
            "mean beyond the tolerance of {} %",
            plan.rules.tolerance * 100.0
        ),
    }
}

/// The words of the command line to use; `program` is what was tried.
#[must_use]
pub fn command(plan: &Plan, verdict: &Verdict, program: &[String]) -> Option<Vec<String>> {
    let words = match &verdict.outcome {
        Outcome::Best { candidate, .. } => plan.candidates[*candidate].0.words(),
        Outcome::None => Vec::new(),
        Outcome::Unknown(_) => return None,
    };
    Some(words.into_iter().chain(program.iter().cloned()).collect())
}

/// The verdict for programs.
#[must_use]
pub fn json(plan: &Plan, verdict: &Verdict, metric: &str, program: &[String]) -> Value {
    let best = match &verdict.outcome {
        Outcome::Best { candidate, .. } => Some(plan.candidates[*candidate].0.name()),
        _ => None,
    };
    let outcome = match &verdict.outcome {
        Outcome::Best { .. } => "best",
        Outcome::None => "none",
        Outcome::Unknown(_) => "unknown",
    };
    let rows = plan.candidates.iter().zip(&verdict.rows);
    let rows: Vec<Value> = rows
        .map(|((c, _), row)| row_json(plan, &c.name(), row))
        .collect();
    let left_out = plan.left_out.iter();
    let left_out: Vec<Value> = left_out
        .map(|(c, why)| json!({ "candidate": c.name(), "reason": why }))
        .collect();
    json!({
        "version": 1,
        "for": plan.rules.goal.to_string(),
        "metric": metric,
        "outcome": outcome,
        "best": best,
        "sentence": sentence(plan, verdict),
        "command": command(plan, verdict, program),
        "threshold": plan.rules.threshold,
        "tolerance": plan.rules.tolerance,
        "search_rounds": verdict.search_rounds,
        "confirmation_rounds": verdict.confirmation_rounds,
        "candidates": rows,
        "left_out": left_out,
    })
}

fn row_json(plan: &Plan, name: &str, row: &Row) -> Value {
    let state = match &row.state {
        State::In => "in",
        State::Waiting => "not tried",
        State::Failed(_) => "failed",
        State::Worse { .. } => "worse",
        State::Slow => "slow",
    };
    json!({
        "candidate": name,
        "state": state,
        "fate": fate(plan, row),
        "from": if row.is_confirmed { "confirmation" } else { "search" },
        "executions": row.executions,
        "failures": row.failures,
        "mean": judged(&row.mean),
        "variation": judged(&row.variation),
        "ratio": row.ratio.as_ref().map(judged),
        "variation_ratio": row.variation_ratio.as_ref().map(judged),
    })
}

fn judged(judged: &Interval) -> Value {
    match judged {
        Ok(e) => json!({ "value": e.value, "low": e.ci_low, "high": e.ci_high }),
        Err(why) => json!({ "absent": why }),
    }
}

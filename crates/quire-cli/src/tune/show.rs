//! Prints what came of it, for people.

use std::io::{self, IsTerminal, Write};

use quire_lab::tune::interval::Interval;
use quire_lab::tune::search::State;
use quire_lab::tune::verdict::{Row, Verdict};
use quire_lab::tune::{Plan, words};

use crate::bench::show::{Look, number, scale_of};
use crate::table::Table;
use quire_measure::args::Style;

/// Prints the candidates, the verdict, and the command line to use.
pub fn verdict(
    out: &mut impl Write,
    plan: &Plan,
    verdict: &Verdict,
    (metric, unit): (&str, &str),
    program: &[String],
) -> io::Result<()> {
    let look = Look::of(io::stdout().is_terminal(), Style::Auto);
    let means = verdict.rows.iter().filter_map(|row| row.mean.as_ref().ok());
    let (factor, scaled) = scale_of(unit, means.map(|mean| mean.value));
    let unit = match scaled.unwrap_or(unit) {
        "" => String::new(),
        unit => format!(" in {unit}"),
    };
    let line = command_line(program);
    writeln!(out, "{}", look.bold(&format!("{line}: {metric}{unit}")))?;
    let header = [
        "CANDIDATE",
        "STATE",
        "RUNS",
        "MEAN",
        "±",
        "TIMES PLAIN",
        "CV",
        "TIMES PLAIN'S",
    ];
    let mut table = Table::new(2, &header);
    let tried = plan.candidates.iter().zip(&verdict.rows);
    let tried = tried.filter(|(_, row)| row.state != State::Waiting);
    for ((candidate, _), row) in tried {
        table.row(cells(plan, &candidate.name(), row, factor));
    }
    table.write(out, 2)?;
    for (candidate, why) in &plan.left_out {
        writeln!(out, "{candidate} was left out: {why}")?;
    }
    let is_waiting = |row: &&Row| row.state == State::Waiting;
    match verdict.rows.iter().filter(is_waiting).count() {
        0 => {}
        n => writeln!(out, "Not tried: {n} combinations of what was not the best")?,
    }
    writeln!(out, "{}", words::sentence(plan, verdict))?;
    if let Some(command) = words::command(plan, verdict, program) {
        writeln!(out, "Use: {}", command_line(&command))?;
    }
    Ok(())
}

fn cells(plan: &Plan, name: &str, row: &Row, factor: f64) -> Vec<String> {
    let value = |value: f64| number(value * factor);
    let mean = |show: &dyn Fn(&quire_lab::judge::Estimate) -> String| {
        row.mean.as_ref().map_or("-".into(), show)
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        name.into(),
        state(plan, row),
        row.executions.to_string(),
        mean(&|mean| value(mean.value)),
        mean(&|mean| value(mean.error())),
        ratio(&row.ratio),
        row.variation
            .as_ref()
            .map_or("-".into(), |v| percent(v.value)),
        ratio(&row.variation_ratio),
    ]
}

/// Where a candidate ended. Figures that are not confirmed are those of the search.
fn state(plan: &Plan, row: &Row) -> String {
    match words::fate(plan, row) {
        fate if !fate.is_empty() => fate,
        _ if row.is_confirmed => "confirmed".into(),
        _ => "searched".into(),
    }
}

fn ratio(ratio: &Option<Interval>) -> String {
    match ratio {
        None => "1".into(),
        Some(Err(_)) => "-".into(),
        Some(Ok(r)) => format!("{:.3} ({:.3} to {:.3})", r.value, r.ci_low, r.ci_high),
    }
}

/// Words as a shell reads them.
fn command_line(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%^".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_same_words() {
        let words = ["./a", "b c", "", "it's", "$HOME", "x=1,2"].map(String::from);
        let line = command_line(&words);
        assert_eq!(line, r"./a 'b c' '' 'it'\''s' '$HOME' x=1,2");
        let script = format!("for w in {line}; do printf '%s\\n' \"$w\"; done");
        let done = std::process::Command::new("sh")
            .args(["-c", &script])
            .output();
        let said = String::from_utf8(done.unwrap().stdout).unwrap();
        assert_eq!(said, words.map(|word| word + "\n").concat());
    }
}

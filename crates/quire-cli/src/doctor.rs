//! `quire doctor`: what the machine offers, what is missing and what that
//! costs, and the command that provides it.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, IsTerminal, Write};

use quire_core::config::Policy;
use quire_linux::sysinfo::{Check, Status, frames_status, policy_status, run_checks};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::failure::Outcome;

#[derive(Serialize)]
struct Findings {
    checks: Vec<Check>,
    policies: BTreeMap<&'static str, Status>,
    /// Frames by strategy.
    frames: Status,
}

/// Runs and prints every check.
pub fn doctor(options: &DoctorArgs) -> Outcome<()> {
    let checks = run_checks();
    let policies = Policy::ALL
        .into_iter()
        .map(|policy| (policy.name(), policy_status(policy, &checks)))
        .collect();
    let findings = Findings {
        frames: frames_status(&checks),
        checks,
        policies,
    };
    let stdout = io::stdout();
    let paint = Paint {
        on: stdout.is_terminal() && env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
    };
    let mut out = io::BufWriter::new(stdout.lock());
    if options.json {
        serde_json::to_writer_pretty(&mut out, &findings)?;
        writeln!(out)?;
    } else {
        write_checks(&mut out, &findings.checks, paint)?;
        writeln!(out, "{}", verdict(&findings))?;
        writeln!(out, "{}", frames_verdict(findings.frames))?;
    }
    Ok(out.flush()?)
}

/// Colours, on a terminal.
#[derive(Clone, Copy)]
struct Paint {
    on: bool,
}

impl Paint {
    fn status(self, status: Status) -> String {
        let word = format!("{:<7}", status.name());
        if !self.on {
            return word;
        }
        let colour = match status {
            Status::Ok => 32,
            Status::Limited => 33,
            Status::Missing => 31,
        };
        format!("\x1b[{colour}m{word}\x1b[0m")
    }
}

fn write_checks(out: &mut impl Write, checks: &[Check], paint: Paint) -> io::Result<()> {
    let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for check in checks {
        let status = paint.status(check.status);
        writeln!(out, "{status}  {:<width$}  {}", check.name, check.found)?;
        let indent = " ".repeat("missing  ".len());
        if !check.cost.is_empty() {
            writeln!(out, "{indent}cost:   {}", check.cost)?;
        }
        if !check.remedy.is_empty() {
            writeln!(out, "{indent}remedy: {}", check.remedy)?;
        }
    }
    writeln!(out)
}

/// The policies in the order in which they are named: the default, others that need no more
/// than it, and those that have Quire provide the memory.
const ORDER: [Policy; 5] = [
    Policy::Adaptive,
    Policy::Eager,
    Policy::Base,
    Policy::Reserve,
    Policy::Static,
];

/// One line on which policies work.
fn verdict(findings: &Findings) -> String {
    let names = |status: Status| -> Vec<&str> {
        ORDER
            .into_iter()
            .map(Policy::name)
            .filter(|name| findings.policies.get(name) == Some(&status))
            .collect()
    };
    let groups = [
        ("fully", Status::Ok),
        ("in part", Status::Limited),
        ("with base pages only", Status::Missing),
    ];
    let parts: Vec<String> = groups
        .into_iter()
        .map(|(how, status)| (how, names(status)))
        .filter(|(_, names)| !names.is_empty())
        .map(|(how, names)| format!("{how}: {}", names.join(", ")))
        .collect();
    format!("Policies that work {}", parts.join("; "))
}

/// One line on frames by strategy.
fn frames_verdict(frames: Status) -> &'static str {
    match frames {
        Status::Ok => "Frames by strategy work fully (quire run --frames)",
        Status::Limited => "Frames by strategy work in part (quire run --frames)",
        Status::Missing => "Frames by strategy do not work: they stay the kernel's choice",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_every_policy_once() {
        let policies = BTreeMap::from([
            ("adaptive", Status::Ok),
            ("base", Status::Ok),
            ("eager", Status::Ok),
            ("reserve", Status::Limited),
            ("static", Status::Missing),
        ]);
        let findings = Findings {
            checks: Vec::new(),
            policies,
            frames: Status::Ok,
        };
        assert_eq!(
            verdict(&findings),
            "Policies that work fully: adaptive, eager, base; in part: reserve; with base pages only: static"
        );
    }
}

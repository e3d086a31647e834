//! The machine on which the study is made, and what of it was not prepared.

use std::collections::BTreeMap;
use std::fs;

use quire_lab::run::{Better, FORMAT, Header, Metric};

use crate::nondeterminism::measure::CHOSEN;
use crate::nondeterminism::now;
use crate::nondeterminism::plan::Plan;
use crate::set::worker::{MISSES, MODELLED, TIME};
use crate::system::Machine;

/// A machine with more to do than this disturbs.
const IDLE: f64 = 0.5;

/// What stands above the results.
pub fn header(plan: &Plan) -> Header {
    Header {
        format: FORMAT,
        title: match plan.experiment.realtime {
            false => "Non-determinism by strategies for frames".to_owned(),
            true => "Non-determinism by strategies for frames, real-time".to_owned(),
        },
        started: now(),
        seed: plan.experiment.seed,
        metrics: metrics(),
        environment: facts(plan),
        warnings: warnings(plan),
        // Names and numbers always have a text.
        experiment: serde_json::to_value(&plan.experiment).unwrap_or_default(),
    }
}

fn metrics() -> BTreeMap<String, Metric> {
    let metric = |unit: &str, better, primary| Metric {
        unit: unit.to_owned(),
        better,
        primary,
    };
    BTreeMap::from([
        (TIME.to_owned(), metric("s", Better::Lower, true)),
        (MISSES.to_owned(), metric("", Better::Lower, false)),
        (MODELLED.to_owned(), metric("", Better::Lower, false)),
        (CHOSEN.to_owned(), metric("%", Better::Higher, false)),
    ])
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn facts(plan: &Plan) -> BTreeMap<String, String> {
    let machine = Machine::read();
    let mut facts = BTreeMap::from([
        ("kernel".to_owned(), machine.kernel),
        ("cpu".to_owned(), machine.cpu),
        ("cpus".to_owned(), machine.cpus.to_string()),
        (
            "memory".to_owned(),
            format!("{} bytes", machine.memory_bytes),
        ),
        (
            "virtual machine".to_owned(),
            machine.virtual_machine.to_string(),
        ),
        ("libc".to_owned(), machine.libc),
        ("cache".to_owned(), plan.geometry.describe()),
        ("quire".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    facts.extend(
        machine
            .thp
            .into_iter()
            .map(|(name, value)| (format!("thp {name}"), value)),
    );
    for (name, path) in [
        ("load", "/proc/loadavg"),
        ("aslr", "/proc/sys/kernel/randomize_va_space"),
        ("governor", GOVERNOR),
        ("real-time share", "/proc/sys/kernel/sched_rt_runtime_us"),
    ] {
        facts.extend(read(path).map(|value| (name.to_owned(), value)));
    }
    facts
}

const GOVERNOR: &str = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

fn warnings(plan: &Plan) -> Vec<String> {
    let mut warnings: Vec<String> = plan
        .missing
        .iter()
        .map(|m| format!("left out: {m}"))
        .collect();
    let load = read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    if let Some(load) = load.filter(|load| *load > IDLE) {
        warnings.push(format!(
            "the machine had other work (load {load}): stop it before measuring"
        ));
    }
    if let Some(governor) = read(GOVERNOR).filter(|governor| governor != "performance") {
        warnings.push(format!(
            "the governor is {governor}: `cpupower frequency-set -g performance`"
        ));
    }
    warnings
}

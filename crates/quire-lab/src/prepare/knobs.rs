//! The settings of the kernel that measurements depend on.

use std::fs;
use std::path::{Path, PathBuf};

use super::state::Change;
use crate::experiment::Machine;

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// The governor of processor frequencies.
    Governor,
    /// Whether processors may go above their nominal frequency; the file of Intel's
    /// driver, which says it the other way around.
    IntelTurbo,
    /// The same of other drivers.
    Boost,
    /// Whether programs have their memory at random addresses.
    Aslr,
    /// Transparent huge pages.
    Thp,
    /// Whether the kernel merges pages of the same content.
    Ksm,
    /// Whether the kernel moves pages between nodes.
    Numa,
}

impl Knob {
    /// All.
    pub const ALL: [Knob; 7] = [
        Knob::Governor,
        Knob::IntelTurbo,
        Knob::Boost,
        Knob::Aslr,
        Knob::Thp,
        Knob::Ksm,
        Knob::Numa,
    ];

    /// Its name, as in the file of an experiment.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Knob::Governor => "governor",
            Knob::IntelTurbo | Knob::Boost => "turbo",
            Knob::Aslr => "aslr",
            Knob::Thp => "thp",
            Knob::Ksm => "ksm",
            Knob::Numa => "numa_balancing",
        }
    }

    /// Its files; several where each processor has one.
    fn files(self, root: &Path) -> Vec<PathBuf> {
        let cpu = root.join("sys/devices/system/cpu");
        let one = match self {
            Knob::Governor => return governors(&cpu),
            Knob::IntelTurbo => cpu.join("intel_pstate/no_turbo"),
            Knob::Boost => cpu.join("cpufreq/boost"),
            Knob::Aslr => root.join("proc/sys/kernel/randomize_va_space"),
            Knob::Thp => root.join("sys/kernel/mm/transparent_hugepage/enabled"),
            Knob::Ksm => root.join("sys/kernel/mm/ksm/run"),
            Knob::Numa => root.join("proc/sys/kernel/numa_balancing"),
        };
        Some(one).filter(|path| path.exists()).into_iter().collect()
    }

    /// What it is now: the values of its files, each once.
    pub(super) fn now(self, root: &Path) -> Option<String> {
        let mut values: Vec<String> = self.files(root).iter().filter_map(|p| read(p)).collect();
        values.sort();
        values.dedup();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// What a user can do who is not allowed to change it here.
    fn remedy(self) -> &'static str {
        match self {
            Knob::Governor => "as root, `cpupower frequency-set -g performance`",
            Knob::IntelTurbo => "as root, write 1 to /sys/devices/system/cpu/intel_pstate/no_turbo",
            Knob::Boost => "as root, write 0 to /sys/devices/system/cpu/cpufreq/boost",
            Knob::Aslr => "as root, `sysctl kernel.randomize_va_space=0`, or `aslr` of a variant",
            Knob::Thp => "as root, write to /sys/kernel/mm/transparent_hugepage/enabled",
            Knob::Ksm => "as root, write 0 to /sys/kernel/mm/ksm/run",
            Knob::Numa => "as root, `sysctl kernel.numa_balancing=0`",
        }
    }

    /// The warning that it could not be set.
    pub(super) fn refused(self, why: &str) -> String {
        format!("{} was not set: {why}; {}", self.name(), self.remedy())
    }

    /// The value that keeps the machine quiet; none where it is a choice.
    fn quiet(self) -> Option<&'static str> {
        match self {
            Knob::Governor => Some("performance"),
            Knob::IntelTurbo => Some("1"),
            Knob::Boost | Knob::Ksm | Knob::Numa => Some("0"),
            Knob::Aslr | Knob::Thp => None,
        }
    }
}

/// A setting of this machine that is to be changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    knob: Knob,
    root: &'a Path,
}

impl Target<'_> {
    /// What is to be changed for a value: nothing where it is so already.
    pub fn before(&self, value: &str) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        let files = self.knob.files(self.root);
        if files.is_empty() && matches!(self.knob, Knob::Ksm | Knob::Numa) && value == "0" {
            // A kernel without it does not do it.
            return Ok(changes);
        }
        if files.is_empty() {
            return Err(self.knob.refused("this machine does not show it"));
        }
        for path in files {
            let before = read(&path).ok_or_else(|| self.knob.refused("it cannot be read"))?;
            if before != value {
                let during = value.into();
                changes.push(Change {
                    path,
                    before,
                    during,
                });
            }
        }
        Ok(changes)
    }

    /// The warning that it could not be set.
    pub fn refused(&self, why: &str) -> String {
        self.knob.refused(why)
    }
}

/// The settings that a machine is wanted to have.
pub(super) fn wanted<'a>(machine: &Machine, root: &'a Path) -> Vec<(Target<'a>, String)> {
    let values = |knob| of(machine, knob, root).map(|value| (Target { knob, root }, value));
    Knob::ALL.into_iter().filter_map(values).collect()
}

fn of(machine: &Machine, knob: Knob, root: &Path) -> Option<String> {
    let digit = |on: bool| if on { "1" } else { "0" }.to_owned();
    let has_intel = !Knob::IntelTurbo.files(root).is_empty();
    match knob {
        Knob::Governor => machine.governor.clone(),
        Knob::IntelTurbo => machine.turbo.filter(|_| has_intel).map(|on| digit(!on)),
        Knob::Boost => machine.turbo.filter(|_| !has_intel).map(digit),
        Knob::Aslr => machine.aslr.map(|on| if on { "2" } else { "0" }.to_owned()),
        Knob::Thp => machine.thp.clone(),
        Knob::Ksm => machine.ksm.map(digit),
        Knob::Numa => machine.numa_balancing.map(digit),
    }
}

/// The settings that make a machine noisy, and that it is not wanted to have.
pub(super) fn noisy(machine: &Machine, root: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    for knob in Knob::ALL {
        let (Some(quiet), Some(now)) = (knob.quiet(), knob.now(root)) else {
            continue;
        };
        if now != quiet && of(machine, knob, root).is_none() {
            let (name, remedy) = (knob.name(), knob.remedy());
            let file = knob
                .files(root)
                .first()
                .map(|path| path.display().to_string());
            let file = file.unwrap_or_default();
            warnings.push(format!(
                "{name} was not prepared ({file} is {now}, not {quiet}): use --prepare-machine, or {remedy}"
            ));
        }
    }
    warnings
}

/// The value of a file; of a choice, what is chosen.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Some(chosen.map_or(text.trim(), |(chosen, _)| chosen).to_owned())
}

fn governors(cpu: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cpu).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| entry.path().join("cpufreq/scaling_governor");
    let mut files: Vec<PathBuf> = entries.map(file).filter(|path| path.exists()).collect();
    files.sort();
    files
}

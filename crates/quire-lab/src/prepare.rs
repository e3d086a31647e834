//! The machine as an experiment wants it, and afterwards as it was.
//!
//! Before anything is changed, what was there is written into a file. So it can be put
//! back even after this program was killed: by the next run, or by `quire bench
//! --restore`.

mod knobs;
mod state;

use std::path::PathBuf;

use crate::experiment::Machine;
pub use knobs::Knob;
use state::{Change, State};

/// Where settings are, and where what they were is kept.
#[derive(Clone, Debug)]
pub struct Places {
    /// What stands before `/proc` and `/sys`.
    pub root: PathBuf,
    /// The file of what was.
    pub state: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            root: PathBuf::from("/"),
            state: PathBuf::from("/run/quire-bench.json"),
        }
    }
}

/// Why the machine is not prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// Another run has prepared it.
    #[error("process {pid} has prepared this machine and still runs; wait for its end")]
    Busy {
        /// The run.
        pid: u32,
    },
    /// All was put back, but the note that it is to be put back cannot be removed.
    #[error("cannot remove {}: {error}; all settings were put back, so remove it", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// What was noted cannot be understood.
    #[error("{}: {why}; put the settings back by hand and remove it", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Settings could not be put back.
    #[error("not put back: {0}; `bench --restore` as root tries it again")]
    Left(String),
}

/// A machine that was prepared; it is put back when this is dropped.
#[derive(Debug)]
pub struct Prepared {
    places: Places,
    is_changed: bool,
}

impl Prepared {
    /// Puts back what was changed.
    ///
    /// # Errors
    /// When something could not be; then it is still noted.
    pub fn restore(mut self) -> Result<(), PrepareError> {
        self.put_back()
    }

    fn put_back(&mut self) -> Result<(), PrepareError> {
        match std::mem::take(&mut self.is_changed) {
            true => restore(&self.places).map(drop),
            false => Ok(()),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // Nobody is left to be told; what could not be put back is still noted.
        let _ = self.put_back();
    }
}

/// Prepares the machine, and says what could not be done. What an earlier run that was
/// killed left is put back first.
///
/// # Errors
/// When nothing was changed, because another run has the machine, or because what an
/// earlier run left cannot be put back.
pub fn prepare(
    machine: &Machine,
    places: &Places,
) -> Result<(Prepared, Vec<String>), PrepareError> {
    let mut warnings = Vec::new();
    let wanted = knobs::wanted(machine, &places.root);
    if !wanted.is_empty() && restore(places)? > 0 {
        warnings.push("settings that an earlier run had left were put back first".into());
    }
    let mut changes = Vec::new();
    for (knob, value) in wanted {
        match knob.before(&value) {
            Ok(before) => changes.extend(before.into_iter().map(|before| (knob, before))),
            Err(why) => warnings.push(why),
        }
    }
    let mut prepared = Prepared {
        places: places.clone(),
        is_changed: !changes.is_empty(),
    };
    if changes.is_empty() {
        return Ok((prepared, warnings));
    }
    let notes: Vec<Change> = changes.iter().map(|(_, change)| change.clone()).collect();
    if let Err(error) = State::of_this_process(notes).write(&places.state) {
        // What cannot be put back for certain is not changed.
        prepared.is_changed = false;
        let why = format!("{} cannot be written: {error}", places.state.display());
        warnings.extend(changes.iter().map(|(knob, _)| knob.refused(&why)));
        warnings.sort();
        warnings.dedup();
        return Ok((prepared, warnings));
    }
    for (knob, change) in &changes {
        if let Err(error) = std::fs::write(&change.path, &change.during) {
            warnings.push(knob.refused(&error.to_string()));
        }
    }
    warnings.sort();
    warnings.dedup();
    Ok((prepared, warnings))
}

/// Puts back what a run changed that is no more, and says how many settings that were.
///
/// # Errors
/// When the run goes on, or a setting could not be put back.
pub fn restore(places: &Places) -> Result<usize, PrepareError> {
    let broken = |why| PrepareError::Broken {
        path: places.state.clone(),
        why,
    };
    let Some(state) = State::read(&places.state).map_err(broken)? else {
        return Ok(0);
    };
    if let Some(pid) = state.other_that_runs() {
        return Err(PrepareError::Busy { pid });
    }
    let mut left = Vec::new();
    for change in state.changes.iter().rev() {
        let path = change.path.display();
        match std::fs::write(&change.path, &change.before) {
            Ok(()) => {}
            // A processor that is gone has no settings.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => left.push(format!("{path} to {}: {error}", change.before)),
        }
    }
    if !left.is_empty() {
        return Err(PrepareError::Left(left.join("; ")));
    }
    std::fs::remove_file(&places.state).map_err(|error| PrepareError::State {
        path: places.state.clone(),
        error,
    })?;
    Ok(state.changes.len())
}

/// What makes this machine noisy and was not asked to be changed, each with its remedy.
#[must_use]
pub fn warnings(machine: &Machine, places: &Places) -> Vec<String> {
    knobs::noisy(machine, &places.root)
}

/// What the settings are now, by name, to be shown; those that the machine does not have
/// are left out.
#[must_use]
pub fn settings(places: &Places) -> Vec<(&'static str, String)> {
    let knobs = Knob::ALL.into_iter();
    let now = knobs.filter_map(|knob| Some((knob.name(), knob.now(&places.root)?)));
    now.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// A machine of files.
    fn machine(dir: &Path) -> Places {
        let files = [
            ("sys/kernel/mm/ksm/run", "1\n"),
            (
                "sys/kernel/mm/transparent_hugepage/enabled",
                "always [madvise] never\n",
            ),
            ("proc/sys/kernel/numa_balancing", "1\n"),
            ("proc/sys/kernel/randomize_va_space", "2\n"),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                "powersave\n",
            ),
            (
                "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
                "schedutil\n",
            ),
            ("sys/devices/system/cpu/intel_pstate/no_turbo", "0\n"),
        ];
        for (name, text) in files {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Places {
            root: dir.to_owned(),
            state: dir.join("state.json"),
        }
    }

    fn read(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name))
            .unwrap()
            .trim()
            .to_owned()
    }

    const GOVERNORS: [&str; 2] = [
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor",
    ];

    fn all() -> Machine {
        Machine {
            thp: Some("never".into()),
            aslr: Some(false),
            ..Machine::quiet()
        }
    }

    #[test]
    fn everything_is_prepared_and_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, places) = (dir.path(), machine(dir.path()));
        let (prepared, warnings) = prepare(&all(), &places).unwrap();
        assert_eq!(warnings, [""; 0]);
        assert_eq!(GOVERNORS.map(|g| read(dir, g)), ["performance"; 2]);
        assert_eq!(read(dir, "sys/kernel/mm/ksm/run"), "0");
        assert_eq!(
            read(dir, "sys/kernel/mm/transparent_hugepage/enabled"),
            "never"
        );
        assert_eq!(read(dir, "proc/sys/kernel/randomize_va_space"), "0");
        assert_eq!(
            read(dir, "sys/devices/system/cpu/intel_pstate/no_turbo"),
            "1"
        );
        prepared.restore().unwrap();
        assert_eq!(GOVERNORS.map(|g| read(dir, g)), ["powersave", "schedutil"]);
        assert_eq!(read(dir, "sys/kernel/mm/ksm/run"), "1");
        assert_eq!(
            read(dir, "sys/kernel/mm/transparent_hugepage/enabled"),
            "madvise"
        );
        assert_eq!(
            read(dir, "sys/devices/system/cpu/intel_pstate/no_turbo"),
            "0"
        );
        assert!(!places.state.exists());
    }

    #[test]
    fn it_is_put_back_after_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let places = machine(dir.path());
        let panics = std::panic::catch_unwind(|| {
            let _prepared = prepare(&all(), &places).unwrap();
            assert_eq!(read(dir.path(), "sys/kernel/mm/ksm/run"), "0");
            panic!("on purpose");
        });
        assert!(panics.is_err());
        assert_eq!(read(dir.path(), "sys/kernel/mm/ksm/run"), "1");
        assert!(!places.state.exists());
    }

    #[test]
    fn what_a_killed_run_left_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let places = machine(dir.path());
        let (prepared, _) = prepare(&all(), &places).unwrap();
        std::mem::forget(prepared);
        // As if it had been made by a process that is no more.
        let text = fs::read_to_string(&places.state).unwrap();
        let own = format!("\"pid\":{}", std::process::id());
        assert!(text.contains(&own), "{text}");
        fs::write(&places.state, text.replace(&own, "\"pid\":999999999")).unwrap();
        assert!(restore(&places).unwrap() >= 6);
        assert_eq!(read(dir.path(), "sys/kernel/mm/ksm/run"), "1");
        assert_eq!(restore(&places).unwrap(), 0);
    }

    #[test]
    fn a_machine_that_another_run_has_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let places = machine(dir.path());
        let state = State {
            pid: 1,
            start: quire_linux::sysinfo::process::start_time(1).unwrap(),
            changes: Vec::new(),
        };
        state.write(&places.state).unwrap();
        let busy = prepare(&all(), &places).map(drop);
        assert!(matches!(busy, Err(PrepareError::Busy { pid: 1 })));
        assert_eq!(read(dir.path(), "sys/kernel/mm/ksm/run"), "1");
    }

    #[test]
    fn what_cannot_be_done_is_a_warning_with_its_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let places = machine(dir.path());
        fs::remove_dir_all(dir.path().join("sys/devices")).unwrap();
        let (_prepared, warnings) = prepare(&all(), &places).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("governor"), "{warnings:?}");
        assert!(warnings[1].starts_with("turbo"), "{warnings:?}");
    }

    #[test]
    fn what_was_not_asked_for_is_a_warning_unless_it_is_a_choice() {
        let dir = tempfile::tempdir().unwrap();
        let places = machine(dir.path());
        fs::write(dir.path().join("proc/sys/kernel/numa_balancing"), "0\n").unwrap();
        let noisy = super::warnings(&Machine::default(), &places).join("\n");
        assert_eq!(noisy.lines().count(), 3, "{noisy}");
        for word in ["governor", "turbo", "ksm"] {
            assert!(noisy.contains(word), "{noisy}");
        }
        assert_eq!(super::warnings(&all(), &places), [""; 0]);
    }

    #[test]
    fn without_a_place_to_note_it_nothing_is_changed() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places {
            state: dir.path().join("none/state.json"),
            ..machine(dir.path())
        };
        let (_prepared, warnings) = prepare(&all(), &places).unwrap();
        assert_eq!(warnings.len(), 6, "{warnings:?}");
        assert!(
            warnings.iter().all(|w| w.contains("as root")),
            "{warnings:?}"
        );
        assert_eq!(read(dir.path(), "sys/kernel/mm/ksm/run"), "1");
    }
}

//! Which processes the plan means now. Left out are this process, threads of
//! the kernel, and processes that Quire manages already.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use quire_core::config::{SESSION_PREFIX, SESSION_ROOT};
use quire_core::stat::STAT_FILE_PREFIX;
use quire_core::units::Bytes;
use quire_linux::sysinfo::{process, read_stat_file};

use crate::AttachError;
use crate::pages::ATTACHED_SUFFIX;
use crate::plan::{Rule, Who};

/// A process, and the number of the rule that selected it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected {
    /// The process.
    pub pid: u32,
    /// The rule.
    pub rule: usize,
}

/// The processes that the plan means now, by number.
///
/// # Errors
/// When a process or a control group that was asked for is not there, or the
/// process cannot be attached to.
pub fn select(who: &Who) -> Result<Vec<Selected>, AttachError> {
    let managed = managed();
    let own = std::process::id();
    let suitable = |pid: &u32| *pid != own && !managed.contains(pid);
    let plain = |pid: u32| Selected { pid, rule: 0 };
    match who {
        Who::Pids(pids, _) => {
            let mut pids = pids.clone();
            pids.sort_unstable();
            pids.dedup();
            pids.iter().try_for_each(|pid| check(*pid, own, &managed))?;
            Ok(pids.into_iter().map(plain).collect())
        }
        Who::Group(dir, _) => {
            let members =
                members(dir).ok_or_else(|| AttachError::NoGroup(dir.display().to_string()))?;
            Ok(members.into_iter().filter(suitable).map(plain).collect())
        }
        Who::Rules(rules) => {
            let least = rules
                .iter()
                .filter(|r| !r.exclude)
                .map(|r| r.min_size)
                .min();
            let mut pids = process::all();
            pids.sort_unstable();
            let chosen = pids.into_iter().filter(suitable);
            Ok(chosen.filter_map(|pid| apply(rules, least?, pid)).collect())
        }
    }
}

fn check(pid: u32, own: u32, managed: &BTreeSet<u32>) -> Result<(), AttachError> {
    let unsuitable = |why| Err(AttachError::Unsuitable { pid, why });
    if process::start_time(pid).is_none() {
        return Err(AttachError::NoProcess(pid));
    }
    if pid == own {
        return unsuitable("it is this command itself");
    }
    if managed.contains(&pid) {
        return unsuitable("quire manages it already (see `quire stat`)");
    }
    if process::resident(pid).is_none_or(|size| size == Bytes::ZERO) {
        return unsuitable("it is a thread of the kernel");
    }
    Ok(())
}

/// What `apply` needs is read only as far as the rules ask for it.
fn apply(rules: &[Rule], least: Bytes, pid: u32) -> Option<Selected> {
    let resident = process::resident(pid)?;
    if resident == Bytes::ZERO || resident < least {
        return None;
    }
    let rule = rules.iter().position(|rule| applies(rule, pid, resident))?;
    (!rules[rule].exclude).then_some(Selected { pid, rule })
}

fn applies(rule: &Rule, pid: u32, resident: Bytes) -> bool {
    let program = |pattern: &crate::plan::Pattern| {
        if pattern.has_slash() {
            process::executable(pid).is_some_and(|path| pattern.fits(path))
        } else {
            process::command(pid).is_some_and(|name| pattern.fits(name))
        }
    };
    resident >= rule.min_size
        && rule.program.as_ref().is_none_or(program)
        && rule.cgroup.as_ref().is_none_or(|pattern| {
            let groups = process::control_groups(pid);
            groups.iter().any(|path| pattern.fits(path))
        })
}

/// The processes in a control group and in those below it, by number; nothing
/// where there is no such group.
fn members(dir: &Path) -> Option<Vec<u32>> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    let top = fs::read_to_string(dir.join("cgroup.procs")).ok()?;
    found.extend(top.lines().filter_map(|line| line.parse::<u32>().ok()));
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
                found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
                dirs.push(path);
            }
        }
    }
    Some(found.into_iter().collect())
}

/// The directory of the control group that a user named: a directory, or the
/// path of a group in any hierarchy.
///
/// # Errors
/// When there is none.
pub fn group_dir(name: &str) -> Result<PathBuf, AttachError> {
    const MOUNTS: [&str; 3] = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/memory",
    ];
    let below = name.trim_start_matches('/');
    let places = MOUNTS.iter().map(|mount| Path::new(mount).join(below));
    [PathBuf::from(name)]
        .into_iter()
        .chain(places)
        .find(|dir| dir.join("cgroup.procs").is_file())
        .ok_or_else(|| AttachError::NoGroup(name.to_owned()))
}

/// The processes that have a statistics page. Those that are attached to have one, too,
/// which does not count.
fn managed() -> BTreeSet<u32> {
    let sessions = fs::read_dir(SESSION_ROOT).into_iter().flatten().flatten();
    let is_session = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with(SESSION_PREFIX)
    };
    let pages = sessions
        .filter(is_session)
        .flat_map(|dir| fs::read_dir(dir.path()).into_iter().flatten().flatten());
    pages.filter_map(|page| owner(&page.path())).collect()
}

/// The process that a statistics page belongs to, where it still runs. A page
/// that cannot be read belongs to whom its name says.
fn owner(page: &Path) -> Option<u32> {
    let name = page.file_name()?.to_str()?;
    if name.ends_with(ATTACHED_SUFFIX) {
        return None;
    }
    // The number of a user may follow.
    let number = name.strip_prefix(STAT_FILE_PREFIX)?.split('.').next()?;
    let named: u32 = number.parse().ok()?;
    match read_stat_file(page) {
        Ok(stat) => process::is_alive(stat.pid, stat.start_time).then_some(stat.pid),
        Err(_) => process::start_time(named).map(|_| named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Pattern;
    use quire_core::attach::Threshold;

    fn rule(program: &str) -> Rule {
        Rule {
            program: Some(Pattern::new(program).unwrap()),
            ..Rule::default()
        }
    }

    #[test]
    fn the_first_rule_that_applies_decides() {
        let own = std::process::id();
        let name = process::command(own).unwrap();
        let path = process::executable(own).unwrap();
        let chosen = |rules: &[Rule]| apply(rules, Bytes::ZERO, own).map(|s| s.rule);
        let by_name = rule(&name);
        let by_path = rule(path.to_str().unwrap());
        assert_eq!(chosen(&[rule("nobody"), by_name.clone()]), Some(1));
        assert_eq!(chosen(&[by_path, by_name.clone()]), Some(0));
        let excluded = Rule {
            exclude: true,
            ..by_name.clone()
        };
        assert_eq!(chosen(&[excluded, by_name.clone()]), None);
        let large = Rule {
            min_size: Bytes(1 << 50),
            ..by_name
        };
        assert_eq!(chosen(&[large]), None);
    }

    #[test]
    fn what_cannot_be_attached_to_is_refused() {
        let error = |pid| {
            let who = Who::Pids(vec![pid], Threshold::FULL);
            select(&who).unwrap_err().to_string()
        };
        assert!(error(std::process::id()).contains("itself"));
        assert!(error(u32::MAX).contains("no process"));
        assert!(group_dir("/no/such/group").is_err());
    }

    #[test]
    fn pages_name_those_who_are_managed() {
        let own = std::process::id();
        let named = |name: String| owner(&Path::new("/nowhere").join(name));
        assert_eq!(named(format!("stat.{own}")), Some(own));
        assert_eq!(named(format!("stat.{own}.1000")), Some(own));
        assert_eq!(named(format!("stat.{own}{ATTACHED_SUFFIX}")), None);
        assert_eq!(named("other".to_owned()), None);
    }

    #[test]
    fn this_process_is_never_selected() {
        let all = select(&Who::all_above(Bytes(1), Threshold::FULL)).unwrap();
        assert!(all.iter().all(|s| s.pid != std::process::id()));
    }

    #[test]
    fn groups_below_count() {
        let top = tempfile::tempdir().unwrap();
        let below = top.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(top.path().join("cgroup.procs"), "7\n9\n").unwrap();
        fs::write(below.join("cgroup.procs"), "8\n").unwrap();
        assert_eq!(members(top.path()), Some(vec![7, 8, 9]));
        assert_eq!(members(&below.join("c")), None);
        assert_eq!(group_dir(top.path().to_str().unwrap()).unwrap(), top.path());
    }
}

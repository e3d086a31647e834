//! Processes that outlive what started them.
//!
//! An execution is stopped with its process group. What has left the group, by `setsid` or
//! as a daemon, would stay, and disturb the executions that follow. So this process is the
//! *subreaper* of its descendants while it runs an experiment: an orphan becomes its child,
//! is found here, and is killed.
//!
//! The kernel lists the children of a process in `/proc/self/task/*/children`
//! (`CONFIG_PROC_CHILDREN`). Where it does not, nothing is found and all is as without this
//! module. Children in this process's own group were started by someone else here, and are
//! left alone.

use std::collections::HashSet;
use std::fs;

use rustix::process::{
    Pid, Signal, WaitOptions, child_subreaper, getpgid, getpgrp, getpid, kill_process,
    set_child_subreaper, waitpid,
};

/// Whoever is killed may leave orphans in turn; so often is looked again.
const LOOKS: usize = 1000;

/// Orphans among the descendants become children of this process while this lives.
#[derive(Debug)]
pub(super) struct Adoption {
    /// Whether they did before.
    before: Option<Pid>,
}

impl Adoption {
    /// Begins. Every Linux that has `pidfd_open` can do it.
    pub(super) fn begin() -> Adoption {
        let before = child_subreaper().ok().flatten();
        let _ = set_child_subreaper(Some(getpid()));
        Adoption { before }
    }
}

impl Drop for Adoption {
    fn drop(&mut self) {
        let _ = set_child_subreaper(self.before);
    }
}

/// The children that there are before an execution begins.
#[derive(Debug)]
pub(super) struct Known(HashSet<Pid>);

impl Known {
    /// Those that there are now.
    pub(super) fn now() -> Known {
        Known(children())
    }

    /// Kills the children that have come since, with what these leave, and waits for their
    /// end. What cannot be killed, because it is another user's, stays.
    pub(super) fn end_others(&self) {
        let own = getpgrp();
        let mut passed_over = self.0.clone();
        for _ in 0..LOOKS {
            let found: Vec<Pid> = children().difference(&passed_over).copied().collect();
            if found.is_empty() {
                return;
            }
            for pid in found {
                let is_orphan = getpgid(Some(pid)).is_ok_and(|group| group != own);
                if is_orphan && kill_process(pid, Signal::KILL).is_ok() {
                    // It is a child, and will end: waiting does.
                    let _ = waitpid(Some(pid), WaitOptions::empty());
                } else {
                    passed_over.insert(pid);
                }
            }
        }
    }
}

/// The children of this process, also those that have ended and were not waited for.
fn children() -> HashSet<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let lists = tasks.flatten().filter_map(|task| {
        let list = fs::read_to_string(task.path().join("children"));
        list.ok()
    });
    let pids = |list: String| -> Vec<Pid> {
        let numbers = list.split_whitespace().filter_map(|word| word.parse().ok());
        numbers.filter_map(Pid::from_raw).collect()
    };
    lists.flat_map(pids).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn children_are_listed_and_those_of_this_group_are_left_alone() {
        let known = Known::now();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(children().contains(&pid) && !known.0.contains(&pid));
        let mut other = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        // Children of other tests of this process are known by then, or in its group.
        let only = Known(
            children()
                .into_iter()
                .filter(|pid| *pid != Pid::from_child(&other))
                .collect(),
        );
        only.end_others();
        assert!(other.wait().is_err(), "it was waited for");
        assert!(child.try_wait().unwrap().is_none(), "it was killed");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

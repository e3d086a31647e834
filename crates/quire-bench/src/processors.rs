//! On which processors a thread runs: what is measured with one, or with two that are not the same.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Those of the calling thread, in order.
pub fn of_this_thread() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|it| set.is_set(*it)).collect())
}

/// Has the calling thread, and what it starts from now on, run on these only.
pub fn stay_on(processors: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    processors.iter().for_each(|it| set.set(*it));
    Ok(sched_setaffinity(None, &set)?)
}

//! Processor time that was used so far, in seconds.

use rustix::time::{ClockId, clock_gettime};

/// That of all threads of this process.
pub fn cpu_seconds() -> f64 {
    seconds_of(ClockId::ProcessCPUTime)
}

/// That of the calling thread.
pub fn cpu_seconds_of_this_thread() -> f64 {
    seconds_of(ClockId::ThreadCPUTime)
}

fn seconds_of(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

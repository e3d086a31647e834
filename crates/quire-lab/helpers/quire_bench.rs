//! Reports measurements to `quire bench`. Copy this file into your program as a module;
//! it needs the standard library only.
//!
//! ```text
//! mod quire_bench;
//! for _ in 0..quire_bench::measurements(10) {
//!     quire_bench::measured("time", work);
//! }
//! ```
//!
//! Without `quire bench` nothing is reported.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::time::Instant;

/// Reports a value. Units are such as `s`, `ms`, `us`, `ns`, `bytes`, `KiB` or `1/s`.
pub fn report(metric: &str, value: f64, unit: &str) {
    let Some(fd) = env::var("QUIRE_BENCH_FD").ok().and_then(|fd| fd.parse::<i32>().ok()) else {
        return;
    };
    // Opened by its path, which takes no unsafe code.
    let opened = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"));
    let Ok(mut pipe) = opened else { return };
    // A program that closes descriptors may have put a file of its own there.
    let is_pipe = pipe.metadata().is_ok_and(|about| about.file_type().is_fifo());
    if is_pipe {
        let line = format!("quire: {metric} {value:e} {unit}\n");
        // Nobody wants to know where the pipe is closed.
        let _ = pipe.write_all(line.as_bytes());
    }
}

/// How many measurements are wanted, or `otherwise` where nobody says.
pub fn measurements(otherwise: usize) -> usize {
    let wanted = env::var("QUIRE_BENCH_MEASUREMENTS").ok();
    let wanted = wanted.and_then(|text| text.parse().ok());
    wanted.filter(|wanted| *wanted > 0).unwrap_or(otherwise)
}

/// Runs `work` and reports how long it took.
pub fn measured<T>(metric: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    report(metric, start.elapsed().as_secs_f64(), "s");
    result
}

//! What it costs on this machine to wake a thread: that is most of what a touch costs
//! that is told to another thread, and on a virtual machine several times as much as
//! elsewhere.

use std::sync::mpsc::channel;
use std::time::Instant;

use anyhow::{Context, Result};

/// Microseconds from the moment in which a sleeping thread is sent something until it
/// has it: half of the median round trip.
pub fn cost_us(quick: bool) -> Result<f64> {
    let trips = if quick { 200 } else { 4000 };
    let (to, inbox) = channel::<()>();
    let (outbox, from) = channel();
    let echo = std::thread::spawn(move || inbox.iter().try_for_each(|()| outbox.send(())));
    let mut times = Vec::with_capacity(trips);
    for _ in 0..trips {
        let start = Instant::now();
        to.send(()).context("the other thread has ended")?;
        from.recv().context("the other thread has ended")?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
    }
    drop(to);
    // It ends well: its outbox is heard until here.
    let _ = echo.join();
    quire_stats::median(&times).context("no round trip was made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_takes_time() {
        assert!((0.05..100_000.0).contains(&cost_us(true).unwrap()));
    }
}

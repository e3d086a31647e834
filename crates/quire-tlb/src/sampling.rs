//! When windows are taken, and which are kept.
//!
//! Windows lie at equal intervals over a run whose length nobody knows. When
//! as many are kept as the plan allows, every second one is dropped and the
//! interval doubles. So a report stands on between half and all of the windows
//! that the plan allows, spread evenly over the whole run, and the time spent
//! on windows grows only with the logarithm of the run's.

use std::time::Duration;

/// How windows are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Steps in a window: instructions, and further rounds of repeated string
    /// instructions.
    pub window: u64,
    /// Steps at the beginning of each window that only warm the model up and
    /// are not counted.
    pub warm_up: u64,
    /// The most windows that are kept, an even number.
    pub windows: usize,
    /// How long the program runs freely between windows, at first. It is never
    /// less than the last window took.
    pub every: Duration,
    /// How long it runs freely before the first window.
    pub after: Duration,
}

impl Plan {
    /// One window without an end, for the thread that runs at its beginning.
    #[must_use]
    pub fn whole(after: Duration) -> Plan {
        Plan {
            window: u64::MAX,
            warm_up: 0,
            windows: 1,
            every: Duration::ZERO,
            after,
        }
    }

    /// Whether this is one window without an end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.window == u64::MAX
    }
}

/// What was kept, and when the next one is due.
#[derive(Clone, Debug)]
pub struct Sampling<T> {
    most: usize,
    every: Duration,
    kept: Vec<T>,
    taken: usize,
}

impl<T> Sampling<T> {
    /// Nothing kept yet.
    #[must_use]
    pub fn new(plan: &Plan) -> Sampling<T> {
        Sampling {
            // An even number, so that what is left lies at equal intervals.
            most: plan.windows.max(2).next_multiple_of(2),
            every: plan.every,
            kept: Vec::new(),
            taken: 0,
        }
    }

    /// Keeps a window.
    pub fn keep(&mut self, window: T) {
        self.taken += 1;
        if self.kept.len() == self.most {
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
        self.kept.push(window);
    }

    /// How long the program runs freely before the next window.
    #[must_use]
    pub fn every(&self) -> Duration {
        self.every
    }

    /// How many windows were taken, the dropped ones included.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// What was kept, in order of time.
    #[must_use]
    pub fn into_kept(self) -> Vec<T> {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(windows: usize) -> Plan {
        Plan {
            window: 100,
            warm_up: 10,
            windows,
            every: Duration::from_millis(1),
            after: Duration::ZERO,
        }
    }

    #[test]
    fn what_is_kept_lies_at_equal_intervals_over_the_whole_run() {
        let mut sampling = Sampling::new(&plan(8));
        let mut now = Duration::ZERO;
        for taken in 1..200 {
            now += sampling.every();
            sampling.keep(now);
            assert_eq!(sampling.taken(), taken);
            let kept = sampling.clone().into_kept();
            assert!(kept.len() <= 8 && kept.len() >= taken.min(4));
            let gap = |pair: &[Duration]| pair[1] - pair[0] == sampling.every();
            assert!(kept.windows(2).all(gap), "{kept:?}");
            assert!(*kept.last().unwrap() == now && kept[0] == Duration::from_millis(1));
        }
    }
}

//! How often things happen: the difference of two looks at a process's counters.

use std::time::Duration;

use quire_core::stat::Totals;

/// Events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Promotions.
    pub promotions: f64,
    /// Demotions.
    pub demotions: f64,
    /// Preemptions.
    pub preemptions: f64,
    /// Failed reservations.
    pub failures: f64,
    /// Pages that have a strategy for their frames, and got one.
    pub frames: f64,
}

impl Rates {
    /// The rates between two looks; nothing where no time lies between them.
    /// Counters that began anew, as they do at an exec, count from zero.
    pub fn between(before: &Totals, after: &Totals, elapsed: Duration) -> Option<Rates> {
        if elapsed.is_zero() {
            return None;
        }
        let restarted = after.reservations < before.reservations
            || after.promotions < before.promotions
            || after.frame_faults < before.frame_faults
            || after.pager_cpu_ns < before.pager_cpu_ns;
        let before = if restarted {
            &Totals::default()
        } else {
            before
        };
        let rate = |count: fn(&Totals) -> u64| {
            count(after).saturating_sub(count(before)) as f64 / elapsed.as_secs_f64()
        };
        Some(Rates {
            promotions: rate(|t| t.promotions),
            demotions: rate(|t| t.demotions),
            preemptions: rate(|t| t.preemptions),
            failures: rate(|t| t.failed_reservations),
            frames: rate(|t| t.frames_chosen + t.frames_other + t.frames_left),
        })
    }
}

/// A rate in few characters.
pub fn rate_text(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        r if r < 9.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(promotions: u64, demotions: u64) -> Totals {
        Totals {
            promotions,
            demotions,
            ..Totals::default()
        }
    }

    #[test]
    fn rates_are_per_second() {
        let two = Duration::from_secs(2);
        let rates = Rates::between(&totals(10, 4), &totals(13, 4), two).unwrap();
        assert_eq!((rates.promotions, rates.demotions), (1.5, 0.0));
        assert_eq!(
            Rates::between(&totals(1, 1), &totals(2, 2), Duration::ZERO),
            None
        );
    }

    #[test]
    fn frames_are_counted_whosever_they_are() {
        let after = Totals {
            frames_chosen: 30,
            frames_other: 5,
            frames_left: 1,
            ..Totals::default()
        };
        let rates = Rates::between(&Totals::default(), &after, Duration::from_secs(3)).unwrap();
        assert_eq!(rates.frames, 12.0);
    }

    #[test]
    fn counters_that_began_anew_count_from_zero() {
        let second = Duration::from_secs(1);
        let rates = Rates::between(&totals(100, 2), &totals(3, 7), second).unwrap();
        assert_eq!((rates.promotions, rates.demotions), (3.0, 7.0));
    }

    #[test]
    fn rates_are_short() {
        assert_eq!(
            [0.0, 0.25, 9.96, 1234.5].map(rate_text),
            ["0", "0.2", "10", "1234"]
        );
    }
}

//! How long a message and its answer take on a link: the shortest of the last few times.
//! What else the two sides are busy with makes single ones longer, never shorter. Where the
//! transport knows how long the way alone takes, that is taken: the two sides' threads may have
//! to wake up first, which takes as long again.

use std::collections::VecDeque;
use std::time::Duration;

/// So many are remembered.
const REMEMBERED: usize = 8;

/// The last few times that a message and its answer took.
#[derive(Clone, Debug, Default)]
pub struct RoundTrip(VecDeque<Duration>);

impl RoundTrip {
    /// An answer came after so long.
    pub fn took(&mut self, time: Duration) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(time);
    }

    /// The shortest of them, if there were any.
    #[must_use]
    pub fn shortest(&self) -> Option<Duration> {
        self.0.iter().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_shortest_of_the_last_few(times in prop::collection::vec(any::<u32>(), 0..40)) {
            let times: Vec<Duration> = times.into_iter().map(|time| Duration::from_nanos(time.into())).collect();
            let mut round_trip = RoundTrip::default();
            prop_assert_eq!(round_trip.shortest(), None);
            for (at, time) in times.iter().enumerate() {
                round_trip.took(*time);
                let last = &times[(at + 1).saturating_sub(8)..=at];
                prop_assert_eq!(round_trip.shortest(), last.iter().min().copied());
            }
        }
    }
}

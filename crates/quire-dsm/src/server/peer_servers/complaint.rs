//! What is tried again and again is said once, and now and then as long as it goes on. No I/O.

use std::time::{Duration, Instant};

/// The same is said again after so long.
const OFTEN: Duration = Duration::from_secs(10);

/// What was said last, and when.
#[derive(Debug, Default)]
pub(super) struct Complaint(Option<(Instant, String)>);

impl Complaint {
    /// Whether something is to be said now; then it counts as said.
    pub fn is_due(&mut self, now: Instant, text: &str) -> bool {
        let is_known = |(at, said): &(Instant, String)| said == text && now < *at + OFTEN;
        let is_due = !self.0.as_ref().is_some_and(is_known);
        if is_due {
            self.0 = Some((now, text.to_owned()));
        }
        is_due
    }

    /// It is well again.
    pub fn is_over(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_now_and_then() {
        let mut complaint = Complaint::default();
        let begin = Instant::now();
        let mut at = |millis: u64, text| {
            let now = begin + Duration::from_millis(millis);
            complaint.is_due(now, text)
        };
        assert!(at(0, "away"));
        assert!(!at(250, "away"));
        assert!(at(500, "refused"));
        assert!(!at(10_400, "refused"));
        assert!(at(10_500, "refused"));
        complaint.is_over();
        assert!(complaint.is_due(begin + OFTEN, "refused"));
    }
}

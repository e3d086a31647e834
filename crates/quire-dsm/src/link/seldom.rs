//! Lines that would say the same again and again: one at once, then one a minute.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// Between two lines.
const BETWEEN: Duration = Duration::from_secs(60);

/// When such a line is due.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    last: Option<Instant>,
    left_out: u64,
    /// A line was written of what is not over.
    is_told: bool,
}

impl Seldom {
    /// Nothing has happened.
    pub const fn new() -> Seldom {
        Seldom {
            last: None,
            left_out: 0,
            is_told: false,
        }
    }

    /// It happened again. What is to stand behind the line, if one is due.
    pub fn due(&mut self, now: Instant) -> Option<String> {
        if self.last.is_some_and(|last| now < last + BETWEEN) {
            self.left_out += 1;
            return None;
        }
        (self.last, self.is_told) = (Some(now), true);
        Some(match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            left_out => format!(" ({left_out} times more in the last minute)"),
        })
    }

    /// A server could not be reached, or its link broke; it is tried again. Writes the line, if it is due.
    pub fn unreachable(&mut self, now: Instant, who: impl Display, why: &dyn Display) {
        if let Some(more) = self.due(now) {
            tracing::warn!("{who}: {why}; connecting again{more}");
        }
    }

    /// It is reached. Writes a line, if one said that it was not.
    pub fn reached(&mut self, who: impl Display) {
        if self.over() {
            tracing::warn!("{who}: connected");
        }
    }

    /// It is over. Whether a line was written of it, so that one is due that says so. What happens again
    /// soon is one of the lines of this minute.
    pub fn over(&mut self) -> bool {
        std::mem::take(&mut self.is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_and_then_one_a_minute() {
        let start = Instant::now();
        let mut seldom = Seldom::default();
        let second = Duration::from_secs(1);
        assert_eq!(seldom.due(start).as_deref(), Some(""));
        let told = (1..=120).filter_map(|n| seldom.due(start + n * second));
        let told: Vec<String> = told.collect();
        assert_eq!(told.len(), 2);
        assert!(
            told.iter().all(|told| told.contains("(59 times more")),
            "{told:?}"
        );
        assert!(seldom.over() && !seldom.over());
        assert_eq!(seldom.due(start + 121 * second), None);
        assert!(!seldom.over(), "nothing was said of it");
    }
}

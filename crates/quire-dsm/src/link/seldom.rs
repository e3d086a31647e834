//! Lines that would say the same again and again: one at once, then one a minute.

use std::time::{Duration, Instant};

/// Between two lines.
const BETWEEN: Duration = Duration::from_secs(60);

/// When such a line is due.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    last: Option<Instant>,
    left_out: u64,
}

impl Seldom {
    /// Nothing has happened.
    pub const fn new() -> Seldom {
        Seldom {
            last: None,
            left_out: 0,
        }
    }

    /// It happened again. What is to stand behind the line, if one is due.
    pub fn due(&mut self, now: Instant) -> Option<String> {
        if self.last.is_some_and(|last| now < last + BETWEEN) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            left_out => format!(" ({left_out} times more in the last minute)"),
        })
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
    }
}

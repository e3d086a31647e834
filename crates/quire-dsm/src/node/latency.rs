//! How long a page takes to come that a program lacks, and that nobody asked for before: on the way
//! to the server, to whoever has the page, and back. What is asked for ahead comes behind other
//! pages, and says nothing of the way. So a program that goes through pages in order has two such
//! pages, the first two, and the shorter of the last two times counts: others may have been in the
//! way of the longer one.

use std::time::Duration;

use quire_core::dsm::kernel::Time;
use quire_core::dsm::message::{PageNumber, Pages};

/// The last two times.
#[derive(Debug, Default)]
pub(super) struct Latency {
    /// The page that was asked for last, and when.
    asked: Option<(PageNumber, Time)>,
    before: Option<Duration>,
}

impl Latency {
    /// A page was asked for, for a program that waits for it.
    pub(super) const fn asked(&mut self, page: PageNumber, now: Time) {
        self.asked = Some((page, now));
    }

    /// Pages came: how long pages take, where that is known anew.
    pub(super) fn came(&mut self, pages: Pages, now: Time) -> Option<Duration> {
        let (_, since) = self.asked.take_if(|(page, _)| pages.contains(*page))?;
        let took = Duration::from_nanos(now.0.saturating_sub(since.0));
        let before = self.before.replace(took);
        Some(before.map_or(took, |before| before.min(took)))
    }

    /// The link broke: what was asked for does not come.
    pub(super) const fn lost(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_of_the_last_two_times_counts() {
        let mut latency = Latency::default();
        let one = |number| Pages::one(PageNumber(number));
        assert_eq!(latency.came(one(1), Time(5)), None, "nobody waits for it");
        latency.asked(PageNumber(1), Time(10));
        assert_eq!(latency.came(one(2), Time(11)), None, "not this one");
        assert_eq!(
            latency.came(one(1), Time(40)),
            Some(Duration::from_nanos(30))
        );
        assert_eq!(latency.came(one(1), Time(50)), None, "it came");
        latency.asked(PageNumber(2), Time(60));
        latency.asked(PageNumber(3), Time(70));
        assert_eq!(
            latency.came(one(2), Time(75)),
            None,
            "another one came since"
        );
        assert_eq!(
            latency.came(one(3), Time(150)),
            Some(Duration::from_nanos(30))
        );
        latency.asked(PageNumber(4), Time(200));
        assert_eq!(
            latency.came(one(4), Time(290)),
            Some(Duration::from_nanos(80))
        );
        latency.asked(PageNumber(5), Time(300));
        latency.lost();
        assert_eq!(latency.came(one(5), Time(310)), None, "of another session");
    }
}

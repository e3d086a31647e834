//! What a mapping comes to: pages and runs, and how its pages spread over the
//! colours.

use serde::{Deserialize, Serialize};

use super::{Kind, Run};
use crate::frames::colour::Colours;
use crate::units::{BASE_PAGE, PageCount};

/// Pages and runs, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Pages in frames that hold the process's data.
    pub present_pages: PageCount,
    /// Of these, the pages that superpages map.
    pub superpage_pages: PageCount,
    /// Pages in swap.
    pub swapped_pages: PageCount,
    /// Pages where the kernel's page of zeros is mapped.
    pub zero_pages: PageCount,
    /// Runs of present pages.
    pub present_runs: u64,
    /// The pages of the longest of them.
    pub longest_run_pages: PageCount,
}

impl Tally {
    /// Counts runs.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Tally {
        let mut tally = Tally::default();
        runs.into_iter().for_each(|run| tally.add(run));
        tally
    }

    fn add(&mut self, run: &Run) {
        match run.kind {
            Kind::Swapped => self.swapped_pages += run.pages,
            Kind::Zero => self.zero_pages += run.pages,
            Kind::Anonymous | Kind::File | Kind::Shared => {
                self.present_pages += run.pages;
                self.present_runs += 1;
                self.longest_run_pages = self.longest_run_pages.max(run.pages);
                if run.is_super() {
                    self.superpage_pages += run.pages;
                }
            }
        }
    }

    /// The part of the present pages that superpages map, from 0 to 1; nothing where
    /// no page is present.
    #[must_use]
    pub fn superpage_share(&self) -> Option<f64> {
        let present = self.present_pages.0;
        (present > 0).then(|| self.superpage_pages.0 as f64 / present as f64)
    }
}

/// How many pages of 4 KiB have each colour, by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ColourCounts(Vec<u64>);

impl ColourCounts {
    /// Counts the pages of runs whose frames are known.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>, colours: &Colours) -> ColourCounts {
        let mut counts = ColourCounts(vec![0; colours.count() as usize]);
        for run in runs {
            counts.add(run, colours);
        }
        counts
    }

    /// So many frames in a row as colours repeat after have all colours alike, wherever
    /// they begin; only what is left is looked at frame by frame.
    fn add(&mut self, run: &Run, colours: &Colours) {
        if run.frame.is_none() {
            return;
        }
        let period = (1 << colours.period_bits()) / BASE_PAGE;
        let each = run.pages.0 / period * (period / u64::from(colours.count()));
        self.0.iter_mut().for_each(|count| *count += each);
        let left = (0..run.pages.0 % period).filter_map(|n| run.frame_of(n));
        for frame in left {
            if let Some(count) = self.0.get_mut(colours.of(frame).0 as usize) {
                *count += 1;
            }
        }
    }

    /// The count of each colour.
    #[must_use]
    pub fn each(&self) -> &[u64] {
        &self.0
    }

    /// The pages of the rarest colour.
    #[must_use]
    pub fn fewest(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or(0)
    }

    /// The pages of the most frequent colour.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }

    /// All pages whose colour is known.
    #[must_use]
    pub fn all(&self) -> PageCount {
        PageCount(self.0.iter().sum())
    }

    /// The pages that each colour has on average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.all().0 as f64 / self.0.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{mapped, pages};
    use super::*;
    use crate::units::{Bytes, Frame, VirtAddr};

    fn run(frame: u64, pages: u64) -> Run {
        Run {
            address: VirtAddr(0),
            pages: PageCount(pages),
            frame: Some(Frame(frame)),
            page_size: Bytes(BASE_PAGE),
            kind: Kind::Anonymous,
        }
    }

    #[test]
    fn rare_and_frequent_colours_are_told() {
        let colours = Colours::plain(1 << 14);
        let counts = ColourCounts::of(&[run(3, 6), run(3, 1)], &colours);
        assert_eq!(counts.each(), [2, 1, 1, 3]);
        assert_eq!((counts.fewest(), counts.most()), (1, 3));
        assert_eq!((counts.all(), counts.mean()), (PageCount(7), 1.75));
        let hidden = Run {
            frame: None,
            ..run(0, 9)
        };
        assert_eq!(ColourCounts::of(&[hidden], &colours).all(), PageCount(0));
    }

    proptest! {
        #[test]
        fn colours_are_those_of_each_page(
            runs in prop::collection::vec((0u64..5000, 1u64..300), 0..6),
            bits in prop::sample::select(vec!["12,13,14", "12", "12^15,13^17", "14^16,13"]),
        ) {
            let colours: Colours = bits.parse().unwrap();
            let runs: Vec<Run> = runs.iter().map(|(frame, pages)| run(*frame, *pages)).collect();
            let mut naive = vec![0; colours.count() as usize];
            for run in &runs {
                for n in 0..run.pages.0 {
                    naive[colours.of(run.frame_of(n).unwrap()).0 as usize] += 1;
                }
            }
            let counts = ColourCounts::of(&runs, &colours);
            prop_assert_eq!(counts.each(), naive);
        }

        #[test]
        fn pages_are_counted_by_what_they_are(pages in pages()) {
            let map = mapped(VirtAddr(0), &pages);
            let tally = Tally::of(map.runs());
            let count = |wanted: &dyn Fn(bool, Kind) -> bool| {
                let has = |page: &&Option<_>| page.is_some_and(|(_, large, kind)| wanted(large, kind));
                PageCount(pages.iter().filter(has).count() as u64)
            };
            prop_assert_eq!(tally.present_pages, count(&|_, kind| kind.is_present()));
            prop_assert_eq!(tally.superpage_pages, count(&|large, kind| large && kind.is_present()));
            prop_assert_eq!(tally.swapped_pages, count(&|_, kind| kind == Kind::Swapped));
            prop_assert_eq!(tally.zero_pages, count(&|_, kind| kind == Kind::Zero));
            prop_assert!(tally.longest_run_pages <= tally.present_pages);
            prop_assert_eq!(tally.superpage_share().is_some(), tally.present_pages.0 > 0);
        }
    }
}

//! The interval of the median.

use crate::estimate::{Estimate, Result, Settings};
use crate::layout::Layout;
use crate::mean::at_least;
use crate::order::quantile_of_sorted;
use crate::percentile;
use crate::random::SplitMix64;
use crate::resample::draw;
use crate::sample::Sample;

/// The median of all measurements with the percentile interval of the hierarchical
/// bootstrap: executions are drawn anew, then measurements within each. An execution of
/// more measurements weighs more.
///
/// # Errors
/// With fewer than two executions.
pub fn of(sample: &Sample, settings: &Settings) -> Result<Estimate> {
    settings.check()?;
    at_least(sample, 2)?;
    let layout = Layout::of(sample);
    let mut random = SplitMix64::stream(settings.seed, 0);
    let mut tally = Tally::new(&layout);
    let value = quantile_of_sorted(&tally.sorted, 0.5);
    let draws = (0..settings.resamples).map(|_| tally.resampled(&layout, &mut random));
    let mut draws: Vec<f64> = draws.collect();
    percentile::estimate(value, &mut draws, layout.scale, settings)
}

/// How often each value was drawn, in the order of the values: so a median is found by
/// counting, without sorting what was drawn.
struct Tally {
    sorted: Vec<f64>,
    /// The rank of each value of the layout.
    ranks: Vec<usize>,
    counts: Vec<u32>,
}

impl Tally {
    fn new(layout: &Layout) -> Tally {
        let values = layout.values();
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
        let mut ranks = vec![0; values.len()];
        for (rank, place) in places.iter().enumerate() {
            ranks[*place] = rank;
        }
        Tally {
            sorted: places.iter().map(|place| values[*place]).collect(),
            counts: vec![0; ranks.len()],
            ranks,
        }
    }

    /// The median of measurements that are drawn anew.
    fn resampled(&mut self, layout: &Layout, random: &mut SplitMix64) -> f64 {
        self.counts.fill(0);
        let mut drawn = 0;
        let places = layout.places();
        for _ in 0..places.len() {
            let place = &places[random.below(places.len())];
            drawn += place.len();
            let ranks = &self.ranks[place.clone()];
            draw(ranks.len(), ranks.len(), random, |which| {
                self.counts[ranks[which]] += 1;
            });
        }
        let (low, high) = (self.drawn_at((drawn - 1) / 2), self.drawn_at(drawn / 2));
        low / 2.0 + high / 2.0
    }

    /// The value at `place`, from 0 on, of those drawn, in order.
    fn drawn_at(&self, place: usize) -> f64 {
        let mut passed = 0;
        let rank = self.counts.iter().position(|count| {
            passed += *count as usize;
            passed > place
        });
        self.sorted[rank.unwrap_or(self.sorted.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the draws of two values hold both, and their median is the mean of these.
    #[test]
    fn of_an_even_number_the_middle_two_count() {
        let sample = Sample::new(vec![vec![0.0], vec![1.0]]).unwrap();
        let settings = Settings {
            confidence: 0.4,
            ..Settings::default()
        };
        let found = of(&sample, &settings).unwrap();
        assert_eq!((found.value, found.error()), (0.5, 0.0));
        let found = of(&sample, &Settings::default()).unwrap();
        assert_eq!((found.ci_low, found.ci_high), (0.0, 1.0));
    }
}

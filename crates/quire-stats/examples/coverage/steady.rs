//! What the search for a steady state says of series whose nature is known.

use quire_stats::random::SplitMix64;
use quire_stats::warmup::{Steady, look};
use quire_stats::{Absent, Settings};

use crate::simulate::{Shape, normal};

/// A kind of series, with measurements of 100.
#[derive(Clone, Copy, Debug)]
pub enum Series {
    /// Steady, with noise of so many per cent and this shape.
    Noise(Shape, f64),
    /// Steady; each measurement is in one of two modes by itself, 20 % apart, three in ten
    /// of them in the slower one.
    Modes,
    /// Steady, with normal noise of 1 %, of which half is carried over from the one before.
    Carried,
    /// The first ten are slower by so many per cent; normal noise of 1 %.
    Warm(f64),
    /// Ten fast ones, then ten that are 40 % slower, and so on; normal noise of 1 %.
    Cycle,
}

impl Series {
    fn draw(self, count: usize, random: &mut SplitMix64) -> Vec<f64> {
        let mut carried = 0.0;
        let one = |place: usize| {
            let noise = normal(random);
            match self {
                Series::Noise(shape, percent) => 100.0 + percent * shape.number(random),
                Series::Modes => noise + if random.below(10) < 3 { 120.0 } else { 100.0 },
                Series::Carried => {
                    carried = 0.5 * carried + noise;
                    100.0 + carried
                }
                Series::Warm(percent) => noise + 100.0 + if place < 10 { percent } else { 0.0 },
                Series::Cycle => {
                    noise
                        + if (place / 10).is_multiple_of(2) {
                            100.0
                        } else {
                            140.0
                        }
                }
            }
        };
        (0..count).map(one).collect()
    }
}

/// The parts of `trials` series of `count` that are said to be flat, to warm up, to slow
/// down, and never to settle, in per cent.
pub fn verdicts(series: Series, count: usize, trials: u64) -> Result<[f64; 4], Absent> {
    let mut verdicts = [0.0; 4];
    for trial in 0..trials {
        let mut random = SplitMix64::new(1 + trial * 1_000_003);
        let values = series.draw(count, &mut random);
        let verdict = match look(&values, &Settings::default())? {
            Steady::Flat => 0,
            Steady::After(_) => 1,
            Steady::SlowsDown(_) => 2,
            Steady::Never => 3,
        };
        verdicts[verdict] += 100.0 / trials as f64;
    }
    Ok(verdicts)
}

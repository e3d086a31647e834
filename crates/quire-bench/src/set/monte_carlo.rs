//! Monte Carlo integration: the part of points at random that lie in a quarter of the
//! unit circle.

use std::f64::consts::PI;

use anyhow::{Result, ensure};

use crate::kernels::Numbers;
use crate::set::Work;

/// Points of an operation.
const POINTS: u64 = 1 << 19;
/// How many standard deviations the estimate may be off.
const DEVIATIONS: f64 = 6.0;

/// The integration, which goes on with other points each time.
pub struct MonteCarlo {
    numbers: Numbers,
    /// Where the last operation began.
    before: Numbers,
    inside: u64,
}

impl MonteCarlo {
    /// One that always takes the same points.
    pub fn new() -> MonteCarlo {
        let numbers = Numbers::new(5);
        MonteCarlo {
            before: numbers.clone(),
            numbers,
            inside: 0,
        }
    }

    /// The same count with whole numbers.
    fn by_whole_numbers(&self) -> u64 {
        let mut numbers = self.before.clone();
        let mut square = || u128::from(numbers.word()).pow(2);
        let inside = (0..POINTS).filter(|_| square() + square() <= 1 << 106);
        inside.count() as u64
    }
}

impl Work for MonteCarlo {
    fn operate(&mut self) -> Result<()> {
        self.before = self.numbers.clone();
        self.inside = 0;
        for _ in 0..POINTS {
            let (x, y) = (self.numbers.unit(), self.numbers.unit());
            self.inside += u64::from(x * x + y * y <= 1.0);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let expected = self.by_whole_numbers();
        let inside = self.inside;
        ensure!(
            inside == expected,
            "{inside} points are inside, and not {expected}"
        );
        let estimate = 4.0 * inside as f64 / POINTS as f64;
        let deviation = (PI * (4.0 - PI) / POINTS as f64).sqrt();
        ensure!(
            (estimate - PI).abs() < DEVIATIONS * deviation,
            "pi is not {estimate}"
        );
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        self.inside += 1;
        Ok(())
    }
}

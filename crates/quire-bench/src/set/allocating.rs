//! FFT whose memory is allocated once, or again for each operation (paper 002, appendix
//! A: such benchmarks are very sensitive to how memory is managed).

use anyhow::Result;
use quire_core::units::Bytes;

use crate::kernels::access::Silent;
use crate::kernels::fft;
use crate::set::Work;
use crate::set::numeric::{batch, check_transformed, fft_accesses};
use crate::set::size::Size;

/// Where memory is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the loop: for each operation.
    Inside,
    /// Before the loop: once.
    Outside,
}

impl Place {
    /// Both.
    pub const ALL: [Place; 2] = [Place::Inside, Place::Outside];

    /// The name in those of benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Place::Inside => "inside",
            Place::Outside => "outside",
        }
    }
}

/// Copies numbers, and transforms the copy there and back.
pub struct Fft {
    place: Place,
    numbers: Vec<f64>,
    copy: Vec<f64>,
}

impl Fft {
    /// One whose copy has the size.
    pub fn new(place: Place, size: Size, cache: Bytes) -> Fft {
        let room = size.choose(cache, cache, cache);
        let words = fft::words((room.0 / 8) as usize);
        let mut numbers = vec![0.0; words];
        fft::fill(&mut numbers);
        Fft {
            copy: numbers.clone(),
            place,
            numbers,
        }
    }
}

impl Work for Fft {
    fn batch(&self) -> u32 {
        batch(fft_accesses(self.numbers.len()))
    }

    fn operate(&mut self) -> Result<()> {
        match self.place {
            Place::Inside => {
                // The old one goes first, so that there are never two.
                self.copy = Vec::new();
                self.copy = self.numbers.clone();
            }
            Place::Outside => self.copy.copy_from_slice(&self.numbers),
        }
        fft::there_and_back(&mut self.copy, &mut Silent);
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        check_transformed(&mut self.copy)
    }

    fn spoil(&mut self) -> Result<()> {
        let middle = self.copy.len() / 2;
        self.copy[middle] += 1e-6;
        Ok(())
    }
}

//! FFT, LU and SOR: the kernels that are traced elsewhere, here with nobody listening.
//! Their memory is mapped, touched page after page, and filled.

use std::mem::take;

use anyhow::{Result, ensure};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};

use crate::cli::CacheChoice;
use crate::colours::geometry::Geometry;
use crate::kernels::access::Silent;
use crate::kernels::{Data, Numbers, fft, lu, sor};
use crate::memory::Block;
use crate::set::Work;
use crate::set::size::Size;
use crate::worker::traced;

/// Accesses that a measurement has at least, in batches of whole operations.
const ACCESSES: usize = 2_000_000;

/// Data of at most so many times the cache is traced: more takes long.
const MODELLED: usize = 4;
/// Passes that are traced.
const TRACED: u32 = 2;

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Fast Fourier transformation, there and back.
    Fft,
    /// LU factorisation of a dense matrix.
    Lu,
    /// A sweep of successive over-relaxation.
    Sor,
}

/// How many operations with so many accesses are measured as one.
pub fn batch(accesses: usize) -> u32 {
    let batch = ACCESSES / accesses.max(1);
    batch.clamp(1, 10_000) as u32
}

/// Whole pages that hold so many words, each of which was touched.
fn pages(words: usize) -> Result<Block> {
    let len = (words * 8).next_multiple_of(BASE_PAGE as usize);
    let mut block = Block::map(len)?;
    block.touch(BASE_PAGE as usize);
    Ok(block)
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Kernel; 3] = [Kernel::Fft, Kernel::Lu, Kernel::Sor];

    /// The name in those of benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Fft => "fft",
            Kernel::Lu => "lu",
            Kernel::Sor => "sor",
        }
    }

    /// How many words its data has.
    fn words(self, size: Size, cache: Bytes) -> usize {
        // SciMark2: 1024 and 2^20 complex numbers; 100 and 1000 rows and columns.
        let (small, large) = match self {
            Kernel::Fft => (2 << 10, 2 << 20),
            Kernel::Lu | Kernel::Sor => (100 * 100, 1000 * 1000),
        };
        let room = size.choose(Bytes(small * 8), Bytes(large * 8), cache);
        let room = (room.0 / 8) as usize;
        match self {
            Kernel::Fft => fft::words(room),
            Kernel::Lu => lu::words(room),
            Kernel::Sor => sor::words(room),
        }
    }

    /// Makes its data.
    pub fn prepare(self, size: Size, cache: Bytes) -> Result<Box<dyn Work>> {
        let words = self.words(size, cache);
        let mut block = pages(words)?;
        Ok(match self {
            Kernel::Fft => {
                fft::fill(&mut block.doubles()[..words]);
                Box::new(Fft { block, words })
            }
            Kernel::Lu => {
                let pivots = vec![0; words.isqrt()];
                Box::new(Lu {
                    block,
                    words,
                    pivots,
                })
            }
            Kernel::Sor => {
                sor::Grid::new(&mut block.doubles()[..words]);
                Box::new(Sor {
                    block,
                    words,
                    sweeps: 0,
                })
            }
        })
    }
}

/// A transformation there and back, again and again.
struct Fft {
    block: Block,
    words: usize,
}

/// Compares data that was transformed there and back with the data that
/// [`fft::fill`] makes, and two of its sums with the definition.
pub fn check_transformed(data: &mut [f64]) -> Result<()> {
    let mut numbers = Numbers::new(fft::SEED);
    let mut original = vec![0.0; data.len()];
    original.fill_with(|| numbers.unit());
    let pairs = data.iter().zip(&original);
    for (at, (found, expected)) in pairs.enumerate() {
        ensure!(
            (found - expected).abs() < 1e-9,
            "number {at} is {found} and not {expected} after the transformation and its inverse"
        );
    }
    fft::transform(data, -1.0, &mut Silent);
    for at in [1, data.len() / 4 + 1] {
        let (re, im) = by_definition(&original, at);
        let (found_re, found_im) = (data[2 * at], data[2 * at + 1]);
        ensure!(
            (found_re - re).abs() < 1e-5 && (found_im - im).abs() < 1e-5,
            "sum {at} is {found_re} + {found_im}i and not {re} + {im}i"
        );
    }
    fft::transform(data, 1.0, &mut Silent);
    let scale = 2.0 / data.len() as f64;
    data.iter_mut().for_each(|value| *value *= scale);
    Ok(())
}

/// A sum of the transformation as the definition has it.
fn by_definition(data: &[f64], at: usize) -> (f64, f64) {
    let numbers = data.len() / 2;
    let angle = -2.0 * std::f64::consts::PI / numbers as f64;
    let mut sum = (0.0, 0.0);
    for (n, pair) in data.chunks_exact(2).enumerate() {
        let (sin, cos) = (angle * (at * n % numbers) as f64).sin_cos();
        sum.0 += pair[0] * cos - pair[1] * sin;
        sum.1 += pair[0] * sin + pair[1] * cos;
    }
    sum
}

/// Accesses of a transformation there and back.
pub fn fft_accesses(words: usize) -> usize {
    words * (words.ilog2() as usize) * 4
}

impl Work for Fft {
    fn batch(&self) -> u32 {
        batch(fft_accesses(self.words))
    }

    fn operate(&mut self) -> Result<()> {
        fft::there_and_back(&mut self.block.doubles()[..self.words], &mut Silent);
        Ok(())
    }

    /// Those of the cache that colours are for.
    fn modelled_misses(&mut self) -> Result<Option<f64>> {
        let Ok(geometry) = Geometry::of(&CacheChoice::default(), false) else {
            return Ok(None);
        };
        if self.words * 8 > MODELLED * geometry.size_bytes.0 as usize {
            return Ok(None);
        }
        let start = VirtAddr(self.block.address() as u64);
        let range = AddrRange::new(start, Bytes(self.block.len() as u64));
        let mut data = Data::Fft(&mut self.block.doubles()[..self.words]);
        traced::misses(&mut data, TRACED, range, &geometry)
    }

    fn check(&mut self) -> Result<()> {
        check_transformed(&mut self.block.doubles()[..self.words])
    }

    fn spoil(&mut self) -> Result<()> {
        self.block.doubles()[self.words / 3] += 1e-6;
        Ok(())
    }
}

/// A matrix that is filled and factorised, again and again.
struct Lu {
    block: Block,
    words: usize,
    pivots: Vec<usize>,
}

impl Lu {
    fn matrix(&mut self) -> lu::Matrix<'_> {
        let pivots = take(&mut self.pivots);
        lu::Matrix::with_pivots(&mut self.block.doubles()[..self.words], pivots)
    }
}

impl Work for Lu {
    fn batch(&self) -> u32 {
        batch(self.words * self.words.isqrt())
    }

    fn operate(&mut self) -> Result<()> {
        let mut matrix = self.matrix();
        matrix.fill(&mut Silent);
        matrix.factorise(&mut Silent);
        self.pivots = matrix.into_pivots();
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let mut numbers = Numbers::new(77);
        let vector: Vec<f64> = (0..self.pivots.len()).map(|_| numbers.unit()).collect();
        let matrix = self.matrix();
        let found = matrix.times(&vector);
        self.pivots = matrix.into_pivots();
        let expected = lu::Matrix::filled_times(&vector);
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            ensure!(
                (found - expected).abs() < 1e-8 * vector.len() as f64,
                "the factors times a vector are {found} and not {expected} in row {row}"
            );
        }
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        self.block.doubles()[self.words - 1] += 1.0;
        Ok(())
    }
}

/// A grid over which sweeps go.
struct Sor {
    block: Block,
    words: usize,
    sweeps: u64,
}

impl Sor {
    fn grid(&mut self) -> sor::Grid<'_> {
        sor::Grid::of(&mut self.block.doubles()[..self.words])
    }
}

impl Work for Sor {
    fn batch(&self) -> u32 {
        batch(self.words * 6)
    }

    fn operate(&mut self) -> Result<()> {
        self.sweeps += 1;
        self.grid().sweep(&mut Silent);
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let sweeps = self.sweeps;
        let off = self.grid().off_by(sweeps);
        ensure!(off < 1e-9, "a point is off by {off} after {sweeps} sweeps");
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        self.block.doubles()[self.words / 2] += 1e-6;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_scimarks_and_the_caches() {
        let cache = Bytes::mib(1);
        let words = |kernel: Kernel, size| kernel.words(size, cache);
        assert_eq!(words(Kernel::Fft, Size::Small), 2048);
        assert_eq!(words(Kernel::Fft, Size::Large), 2 << 20);
        assert_eq!(words(Kernel::Lu, Size::Small), 10_000);
        assert_eq!(words(Kernel::Sor, Size::Large), 1_000_000);
        assert_eq!(words(Kernel::Fft, Size::Double), 2 << 17);
        for size in Size::BY_CACHE {
            let room = size.choose(cache, cache, cache).0 / 8;
            let part = words(Kernel::Lu, size) as f64 / room as f64;
            assert!((0.99..=1.0).contains(&part), "{size:?} {part}");
        }
    }
}

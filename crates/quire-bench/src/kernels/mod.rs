//! Numerical kernels, of the kinds that paper 002 measures with: FFT, LU, SOR and
//! sparse matrix times vector, and an array that is read again and again.
//!
//! Each is written once. Whoever runs it says who is told of its accesses: nobody, to
//! take the time, or a model of the cache.
//!
//! | module | holds |
//! |---|---|
//! | [`access`] | loads and stores that somebody may be told of |
//! | [`mod@array`], [`fft`], [`lu`], [`sor`], [`sparse`] | the kernels |

pub mod access;
mod array;
pub mod fft;
pub mod lu;
pub mod sor;
mod sparse;

use clap::ValueEnum;
use quire_core::units::{BASE_PAGE, Bytes};
use serde::{Deserialize, Serialize};

use crate::kernels::access::Recorder;
use crate::memory::Block;

/// A kernel.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// Reads an array from its beginning to its end
    Array,
    /// Fast Fourier transformation, there and back
    Fft,
    /// LU factorisation of a dense matrix
    Lu,
    /// Successive over-relaxation on a grid
    Sor,
    /// Sparse matrix times vector
    Sparse,
}

/// The data of a kernel, ready for it to run.
#[derive(Debug)]
pub enum Data<'a> {
    /// Of [`Kernel::Array`].
    Array(&'a [f64]),
    /// Of [`Kernel::Fft`].
    Fft(&'a mut [f64]),
    /// Of [`Kernel::Lu`].
    Lu(lu::Matrix<'a>),
    /// Of [`Kernel::Sor`].
    Sor(sor::Grid<'a>),
    /// Of [`Kernel::Sparse`].
    Sparse(sparse::Product<'a>),
}

/// Numbers between 0 and 1 that look random, the same ones for the same seed.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// A sequence.
    pub const fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    /// The next number as a whole one: so many times 2⁻⁵³.
    pub fn word(&mut self) -> u64 {
        let next = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d);
        self.0 = next.wrapping_add(0x1405_7b7e_f767_814f);
        self.0 >> 11
    }

    /// The next number.
    pub fn unit(&mut self) -> f64 {
        self.word() as f64 / (1u64 << 53) as f64
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    /// The numbers below `count` in an order at random.
    pub fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

impl Kernel {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Array => "array",
            Kernel::Fft => "fft",
            Kernel::Lu => "lu",
            Kernel::Sor => "sor",
            Kernel::Sparse => "sparse",
        }
    }

    /// What it does, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Kernel::Array => "A contiguous array is read from its beginning to its end.",
            Kernel::Fft => {
                "A complex FFT in place, radix 2, of the largest power of two that fits, and its inverse."
            }
            Kernel::Lu => {
                "A dense square matrix is filled and factorised in place, with partial pivoting."
            }
            Kernel::Sor => "One sweep of successive over-relaxation over a square grid, in place.",
            Kernel::Sparse => {
                "A matrix with eight elements at random places of each row (compressed rows) times a vector."
            }
        }
    }

    /// How much of `room` it uses, in bytes.
    pub fn bytes(self, room: Bytes) -> Bytes {
        let words = (room.0 / 8) as usize;
        let used = match self {
            Kernel::Array => words,
            Kernel::Fft => fft::words(words),
            Kernel::Lu => lu::words(words),
            Kernel::Sor => sor::words(words),
            Kernel::Sparse => sparse::words(words),
        };
        Bytes(used as u64 * 8)
    }

    /// How many passes are traced: as many as show what a pass costs once the data is
    /// in the cache as far as it fits. LU goes over its matrix again and again by
    /// itself.
    pub const fn traced_passes(self) -> u32 {
        match self {
            Kernel::Lu => 1,
            Kernel::Fft => 2,
            Kernel::Array | Kernel::Sor | Kernel::Sparse => 8,
        }
    }

    /// Fills `block`, each page for the first time in the order of its address, with
    /// data for the kernel. The block has as many bytes as [`bytes`](Kernel::bytes)
    /// says, rounded up to whole pages.
    pub fn lay_out(self, block: &mut Block) -> Data<'_> {
        block.touch(BASE_PAGE as usize);
        let words = block.len() / 8;
        match self {
            Kernel::Array => {
                let array = block.doubles();
                array::fill(array);
                Data::Array(array)
            }
            Kernel::Fft => {
                let data = &mut block.doubles()[..fft::words(words)];
                fft::fill(data);
                Data::Fft(data)
            }
            Kernel::Lu => Data::Lu(lu::Matrix::new(block.doubles())),
            Kernel::Sor => Data::Sor(sor::Grid::new(block.doubles())),
            Kernel::Sparse => {
                let rows = sparse::rows(words);
                let (values, places) = block.doubles_and_words(sparse::doubles(rows));
                Data::Sparse(sparse::Product::new(rows, values, places))
            }
        }
    }
}

impl Data<'_> {
    /// One pass of the kernel.
    pub fn pass<R: Recorder>(&mut self, recorder: &mut R) {
        match self {
            Data::Array(array) => {
                std::hint::black_box(array::sum(array, recorder));
            }
            Data::Fft(data) => fft::there_and_back(data, recorder),
            Data::Lu(matrix) => {
                matrix.fill(recorder);
                matrix.factorise(recorder);
            }
            Data::Sor(grid) => grid.sweep(recorder),
            Data::Sparse(product) => product.multiply(recorder),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_core::units::VirtAddr;

    use super::access::Silent;
    use super::*;

    /// Notes where accesses go.
    #[derive(Default)]
    struct Reach {
        least: Option<VirtAddr>,
        most: Option<VirtAddr>,
        count: u64,
    }

    impl Recorder for Reach {
        fn access(&mut self, at: VirtAddr) {
            self.least = Some(self.least.map_or(at, |least| least.min(at)));
            self.most = Some(self.most.map_or(at, |most| most.max(at)));
            self.count += 1;
        }
    }

    #[test]
    fn names_are_what_is_parsed() {
        for kernel in Kernel::value_variants() {
            assert_eq!(Kernel::from_str(kernel.name(), false), Ok(*kernel));
        }
    }

    #[test]
    fn numbers_lie_between_0_and_1() {
        let mut numbers = Numbers::new(3);
        let all: Vec<f64> = (0..1000).map(|_| numbers.unit()).collect();
        assert!(all.iter().all(|x| (0.0..1.0).contains(x)));
        let mean = all.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
        assert!((0..1000).all(|_| numbers.below(7) < 7));
    }

    #[test]
    fn an_order_at_random_has_every_number_once() {
        let mut order = Numbers::new(7).shuffled(1000);
        let followed = order.windows(2).filter(|pair| pair[0] + 1 == pair[1]);
        assert!(followed.count() < 20);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A kernel uses almost all of what it says that it uses, and nothing else.
        #[test]
        fn kernels_keep_to_their_bytes(room in 4096u64..200_000) {
            for kernel in Kernel::value_variants() {
                let bytes = kernel.bytes(Bytes(room));
                prop_assert!(bytes.0 <= room && bytes.0 * 3 > room, "{kernel:?} {bytes:?}");
                let len = bytes.0.next_multiple_of(BASE_PAGE) as usize;
                let mut block = Block::map(len).unwrap();
                let start = VirtAddr(block.address() as u64);
                let mut reach = Reach::default();
                let mut data = kernel.lay_out(&mut block);
                data.pass(&mut Silent);
                data.pass(&mut reach);
                let (least, most) = (reach.least.unwrap() - start, reach.most.unwrap() - start);
                prop_assert!(most.0 < len as u64, "{kernel:?}");
                prop_assert!((most.0 - least.0) * 10 > bytes.0 * 9, "{kernel:?} {least:?} {most:?}");
                prop_assert!(reach.count * 8 >= bytes.0 / 2, "{kernel:?}");
            }
        }
    }
}

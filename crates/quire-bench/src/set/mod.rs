//! The benchmark set: what paper 002 measured with (appendix A), written anew. Each
//! benchmark repeats one operation in a process of its own, reports how long each
//! repetition took, and then checks the result.
//!
//! | module | holds |
//! |---|---|
//! | [`size`] | how large numerical benchmarks are |
//! | [`worker`] | the process that repeats an operation |
//! | [`protocol`] | how a program tells its measurements |
//! | [`numeric`], [`monte_carlo`], [`sparse`] | the kernels of SciMark2 |
//! | [`allocating`] | FFT with allocation inside and outside of the loop |
//! | [`aes`] | encryption of a short text |
//! | [`ping`] | calls between two processes, by TCP and by HTTP |
//! | [`programs`], [`picture`] | compression programs, and what they compress |
//! | [`compile`] | compilation of C and Rust |
//! | [`lex`], [`hex`] | text: tokens of a program, bytes as digits |

mod aes;
mod allocating;
mod compile;
mod hex;
mod lex;
mod monte_carlo;
mod numeric;
mod picture;
pub mod ping;
mod programs;
pub mod protocol;
pub mod size;
mod sparse;
pub mod worker;

use std::sync::LazyLock;

use anyhow::Result;
use quire_core::units::Bytes;

use crate::set::compile::Job;
use crate::set::numeric::Kernel;
use crate::set::ping::Protocol;
use crate::set::programs::Tool;
use crate::set::size::Size;
use crate::system::find_program;

/// All of them, by name.
pub static BENCHMARKS: LazyLock<Vec<Benchmark>> = LazyLock::new(all);

/// Work that can be repeated, and whose result can be checked.
pub trait Work {
    /// How often the operation is done for one measurement, so that this takes long
    /// enough to be timed.
    fn batch(&self) -> u32 {
        1
    }

    /// Does the operation once.
    ///
    /// # Errors
    /// When it cannot be done.
    fn operate(&mut self) -> Result<()>;

    /// Cache misses of an operation, as a model of the cache has them for the frames of
    /// this process; nothing where that is not known.
    ///
    /// # Errors
    /// When the frames cannot be read.
    fn modelled_misses(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }

    /// Compares what the last operation made with what is known, or computed otherwise.
    ///
    /// # Errors
    /// When it is wrong: in what.
    fn check(&mut self) -> Result<()>;

    /// Spoils what the last operation made, so that the check has to fail.
    ///
    /// # Errors
    /// When it cannot be reached.
    fn spoil(&mut self) -> Result<()>;
}

/// How a benchmark is measured (paper 002, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Many measurements in an execution, after one repetition that is not measured: the
    /// paper's "non-Csibe".
    Repeated,
    /// One measurement in an execution: the paper's "Csibe".
    Single,
}

/// A benchmark of the set.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Its name.
    pub name: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Kernel(Kernel, Size),
    MonteCarlo,
    Sparse(Size),
    Allocating(allocating::Place, Size),
    Aes(aes::KeySize),
    Ping(Protocol),
    Tool(&'static Tool),
    Compile(&'static Job),
    Lex,
    Hex,
}

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Kernel(kernel, size) => format!("{}-{}", kernel.name(), size.name()),
            Kind::MonteCarlo => "monte-carlo".to_owned(),
            Kind::Sparse(size) => format!("sparse-{}", size.name()),
            Kind::Allocating(place, size) => format!("fft-{}-{}", place.name(), size.name()),
            Kind::Aes(key) => format!("aes-{}", key.bits()),
            Kind::Ping(protocol) => format!("{}-ping", protocol.name()),
            Kind::Tool(tool) => tool.program.to_owned(),
            Kind::Compile(job) => job.name.to_owned(),
            Kind::Lex => "lex".to_owned(),
            Kind::Hex => "hex".to_owned(),
        }
    }
}

fn all() -> Vec<Benchmark> {
    let sizes = || Size::ALL.into_iter();
    let kernels = Kernel::ALL.into_iter();
    let kernels = kernels.flat_map(|kernel| sizes().map(move |size| Kind::Kernel(kernel, size)));
    let places = allocating::Place::ALL.into_iter();
    let allocating = places.flat_map(|place| {
        let sizes = Size::BY_CACHE.into_iter();
        sizes.map(move |size| Kind::Allocating(place, size))
    });
    kernels
        .chain(sizes().map(Kind::Sparse))
        .chain([Kind::MonteCarlo])
        .chain(allocating)
        .chain(aes::KeySize::ALL.map(Kind::Aes))
        .chain(Protocol::ALL.map(Kind::Ping))
        .chain(programs::TOOLS.iter().map(Kind::Tool))
        .chain(compile::JOBS.iter().map(Kind::Compile))
        .chain([Kind::Lex, Kind::Hex])
        .map(|kind| Benchmark {
            name: kind.name(),
            kind,
        })
        .collect()
}

/// The names of all benchmarks.
pub fn names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|benchmark| benchmark.name.as_str())
}

impl Benchmark {
    /// The benchmark of a name.
    pub fn find(name: &str) -> Option<&'static Benchmark> {
        BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
    }

    /// How it is measured.
    pub fn class(&self) -> Class {
        match self.kind {
            Kind::Tool(_) | Kind::Compile(_) | Kind::Lex | Kind::Hex => Class::Single,
            _ => Class::Repeated,
        }
    }

    /// Why it cannot be run here, or nothing.
    pub fn missing(&self) -> Option<String> {
        let needed: Vec<(&str, &str)> = match self.kind {
            Kind::Tool(tool) => tool.needs().collect(),
            Kind::Compile(job) => vec![job.needs()],
            _ => Vec::new(),
        };
        let (program, remedy) = needed
            .into_iter()
            .find(|(program, _)| find_program(program).is_none())?;
        Some(format!("{program} is missing ({remedy})"))
    }

    /// Makes it ready. `cache` is the size that half, equal and double refer to.
    ///
    /// # Errors
    /// When its input or its processes cannot be made.
    pub fn prepare(&self, cache: Bytes) -> Result<Box<dyn Work>> {
        Ok(match self.kind {
            Kind::Kernel(kernel, size) => kernel.prepare(size, cache)?,
            Kind::MonteCarlo => Box::new(monte_carlo::MonteCarlo::new()),
            Kind::Sparse(size) => Box::new(sparse::Product::new(size, cache)),
            Kind::Allocating(place, size) => Box::new(allocating::Fft::new(place, size, cache)),
            Kind::Aes(key) => Box::new(aes::Text::new(key)),
            Kind::Ping(protocol) => Box::new(ping::Ping::start(protocol)?),
            Kind::Tool(tool) => Box::new(programs::Run::prepare(tool)?),
            Kind::Compile(job) => Box::new(compile::Run::prepare(job)?),
            Kind::Lex => Box::new(lex::Lexing::new()),
            Kind::Hex => Box::new(hex::Encoding::new()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let unique: BTreeSet<&str> = names().collect();
        assert_eq!(unique.len(), BENCHMARKS.len());
        assert!(names().all(|name| Benchmark::find(name).is_some_and(|b| b.name == name)));
        assert!(Benchmark::find("fft").is_none());
    }

    /// Those that need no second process of this program: the others are tested with the
    /// whole program.
    #[test]
    fn what_is_computed_here_is_right_and_what_is_spoiled_is_not() {
        let small = Bytes(64 << 10);
        for benchmark in BENCHMARKS.iter() {
            let other = matches!(
                benchmark.kind,
                Kind::Ping(_) | Kind::Tool(_) | Kind::Compile(_)
            );
            if other || benchmark.name.ends_with("-large") {
                continue;
            }
            let mut work = benchmark.prepare(small).unwrap();
            (0..3).for_each(|_| work.operate().unwrap());
            work.check()
                .unwrap_or_else(|why| panic!("{}: {why:#}", benchmark.name));
            work.spoil().unwrap();
            assert!(work.check().is_err(), "{}", benchmark.name);
        }
    }
}

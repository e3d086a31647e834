//! How fast contents are translated, for each pair of types and machines (paper 003,
//! Table 2): `cargo run --release -p quire-core --example translate`.
//!
//! A page of 4 KiB is copied and translated over and over, as when it is sent. Each figure
//! is the median over repetitions. In the first column of speeds the numbers are ordinary
//! ones. In the second, one in each 256 bytes is one that only the source can hold (NaN, or
//! a reserved operand), and in the third all are, which is as slow as it gets.

use std::hint::black_box;
use std::time::{Duration, Instant};

use quire_core::dsm::types::{Machine, Report, Translation, TypeTag};
use quire_core::units::ObjectOffset;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that are translated between two looks at the clock.
const BATCH: u32 = 64;
/// How long a pair is measured.
const TIME: Duration = Duration::from_millis(60);
/// The fewest repetitions of a pair, however long they take.
const LEAST: usize = 11;

/// Where there are numbers that only the source can hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    Nowhere,
    InEachBlock,
    Everywhere,
}

/// A page of numbers in the form of a machine.
fn page(tag: TypeTag, machine: Machine, special: Special) -> Vec<u8> {
    let odd = |index: usize| match special {
        Special::Nowhere => false,
        Special::InEachBlock => index.is_multiple_of(256 / tag.element() as usize),
        Special::Everywhere => true,
    };
    let number = |index: usize| index as f64 / 7.0 - 11.0;
    let mut page: Vec<u8> = match tag {
        TypeTag::Float32 => (0..PAGE / 4)
            .map(|at| if odd(at) { f32::NAN } else { number(at) as f32 })
            .flat_map(f32::to_le_bytes)
            .collect(),
        TypeTag::Float64 => (0..PAGE / 8)
            .map(|at| if odd(at) { f64::NAN } else { number(at) })
            .flat_map(f64::to_le_bytes)
            .collect(),
        _ => (0..PAGE).map(|at| (at * 7) as u8).collect(),
    };
    let to_machine = Translation::new(Machine::Little, machine);
    let whole = to_machine.in_place(tag, ObjectOffset(0), &mut page, &mut Report::new());
    whole.expect("a page holds whole elements");
    page
}

/// The median speed in GB/s.
fn speed(translation: Translation, tag: TypeTag, special: Special) -> f64 {
    let from = page(tag, translation.from, special);
    let mut to = vec![0; PAGE];
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME || times.len() < LEAST {
        let began = Instant::now();
        for _ in 0..BATCH {
            let mut report = Report::new();
            let from = black_box(&from[..]);
            let done = translation.copy(tag, ObjectOffset(0), from, &mut to, &mut report);
            done.expect("a page holds whole elements");
            black_box((&to, &report));
        }
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let seconds = times[times.len() / 2].as_secs_f64();
    f64::from(BATCH) * PAGE as f64 / seconds / 1e9
}

fn main() {
    let heads = ["from", "to", "usual", "one odd", "all odd"];
    let [from, to, usual, one, all] = heads;
    println!(
        "{:12} {from:>7} {to:>7} {usual:>8} {one:>8} {all:>8}",
        "GB/s"
    );
    for tag in TypeTag::ALL {
        for from in Machine::ALL {
            for to in Machine::ALL {
                let translation = Translation::new(from, to);
                print!("{tag:12} {from:>7} {to:>7}");
                for special in [Special::Nowhere, Special::InEachBlock, Special::Everywhere] {
                    print!(" {:8.2}", speed(translation, tag, special));
                }
                println!();
            }
        }
    }
}

//! How fast contents are translated for machines of other types (paper 003, Table 2): a page
//! of 4 KiB of ordinary numbers is copied and translated over and over, as when it is sent.

use std::hint::black_box;
use std::time::{Duration, Instant};

use quire_core::dsm::types::{Machine, Report, Translation, TypeTag};
use quire_core::units::{BASE_PAGE, ObjectOffset};

use crate::dsm::results::{Bound, Results};
use crate::dsm::{Part, Plan};

const PAGE: usize = BASE_PAGE as usize;
/// Pages that are translated between two looks at the clock.
const BATCH: u32 = 64;
/// GB/s where only the order of bytes differs.
const BYTES: f64 = 4.0;
/// GB/s where floats of a VAX are involved.
const VAX: f64 = 1.0;

/// Measures every pair of types; the slowest of each kind is judged.
pub fn measure(plan: Plan, results: &mut Results) {
    let all: Vec<(TypeTag, Translation)> = pairs().collect();
    let mut speeds: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    for _ in 0..plan.rounds {
        for ((tag, translation), speeds) in all.iter().zip(&mut speeds) {
            speeds.push(speed(*tag, *translation, plan));
        }
    }
    let (mut bytes, mut vax) = (f64::INFINITY, f64::INFINITY);
    for ((tag, translation), speeds) in all.into_iter().zip(speeds) {
        let name = format!("{tag}, {} to {}", translation.from, translation.to);
        let median = results.add(Part::Translation, "", &name, "GB/s", speeds);
        results.paper(paper(tag));
        let slowest = if is_of_vax(tag, translation) {
            &mut vax
        } else {
            &mut bytes
        };
        *slowest = slowest.min(median.unwrap_or(0.0));
    }
    let mut judge = |text: String, value, least| {
        results.judge(
            Part::Translation,
            "",
            text,
            Some(value),
            Bound::AtLeast(least),
        );
    };
    judge(
        format!("order of bytes: the slowest at least {BYTES} GB/s"),
        bytes,
        BYTES,
    );
    judge(
        format!("floats of a VAX: the slowest at least {VAX} GB/s"),
        vax,
        VAX,
    );
}

/// What the paper has for the fastest of its machines and the slowest.
fn paper(tag: TypeTag) -> &'static str {
    match tag {
        TypeTag::Float32 => "0.0003 to 0.004 GB/s",
        TypeTag::Float64 => "0.0001 to 0.004 GB/s",
        TypeTag::Int16 | TypeTag::Int32 => "0.0005 to 0.005 GB/s",
        _ => "",
    }
}

fn pairs() -> impl Iterator<Item = (TypeTag, Translation)> {
    let machines = Machine::ALL.iter();
    let translations = machines.flat_map(|from| {
        let others = Machine::ALL.iter().filter(move |to| *to != from);
        others.map(|to| Translation::new(*from, *to))
    });
    translations.flat_map(|translation| TypeTag::ALL.iter().map(move |tag| (*tag, translation)))
}

/// Whether floats of a VAX are read or written.
fn is_of_vax(tag: TypeTag, translation: Translation) -> bool {
    let vax = |machine| matches!(machine, Machine::VaxD | Machine::VaxG);
    matches!(tag, TypeTag::Float32 | TypeTag::Float64)
        && (vax(translation.from) || vax(translation.to))
}

/// A page of ordinary numbers in the form of a machine.
fn page(tag: TypeTag, machine: Machine) -> Vec<u8> {
    let number = |index: usize| index as f64 / 7.0 - 11.0;
    let mut page: Vec<u8> = match tag {
        TypeTag::Float32 => (0..PAGE / 4)
            .flat_map(|at| (number(at) as f32).to_le_bytes())
            .collect(),
        TypeTag::Float64 => (0..PAGE / 8)
            .flat_map(|at| number(at).to_le_bytes())
            .collect(),
        _ => (0..PAGE).map(|at| (at * 7) as u8).collect(),
    };
    let to_machine = Translation::new(Machine::Little, machine);
    // A page holds whole elements, so that nothing can be wrong.
    let _ = to_machine.in_place(tag, ObjectOffset(0), &mut page, &mut Report::new());
    page
}

/// The median speed in GB/s.
fn speed(tag: TypeTag, translation: Translation, plan: Plan) -> f64 {
    let from = page(tag, translation.from);
    let mut to = vec![0; PAGE];
    let mut times = Vec::new();
    let (start, time) = (
        Instant::now(),
        Duration::from_millis(plan.size(20, 1) as u64),
    );
    while start.elapsed() < time || times.len() < 5 {
        let begun = Instant::now();
        for _ in 0..BATCH {
            let mut report = Report::new();
            let from = black_box(&from[..]);
            // As in `page`.
            let _ = translation.copy(tag, ObjectOffset(0), from, &mut to, &mut report);
            black_box((&to, &report));
        }
        times.push(begun.elapsed().as_secs_f64());
    }
    let seconds = quire_stats::median(&times).unwrap_or(f64::INFINITY);
    f64::from(BATCH) * PAGE as f64 / seconds / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pairs_are_measured_once() {
        let all: Vec<_> = pairs().collect();
        assert_eq!(all.len(), 4 * 3 * TypeTag::ALL.len());
        let vax = all.iter().filter(|(tag, t)| is_of_vax(*tag, *t)).count();
        // Of 12 pairs of machines 10 have a VAX among them, for two types of floats.
        assert_eq!(vax, 2 * 10);
    }
}

//! What frame strategies gave, in the words of all reports.

use quire_core::stat::{FrameCounts, ProcessStat, StrategyStat};

/// Pages by whose frame they got.
pub fn counts(counts: FrameCounts) -> String {
    format!(
        "{} chosen, {} other, {} left",
        counts.chosen.0, counts.other.0, counts.left.0
    )
}

/// The strategies of a process that are asked for frames.
pub fn strategies(stat: &ProcessStat) -> impl Iterator<Item = &StrategyStat> {
    stat.strategies.iter().filter(|s| !s.is_kernels())
}

/// What was given where: a line for all, then one for each of the first `shown` ranges
/// of addresses, and one for the rest. One is enough where all is in one range.
pub fn places(
    all: FrameCounts,
    ranges: impl IntoIterator<Item = (String, FrameCounts)>,
    shown: usize,
) -> Vec<(String, FrameCounts)> {
    let mut places: Vec<(String, FrameCounts)> = ranges.into_iter().take(shown).collect();
    let rest = places
        .iter()
        .fold(all, |rest, (_, counts)| rest.without(*counts));
    let is_rest = rest.pages().0 > 0;
    if places.len() == 1 && !is_rest {
        return places;
    }
    if is_rest && !places.is_empty() {
        places.push(("elsewhere".to_owned(), rest));
    }
    places.insert(0, ("all".to_owned(), all));
    places
}

/// The ranges of a strategy, as [`places`] takes them.
pub fn ranges(strategy: &StrategyStat) -> impl Iterator<Item = (String, FrameCounts)> {
    let placed = strategy.placed.iter();
    placed.map(|placed| (placed.range.to_string(), placed.counts))
}

#[cfg(test)]
mod tests {
    use quire_core::stat::PlacedStat;
    use quire_core::units::{AddrRange, Bytes, PageCount, VirtAddr};

    use super::*;

    fn chosen(pages: u64) -> FrameCounts {
        FrameCounts {
            chosen: PageCount(pages),
            ..FrameCounts::default()
        }
    }

    fn strategy(all: u64, ranges: &[u64]) -> StrategyStat {
        let placed = ranges.iter().enumerate().map(|(n, pages)| PlacedStat {
            range: AddrRange::new(VirtAddr((n as u64 + 1) << 20), Bytes(pages << 12)),
            counts: chosen(*pages),
        });
        StrategyStat {
            target: "heap".to_owned(),
            strategy: "colour".to_owned(),
            counts: chosen(all),
            placed: placed.collect(),
        }
    }

    #[test]
    fn places_add_up() {
        let names = |all, ranges: &[u64]| -> Vec<(String, u64)> {
            let strategy = strategy(all, ranges);
            let places = places(strategy.counts, super::ranges(&strategy), 2);
            places
                .into_iter()
                .map(|(name, c)| (name, c.pages().0))
                .collect()
        };
        let of = |name: &str, pages| (name.to_owned(), pages);
        let (first, second) = ("000000100000-000000105000", "000000200000-000000203000");
        assert_eq!(names(0, &[]), [of("all", 0)]);
        assert_eq!(names(7, &[]), [of("all", 7)]);
        assert_eq!(names(5, &[5]), [of(first, 5)]);
        assert_eq!(
            names(6, &[5]),
            [of("all", 6), of(first, 5), of("elsewhere", 1)]
        );
        let three = [
            of("all", 9),
            of(first, 5),
            of(second, 3),
            of("elsewhere", 1),
        ];
        assert_eq!(names(9, &[5, 3, 1]), three);
    }
}

//! Pages gathered into runs that are handled at once.

use crate::dsm::message::{PageNumber, Pages};

/// Gathers neighbours of a kind, in ascending order, into runs of at most `most` pages.
pub(super) fn runs<K: PartialEq>(
    pages: impl Iterator<Item = (PageNumber, K)>,
    most: u32,
) -> Vec<(Pages, K)> {
    let mut runs: Vec<(Pages, K)> = Vec::new();
    for (number, kind) in pages {
        match runs.last_mut() {
            Some((run, same))
                if *same == kind
                    && run.count < most
                    && run.first.0 + u64::from(run.count) == number.0 =>
            {
                run.count += 1;
            }
            _ => runs.push((Pages::one(number), kind)),
        }
    }
    runs
}

//! What became of increments: each that was done found the next number. What those did who lost
//! their memory may be lost, from some number on; all else has to be there, once.

use std::collections::BTreeMap;

/// An increment that a program has done, and when, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Increment {
    /// What it made of the word.
    pub value: u64,
    pub begin: u64,
    pub end: u64,
}

/// Compares what was done with the word's value at the end. Says how many increments of those
/// who lost their memory are lost.
///
/// # Errors
/// What is not there, is there twice, or was done by two at once.
pub fn check(kept: &[Increment], losers: &[Increment], last: u64) -> Result<usize, String> {
    let mut counted = by_value(kept)?;
    let others = by_value(losers)?;
    let is_lost = |value: &u64| *value > last || counted.contains_key(value);
    let first = others.keys().copied().find(|value| is_lost(value));
    let first = first.unwrap_or(u64::MAX);
    // Whoever has the page now has begun to change it by then.
    let resumed = counted.range(first..).map(|(_, it)| it.end).min();
    let mut lost = 0;
    for (value, it) in others {
        if value < first {
            counted.insert(value, it);
        } else if resumed.is_some_and(|resumed| it.begin > resumed) {
            return Err(format!(
                "{value} was done while another had the page: {it:?}"
            ));
        } else {
            lost += 1;
        }
    }
    let missing = (1..=last).find(|value| !counted.contains_key(value));
    match (missing, counted.last_key_value()) {
        (Some(value), _) => Err(format!("{value} of {last} was done by nobody")),
        (None, Some((value, _))) if *value > last => Err(format!("{value} of {last} is lost")),
        (None, _) => Ok(lost),
    }
}

fn by_value(all: &[Increment]) -> Result<BTreeMap<u64, Increment>, String> {
    let mut counted = BTreeMap::new();
    for it in all {
        if counted.insert(it.value, *it).is_some() {
            return Err(format!("{} was done twice", it.value));
        }
    }
    Ok(counted)
}

#[test]
fn what_is_lost_and_what_is_wrong_is_found() {
    let at = |value, begin| Increment {
        value,
        begin,
        end: begin + 1,
    };
    let kept = [at(1, 10), at(3, 30), at(4, 60), at(5, 70)];
    assert_eq!(check(&kept, &[at(2, 20)], 5), Ok(0));
    assert_eq!(
        check(&kept, &[at(2, 20), at(4, 40), at(5, 50), at(6, 55)], 5),
        Ok(3)
    );
    let wrong: [(&[Increment], &[Increment], u64); 6] = [
        // Nobody did the second; the fifth is lost; one is there twice.
        (&kept, &[], 5),
        (&kept, &[at(2, 20)], 4),
        (&[kept[0], kept[0]], &[], 1),
        (&kept, &[at(2, 20), at(2, 21)], 5),
        // The third was lost, so the fourth cannot be there.
        (
            &[at(1, 10), at(2, 20), at(3, 60)],
            &[at(3, 30), at(4, 40)],
            4,
        ),
        // One goes on with the page when another has it.
        (&kept, &[at(2, 20), at(4, 40), at(5, 65)], 5),
    ];
    for (kept, losers, last) in wrong {
        assert!(
            check(kept, losers, last).is_err(),
            "{kept:?} {losers:?} {last}"
        );
    }
}

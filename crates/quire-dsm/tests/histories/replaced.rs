//! What was replaced does not come back. What a program wrote that lost its pages may be lost,
//! and so the checker does not look at it; but as soon as somebody who lost nothing has written
//! to a word, nobody may find there what was there before, the program that lost it neither:
//! it would still have a page that another one has.

use std::collections::BTreeMap;

use crate::checker::{Kind, Operation};

/// The writes to a word of those who lost nothing, those that began first at the beginning,
/// with the first end of all that began then or later.
type Replacing = Vec<(u64, u64)>;

/// Checks all reads, also those of programs that lost their pages.
///
/// # Errors
/// A read of what had been replaced.
pub fn check_replaced(all: &[Operation], losers: &[u64]) -> Result<(), String> {
    let writes = || all.iter().filter(|it| it.kind == Kind::Write);
    let written: BTreeMap<u64, u64> = writes().map(|it| (it.value, it.end)).collect();
    let mut words: BTreeMap<u64, Replacing> = BTreeMap::new();
    for write in writes().filter(|it| !losers.contains(&it.who)) {
        let word = words.entry(write.word).or_default();
        word.push((write.begin, write.end));
    }
    for word in words.values_mut() {
        word.sort_unstable();
        let mut first = u64::MAX;
        for (_, end) in word.iter_mut().rev() {
            first = first.min(*end);
            *end = first;
        }
    }
    let is_old = |read: &&Operation| {
        let since = written.get(&read.value).copied().unwrap_or(0);
        let word = words.get(&read.word).map_or(&[][..], |word| word);
        let next = word.partition_point(|(begin, _)| *begin <= since);
        word.get(next).is_some_and(|(_, end)| *end < read.begin)
    };
    let mut reads = all.iter().filter(|it| it.kind == Kind::Read);
    match reads.find(is_old) {
        Some(read) => Err(format!("{read:?} found what had been replaced")),
        None => Ok(()),
    }
}

#[test]
fn what_was_replaced_is_found() {
    let one = |who, kind, value, begin| Operation {
        who,
        kind,
        word: 0,
        value,
        begin,
        end: begin + 5,
    };
    let (read, write) = (Kind::Read, Kind::Write);
    let lost = [one(1, write, 7, 10), one(2, write, 8, 20)];
    let with = |last| [&lost[..], &[last]].concat();
    // While it is replaced, either may be found, and later only the new one.
    assert_eq!(check_replaced(&with(one(1, read, 7, 23)), &[1]), Ok(()));
    assert_eq!(check_replaced(&with(one(1, read, 8, 30)), &[1]), Ok(()));
    assert!(check_replaced(&with(one(1, read, 7, 30)), &[1]).is_err());
    assert!(check_replaced(&with(one(1, read, 0, 30)), &[1]).is_err());
    // What replaced it may be lost as well.
    assert_eq!(check_replaced(&with(one(1, read, 7, 30)), &[1, 2]), Ok(()));
}

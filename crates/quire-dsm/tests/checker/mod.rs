//! Whether a history of reads and writes can be that of one memory: for each word there is
//! one order of all operations, each at a moment between its begin and its end, in which
//! every read finds what was written last.
//!
//! Every write writes a value of its own, so who wrote what is known, and the question is
//! answered without a search (Gibbons and Korach, Testing shared memories, 1997). A write
//! and its reads are a *cluster*. From the first end in it to the last begin in it no other
//! value can be there; that is its *zone*. A cluster in which all operations overlap has the
//! zone from its last begin to its first end: somewhere in it, it has to have a moment.

use std::collections::{BTreeMap, BTreeSet};

/// What was done to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
}

/// Something that was done, with the moments when it began and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    pub who: u64,
    pub kind: Kind,
    pub word: u64,
    /// What was read or written. No two writes write the same; 0 is there from the start.
    pub value: u64,
    /// Later than 0.
    pub begin: u64,
    /// `u64::MAX` where nobody knows whether it ended.
    pub end: u64,
}

/// The operations on one value.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    value: u64,
    written: u64,
    first_end: u64,
    last_begin: u64,
}

impl Cluster {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// Takes out what those who lost their pages wrote and nobody else saw: such writes may be
/// lost, and the writer may have seen them before. What others saw had been given back, so
/// it has to stay.
pub fn forget_lost(history: &mut Vec<Operation>, losers: &[u64]) {
    let writes = history.iter().filter(|it| it.kind == Kind::Write);
    let writers: BTreeMap<u64, u64> = writes.map(|it| (it.value, it.who)).collect();
    let is_own = |it: &Operation| writers.get(&it.value) == Some(&it.who);
    let seen: BTreeSet<u64> = history
        .iter()
        .filter(|it| it.kind == Kind::Read && !is_own(it))
        .map(|it| it.value)
        .collect();
    history.retain(|it| !losers.contains(&it.who) || !is_own(it) || seen.contains(&it.value));
}

/// Checks all words.
///
/// # Errors
/// The word and the values that no order explains.
pub fn check(history: &[Operation]) -> Result<(), String> {
    let mut words: BTreeMap<u64, Vec<&Operation>> = BTreeMap::new();
    for operation in history {
        words.entry(operation.word).or_default().push(operation);
    }
    for (word, operations) in words {
        let clusters = clusters(&operations).map_err(|why| format!("word {word}: {why}"))?;
        in_order(&clusters).map_err(|why| format!("word {word}: {why}"))?;
    }
    Ok(())
}

fn clusters(operations: &[&Operation]) -> Result<Vec<Cluster>, String> {
    let start = Cluster {
        value: 0,
        written: 0,
        first_end: 0,
        last_begin: 0,
    };
    let mut clusters = BTreeMap::from([(0, start)]);
    for write in operations.iter().filter(|it| it.kind == Kind::Write) {
        let cluster = Cluster {
            value: write.value,
            written: write.begin,
            first_end: write.end,
            last_begin: write.begin,
        };
        if clusters.insert(write.value, cluster).is_some() {
            return Err(format!("{:#x} was written twice", write.value));
        }
    }
    for read in operations.iter().filter(|it| it.kind == Kind::Read) {
        let Some(cluster) = clusters.get_mut(&read.value) else {
            return Err(format!("{read:?} found what nobody wrote"));
        };
        if read.end < cluster.written {
            return Err(format!("{read:?} found what was written later"));
        }
        cluster.first_end = cluster.first_end.min(read.end);
        cluster.last_begin = cluster.last_begin.max(read.begin);
    }
    Ok(clusters.into_values().collect())
}

fn in_order(clusters: &[Cluster]) -> Result<(), String> {
    let mut forward: Vec<&Cluster> = clusters.iter().filter(|it| it.is_forward()).collect();
    forward.sort_by_key(|it| it.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(format!(
                "{:#x} and {:#x} at once",
                pair[0].value, pair[1].value
            ));
        }
    }
    for other in clusters.iter().filter(|it| !it.is_forward()) {
        let next = forward.partition_point(|it| it.first_end < other.last_begin);
        let around = next.checked_sub(1).map(|at| forward[at]);
        if let Some(around) = around.filter(|it| other.first_end < it.last_begin) {
            return Err(format!(
                "{:#x} while {:#x} was there before and after",
                other.value, around.value
            ));
        }
    }
    Ok(())
}

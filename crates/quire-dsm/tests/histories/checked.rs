//! The checker against one that tries all orders.

use proptest::prelude::*;

use crate::checker::{Kind, Operation, check, forget_lost};

fn operation(kind: Kind, value: u64, begin: u64, end: u64) -> Operation {
    Operation {
        who: 1,
        kind,
        word: 0,
        value,
        begin,
        end,
    }
}

/// Tries all orders.
fn has_order(left: &[Operation], now: u64) -> bool {
    left.is_empty()
        || (0..left.len()).any(|at| {
            let it = left[at];
            let is_next = left.iter().all(|other| other.end >= it.begin);
            let fits = it.kind == Kind::Write || it.value == now;
            let mut rest = left.to_vec();
            rest.remove(at);
            is_next && fits && has_order(&rest, it.value)
        })
}

#[test]
fn good_histories_pass() {
    use Kind::{Read, Write};
    let plain = [
        operation(Read, 0, 1, 2),
        operation(Write, 7, 3, 4),
        operation(Read, 7, 5, 6),
    ];
    assert_eq!(check(&plain), Ok(()));
    let overlapping = [
        operation(Write, 7, 1, 9),
        operation(Read, 0, 2, 3),
        operation(Read, 7, 4, 5),
    ];
    assert_eq!(check(&overlapping), Ok(()));
}

#[test]
fn spoilt_histories_fail() {
    use Kind::{Read, Write};
    let old = [operation(Write, 7, 1, 2), operation(Read, 0, 3, 4)];
    let back = [
        operation(Write, 7, 1, 9),
        operation(Read, 7, 2, 3),
        operation(Read, 0, 4, 5),
    ];
    let early = [operation(Read, 7, 1, 2), operation(Write, 7, 3, 4)];
    let unknown = [operation(Read, 7, 1, 2)];
    let between = [
        operation(Write, 7, 1, 2),
        operation(Write, 8, 3, 4),
        operation(Read, 7, 5, 6),
    ];
    for spoilt in [&old[..], &back, &early, &unknown, &between] {
        assert!(check(spoilt).is_err(), "{spoilt:?}");
    }
}

#[test]
fn only_what_nobody_saw_is_forgotten() {
    use Kind::{Read, Write};
    let other = |it| Operation { who: 2, ..it };
    let lost = [
        operation(Write, 7, 1, 2),
        operation(Read, 7, 3, 4),
        other(operation(Read, 0, 5, 6)),
    ];
    let mut history = lost.to_vec();
    assert!(check(&history).is_err());
    forget_lost(&mut history, &[2]);
    assert!(check(&history).is_err());
    forget_lost(&mut history, &[1]);
    assert_eq!(check(&history), Ok(()));
    let mut seen = lost.to_vec();
    seen.push(other(operation(Read, 7, 3, 4)));
    forget_lost(&mut seen, &[1]);
    assert!(check(&seen).is_err());
}

/// Up to four writes and four reads, at few moments, so that many touch.
fn histories() -> impl Strategy<Value = Vec<Operation>> {
    let moments = || (1..12_u64, 0..6_u64);
    let writes = prop::collection::vec(moments(), 0..4);
    let reads = prop::collection::vec((moments(), 0..4_u64), 0..5);
    (writes, reads).prop_map(|(writes, reads)| {
        let known = writes.len() as u64 + 1;
        let write = |(value, (begin, length)): (usize, (u64, u64))| {
            operation(Kind::Write, value as u64 + 1, begin, begin + length)
        };
        let writes: Vec<_> = writes.into_iter().enumerate().map(write).collect();
        let read = |((begin, length), value): ((u64, u64), u64)| {
            operation(Kind::Read, value % known, begin, begin + length)
        };
        writes
            .into_iter()
            .chain(reads.into_iter().map(read))
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    #[test]
    fn it_says_what_trying_all_orders_says(history in histories()) {
        prop_assert_eq!(check(&history).is_ok(), has_order(&history, 0));
    }
}

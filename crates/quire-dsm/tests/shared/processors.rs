//! Threads that pass pages on go before those that use them, also where they share a processor.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use quire_core::units::Bytes;
use quire_dsm::wire::control::SchedulerKind;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::served::{Served, object, open};

/// Has this thread, and those that it starts, stay on one of its processors, the last one.
fn stay_on_one() {
    let mine = sched_getaffinity(None).expect("it is known");
    let last = (0..CpuSet::MAX_CPU).rev().find(|it| mine.is_set(*it));
    let mut one = CpuSet::new();
    one.set(last.expect("it runs on one"));
    sched_setaffinity(None, &one).expect("that is allowed");
}

/// Two members write to one page. The threads that pass it on stay where the members are, while the
/// server has the other processors. If they do not sleep for long enough that a member gets to run,
/// the page travels for nothing, again and again: 1,800 to 22,000 were written in a second that way,
/// and a million with pages that are used.
#[test]
fn a_page_is_used_where_who_passes_it_on_has_the_same_processor() {
    const FOR: Duration = Duration::from_secs(1);
    let served = Served::start("127.0.0.1:0");
    let first = served.client("first");
    first
        .create(object("word", Bytes(1 << 12), SchedulerKind::Simple))
        .expect("it is new");
    let write = || {
        let client = served.client("member");
        let shared = open(&client, "word");
        let word = &shared.words()[0];
        let until = Instant::now() + FOR;
        let mut written = 0;
        while Instant::now() < until {
            word.fetch_add(1, Ordering::Relaxed);
            written += 1;
        }
        written
    };
    let written: u64 = thread::scope(|scope| {
        let all = scope.spawn(|| {
            stay_on_one();
            let both = [scope.spawn(write), scope.spawn(write)];
            both.map(|member| member.join().expect("no panic"))
                .iter()
                .sum()
        });
        all.join().expect("no panic")
    });
    assert!(written > 100_000, "{written} were written");
}

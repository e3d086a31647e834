//! However clocks drift by up to a tenth, and however long messages take or get lost: a
//! holder has stopped before its grantor gives up. So it has where its machine was asleep meanwhile.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_dsm::link::lease::{Duty, Grantor, Holder, Terms};

const LEASE: Duration = Duration::from_millis(1000);

/// What happens to a pair of messages, a heartbeat and its acknowledgement.
#[derive(Clone, Copy, Debug)]
struct Trip {
    /// Until the heartbeat is there, in milliseconds; lost, if there is none.
    there: Option<u32>,
    /// Until the acknowledgement is there.
    back: Option<u32>,
    /// How late the holder looks at its clock before it sends, in milliseconds.
    late: u32,
}

fn trip() -> impl Strategy<Value = Trip> {
    let delay = || {
        prop_oneof![
            6 => (0_u32..50).prop_map(Some),
            2 => (50_u32..3000).prop_map(Some),
            1 => Just(None),
        ]
    };
    (delay(), delay(), 0_u32..110).prop_map(|(there, back, late)| Trip { there, back, late })
}

/// A clock: its offset and rate against true time.
#[derive(Clone, Copy, Debug)]
struct Clock {
    offset: Duration,
    rate: f64,
}

impl Clock {
    fn at(self, truth: Duration) -> Duration {
        self.offset + truth.mul_f64(self.rate)
    }
}

fn clock() -> impl Strategy<Value = Clock> {
    (0_u64..1_000_000, 0.9_f64..1.1).prop_map(|(offset, rate)| Clock {
        offset: Duration::from_millis(offset),
        rate,
    })
}

/// Messages on their way: when they arrive in true time, and what they say.
struct Wire<T>(Vec<(Duration, T)>);

impl<T> Wire<T> {
    /// In order: none overtakes another.
    fn send(&mut self, now: Duration, delay: u32, what: T) {
        let arrival = now + Duration::from_millis(delay.into());
        let last = self.0.last().map_or(Duration::ZERO, |(at, _)| *at);
        self.0.push((arrival.max(last), what));
    }

    fn arrived(&mut self, now: Duration) -> Vec<T> {
        let count = self.0.iter().take_while(|(at, _)| *at <= now).count();
        self.0.drain(..count).map(|(_, what)| what).collect()
    }
}

/// When the holder's machine is asleep: its clock stands still, and nothing is done there.
#[derive(Clone, Copy, Debug)]
struct Sleep {
    from: Duration,
    length: Duration,
    /// Whether the holder hears of it when its machine wakes.
    is_known: bool,
}

const AWAKE: Sleep = Sleep {
    from: Duration::ZERO,
    length: Duration::ZERO,
    is_known: false,
};

impl Sleep {
    fn end(self) -> Duration {
        self.from + self.length
    }

    fn is_at(self, now: Duration) -> bool {
        (self.from..self.end()).contains(&now)
    }

    /// For how long the machine was awake.
    fn awake(self, now: Duration) -> Duration {
        now - now.clamp(self.from, self.end()).saturating_sub(self.from)
    }
}

/// True times at which the holder stopped and the grantor gave up. Who is asleep has stopped when he
/// fell asleep, if he stops as soon as he wakes.
fn run(
    terms: Terms,
    clocks: [Clock; 2],
    trips: &[Trip],
    sleep: Sleep,
) -> (Option<Duration>, Option<Duration>) {
    let [clock, yours] = clocks;
    let mine = |now| clock.at(sleep.awake(now));
    let mut holder = Holder::new(terms, mine(Duration::ZERO));
    // The hello took a while, too.
    let mut grantor = Grantor::new(terms, yours.at(Duration::from_millis(3)));
    let (mut there, mut back) = (Wire(Vec::new()), Wire(Vec::new()));
    let mut trips = trips.iter();
    let (mut stopped, mut gave_up) = (None, None);
    let mut looks_at = Duration::ZERO;
    for millisecond in 0..16_000 {
        let now = Duration::from_millis(millisecond);
        for (clock, delay) in there.arrived(now) {
            let heard = grantor.heartbeat(yours.at(now));
            if let Some(delay) = delay
                && heard
            {
                back.send(now, delay, clock);
            }
        }
        if grantor.has_given_up(yours.at(now)) {
            gave_up = gave_up.or(Some(now));
        }
        if sleep.is_at(now) {
            continue;
        }
        let wakes = now == sleep.end() && sleep.is_known;
        if wakes {
            holder.slept(sleep.length.mul_f64(clock.rate));
        }
        for clock in back.arrived(now) {
            holder.acknowledged(mine(now), clock);
        }
        if stopped.is_some() || (now < looks_at && !wakes) {
            continue;
        }
        match holder.duty(mine(now)) {
            Duty::Stop if wakes => stopped = Some(sleep.from),
            Duty::Stop => stopped = Some(now),
            Duty::WaitUntil(_) => {}
            Duty::Heartbeat(clock) => {
                let Some(trip) = trips.next() else { continue };
                looks_at = now + Duration::from_millis(trip.late.into());
                if let Some(delay) = trip.there {
                    there.send(now, delay, (clock, trip.back));
                }
            }
        }
    }
    (stopped, gave_up)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_holder_stops_first(mine in clock(), yours in clock(), trips in vec(trip(), 0..40)) {
        let (stopped, gave_up) = run(Terms::new(LEASE), [mine, yours], &trips, AWAKE);
        // Both come, as heartbeats end after the last trip.
        prop_assert!(stopped.unwrap() < gave_up.unwrap(), "{:?} {:?}", stopped, gave_up);
    }

    #[test]
    fn so_it_does_where_its_machine_was_asleep(
        mine in clock(),
        yours in clock(),
        trips in vec(trip(), 0..40),
        from in 0_u64..6000,
        length in 20_u64..5000,
    ) {
        let at = Duration::from_millis;
        let sleep = Sleep { from: at(from), length: at(length), is_known: true };
        let (stopped, gave_up) = run(Terms::new(LEASE), [mine, yours], &trips, sleep);
        prop_assert!(stopped.unwrap() < gave_up.unwrap(), "{:?} {:?}", stopped, gave_up);
    }

    /// Where messages come in time, nobody stops while heartbeats are sent.
    #[test]
    fn nobody_stops_without_need(mine in clock(), yours in clock(), delay in 0_u32..100) {
        let trip = Trip { there: Some(delay), back: Some(delay), late: 0 };
        let (stopped, gave_up) = run(Terms::new(LEASE), [mine, yours], &[trip; 30], AWAKE);
        let sent = Duration::from_millis(30 * 200);
        prop_assert!(stopped.unwrap() > sent.mul_f64(0.9), "{:?}", stopped);
        prop_assert!(gave_up.unwrap() > sent.mul_f64(0.9), "{:?}", gave_up);
    }
}

/// The property can fail: without its margin, a grantor with a fast clock is too early.
#[test]
fn without_a_margin_the_grantor_would_be_first() {
    let terms = Terms {
        margin: Duration::ZERO,
        stopping: Duration::ZERO,
        ..Terms::new(LEASE)
    };
    let clock = |rate| Clock {
        offset: Duration::ZERO,
        rate,
    };
    let (stopped, gave_up) = run(terms, [clock(0.9), clock(1.1)], &[], AWAKE);
    assert!(stopped.unwrap() > gave_up.unwrap());
}

/// The same: who does not know that he slept goes on with what others have.
#[test]
fn who_does_not_hear_that_he_slept_would_be_last() {
    let clock = Clock {
        offset: Duration::ZERO,
        rate: 1.0,
    };
    let sleep = Sleep {
        from: Duration::from_millis(100),
        length: Duration::from_millis(3000),
        is_known: false,
    };
    let (stopped, gave_up) = run(Terms::new(LEASE), [clock; 2], &[], sleep);
    assert!(stopped.unwrap() > gave_up.unwrap());
}

#[test]
fn a_lease_counts_from_when_the_heartbeat_was_sent() {
    let at = Duration::from_millis;
    let terms = Terms::new(LEASE);
    let mut holder = Holder::new(terms, at(0));
    assert_eq!(holder.duty(at(0)), Duty::WaitUntil(at(200)));
    assert_eq!(holder.duty(at(200)), Duty::Heartbeat(200_000_000));
    assert_eq!(holder.duty(at(400)), Duty::Heartbeat(400_000_000));
    assert!(holder.acknowledged(at(700), 200_000_000));
    assert_eq!(holder.stops_at(), at(200) + terms.lease - terms.stopping);
    // What was never sent renews nothing.
    assert!(holder.acknowledged(at(700), 699_000_000));
    assert_eq!(holder.stops_at(), at(200) + terms.lease - terms.stopping);
    assert_eq!(holder.duty(at(1200)), Duty::Stop);
    // Once over, it stays so.
    assert!(!holder.acknowledged(at(1201), 400_000_000));
    assert_eq!(holder.duty(at(1202)), Duty::Stop);
}

#[test]
fn a_grantor_that_gave_up_hears_nothing_any_more() {
    let at = Duration::from_millis;
    let mut grantor = Grantor::new(Terms::new(LEASE), at(0));
    assert!(grantor.heartbeat(at(1000)));
    assert!(!grantor.has_given_up(at(2249)));
    assert!(grantor.has_given_up(at(2250)));
    assert!(!grantor.heartbeat(at(2251)));
    assert!(grantor.has_given_up(at(2252)));
}

//! How much memory may be reserved, and how much must be given back.
//!
//! A reservation takes memory that the program may never use, so it yields to
//! everybody else (paper 000, section 3.4: reservations are preempted when
//! free memory is low). Rules apply at two levels, the whole system and the
//! process's own control group: a floor stays free at each, and only a part of
//! what lies above it is reserved.

use std::time::Duration;

use crate::units::{Bytes, SUPERPAGE};

/// The least that must stay available to the rest of the system.
const SYSTEM_FLOOR_MIN: u64 = 64 << 20;
/// The bounds of what must stay available inside a control group.
const GROUP_FLOOR: (u64, u64) = (4 << 20, 64 << 20);

/// The bounds of the time for which memory goes unwatched, in milliseconds.
const WATCH_MS: (u64, u64) = (2, 1000);
/// The least of it where there is nothing to give back.
const WATCH_IDLE_MS: u64 = 100;
/// How much memory a fast program uses in a millisecond, in bytes: superpages at
/// its first touches, which take 60 to 100 us each.
const USE_PER_MS: u64 = 32 << 20;

/// Free superpages below this are scarce: a fast program uses so much in twice the
/// shortest time for which memory goes unwatched.
const SCARCE: Bytes = Bytes(2 * WATCH_MS.0 * USE_PER_MS);

/// The state of memory, as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// All memory (`MemTotal`).
    pub total: Bytes,
    /// What can be had without swapping (`MemAvailable`).
    pub available: Bytes,
    /// What can be had without dropping caches (`MemFree`).
    pub free: Bytes,
    /// Limit less usage of the process's control group, or of the ancestor
    /// where that is least; `None` where no limit is set.
    pub group_headroom: Option<Bytes>,
    /// The limit that `group_headroom` is measured against.
    pub group_limit: Option<Bytes>,
    /// Whether the kernel reported a stall for want of memory since the last
    /// look (pressure stall information).
    pub stalled: bool,
}

/// What to do about reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// How much more may be reserved now.
    pub may_reserve: Bytes,
    /// How much of what is reserved and not populated must be given back; if
    /// this is not zero, `may_reserve` is.
    pub give_back: Bytes,
    /// How much of that cannot wait: the rest would only keep the reservations in
    /// proportion to what is spare.
    pub urgent: Bytes,
    /// How much is missing of twice the floors, whatever is reserved: when this
    /// is not zero, what is held for the program without being reserved should
    /// go as well.
    pub missing: Bytes,
}

/// What to do when `reserved_unpopulated` is reserved and not populated, and
/// the user allows `reserve_limit` of that.
///
/// Reserved memory counts as used in every number of `state`.
#[must_use]
pub fn advise(
    state: &MemoryState,
    reserved_unpopulated: Bytes,
    reserve_limit: Option<Bytes>,
) -> Advice {
    let urgent = urgent(state, reserved_unpopulated, reserve_limit);
    Advice {
        may_reserve: may_reserve(state, reserved_unpopulated, reserve_limit),
        give_back: urgent.max(surplus(state, reserved_unpopulated)),
        urgent,
        missing: missing(state),
    }
}

/// What has to be freed so that others can take memory for a while before the
/// floors are met.
fn missing(state: &MemoryState) -> Bytes {
    let twice = |floor: Bytes| Bytes(floor.0.saturating_mul(2));
    let system = twice(system_floor(state)).saturating_sub(state.available);
    let group = state.group_headroom.map_or(Bytes::ZERO, |headroom| {
        twice(group_floor(state)).saturating_sub(headroom)
    });
    system.max(group)
}

/// Half of what the system has above its floor, of which little may come out
/// of caches; a quarter of what the group has above its own; both in this step
/// and over all; and the user's limit.
fn may_reserve(state: &MemoryState, reserved: Bytes, limit: Option<Bytes>) -> Bytes {
    if state.stalled {
        return Bytes::ZERO;
    }
    let spare = system_spare(state).0;
    let mut most = part(spare, reserved.0, 2).min(state.free.0.saturating_add(spare / 8));
    if let Some(limit) = limit {
        most = most.min(limit.saturating_sub(reserved).0);
    }
    if let Some(spare) = group_spare(state) {
        most = most.min(part(spare.0, reserved.0, 4));
    }
    Bytes(most)
}

/// What may be added to `reserved`, so that no more than one part in `parts` of
/// all that is spare and reserved is reserved.
fn part(spare: u64, reserved: u64, parts: u64) -> u64 {
    (spare.saturating_add(reserved) / parts).saturating_sub(reserved)
}

/// What a stall, the floors, and the user's limit ask for, as far as it is there to
/// give.
fn urgent(state: &MemoryState, reserved: Bytes, limit: Option<Bytes>) -> Bytes {
    let stall = if state.stalled {
        (reserved.0 / 2).max(SUPERPAGE)
    } else {
        0
    };
    let below = |have: Bytes, floor: Bytes| whole_superpages(floor.saturating_sub(have).0);
    let system = below(state.available, system_floor(state));
    let group = state
        .group_headroom
        .map_or(0, |headroom| below(headroom, group_floor(state)));
    let excess = limit.map_or(0, |limit| reserved.saturating_sub(limit).0);
    Bytes(stall.max(system).max(group).max(excess).min(reserved.0))
}

/// What must be given back so that no more is reserved than is spare above the
/// floors: when others take memory, reservations shrink with what is left, long
/// before the floors are met.
fn surplus(state: &MemoryState, reserved: Bytes) -> Bytes {
    let unequal = |have: Bytes, floor: Bytes| {
        let unequal = floor.0.saturating_add(reserved.0).saturating_sub(have.0);
        whole_superpages(unequal.div_ceil(2))
    };
    let system = unequal(state.available, system_floor(state));
    let group = state
        .group_headroom
        .map_or(0, |headroom| unequal(headroom, group_floor(state)));
    Bytes(system.max(group).min(reserved.0))
}

fn whole_superpages(bytes: u64) -> u64 {
    bytes.div_ceil(SUPERPAGE).saturating_mul(SUPERPAGE)
}

/// What may have to be done when memory becomes short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// Free superpages.
    pub free_superpages: Bytes,
    /// The program may take them at first touches that nobody is told of.
    pub ungated: bool,
    /// There is something to give back.
    pub holds: bool,
}

/// How long memory may go unwatched: no longer than a fast program takes to use
/// up what is spare, or the free superpages. Where nothing can be done about it,
/// longer.
#[must_use]
pub fn watch_again(state: &MemoryState, exposure: Exposure) -> Duration {
    let (soonest, latest) = WATCH_MS;
    let mut spare = group_spare(state).map_or(system_spare(state), |g| g.min(system_spare(state)));
    if exposure.ungated {
        spare = spare.min(exposure.free_superpages.saturating_sub(SCARCE));
    }
    let soonest = match exposure {
        Exposure {
            ungated: false,
            holds: false,
            ..
        } => WATCH_IDLE_MS,
        _ => soonest,
    };
    Duration::from_millis((spare.0 / USE_PER_MS).clamp(soonest, latest))
}

/// Whether the kernel can drop caches to make blocks: a part of memory that is worth
/// a search.
#[must_use]
pub fn has_caches(state: &MemoryState) -> bool {
    state.available.saturating_sub(state.free).0 >= state.total.0 / 16
}

/// Whether free superpages are so few that a program could use them up before
/// somebody looks again. Where they were scarce `before`, it takes twice as many to
/// change that. A program whose first touch finds none is held up while the kernel
/// makes one, or learns that it cannot.
#[must_use]
pub fn scarce(free_superpages: Bytes, before: bool) -> bool {
    free_superpages.0 < if before { 2 * SCARCE.0 } else { SCARCE.0 }
}

/// What the system has above its floor.
fn system_spare(state: &MemoryState) -> Bytes {
    state.available.saturating_sub(system_floor(state))
}

/// What the control group has above its floor; `None` without a limit.
fn group_spare(state: &MemoryState) -> Option<Bytes> {
    let headroom = state.group_headroom?;
    Some(headroom.saturating_sub(group_floor(state)))
}

/// What must stay available to the rest of the system.
fn system_floor(state: &MemoryState) -> Bytes {
    Bytes((state.total.0 / 32).max(SYSTEM_FLOOR_MIN))
}

/// What must stay available inside the control group: an eighth of its limit
/// within bounds, but never so much that a small group is all floor.
fn group_floor(state: &MemoryState) -> Bytes {
    let (low, high) = GROUP_FLOOR;
    let floor = state
        .group_limit
        .map_or(low, |limit| (limit.0 / 8).clamp(low, high).min(limit.0 / 4));
    Bytes(floor)
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn roomy() -> MemoryState {
        MemoryState {
            total: Bytes::mib(4096),
            available: Bytes::mib(2048 + 128),
            free: Bytes::mib(2048),
            ..MemoryState::default()
        }
    }

    fn grouped(limit: u64, headroom: u64) -> MemoryState {
        MemoryState {
            group_limit: Some(Bytes::mib(limit)),
            group_headroom: Some(Bytes::mib(headroom)),
            ..roomy()
        }
    }

    fn advice(may_reserve: u64, give_back: u64) -> Advice {
        Advice {
            may_reserve: Bytes::mib(may_reserve),
            give_back: Bytes::mib(give_back),
            urgent: Bytes::mib(give_back),
            missing: Bytes::ZERO,
        }
    }

    fn lacking(missing: u64, advice: Advice) -> Advice {
        let missing = Bytes::mib(missing);
        Advice { missing, ..advice }
    }

    #[test]
    fn half_of_the_spare_memory_may_be_reserved() {
        assert_eq!(advise(&roomy(), Bytes::ZERO, None), advice(1024, 0));
        assert_eq!(advise(&roomy(), Bytes::mib(8), None), advice(1020, 0));
        let limit = Some(Bytes::mib(24));
        assert_eq!(advise(&roomy(), Bytes::mib(8), limit), advice(16, 0));
        assert_eq!(advise(&roomy(), Bytes::mib(32), limit), advice(0, 8));
    }

    #[test]
    fn caches_are_mostly_left_alone() {
        let state = MemoryState {
            free: Bytes::mib(100),
            ..roomy()
        };
        assert_eq!(advise(&state, Bytes::ZERO, None), advice(356, 0));
    }

    #[test]
    fn the_system_floor_is_restored() {
        let state = MemoryState {
            available: Bytes::mib(127),
            ..roomy()
        };
        let given = |reserved, back| {
            let advised = advise(&state, Bytes::mib(reserved), None);
            assert_eq!(advised, lacking(129, advice(0, back)));
        };
        given(2, 2);
        given(1, 1);
        given(0, 0);
    }

    #[test]
    fn the_group_has_rules_of_its_own() {
        assert_eq!(
            advise(&grouped(512, 264), Bytes::ZERO, None),
            advice(50, 0),
            "a quarter above the floor of 64 MiB"
        );
        assert_eq!(
            advise(&grouped(512, 264), Bytes::mib(40), None),
            advice(20, 0),
            "a quarter over all"
        );
        assert_eq!(
            advise(&grouped(512, 61), Bytes::mib(3), None),
            lacking(67, advice(0, 3)),
            "below the floor"
        );
        assert_eq!(
            advise(&grouped(8, 6), Bytes::ZERO, None),
            advice(1, 0),
            "a small group is not all floor"
        );
    }

    #[test]
    fn reservations_shrink_with_what_is_left() {
        let reserved = Bytes::mib(80);
        let given = |headroom| {
            let advice = advise(&grouped(512, headroom), reserved, None);
            (advice.give_back, advice.urgent)
        };
        let mib = Bytes::mib;
        assert_eq!(given(64 + 80), (mib(0), mib(0)));
        assert_eq!(given(64 + 60), (mib(10), mib(0)));
        assert_eq!(given(64), (mib(40), mib(0)));
        assert_eq!(given(44), (mib(50), mib(20)));
        assert_eq!(given(0), (mib(72), mib(64)), "most of it");
    }

    #[test]
    fn memory_is_watched_more_often_when_it_is_short() {
        let exposed = |free_superpages| Exposure {
            free_superpages,
            ungated: true,
            holds: true,
        };
        let watched = |state: MemoryState, exposure| watch_again(&state, exposure).as_millis();
        let plenty = exposed(Bytes::mib(4096));
        assert_eq!(watched(roomy(), plenty), 64);
        assert_eq!(watched(grouped(512, 64 + 160), plenty), 5);
        assert_eq!(watched(grouped(512, 64), plenty), 2);
        assert_eq!(watched(roomy(), exposed(Bytes::mib(128 + 320))), 10);
        let gated = Exposure {
            ungated: false,
            ..exposed(Bytes::ZERO)
        };
        assert_eq!(watched(roomy(), gated), 64);
        assert_eq!(watched(grouped(512, 64), gated), 2);
        let holds = false;
        assert_eq!(watched(grouped(512, 64), Exposure { holds, ..gated }), 100);
    }

    #[test]
    fn superpages_are_scarce_until_there_are_twice_as_many() {
        assert!(!scarce(SCARCE, false));
        assert!(scarce(Bytes(SCARCE.0 - 1), false));
        assert!(scarce(SCARCE, true));
        assert!(!scarce(Bytes(2 * SCARCE.0), true));
    }

    #[test]
    fn a_fast_program_meets_no_scarcity_unwatched() {
        for free in (SCARCE.0..64 << 30).step_by(7 << 20).map(Bytes) {
            let exposure = Exposure {
                free_superpages: free,
                ungated: true,
                holds: true,
            };
            let pause = watch_again(&roomy(), exposure);
            assert!(pause.as_millis() as u64 * USE_PER_MS <= free.0);
        }
    }

    #[test]
    fn a_stall_gives_back_half() {
        let state = MemoryState {
            stalled: true,
            ..roomy()
        };
        assert_eq!(advise(&state, Bytes::mib(64), None), advice(0, 32));
        assert_eq!(advise(&state, Bytes::mib(3), None), advice(0, 2));
        assert_eq!(advise(&state, Bytes::mib(1), None), advice(0, 1));
    }

    /// Sizes of interest, from nothing to 16 GiB, and the largest there is.
    fn size() -> impl Strategy<Value = Bytes> {
        prop_oneof![
            4 => (0u64..256 << 20).prop_map(Bytes),
            4 => (0u64..16 << 30).prop_map(Bytes),
            1 => Just(Bytes(u64::MAX)),
        ]
    }

    fn state() -> impl Strategy<Value = MemoryState> {
        let group = (option::of(size()), option::of(size()));
        (size(), size(), size(), group, any::<bool>()).prop_map(
            |(total, available, free, (group_headroom, group_limit), stalled)| MemoryState {
                total,
                available,
                free,
                group_headroom,
                group_limit,
                stalled,
            },
        )
    }

    proptest! {
        #[test]
        fn advice_is_consistent(s in state(), reserved in size(), limit in option::of(size())) {
            let advice = advise(&s, reserved, limit);
            prop_assert!(advice.give_back <= reserved);
            prop_assert!(advice.urgent <= advice.give_back);
            prop_assert!(advice.give_back == Bytes::ZERO || advice.may_reserve == Bytes::ZERO);
            prop_assert!(!s.stalled || advice.may_reserve == Bytes::ZERO);
            prop_assert!(!s.stalled || advice.give_back.0 >= reserved.0.min(SUPERPAGE));
            prop_assert!(advice.may_reserve <= s.available);
            if let Some(headroom) = s.group_headroom {
                prop_assert!(advice.may_reserve <= headroom);
            }
            if let Some(limit) = limit {
                prop_assert!(reserved.saturating_sub(advice.give_back) <= limit);
                let after = reserved.0.saturating_add(advice.may_reserve.0);
                prop_assert!(after <= limit.0.max(reserved.0));
            }
        }

        #[test]
        fn less_memory_never_allows_more(
            s in state(),
            reserved in size(),
            limit in option::of(size()),
            less in size(),
        ) {
            let before = advise(&s, reserved, limit);
            let poorer = [
                MemoryState { available: s.available.min(less), ..s },
                MemoryState { free: s.free.min(less), ..s },
                MemoryState { group_headroom: s.group_headroom.map(|h| h.min(less)), ..s },
                MemoryState { group_headroom: s.group_headroom.or(Some(less)), ..s },
                MemoryState { total: s.total.max(less), ..s },
                MemoryState { stalled: true, ..s },
            ];
            for state in poorer {
                let after = advise(&state, reserved, limit);
                prop_assert!(after.may_reserve <= before.may_reserve);
                prop_assert!(after.give_back >= before.give_back);
                prop_assert!(after.urgent >= before.urgent);
            }
            let more = Bytes(reserved.0.saturating_add(less.0));
            prop_assert!(advise(&s, more, limit).may_reserve <= before.may_reserve);
        }

        #[test]
        fn reserving_as_allowed_leaves_the_floors(s in state(), reserved in size()) {
            let step = advise(&s, reserved, None).may_reserve;
            let then = MemoryState {
                available: s.available.saturating_sub(step),
                free: s.free.saturating_sub(step),
                group_headroom: s.group_headroom.map(|h| h.saturating_sub(step)),
                ..s
            };
            if step > Bytes::ZERO {
                let after = Bytes(reserved.0.saturating_add(step.0));
                prop_assert_eq!(advise(&then, after, None).give_back, Bytes::ZERO);
            }
        }
    }
}

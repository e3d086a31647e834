//! The typed allocator: against a naive model, with crashes at each step, taken for dead at each
//! step, with threads, and which pages it touches.

mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, mpsc};

use proptest::collection::vec;
use proptest::prelude::*;
use quire_core::dsm::alloc::{self, AllocError, Block, Class, Heap, Local, Owner, Shared};
use quire_core::dsm::types::TypeTag;
use quire_core::units::{Bytes, ObjectOffset};

use shared::{Caches, Dying, Forsaken, Interrupted, Open, Other, Refusing, Traced, quiet};

const PAGE: u64 = 4096;

fn owner(number: u64) -> Owner {
    Owner::new(number).unwrap()
}

fn object(pages: u64) -> Local {
    let object = Local::new(Bytes(pages * PAGE));
    alloc::format(&object, Bytes(PAGE)).unwrap();
    object
}

/// What is allocated, as a program knows it.
#[derive(Default)]
struct Model(BTreeMap<u64, (u64, TypeTag)>);

impl Model {
    /// A block was allocated. It overlaps no other and lies in pages of its type.
    fn allocated(&mut self, object: &Local, at: ObjectOffset, tag: TypeTag, count: u64) {
        let size = Class::of(tag, count).unwrap().size().0;
        assert!(size >= count * tag.element());
        let before = self.0.range(..at.0 + size).next_back();
        assert!(before.is_none_or(|(start, (size, _))| start + size <= at.0));
        assert!(at.0.is_multiple_of(size.min(PAGE)));
        let tags = object.tags();
        let spans: Vec<TypeTag> = tags
            .spans(at..at + Bytes(size))
            .map(|span| span.tag)
            .collect();
        assert_eq!(spans, [tag]);
        assert!(self.0.insert(at.0, (size, tag)).is_none());
    }
}

/// When nothing is allocated, all pages are free but those of the classes' directories.
fn check_nothing_is_lost(heaps: &[Heap<&Local>], classes: usize, free: Bytes) {
    heaps.iter().for_each(|heap| heap.give_back().unwrap());
    let left = heaps[0].free_space().unwrap();
    let directories = Bytes(classes as u64 * PAGE);
    assert!(left <= free && free.saturating_sub(left).0 <= directories.0);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize, TypeTag, u64),
    Free(usize, prop::sample::Index),
    FreeAgain(usize, prop::sample::Index),
    FreeAnything(usize, u64),
    GiveBack(usize),
    Recover(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let tag = prop::sample::select(TypeTag::ALL.to_vec());
    let few = prop_oneof![0..300u64, 1..4u64, 0..20_000u64];
    let same = Just((TypeTag::Int64, 12));
    let heap = 0..2usize;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        3 => (heap.clone(), tag, few).prop_map(|(heap, tag, count)| Step::Allocate(heap, tag, count)),
        4 => (heap.clone(), same).prop_map(|(heap, (tag, count))| Step::Allocate(heap, tag, count)),
        5 => (heap.clone(), index()).prop_map(|(heap, index)| Step::Free(heap, index)),
        1 => (heap.clone(), index()).prop_map(|(heap, index)| Step::FreeAgain(heap, index)),
        1 => (heap.clone(), 0..3_000_000u64).prop_map(|(heap, at)| Step::FreeAnything(heap, at)),
        1 => heap.clone().prop_map(Step::GiveBack),
        1 => (heap.clone(), heap).prop_map(|(heap, dead)| Step::Recover(heap, dead)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_heap_is_what_a_program_thinks(steps in vec(step(), 1..300)) {
        let object = object(600);
        let mut owners = [owner(1), owner(2)];
        let mut next_owner = 3;
        let mut heaps = owners.map(|owner| Heap::attach(&object, owner).unwrap());
        let free = heaps[0].free_space().unwrap();
        let (mut model, mut classes, mut freed) = (Model::default(), BTreeSet::new(), Vec::new());
        for step in steps {
            match step {
                Step::Allocate(heap, tag, count) => {
                    classes.insert(Class::of(tag, count).unwrap());
                    match heaps[heap].tmalloc(tag, count) {
                        Ok(at) => model.allocated(&object, at, tag, count),
                        Err(error) => prop_assert!(matches!(error, AllocError::NoRoom(_))),
                    }
                }
                Step::Free(heap, index) if !model.0.is_empty() => {
                    let at = *index.get(&model.0.keys().copied().collect::<Vec<u64>>());
                    let block = heaps[heap].block(ObjectOffset(at)).unwrap();
                    let (size, tag) = model.0.remove(&at).unwrap();
                    prop_assert_eq!((block.class.size().0, block.class.tag()), (size, tag));
                    heaps[heap].free(ObjectOffset(at)).unwrap();
                    freed.push(at);
                }
                Step::FreeAgain(heap, index) if !freed.is_empty() => {
                    let at = *index.get(&freed);
                    if !model.0.contains_key(&at) {
                        prop_assert!(heaps[heap].free(ObjectOffset(at)).is_err());
                    }
                }
                Step::FreeAnything(heap, at) => {
                    let known = model.0.contains_key(&at);
                    prop_assert_eq!(heaps[heap].block(ObjectOffset(at)).is_ok(), known);
                    if !known {
                        prop_assert!(heaps[heap].free(ObjectOffset(at)).is_err());
                    }
                }
                Step::GiveBack(heap) => heaps[heap].give_back().unwrap(),
                Step::Recover(heap, dead) if heap != dead => {
                    let (gone, again) = (owners[dead], owner(next_owner));
                    (owners[dead], next_owner) = (again, next_owner + 1);
                    heaps[dead] = Heap::attach(&object, again).unwrap();
                    heaps[heap].recover(&BTreeSet::from([gone])).unwrap();
                }
                Step::Free(..) | Step::FreeAgain(..) | Step::Recover(..) => {}
            }
        }
        for at in model.0.keys() {
            heaps[0].free(ObjectOffset(*at)).unwrap();
        }
        check_nothing_is_lost(&heaps, classes.len(), free);
    }
}

#[test]
fn a_block_is_freed_once_and_by_its_start() {
    let object = object(64);
    let heap = Heap::attach(&object, owner(1)).unwrap();
    let at = heap.tmalloc(TypeTag::Float64, 4).unwrap();
    let inside = at + Bytes(8);
    assert_eq!(heap.free(inside), Err(AllocError::NotABlock(inside)));
    let other = at + Bytes(32);
    assert_eq!(heap.free(other), Err(AllocError::NotInUse(other)));
    for wrong in [0, PAGE, 63 * PAGE, 64 * PAGE, u64::MAX] {
        let wrong = ObjectOffset(wrong);
        assert_eq!(heap.free(wrong), Err(AllocError::NotABlock(wrong)));
    }
    let class = Class::of(TypeTag::Float64, 4).unwrap();
    assert_eq!(heap.block(at), Ok(Block { start: at, class }));
    assert_eq!(heap.free(at), Ok(()));
    assert_eq!(heap.free(at), Err(AllocError::NotInUse(at)));
    assert_eq!(heap.block(at), Err(AllocError::NotInUse(at)));
}

#[test]
fn what_one_heap_cached_another_cannot_free() {
    let object = object(64);
    let [first, second] = [1, 2].map(|number| Heap::attach(&object, owner(number)).unwrap());
    let at = first.tmalloc(TypeTag::Int32, 4).unwrap();
    first.free(at).unwrap();
    assert_eq!(second.free(at), Err(AllocError::NotInUse(at)));
    let again = first.tmalloc(TypeTag::Int32, 4).unwrap();
    assert_eq!(again, at);
    second.free(again).unwrap();
    assert_eq!(first.free(again), Err(AllocError::NotInUse(at)));
}

#[test]
fn heaps_have_pages_of_their_own() {
    let object = object(256);
    let [first, second] = [1, 2].map(|number| Heap::attach(&object, owner(number)).unwrap());
    let pages = |heap: &Heap<&Local>| -> BTreeSet<u64> {
        let blocks = (0..100).map(|_| heap.tmalloc(TypeTag::Int32, 16).unwrap());
        blocks.map(|at| at.0 / PAGE).collect()
    };
    assert!(pages(&first).is_disjoint(&pages(&second)));
}

/// Once they have segments, classes of different types or sizes have no pages in common but
/// the header and the map, and nobody writes these: so classes do not contend for pages.
#[test]
fn classes_touch_different_control_pages() {
    let object = object(512);
    let traced = Traced {
        object: &object,
        page: PAGE,
        touched: Default::default(),
    };
    let heap = Heap::attach(&traced, owner(1)).unwrap();
    let classes = [
        (TypeTag::Int8, 1000),
        (TypeTag::Int16, 1000),
        (TypeTag::Int16, 100),
        (TypeTag::Float32, 1000),
        (TypeTag::Int32, 1000),
        (TypeTag::Float64, 2000),
    ];
    // More than a segment, so that the lists are used and not only batches.
    let use_class = |(tag, count)| {
        let blocks: Vec<ObjectOffset> =
            (0..20).map(|_| heap.tmalloc(tag, count).unwrap()).collect();
        for at in blocks {
            heap.free(at).unwrap();
        }
    };
    classes.into_iter().for_each(use_class);
    let reserved: BTreeSet<u64> = [0, 1].into();
    let contents = || -> Vec<u64> {
        let words = (0..2 * PAGE).step_by(8).map(ObjectOffset);
        words.map(|at| object.word(at).load()).collect()
    };
    let before = contents();
    let mut touched: Vec<BTreeSet<u64>> = Vec::new();
    for class in classes {
        traced.pages();
        use_class(class);
        let pages = traced.pages();
        assert!(pages.difference(&reserved).count() > 1);
        for other in &touched {
            let common: BTreeSet<u64> = pages.intersection(other).copied().collect();
            assert!(common.is_subset(&reserved), "{common:?}");
        }
        touched.push(pages);
    }
    assert_eq!(contents(), before);
}

/// Blocks are never touched by the allocator.
#[test]
fn data_pages_are_left_alone() {
    let object = object(128);
    let traced = Traced {
        object: &object,
        page: PAGE,
        touched: Default::default(),
    };
    let heap = Heap::attach(&traced, owner(1)).unwrap();
    let blocks: Vec<ObjectOffset> = (0..300)
        .map(|round| heap.tmalloc(TypeTag::Int32, 1 + round % 200).unwrap())
        .collect();
    for at in &blocks {
        heap.free(*at).unwrap();
    }
    heap.give_back().unwrap();
    let touched = traced.pages();
    assert!(blocks.iter().all(|at| !touched.contains(&(at.0 / PAGE))));
}

/// Allocating and freeing small blocks takes no lock and touches one page besides those
/// that nobody writes.
#[test]
fn a_batch_is_used_without_locks() {
    let object = object(64);
    let refusing = Refusing {
        object: &object,
        locks: false.into(),
        tags: false.into(),
    };
    let heap = Heap::attach(&refusing, owner(1)).unwrap();
    let first = heap.tmalloc(TypeTag::Int64, 8).unwrap();
    refusing.locks.store(true, Relaxed);
    let more: Vec<ObjectOffset> = (1..PAGE / 64)
        .map(|_| heap.tmalloc(TypeTag::Int64, 8).unwrap())
        .collect();
    let refused = heap.tmalloc(TypeTag::Int64, 8);
    assert!(matches!(refused, Err(AllocError::Refused(_))));
    // The segment is full and set aside. One free block in it is not worth a lock yet.
    assert_eq!(heap.free(first), Ok(()));
    assert_eq!(heap.free(first), Err(AllocError::NotInUse(first)));
    refusing.locks.store(false, Relaxed);
    for at in more {
        heap.free(at).unwrap();
    }
    assert_eq!(heap.tmalloc(TypeTag::Int64, 8), Ok(first));
}

/// Who frees what it has allocated itself gets it again without a lock, from as many segments as it
/// may keep; what another heap frees is listed, where both find it.
#[test]
fn what_a_heap_frees_itself_it_takes_back_without_locks() {
    const SEGMENTS: u64 = 3;
    // Blocks of less than a page, and of two pages in a large object; one segment is not spare.
    takes_back(8, SEGMENTS * PAGE / 64, 32 * 2 * (SEGMENTS - 1));
    takes_back(1024, SEGMENTS, 2 * 1024);
}

fn takes_back(count: u64, blocks: u64, pages: u64) {
    let object = object(pages);
    let refusing = Refusing {
        object: &object,
        locks: false.into(),
        tags: false.into(),
    };
    let [heap, other] = [1, 2].map(|number| Heap::attach(&refusing, owner(number)).unwrap());
    let allocate = |heap: &Heap<_>| heap.tmalloc(TypeTag::Int64, count);
    let all = |heap: &Heap<_>| -> BTreeSet<ObjectOffset> {
        (0..blocks).map(|_| allocate(heap).unwrap()).collect()
    };
    let first = all(&heap);
    refusing.locks.store(true, Relaxed);
    for _ in 0..3 {
        first.iter().for_each(|at| heap.free(*at).unwrap());
        assert_eq!(all(&heap), first);
    }
    // What another one frees would have to be listed. It is free all the same.
    let by_other: Vec<_> = first.iter().map(|at| other.free(*at)).collect();
    let refused = by_other.iter().filter(|it| it.is_err()).count();
    assert!(refused >= 2, "{by_other:?}");
    refusing.locks.store(false, Relaxed);
    let again: BTreeSet<_> = (0..blocks / 2).map(|_| allocate(&other).unwrap()).collect();
    let more: BTreeSet<_> = (0..blocks / 2).map(|_| allocate(&heap).unwrap()).collect();
    assert!(again.is_disjoint(&more));
}

/// A heap keeps a small part of the object for itself, and none of it where room is short.
#[test]
fn spare_segments_are_few_and_go_where_room_is_short() {
    let object = object(128);
    let [heap, other] = [1, 2].map(|number| Heap::attach(&object, owner(number)).unwrap());
    let fill = |heap: &Heap<_>, tag| -> Vec<ObjectOffset> {
        std::iter::from_fn(|| heap.tmalloc(tag, 8).ok()).collect()
    };
    let free = |heap: &Heap<_>, all: Vec<ObjectOffset>| {
        all.into_iter().for_each(|at| heap.free(at).unwrap());
    };
    let all = fill(&heap, TypeTag::Int64);
    let count = all.len();
    free(&heap, all);
    let left = fill(&other, TypeTag::Int64);
    // One page of 32 may be kept, with control pages.
    let kept = 128 / 32 * PAGE as usize / 64;
    assert!(
        (count - kept..count).contains(&left.len()),
        "{count}, {left:?}"
    );
    free(&other, left);
    other.give_back().unwrap();
    // Another class gets the pages of them, too.
    assert!(!fill(&heap, TypeTag::Float64).is_empty());
    assert_eq!(fill(&heap, TypeTag::Int64), []);
}

#[test]
fn a_refused_tag_loses_no_pages() {
    let object = object(64);
    let refusing = Refusing {
        object: &object,
        locks: false.into(),
        tags: true.into(),
    };
    let heap = Heap::attach(&refusing, owner(1)).unwrap();
    let free = heap.free_space().unwrap();
    for _ in 0..3 {
        let refused = heap.tmalloc(TypeTag::Int64, 8);
        assert!(matches!(refused, Err(AllocError::Refused(_))));
        assert_eq!(heap.free_space(), Ok(free));
    }
    refusing.tags.store(false, Relaxed);
    heap.tmalloc(TypeTag::Int64, 8).unwrap();
}

#[test]
fn full_objects_are_refused_and_room_comes_back() {
    let object = object(64);
    let heap = Heap::attach(&object, owner(1)).unwrap();
    let mut blocks = Vec::new();
    let refused = loop {
        match heap.tmalloc(TypeTag::Int8, 3 * PAGE) {
            Ok(at) => blocks.push(at),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, AllocError::NoRoom(_)));
    assert!(blocks.len() >= 10, "{}", blocks.len());
    for at in blocks {
        heap.free(at).unwrap();
    }
    // Another class gets the pages, without anybody giving them back.
    heap.tmalloc(TypeTag::Float64, 16 * PAGE / 8).unwrap();
}

/// What a machine that dies has allocated, and whether it had not begun to free it.
type Done = Vec<(ObjectOffset, bool)>;

/// A machine dies before each of its steps in turn. Another one takes over what it owned:
/// nothing is allocated twice, no page is lost, and what it had allocated stays. Returns how
/// many steps there were.
fn die_at_each_step(object: impl Fn() -> Local, script: impl Fn(&Heap<&Dying>, &mut Done)) -> u64 {
    quiet();
    for steps in 0.. {
        let object = object();
        let survivor = Heap::attach(&object, owner(7)).unwrap();
        let free = survivor.free_space().unwrap();
        let dying = Dying {
            object: &object,
            steps: u64::MAX.into(),
        };
        let heap = Heap::attach(&dying, owner(1)).unwrap();
        dying.steps.store(steps, Relaxed);
        let mut done = Vec::new();
        let finished = catch_unwind(AssertUnwindSafe(|| script(&heap, &mut done))).is_ok();
        // Before anybody has cleaned up, the heap can be used.
        let early = survivor.tmalloc(TypeTag::Int16, 700).unwrap();
        assert!(done.iter().all(|(at, used)| !used || *at != early));
        survivor.recover(&BTreeSet::from([owner(1)])).unwrap();
        survivor.recover(&BTreeSet::from([owner(1)])).unwrap();
        // A block that is free by now may be the one that the survivor got.
        for (at, used) in done.iter().filter(|(at, _)| *at != early) {
            let freed = survivor.free(*at);
            assert!(freed.is_ok() || !used, "step {steps}: {at:?} {freed:?}");
        }
        survivor.free(early).unwrap();
        survivor.give_back().unwrap();
        // Two directories; and one block that nobody knows of may keep its segment.
        let lost = free.saturating_sub(survivor.free_space().unwrap());
        if lost.0 > 2 * PAGE {
            assert!(!finished && lost.0 <= 66 * PAGE, "step {steps}: {lost}");
            assert_eq!(in_use(&survivor, &object), 1, "step {steps}: {lost}");
        }
        if finished {
            return steps;
        }
    }
    unreachable!("a script ends");
}

fn allocate(heap: &Heap<&Dying>, done: &mut Done, classes: &[(TypeTag, u64)], times: usize) {
    for (tag, count) in classes.iter().cycle().take(times) {
        done.push((heap.tmalloc(*tag, *count).unwrap(), true));
    }
}

fn free_all(heap: &Heap<&Dying>, done: &mut Done) {
    for (at, used) in done.iter_mut() {
        // Where a crash comes in the middle, it may be free or not.
        *used = false;
        heap.free(*at).unwrap();
    }
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    let classes = [(TypeTag::Int16, 700), (TypeTag::Float64, 1500)];
    let steps = die_at_each_step(
        || object(256),
        |heap, done| {
            allocate(heap, done, &classes, 18);
            free_all(heap, done);
            heap.give_back().unwrap();
        },
    );
    assert!(steps > 500, "{steps}");
}

/// The same in pages that are used again, in parts and put together, and hold garbage.
#[test]
fn a_crash_among_used_pages_loses_nothing() {
    let used = || {
        let object = object(64);
        let heap = Heap::attach(&object, owner(3)).unwrap();
        let large: Vec<ObjectOffset> = (0..3)
            .map(|_| heap.tmalloc(TypeTag::Float64, 2048).unwrap())
            .collect();
        for at in &large {
            words((*at, 4 * PAGE)).for_each(|at| object.word(at).store(u64::MAX / 3));
        }
        large.iter().for_each(|at| heap.free(*at).unwrap());
        heap.give_back().unwrap();
        object
    };
    let classes = [(TypeTag::Int16, 700), (TypeTag::Float64, 6000)];
    let steps = die_at_each_step(used, |heap, done| {
        allocate(heap, done, &classes, 4);
        free_all(heap, done);
    });
    assert!(steps > 100, "{steps}");
}

/// What a machine does while it is taken for dead.
#[derive(Clone, Copy, Debug)]
enum Last {
    Allocates(TypeTag, u64),
    FreesLarge,
    FreesSmall,
    GivesBack,
    Recovers,
}

impl Last {
    const ALL: [Last; 8] = [
        // From its batch, from a list, from a class that is new, from a run that has to be made.
        Last::Allocates(TypeTag::Int16, 700),
        Last::Allocates(TypeTag::Float64, 1500),
        Last::Allocates(TypeTag::Int32, 8),
        Last::Allocates(TypeTag::Int8, 6 * PAGE),
        Last::FreesLarge,
        Last::FreesSmall,
        Last::GivesBack,
        Last::Recovers,
    ];

    fn happens<S: Shared>(self, heap: &Heap<S>, small: ObjectOffset, large: ObjectOffset) {
        // What it says counts for nothing: the program is told that its heap is broken.
        let _ = match self {
            Last::Allocates(tag, count) => heap.tmalloc(tag, count).map(|_| ()),
            Last::FreesLarge => heap.free(large),
            Last::FreesSmall => heap.free(small),
            Last::GivesBack => heap.give_back(),
            Last::Recovers => heap.recover(&BTreeSet::from([owner(3)])),
        };
    }
}

/// What others do with the memory of a machine that they take for dead.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// They free what it had allocated.
    free: bool,
    /// They allocate until there is no room, blocks of so many bytes.
    sizes: [u64; 2],
}

impl Recovery {
    const ALL: [Recovery; 5] = [
        Recovery {
            free: true,
            sizes: [PAGE / 2, 48],
        },
        Recovery {
            free: true,
            sizes: [16 * PAGE, 5 * PAGE],
        },
        Recovery {
            free: true,
            sizes: [4 * PAGE, 2 * PAGE],
        },
        Recovery {
            free: false,
            sizes: [PAGE, 16],
        },
        Recovery {
            free: false,
            sizes: [1400, 3 * PAGE],
        },
    ];

    /// The blocks that they get. They write to all of each.
    fn take(self, heap: &Heap<Open>, object: &Local) -> Vec<(ObjectOffset, u64)> {
        let mut taken = Vec::new();
        for (size, tag) in self.sizes.into_iter().zip([TypeTag::Int16, TypeTag::Int64]) {
            while let Ok(at) = heap.tmalloc(tag, size / tag.element()) {
                let block = (at, heap.block(at).unwrap().class.size().0);
                words(block).for_each(|word| object.word(word).store(content(word)));
                taken.push(block);
            }
        }
        taken
    }
}

/// What a word of a block holds: zero, owners' numbers and all bits are what stands in pages of the
/// allocator, too.
fn content(word: ObjectOffset) -> u64 {
    match word.0 / 8 % 5 {
        4 => u64::MAX,
        number => number,
    }
}

/// The words of a block.
fn words((at, size): (ObjectOffset, u64)) -> impl Iterator<Item = ObjectOffset> {
    (at.0..at.0 + size).step_by(8).map(ObjectOffset)
}

/// Frees a block, which the machine that is taken for dead may have freed just before.
fn free_if_used(survivor: &Heap<Open>, at: ObjectOffset) {
    let freed = survivor.free(at);
    let is_free = [Ok(()), Err(AllocError::NotInUse(at))].contains(&freed);
    assert!(is_free, "{freed:?}");
}

/// A machine is taken for dead at one of its steps, and goes on when others have its memory.
/// Says whether there was such a step.
fn forsaken_at(steps: u64, last: Last, recovery: Recovery) -> bool {
    let object = object(60);
    let survivor = Heap::attach(Open(&object), owner(2)).unwrap();
    let (free, known) = (survivor.free_space().unwrap(), Mutex::new(Vec::new()));
    let taken = Mutex::new(Vec::new());
    let meanwhile = || {
        survivor
            .recover(&BTreeSet::from([owner(1), owner(3)]))
            .unwrap();
        let known: Vec<ObjectOffset> = std::mem::take(&mut known.lock().unwrap());
        if recovery.free {
            known.into_iter().for_each(|at| free_if_used(&survivor, at));
        }
        survivor.give_back().unwrap();
        *taken.lock().unwrap() = recovery.take(&survivor, &object);
    };
    let forsaken = Forsaken {
        object: Open(&object),
        steps: u64::MAX.into(),
        is_sure: true.into(),
        meanwhile: &meanwhile,
    };
    let heap = Heap::attach(&forsaken, owner(1)).unwrap();
    let [small, large] = prepare(&heap, &object, &known);
    forsaken.steps.store(steps, Relaxed);
    last.happens(&heap, small, large);
    let case = format!("step {steps} of {last:?}, {recovery:?}");
    let taken = std::mem::take(&mut *taken.lock().unwrap());
    for (at, size) in &taken {
        let held = words((*at, *size)).all(|word| object.word(word).load() == content(word));
        assert!(held, "{case}: {at:?} was written to");
        assert_eq!(survivor.free(*at), Ok(()), "{case}");
    }
    assert_eq!(
        survivor.recover(&BTreeSet::from([owner(1)])),
        Ok(()),
        "{case}"
    );
    survivor.give_back().unwrap();
    assert!(survivor.free_space().unwrap() <= free, "{case}");
    !forsaken.is_sure()
}

/// What there is before: blocks of two classes, a full segment, a free run among others, and what
/// a dead machine left. Returns a small block and a large one, and notes all that are known.
fn prepare(
    heap: &Heap<&Forsaken>,
    object: &Local,
    known: &Mutex<Vec<ObjectOffset>>,
) -> [ObjectOffset; 2] {
    let dead = Heap::attach(Open(object), owner(3)).unwrap();
    // Directories come first, so that all pages behind them can be put together again.
    for (tag, count) in [
        (TypeTag::Int8, 4 * PAGE),
        (TypeTag::Int16, 1024),
        (TypeTag::Float64, 1500),
        (TypeTag::Int16, 30),
    ] {
        dead.free(dead.tmalloc(tag, count).unwrap()).unwrap();
        dead.give_back().unwrap();
    }
    let gap = heap.tmalloc(TypeTag::Int8, 4 * PAGE).unwrap();
    let smalls: Vec<ObjectOffset> = (0..2)
        .map(|_| heap.tmalloc(TypeTag::Int16, 1024).unwrap())
        .collect();
    let large = heap.tmalloc(TypeTag::Float64, 1500).unwrap();
    dead.tmalloc(TypeTag::Int16, 30).unwrap();
    heap.free(gap).unwrap();
    let mut known = known.lock().unwrap();
    known.extend(smalls.iter().copied().chain([large]));
    [smalls[0], large]
}

#[test]
fn who_is_taken_for_dead_at_any_step_harms_nobody() {
    for last in Last::ALL {
        for recovery in Recovery::ALL {
            let steps = (0..).take_while(|steps| forsaken_at(*steps, last, recovery));
            assert!(steps.count() > 2, "{last:?}");
        }
    }
}

/// While a heap finds its segment full and lets it go, another one frees all blocks in it,
/// after each step in turn. The segment is not lost, and not used by two.
#[test]
fn a_full_segment_is_emptied_at_any_step() {
    const BLOCKS: u64 = PAGE / 256;
    for steps in 1..60 {
        for heaps in [1, 2] {
            let object = object(64);
            let other = Heap::attach(&object, owner(2)).unwrap();
            let free = other.free_space().unwrap();
            let blocks = Mutex::new(Vec::new());
            let meanwhile = || {
                let blocks: Vec<ObjectOffset> = std::mem::take(&mut blocks.lock().unwrap());
                blocks.into_iter().for_each(|at| other.free(at).unwrap());
            };
            let interrupted = Interrupted {
                object: &object,
                steps: 0.into(),
                held: 0.into(),
                meanwhile: &meanwhile,
            };
            let heap = Heap::attach(&interrupted, owner(1)).unwrap();
            let allocate = || heap.tmalloc(TypeTag::Int8, 256).unwrap();
            let full: Vec<ObjectOffset> = (0..BLOCKS).map(|_| allocate()).collect();
            *blocks.lock().unwrap() = full;
            interrupted.steps.store(steps, Relaxed);
            let mut live = BTreeSet::from([allocate().0]);
            meanwhile();
            for round in 1..2 * BLOCKS {
                let at = match round % heaps {
                    0 => allocate(),
                    _ => other.tmalloc(TypeTag::Int8, 256).unwrap(),
                };
                assert!(live.insert(at.0), "after {steps} steps");
            }
            let used = free.saturating_sub(other.free_space().unwrap());
            // A directory; and no more segments of two pages than are needed.
            assert!(
                heaps == 2 || used.0 <= 5 * PAGE,
                "after {steps} steps: {used}"
            );
        }
    }
}

/// How many blocks are in use, found by asking for each offset.
fn in_use(heap: &Heap<&Local>, object: &Local) -> usize {
    let offsets = (0..object.size().0).step_by(16).map(ObjectOffset);
    offsets.filter(|at| heap.block(*at).is_ok()).count()
}

#[test]
fn a_dead_heap_in_the_middle_of_formatting_is_followed_by_another() {
    for steps in 0.. {
        let object = Local::new(Bytes(64 * PAGE));
        let dying = Dying {
            object: &object,
            steps: steps.into(),
        };
        quiet();
        let formatted = catch_unwind(AssertUnwindSafe(|| alloc::format(&dying, Bytes(PAGE))));
        if formatted.is_ok() {
            break;
        }
        assert_eq!(
            Heap::attach(&object, owner(1)).unwrap_err(),
            AllocError::NoHeap
        );
        alloc::format(&object, Bytes(PAGE)).unwrap();
        Heap::attach(&object, owner(1)).unwrap();
    }
}

#[test]
fn objects_that_cannot_have_a_heap_are_refused() {
    let format = |size, page| alloc::format(&Local::new(Bytes(size)), Bytes(page));
    for (size, page) in [
        (7 * PAGE, PAGE),
        (64 * PAGE, 5000),
        (64 * PAGE, 2048),
        (64 * PAGE, 0),
    ] {
        assert!(matches!(
            format(size, page),
            Err(AllocError::Geometry { .. })
        ));
    }
    let used = Local::new(Bytes(64 * PAGE));
    used.word(ObjectOffset(PAGE + 48)).store(5);
    assert_eq!(alloc::format(&used, Bytes(PAGE)), Err(AllocError::NotEmpty));
    let twice = object(64);
    assert_eq!(
        alloc::format(&twice, Bytes(PAGE)),
        Err(AllocError::NotEmpty)
    );
    let empty = Local::new(Bytes(64 * PAGE));
    assert_eq!(
        Heap::attach(&empty, owner(1)).unwrap_err(),
        AllocError::NoHeap
    );
}

#[test]
fn garbage_in_control_pages_is_an_error() {
    let object = object(64);
    let heap = Heap::attach(&object, owner(1)).unwrap();
    let at = heap.tmalloc(TypeTag::Int32, 100).unwrap();
    for page in 0..64 {
        let word = object.word(ObjectOffset(PAGE + page * 8));
        for garbage in [
            1,
            77,
            u64::MAX,
            1 << 63,
            0xb000_0000_0000_0003,
            0xf7ff_0000_0000_0001,
        ] {
            let before = word.load();
            word.store(garbage);
            let _ = heap.free(ObjectOffset(page * PAGE));
            let _ = heap.block(at);
            let _ = heap.tmalloc(TypeTag::Int8, 9000);
            let _ = heap.recover(&BTreeSet::from([owner(9)]));
            word.store(before);
        }
    }
    object.word(ObjectOffset(PAGE)).store(77);
    let refused = heap.tmalloc(TypeTag::Int8, 90_000);
    assert_eq!(refused, Err(AllocError::Damaged { page: 0 }));
}

#[test]
fn other_page_sizes() {
    for page in [16 << 10, 2 << 20] {
        let object = Local::new(Bytes(32 * page));
        alloc::format(&object, Bytes(page)).unwrap();
        let heap = Heap::attach(&object, owner(1)).unwrap();
        let mut ends = BTreeMap::new();
        for count in [1, 10, 1000, 100_000, 400_000] {
            let size = Class::of(TypeTag::Float64, count).unwrap().size();
            if size.0 > 4 * page {
                continue;
            }
            let at = heap.tmalloc(TypeTag::Float64, count).unwrap();
            assert_eq!(object.tags().tag_at(at), TypeTag::Float64);
            ends.insert(at.0, at.0 + size.0);
        }
        let starts = ends.keys().skip(1);
        assert!(ends.values().zip(starts).all(|(end, next)| end <= next));
    }
}

/// Threads of several heaps allocate, write to all of a block, and pass it on to another
/// thread, which checks it and frees it.
#[test]
fn threads_share_nothing_by_mistake() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 3000;
    // Room for all that is ever allocated: a thread may get no processor until the others are done.
    let object = object(16384);
    let heaps = [1, 2].map(|number| Heap::attach(&object, owner(number)).unwrap());
    let free = heaps[0].free_space().unwrap();
    let channels: Vec<_> = (0..THREADS)
        .map(|_| mpsc::channel::<(ObjectOffset, u64, u64)>())
        .collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
    let sizes = [
        (TypeTag::Int64, 2),
        (TypeTag::Int64, 40),
        (TypeTag::Float64, 2),
        (TypeTag::Int32, 3000),
    ];
    std::thread::scope(|scope| {
        for (thread, receiver) in receivers.into_iter().enumerate() {
            let heap = &heaps[thread % 2];
            let next = senders[(thread + 1) % THREADS].clone();
            let object = &object;
            scope.spawn(move || {
                let check = |(at, count, mark): (ObjectOffset, u64, u64)| {
                    assert!(words((at, count * 8)).all(|at| object.word(at).load() == mark));
                    heap.free(at).unwrap();
                };
                for round in 0..ROUNDS {
                    let (tag, count) = sizes[(round as usize * 7 + thread) % sizes.len()];
                    let at = heap.tmalloc(tag, count).unwrap();
                    let (count, mark) = (count * tag.element() / 8, (thread as u64) << 32 | round);
                    words((at, count * 8)).for_each(|at| object.word(at).store(mark));
                    next.send((at, count, mark)).unwrap();
                    receiver.try_iter().take(3).for_each(check);
                }
                drop(next);
                receiver.iter().for_each(check);
            });
        }
        drop(senders);
    });
    check_nothing_is_lost(&heaps, sizes.len(), free);
}

/// Owners are new ones each time; who owns segments is known.
#[test]
fn owners_are_counted_and_found() {
    let object = object(256);
    let numbers: Vec<Owner> = (0..3).map(|_| alloc::new_owner(&object).unwrap()).collect();
    assert_eq!(numbers, [owner(1), owner(2), owner(3)]);
    let heaps: Vec<Heap<&Local>> = numbers
        .iter()
        .map(|owner| Heap::attach(&object, *owner).unwrap())
        .collect();
    assert_eq!(heaps[2].owners(), Ok(BTreeSet::new()));
    heaps[0].tmalloc(TypeTag::Int8, 1).unwrap();
    heaps[2].tmalloc(TypeTag::Float32, 1).unwrap();
    let both = BTreeSet::from([owner(1), owner(3)]);
    assert_eq!(heaps[1].owners(), Ok(both.clone()));
    heaps[1].recover(&both).unwrap();
    assert_eq!(heaps[1].owners(), Ok(BTreeSet::new()));
    let empty = Local::new(Bytes(64 * PAGE));
    assert_eq!(alloc::new_owner(&empty), Err(AllocError::NoHeap));
}

/// What a machine does until it dies: it takes blocks of several sizes, tells the other one
/// of some, frees, and gives back.
fn live(heap: &Heap<&Caches>, other: &Heap<&Other>, known: &mut BTreeSet<u64>) {
    let pages = PAGE / 8;
    for round in 0..3 {
        let large = heap.tmalloc(TypeTag::Float64, 16 * pages).unwrap();
        let small = heap.tmalloc(TypeTag::Int16, 700).unwrap();
        let told = heap.tmalloc(TypeTag::Float64, 3 * pages).unwrap();
        other.block(told).unwrap();
        known.insert(told.0);
        heap.free(large).unwrap();
        if round != 1 {
            heap.free(small).unwrap();
        }
        heap.give_back().unwrap();
        let again = heap.tmalloc(TypeTag::Int64, 5 * pages).unwrap();
        let told = heap.tmalloc(TypeTag::Int8, 100).unwrap();
        other.block(told).unwrap();
        known.insert(told.0);
        heap.free(again).unwrap();
    }
}

/// A machine dies after some steps, and some of what it wrote that nobody has seen is lost,
/// page by page. The heap is whole all the same, and what others know to be in use stays so.
/// Says whether it lived to the end.
fn die_and_lose(seed: u64, steps: u64) -> bool {
    let object = object(2048);
    let caches = Caches::new(&object, PAGE, seed * 7919 + steps);
    let other = Other(&caches);
    let survivor = Heap::attach(&other, owner(2)).unwrap();
    // Nearly all pages are taken whose words lie in the first page of the map.
    let mut known: BTreeSet<u64> = [
        (TypeTag::Int8, 256),
        (TypeTag::Int16, 64),
        (TypeTag::Int32, 16),
        (TypeTag::Int64, 4),
        (TypeTag::Float32, 1),
    ]
    .map(|(tag, pages)| survivor.tmalloc(tag, pages * PAGE).unwrap().0)
    .into();
    let heap = Heap::attach(&caches, owner(1)).unwrap();
    caches.steps.store(steps, Relaxed);
    let lived = catch_unwind(AssertUnwindSafe(|| live(&heap, &survivor, &mut known))).is_ok();
    caches.lose();
    let mut take = |tag, count| {
        let at = survivor.tmalloc(tag, count).unwrap();
        assert!(
            known.insert(at.0),
            "seed {seed} step {steps}: {at:?} is given out twice"
        );
    };
    if seed.is_multiple_of(2) {
        // Somebody goes on before anything is recovered.
        take(TypeTag::Float64, 200);
    }
    survivor.recover(&BTreeSet::from([owner(1)])).unwrap();
    assert!(!survivor.owners().unwrap().contains(&owner(1)));
    for tag in [TypeTag::Int16, TypeTag::Float64, TypeTag::Int8] {
        for count in [30, 700, 3 * PAGE / 8, 16 * PAGE / 8] {
            (0..5).for_each(|_| take(tag, count));
        }
    }
    for at in known {
        let freed = survivor.free(ObjectOffset(at));
        assert_eq!(freed, Ok(()), "seed {seed} step {steps}");
    }
    survivor.give_back().unwrap();
    lived
}

#[test]
fn lost_writes_of_a_dead_machine_damage_nothing() {
    quiet();
    for seed in 0..2 {
        let steps = (0..)
            .take_while(|steps| !die_and_lose(seed, *steps))
            .count();
        assert!(steps > 100, "{steps}");
    }
}

//! Much allocating and freeing, on several threads. What each block holds is looked at
//! before it is freed, so a block that two have shows.

use std::sync::Mutex;
use std::thread;

use quire_core::units::ObjectOffset;
use quire_dsm::heap::{Element, Heap, View};

/// Threads of each node.
const THREADS: u64 = 2;
/// Blocks that a thread has at a time.
const MOST: usize = 40;

/// Random numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// A block, whatever its type.
enum Taken<'a> {
    Small(View<'a, i16>, i16),
    Whole(View<'a, i64>, i64),
    Real(View<'a, f64>, f64),
}

impl<'a> Taken<'a> {
    fn take(heap: &Heap<'a>, dice: &mut Dice) -> Taken<'a> {
        let count = [1, 7, 30, 200, 900][dice.roll(5) as usize];
        let mark = dice.roll(30_000);
        match dice.roll(3) {
            0 => Taken::Small(marked(heap, count, mark as i16), mark as i16),
            1 => Taken::Whole(marked(heap, count, mark as i64), mark as i64),
            _ => Taken::Real(marked(heap, count, mark as f64), mark as f64),
        }
    }

    /// Checks what it holds; says where it is.
    fn checked(&self) -> ObjectOffset {
        match self {
            Taken::Small(view, mark) => check(view, *mark),
            Taken::Whole(view, mark) => check(view, *mark),
            Taken::Real(view, mark) => check(view, *mark),
        }
    }
}

fn marked<'a, T: Element>(heap: &Heap<'a>, count: usize, mark: T) -> View<'a, T> {
    let view = heap.alloc::<T>(count).expect("there is room");
    (0..count).for_each(|index| view.set(index, mark));
    view
}

fn check<T: Element + PartialEq + std::fmt::Debug>(view: &View<T>, mark: T) -> ObjectOffset {
    for value in view.iter() {
        assert_eq!(
            value,
            mark,
            "another has the block at {:#x}",
            view.offset().0
        );
    }
    view.offset()
}

/// Takes and frees at random. Says where the blocks are that are left, for others to free.
pub fn churn(heap: &Heap, seed: u64, steps: u64) -> String {
    let left = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let left = &left;
            scope.spawn(move || {
                let mut dice = Dice(seed * THREADS + thread + 1);
                let mut taken: Vec<Taken> = Vec::new();
                for _ in 0..steps {
                    if taken.len() < MOST && dice.roll(5) > 1 || taken.is_empty() {
                        taken.push(Taken::take(heap, &mut dice));
                    } else {
                        let block = taken.swap_remove(dice.roll(taken.len() as u64) as usize);
                        heap.free(block.checked()).expect("it was in use");
                    }
                }
                let offsets = taken.iter().map(|block| block.checked().0);
                left.lock().expect("no panic").extend(offsets);
            });
        }
    });
    let left = left.into_inner().expect("no panic");
    let texts: Vec<String> = left.iter().map(u64::to_string).collect();
    texts.join(" ")
}

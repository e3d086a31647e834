//! The typed heap of an object that several servers share: types that all servers get to know,
//! and a server that is gone with what it knew of who is alive.

use quire_core::dsm::types::TypeTag;
use quire_core::units::ObjectOffset;
use quire_dsm::heap::{Element, Heap, HeapError};

use super::*;

fn as_machine(group: &Group, server: usize, machine: &str) -> Client {
    group.client_with(server, |options| {
        options.machine = machine.parse::<Machine>().unwrap();
    })
}

/// Makes a block that counts up from a value. Says where.
fn counting<T: Element + From<i8>>(heap: &Heap<'_>, from: i8, count: usize) -> ObjectOffset {
    let block = heap.alloc::<T>(count).expect("room");
    for index in 0..count {
        block.set(index, T::from(from + (index % 100) as i8));
    }
    block.offset()
}

fn assert_counts<T>(heap: &Heap<'_>, at: ObjectOffset, from: i8, count: usize)
where
    T: Element + From<i8> + PartialEq + std::fmt::Debug,
{
    let block = heap.view::<T>(at).expect("it was allocated");
    for index in 0..count {
        assert_eq!(block.get(index), T::from(from + (index % 100) as i8));
    }
}

/// Each sees what the others have allocated in its own form, wherever its server is; also a
/// server that comes when there are types that the directory does not know.
#[test]
fn types_are_known_to_all_servers() {
    let group = Group::of(3);
    let clients = [
        group.client(0),
        as_machine(&group, 1, "vax-d"),
        as_machine(&group, 1, "big"),
    ];
    clients[0].create(grid(512)).unwrap();
    let objects = clients.each_ref().map(open);
    let heaps = objects.each_ref().map(|it| Heap::open(it).expect("a heap"));
    let mut made = Vec::new();
    for (number, heap) in heaps.iter().enumerate() {
        let from = number as i8;
        let reals = counting::<f64>(heap, from, 100);
        let whole = counting::<i32>(heap, from, 3000);
        made.push((from, reals, whole));
    }
    let look = |heap: &Heap<'_>| {
        for (from, reals, whole) in &made {
            assert_counts::<f64>(heap, *reals, *from, 100);
            assert_counts::<i32>(heap, *whole, *from, 3000);
        }
    };
    heaps.iter().for_each(look);

    let late = as_machine(&group, 2, "vax-g");
    late.replicate(name("grid")).expect("there is room for one");
    late.replicate(name("grid")).expect("it changes nothing");
    let shared = open(&late);
    let heap = Heap::open(&shared).expect("the same heap");
    look(&heap);
    // What it makes is of types that no other server had until now.
    let singles = counting::<f32>(&heap, -50, 3000);
    for heap in &heaps {
        assert_counts::<f32>(heap, singles, -50, 3000);
    }
    for (_, reals, whole) in &made {
        heap.free(*reals).expect("anyone may");
        heaps[0].free(*whole).expect("anyone may");
        assert!(heaps[1].free(*reals).is_err(), "it is free");
    }
}

/// What many allocate and free at several servers at once is never given to two of them.
#[test]
fn blocks_of_several_servers_have_one_user() {
    let group = Group::of(2);
    let maker = group.client(0);
    maker.create(grid(1024)).unwrap();
    thread::scope(|scope| {
        for worker in 1..=4_u64 {
            let group = &group;
            scope.spawn(move || {
                let client = group.client(worker as usize % 2);
                let shared = open(&client);
                let heap = Heap::open(&shared).expect("a heap");
                churn(&heap, worker);
            });
        }
    });
}

/// Allocates and frees, and finds in each block what it wrote there.
fn churn(heap: &Heap<'_>, worker: u64) {
    let mut held = Vec::new();
    for round in 0..60_u64 {
        // Blocks of less than a page, and larger ones.
        let count = [5, 40, 700][(round % 3) as usize];
        let block = heap.alloc::<u64>(count).expect("room");
        let value = worker << 32 | round;
        (0..count).for_each(|index| block.set(index, value));
        held.push((block, value));
        if round % 2 == 1 {
            let (block, value) = held.swap_remove((round as usize * 7) % held.len());
            assert!(block.iter().take(5).all(|is| is == value));
            heap.free(block.offset()).expect("it is in use");
        }
    }
    for (block, value) in held {
        assert!(block.iter().take(5).all(|is| is == value), "{value:#x}");
    }
}

/// The server that keeps mutexes is killed: nobody knows any more which heaps are alive, so
/// none goes on. Who opens it anew can allocate.
#[test]
fn a_heap_ends_with_the_server_that_knew_of_it() {
    let mut group = Group::of(3);
    let maker = group.client(2);
    maker.create(grid(256)).unwrap();
    let clients = [0, 1].map(|server| group.client(server));
    let [first, second] = clients.each_ref().map(open);
    let heap = Heap::open(&first).expect("a heap");
    let kept = counting::<i64>(&heap, 3, 100);
    let other = Heap::open(&second).expect("the same heap");
    assert_counts::<i64>(&other, kept, 3, 100);
    // The heaps of server 2 itself are none; it only keeps the mutexes.
    group.servers[2].kill().unwrap();
    let start = Instant::now();
    while !matches!(heap.tmalloc(TypeTag::Int32, 1), Err(HeapError::Broken)) {
        assert!(start.elapsed() < SOON, "it goes on as if nothing were");
        thread::sleep(Duration::from_millis(20));
    }
    drop(heap);
    let anew = loop {
        match Heap::open(&first) {
            Ok(heap) => break heap,
            Err(error) => assert!(start.elapsed() < SOON, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(matches!(other.free(kept), Err(HeapError::Broken)));
    assert_counts::<i64>(&anew, kept, 3, 100);
    let new = counting::<i32>(&anew, 9, 50);
    assert_ne!(new, kept);
    assert_counts::<i64>(&anew, kept, 3, 100);
    anew.free(kept).expect("it is in use");
    std::mem::forget(maker);
}

/// One side of a heap that is opened anew as often as its link or server makes that necessary.
struct Side<'a> {
    shared: &'a Shared,
    heap: Option<Heap<'a>>,
}

impl Side<'_> {
    /// Does something until it is done.
    fn again<R>(&mut self, act: impl Fn(&Heap<'_>) -> Result<R, HeapError>) -> R {
        let start = Instant::now();
        loop {
            let done = match &self.heap {
                Some(heap) => act(heap),
                None => Heap::open(self.shared).and_then(|heap| act(self.heap.insert(heap))),
            };
            match done {
                Ok(done) => return done,
                Err(error) => assert!(start.elapsed() < SOON, "{error}"),
            }
            self.heap = None;
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Leaves a block of a type with numbers in it, which the other finds.
    fn leave<T>(&mut self, other: &mut Side<'_>, (from, count): (i8, usize))
    where
        T: Element + From<i8> + PartialEq + std::fmt::Debug,
    {
        let at = self.again(|heap| Ok(heap.alloc::<T>(count)?.offset()));
        let numbers = |index: usize| T::from(from.wrapping_add((index % 100) as i8));
        self.again(|heap| {
            let block = heap.view::<T>(at)?;
            (0..count).for_each(|index| block.set(index, numbers(index)));
            Ok(())
        });
        other.again(|heap| {
            let block = heap.view::<T>(at)?;
            for index in 0..count {
                assert_eq!(block.get(index), numbers(index), "{:#x}, {index}", at.0);
            }
            Ok(())
        });
    }
}

/// Ends what waits for a number that is not 0, also where a test fails.
struct Over<'a>(&'a AtomicU64);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Relaxed);
    }
}

/// Links between the servers break at any moment: also while one of them tells the other of a
/// type. What is not told in one view is told in the next.
#[test]
fn types_reach_servers_whose_links_break() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        exchange_over_links_that_break();
        done.send(())
    });
    is_done
        .recv_timeout(3 * SOON)
        .expect("it ends, and ends well");
}

fn exchange_over_links_that_break() {
    let (group, between) = two_with_sockets_between();
    let clients = [group.client(0), as_machine(&group, 1, "big")];
    clients[0].create(grid(4096)).unwrap();
    let [one, other] = clients.each_ref().map(open);
    let side = |shared| Side { shared, heap: None };
    let (mut one, mut other) = (side(&one), side(&other));
    let is_over = AtomicU64::new(0);
    let links = || {
        let made = between.iter().map(|it| it.links.load(Ordering::Relaxed));
        made.sum::<u64>()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while is_over.load(Ordering::Relaxed) == 0 {
                // A link is made anew after 100 ms at the earliest; it is used for a while.
                thread::sleep(Duration::from_millis(300));
                between.iter().for_each(Between::break_all);
            }
        });
        let _over = Over(&is_over);
        // However fast it goes, some links break meanwhile.
        let rounds = (0_u8..60).take_while(|round| *round < 6 || links() < 3);
        for round in rounds {
            let (from, count) = ((3 * round) as i8, 600 << (round % 3));
            one.leave::<i16>(&mut other, (from, count));
            other.leave::<f64>(&mut one, (from, count));
            one.leave::<f32>(&mut other, (from, 2 * count));
            other.leave::<i32>(&mut one, (from, 4 * count));
        }
    });
    assert!(links() >= 3, "hardly a link broke");
}

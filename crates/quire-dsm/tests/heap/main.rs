//! The typed heap of an object, used by several programs at once: processes of machines of
//! all kinds over real sockets, with real faults, some of which are killed.

mod churn;
mod node;
#[path = "../served/mod.rs"]
mod served;

use std::collections::{BTreeMap, BTreeSet};

use node::Node;
use proptest::prelude::*;
use quire_core::dsm::alloc::{Class, List};
use quire_core::dsm::types::{Kind, TypeTag};
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Shared};
use quire_dsm::heap::{Heap, HeapError};
use quire_dsm::wire::control::{Rights, SchedulerKind};

use served::{Served, name, object, open, socket};

/// A node of the tests below; nothing where it was not started by one.
#[test]
#[ignore = "it is a part of other tests"]
fn a_node() {
    node::be();
}

/// A server with an object of so many pages, which is still empty.
fn serve(path: &str, pages: u64, kind: SchedulerKind) -> (Served, Client) {
    let served = Served::start(path);
    let client = served.client("first");
    let made = object("heap", Bytes(pages * 4096), kind);
    client.create(made).expect("it is new");
    (served, client)
}

fn types_of(client: &Client) -> Vec<(u64, u64, u16)> {
    let all = client.list().expect("a list");
    let tags = all[0].tags.iter();
    tags.map(|segment| (segment.start.0, segment.length.0, segment.tag.0))
        .collect()
}

#[test]
fn typed_memory_goes_between_machines_of_all_kinds() {
    let (_directory, path) = socket();
    let (served, client) = serve(&path, 512, SchedulerKind::Multi);
    let mut nodes: Vec<Node> = ["little", "big", "vax-d", "vax-g"]
        .map(|machine| Node::start(&served, machine))
        .into();
    // The first words of 1.0, as each of them stores it.
    let one = ["0x3ff0000000000000", "0xf03f", "0x4080", "0x4010"];
    for maker in 0..nodes.len() {
        let reals = nodes[maker].offset("tmalloc float64 100");
        let singles = nodes[maker].offset("tmalloc float32 3000");
        let whole = nodes[maker].offset("tmalloc int32 50");
        assert_eq!(nodes[maker].ask(&format!("set f64 {reals} 1")), "done");
        assert_eq!(nodes[maker].ask(&format!("set f32 {singles} -7.5")), "done");
        assert_eq!(nodes[maker].ask(&format!("set i32 {whole} 70000")), "done");
        for (node, one) in nodes.iter_mut().zip(one) {
            assert_eq!(node.ask(&format!("get f64 {reals}")), "1 2 3 4");
            assert_eq!(node.ask(&format!("raw {reals}")), one);
            let singles = node.ask(&format!("get f32 {singles}"));
            assert_eq!(singles, "-7.5 -6.5 -5.5 -4.5");
            let whole = node.ask(&format!("get i32 {whole}"));
            assert_eq!(whole, "70000 70001 70002 70003");
        }
        let other = (maker + 1) % nodes.len();
        let wrong = nodes[other].ask(&format!("get i32 {reals}"));
        assert!(wrong.contains("holds float64, not int32"), "{wrong}");
        // Anyone frees, once.
        for at in [reals, singles, whole] {
            assert_eq!(nodes[other].ask(&format!("free {at}")), "done");
            assert!(nodes[maker].ask(&format!("free {at}")).contains("error"));
        }
    }
    let tags: BTreeSet<u16> = types_of(&client).iter().map(|(_, _, tag)| *tag).collect();
    assert_eq!(
        tags,
        BTreeSet::from([3, 4, 5, 6]),
        "{:?}",
        types_of(&client)
    );
}

#[test]
fn what_a_machine_cannot_hold_is_reported() {
    let (_directory, path) = socket();
    let (served, client) = serve(&path, 64, SchedulerKind::Simple);
    let mut vax = Node::start(&served, "vax-d");
    let shared = open(&client, "heap");
    let heap = Heap::open(&shared).expect("a heap");
    let numbers = heap.alloc::<f64>(8).expect("room");
    let odd = [f64::NAN, f64::INFINITY, 1e300, 1e-300, -0.0, 1.5];
    for (index, value) in odd.into_iter().enumerate() {
        numbers.set(index, value);
    }
    let before = shared.reported().expect("a server");
    assert_eq!((before.replaced(), before.rounded()), (0, 0));
    // A node that has read the memory makes the report.
    vax.ask(&format!("get f64 {}", numbers.offset().0));
    let after = shared.reported().expect("a server");
    let kinds = [
        Kind::NotANumber,
        Kind::Infinity,
        Kind::Overflow,
        Kind::Underflow,
        Kind::NegativeZero,
    ];
    for kind in kinds {
        assert_eq!(after.count(kind), 1, "{kind}: {after}");
    }
    assert_eq!((after.replaced(), after.rounded()), (4, 1));
    let first = after.places().next().expect("a place");
    assert_eq!(
        (first.offset, first.tag),
        (numbers.offset(), TypeTag::Float64)
    );
}

/// A node is killed while it holds the list of a class, and owns blocks of it. Others go on
/// at once; its blocks stay in use; what else it owned is theirs.
#[test]
fn a_killed_node_loses_nothing() {
    let (_directory, path) = socket();
    let (served, client) = serve(&path, 256, SchedulerKind::Simple);
    let mut doomed = Node::start(&served, "big");
    let mut other = Node::start(&served, "little");
    let class = Class::of(TypeTag::Float64, 16).expect("a class");
    let list = List::Class(class).number();
    let kept: Vec<u64> = (0..5)
        .map(|_| doomed.offset("tmalloc float64 16"))
        .collect();
    assert_eq!(doomed.ask(&format!("set f64 {} 20", kept[0])), "done");
    // The node's last word is seen by others, and so is at the server when it dies.
    assert_eq!(other.ask(&format!("get f64 {}", kept[0])), "20 21 22 23");
    assert_eq!(doomed.ask(&format!("lock {list}")), "Done");
    other.order("tmalloc float64 16");
    doomed.kill();
    let first: u64 = other.answer().parse().expect("an offset");
    assert!(!kept.contains(&first));
    // That the list was left locked has told the other one to look for what was left.
    let shared = open(&client, "heap");
    let heap = Heap::open(&shared).expect("a heap");
    assert_eq!(heap.recover().expect("a server"), 0, "it was done already");
    for at in &kept {
        let view = heap.view::<f64>(ObjectOffset(*at)).expect("it is in use");
        assert_eq!(view.len(), 16);
    }
    let view = heap.view::<f64>(ObjectOffset(kept[0])).expect("a block");
    assert_eq!(view.get(3), 23.0);
    // When all is given back, all is there again.
    for at in kept.into_iter().chain([first]) {
        assert_eq!(other.ask(&format!("free {at}")), "done");
    }
    assert_eq!(other.ask("close"), "done");
    drop(heap);
    let heap = Heap::open(&shared).expect("a heap");
    let space = heap.free_space().expect("a server");
    // The header, the map and a directory.
    assert_eq!(
        space,
        Bytes((256 - 1 - 1 - 1) * 4096),
        "{:?}",
        types_of(&client)
    );
}

/// Several processes, each with threads, on machines of several kinds, allocate and free.
/// One is killed; what it had stays in use, all else can be had again.
#[test]
fn nodes_and_threads_allocate_at_once() {
    let (_directory, path) = socket();
    let (served, client) = serve(&path, 4096, SchedulerKind::Multi);
    let mut nodes: Vec<Node> = ["little", "big", "vax-g"]
        .map(|machine| Node::start(&served, machine))
        .into();
    let mut doomed = Node::start(&served, "little");
    doomed.order("churn 99 1000000");
    for (seed, node) in nodes.iter_mut().enumerate() {
        node.order(&format!("churn {} 400", seed + 1));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    doomed.kill();
    let left: Vec<Vec<String>> = nodes
        .iter_mut()
        .map(|node| node.answer().split(' ').map(str::to_owned).collect())
        .collect();
    let all: BTreeSet<&String> = left.iter().flatten().collect();
    assert_eq!(all.len(), left.iter().map(Vec::len).sum::<usize>());
    // Each frees what the next one has left.
    for (node, left) in nodes.iter_mut().zip(left.iter().cycle().skip(1)) {
        for at in left {
            assert_eq!(node.ask(&format!("free {at}")), "done");
        }
    }
    let recovered: usize = nodes[0].ask("recover").parse().expect("a number");
    assert!(recovered <= 1);
    assert_eq!(nodes[1].ask("recover"), "0");
    for node in &mut nodes {
        assert_eq!(node.ask("close"), "done");
    }
    let shared = open(&client, "heap");
    let heap = Heap::open(&shared).expect("a heap");
    assert!(heap.alloc::<f64>(100).is_ok());
}

#[test]
fn what_cannot_be_is_refused() {
    let (_directory, path) = socket();
    let (_served, client) = serve(&path, 64, SchedulerKind::Simple);
    let read = Rights {
        read: true,
        write: false,
    };
    let shared = client.open(name("heap"), read).expect("an object");
    assert!(matches!(Heap::open(&shared), Err(HeapError::ReadOnly)));
    let refused = shared.tag(ObjectOffset(0)..ObjectOffset(4096), TypeTag::Int8);
    assert!(refused.is_err_and(|error| error.to_string().contains("open to be read")));
    drop(shared);
    let shared = open(&client, "heap");
    for (start, end) in [(0, 100), (100, 4096), (4096, 4096), (0, 65 * 4096)] {
        let refused = shared.tag(ObjectOffset(start)..ObjectOffset(end), TypeTag::Int8);
        assert!(refused.is_err(), "{start} {end}");
    }
    shared.words()[100].store(1, std::sync::atomic::Ordering::Relaxed);
    let refused = Heap::open(&shared).err().expect("it is not empty");
    assert!(refused.to_string().contains("not empty"), "{refused}");
    let wrong = Heap::open(&shared).err().expect("it is still not empty");
    assert!(wrong.to_string().contains("not empty"), "{wrong}");
}

/// A program, as the model below sees it: its heap is there, or to be opened when needed.
type Blocks = BTreeMap<u64, (TypeTag, i64)>;

#[derive(Clone, Debug)]
enum Step {
    Take {
        node: usize,
        tag: usize,
        count: u64,
        mark: i8,
    },
    Free {
        node: usize,
        which: usize,
    },
    Look {
        node: usize,
        which: usize,
    },
    Change {
        node: usize,
        which: usize,
        mark: i8,
    },
    Reopen {
        node: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..MACHINES.len();
    let which = 0..64_usize;
    prop_oneof![
        4 => (node.clone(), 0..TAGS.len(), 1..2000_u64, any::<i8>())
            .prop_map(|(node, tag, count, mark)| Step::Take { node, tag, count, mark }),
        2 => (node.clone(), which.clone()).prop_map(|(node, which)| Step::Free { node, which }),
        3 => (node.clone(), which.clone()).prop_map(|(node, which)| Step::Look { node, which }),
        2 => (node.clone(), which, any::<i8>())
            .prop_map(|(node, which, mark)| Step::Change { node, which, mark }),
        1 => node.prop_map(|node| Step::Reopen { node }),
    ]
}

const MACHINES: [&str; 3] = ["little", "big", "vax-d"];
const TAGS: [TypeTag; 4] = [
    TypeTag::Int16,
    TypeTag::Int64,
    TypeTag::Float32,
    TypeTag::Float64,
];

/// Sets the ends of a block.
fn put(heap: &Heap, at: u64, tag: TypeTag, mark: i64) {
    let at = ObjectOffset(at);
    match tag {
        TypeTag::Int16 => ends(&heap.view::<i16>(at).expect("a block"), mark as i16),
        TypeTag::Int64 => ends(&heap.view::<i64>(at).expect("a block"), mark),
        TypeTag::Float32 => ends(&heap.view::<f32>(at).expect("a block"), mark as f32),
        _ => ends(&heap.view::<f64>(at).expect("a block"), mark as f64),
    }
}

fn ends<T: quire_dsm::heap::Element>(view: &quire_dsm::heap::View<T>, mark: T) {
    view.set(0, mark);
    view.set(view.len() - 1, mark);
}

/// What the ends of a block hold.
fn seen(heap: &Heap, at: u64, tag: TypeTag) -> [i64; 2] {
    let at = ObjectOffset(at);
    match tag {
        TypeTag::Int16 => {
            let view = heap.view::<i16>(at).expect("a block");
            [0, view.len() - 1].map(|index| view.get(index).into())
        }
        TypeTag::Int64 => {
            let view = heap.view::<i64>(at).expect("a block");
            [0, view.len() - 1].map(|index| view.get(index))
        }
        TypeTag::Float32 => {
            let view = heap.view::<f32>(at).expect("a block");
            [0, view.len() - 1].map(|index| view.get(index) as i64)
        }
        _ => {
            let view = heap.view::<f64>(at).expect("a block");
            [0, view.len() - 1].map(|index| view.get(index) as i64)
        }
    }
}

fn take_steps(objects: &[Shared], steps: &[Step]) {
    let mut heaps: Vec<Heap> = objects
        .iter()
        .map(|object| Heap::open(object).expect("a heap"))
        .collect();
    let mut blocks = Blocks::new();
    let nth = |blocks: &Blocks, which: usize| {
        let count = blocks.len().max(1);
        blocks
            .iter()
            .nth(which % count)
            .map(|(at, block)| (*at, *block))
    };
    for step in steps {
        match *step {
            Step::Take {
                node,
                tag,
                count,
                mark,
            } => {
                let tag = TAGS[tag];
                let Ok(at) = heaps[node].tmalloc(tag, count) else {
                    continue;
                };
                put(&heaps[node], at.0, tag, mark.into());
                assert_eq!(blocks.insert(at.0, (tag, mark.into())), None);
            }
            Step::Free { node, which } => {
                if let Some((at, _)) = nth(&blocks, which) {
                    heaps[node].free(ObjectOffset(at)).expect("it is in use");
                    blocks.remove(&at);
                }
            }
            Step::Look { node, which } => {
                if let Some((at, (tag, mark))) = nth(&blocks, which) {
                    assert_eq!(seen(&heaps[node], at, tag), [mark; 2]);
                }
            }
            Step::Change { node, which, mark } => {
                if let Some((at, (tag, _))) = nth(&blocks, which) {
                    put(&heaps[node], at, tag, mark.into());
                    blocks.insert(at, (tag, mark.into()));
                }
            }
            Step::Reopen { node } => {
                let again = Heap::open(&objects[node]).expect("a heap");
                heaps[node] = again;
            }
        }
    }
    for (at, (tag, mark)) in &blocks {
        for heap in &heaps {
            assert_eq!(seen(heap, *at, *tag), [*mark; 2]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Machines of several kinds do anything; a map of marks says what each block holds.
    #[test]
    fn machines_see_what_was_written_last(steps in prop::collection::vec(step(), 1..80)) {
        let (_directory, path) = socket();
        let (served, _client) = serve(&path, 128, SchedulerKind::Simple);
        let clients = MACHINES.map(|machine| {
            served.client_with(machine, |options| {
                options.machine = machine.parse().expect("a machine");
            })
        });
        let objects = clients.each_ref().map(|client| open(client, "heap"));
        take_steps(&objects, &steps);
    }
}

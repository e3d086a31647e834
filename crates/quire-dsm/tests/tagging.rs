//! Types that pages get while their object is open: never while another kernel has a copy,
//! and always when nobody else has one. The server's core is driven by honest kernels, with
//! messages under way for any time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use quire_core::dsm::message::{Access, FromKernel, Lock, PageNumber, Pages, ToKernel};
use quire_core::dsm::types::{Machine, TypeTag};
use quire_core::units::Bytes;
use quire_dsm::server::core::{Core, Out, Peer, PeerId};
use quire_dsm::wire::control::{
    Answer, FailureKind, Handle, MachineCode, Object, PageSize, Request, RequestId, Rights,
    SchedulerKind, Segment,
};
use quire_dsm::wire::{Contents, Control};

const PAGES: u64 = 6;
const PEERS: u64 = 3;
const OBJECT: Handle = Handle(1);

/// A kernel that does what it is told, and the messages from and to it.
#[derive(Default)]
struct Honest {
    has: BTreeMap<u64, Access>,
    asked: BTreeSet<u64>,
    up: VecDeque<Control>,
    down: VecDeque<Control>,
}

impl Honest {
    fn say(&mut self, message: FromKernel<Contents>) {
        let object = OBJECT;
        self.up.push_back(Control::FromKernel { object, message });
    }

    fn want(&mut self, page: u64, access: Access) {
        let pages = Pages::one(PageNumber(page));
        let has = self.has.get(&page).copied();
        if has >= Some(access) || !self.asked.insert(page) {
            return;
        }
        self.say(match has {
            Some(_) => FromKernel::DataUnlock { pages },
            None => FromKernel::DataRequest { pages, access },
        });
    }

    fn hear(&mut self, message: ToKernel<Contents>) {
        match message {
            ToKernel::DataProvided { pages, access, .. } => {
                for page in pages.iter() {
                    self.asked.remove(&page.0);
                    self.has.insert(page.0, access);
                }
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::AllowWrite,
            } => {
                for page in pages.iter() {
                    self.asked.remove(&page.0);
                    self.has.insert(page.0, Access::Write);
                }
            }
            ToKernel::LockRequest {
                pages,
                lock: Lock::Flush,
            } => {
                for page in pages.iter() {
                    if self.has.remove(&page.0) == Some(Access::Write) {
                        let (pages, data) = (Pages::one(page), vec![None]);
                        self.say(FromKernel::DataWrite { pages, data });
                    }
                }
                self.say(FromKernel::LockCompleted { pages });
            }
            ToKernel::DataError { .. } => unreachable!("nothing is lost"),
        }
    }

    /// Whether it has a page, or gets it.
    fn may_use(&self, page: u64) -> bool {
        let is_given = |message: &Control| {
            matches!(message, Control::ToKernel {
                message: ToKernel::DataProvided { pages, .. }
                    | ToKernel::LockRequest { pages, lock: Lock::AllowWrite }, ..
            } if pages.contains(PageNumber(page)))
        };
        self.has.contains_key(&page) || self.down.iter().any(is_given)
    }
}

struct World {
    core: Core,
    kernels: Vec<Honest>,
    /// What type each page has.
    types: Vec<TypeTag>,
    /// How often a page got one, and how often that was refused.
    answers: [u64; 2],
}

impl World {
    fn new(scheduler: SchedulerKind) -> World {
        let mut core = Core::default();
        let mut out = Vec::new();
        for peer in 0..PEERS {
            core.joined(PeerId(peer), Peer::new("it".into(), Machine::Little));
        }
        let made = Request::Create(Object {
            name: "it".parse().expect("a name"),
            size: Bytes(PAGES * 4096),
            page_size: PageSize::BASE,
            scheduler,
            machine: MachineCode(0),
            tags: Vec::new(),
        });
        let ask = |request| Control::Request {
            id: RequestId(0),
            request,
        };
        core.says(PeerId(0), ask(made), &mut out);
        for peer in 0..PEERS {
            let rights = Rights {
                read: true,
                write: true,
            };
            let made = core.objects().next().expect("an object");
            let name = made.info.name.clone();
            core.says(PeerId(peer), ask(Request::Open { name, rights }), &mut out);
        }
        World {
            core,
            kernels: (0..PEERS).map(|_| Honest::default()).collect(),
            types: vec![TypeTag::Untyped; PAGES as usize],
            answers: [0; 2],
        }
    }

    fn ask_tag(&mut self, peer: usize, first: u64, end: u64, tag: TypeTag) {
        let part = Segment {
            start: Bytes(first * 4096),
            length: Bytes((end - first) * 4096),
            tag: tag.into(),
        };
        let request = Request::TagPart {
            object: OBJECT,
            part,
        };
        let id = RequestId(1);
        self.kernels[peer]
            .up
            .push_back(Control::Request { id, request });
    }

    /// The server hears a kernel's oldest message.
    fn up(&mut self, peer: usize) {
        let Some(message) = self.kernels[peer].up.pop_front() else {
            return;
        };
        let part = match &message {
            Control::Request {
                request: Request::TagPart { part, .. },
                ..
            } => Some(*part),
            _ => None,
        };
        let mut out = Vec::new();
        self.core.says(PeerId(peer as u64), message, &mut out);
        if let Some(part) = part {
            self.tagged(peer, part, &out);
            return;
        }
        for out in out {
            match out {
                Out::Send(to, message) => self.kernels[to.0 as usize].down.push_back(message),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The server has answered who wants to give a part another type.
    fn tagged(&mut self, peer: usize, part: Segment, out: &[Out]) {
        let [Out::Send(_, Control::Answer { answer, .. })] = out else {
            panic!("one answer: {out:?}");
        };
        let pages = part.start.0 / 4096..(part.start.0 + part.length.0) / 4096;
        let others = self
            .kernels
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != peer);
        let is_shared = others
            .flat_map(|(_, kernel)| pages.clone().map(move |page| kernel.may_use(page)))
            .any(|used| used);
        match answer {
            Ok(Answer::Done) => {
                assert!(!is_shared, "a part that others have got another type");
                let tag = part.tag.tag().expect("a type");
                pages.for_each(|page| self.types[page as usize] = tag);
                self.answers[0] += 1;
            }
            Err(failure) => {
                assert_eq!(failure.kind, FailureKind::Busy);
                self.answers[1] += 1;
            }
            Ok(other) => panic!("{other:?}"),
        }
        self.check_types();
    }

    /// The object's types are those that its pages got.
    fn check_types(&self) {
        let object = self.core.objects().next().expect("an object");
        let mut types = vec![TypeTag::Untyped; PAGES as usize];
        for segment in &object.info.tags {
            let end = segment.start.0 + segment.length.0;
            for page in segment.start.0 / 4096..end / 4096 {
                types[page as usize] = segment.tag.tag().expect("a type");
            }
        }
        assert_eq!(types, self.types);
    }

    fn down(&mut self, peer: usize) {
        match self.kernels[peer].down.pop_front() {
            Some(Control::ToKernel { message, .. }) => self.kernels[peer].hear(message),
            None => {}
            other => panic!("{other:?}"),
        }
    }

    fn drain(&mut self) {
        while self
            .kernels
            .iter()
            .any(|it| !it.up.is_empty() || !it.down.is_empty())
        {
            for peer in 0..self.kernels.len() {
                self.up(peer);
                self.down(peer);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Want(usize, u64, bool),
    Up(usize),
    Down(usize),
    Tag(usize, u64, u64, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let peer = 0..PEERS as usize;
    prop_oneof![
        4 => (peer.clone(), 0..PAGES, any::<bool>()).prop_map(|(a, b, c)| Step::Want(a, b, c)),
        5 => peer.clone().prop_map(Step::Up),
        5 => peer.clone().prop_map(Step::Down),
        2 => (peer, 0..PAGES, 1..=2_u64, 0..7_usize).prop_map(|(a, b, c, d)| Step::Tag(a, b, c, d)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn only_what_nobody_else_has_gets_another_type(
        is_multi: bool,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let kind = if is_multi { SchedulerKind::Multi } else { SchedulerKind::Simple };
        let mut world = World::new(kind);
        for step in steps {
            match step {
                Step::Want(peer, page, false) => world.kernels[peer].want(page, Access::Read),
                Step::Want(peer, page, true) => world.kernels[peer].want(page, Access::Write),
                Step::Up(peer) => world.up(peer),
                Step::Down(peer) => world.down(peer),
                Step::Tag(peer, first, count, tag) => {
                    let end = (first + count).min(PAGES);
                    world.ask_tag(peer, first, end, TypeTag::ALL[tag]);
                }
            }
        }
        world.drain();
        // Who takes the pages by writing to them may always give them another type.
        for page in 0..PAGES {
            world.kernels[0].want(page, Access::Write);
        }
        world.drain();
        let before = world.answers;
        world.ask_tag(0, 0, PAGES, TypeTag::Float64);
        world.drain();
        prop_assert_eq!(world.answers, [before[0] + 1, before[1]]);
    }
}

#[test]
fn a_page_that_another_has_read_is_busy() {
    let mut world = World::new(SchedulerKind::Simple);
    world.kernels[1].want(2, Access::Read);
    world.drain();
    world.ask_tag(0, 2, 3, TypeTag::Int64);
    world.ask_tag(0, 3, 6, TypeTag::Int64);
    world.drain();
    assert_eq!(world.answers, [1, 1]);
    world.kernels[0].want(2, Access::Write);
    world.drain();
    world.ask_tag(0, 2, 3, TypeTag::Int64);
    world.drain();
    assert_eq!(world.answers, [2, 1]);
}

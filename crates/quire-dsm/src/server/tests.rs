//! Several servers without a network: each message between them is encoded and decoded as it
//! would be, and links keep the order. Each server has one kernel, which writes whenever it
//! gets the page, and gives it back at once when it is told to.

use std::collections::{BTreeMap, VecDeque};

use quire_core::dsm::message::{Access, FromKernel, Lock, PageNumber, Pages, ServerId, ToKernel};
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;

use super::core::{Core, Out, Peer, PeerId};
use super::object::Part;
use super::said::{self, Parts, Said};
use crate::store::ObjectId;
use crate::wire::control::{
    Handle, MachineCode, Name, Object, PageSize, Request, RequestId, Rights, SchedulerKind,
};
use crate::wire::{Contents, Control};

const PAGE: Pages = Pages::one(PageNumber(0));
const PEER: PeerId = PeerId(1);

/// A server, and its kernel, whose copy of the page counts writes.
struct One {
    core: Core,
    page: Option<u64>,
}

struct World {
    servers: Vec<One>,
    /// What is under way from one to another.
    links: BTreeMap<(usize, usize), VecDeque<Control>>,
    messages: u64,
}

fn name() -> Name {
    "grid".parse().expect("a name")
}

fn object() -> Object {
    Object {
        name: name(),
        size: Bytes(4096),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Distributed,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

fn id(server: usize) -> ServerId {
    ServerId(server as u64 + 1)
}

fn contents(count: u64) -> Contents {
    let mut bytes = vec![0; 4096];
    bytes[..8].copy_from_slice(&count.to_le_bytes());
    Contents::from(bytes)
}

impl World {
    fn new(count: usize) -> World {
        let server = |number| {
            let mut core = Core::default();
            let part = Part {
                me: id(number),
                of: id(0),
            };
            core.insert(object(), "anyone".into(), Some(part), false)
                .expect("it is an object");
            core.joined(PEER, Peer::new("anyone".into(), Machine::native()));
            One { core, page: None }
        };
        let mut world = World {
            servers: (0..count).map(server).collect(),
            links: BTreeMap::new(),
            messages: 0,
        };
        world.view(1, 0..count);
        let rights = Rights {
            read: true,
            write: true,
        };
        for server in 0..count {
            let open = Control::Request {
                id: RequestId(1),
                request: Request::Open {
                    name: name(),
                    rights,
                },
            };
            let mut out = Vec::new();
            world.servers[server].core.says(PEER, open, &mut out);
        }
        world.messages = 0;
        world
    }

    /// A view with these members.
    fn view(&mut self, epoch: u64, members: impl Iterator<Item = usize> + Clone) {
        for server in members.clone() {
            let view = (epoch, members.clone().map(id).collect());
            let mut out = Vec::new();
            let core = &mut self.servers[server].core;
            core.new_view(&name(), view, &mut out)
                .expect("none was missed");
            self.obey(server, out);
        }
        self.drain();
    }

    /// The kernel of a server says something.
    fn says(&mut self, server: usize, message: FromKernel<Contents>) {
        let object = Handle(1);
        let mut out = Vec::new();
        let core = &mut self.servers[server].core;
        core.says(PEER, Control::FromKernel { object, message }, &mut out);
        self.obey(server, out);
    }

    fn give_back(&mut self, server: usize) {
        if let Some(count) = self.servers[server].page.take() {
            let data = vec![Some(contents(count))];
            self.says(server, FromKernel::DataWrite { pages: PAGE, data });
        }
    }

    fn fault(&mut self, server: usize) {
        let access = Access::Write;
        self.says(
            server,
            FromKernel::DataRequest {
                pages: PAGE,
                access,
            },
        );
    }

    fn obey(&mut self, server: usize, out: Vec<Out>) {
        for out in out {
            match out {
                Out::PeerServer(_, to, message) => {
                    self.messages += 1;
                    let (said, page) = said::scheduler(ObjectId(1), 0, message);
                    let to = to.0 as usize - 1;
                    let link = self.links.entry((server, to)).or_default();
                    link.extend(said::encode(id(server), &said, page));
                }
                Out::Send(_, Control::ToKernel { message, .. }) => self.kernel(server, message),
                Out::Send(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn kernel(&mut self, server: usize, message: ToKernel<Contents>) {
        match message {
            ToKernel::DataProvided { data, .. } => {
                let count = data[0].as_ref().map_or(0, |page| {
                    u64::from_le_bytes(page[..8].try_into().expect("8 bytes"))
                });
                self.servers[server].page = Some(count + 1);
            }
            ToKernel::LockRequest {
                lock: Lock::Flush, ..
            } => {
                self.give_back(server);
                self.says(server, FromKernel::LockCompleted { pages: PAGE });
            }
            other => panic!("{other:?}"),
        }
    }

    /// Delivers all that is under way, link by link in turn.
    fn drain(&mut self) {
        let mut parts: BTreeMap<(usize, usize), Parts> = BTreeMap::new();
        loop {
            let busy = self.links.iter_mut();
            let next = busy.filter_map(|(key, link)| Some((*key, link.pop_front()?)));
            let came: Vec<((usize, usize), Control)> = next.collect();
            if came.is_empty() {
                return;
            }
            for ((from, to), message) in came {
                let Control::PeerServer { body, data, .. } = message else {
                    panic!("{message:?}");
                };
                let all = parts.entry((from, to)).or_default().add(&body, data);
                for (said, page) in all.expect("no garbage") {
                    let Said::Scheduler { message, .. } = said else {
                        panic!("{said:?}");
                    };
                    let message = said::with_page(message, page).expect("a page that fits");
                    let mut out = Vec::new();
                    let core = &mut self.servers[to].core;
                    let heard = core.hear_peer_server(&name(), id(from), message, &mut out);
                    assert_eq!(heard, Some(Ok(())));
                    self.obey(to, out);
                }
            }
        }
    }

    fn holder(&self) -> usize {
        let holder = self.servers.iter().position(|one| one.page.is_some());
        holder.unwrap_or(0)
    }

    /// All write once. How many messages went between servers.
    fn round(&mut self) -> u64 {
        let before = self.messages;
        let holder = self.holder();
        self.give_back(holder);
        self.fault(holder);
        for server in (0..self.servers.len()).filter(|server| *server != holder) {
            self.fault(server);
        }
        self.drain();
        self.messages - before
    }
}

/// As `docs/dsm-distributed.md` says.
#[test]
fn a_hotspot_takes_the_papers_number_of_messages() {
    for parties in 2..=16 {
        let mut world = World::new(parties);
        let n = parties as u64;
        assert_eq!(world.round(), 3 * n - 4, "first round of {n}");
        for round in 2..20 {
            let expected = if n == 2 { 2 } else { 2 * n - 1 };
            assert_eq!(world.round(), expected, "round {round} of {n}");
        }
        let holder = world.holder();
        assert_eq!(world.servers[holder].page, Some(19 * n));
    }
}

/// A server that is gone takes with it what only it has; the others go on with what it sent.
#[test]
fn survivors_go_on_with_the_newest_copy() {
    let mut world = World::new(3);
    for server in [0, 1, 2] {
        world.fault(server);
        world.drain();
    }
    assert_eq!(world.servers[2].page, Some(3));
    world.view(2, 0..2);
    world.fault(0);
    world.drain();
    assert_eq!(world.servers[0].page, Some(3));
    world.fault(1);
    world.drain();
    assert_eq!(world.servers[1].page, Some(4));
    assert_eq!(world.servers[0].page, None);
}

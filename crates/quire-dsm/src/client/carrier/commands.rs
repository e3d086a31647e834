//! What the program wants of the thread, and who does it: the cache of an object, or the server
//! whose pages the program shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use quire_core::dsm::message::{Access, Pages};
use quire_core::dsm::sync;

use super::asking::Awaited;
use super::elsewhere::{What, is_about_an_object};
use super::giving_back::Then;
use super::{Carrier, Key};
use crate::client::{ClientError, Known, Remains, region};
use crate::link::turn::Links;
use crate::node::{self, Mapping, Where};
use crate::wire::Control;
use crate::wire::control::{self, Answer, MappingNumber, Name, Request, Rights};

/// Who waits for something.
pub(super) type Reply<T> = Sender<Result<T, ClientError>>;

/// Counts when it is dropped: whoever awaits something by it sees when there is an answer, or
/// there can be none.
pub(in crate::client) struct Told(pub(in crate::client) Arc<AtomicU64>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What the program wants.
pub(in crate::client) enum Command {
    Ask {
        request: Request,
        reply: Reply<Answer>,
    },
    Open {
        wanted: Wanted,
        reply: Reply<Opened>,
    },
    /// An object is to be mapped as it is known, whether there is a link or not.
    Expect {
        known: Known,
        reply: Reply<Opened>,
    },
    Synchronise {
        key: Key,
        request: sync::Request,
        reply: Reply<Answer>,
    },
    /// The same; of the answer it matters only that there is one.
    Await {
        key: Key,
        request: sync::Request,
        told: Told,
    },
    Tag {
        key: Key,
        part: control::Segment,
        reply: Reply<Answer>,
    },
    GiveBack {
        key: Key,
        pages: Pages,
        reply: Reply<()>,
    },
    /// A mapping, whose number is that of an object or of a part, will be touched soon.
    Need {
        number: u64,
        pages: Pages,
        access: Access,
    },
    Flush {
        key: Key,
        reply: Reply<()>,
    },
    Close {
        key: Key,
        reply: Reply<()>,
    },
    /// What a program that is gone had written is brought. Who waits is told how many pages are lost.
    Bring {
        remains: Remains,
        reply: Reply<u64>,
    },
    /// A part is to be mapped, beside the whole.
    Map {
        key: Key,
        wanted: region::Wanted,
        reply: Reply<(Mapping, u64)>,
    },
    /// It is not wanted any more.
    Unmap {
        number: u64,
        reply: Reply<()>,
    },
    /// A child of the process is to open an object, or this is a child that has opened it.
    ForkedChild {
        key: Key,
        has_come: bool,
    },
    /// All that was wanted before is to leave now. Who waits for that has the other end.
    SendNow {
        sent: Sender<()>,
    },
    /// The process is going to end.
    Ending,
    End,
}

/// An object that is to be opened.
pub(in crate::client) struct Wanted {
    pub name: Name,
    pub rights: Rights,
    /// Where it is to be mapped.
    pub at: Where,
}

/// What a server says that an object is.
#[derive(Clone, Debug)]
pub(in crate::client) struct Found {
    /// The exact spelling of its key.
    pub exact: Name,
    pub info: control::Object,
}

/// An object that was opened.
pub(in crate::client) struct Opened {
    pub mapping: Mapping,
    pub is: Found,
    pub key: Key,
    pub breaks: Arc<AtomicU64>,
    pub is_attached: bool,
    /// How long touches wait for a new link.
    pub reconnect: Duration,
}

impl Carrier {
    pub(super) fn obey(&mut self, links: &mut Links, command: Command) {
        match command {
            Command::Ask { request, reply } if is_about_an_object(&request) => {
                self.begin(links, What::Ask { request, reply });
            }
            Command::Ask { request, reply } => self.ask(links, request, Awaited::Answer(reply)),
            Command::Open { wanted, reply } => self.begin(links, What::Open { wanted, reply }),
            // Who waited may have gone.
            Command::Expect { known, reply } => drop(reply.send(self.expect(links, known))),
            Command::Synchronise {
                key,
                request,
                reply,
            } => {
                let request = |object| Request::Synchronise { object, request };
                self.ask_of(links, key, request, Awaited::Answer(reply));
            }
            Command::Await { key, request, told } => {
                let request = |object| Request::Synchronise { object, request };
                self.ask_of(links, key, request, Awaited::Told(told));
            }
            Command::Tag { key, part, reply } => {
                let request = |object| Request::TagPart { object, part };
                self.ask_of(links, key, request, Awaited::Answer(reply));
            }
            Command::GiveBack { key, pages, reply } => self.evict(links, key, pages, reply),
            Command::Need {
                number,
                pages,
                access,
            } => self.need(links, number, (pages, access)),
            Command::Flush { key, reply } => match self.attached.contains_key(&key) {
                true => {
                    let request = |object| Request::Sync { object };
                    self.ask_of(links, key, request, Awaited::Sync(reply));
                }
                false => self.give_back(links, key, Then::Sync(reply)),
            },
            Command::Close { key, reply } => match self.attached.contains_key(&key) {
                true => self.close_attached(links, key, reply),
                false => self.give_back(links, key, Then::Close(reply)),
            },
            Command::Bring { remains, reply } => self.bring_remains(links, remains, reply),
            Command::Map { key, wanted, reply } => match self.attached.contains_key(&key) {
                true => self.map_attached(links, key, wanted, reply),
                false => self.map(links, key, wanted, reply),
            },
            Command::Unmap { number, reply } => self.unmap(links, number, reply),
            Command::ForkedChild { key, has_come } => {
                if let Some((link, object)) = self.usable_link().zip(self.handle(key)) {
                    let message = match has_come {
                        false => Control::ChildComes { object },
                        true => Control::ChildCame { object },
                    };
                    links.send(link, message);
                }
            }
            Command::SendNow { sent } => {
                if let Some(link) = self.usable_link() {
                    links.flush(link);
                }
                drop(sent);
            }
            Command::Ending => {
                if let Some(link) = self.usable_link() {
                    links.send(link, Control::Ending);
                }
            }
            Command::End => {
                self.is_over = true;
                if let Some(link) = self.usable_link() {
                    links.close(link, "the program is done");
                }
            }
        }
    }

    /// Gives back some pages of an object, as far as they were written.
    fn evict(&mut self, links: &mut Links, key: Key, pages: Pages, reply: Reply<()>) {
        if self.attached.contains_key(&key) {
            let request = |object| Request::GiveBack { object, pages };
            return self.ask_of(links, key, request, Awaited::Sync(reply));
        }
        self.give_up_pages(links, key, pages, reply);
    }

    /// Has pages brought that a mapping will need, by whoever answers its faults.
    fn need(&mut self, links: &mut Links, number: u64, need: (Pages, Access)) {
        if let Some((key, space)) = self.mapped(number) {
            self.with(links, key, |cache, way| {
                cache.will_need(space, need, node::now(), way)
            });
            return;
        }
        let mapping = MappingNumber(number);
        let mut attached = self.attached.iter();
        let Some(key) = attached.find_map(|(key, it)| it.has(mapping).then_some(*key)) else {
            return;
        };
        let (pages, access) = need;
        let request = |object| Request::WillNeed {
            object,
            mapping,
            pages,
            access,
        };
        self.ask_of(links, key, request, Awaited::Told(Told(Arc::default())));
    }
}

//! What servers say to each other, as bytes in [`Control::PeerServer`].
//!
//! The contents of a page are taken out, so that they are never copied into the body; what
//! stands there in their place is the machine that wrote them. What is said in one turn of the
//! loop goes together, as far as it fits: each message begins with whether contents are beside
//! it. What is longer than a part may be is sent in several, which lie one after the other on
//! the link.

use quire_core::dsm::message::{KernelId, PageNumber, ServerId};
use quire_core::dsm::scheduler::distributed::{Body, Message, Version};
use quire_core::dsm::sync;
use serde::{Deserialize, Serialize};

use super::meeting::Minutes;
use super::object::Page;
use super::rights::Stamp;
use crate::directory::Letter;
use crate::directory::asked::{News, Question, Reply};
use crate::store::ObjectId;
use crate::wire::control::{Handle, MachineCode, Rights, Segment};
use crate::wire::{Contents, Control};

/// A part of a message, or messages that go together, in bytes.
const PART: usize = 32 << 10;
/// Contents that go together, in bytes, unless one page has more.
const CONTENTS: usize = 128 << 10;
/// The longest message: some four million pages that a server tells the others of.
const LONGEST: usize = 64 << 20;

/// What one server says to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// Which server this is, and which it wants to speak with. The first message of whoever
    /// connected.
    Introduce {
        /// Which it wants.
        to: ServerId,
    },
    /// From the scheduler of an object to its peer server.
    Scheduler {
        /// The object.
        object: ObjectId,
        /// The sender's clock: what it says to kernels from now on has a later time.
        clock: u64,
        /// What it says.
        message: Message<MachineCode>,
    },
    /// A kernel of the sender synchronises over an object whose locks the receiver keeps.
    Synchronise {
        /// The object.
        object: ObjectId,
        /// The view in which the receiver keeps them.
        epoch: u64,
        /// Who.
        kernel: KernelId,
        /// Which of its requests it is.
        number: u64,
        /// How.
        request: sync::Request,
    },
    /// The answer; none where the receiver was asked in vain.
    Synchronised {
        /// The object.
        object: ObjectId,
        /// Whom.
        kernel: KernelId,
        /// Which of its requests.
        number: u64,
        /// The answer.
        answer: Option<sync::Answer>,
    },
    /// A kernel of the sender is gone.
    Parted {
        /// The object.
        object: ObjectId,
        /// Who.
        kernel: KernelId,
        /// Whether it went without a word.
        crashed: bool,
    },
    /// Who may do what to an object from now on.
    Granted {
        /// The object.
        object: ObjectId,
        /// Whom.
        to: String,
        /// What.
        rights: Rights,
        /// When that was said.
        stamp: Stamp,
    },
    /// How often is an object open there? Somebody wants to remove it.
    IsOpen {
        /// The object.
        object: ObjectId,
    },
    /// So often.
    Open {
        /// The object.
        object: ObjectId,
        /// How often.
        times: u64,
    },
    /// An object goes when nobody has it open at any server, and has no name any more:
    /// [`Said::DiscardedToo`].
    Discarded {
        /// The object.
        object: ObjectId,
    },
    /// That is known: who asks by the name does not get it.
    DiscardedToo {
        /// The object.
        object: ObjectId,
    },
    /// The directory is asked.
    Ask {
        /// Which question it is.
        number: u64,
        /// What is asked.
        question: Question,
    },
    /// The directory answers.
    Told {
        /// Which question.
        number: u64,
        /// What.
        reply: Reply,
    },
    /// The sender wants to hear of changes in the directory.
    Watch,
    /// Something has changed in the directory.
    News(News),
    /// From one copy of the directory to another one, which is at the receiver.
    Replica(Box<Letter>),
    /// A part of an object has another type from now on.
    Tagged {
        /// The object.
        object: ObjectId,
        /// The view of the sender.
        epoch: u64,
        /// Which change of the sender it is.
        number: u64,
        /// The part, and its type.
        part: Segment,
    },
    /// So it is at the sender.
    TaggedToo {
        /// The object.
        object: ObjectId,
        /// The view of the sender.
        epoch: u64,
        /// Which change of the receiver it was.
        number: u64,
    },
    /// All types of an object, for who does not know them yet.
    Types {
        /// The object.
        object: ObjectId,
        /// The types.
        tags: Vec<Segment>,
    },
    /// A page was given back to the sender, and is to be kept on the receiver's disk. Its
    /// contents are beside it; there are none where it is all zeros.
    Keep {
        /// The object.
        object: ObjectId,
        /// The view.
        epoch: u64,
        /// Which message of this kind it is.
        number: u64,
        /// Which page.
        page: PageNumber,
        /// Its version.
        version: Version,
    },
    /// It is safe, or why not.
    Kept {
        /// The object.
        object: ObjectId,
        /// Which message.
        number: u64,
        /// Why it is not.
        error: Option<String>,
    },
    /// The sender ends, and a page would be lost with it. Its contents are beside it; there are
    /// none where it is all zeros.
    Handoff {
        /// The object.
        object: ObjectId,
        /// The view.
        epoch: u64,
        /// Which page.
        page: PageNumber,
        /// Its version.
        version: Version,
        /// The machine that wrote it.
        machine: MachineCode,
    },
    /// That was all of them.
    HandoffEnd {
        /// The object.
        object: ObjectId,
        /// The view.
        epoch: u64,
        /// Which message of this kind it is.
        number: u64,
    },
    /// They are at the sender, or it does not take them.
    HandoffTaken {
        /// The object.
        object: ObjectId,
        /// Which message it was.
        number: u64,
        /// Whether they are there.
        is_taken: bool,
    },
    /// The sender ends, and the receiver shall keep mutexes, barriers and counters of an
    /// object in its place. It answers with [`Said::HandoffTaken`].
    Minutes {
        /// The object.
        object: ObjectId,
        /// Which message of this kind it is.
        number: u64,
        /// All that the sender knows of them.
        minutes: Minutes,
    },
    /// Another server keeps mutexes, barriers and counters of an object in the place of the
    /// sender. The answer is [`Said::HandoffTaken`].
    Moved {
        /// The object.
        object: ObjectId,
        /// Which message of this kind it is.
        number: u64,
        /// The server.
        to: ServerId,
    },
    /// The sender has these kernels of an object; the receiver keeps its mutexes, barriers and
    /// counters.
    Present {
        /// The object.
        object: ObjectId,
        /// The kernels.
        kernels: Vec<KernelId>,
    },
    /// The sender begins to end: it takes nothing over any more.
    Ends,
    /// The sender keeps an object on its disk, and ends: the receiver's programs are to give back all
    /// that they have of it. The answer is [`Said::Flushed`].
    Flush {
        /// The object.
        object: ObjectId,
    },
    /// The sender's programs get nothing of an object any more.
    Flushed {
        /// The object.
        object: ObjectId,
        /// How many pages the receiver has not acknowledged, or programs have not given back.
        left: u64,
    },
}

/// A message that a server should not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Garbage {
    #[error("a peer server sent what is no message")]
    Undecodable,
    #[error("a peer server sent a message longer than {LONGEST} bytes")]
    Long,
    #[error("a peer server sent contents without a page, or a page without contents")]
    Contents,
    #[error("a peer server sent contents of a machine that is unknown here")]
    Machine,
}

/// A message for a link, in parts.
pub(crate) fn encode(from: ServerId, said: &Said, page: Option<Contents>) -> Vec<Control> {
    let mut together = Together::default();
    let mut all = together.add(from, said, page);
    all.extend(together.take(from));
    all
}

/// Messages for a link that go together.
#[derive(Debug, Default)]
pub(crate) struct Together {
    messages: Vec<u8>,
    data: Vec<Option<Contents>>,
    /// The bytes of contents.
    bytes: usize,
}

impl Together {
    /// Adds a message. What is to leave now.
    pub fn add(&mut self, from: ServerId, said: &Said, page: Option<Contents>) -> Vec<Control> {
        let before = self.messages.len();
        self.messages.push(u8::from(page.is_some()));
        match postcard::to_extend(said, std::mem::take(&mut self.messages)) {
            Ok(messages) => self.messages = messages,
            // Nothing in it can fail to be encoded: no maps of unknown length, no floats.
            Err(_) => return Vec::new(),
        }
        let mut leaving = Vec::new();
        let more = page.as_ref().map_or(0, |page| page.len());
        if self.messages.len() > PART || self.bytes + more > CONTENTS {
            let message = self.messages.split_off(before);
            leaving.extend(self.take(from));
            self.messages = message;
        }
        self.bytes += more;
        self.data.extend(page.map(Some));
        if self.messages.len() > PART || self.bytes >= CONTENTS {
            leaving.extend(self.take_parts(from));
        }
        leaving
    }

    /// All that there is, which is no longer than a part, if there is anything.
    pub fn take(&mut self, from: ServerId) -> Option<Control> {
        self.take_parts(from).pop()
    }

    fn take_parts(&mut self, from: ServerId) -> Vec<Control> {
        let messages = std::mem::take(&mut self.messages);
        let mut data = std::mem::take(&mut self.data);
        self.bytes = 0;
        let parts = messages.chunks(PART);
        let last = parts.len().saturating_sub(1);
        let control = |(number, part): (usize, &[u8])| {
            let mut body = Vec::with_capacity(part.len() + 1);
            body.push(u8::from(number < last));
            body.extend_from_slice(part);
            let data = match number == last {
                true => std::mem::take(&mut data),
                false => Vec::new(),
            };
            Control::PeerServer {
                object: Handle(0),
                from,
                body,
                data,
            }
        };
        parts.enumerate().map(control).collect()
    }
}

/// The scheduler's message, with its page beside it.
pub(crate) fn scheduler(
    object: ObjectId,
    clock: u64,
    message: Message<Page>,
) -> (Said, Option<Contents>) {
    let mut contents = None;
    let body = exchange(message.body, |page: Page| {
        contents = Some(page.contents);
        Ok::<_, Garbage>(MachineCode::from(page.machine))
    });
    // Every machine has a code.
    let body = match body {
        Ok(body) => body,
        Err(_) => Body::Holdings(Vec::new()),
    };
    let epoch = message.epoch;
    let message = Message { epoch, body };
    let said = Said::Scheduler {
        object,
        clock,
        message,
    };
    (said, contents)
}

/// Puts a page back into the scheduler's message.
pub(crate) fn with_page(
    message: Message<MachineCode>,
    contents: Option<Contents>,
) -> Result<Message<Page>, Garbage> {
    let mut contents = contents;
    let body = exchange(message.body, |code: MachineCode| {
        Ok(Page {
            contents: contents.take().ok_or(Garbage::Contents)?,
            machine: code.machine().ok_or(Garbage::Machine)?,
        })
    })?;
    match contents {
        None => Ok(Message {
            epoch: message.epoch,
            body,
        }),
        Some(_) => Err(Garbage::Contents),
    }
}

/// The same with another page in the place of its page, if it has one.
fn exchange<D, E, F>(
    body: Body<D>,
    mut change: impl FnMut(D) -> Result<E, F>,
) -> Result<Body<E>, F> {
    Ok(match body {
        Body::Fault(fault) => Body::Fault(fault),
        Body::Copy {
            page,
            version,
            owner,
            data,
        } => Body::Copy {
            page,
            version,
            owner,
            data: data.map(change).transpose()?,
        },
        Body::Own {
            page,
            version,
            data,
        } => Body::Own {
            page,
            version,
            data: data
                .map(|data| data.map(&mut change).transpose())
                .transpose()?,
        },
        Body::Invalidate { page, owner } => Body::Invalidate { page, owner },
        Body::Invalidated { page } => Body::Invalidated { page },
        Body::Lost { page } => Body::Lost { page },
        Body::Holdings(holdings) => Body::Holdings(holdings),
        Body::Owners { home, owners } => Body::Owners { home, owners },
    })
}

/// Makes whole messages of parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    begun: Vec<u8>,
}

impl Parts {
    /// A part came. The messages, where it was the last one.
    pub fn add(
        &mut self,
        body: &[u8],
        data: Vec<Option<Contents>>,
    ) -> Result<Vec<(Said, Option<Contents>)>, Garbage> {
        let (&more, part) = body.split_first().ok_or(Garbage::Undecodable)?;
        if self.begun.len() + part.len() > LONGEST {
            return Err(Garbage::Long);
        }
        if more != 0 {
            self.begun.extend_from_slice(part);
            return Ok(Vec::new());
        }
        match self.begun.is_empty() {
            true => messages(part, data),
            false => {
                let mut bytes = std::mem::take(&mut self.begun);
                bytes.extend_from_slice(part);
                messages(&bytes, data)
            }
        }
    }
}

/// Messages that came together, each with its contents, if it has any. What comes from a peer server is
/// kept, each page for a time of its own.
fn messages(
    mut bytes: &[u8],
    mut data: Vec<Option<Contents>>,
) -> Result<Vec<(Said, Option<Contents>)>, Garbage> {
    Contents::part_with(&mut data);
    let mut data = data.into_iter();
    let mut all = Vec::new();
    loop {
        let (&has_contents, message) = bytes.split_first().ok_or(Garbage::Undecodable)?;
        let decoded = postcard::take_from_bytes(message);
        let (said, rest) = decoded.map_err(|_| Garbage::Undecodable)?;
        let page = match has_contents {
            0 => None,
            1 => Some(data.next().flatten().ok_or(Garbage::Contents)?),
            _ => return Err(Garbage::Undecodable),
        };
        all.push((said, page));
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    match data.next() {
        None => Ok(all),
        Some(_) => Err(Garbage::Contents),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quire_core::dsm::scheduler::distributed::{Epoch, Holding};
    use quire_core::dsm::types::Machine;

    use super::*;

    /// Over a link and back.
    fn carried(
        said: &Said,
        page: Option<Contents>,
    ) -> Result<Option<(Said, Option<Contents>)>, Garbage> {
        all_carried(encode(ServerId(7), said, page)).map(|mut all| {
            assert!(all.len() < 2);
            all.pop()
        })
    }

    fn all_carried(controls: Vec<Control>) -> Result<Vec<(Said, Option<Contents>)>, Garbage> {
        let mut parts = Parts::default();
        let mut came = Vec::new();
        for control in controls {
            let Control::PeerServer { body, data, .. } = control else {
                panic!("{control:?}");
            };
            assert!(body.len() <= PART + 1);
            let bytes: usize = data.iter().flatten().map(|page| page.len()).sum();
            assert!(bytes <= CONTENTS || data.len() == 1);
            came.extend(parts.add(&body, data)?);
        }
        Ok(came)
    }

    fn own(data: Option<Option<Page>>) -> Message<Page> {
        Message {
            epoch: Epoch(3),
            body: Body::Own {
                page: PageNumber(9),
                version: Version(4),
                data,
            },
        }
    }

    #[test]
    fn a_page_keeps_what_it_holds_and_who_wrote_it() {
        let page = Page {
            contents: Contents::from(vec![7; 4096]),
            machine: Machine::VaxD,
        };
        for data in [None, Some(None), Some(Some(page))] {
            let (said, contents) = scheduler(ObjectId(1), 8, own(data.clone()));
            let (said, contents) = carried(&said, contents).unwrap().unwrap();
            let Said::Scheduler {
                object,
                clock,
                message,
            } = said
            else {
                panic!("{said:?}");
            };
            assert_eq!((object, clock), (ObjectId(1), 8));
            let back = with_page(message, contents).unwrap();
            assert_eq!(format!("{back:?}"), format!("{:?}", own(data)));
        }
    }

    #[test]
    fn long_messages_come_in_parts() {
        let holding = |page| Holding {
            page: PageNumber(page),
            version: Version(page),
            contents: true,
            owner: page % 2 == 0,
        };
        let body = Body::Holdings((0..100_000).map(holding).collect());
        let message = Message {
            epoch: Epoch(1),
            body,
        };
        let said = Said::Scheduler {
            object: ObjectId(2),
            clock: 0,
            message,
        };
        assert_eq!(carried(&said, None), Ok(Some((said, None))));
    }

    /// One message after the other, whatever goes together.
    #[test]
    fn messages_that_go_together_keep_their_order_and_contents() {
        let page = |number: u64, length| {
            let machine = Machine::native();
            let contents = Contents::from(vec![number as u8; length]);
            scheduler(
                ObjectId(number),
                0,
                own(Some(Some(Page { contents, machine }))),
            )
        };
        let without = |number| scheduler(ObjectId(number), 0, own(None));
        let long = |number| {
            let granted = Said::Granted {
                object: ObjectId(number),
                to: "x".repeat(3 * PART),
                rights: Rights {
                    read: true,
                    write: false,
                },
                stamp: Stamp::EARLIEST,
            };
            (granted, None)
        };
        let mut said = vec![without(0), page(1, 4096), long(2), without(3)];
        said.extend((4..80).map(|number| page(number, 4096)));
        said.extend([page(80, 2 << 20), without(81), page(82, 2 << 20), long(83)]);
        said.extend((84..5000).map(without));
        let mut together = Together::default();
        let mut controls = Vec::new();
        for (said, page) in &said {
            controls.extend(together.add(ServerId(7), said, page.clone()));
        }
        controls.extend(together.take(ServerId(7)));
        assert_eq!(together.take(ServerId(7)), None);
        assert!(controls.len() < 20, "{}", controls.len());
        assert_eq!(all_carried(controls), Ok(said));
    }

    #[test]
    fn contents_must_fit_the_message() {
        let page = Some(Contents::from(vec![0; 4096]));
        let (said, _) = scheduler(ObjectId(1), 0, own(Some(None)));
        let Said::Scheduler { message, .. } = said else {
            panic!("{said:?}");
        };
        assert_eq!(with_page(message, page).map(drop), Err(Garbage::Contents));
        let without = Message {
            epoch: Epoch(1),
            body: Body::Own {
                page: PageNumber(0),
                version: Version(0),
                data: Some(Some(MachineCode(0))),
            },
        };
        assert_eq!(with_page(without, None).map(drop), Err(Garbage::Contents));
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_means_something(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Parts::default().add(&body, Vec::new());
        }
    }
}

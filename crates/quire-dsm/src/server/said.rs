//! What servers say to each other, as bytes in [`Control::Fellow`].
//!
//! The contents of a page are taken out, so that they are never copied into the body; what
//! stands there in their place is the machine that wrote them. What is longer than a message
//! may be is sent in parts, which lie one after the other on the link.

use quire_core::dsm::message::{KernelId, PageNumber, ServerId};
use quire_core::dsm::scheduler::distributed::{Body, Message, Version};
use quire_core::dsm::sync;
use serde::{Deserialize, Serialize};

use super::meeting::Minutes;
use super::object::Page;
use crate::directory::Letter;
use crate::directory::asked::{News, Question, Reply};
use crate::store::ObjectId;
use crate::wire::control::{Handle, MachineCode, Rights, Segment};
use crate::wire::{Contents, Control};

/// A part of a message, in bytes.
const PART: usize = 32 << 10;
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
    /// From the scheduler of an object to its fellow.
    Scheduler {
        /// The object.
        object: ObjectId,
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
    Inherit {
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
    Will {
        /// The object.
        object: ObjectId,
        /// The view.
        epoch: u64,
        /// Which message of this kind it is.
        number: u64,
    },
    /// They are at the sender, or it does not take them.
    Inherited {
        /// The object.
        object: ObjectId,
        /// Which message it was.
        number: u64,
        /// Whether they are there.
        is_taken: bool,
    },
    /// The sender ends, and the receiver shall keep mutexes, barriers and counters of an
    /// object in its place. It answers with [`Said::Inherited`].
    Minutes {
        /// The object.
        object: ObjectId,
        /// Which message of this kind it is.
        number: u64,
        /// All that the sender knows of them.
        minutes: Minutes,
    },
    /// Another server keeps mutexes, barriers and counters of an object in the place of the
    /// sender. The answer is [`Said::Inherited`].
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
}

/// A message that a server should not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Garbage {
    #[error("a fellow server sent what is no message")]
    Undecodable,
    #[error("a fellow server sent a message longer than {LONGEST} bytes")]
    Long,
    #[error("a fellow server sent contents without a page, or a page without contents")]
    Contents,
    #[error("a fellow server sent contents of a machine that is unknown here")]
    Machine,
}

/// A message for a link, in parts.
pub(crate) fn encode(from: ServerId, said: &Said, page: Option<Contents>) -> Vec<Control> {
    let Ok(bytes) = postcard::to_io(said, Vec::new()) else {
        // Nothing in it can fail to be encoded: no maps of unknown length, no floats.
        return Vec::new();
    };
    let parts = bytes.chunks(PART);
    let last = parts.len().saturating_sub(1);
    let mut page = page;
    let control = |(number, part): (usize, &[u8])| {
        let mut body = Vec::with_capacity(part.len() + 1);
        body.push(u8::from(number < last));
        body.extend_from_slice(part);
        let data = match number == last {
            true => page.take().map(Some).into_iter().collect(),
            false => Vec::new(),
        };
        Control::Fellow {
            object: Handle(0),
            from,
            body,
            data,
        }
    };
    parts.enumerate().map(control).collect()
}

/// The scheduler's message, with its page beside it.
pub(crate) fn scheduler(object: ObjectId, message: Message<Page>) -> (Said, Option<Contents>) {
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
    (Said::Scheduler { object, message }, contents)
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
    /// A part came. A message, where it was the last one.
    pub fn add(
        &mut self,
        body: &[u8],
        data: Vec<Option<Contents>>,
    ) -> Result<Option<(Said, Option<Contents>)>, Garbage> {
        let (&more, part) = body.split_first().ok_or(Garbage::Undecodable)?;
        if self.begun.len() + part.len() > LONGEST {
            return Err(Garbage::Long);
        }
        if more != 0 {
            self.begun.extend_from_slice(part);
            return Ok(None);
        }
        let said = match self.begun.is_empty() {
            true => whole(part)?,
            false => {
                let mut bytes = std::mem::take(&mut self.begun);
                bytes.extend_from_slice(part);
                whole(&bytes)?
            }
        };
        let mut data = data.into_iter();
        match (data.next(), data.next()) {
            (None, _) => Ok(Some((said, None))),
            (Some(Some(page)), None) => Ok(Some((said, Some(page)))),
            _ => Err(Garbage::Contents),
        }
    }
}

fn whole(bytes: &[u8]) -> Result<Said, Garbage> {
    match postcard::take_from_bytes(bytes) {
        Ok((said, [])) => Ok(said),
        _ => Err(Garbage::Undecodable),
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
        let mut parts = Parts::default();
        let mut came = Ok(None);
        for control in encode(ServerId(7), said, page) {
            let Control::Fellow { body, data, .. } = control else {
                panic!("{control:?}");
            };
            assert!(body.len() <= PART + 1);
            assert_eq!(came, Ok(None));
            came = parts.add(&body, data);
        }
        came
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
            let (said, contents) = scheduler(ObjectId(1), own(data.clone()));
            let (said, contents) = carried(&said, contents).unwrap().unwrap();
            let Said::Scheduler { object, message } = said else {
                panic!("{said:?}");
            };
            assert_eq!(object, ObjectId(1));
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
            message,
        };
        assert_eq!(carried(&said, None), Ok(Some((said, None))));
    }

    #[test]
    fn contents_must_fit_the_message() {
        let page = Some(Contents::from(vec![0; 4096]));
        let (said, _) = scheduler(ObjectId(1), own(Some(None)));
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

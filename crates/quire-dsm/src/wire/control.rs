//! What is said over a link. Contents of pages stand in the messages where they belong;
//! [`super::Outgoing`] takes them out into the payload, and [`super::Decoder`] puts them back.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use quire_core::dsm::message::{
    Access, Client, FromKernel, KernelId, PageNumber, Pages, ServerId, ToKernel,
};
use quire_core::dsm::scheduler::trace::Event;
use quire_core::dsm::sync;
use quire_core::dsm::types::Report;
use quire_core::units::{BASE_PAGE, Bytes, ObjectOffset, SUPERPAGE, VirtAddr};
use serde::{Deserialize, Serialize};

use super::buffer::Contents;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Who connects. The first message, and only that.
    Hello(Hello),
    /// Who answers, and that the other may stay.
    Welcome(Welcome),
    /// That the other may not stay, and why. The link ends.
    Refusal(Refusal),
    /// "I am there."
    Heartbeat {
        /// The sender's clock, in nanoseconds since a moment of its own.
        clock: u64,
    },
    /// A heartbeat came.
    HeartbeatSeen {
        /// What it had as its clock.
        clock: u64,
    },
    /// A question.
    Request {
        /// Which, among those that this side asked over this link.
        id: RequestId,
        /// What is asked.
        request: Request,
    },
    /// Its answer.
    Answer {
        /// Which question's.
        id: RequestId,
        /// What is answered.
        answer: Result<Answer, Failure>,
    },
    /// From a kernel to the scheduler of an object.
    FromKernel {
        /// The object.
        object: Handle,
        /// What it says.
        message: FromKernel<Contents>,
    },
    /// From the scheduler of an object to a kernel.
    ToKernel {
        /// The object.
        object: Handle,
        /// Larger than in all that this server said before, also before it was started again: of two
        /// grants of a page the later has the larger.
        stamp: u64,
        /// What it says.
        message: ToKernel<Contents>,
    },
    /// From one server of an object to another.
    PeerServer {
        /// The object.
        object: Handle,
        /// Who says it.
        from: ServerId,
        /// The scheduler's message without its contents, as its own code encodes it.
        body: Vec<u8>,
        /// Its contents.
        data: Vec<Option<Contents>>,
    },
    /// The sender's process forks: a child opens this, too, by itself.
    ChildComes {
        /// What it has open.
        object: Handle,
    },
    /// The sender is such a child.
    ChildCame {
        /// What it has opened.
        object: Handle,
    },
    /// The sender closes the link, on purpose.
    Goodbye {
        /// Why, for a person.
        reason: String,
    },
    /// The sender's process ends, and with it the link. It uses what it was given until then.
    Ending,
}

/// Why a server closes links ([`Control::Goodbye`]) that is told to end and has kept all that programs wrote:
/// who comes to it again, when it is started anew, has lost nothing.
pub const KEPT_ALL: &str = "the server ends, and has kept all";

/// Why a server closes links whose peers use an object of another one, which is told to end and has kept all
/// that anybody wrote to it.
pub const HOME_KEPT_ALL: &str = "the server that keeps it on its disk has ended, and has kept all; programs \
                                 wait for it to be started again";

/// Whether nothing is lost with a link that was closed for this reason.
#[must_use]
pub fn has_kept_all(reason: &str) -> bool {
    [KEPT_ALL, HOME_KEPT_ALL].contains(&reason)
}

/// The kinds of messages, to count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Kind {
    /// [`Control::Hello`].
    Hello,
    /// [`Control::Welcome`].
    Welcome,
    /// [`Control::Refusal`].
    Refusal,
    /// [`Control::Heartbeat`].
    Heartbeat,
    /// [`Control::HeartbeatSeen`].
    HeartbeatSeen,
    /// [`Control::Request`].
    Request,
    /// [`Control::Answer`].
    Answer,
    /// [`Control::FromKernel`].
    FromKernel,
    /// [`Control::ToKernel`].
    ToKernel,
    /// [`Control::PeerServer`].
    PeerServer,
    /// [`Control::ChildComes`].
    ChildComes,
    /// [`Control::ChildCame`].
    ChildCame,
    /// [`Control::Goodbye`].
    Goodbye,
    /// [`Control::Ending`].
    Ending,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = Kind::Ending as usize + 1;
}

impl Control {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Control::Hello(_) => Kind::Hello,
            Control::Welcome(_) => Kind::Welcome,
            Control::Refusal(_) => Kind::Refusal,
            Control::Heartbeat { .. } => Kind::Heartbeat,
            Control::HeartbeatSeen { .. } => Kind::HeartbeatSeen,
            Control::Request { .. } => Kind::Request,
            Control::Answer { .. } => Kind::Answer,
            Control::FromKernel { .. } => Kind::FromKernel,
            Control::ToKernel { .. } => Kind::ToKernel,
            Control::PeerServer { .. } => Kind::PeerServer,
            Control::ChildComes { .. } => Kind::ChildComes,
            Control::ChildCame { .. } => Kind::ChildCame,
            Control::Goodbye { .. } => Kind::Goodbye,
            Control::Ending => Kind::Ending,
        }
    }

    /// The pages that it is about, where it says so.
    pub(super) const fn pages(&self) -> Option<Pages> {
        match self {
            Control::FromKernel {
                message:
                    FromKernel::DataRequest { pages, .. }
                    | FromKernel::DataUnlock { pages }
                    | FromKernel::DataWrite { pages, .. }
                    | FromKernel::LockCompleted { pages },
                ..
            }
            | Control::ToKernel {
                message:
                    ToKernel::DataProvided { pages, .. }
                    | ToKernel::LockRequest { pages, .. }
                    | ToKernel::DataError { pages },
                ..
            }
            | Control::Request {
                request:
                    Request::Statistics {
                        pages: Some(pages), ..
                    },
                ..
            } => Some(*pages),
            _ => None,
        }
    }

    /// Its pages, where it is of a kind that has contents, and how many there must be, where
    /// it says so.
    pub(super) fn contents(&mut self) -> Option<(Option<u32>, &mut Vec<Option<Contents>>)> {
        match self {
            Control::FromKernel {
                message: FromKernel::DataWrite { pages, data },
                ..
            }
            | Control::ToKernel {
                message: ToKernel::DataProvided { pages, data, .. },
                ..
            } => Some((Some(pages.count), data)),
            Control::PeerServer { data, .. } => Some((None, data)),
            _ => None,
        }
    }

    /// Keeps as many of its pages as have at most so many bytes of contents, but at least one: what
    /// is said of pages may as well be said in several messages. What has the others, if there are
    /// any.
    pub(crate) fn split_off(&mut self, most: usize) -> Option<Control> {
        match self {
            Control::FromKernel {
                object,
                message: FromKernel::DataWrite { pages, data },
            } => {
                let (pages, data) = split(pages, data, most)?;
                let message = FromKernel::DataWrite { pages, data };
                let object = *object;
                Some(Control::FromKernel { object, message })
            }
            Control::ToKernel {
                object,
                stamp,
                message:
                    ToKernel::DataProvided {
                        pages,
                        data,
                        access,
                    },
            } => {
                let (pages, data) = split(pages, data, most)?;
                let message = ToKernel::DataProvided {
                    pages,
                    data,
                    access: *access,
                };
                let (object, stamp) = (*object, *stamp);
                Some(Control::ToKernel {
                    object,
                    stamp,
                    message,
                })
            }
            _ => None,
        }
    }
}

/// Takes out the pages behind those that have at most so many bytes of contents.
fn split(
    pages: &mut Pages,
    data: &mut Vec<Option<Contents>>,
    most: usize,
) -> Option<(Pages, Vec<Option<Contents>>)> {
    let mut bytes = 0;
    let is_beyond = |page: &Option<Contents>| {
        bytes += page.as_ref().map_or(0, |page| page.len());
        bytes > most
    };
    let kept = data.iter().position(is_beyond)?.max(1);
    // Where there are not as many contents as pages, it is refused as a whole.
    if kept == data.len() || data.len() != pages.count as usize {
        return None;
    }
    let others = Pages {
        first: PageNumber(pages.first.0.checked_add(kept as u64)?),
        count: pages.count - kept as u32,
    };
    pages.count = kept as u32;
    Some((others, data.split_off(kept)))
}

/// A name of an object, a node or a server: 1 to 200 of `a-z A-Z 0-9 . _ -`, the first of them
/// a letter or digit.
///
/// What was removed and is still used leaves its name to others, so that objects have a *key*, too,
/// which they keep: the name, a tilde and a number (`grid~8f3a`), which no other ever gets; or the name
/// alone, as those had of servers of before. Whoever has an object asks for it by the *exact spelling* of its key, which
/// has a tilde in any case: `grid~` is the object whose key is `grid`, and `grid` the one that has the name now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

/// A name that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name: take 1 to 200 letters, digits, dots, dashes and underlines, and begin with a letter or digit"
)]
pub struct NameError(String);

impl Name {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A name like a text that may be none: without the characters that a name cannot have; `quire`
    /// where none are left.
    #[must_use]
    pub fn like(text: &str) -> Name {
        let known = text
            .chars()
            .filter(|c| u8::try_from(*c).is_ok_and(is_known));
        let known = known.skip_while(|c| !c.is_ascii_alphanumeric());
        let name: String = known.take(LONGEST_NAME).collect();
        Name(if name.is_empty() {
            "quire".into()
        } else {
            name
        })
    }

    /// Whether it is a name alone, and no exact spelling.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.0.contains(TILDE)
    }

    /// The name alone.
    #[must_use]
    pub fn plain(&self) -> Name {
        let name = self.0.split(TILDE).next();
        Name(name.unwrap_or_default().to_owned())
    }

    /// The key that this spells exactly; none where it is a name alone.
    #[must_use]
    pub fn key(&self) -> Option<Name> {
        let (name, number) = self.0.split_once(TILDE)?;
        Some(match number {
            "" => Name(name.to_owned()),
            _ => self.clone(),
        })
    }

    /// The exact spelling of a key.
    #[must_use]
    pub fn exact(&self) -> Name {
        match self.is_plain() {
            true => Name(format!("{}{TILDE}", self.0)),
            false => self.clone(),
        }
    }

    /// The key of an object of this name that has this number.
    #[must_use]
    pub fn numbered(&self, number: u64) -> Name {
        Name(format!("{}{TILDE}{number:x}", self.plain()))
    }

    /// The number of the key that this spells exactly, if that has one.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        let (_, number) = self.0.split_once(TILDE)?;
        u64::from_str_radix(number, 16).ok()
    }

    /// Where all keys of this name with numbers lie among others.
    #[must_use]
    pub fn all_numbered(&self) -> Range<Name> {
        let name = self.plain();
        let end = char::from(TILDE as u8 + 1);
        Name(format!("{name}{TILDE}"))..Name(format!("{name}{end}"))
    }
}

/// What stands before the number of a key. It comes after all that a name may have.
const TILDE: char = '~';
/// The longest number of a key, in digits.
const LONGEST_NUMBER: usize = 16;
/// The longest name, in bytes.
const LONGEST_NAME: usize = 200;

/// Whether a name may have this, but at its beginning.
fn is_known(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// Whether it can be a name alone.
fn is_name(text: &str) -> bool {
    let first = text.bytes().next();
    let begins = first.is_some_and(|byte| byte.is_ascii_alphanumeric());
    begins && text.len() <= LONGEST_NAME && text.bytes().all(is_known)
}

/// Whether it can be the number of a key, as it is written.
fn is_number(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() <= LONGEST_NUMBER && text.bytes().all(is_digit)
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Name, NameError> {
        let (name, number) = text.split_once(TILDE).unwrap_or((&text, ""));
        match is_name(name) && is_number(number) {
            true => Ok(Name(text)),
            false => Err(NameError(text.chars().take(LONGEST_NAME).collect())),
        }
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::try_from(text.to_owned())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The size of a page of an object or a kernel: a power of two, 4 KiB to 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PageSize(u8);

/// A size that no page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page has a power of two of bytes, 4096 to 2097152")]
pub struct PageSizeError;

impl PageSize {
    /// 4 KiB.
    pub const BASE: PageSize = PageSize(12);

    /// As a number of bytes.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.0)
    }
}

impl TryFrom<Bytes> for PageSize {
    type Error = PageSizeError;

    fn try_from(size: Bytes) -> Result<PageSize, PageSizeError> {
        if size.0.is_power_of_two() && (BASE_PAGE..=SUPERPAGE).contains(&size.0) {
            Ok(PageSize(size.0.ilog2() as u8))
        } else {
            Err(PageSizeError)
        }
    }
}

impl TryFrom<u8> for PageSize {
    type Error = PageSizeError;

    fn try_from(shift: u8) -> Result<PageSize, PageSizeError> {
        if (BASE_PAGE.ilog2()..=SUPERPAGE.ilog2()).contains(&u32::from(shift)) {
            Ok(PageSize(shift))
        } else {
            Err(PageSizeError)
        }
    }
}

impl From<PageSize> for u8 {
    fn from(size: PageSize) -> u8 {
        size.0
    }
}

/// A feature: on one machine, programs and the server share one copy of each page
/// ([`Request::Attach`]). The first bit stood for the same where each program registered one
/// mapping, of the whole object; who has only that goes on with pages of its own.
pub const SHARES_PAGES: u64 = 1 << 1;

/// A feature: another process outlives this program and brings what it had written when it is killed
/// ([`Request::Claim`]).
pub const HAS_RECOVERY: u64 = 1 << 2;

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// It has the kernels of one or several objects.
    Kernel,
    /// A server.
    Server,
    /// A command, which maps nothing.
    Tool,
}

/// The number that a kind of machine has, for the translation of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MachineCode(pub u16);

/// The number that a type of data has, for the translation of contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TypeCode(pub u16);

/// Who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name; with TLS its certificate must be for this name.
    pub name: Name,
    /// What it is.
    pub role: Role,
    /// What machine it runs on, or says that it does.
    pub machine: MachineCode,
    /// The size of its pages.
    pub page_size: PageSize,
    /// What it can do beyond this version of the protocol, one bit each.
    pub features: u64,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Its name; with TLS its certificate must be for this name.
    pub name: Name,
    /// The number by which it knows the peer.
    pub kernel: KernelId,
    /// How long a lease lasts, in milliseconds.
    pub lease: u32,
    /// Those features that both have.
    pub features: u64,
    /// For a program that came over plain TCP from this machine: the Unix socket, without a
    /// path, at which it can come again to share pages.
    pub beside: Option<Name>,
}

/// Why a peer may not stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of reason.
    pub reason: Reason,
    /// The same for a person, with the remedy.
    pub text: String,
}

/// Kinds of reasons to refuse a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// It speaks another version of the protocol.
    Version,
    /// It is not who it says.
    Identity,
    /// It has no right to be here.
    Denied,
    /// There are too many already.
    Full,
    /// The server is going down.
    Ending,
    /// What it said makes no sense.
    Nonsense,
}

/// A question, among those that one side asked over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub u64);

/// An object that is open, among those of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Handle(pub u32);

/// A mapping of an object that is attached, among those that its program has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MappingNumber(pub u64);

/// The name of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SchedulerKind {
    /// One page size, one server.
    Simple,
    /// Several page sizes, one server.
    Multi,
    /// Several servers.
    Distributed,
    /// What the server that makes the object chooses: [`SchedulerKind::Distributed`] where it is joined to
    /// others, else [`SchedulerKind::Multi`]. No object that is there has it.
    Usual,
}

impl SchedulerKind {
    /// All of them.
    pub const ALL: [SchedulerKind; 4] = [
        SchedulerKind::Simple,
        SchedulerKind::Multi,
        SchedulerKind::Distributed,
        SchedulerKind::Usual,
    ];

    /// What it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SchedulerKind::Simple => "simple",
            SchedulerKind::Multi => "multi",
            SchedulerKind::Distributed => "distributed",
            SchedulerKind::Usual => "usual",
        }
    }

    /// This one, or where the server is to choose, the one that it chose.
    #[must_use]
    pub fn or(self, chosen: SchedulerKind) -> SchedulerKind {
        match self {
            SchedulerKind::Usual => chosen,
            said => said,
        }
    }
}

/// No scheduler is called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose `simple`, `multi`, `distributed` or `usual`")]
pub struct NoScheduler;

impl FromStr for SchedulerKind {
    type Err = NoScheduler;

    fn from_str(text: &str) -> Result<SchedulerKind, NoScheduler> {
        let mut all = SchedulerKind::ALL.into_iter();
        all.find(|kind| kind.name() == text).ok_or(NoScheduler)
    }
}

impl fmt::Display for SchedulerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of an object whose data are all of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// Where it begins in the object.
    pub start: Bytes,
    /// How long it is.
    pub length: Bytes,
    /// The type.
    pub tag: TypeCode,
}

/// An object, as it is made and listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its name.
    pub name: Name,
    /// Its size.
    pub size: Bytes,
    /// The size of its scheduler's pages.
    pub page_size: PageSize,
    /// Its scheduler.
    pub scheduler: SchedulerKind,
    /// The machine in whose form contents are that nobody has written yet.
    pub machine: MachineCode,
    /// The types of its data. What is in no segment is not translated.
    pub tags: Vec<Segment>,
}

impl Object {
    /// One with base pages and the scheduler that the server chooses, of the usual machine and without types.
    #[must_use]
    pub const fn usual(name: Name, size: Bytes) -> Object {
        Object {
            name,
            size,
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Usual,
            machine: MachineCode(0),
            tags: Vec::new(),
        }
    }
}

/// What somebody wants to do to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rights {
    /// Read it.
    pub read: bool,
    /// Write to it.
    pub write: bool,
}

/// How many faults there were, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// A page was missing, to be read.
    pub read: u64,
    /// A page was missing, to be written to.
    pub write: u64,
    /// A page was there to be read, and was to be written to.
    pub unlock: u64,
}

/// What is known of a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageState {
    /// Which page.
    pub page: PageNumber,
    /// Its faults.
    pub faults: Faults,
    /// Who may write to it.
    pub owner: Option<Client>,
    /// How many may read it.
    pub readers: u64,
    /// Its state, in the scheduler's words.
    pub state: String,
    /// How many requests wait for it.
    pub waiting: u64,
    /// How often somebody was asked to give it back.
    pub descheduled: u64,
}

/// A kernel that has an object open, and who that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The kernel.
    pub kernel: KernelId,
    /// Whose it is, for a person.
    pub name: String,
}

/// A message in or out of a scheduler, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// When, in nanoseconds since 1970 by the server's clock.
    pub at: u64,
    /// What was said.
    pub event: Event,
}

/// What somebody has watched of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Messages, in their order.
    pub seen: Vec<Seen>,
    /// So many before them are not told, as they were not fetched in time.
    pub lost: u64,
    /// Who is who, of the kernels that they name and that have the object open.
    pub known: Vec<Known>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Open an object: [`Answer::Opened`].
    Open {
        /// Its name.
        name: Name,
        /// What for.
        rights: Rights,
    },
    /// Close it, after [`FromKernel::Terminate`]: [`Answer::Done`], when all that was given
    /// back is safe.
    Close {
        /// The object.
        object: Handle,
    },
    /// Make an object: [`Answer::Done`].
    Create(Object),
    /// Remove one: [`Answer::Done`].
    Remove {
        /// Its name.
        name: Name,
    },
    /// Objects, by name: [`Answer::Listed`]. Those that were removed and are still used are listed by
    /// the exact spellings of their keys.
    List {
        /// The first to be listed is the one after this.
        after: Option<Name>,
    },
    /// What is known of an object: [`Answer::Statistics`], or [`Answer::Begun`].
    Statistics {
        /// Its name.
        name: Name,
        /// The pages that are asked for, too.
        pages: Option<Pages>,
    },
    /// Say what types its data have: [`Answer::Done`].
    Tag {
        /// Its name.
        name: Name,
        /// The types; they take the place of those that it had.
        tags: Vec<Segment>,
    },
    /// Say what somebody may do to an object: [`Answer::Done`].
    Grant {
        /// Its name.
        name: Name,
        /// Whom: a node's name, `uid:NUMBER` for a user of the server's machine, or `anyone`.
        to: String,
        /// What; it takes the place of what that was before.
        rights: Rights,
    },
    /// Synchronise with others: [`Answer::Synchronised`], when it is so far.
    Synchronise {
        /// The object over which they do.
        object: Handle,
        /// How.
        request: sync::Request,
    },
    /// Say when all that was given back to an object so far is safe: [`Answer::Done`]. Where
    /// the server's own copy is shared, and a store, a pager or other servers have more of the object, it
    /// gives back first what programs wrote to that copy.
    Sync {
        /// The object.
        object: Handle,
    },
    /// Give whole pages of an open object another type: [`Answer::Done`]. Nobody else may
    /// use them; what they hold means nothing any more. Refused as [`FailureKind::Busy`]
    /// while others have copies of them.
    TagPart {
        /// The object.
        object: Handle,
        /// The pages, and their type.
        part: Segment,
    },
    /// Watch what an object's scheduler is told and tells, from the first such request on:
    /// [`Answer::Watched`]. The first is answered at once, others when there is something.
    Watch {
        /// Its name.
        name: Name,
        /// Messages about these pages, and those that name none; otherwise all.
        pages: Option<Pages>,
    },
    /// What is known of an object, and of its pages with the most faults:
    /// [`Answer::Statistics`].
    Hottest {
        /// Its name.
        name: Name,
        /// So many pages at most.
        most: u32,
    },
    /// Open an object to share the server's own copy of its pages: [`Answer::Attached`], or
    /// [`Answer::Opened`] where that cannot be.
    Attach {
        /// Its name.
        name: Name,
        /// What for.
        rights: Rights,
    },
    /// A part of an object that is attached is mapped: [`Answer::Done`] when faults are
    /// answered. One descriptor comes with it, the userfaultfd with which the mapping is
    /// registered.
    Register {
        /// The object.
        object: Handle,
        /// What the mapping is called on this link from now on.
        mapping: MappingNumber,
        /// Where in the object the part starts.
        start: ObjectOffset,
        /// How long it is.
        length: Bytes,
        /// Where it is mapped.
        base: VirtAddr,
    },
    /// Give up pages of an object that is attached, for all programs that share them:
    /// [`Answer::Done`].
    GiveBack {
        /// The object.
        object: Handle,
        /// Which.
        pages: Pages,
    },
    /// A mapping that was registered is about to go: [`Answer::Done`] when nothing is done to
    /// it any more.
    Unregister {
        /// The object.
        object: Handle,
        /// The mapping.
        mapping: MappingNumber,
    },
    /// A mapping that was registered will be touched soon and in order: [`Answer::Done`] at once,
    /// while what is lacking comes.
    WillNeed {
        /// The object.
        object: Handle,
        /// The mapping.
        mapping: MappingNumber,
        /// Which pages of the object.
        pages: Pages,
        /// How.
        access: Access,
    },
    /// Begin an object: it has a name and a key, and no size yet: [`Answer::Begun`]. Nobody else can begin
    /// or open it, until somebody makes it by the name, gives it a size by the key, or removes it.
    Begin {
        /// Its name.
        name: Name,
    },
    /// Remove an object as soon as nobody has it open, or what is begun: [`Answer::Done`] at once,
    /// where it is in use. Until it goes it can be opened by the exact spelling of its key; its name is
    /// free.
    Discard {
        /// Its name.
        name: Name,
    },
    /// Make what is begun: [`Answer::Sized`]. Its name here is the exact spelling of its key. Where that
    /// was removed meanwhile, the object has no name, and goes when nobody has it open.
    GiveSize(Object),
    /// What was written over a link that has ended, and not given back, is brought now:
    /// [`Answer::Claimed`]. The sender vouches that nobody writes to those pages any more. They
    /// follow in [`FromKernel::DataWrite`], and then [`Request::Settle`].
    Claim {
        /// By which number the server knew the peer at the other end of that link.
        session: KernelId,
        /// What the object was called there.
        object: Handle,
        /// The exact spelling of its key.
        name: Name,
    },
    /// Which versions of pages follow, where [`Answer::Claimed`] does not know the link: [`Answer::Done`].
    Vouch {
        /// What [`Answer::Claimed`] has called it.
        object: Handle,
        /// The first page.
        first: PageNumber,
        /// Of each from that one on, the last stamp that its holder heard while it had it; and whether
        /// it was not given back.
        stamps: Vec<(u64, bool)>,
    },
    /// All was brought that was claimed: [`Answer::Settled`].
    Settle {
        /// What [`Answer::Claimed`] has called it.
        object: Handle,
        /// So many pages were written to, and their contents cannot be brought.
        missing: u64,
    },
}

impl Request {
    /// By what it asks for an object that is to be there: a name, or an exact spelling.
    pub(crate) const fn asks_by(&mut self) -> Option<&mut Name> {
        match self {
            Request::Open { name, .. }
            | Request::Attach { name, .. }
            | Request::Statistics { name, .. }
            | Request::Hottest { name, .. }
            | Request::Watch { name, .. }
            | Request::Tag { name, .. }
            | Request::Grant { name, .. }
            | Request::Remove { name }
            | Request::Discard { name }
            | Request::Claim { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether it opens an object.
    pub(crate) const fn opens(&self) -> bool {
        matches!(self, Request::Open { .. } | Request::Attach { .. })
    }

    /// Whether it asks that an object goes.
    pub(crate) const fn removes(&self) -> bool {
        matches!(self, Request::Remove { .. } | Request::Discard { .. })
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// The object is open.
    Opened {
        /// What it is called on this link from now on.
        object: Handle,
        /// The exact spelling of its key, by which it is asked for over other links.
        exact: Name,
        /// What it is.
        info: Object,
        /// So many pages were written to by programs that are gone, and never given back. Who opens
        /// it next is told, once.
        lost: u64,
    },
    /// Objects.
    Listed {
        /// Some of them.
        objects: Vec<Object>,
        /// Whether there are more after the last of them.
        more: bool,
    },
    /// What is known of an object.
    Statistics {
        /// The exact spelling of its key.
        exact: Name,
        /// What it is.
        info: Object,
        /// As whom its maker counts.
        owner: String,
        /// Whether it was discarded, and goes when nobody has it open.
        is_discarded: bool,
        /// What only those are told who may read it.
        inside: Option<Inside>,
    },
    /// What came of synchronising.
    Synchronised(sync::Answer),
    /// What was seen.
    Watched(Watched),
    /// The object is open. One descriptor comes with it, the file to be mapped.
    Attached {
        /// What it is called on this link from now on.
        object: Handle,
        /// The exact spelling of its key, by which it is asked for over other links.
        exact: Name,
        /// What it is.
        info: Object,
        /// As in [`Answer::Opened`].
        lost: u64,
    },
    /// The object is begun, and has no size.
    Begun {
        /// The exact spelling of its key. No other object ever has that key.
        exact: Name,
    },
    /// The object has its size.
    Sized {
        /// Whether it has no name, as that was removed before.
        is_removed: bool,
    },
    /// What was written over another link is taken.
    Claimed {
        /// What the object is called on this link until that is settled.
        object: Handle,
        /// Whether the server knows that link: otherwise it takes pages that nobody has asked for
        /// since it was started.
        is_known: bool,
        /// So many pages came with contents over that link.
        received: u64,
        /// Whether other servers may share the object: they may have what was given back over that link, or
        /// what came of it.
        is_shared: bool,
    },
    /// That is done.
    Settled {
        /// So many pages were not taken, as somebody else has been given them since.
        lost: u64,
    },
}

/// How many messages about an object's pages a server handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    /// From kernels.
    pub from_kernels: u64,
    /// Of those, the second ones of kernels that answer a flush in two. Paper 003 counts both
    /// as one; zero with schedulers of one server.
    pub completions: u64,
    /// To kernels.
    pub to_kernels: u64,
    /// From peer servers.
    pub from_servers: u64,
    /// To peer servers.
    pub to_servers: u64,
    /// Faults of peer servers' kernels that were among those messages.
    pub faults_of_servers: u64,
}

/// What happens in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The faults of all pages.
    pub faults: Faults,
    /// How many pages somebody ever asked for.
    pub touched: u64,
    /// How often it is open; of those who share a copy, each program counts.
    pub open: u64,
    /// Who has it open; fewer, where they do not all fit. Programs that share a copy are all
    /// named with its kernel.
    pub kernels: Vec<Known>,
    /// The pages that were asked for; fewer, where they do not all fit.
    pub pages: Vec<PageState>,
    /// What translations could not carry over exactly, to whatever machine.
    pub report: Box<Report>,
    /// What this server was told and told others.
    pub messages: Messages,
    /// How many pages were lost: somebody could write to them, did not give them back, and others
    /// have been given what was there before.
    pub lost: u64,
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The kind of reason.
    pub kind: FailureKind,
    /// The reason and the remedy, for a person.
    pub text: String,
}

impl Failure {
    /// Why what is begun cannot be had.
    #[must_use]
    pub fn begun(name: &Name) -> Failure {
        let text =
            format!("{name} has no size yet: a program has made it, and not said how large it is");
        let kind = FailureKind::Begun;
        Failure { kind, text }
    }
}

/// Kinds of reasons why requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// There is no such object.
    NotFound,
    /// There is one already.
    Exists,
    /// The peer has no right to it.
    Denied,
    /// The request makes no sense.
    Invalid,
    /// Somebody else has it.
    Busy,
    /// No space is left.
    Full,
    /// What is needed for it is not there now.
    Unavailable,
    /// There is an object of this name, which is begun and has no size.
    Begun,
}

//! Loops with handlers that write down what happens, and the lines of the log.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quire_core::dsm::message::{FromKernel, KernelId, Pages, ToKernel};
use quire_core::dsm::sync::Answer::Value;
use quire_core::units::ObjectOffset;
use quire_dsm::link::turn::{Closed, Config};
use quire_dsm::link::{Established, Handler, LinkId, Links, Turn};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, PageSize, Refusal, RequestId, Role, Welcome,
};
use quire_dsm::wire::{Contents, Control, Lent, Loans, Pool};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Nothing in these tests takes longer.
pub const LONG: Duration = Duration::from_secs(20);

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn hello(text: &str) -> Hello {
    Hello {
        name: name(text),
        role: Role::Kernel,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    }
}

/// Messages as they were sent: contents of many pages go in several, one after the other.
pub fn rejoined<'m>(messages: impl IntoIterator<Item = &'m Control>) -> Vec<Control> {
    let mut all: Vec<Control> = Vec::new();
    for message in messages {
        let before = all
            .last_mut()
            .filter(|before| before.kind() == message.kind());
        let parts = before.and_then(|before| Some((contents_of(before)?, message)));
        if let Some(((pages, data), part)) = parts {
            let mut part = part.clone();
            let (more, others) = contents_of(&mut part).expect("they are of a kind");
            if more.first.0 == pages.first.0 + u64::from(pages.count) {
                pages.count += more.count;
                data.append(others);
                continue;
            }
        }
        all.push(message.clone());
    }
    all
}

fn contents_of(message: &mut Control) -> Option<(&mut Pages, &mut Vec<Option<Contents>>)> {
    match message {
        Control::FromKernel {
            message: FromKernel::DataWrite { pages, data },
            ..
        }
        | Control::ToKernel {
            message: ToKernel::DataProvided { pages, data, .. },
            ..
        } => Some((pages, data)),
        _ => None,
    }
}

/// A handler that writes down what happens, and answers requests.
#[derive(Default)]
pub struct Notes {
    /// How it calls itself.
    pub name: Option<Name>,
    /// What it offers as lease, in milliseconds.
    pub lease: u32,
    /// Whom it does not want.
    pub refuses: Option<Refusal>,
    pub greeted: Vec<(LinkId, Established)>,
    pub welcomed: Vec<LinkId>,
    pub messages: Vec<(LinkId, Control)>,
    pub descriptors: Vec<OwnedFd>,
    pub closed: Vec<(LinkId, Closed)>,
    pub ready: Vec<u64>,
    /// Answers to each request.
    pub answers: u32,
    /// Where contents of pages of 4 KiB are to lie.
    pub places: Option<(Arc<OwnedFd>, Loans)>,
}

impl Handler for Notes {
    fn greeted(
        &mut self,
        _: &mut Links,
        link: LinkId,
        who: &Established,
    ) -> Result<Welcome, Refusal> {
        if let Some(refusal) = &self.refuses {
            return Err(refusal.clone());
        }
        self.greeted.push((link, who.clone()));
        Ok(Welcome {
            name: self.name.clone().unwrap_or_else(|| name("server")),
            kernel: KernelId(1),
            lease: self.lease,
            features: 0,
            beside: None,
        })
    }

    fn welcomed(&mut self, _: &mut Links, link: LinkId, _: &Welcome) {
        self.welcomed.push(link);
    }

    fn place(&mut self, _: LinkId, message: &Control) -> Option<Arc<Lent>> {
        let (file, loans) = self.places.as_ref()?;
        let pages = match message {
            Control::ToKernel { message, .. } => message.pages(),
            _ => return None,
        };
        let start = ObjectOffset(pages.first.0 * 4096);
        let length = pages.count as usize * 4096;
        Some(loans.lend(file, start, length, &Pool::new()))
    }

    fn message(
        &mut self,
        links: &mut Links,
        link: LinkId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    ) {
        self.descriptors.extend(descriptors);
        if let Control::Request { id, .. } = &message {
            for _ in 0..self.answers {
                let answer = Ok(quire_dsm::wire::control::Answer::Synchronised(Value(
                    id.0 as i64,
                )));
                links.send(link, Control::Answer { id: *id, answer });
            }
        }
        self.messages.push((link, message));
    }

    fn closed(&mut self, _: &mut Links, link: LinkId, closed: &Closed) {
        let why = quire_dsm::link::LinkError::Closed(closed.why.to_string());
        let stopped_at = closed.stopped_at;
        let may_come_back = closed.may_come_back;
        self.closed.push((
            link,
            Closed {
                why,
                stopped_at,
                may_come_back,
            },
        ));
    }

    fn ready(&mut self, _: &mut Links, key: u64) {
        self.ready.push(key);
    }
}

/// A loop with its notes.
pub struct Side {
    pub turn: Turn,
    pub notes: Notes,
}

impl Side {
    pub fn new(config: Config) -> Side {
        Side {
            turn: Turn::new(config).unwrap(),
            notes: Notes {
                answers: 1,
                ..Notes::default()
            },
        }
    }

    pub fn named(text: &str) -> Side {
        Side::new(Config::new(hello(text)))
    }

    pub fn once(&mut self) {
        let longest = Duration::from_millis(2);
        self.turn.once(&mut self.notes, longest).unwrap();
    }

    /// Whether a link ended for a reason with these words.
    pub fn ended_with(&self, words: &str) -> bool {
        let mut reasons = self.notes.closed.iter();
        reasons.any(|(_, closed)| closed.why.to_string().contains(words))
    }
}

/// Turns both until it is so.
pub fn until(one: &mut Side, other: &mut Side, so: impl Fn(&Side, &Side) -> bool) {
    let end = Instant::now() + LONG;
    while !so(one, other) {
        assert!(
            Instant::now() < end,
            "it does not come; log:\n{}",
            log_text()
        );
        one.once();
        other.once();
    }
}

/// Turns one until it is so.
pub fn until_one(one: &mut Side, mut so: impl FnMut(&Side) -> bool) {
    let end = Instant::now() + LONG;
    while !so(one) {
        assert!(
            Instant::now() < end,
            "it does not come; log:\n{}",
            log_text()
        );
        one.once();
    }
}

/// A request with a number.
pub fn request(id: u64) -> Control {
    Control::Request {
        id: RequestId(id),
        request: quire_dsm::wire::control::Request::List { after: None },
    }
}

/// Lines of the log.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub fn log_text() -> String {
    LOG.lock().unwrap().join("\n")
}

/// Whether a line of the log has all these words.
pub fn logged(words: &[&str]) -> bool {
    let log = LOG.lock().unwrap();
    log.iter()
        .any(|line| words.iter().all(|word| line.contains(word)))
}

/// Keeps what is logged, from all tests of the process, as lines `LEVEL fields message`.
pub fn keep_log() {
    // A second test of the process finds it set.
    let _ = tracing::subscriber::set_global_default(KeepsLines);
}

struct KeepsLines;

impl Subscriber for KeepsLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("quire_dsm")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        LOG.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

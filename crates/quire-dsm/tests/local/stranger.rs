//! A peer that shares pages and says to the server what it likes, message by message.

use std::os::fd::OwnedFd;
use std::time::Duration;

use quire_core::units::{Bytes, ObjectOffset, VirtAddr};
use quire_dsm::link::turn::{Closed, Config, Handler, LinkId, Links};
use quire_dsm::link::{Established, Security, Turn};
use quire_dsm::wire::Control;
use quire_dsm::wire::control::{
    Answer, Failure, Handle, Hello, MachineCode, MappingNumber, PageSize, Reason, Refusal, Request,
    RequestId, Role, SHARES_PAGES, Welcome,
};
use quire_linux::uffd::shared;

use super::program::{BOTH, name};

/// The peer.
pub struct Stranger {
    turn: Turn,
    heard: Heard,
    last: u64,
}

/// What the server said to it.
#[derive(Default)]
struct Heard {
    link: Option<LinkId>,
    answers: Vec<(RequestId, Result<Answer, Failure>)>,
}

impl Handler for Heard {
    fn greeted(&mut self, _: &mut Links, _: LinkId, _: &Established) -> Result<Welcome, Refusal> {
        Err(Refusal {
            reason: Reason::Denied,
            text: "this is no server".into(),
        })
    }

    fn welcomed(&mut self, _: &mut Links, link: LinkId, welcome: &Welcome) {
        assert_eq!(welcome.features, SHARES_PAGES);
        self.link = Some(link);
    }

    fn message(&mut self, _: &mut Links, _: LinkId, message: Control, _: Vec<OwnedFd>) {
        if let Control::Answer { id, answer } = message {
            self.answers.push((id, answer));
        }
    }

    fn closed(&mut self, _: &mut Links, _: LinkId, closed: &Closed) {
        panic!("the server has ended the link: {}", closed.why);
    }
}

/// A userfaultfd with which nothing is registered.
pub fn userfaultfd() -> OwnedFd {
    shared::open().expect("a userfaultfd").0
}

/// A registration of the first page, at an address where nothing is.
pub fn first_page(object: Handle, mapping: u64) -> Request {
    Request::Register {
        object,
        mapping: MappingNumber(mapping),
        start: ObjectOffset(0),
        length: Bytes(4096),
        base: VirtAddr(0x1000_0000 + mapping * 4096),
    }
}

impl Stranger {
    /// Connects to a server.
    pub fn connect(address: &str) -> Stranger {
        let hello = Hello {
            name: name("stranger"),
            role: Role::Kernel,
            machine: MachineCode(0),
            page_size: PageSize::BASE,
            features: SHARES_PAGES,
        };
        let mut turn = Turn::new(Config::new(hello)).expect("a loop");
        let address = address.parse().expect("an address");
        let connected = turn
            .links
            .connect(&address, &Security::Automatic(None), None);
        connected.expect("a server");
        let mut heard = Heard::default();
        while heard.link.is_none() {
            turn.once(&mut heard, Duration::from_secs(1))
                .expect("the loop goes on");
        }
        Stranger {
            turn,
            heard,
            last: 0,
        }
    }

    /// Asks the server, and waits for the answer.
    pub fn ask(&mut self, request: Request, with: Vec<OwnedFd>) -> Result<Answer, Failure> {
        self.last += 1;
        let id = RequestId(self.last);
        let link = self.heard.link.expect("it is connected");
        let request = Control::Request { id, request };
        assert!(self.turn.links.send_with(link, request, with));
        loop {
            let mut answers = self.heard.answers.iter();
            if let Some(at) = answers.position(|(answered, _)| *answered == id) {
                return self.heard.answers.swap_remove(at).1;
            }
            self.turn
                .once(&mut self.heard, Duration::from_secs(1))
                .expect("the loop goes on");
        }
    }

    /// Attaches an object.
    pub fn attach(&mut self, object: &str) -> Handle {
        let request = Request::Attach {
            name: name(object),
            rights: BOTH,
        };
        match self.ask(request, Vec::new()) {
            Ok(Answer::Attached { object, .. }) => object,
            other => panic!("{other:?}"),
        }
    }
}

//! The event loop: one thread that drives all links of a process, and whatever else its
//! owner waits for (userfaultfds, timers, ends of processes).
//!
//! A turn is one look at the poll. What is ready is read and handed to the [`Handler`]; what
//! that sends is queued, and leaves at the end of the turn, each link's in one write. So a
//! request costs one wake-up, one read and one write. With `spin` set the loop looks again
//! and again for that long before it sleeps, which spares the wake-up; between two looks it
//! lets others have the processor, who may be those that it waits for; where they take it for
//! longer, it sleeps earlier (`turn/looking.rs`).

mod asleep;
mod config;
mod links;
mod listen;
mod looking;
mod orders;
mod precedence;
mod token;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use quire_linux::scheduling::Meanwhile;
use quire_linux::thread;
use rustix::event::{PollFd, PollFlags, Timespec};

pub use config::Config;
pub use links::{LinkId, Links};
pub(crate) use orders::Orders;
pub(crate) use precedence::PRIORITY;

use self::asleep::{Alarm, Asleep};
use self::looking::Looking;
use self::token::Target;
use super::connection::{LinkError, Pulled};
use super::greeting::Established;
use crate::wire::control::{Refusal, Welcome};
use crate::wire::{Control, Lent};

/// A link gives way to others after so many reads and messages in a turn.
const BUDGET: u32 = 256;

/// What is due earlier than this is waited for to the microsecond.
const EXACT: Duration = Duration::from_millis(2);

/// What is due sooner is done that late. A sleep of a few microseconds takes 20 on a virtual machine,
/// and is over before the kernel has given the processor to another thread, maybe to the one that is
/// waited for. This is long enough that it gets to run.
const SHORTEST: Duration = Duration::from_micros(25);

/// A turn without any deadline lasts at most so long.
const LONGEST: Duration = Duration::from_secs(1);

/// How a link ended.
#[derive(Debug)]
pub struct Closed {
    /// Why.
    pub why: LinkError,
    /// From when on the peer has certainly stopped to use what it was given; at once, where
    /// that is not in the future. Before that, nobody else may get it.
    pub stopped_at: Instant,
    /// Whether it may connect again, to go on with what it had.
    pub may_come_back: bool,
}

/// Who acts on what comes. Messages are sent with [`Links`].
pub trait Handler {
    /// A peer that connected has said who it is. Welcome it or refuse it. Nothing can be
    /// sent to it before this function has returned.
    ///
    /// # Errors
    /// Why it may not stay.
    fn greeted(
        &mut self,
        links: &mut Links,
        link: LinkId,
        who: &Established,
    ) -> Result<Welcome, Refusal>;

    /// A server to which this side connected has welcomed it.
    fn welcomed(&mut self, links: &mut Links, link: LinkId, welcome: &Welcome);

    /// The contents of a message's pages, of all of them, are about to come: where in a file they
    /// are to lie, if not in memory of their own. The message, which has none yet, comes next from
    /// this link, if it does not end.
    fn place(&mut self, _link: LinkId, _message: &Control) -> Option<Arc<Lent>> {
        None
    }

    /// A message came over a link whose peer is known.
    fn message(
        &mut self,
        links: &mut Links,
        link: LinkId,
        message: Control,
        descriptors: Vec<OwnedFd>,
    );

    /// A link has ended: one whose peer was known, or one to which this side connected. The
    /// peer sees it closed when this function has returned.
    fn closed(&mut self, links: &mut Links, link: LinkId, closed: &Closed);

    /// A descriptor that [`Links::watch`] was told about is ready.
    fn ready(&mut self, _links: &mut Links, _key: u64) {}

    /// Somebody used the [`Waker`].
    fn woken(&mut self, _links: &mut Links) {}

    /// The machine was asleep for so long, and links to other machines whose leases ended meanwhile
    /// have. It is told before anything that came is handed out.
    fn slept(&mut self, _links: &mut Links, _length: Duration) {}

    /// When [`Handler::turn_ends`] is to be called at the latest.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// All that was ready has been handed out. What is sent now still leaves in this turn.
    fn turn_ends(&mut self, _links: &mut Links, _now: Instant) {}
}

/// The loop.
pub struct Turn {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
    spin: Duration,
    realtime: bool,
    /// When something was ready last.
    busy: Instant,
    asleep: Asleep,
    since_boot: fn() -> Duration,
    /// Without it, what is due after a sleep is done up to a second late.
    alarm: Option<Alarm>,
    /// The links.
    pub links: Links,
}

impl Turn {
    /// A loop without links.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(config: Config) -> io::Result<Turn> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Target::Waker.into())?);
        let (spin, busy) = (config.spin, (config.clock)());
        let since_boot = config.since_boot;
        let alarm = Alarm::new(poll.registry(), Target::Alarm.into());
        let alarm = alarm.inspect_err(|error| {
            tracing::debug!("the loop is not woken when the machine wakes: {error}");
        });
        let realtime = config.realtime && spin.is_zero();
        Ok(Turn {
            links: Links::new(poll.registry().try_clone()?, config),
            poll,
            events: Events::with_capacity(256),
            waker,
            spin,
            realtime,
            busy,
            asleep: Asleep::new(busy, since_boot()),
            since_boot,
            alarm: alarm.ok(),
        })
    }

    /// Has the calling thread, which is going to turn the loop, go before all programs, where
    /// the system allows it and [`Config::realtime`] says so, as long as what is returned lives.
    pub fn go_first(&self) -> Option<Meanwhile> {
        self.realtime.then(precedence::take).flatten()
    }

    /// What wakes the loop from another thread.
    #[must_use]
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Waits until something is ready, but no longer than `longest`, and handles it.
    ///
    /// # Errors
    /// Those of the poll. What is wrong with a link ends that link alone.
    pub fn once(&mut self, handler: &mut dyn Handler, longest: Duration) -> io::Result<()> {
        self.links.flush_all();
        self.end_links(handler);
        self.wait(handler.deadline(), longest)?;
        let now = self.links.clock();
        if !self.events.is_empty() {
            self.busy = now;
        }
        self.links.set_now(now);
        self.look_for_sleep(handler, now);
        for event in &self.events {
            match Target::from(event.token()) {
                Target::Waker => handler.woken(&mut self.links),
                Target::Alarm => self.alarm = self.alarm.take().and_then(Alarm::heard),
                Target::Source(key) => handler.ready(&mut self.links, key),
                Target::Listener(index) => self.links.accept(index),
                Target::Link(link) => {
                    self.links
                        .event(link, event.is_writable(), event.is_read_closed());
                    drive(&mut self.links, link, handler);
                }
            }
        }
        self.finish(handler, now);
        Ok(())
    }

    /// A turn for whoever waits by other means than the poll: handles those transports that
    /// are ready, by the tokens that they were registered with, and what is due.
    pub fn step(&mut self, handler: &mut dyn Handler, ready: &[Token]) {
        self.links.flush_all();
        self.end_links(handler);
        let now = self.links.clock();
        self.links.set_now(now);
        for token in ready {
            match Target::from(*token) {
                Target::Link(link) => {
                    // Whether the end is near is unknown: it is looked for.
                    self.links.event(link, true, true);
                    drive(&mut self.links, link, handler);
                }
                Target::Waker => handler.woken(&mut self.links),
                Target::Source(_) | Target::Listener(_) | Target::Alarm => {}
            }
        }
        self.finish(handler, now);
    }

    /// What [`Turn::step`] is told, beside transports, where the handler is to be woken.
    #[must_use]
    pub fn woken() -> Token {
        Target::Waker.into()
    }

    /// When the next [`Turn::step`] is due, if nothing becomes ready before.
    #[must_use]
    pub fn due(&self, handler: &dyn Handler) -> Instant {
        let now = self.links.clock();
        if self.links.has_work() {
            return now;
        }
        let until = (now + LONGEST).min(self.links.next_look());
        handler
            .deadline()
            .map_or(until, |deadline| deadline.min(until))
    }

    /// If the machine was asleep, leases from others may be over that seem to run on.
    fn look_for_sleep(&mut self, handler: &mut dyn Handler, now: Instant) {
        let (links, since_boot) = (&self.links, self.since_boot);
        let look = || (links.clock(), since_boot());
        let Some(length) = self.asleep.look((now, since_boot()), look) else {
            return;
        };
        self.links.slept(length);
        self.links.look_at_clock();
        self.end_links(handler);
        handler.slept(&mut self.links, length);
    }

    /// What is done in each turn when all that was ready has been handed out.
    fn finish(&mut self, handler: &mut dyn Handler, now: Instant) {
        for link in self.links.take_unfinished() {
            drive(&mut self.links, link, handler);
        }
        self.links.look_at_clock();
        self.end_links(handler);
        handler.turn_ends(&mut self.links, now);
        self.links.flush_all();
        self.end_links(handler);
    }

    /// Has the handler know of links that ended.
    fn end_links(&mut self, handler: &mut dyn Handler) {
        while let Some((id, closed, mut link)) = self.links.next_closed() {
            handler.closed(&mut self.links, id, &closed);
            link.close();
        }
    }

    /// Waits at the poll; with `spin`, it looks again and again at first.
    fn wait(&mut self, deadline: Option<Instant>, longest: Duration) -> io::Result<()> {
        let now = self.links.clock();
        let mut until = now + longest.min(LONGEST);
        until = until.min(self.links.next_look());
        until = deadline.map_or(until, |deadline| deadline.min(until));
        if self.links.has_work() {
            until = now;
        }
        let spin_until = (self.busy + self.spin).min(until);
        let mut now = now;
        let mut looking = Looking::new(now);
        while now < spin_until && looking.goes_on(now, time_of_this_thread) {
            self.look(Duration::ZERO)?;
            if !self.events.is_empty() {
                return Ok(());
            }
            std::thread::yield_now();
            now = self.links.clock();
        }
        self.look(until.saturating_duration_since(now))
    }

    /// Sleeps until something is ready, or for so long.
    fn sleep(&self, longest: Duration) -> io::Result<()> {
        let mut ready = [PollFd::new(self.poll.registry(), PollFlags::IN)];
        let longest = longest.max(SHORTEST);
        let longest = Timespec {
            tv_sec: 0,
            tv_nsec: longest.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut ready, Some(&longest)) {
            Err(errno) if errno != rustix::io::Errno::INTR => Err(errno.into()),
            _ => Ok(()),
        }
    }

    /// Waits at the poll, no longer than this. The poll counts in whole milliseconds; what is
    /// left of the last one is waited for beside it.
    fn look(&mut self, longest: Duration) -> io::Result<()> {
        let mut whole = Duration::from_millis(u64::try_from(longest.as_millis()).unwrap_or(1));
        if whole < EXACT && !longest.is_zero() {
            self.sleep(longest)?;
            whole = Duration::ZERO;
        }
        match self.poll.poll(&mut self.events, Some(whole)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other,
        }
    }
}

/// How long the calling thread has run.
fn time_of_this_thread() -> Duration {
    Duration::from_nanos(thread::cpu_time_ns())
}

/// Reads what came over a link, and hands it out.
fn drive(links: &mut Links, id: LinkId, handler: &mut dyn Handler) {
    for _ in 0..BUDGET {
        let Some(link) = links.readable(id) else {
            return;
        };
        match link.message(&mut |message| handler.place(id, message)) {
            Ok(Some((message, descriptors))) => hand_out(links, id, message, descriptors, handler),
            Ok(None) => match link.pull() {
                Ok(Pulled::Bytes(_)) => {}
                Ok(Pulled::Nothing) => return links.mark(id),
                Err(error) => return links.end(id, error),
            },
            Err(error) => return links.end(id, error),
        }
    }
    links.mark(id);
    links.unfinished(id);
}

/// Hands a message to whom it concerns.
fn hand_out(
    links: &mut Links,
    id: LinkId,
    message: Control,
    descriptors: Vec<OwnedFd>,
    handler: &mut dyn Handler,
) {
    let result = match message {
        Control::Hello(hello) => links.hello(id, hello).map(|who| {
            let answer = handler.greeted(links, id, &who);
            links.answer_hello(id, answer);
        }),
        Control::Welcome(welcome) => links
            .welcome(id, &welcome)
            .map(|()| handler.welcomed(links, id, &welcome)),
        Control::Refusal(refusal) => Err(LinkError::RefusedByPeer(refusal)),
        Control::Goodbye { reason } => Err(LinkError::Goodbye(reason)),
        Control::Ending => links.ending(id),
        Control::Heartbeat { clock } => links.heartbeat(id, clock),
        Control::HeartbeatSeen { clock } => links.heartbeat_seen(id, clock),
        other => links
            .check_open(id, other.kind())
            .map(|()| handler.message(links, id, other, descriptors)),
    };
    if let Err(error) = result {
        links.end(id, error);
    }
}

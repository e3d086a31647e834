//! A link: a transport, TLS where it is used, and messages. It does what it can do now, and
//! never waits; whoever has it calls again when the transport is ready.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};

use super::identity::Identity;
use super::pace::Pace;
use super::tls::Tls;
use super::transport::{Peer, Transport};
use crate::wire::control::{Name, Refusal};
use crate::wire::{Control, Decoder, Kind, Lent, Limits, Outgoing, Pool, WireError};

/// Why a link has ended, or is ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Ended,
    /// The peer closed it, on purpose.
    #[error("the peer said goodbye: {0}")]
    Goodbye(String),
    /// The peer's process said that it ends, and did.
    #[error("the peer's process has ended")]
    Exited,
    /// This side closed it, on purpose.
    #[error("closed here: {0}")]
    Closed(String),
    /// The system says that it is broken.
    #[error("the connection is broken: {0}")]
    Broken(#[from] io::Error),
    /// The peer sends what is no message.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// TLS cannot go on.
    #[error("TLS: {0}")]
    Tls(String),
    /// The peer does not read.
    #[error("the peer does not read: {queued} bytes wait for it, more than {limit}")]
    Full {
        /// What waits, in bytes.
        queued: usize,
        /// How much may wait, in bytes.
        limit: usize,
    },
    /// The peer has not read for too long.
    #[error("the peer has read nothing for {0:?}")]
    Stalled(Duration),
    /// It did not say in time who it is.
    #[error("the peer did not say within {0:?} who it is")]
    NoHello(Duration),
    /// A message at the wrong time.
    #[error("the peer sent {0:?} when it should not")]
    Unexpected(Kind),
    /// A message without the descriptors that it should have.
    #[error("the peer sent a message without its {0} descriptors")]
    Descriptors(u8),
    /// Descriptors from a peer that has not said who it is.
    #[error("the peer sent {0} descriptors before it said who it is")]
    EarlyDescriptors(usize),
    /// The peer says that it is somebody else.
    #[error("the peer says that it is {claimed}, but its certificate {problem}")]
    Identity {
        /// Who it says that it is.
        claimed: Name,
        /// What is wrong.
        problem: String,
    },
    /// The peer is not the one that was meant.
    #[error("the peer is {claimed}, which is not what was expected: {expected}")]
    Stranger {
        /// Who it says that it is.
        claimed: Name,
        /// Who it should be.
        expected: Name,
    },
    /// This side does not want the peer.
    #[error("refused: {}", .0.text)]
    Refused(Refusal),
    /// The peer does not want this side.
    #[error("the peer refused us: {}", .0.text)]
    RefusedByPeer(Refusal),
    /// The peer, which has a lease, sent no heartbeat.
    #[error("the peer sent no heartbeat for {0:?}")]
    Silent(Duration),
    /// Others need its place.
    #[error("there are {0} links, and it was the oldest that had not said who it is")]
    Crowded(usize),
    /// The lease is over.
    #[error("the server acknowledged no heartbeat for {0:?}: the lease is over")]
    LeaseOver(Duration),
}

impl LinkError {
    /// Whether it is the usual end of a link, of which nobody needs to be told.
    #[must_use]
    pub const fn is_usual(&self) -> bool {
        matches!(
            self,
            LinkError::Ended | LinkError::Goodbye(_) | LinkError::Exited | LinkError::Closed(_)
        )
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing more for now.
    Nothing,
}

/// What went over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that came, by [`Kind`].
    pub received: [u64; Kind::COUNT],
    /// Messages that were queued, by [`Kind`].
    pub sent: [u64; Kind::COUNT],
    /// Bytes of messages that came, without those of TLS.
    pub received_bytes: u64,
    /// Bytes that came to where they belong in a file, among those.
    pub placed_bytes: u64,
    /// Bytes of messages that were queued, without those of TLS.
    pub sent_bytes: u64,
    /// Reads that brought something.
    pub reads: u64,
    /// Flushes that had something to send.
    pub flushes: u64,
}

/// How much a peer may leave unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// What may wait for it, in bytes.
    pub queue: usize,
    /// How long it may read nothing while something waits for it.
    pub stall: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            queue: 128 << 20,
            stall: Duration::from_secs(10),
        }
    }
}

/// A connection that carries messages.
pub struct Link {
    transport: Box<dyn Transport>,
    tls: Option<Box<Tls>>,
    decoder: Decoder,
    outgoing: Outgoing,
    patience: Patience,
    pace: Pace,
    counters: Counters,
    /// Since when the transport has taken nothing of what waits.
    blocked: Option<Instant>,
    /// The transport had no more when it was read last.
    drained: bool,
    /// The end of what comes is near: it is to be met.
    until_end: bool,
    /// The peer has said who it is.
    known: bool,
}

impl Link {
    /// A link without TLS.
    #[must_use]
    pub fn plain(mut transport: Box<dyn Transport>, pool: Pool, patience: Patience) -> Link {
        let pace = Pace::new();
        transport.set_most_unsent(pace.at_once());
        Link {
            transport,
            tls: None,
            decoder: Decoder::new(Limits::GREETING, pool),
            outgoing: Outgoing::new(),
            patience,
            pace,
            counters: Counters::default(),
            blocked: None,
            drained: false,
            until_end: false,
            known: false,
        }
    }

    /// This side connected, and the other must have a certificate, for this name if one is
    /// given.
    ///
    /// # Errors
    /// When the name cannot be in a certificate.
    pub fn with_tls_client(
        mut self,
        identity: &Identity,
        expected: Option<&Name>,
    ) -> Result<Link, LinkError> {
        self.tls = Some(Box::new(Tls::client(identity, expected)?));
        Ok(self)
    }

    /// This side accepted, and the other must have a certificate.
    ///
    /// # Errors
    /// Those of rustls.
    pub fn with_tls_server(mut self, identity: &Identity) -> Result<Link, LinkError> {
        self.tls = Some(Box::new(Tls::server(identity)?));
        Ok(self)
    }

    /// Who is at the other end, as far as the transport knows.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        self.transport.peer()
    }

    /// How long the way there and back takes without the threads of the two sides, as far as
    /// the transport knows.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.transport.round_trip()
    }

    /// Whether what is lent (`wire/lent.rs`) is sent from where it is.
    #[must_use]
    pub fn sends_files(&self) -> bool {
        self.tls.is_none() && self.transport.sends_files()
    }

    /// What went over it.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What waits to be sent, in bytes.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.outgoing.queued()
    }

    /// About how much goes over it in a quarter of a second, in bytes.
    #[must_use]
    pub const fn moment(&self) -> usize {
        self.pace.moment()
    }

    /// Since when the peer has taken nothing of what waits for it.
    #[must_use]
    pub const fn blocked(&self) -> Option<Instant> {
        self.blocked
    }

    /// How much it may leave unread.
    #[must_use]
    pub const fn patience(&self) -> &Patience {
        &self.patience
    }

    /// Whether the peer has shown a certificate; `None` where there is no TLS.
    #[must_use]
    pub fn certificate_is_for(&self, name: &Name) -> Option<Result<(), String>> {
        self.tls.as_ref().map(|tls| tls.peer_is(name))
    }

    /// The peer has said who it is, and may send more now.
    pub fn greeted(&mut self) {
        self.decoder.set_limits(Limits::SESSION);
        self.known = true;
    }

    /// The poll says that something came, and whether the end of what comes is near.
    pub fn ready(&mut self, end: bool) {
        self.drained = false;
        self.until_end |= end;
    }

    /// Queues a message. What keeps a lease goes before all that waits; contents of many pages
    /// go in several messages, so that it need not wait for all of them.
    ///
    /// # Errors
    /// When it keeps to no limit, or too much waits already.
    pub fn send(&mut self, message: Control, mut with: Vec<OwnedFd>) -> Result<(), LinkError> {
        let mut rest = Some(message);
        while let Some(mut message) = rest {
            rest = message.split_off(self.pace.at_once());
            self.queue(message, std::mem::take(&mut with))?;
        }
        let (queued, limit) = (self.outgoing.queued(), self.patience.queue);
        if queued > limit {
            return Err(LinkError::Full { queued, limit });
        }
        Ok(())
    }

    fn queue(&mut self, message: Control, with: Vec<OwnedFd>) -> Result<(), LinkError> {
        let kind = message.kind();
        let bytes = match kind {
            Kind::Heartbeat | Kind::HeartbeatSeen => self.outgoing.push_first(&message)?,
            _ => self.outgoing.push(message, with)?,
        };
        self.counters.sent[kind as usize] += 1;
        self.counters.sent_bytes += bytes as u64;
        Ok(())
    }

    /// Whether there is something to be sent that could be sent.
    #[must_use]
    pub fn wants_flush(&self) -> bool {
        match &self.tls {
            Some(tls) => tls.wants_write() || tls.is_ready() && !self.outgoing.is_empty(),
            None => !self.outgoing.is_empty(),
        }
    }

    /// Sends what is queued; says whether all of it is gone that could be sent.
    ///
    /// # Errors
    /// When the link is broken.
    pub fn flush(&mut self, now: Instant) -> Result<bool, LinkError> {
        if !self.wants_flush() {
            return Ok(true);
        }
        self.counters.flushes += 1;
        let before = self.outgoing.queued();
        let transport = &mut *self.transport;
        let done = match &mut self.tls {
            Some(tls) => tls.push(transport, &mut self.outgoing)?,
            None => match self.outgoing.write_to_sink(transport) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
                Err(error) => return Err(error.into()),
            },
        };
        let at_once = self.pace.at_once();
        let taken = before - self.outgoing.queued();
        self.pace.took(now, taken, done);
        if self.pace.at_once() != at_once {
            transport.set_most_unsent(self.pace.at_once());
        }
        self.blocked = match (done, self.blocked) {
            (true, _) => None,
            (false, Some(since)) if self.outgoing.queued() == before => Some(since),
            (false, _) => Some(now),
        };
        Ok(done)
    }

    /// Reads once. To be called when [`Link::message`] has none any more.
    ///
    /// # Errors
    /// When the link has ended.
    pub fn pull(&mut self) -> Result<Pulled, LinkError> {
        let transport = &mut *self.transport;
        let pulled = match &mut self.tls {
            Some(tls) => tls.pull(transport, &mut self.decoder, self.until_end)?,
            None => {
                if std::mem::take(&mut self.drained) && !self.until_end {
                    return Ok(Pulled::Nothing);
                }
                let to_file = |file: BorrowedFd<'_>, at, length| {
                    let read = transport.read_to(file, at, length);
                    if let Ok(Some(bytes)) = read {
                        self.counters.placed_bytes += bytes as u64;
                    }
                    read
                };
                let filled = match self.decoder.fill_file(to_file) {
                    Ok(None) => self.decoder.fill(|into| transport.read(into)),
                    Ok(Some(filled)) => Ok(filled),
                    Err(error) => Err(error),
                };
                match filled {
                    Ok(filled) if filled.bytes == 0 => return Err(LinkError::Ended),
                    Ok(filled) => {
                        self.drained = filled.short && !transport.may_have_more();
                        Pulled::Bytes(filled.bytes)
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Pulled::Nothing,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let early = self.transport.waiting_descriptors();
        if early > 0 && !self.known {
            return Err(LinkError::EarlyDescriptors(early));
        }
        self.counters.reads += u64::from(pulled != Pulled::Nothing);
        Ok(pulled)
    }

    /// The next message that has come, with its descriptors. A function is asked where contents
    /// that are about to come shall lie, if not in memory ([`Decoder::message_with`]).
    ///
    /// # Errors
    /// When the peer sent what is none.
    pub fn message(
        &mut self,
        place: &mut dyn FnMut(&Control) -> Option<Arc<Lent>>,
    ) -> Result<Option<(Control, Vec<OwnedFd>)>, LinkError> {
        let frame = match self.tls.is_none() && self.transport.receives_to_files() {
            true => self.decoder.message_with(place)?,
            false => self.decoder.message()?,
        };
        let Some(frame) = frame else {
            return Ok(None);
        };
        self.counters.received[frame.message.kind() as usize] += 1;
        self.counters.received_bytes += frame.bytes as u64;
        let descriptors = self.transport.take_descriptors(frame.descriptors.into());
        let descriptors = descriptors.ok_or(LinkError::Descriptors(frame.descriptors))?;
        Ok(Some((frame.message, descriptors)))
    }

    /// Whether it is connected by now.
    ///
    /// # Errors
    /// When it cannot be connected.
    pub fn connected(&mut self) -> Result<bool, LinkError> {
        Ok(self.transport.connected()?)
    }

    /// Has a poll look at it, or look for something else than before.
    ///
    /// # Errors
    /// Those of the system.
    pub fn watch(
        &mut self,
        at: &Registry,
        token: Token,
        interest: Interest,
        again: bool,
    ) -> io::Result<()> {
        if again {
            self.transport.reregister(at, token, interest)
        } else {
            self.transport.register(at, token, interest)
        }
    }

    /// Sends what can be sent at once, and tells the peer that nothing comes any more.
    pub fn close(&mut self) {
        // It is the end in any case, also where this does not succeed.
        let _ = self.flush(Instant::now());
        self.transport.shutdown();
    }
}

//! From what was read to messages.
//!
//! A reader offers the decoder's memory to a socket, in three pieces: one block for the header
//! and the control part, a buffer at a page boundary for the payload that a peer is expected
//! to send next, of the size that it sent last, and room for what follows. Where the guess is
//! right, a message with its contents comes with one read, and nothing is copied. Where it is
//! wrong, what came is moved to where it belongs. The room behind is there so that a read
//! that brings what was expected, and no more, shows that no more has come.
//!
//! Contents of many pages may go to where they belong in a file at once: whoever has the pages
//! says so when their message is known. After such a message no payload is expected in memory.

use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use quire_core::units::BASE_PAGE;

use super::buffer::{Buffer, Contents, Pool};
use super::control::Control;
use super::frame::{BLOCK, HEADER, Header, Limits, WireError};
use super::lent::Lent;
use super::presence::{Presence, check_pages};
use crate::whole;

/// The least and the most that is expected as a payload, in bytes. After a longer one, the least
/// is: most of the next one is read where it belongs then.
const EXPECTED: [usize; 2] = [BASE_PAGE as usize, 512 << 10];

/// So much memory is kept for what is expected while nothing comes, in bytes.
const KEPT: usize = 64 << 10;

/// As much of a payload at least, in bytes, goes to a file, where it has a place there: that takes
/// two calls of its own.
const PLACED: usize = 16 << 10;

/// Memory for headers and control parts at first, in bytes.
const STAGE: usize = 8 << 10;

/// A message that came.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it says.
    pub message: Control,
    /// How many descriptors came with it.
    pub descriptors: u8,
    /// How many bytes it had.
    pub bytes: usize,
}

/// A message whose payload is still on its way.
struct Unfinished {
    frame: Frame,
    presence: Presence,
    place: Place,
    filled: usize,
    length: usize,
}

/// Where a payload goes to.
enum Place {
    Buffer(Buffer),
    File(Arc<Lent>),
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// How many bytes; 0 where the peer sends nothing any more.
    pub bytes: usize,
    /// Whether there was room for more.
    pub short: bool,
}

/// Makes messages of bytes.
pub struct Decoder {
    limits: Limits,
    pool: Pool,
    /// Bytes whose message is not known yet are those from `start` to `end`.
    stage: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the next payload is expected, how much of it may be filled, and how much is.
    ahead: Option<Buffer>,
    expected: usize,
    ahead_filled: usize,
    /// What came after it, which lies behind the first block of the stage.
    behind: usize,
    unfinished: Option<Unfinished>,
    /// The last payload went to a file: nothing but a header is expected.
    to_files: bool,
}

impl Decoder {
    /// A decoder that takes memory for payloads from a pool.
    #[must_use]
    pub fn new(limits: Limits, pool: Pool) -> Decoder {
        Decoder {
            limits,
            pool,
            stage: vec![0; STAGE],
            start: 0,
            end: 0,
            ahead: None,
            expected: EXPECTED[0],
            ahead_filled: 0,
            behind: 0,
            unfinished: None,
            to_files: false,
        }
    }

    /// Other limits from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Reads once, with a function that fills pieces of memory like `readv`. To be called
    /// when [`Decoder::message`] has none any more.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Filled> {
        if self.unfinished.is_some() {
            self.fill_payload(read)
        } else if self.start < self.end {
            self.fill_stage(read)
        } else if self.to_files {
            self.fill_header(read)
        } else {
            self.fill_frame(read)
        }
    }

    /// Reads once to a file, if that is where a payload goes to, with a function that gets the file,
    /// where to write, and how many bytes at most, and says how many it wrote. `None` where
    /// [`Decoder::fill`] is to read, or where the function said so.
    ///
    /// # Errors
    /// Those of `read`, and of the file.
    pub fn fill_file(
        &mut self,
        read: impl FnOnce(BorrowedFd<'_>, u64, usize) -> io::Result<Option<usize>>,
    ) -> io::Result<Option<Filled>> {
        let Some(unfinished) = &mut self.unfinished else {
            return Ok(None);
        };
        let Place::File(lent) = &unfinished.place else {
            return Ok(None);
        };
        let (filled, length) = (unfinished.filled, unfinished.length);
        let read = lent.pass(filled..length, read).transpose()?.flatten();
        let Some(bytes) = read else {
            // Its file has something else to do with that place, or the reader cannot do this.
            lent.settle()?;
            let mut buffer = self.pool.take(length);
            buffer[..filled].copy_from_slice(&lent.bytes()[..filled]);
            unfinished.place = Place::Buffer(buffer);
            return Ok(None);
        };
        let bytes = bytes.min(length - filled);
        unfinished.filled += bytes;
        // More may have come than the reader takes at a time.
        let short = false;
        Ok(Some(Filled { bytes, short }))
    }

    /// The rest of a payload, and whatever follows.
    fn fill_payload(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Filled> {
        let Some(Unfinished {
            place: Place::Buffer(buffer),
            filled,
            length,
            ..
        }) = &mut self.unfinished
        else {
            return Ok(Filled {
                bytes: 0,
                short: true,
            });
        };
        let rest = &mut buffer[*filled..*length];
        let (wanted, room) = (rest.len(), rest.len() + self.stage.len());
        let pieces = &mut [IoSliceMut::new(rest), IoSliceMut::new(&mut self.stage)];
        let bytes = read(pieces)?.min(room);
        *filled += bytes.min(wanted);
        self.start = 0;
        self.end = bytes - bytes.min(wanted);
        Ok(Filled {
            bytes,
            short: bytes < room,
        })
    }

    /// A whole message, as it is expected.
    fn fill_frame(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Filled> {
        self.start = 0;
        self.end = 0;
        let expected = self.expected;
        let fitting = self.ahead.take().filter(|ahead| ahead.len() >= expected);
        let ahead = self
            .ahead
            .insert(fitting.unwrap_or_else(|| self.pool.take(expected)));
        let (block, behind) = self.stage.split_at_mut(BLOCK);
        let room = BLOCK + expected + behind.len();
        let pieces = &mut [
            IoSliceMut::new(block),
            IoSliceMut::new(&mut ahead[..expected]),
            IoSliceMut::new(behind),
        ];
        let read = read(pieces);
        let bytes = *read.as_ref().unwrap_or(&0).min(&room);
        self.end = bytes.min(BLOCK);
        self.ahead_filled = (bytes - self.end).min(expected);
        self.behind = bytes - self.end - self.ahead_filled;
        if self.ahead_filled == 0 && expected > KEPT {
            self.ahead = None;
        }
        read?;
        Ok(Filled {
            bytes,
            short: bytes < room,
        })
    }

    /// A header, with its control part, if that is short, and no more.
    fn fill_header(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Filled> {
        (self.start, self.end) = (0, 0);
        let bytes = read(&mut [IoSliceMut::new(&mut self.stage[..BLOCK])])?;
        self.end = bytes.min(BLOCK);
        Ok(Filled {
            bytes: self.end,
            short: self.end < BLOCK,
        })
    }

    /// The rest of a header or a control part.
    fn fill_stage(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<Filled> {
        if self.start > 0 {
            self.stage.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.stage.len() - self.end;
        let pieces = &mut [IoSliceMut::new(&mut self.stage[self.end..])];
        let bytes = read(pieces)?.min(room);
        self.end += bytes;
        Ok(Filled {
            bytes,
            short: bytes < room,
        })
    }

    /// The next message, if it is there.
    ///
    /// # Errors
    /// When what was read is not a message. Then nothing more can be read here: where the
    /// next one would begin is not known.
    pub fn message(&mut self) -> Result<Option<Frame>, WireError> {
        self.message_with(&mut |_| None)
    }

    /// The same. A function is asked where the contents of a message's pages, of all of them, are to
    /// lie, if not in memory: in a part of a file that is as long as they are. What it is
    /// shown has no contents yet.
    ///
    /// # Errors
    /// As [`Decoder::message`].
    pub fn message_with(
        &mut self,
        place: &mut dyn FnMut(&Control) -> Option<Arc<Lent>>,
    ) -> Result<Option<Frame>, WireError> {
        if let Some(unfinished) = self.unfinished.take() {
            return Ok(self.finish(unfinished));
        }
        let there = &self.stage[self.start..self.end];
        let Some(header) = Header::decode(there, &self.limits)? else {
            return Ok(None);
        };
        let as_expected = header.block() == BLOCK && header.payload > 0;
        if self.ahead_filled > 0 && !as_expected {
            self.append_ahead();
        }
        if self.end - self.start < header.block() {
            self.make_room(header.block());
            return Ok(None);
        }
        let block = &self.stage[self.start..self.start + header.block()];
        let (presence, message) = decode(&header, block)?;
        let frame = Frame {
            message,
            descriptors: header.descriptors,
            bytes: header.block() + header.payload as usize,
        };
        self.start += header.block();
        self.begin(frame, presence, header.payload as usize, place)
    }

    /// What came after the first block was no payload.
    fn append_ahead(&mut self) {
        let filled = std::mem::take(&mut self.ahead_filled);
        self.move_behind(BLOCK + filled);
        if let Some(ahead) = &self.ahead {
            self.stage[BLOCK..BLOCK + filled].copy_from_slice(&ahead[..filled]);
        }
    }

    /// Moves what lies behind the first block to another place of the stage; there the
    /// stage's bytes end then.
    fn move_behind(&mut self, to: usize) {
        let behind = std::mem::take(&mut self.behind);
        if self.stage.len() < to + behind {
            self.stage.resize(to + behind, 0);
        }
        self.stage.copy_within(BLOCK..BLOCK + behind, to);
        self.end = to + behind;
    }

    /// The next message's first block is so long; it is within the limits.
    fn make_room(&mut self, block: usize) {
        if self.stage.len() < block {
            self.stage.resize(block, 0);
        }
    }

    /// A message's control part is known; its payload is not, or not all of it.
    fn begin(
        &mut self,
        frame: Frame,
        presence: Option<Presence>,
        length: usize,
        place: &mut dyn FnMut(&Control) -> Option<Arc<Lent>>,
    ) -> Result<Option<Frame>, WireError> {
        let Some(presence) = presence else {
            return Ok(Some(frame));
        };
        if length == 0 {
            return Ok(Some(with_contents(frame, &presence, None)));
        }
        let (buffer, filled) = match self.ahead_filled {
            0 => self.payload_from_stage(length),
            _ => self.payload_from_ahead(length),
        };
        let is_placed = presence.is_full() && length - filled >= PLACED;
        let lent = match is_placed {
            true => place(&frame.message).filter(|lent| lent.len() == length),
            false => None,
        };
        let lent = lent.filter(|lent| is_put(lent, &buffer[..filled]));
        self.to_files = lent.is_some();
        let place = lent.map_or(Place::Buffer(buffer), Place::File);
        self.expected = match length <= EXPECTED[1] {
            true => length.max(EXPECTED[0]),
            false => EXPECTED[0],
        };
        Ok(self.finish(Unfinished {
            frame,
            presence,
            place,
            filled,
            length,
        }))
    }

    /// Takes as much of a payload as came behind its control part, in the same memory.
    fn payload_from_stage(&mut self, length: usize) -> (Buffer, usize) {
        let mut buffer = self.pool.take(length);
        let filled = length.min(self.end - self.start);
        buffer[..filled].copy_from_slice(&self.stage[self.start..self.start + filled]);
        self.start += filled;
        (buffer, filled)
    }

    /// Takes a payload that came where it was expected. What follows it goes to the stage.
    fn payload_from_ahead(&mut self, length: usize) -> (Buffer, usize) {
        let came = std::mem::take(&mut self.ahead_filled);
        let mut filled = came.min(length);
        let pool = &self.pool;
        let ahead = self.ahead.take().unwrap_or_else(|| pool.take(length));
        let mut buffer = match ahead.len() {
            size if (length..=2 * length).contains(&size) => None,
            _ => Some(pool.take(length)),
        };
        if let Some(buffer) = &mut buffer {
            buffer[..filled].copy_from_slice(&ahead[..filled]);
        }
        let after = came - filled;
        self.start = if after == 0 { BLOCK } else { 0 };
        self.move_behind(self.start + after);
        self.stage[self.start..self.start + after].copy_from_slice(&ahead[filled..came]);
        let mut buffer = buffer.unwrap_or(ahead);
        let rest = (length - filled).min(self.end - self.start);
        buffer[filled..filled + rest].copy_from_slice(&self.stage[self.start..self.start + rest]);
        self.start += rest;
        filled += rest;
        (buffer, filled)
    }

    /// Gives out a message if its payload is complete.
    fn finish(&mut self, unfinished: Unfinished) -> Option<Frame> {
        if unfinished.filled < unfinished.length {
            self.unfinished = Some(unfinished);
            return None;
        }
        let Unfinished {
            frame,
            presence,
            place,
            length,
            ..
        } = unfinished;
        let contents = match place {
            Place::Buffer(buffer) => Contents::whole(buffer, length),
            Place::File(lent) => Contents::from(lent),
        };
        Some(with_contents(frame, &presence, Some(&contents)))
    }
}

/// Puts the first bytes of what comes to a part of a file; whether it could.
fn is_put(lent: &Lent, bytes: &[u8]) -> bool {
    let put = lent.pass(0..bytes.len(), |file, at, _| whole::write(file, bytes, at));
    put.is_some_and(|put| put.is_ok())
}

/// Puts contents where they belong.
fn with_contents(mut frame: Frame, presence: &Presence, payload: Option<&Contents>) -> Frame {
    if let Some((_, data)) = frame.message.contents() {
        *data = presence.spread(payload);
    }
    frame
}

/// Header, control part and fill, all of which are there, and what the payload must be.
fn decode(header: &Header, block: &[u8]) -> Result<(Option<Presence>, Control), WireError> {
    let (control, fill) = block[HEADER..].split_at(header.control as usize);
    if crc32fast::hash(control) != header.checksum {
        return Err(WireError::ControlChecksum);
    }
    if fill.iter().any(|&byte| byte != 0) {
        return Err(WireError::Fill);
    }
    let (decoded, rest) = postcard::take_from_bytes::<(Option<Presence>, Control)>(control)
        .map_err(WireError::Undecodable)?;
    if !rest.is_empty() {
        return Err(WireError::Trailing(rest.len()));
    }
    let (presence, mut message) = decoded;
    check_pages(message.pages())?;
    check_contents(header, presence.as_ref(), &mut message)?;
    Ok((presence, message))
}

/// Whether message, bits and payload fit each other.
fn check_contents(
    header: &Header,
    presence: Option<&Presence>,
    message: &mut Control,
) -> Result<(), WireError> {
    let wrong = |what| Err(WireError::Contents(what));
    match (message.contents(), presence) {
        (None, None) if header.payload == 0 => Ok(()),
        (None, None) => wrong("a payload that nobody asked for"),
        (None, Some(_)) => wrong("bits without pages"),
        (Some(_), None) => wrong("pages without bits"),
        (Some((count, data)), Some(presence)) => {
            presence.check()?;
            if !data.is_empty() {
                return wrong("in the control part");
            }
            if count.is_some_and(|count| count != presence.pages()) {
                return wrong("not as many as its pages");
            }
            if presence.payload() != u64::from(header.payload) {
                return wrong("not as long as its payload");
            }
            Ok(())
        }
    }
}

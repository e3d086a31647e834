//! From messages to what is written: a queue of bytes and contents. Messages that are queued
//! one after the other lie one after the other, so that they leave in one write. What is urgent
//! goes before all messages of which nothing is written yet. Contents that are lent (`wire/lent.rs`) are sent from their file.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::buffer::Contents;
use super::control::Control;
use super::frame::{BLOCK, HEADER, Header, Limits, MAX_DESCRIPTORS, WireError};
use super::lent::Lent;
use super::presence::{Presence, check_pages};

/// At most so many pieces go into one write.
const PIECES: usize = 64;

/// Memory of bytes that were written is kept for the next ones up to this size, in bytes.
const KEPT: usize = 64 << 10;

/// To where messages are written.
pub trait Sink {
    /// Takes pieces, one after the other, with descriptors at their first byte. `more` follows
    /// at once, and may go out with them. Says how many bytes it took.
    ///
    /// # Errors
    /// Those of the system; `Unsupported` where it takes no descriptors.
    fn write(
        &mut self,
        from: &[IoSlice<'_>],
        with: &[BorrowedFd<'_>],
        more: bool,
    ) -> io::Result<usize>;

    /// Takes bytes from a place in a file, without copying them. Says how many it took; `None`
    /// where this cannot be. What it took must not change before the peer has read it.
    ///
    /// # Errors
    /// Those of the system.
    fn write_from(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        length: usize,
    ) -> io::Result<Option<usize>> {
        let _ = (file, at, length);
        Ok(None)
    }
}

/// A function that takes pieces of memory.
struct Pieces<F>(F);

impl<F> Sink for Pieces<F>
where
    F: FnMut(&[IoSlice<'_>], &[BorrowedFd<'_>]) -> io::Result<usize>,
{
    fn write(
        &mut self,
        from: &[IoSlice<'_>],
        with: &[BorrowedFd<'_>],
        _: bool,
    ) -> io::Result<usize> {
        self.0(from, with)
    }
}

/// A piece of what is to be written.
#[derive(Debug)]
enum Piece {
    /// Headers and control parts.
    Bytes(Vec<u8>),
    /// Contents of a page.
    Contents(Contents),
}

impl Piece {
    /// Its bytes in memory.
    fn bytes(&self) -> io::Result<&[u8]> {
        match self {
            Piece::Bytes(bytes) => Ok(bytes),
            Piece::Contents(contents) => {
                contents.settle()?;
                Ok(contents)
            }
        }
    }

    /// How many bytes it has.
    const fn length(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Contents(contents) => contents.len(),
        }
    }

    /// What it is lent from, and which part of that it is.
    fn lent(&self) -> Option<(&Arc<Lent>, Range<usize>)> {
        match self {
            Piece::Bytes(_) => None,
            Piece::Contents(contents) => contents.lent(),
        }
    }
}

/// Messages on their way out.
#[derive(Debug, Default)]
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Descriptors that go with a piece's first byte, by the piece's number.
    descriptors: VecDeque<(u64, Vec<OwnedFd>)>,
    /// The number of the first piece.
    first: u64,
    /// How much of the first piece is written.
    written: usize,
    /// All that is still to be written, in bytes.
    queued: usize,
    /// All that was ever written, in bytes.
    passed: u64,
    /// Where messages end of which something is still to be written, counted like that.
    ends: VecDeque<u64>,
    /// A part of the first of them is written.
    is_begun: bool,
    /// Memory to be used again.
    spare: Vec<u8>,
}

impl Outgoing {
    /// Nothing to be written.
    #[must_use]
    pub fn new() -> Outgoing {
        Outgoing::default()
    }

    /// What is still to be written, in bytes.
    #[must_use]
    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// Whether nothing is to be written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Queues a message, with descriptors that go with it. Says how many bytes it has.
    ///
    /// # Errors
    /// When it does not keep to the limits; then nothing is queued.
    pub fn push(
        &mut self,
        mut message: Control,
        descriptors: Vec<OwnedFd>,
    ) -> Result<usize, WireError> {
        check_pages(message.pages())?;
        let (presence, data) = take_contents(&mut message)?;
        if descriptors.len() > MAX_DESCRIPTORS.into() {
            return Err(WireError::Descriptors {
                count: descriptors.len(),
                limit: MAX_DESCRIPTORS,
            });
        }
        let mut bytes = self.open_piece(!descriptors.is_empty());
        let before = bytes.len();
        let result = encode(
            &mut bytes,
            &message,
            presence.as_ref(),
            descriptors.len() as u8,
        );
        let size = bytes.len() - before;
        if bytes.is_empty() {
            self.spare = bytes;
        } else {
            self.pieces.push_back(Piece::Bytes(bytes));
        }
        let payload = result?;
        if !descriptors.is_empty() {
            let piece = self.first + self.pieces.len() as u64 - 1;
            self.descriptors.push_back((piece, descriptors));
        }
        let contents = data.into_iter().flatten().map(Piece::Contents);
        self.pieces.extend(contents);
        self.queued += size + payload;
        self.ends.push_back(self.passed + self.queued as u64);
        Ok(size + payload)
    }

    /// Queues a message without contents before all messages of which nothing is written yet, also
    /// others that were queued so. Says how many bytes it has.
    ///
    /// # Errors
    /// As [`Outgoing::push`].
    pub fn push_first(&mut self, message: &Control) -> Result<usize, WireError> {
        let mut bytes = Vec::new();
        encode(&mut bytes, message, None, 0)?;
        let size = bytes.len();
        let at = match self.is_begun {
            true => self.ends.front().copied().unwrap_or(self.passed),
            false => self.passed,
        };
        let piece = self.cut_at(at);
        self.pieces.insert(piece, Piece::Bytes(bytes));
        self.renumber(piece);
        self.queued += size;
        let at_end = at + size as u64;
        for end in self.ends.iter_mut().filter(|end| **end > at) {
            *end += size as u64;
        }
        let before = self.ends.partition_point(|end| *end <= at);
        self.ends.insert(before, at_end);
        Ok(size)
    }

    /// Has a piece begin at a place where a message ends, and says which, by where it is in the queue.
    fn cut_at(&mut self, at: u64) -> usize {
        let mut rest = (at - self.passed) as usize + self.written;
        for piece in 0..self.pieces.len() {
            let length = self.pieces[piece].length();
            if rest == 0 {
                return piece;
            }
            if rest < length
                && let Piece::Bytes(bytes) = &mut self.pieces[piece]
            {
                let behind = bytes.split_off(rest);
                self.pieces.insert(piece + 1, Piece::Bytes(behind));
                self.renumber(piece + 1);
                return piece + 1;
            }
            rest = rest.saturating_sub(length);
        }
        self.pieces.len()
    }

    /// There is one more piece here: those behind it have other numbers.
    fn renumber(&mut self, piece: usize) {
        let number = self.first + piece as u64;
        let behind = self.descriptors.iter_mut();
        for (at, _) in behind.filter(|(at, _)| *at >= number) {
            *at += 1;
        }
    }

    /// Bytes to which a message can be added: those at the end of the queue, or new ones.
    /// Those of the first piece can be, too, while a part of it is written.
    fn open_piece(&mut self, new: bool) -> Vec<u8> {
        if !new
            && let Some(Piece::Bytes(bytes)) = self.pieces.back_mut()
            && bytes.len() < KEPT
        {
            let bytes = mem::take(bytes);
            self.pieces.pop_back();
            return bytes;
        }
        mem::take(&mut self.spare)
    }

    /// Offers what is queued to `write`, which says how many of the bytes it took, until all
    /// of it is written. Descriptors go with the first byte that is offered.
    ///
    /// # Errors
    /// Those of `write`; `WriteZero` where it takes nothing. Those of reading what is lent.
    pub fn write_to(
        &mut self,
        write: impl FnMut(&[IoSlice<'_>], &[BorrowedFd<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.write_to_sink(&mut Pieces(write))
    }

    /// The same with a sink, which may take what is lent from where it is.
    ///
    /// # Errors
    /// As [`Outgoing::write_to`].
    pub fn write_to_sink(&mut self, sink: &mut (impl Sink + ?Sized)) -> io::Result<()> {
        while !self.is_empty() {
            let (written, had_descriptors) = match self.write_lent(sink)? {
                Some(written) => (written, false),
                None => self.write_slices(sink)?,
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            if had_descriptors {
                self.descriptors.pop_front();
            }
            self.advance(written);
        }
        Ok(())
    }

    /// Has the first pieces written from the file that they are lent from. `None` where they are
    /// not, or no more.
    fn write_lent(&self, sink: &mut (impl Sink + ?Sized)) -> io::Result<Option<usize>> {
        let Some((lent, part)) = self.pieces[0].lent() else {
            return Ok(None);
        };
        let mut part = part.start + self.written..part.end;
        for (next, more) in self.pieces.iter().skip(1).map_while(Piece::lent) {
            if !Arc::ptr_eq(next, lent) || more.start != part.end {
                break;
            }
            part.end = more.end;
        }
        let sent = lent.pass(part, |file, at, length| sink.write_from(file, at, length));
        let sent = sent.transpose()?.flatten();
        if sent.is_none() {
            lent.settle()?;
        }
        Ok(sent)
    }

    /// Has the first pieces written from memory. Says also whether descriptors went with them.
    fn write_slices(&self, sink: &mut (impl Sink + ?Sized)) -> io::Result<(usize, bool)> {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let (count, descriptors) = self.offer(&mut slices)?;
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let more = count < self.pieces.len();
        let written = sink.write(&slices[..count], &borrowed, more)?;
        Ok((written, !borrowed.is_empty()))
    }

    /// Fills in what the next write shall have: pieces up to one that is lent.
    fn offer<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>; PIECES],
    ) -> io::Result<(usize, &'a [OwnedFd])> {
        let mut with: &[OwnedFd] = &[];
        let mut end = u64::MAX;
        for (piece, descriptors) in self.descriptors.iter().take(2) {
            if *piece == self.first {
                with = descriptors;
            } else {
                end = end.min(*piece - self.first);
            }
        }
        let most = self.pieces.len().min(PIECES).min(end as usize);
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces.iter().take(most)) {
            if piece.lent().is_some() {
                break;
            }
            *slice = IoSlice::new(piece.bytes()?);
            count += 1;
        }
        slices[0] = IoSlice::new(&self.pieces[0].bytes()?[self.written..]);
        Ok((count, with))
    }

    /// So many bytes are written.
    fn advance(&mut self, mut written: usize) {
        self.queued -= written;
        self.passed += written as u64;
        self.is_begun = true;
        while let Some(end) = self.ends.front().filter(|end| **end <= self.passed) {
            self.is_begun = *end < self.passed;
            self.ends.pop_front();
        }
        while let Some(piece) = self.pieces.front() {
            let rest = piece.length() - self.written;
            if written < rest {
                self.written += written;
                return;
            }
            written -= rest;
            self.written = 0;
            self.first += 1;
            if let Some(Piece::Bytes(mut bytes)) = self.pieces.pop_front()
                && bytes.capacity() <= KEPT
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }
}

/// Takes a message's contents out of it.
fn take_contents(
    message: &mut Control,
) -> Result<(Option<Presence>, Vec<Option<Contents>>), WireError> {
    let Some((count, data)) = message.contents() else {
        return Ok((None, Vec::new()));
    };
    if count.is_some_and(|count| count as usize != data.len()) {
        return Err(WireError::Contents("not as many as its pages"));
    }
    let presence = Presence::of(data)?;
    Ok((Some(presence), mem::take(data)))
}

/// Adds header, control part and fill of a message. Says how long its payload is. On an
/// error nothing is added.
fn encode(
    bytes: &mut Vec<u8>,
    message: &Control,
    presence: Option<&Presence>,
    descriptors: u8,
) -> Result<usize, WireError> {
    let before = bytes.len();
    let result = try_encode(bytes, message, presence, descriptors);
    if result.is_err() {
        bytes.truncate(before);
    }
    result
}

fn try_encode(
    bytes: &mut Vec<u8>,
    message: &Control,
    presence: Option<&Presence>,
    descriptors: u8,
) -> Result<usize, WireError> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; HEADER]);
    postcard::to_io(&(presence, message), &mut *bytes).map_err(WireError::Undecodable)?;
    let control = &bytes[start + HEADER..];
    let payload = presence.map_or(0, Presence::payload);
    let header = Header {
        descriptors,
        control: u32::try_from(control.len()).unwrap_or(u32::MAX),
        payload: u32::try_from(payload).unwrap_or(u32::MAX),
        checksum: crc32fast::hash(control),
    };
    header.check(&Limits::SESSION)?;
    bytes[start..start + HEADER].copy_from_slice(&header.encode());
    let length = (bytes.len() - start).next_multiple_of(BLOCK);
    bytes.resize(start + length, 0);
    Ok(header.payload as usize)
}

//! The write-ahead log: one file of a fixed length, written from its beginning again and
//! again.
//!
//! It begins with two blocks that say the same: the log's *generation* and a secret number
//! that is drawn anew for each. Batches follow. A batch is a header with a number that
//! counts up, a table of its pages with a checksum each, a checksum of both, and the pages.
//! It carries the secret, so neither what an earlier generation left behind nor what a
//! client writes into a page can pass for one.
//!
//! Everything begins at a multiple of [`BLOCK`], so no block that holds acknowledged data
//! is written again before the next generation.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use super::disk::Disk;
use super::object::ObjectId;
use super::{Contents, Damage};
use crate::random::secret;

/// The name of its file.
pub(super) const NAME: &str = "log";
/// Everything in the log begins at a multiple of this many bytes.
pub(super) const BLOCK: u64 = 4096;
/// Where the first batch begins.
pub(super) const FIRST: u64 = 2 * BLOCK;

/// The file is written in pieces of so many bytes where much of it is.
const PIECE: usize = 1 << 20;

const SLOT_MAGIC: &[u8; 8] = b"QUIRELOG";
const BATCH_MAGIC: &[u8; 8] = b"QUIREBAT";
const SLOT: usize = 36;
const HEADER: usize = 32;
/// What a page adds to a batch's table, in bytes.
pub(super) const ENTRY: usize = 24;

/// A page that is to be written; without contents it is all zeros.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) object: ObjectId,
    pub(super) page: u64,
    pub(super) contents: Option<Contents>,
}

/// A page that the log holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// All zeros.
    Zero,
    /// This.
    Held(Contents),
    /// Its contents are damaged.
    Lost,
}

/// How far a log can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// To its end.
    Whole,
    /// Up to a batch at this offset that was not wholly written: nobody was told that it
    /// was.
    Torn(u64),
    /// Up to here; but there is a later batch, so what is damaged here was acknowledged.
    Damaged(Range<u64>),
}

/// What is in a log.
#[derive(Debug)]
pub(super) struct Replay {
    /// Its pages, in the order in which they were written.
    pub(super) pages: Vec<(ObjectId, u64, Logged)>,
    /// Where the last of its batches ends.
    end: u64,
    pub(super) tail: Tail,
    /// Pages whose contents are damaged: of which object, where they are, and which.
    pub(super) damage: Vec<(ObjectId, Damage)>,
}

/// The beginning of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    generation: u64,
    secret: u64,
    capacity: u64,
}

impl Slot {
    fn to_block(self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK as usize);
        block.extend_from_slice(SLOT_MAGIC);
        for number in [self.generation, self.secret, self.capacity] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&block);
        block.extend_from_slice(&sum.to_le_bytes());
        block.resize(BLOCK as usize, 0);
        block
    }

    /// The next generation, with a secret of its own.
    fn next(self) -> io::Result<Slot> {
        Ok(Slot {
            generation: self.generation + 1,
            secret: secret()?,
            capacity: self.capacity,
        })
    }

    fn parse(block: &[u8]) -> Option<Slot> {
        let (body, sum) = block.get(..SLOT)?.split_at(SLOT - 4);
        if !body.starts_with(SLOT_MAGIC) || crc32fast::hash(body) != u32_at(sum, 0) {
            return None;
        }
        Some(Slot {
            generation: u64_at(body, 8),
            secret: u64_at(body, 16),
            capacity: u64_at(body, 24),
        })
    }
}

/// The log, ready to be written to.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    slot: Slot,
    /// The next generation, where its beginning is not wholly written.
    next: Option<Slot>,
    sequence: u64,
    end: u64,
    /// What was found behind the beginning and may not be durable: whoever wrote it may have ended
    /// before it was.
    unsure: Option<Range<u64>>,
}

impl Log {
    /// Makes a log of a capacity in bytes. It is filled with zeros once, so that later
    /// writes change no metadata of the file.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn make(disk: &dyn Disk, capacity: u64) -> io::Result<()> {
        let capacity = capacity / BLOCK * BLOCK;
        disk.create(NAME)?;
        let zeros = vec![0; PIECE.min(capacity as usize)];
        let mut at = 0;
        while at < capacity {
            let length = (capacity - at).min(zeros.len() as u64);
            disk.write_at(NAME, at, &zeros[..length as usize])?;
            at += length;
        }
        let slot = Slot {
            generation: 1,
            secret: secret()?,
            capacity,
        };
        disk.write_at(NAME, 0, &slot.to_block())?;
        disk.write_at(NAME, BLOCK, &slot.to_block())?;
        disk.sync(NAME)
    }

    /// Reads a log. It can be written to after [`Log::begin_anew`].
    ///
    /// # Errors
    /// Where it is damaged beyond use, or what the disk said.
    pub(super) fn open(disk: Arc<dyn Disk>) -> io::Result<Result<(Log, Replay), Damage>> {
        let (slot, replay) = match read(&*disk)? {
            Ok(found) => found,
            Err(damage) => return Ok(Err(damage)),
        };
        let log = Log {
            disk,
            slot,
            next: None,
            sequence: 1,
            end: slot.capacity,
            unsure: (replay.end > FIRST).then_some(FIRST..replay.end),
        };
        Ok(Ok((log, replay)))
    }

    /// Sees to it that what was found is durable. Before that, none of it may be put into its place:
    /// a crash in the midst of that leaves neither what is in the log nor what was there before.
    ///
    /// It is written again as it is, as the sync of who wrote it may have failed: another one would say
    /// yes without having done it. What is durable is not torn by that.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn confirm(&mut self) -> io::Result<()> {
        let Some(Range { mut start, end }) = self.unsure.clone() else {
            return Ok(());
        };
        let mut piece = vec![0; PIECE];
        while start < end {
            let length = piece.len().min((end - start) as usize);
            let got = self.disk.read_at(NAME, start, &mut piece[..length])?;
            if got == 0 {
                break;
            }
            self.disk.write_at(NAME, start, &piece[..got])?;
            start += got as u64;
        }
        self.disk.sync(NAME)?;
        self.unsure = None;
        Ok(())
    }

    /// The largest batch that it can hold, in bytes.
    pub(super) fn room(&self) -> u64 {
        self.slot.capacity - FIRST
    }

    /// Whether a batch of this size fits behind what is there.
    pub(super) fn fits(&self, size: u64) -> bool {
        self.end + size <= self.slot.capacity
    }

    /// Writes a batch and makes it durable. It must fit.
    ///
    /// # Errors
    /// What the disk said. Where it could not be written, the log is as it was.
    pub(super) fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        let batch = encode(self.slot.secret, self.sequence, changes);
        self.disk.write_at(NAME, self.end, &batch)?;
        self.disk.sync(NAME)?;
        self.sequence += 1;
        self.end += batch.len() as u64;
        Ok(())
    }

    /// Begins the next generation: what is in the log counts no more. The two blocks are
    /// written one after the other, so that one of them is whole at any time, and batches
    /// follow only when both are durable, so that each of them alone tells the truth. What
    /// was written of them before an error is written again as it was: no crash can tear that.
    ///
    /// # Errors
    /// What the disk said; the log can take nothing then, until this succeeds. Whichever of
    /// the two beginnings a crash leaves, all that the log had is in its place.
    pub(super) fn begin_anew(&mut self) -> io::Result<()> {
        self.end = self.slot.capacity;
        let next = match self.next {
            Some(next) => next,
            None => self.slot.next()?,
        };
        self.next = Some(next);
        for at in [0, BLOCK] {
            self.disk.write_at(NAME, at, &next.to_block())?;
            self.disk.sync(NAME)?;
        }
        (self.slot, self.next) = (next, None);
        self.sequence = 1;
        self.end = FIRST;
        Ok(())
    }
}

/// What a log on disk holds, or why it cannot be read.
///
/// # Errors
/// What the disk said.
pub(super) fn look(disk: &dyn Disk) -> io::Result<Result<Replay, Damage>> {
    Ok(read(disk)?.map(|(_, replay)| replay))
}

fn read(disk: &dyn Disk) -> io::Result<Result<(Slot, Replay), Damage>> {
    let damage = |range: Range<u64>, what: &str| Err(Damage::new(NAME, range, what));
    let Some(bytes) = super::disk::read_all(disk, NAME)? else {
        return Ok(damage(0..0, "the file is missing"));
    };
    let slots = [0, BLOCK as usize].map(|at| bytes.get(at..).and_then(Slot::parse));
    let Some(slot) = slots.into_iter().flatten().max_by_key(|s| s.generation) else {
        return Ok(damage(0..FIRST, "neither of the two beginnings is whole"));
    };
    if bytes.len() as u64 != slot.capacity {
        let range = bytes.len() as u64..slot.capacity;
        return Ok(damage(
            range,
            "the file has another length than it was made with",
        ));
    }
    Ok(Ok((slot, parse(&bytes, slot.secret))))
}

/// How many bytes a batch has.
pub(super) fn size(changes: &[Change]) -> u64 {
    let pages: u64 = changes
        .iter()
        .filter_map(|change| change.contents.as_ref())
        .map(|contents| contents.len() as u64)
        .sum();
    table_end(changes.len()) + pages
}

/// Where the contents of a batch with so many pages begin.
fn table_end(count: usize) -> u64 {
    ((HEADER + count * ENTRY) as u64).next_multiple_of(BLOCK)
}

fn encode(secret: u64, sequence: u64, changes: &[Change]) -> Vec<u8> {
    let mut batch = Vec::with_capacity(size(changes) as usize);
    batch.extend_from_slice(BATCH_MAGIC);
    batch.extend_from_slice(&secret.to_le_bytes());
    batch.extend_from_slice(&sequence.to_le_bytes());
    batch.extend_from_slice(&(changes.len() as u32).to_le_bytes());
    batch.extend_from_slice(&[0; 4]);
    for change in changes {
        let contents: &[u8] = change.contents.as_deref().unwrap_or(&[]);
        batch.extend_from_slice(&change.object.0.to_le_bytes());
        batch.extend_from_slice(&change.page.to_le_bytes());
        batch.extend_from_slice(&(contents.len() as u32).to_le_bytes());
        batch.extend_from_slice(&crc32fast::hash(contents).to_le_bytes());
    }
    let sum = sum_of(&batch);
    batch[HEADER - 4..HEADER].copy_from_slice(&sum.to_le_bytes());
    batch.resize(table_end(changes.len()) as usize, 0);
    for change in changes {
        batch.extend_from_slice(change.contents.as_deref().unwrap_or(&[]));
    }
    batch
}

/// The checksum of a header and its table, without itself.
fn sum_of(head: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head[..HEADER - 4]);
    sum.update(&head[HEADER..]);
    sum.finalize()
}

/// A header with its table, as found.
struct Head<'a> {
    sequence: u64,
    table: &'a [u8],
    size: u64,
}

impl Head<'_> {
    fn entries(&self) -> impl Iterator<Item = (ObjectId, u64, u64, u32)> {
        self.table.chunks_exact(ENTRY).map(|entry| {
            (
                ObjectId(u64_at(entry, 0)),
                u64_at(entry, 8),
                u64::from(u32_at(entry, 16)),
                u32_at(entry, 20),
            )
        })
    }
}

/// The header of a batch at an offset, where one is whole.
fn head(log: &[u8], at: u64, secret: u64) -> Option<Head<'_>> {
    let bytes = log.get(at as usize..)?;
    let header = bytes.get(..HEADER)?;
    if !header.starts_with(BATCH_MAGIC) || u64_at(header, 8) != secret {
        return None;
    }
    let count = u32_at(header, 24) as usize;
    let length = count.checked_mul(ENTRY)?.checked_add(HEADER)?;
    let whole = bytes.get(..length)?;
    if sum_of(whole) != u32_at(header, HEADER - 4) {
        return None;
    }
    let head = Head {
        sequence: u64_at(header, 16),
        table: &whole[HEADER..],
        size: table_end(count),
    };
    let pages: u64 = head.entries().map(|(_, _, length, _)| length).sum();
    let size = head.size + pages;
    (size <= bytes.len() as u64).then_some(Head { size, ..head })
}

/// Where the next batch with a larger number is, behind an offset.
fn later(log: &[u8], at: u64, secret: u64, sequence: u64) -> Option<u64> {
    (at / BLOCK + 1..log.len() as u64 / BLOCK)
        .map(|block| block * BLOCK)
        .find(|&at| head(log, at, secret).is_some_and(|head| head.sequence > sequence))
}

/// Reads batches as long as they are whole and follow each other.
fn parse(log: &[u8], secret: u64) -> Replay {
    let mut replay = Replay {
        pages: Vec::new(),
        end: FIRST,
        tail: Tail::Whole,
        damage: Vec::new(),
    };
    let (mut at, mut sequence) = (FIRST, 1);
    while at < log.len() as u64 {
        let Some(found) = head(log, at, secret).filter(|head| head.sequence == sequence) else {
            replay.tail = tail(log, at, secret, sequence);
            return replay;
        };
        let (pages, damage) = contents(log, at, &found);
        if !damage.is_empty() && later(log, at, secret, sequence).is_none() {
            replay.tail = Tail::Torn(at);
            return replay;
        }
        replay.pages.extend(pages);
        replay.damage.extend(damage);
        at += found.size;
        sequence += 1;
        replay.end = at;
    }
    replay
}

/// What no whole batch at an offset means.
fn tail(log: &[u8], at: u64, secret: u64, sequence: u64) -> Tail {
    if let Some(next) = later(log, at, secret, sequence) {
        return Tail::Damaged(at..next);
    }
    let begun = log
        .get(at as usize..at as usize + 16)
        .is_some_and(|start| start.starts_with(BATCH_MAGIC) && u64_at(start, 8) == secret);
    if begun { Tail::Torn(at) } else { Tail::Whole }
}

/// A page of a batch, as it is read back.
type Found = (ObjectId, u64, Logged);

/// The pages of a batch, and which of them are damaged.
fn contents(log: &[u8], at: u64, head: &Head<'_>) -> (Vec<Found>, Vec<(ObjectId, Damage)>) {
    let mut place = at + table_end(head.table.len() / ENTRY);
    let (mut pages, mut damage) = (Vec::new(), Vec::new());
    for (object, page, length, sum) in head.entries() {
        let bytes = &log[place as usize..(place + length) as usize];
        let logged = if length == 0 {
            Logged::Zero
        } else if crc32fast::hash(bytes) == sum {
            Logged::Held(bytes.into())
        } else {
            let what = format!("page {page} of object {object}: wrong checksum");
            damage.push((object, Damage::new(NAME, place..place + length, &what)));
            Logged::Lost
        };
        pages.push((object, page, logged));
        place += length;
    }
    (pages, damage)
}

/// A number at an offset at which there are enough bytes.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

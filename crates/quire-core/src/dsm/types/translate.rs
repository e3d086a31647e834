//! Whole spans of contents, translated from one machine to another in one pass.
//!
//! The order of bytes and the format of floating point numbers are changed together. An
//! element that both machines hold in the same form is not touched. Nothing is allocated.
//!
//! Numbers in another format go in blocks. The quick way takes a block without a branch,
//! in loops that a compiler makes vectors of: zero, or a number that is ordinary on both
//! machines, gets another exponent by an addition. Whether any number of the block was
//! something else is gathered in one bit. If so, nothing of the block is kept, and its
//! numbers go one by one, the unusual ones through [`super::float`].

use super::float::{self, Layout};
use super::machine::{ByteOrder, Machine};
use super::report::{Place, Report};
use super::{TagMap, TypeTag};
use crate::units::{Bytes, ObjectOffset};

/// Bytes of a block: what one check for numbers out of the ordinary covers.
const BLOCK: usize = 256;
/// Bytes that are copied at once from one buffer to another before they are translated:
/// they are still in the first cache then.
const PIECE: usize = 4096;
/// The bit of the sign in numbers of 4 bytes.
const SIGN32: u32 = 1 << 31;
/// The bit of the sign in numbers of 8 bytes.
const SIGN64: u64 = 1 << 63;

/// Why a span was not translated. Nothing of it was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// An element straddles the start or the end.
    #[error(
        "a span of {len} bytes at {offset:#x} cuts an element of type {tag}: give whole elements, of {element} bytes each", len = len.0, offset = offset.0, element = tag.element()
    )]
    Straddles {
        /// The start of the span.
        offset: ObjectOffset,
        /// Its size.
        len: Bytes,
        /// The type of its elements.
        tag: TypeTag,
    },
    /// The buffers differ in size.
    #[error("cannot translate {from} bytes into a buffer of {to}: give buffers of one size", from = from.0, to = to.0)]
    Lengths {
        /// The size of what is to be translated.
        from: Bytes,
        /// The size of where it should go.
        to: Bytes,
    },
}

/// A translation between two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// In whose form the contents are.
    pub from: Machine,
    /// Whose form they get.
    pub to: Machine,
}

impl Translation {
    /// The translation from one machine to another.
    #[must_use]
    pub const fn new(from: Machine, to: Machine) -> Translation {
        Translation { from, to }
    }

    /// Whether elements of this type have to be translated at all.
    #[must_use]
    pub fn touches(self, tag: TypeTag) -> bool {
        let Translation { from, to } = self;
        let swapped = from.order() != to.order();
        match tag {
            TypeTag::Untyped | TypeTag::Int8 => false,
            TypeTag::Int16 | TypeTag::Int32 | TypeTag::Int64 => swapped,
            TypeTag::Float32 => swapped || from.float32() != to.float32(),
            TypeTag::Float64 => swapped || from.float64() != to.float64(),
        }
    }

    /// Translates a span of one type in place. `at` is its place in the object; the
    /// report gets what the target cannot hold.
    ///
    /// # Errors
    /// When an element straddles the start or the end of the span.
    pub fn in_place(
        self,
        tag: TypeTag,
        at: ObjectOffset,
        data: &mut [u8],
        report: &mut Report,
    ) -> Result<(), SpanError> {
        whole_elements(tag, at, data.len() as u64)?;
        self.run(tag, at, data, report);
        Ok(())
    }

    /// Translates a span of one type from one buffer to another.
    ///
    /// # Errors
    /// When an element straddles the start or the end of the span, or the buffers differ
    /// in size.
    pub fn copy(
        self,
        tag: TypeTag,
        at: ObjectOffset,
        from: &[u8],
        to: &mut [u8],
        report: &mut Report,
    ) -> Result<(), SpanError> {
        same_length(from, to)?;
        whole_elements(tag, at, from.len() as u64)?;
        self.run_copy(tag, at, from, to, report);
        Ok(())
    }

    /// Translates contents of an object in place, each part after its tag. `at` is where
    /// they begin in the object.
    ///
    /// # Errors
    /// When an element straddles the start or the end of the contents.
    pub fn contents(
        self,
        tags: &TagMap,
        at: ObjectOffset,
        data: &mut [u8],
        report: &mut Report,
    ) -> Result<(), SpanError> {
        let range = at..at + Bytes(data.len() as u64);
        for span in tags.spans(range.clone()) {
            whole_elements(span.tag, span.start, span.len().0)?;
        }
        let mut rest = data;
        for span in tags.spans(range) {
            let (part, later) = rest.split_at_mut(span.len().0 as usize);
            self.run(span.tag, span.start, part, report);
            rest = later;
        }
        Ok(())
    }

    /// Translates contents of an object from one buffer to another, each part after its
    /// tag.
    ///
    /// # Errors
    /// When an element straddles the start or the end of the contents, or the buffers
    /// differ in size.
    pub fn copy_contents(
        self,
        tags: &TagMap,
        at: ObjectOffset,
        from: &[u8],
        to: &mut [u8],
        report: &mut Report,
    ) -> Result<(), SpanError> {
        same_length(from, to)?;
        let range = at..at + Bytes(from.len() as u64);
        for span in tags.spans(range.clone()) {
            whole_elements(span.tag, span.start, span.len().0)?;
        }
        for span in tags.spans(range) {
            let part = (span.start.0 - at.0) as usize..(span.end.0 - at.0) as usize;
            let (from, to) = (&from[part.clone()], &mut to[part]);
            self.run_copy(span.tag, span.start, from, to, report);
        }
        Ok(())
    }

    fn run_copy(
        self,
        tag: TypeTag,
        at: ObjectOffset,
        from: &[u8],
        to: &mut [u8],
        report: &mut Report,
    ) {
        if !self.touches(tag) {
            to.copy_from_slice(from);
            return;
        }
        let mut at = at;
        for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
            to.copy_from_slice(from);
            self.run(tag, at, to, report);
            at = at + Bytes(PIECE as u64);
        }
    }

    fn run(self, tag: TypeTag, at: ObjectOffset, data: &mut [u8], report: &mut Report) {
        if !self.touches(tag) {
            return;
        }
        match tag {
            TypeTag::Untyped | TypeTag::Int8 => {}
            TypeTag::Int16 => swap2(data),
            TypeTag::Int32 => swap4(data),
            TypeTag::Int64 => swap8(data),
            TypeTag::Float32 if self.from.float32() == self.to.float32() => swap4(data),
            TypeTag::Float64 if self.from.float64() == self.to.float64() => swap8(data),
            TypeTag::Float32 => self.float32(Span { tag, at, data }, report),
            TypeTag::Float64 => self.float64(Span { tag, at, data }, report),
        }
    }

    /// Numbers of 4 bytes in another format.
    fn float32(self, span: Span, report: &mut Report) {
        let from = Layout::of_float32(self.from.float32());
        let to = Layout::of_float32(self.to.float32());
        let job = Job::new(from, to);
        match (words(self.from, from), words(self.to, to)) {
            (Words::Little, Words::Pdp) => blocks32::<Little, Pdp>(&job, span, report),
            (Words::Big, Words::Pdp) => blocks32::<Big, Pdp>(&job, span, report),
            (Words::Pdp, Words::Little) => blocks32::<Pdp, Little>(&job, span, report),
            (Words::Pdp, Words::Big) => blocks32::<Pdp, Big>(&job, span, report),
            // The same format on both sides, which is only a matter of byte order.
            (Words::Pdp, Words::Pdp) | (_, Words::Little | Words::Big) => {}
        }
    }

    /// Numbers of 8 bytes in another format.
    fn float64(self, span: Span, report: &mut Report) {
        let from = Layout::of_float64(self.from.float64());
        let to = Layout::of_float64(self.to.float64());
        let job = Job::new(from, to);
        match to.fraction as i32 - from.fraction as i32 {
            WIDER => self.shifted::<WIDER>(&job, span, report),
            NARROWER => self.shifted::<NARROWER>(&job, span, report),
            _ => self.shifted::<0>(&job, span, report),
        }
    }

    fn shifted<const SHIFT: i32>(self, job: &Job, span: Span, report: &mut Report) {
        match (words(self.from, job.from), words(self.to, job.to)) {
            (Words::Little, Words::Pdp) => blocks64::<Little, Pdp, SHIFT>(job, span, report),
            (Words::Big, Words::Pdp) => blocks64::<Big, Pdp, SHIFT>(job, span, report),
            (Words::Pdp, Words::Little) => blocks64::<Pdp, Little, SHIFT>(job, span, report),
            (Words::Pdp, Words::Big) => blocks64::<Pdp, Big, SHIFT>(job, span, report),
            (Words::Pdp, Words::Pdp) => blocks64::<Pdp, Pdp, SHIFT>(job, span, report),
            // The same format on both sides, which is only a matter of byte order.
            (_, Words::Little | Words::Big) => {}
        }
    }
}

fn same_length(from: &[u8], to: &[u8]) -> Result<(), SpanError> {
    if from.len() == to.len() {
        return Ok(());
    }
    Err(SpanError::Lengths {
        from: Bytes(from.len() as u64),
        to: Bytes(to.len() as u64),
    })
}

fn whole_elements(tag: TypeTag, offset: ObjectOffset, len: u64) -> Result<(), SpanError> {
    let element = tag.element();
    if offset.0.is_multiple_of(element) && len.is_multiple_of(element) {
        return Ok(());
    }
    let len = Bytes(len);
    Err(SpanError::Straddles { offset, len, tag })
}

fn swap2(data: &mut [u8]) {
    for bytes in data.as_chunks_mut::<2>().0 {
        *bytes = u16::from_ne_bytes(*bytes).swap_bytes().to_ne_bytes();
    }
}

fn swap4(data: &mut [u8]) {
    for bytes in data.as_chunks_mut::<4>().0 {
        *bytes = u32::from_ne_bytes(*bytes).swap_bytes().to_ne_bytes();
    }
}

fn swap8(data: &mut [u8]) {
    for bytes in data.as_chunks_mut::<8>().0 {
        *bytes = u64::from_ne_bytes(*bytes).swap_bytes().to_ne_bytes();
    }
}

/// Contents of one type, and where they are in the object.
struct Span<'a> {
    tag: TypeTag,
    at: ObjectOffset,
    data: &'a mut [u8],
}

/// How a number lies in memory.
#[derive(Clone, Copy)]
enum Words {
    Little,
    Big,
    /// VAX floats: words of 2 bytes, the highest first, each with its low byte first. So a
    /// PDP-11 did it.
    Pdp,
}

fn words(machine: Machine, layout: Layout) -> Words {
    match machine.order() {
        _ if layout.vax => Words::Pdp,
        ByteOrder::Little => Words::Little,
        ByteOrder::Big => Words::Big,
    }
}

/// [`Words`], for loops that are compiled for one of them.
trait Order {
    fn get32(bytes: [u8; 4]) -> u32;
    fn put32(number: u32) -> [u8; 4];
    fn get64(bytes: [u8; 8]) -> u64;
    fn put64(number: u64) -> [u8; 8];
}

struct Little;
struct Big;
struct Pdp;

impl Order for Little {
    fn get32(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes)
    }
    fn put32(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }
    fn get64(bytes: [u8; 8]) -> u64 {
        u64::from_le_bytes(bytes)
    }
    fn put64(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }
}

impl Order for Big {
    fn get32(bytes: [u8; 4]) -> u32 {
        u32::from_be_bytes(bytes)
    }
    fn put32(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }
    fn get64(bytes: [u8; 8]) -> u64 {
        u64::from_be_bytes(bytes)
    }
    fn put64(number: u64) -> [u8; 8] {
        number.to_be_bytes()
    }
}

impl Order for Pdp {
    fn get32(bytes: [u8; 4]) -> u32 {
        u32::from_le_bytes(bytes).rotate_left(16)
    }
    fn put32(number: u32) -> [u8; 4] {
        number.rotate_left(16).to_le_bytes()
    }
    fn get64(bytes: [u8; 8]) -> u64 {
        reverse_words(u64::from_le_bytes(bytes))
    }
    fn put64(number: u64) -> [u8; 8] {
        reverse_words(number).to_le_bytes()
    }
}

/// The four words of 2 bytes in the opposite order.
fn reverse_words(number: u64) -> u64 {
    const LOW_WORDS: u64 = 0x0000_ffff_0000_ffff;
    let halves = number.rotate_left(32);
    ((halves & LOW_WORDS) << 16) | ((halves >> 16) & LOW_WORDS)
}

/// [`Job::convert64`] to a fraction with more bits: to VAX D.
const WIDER: i32 = 3;
/// [`Job::convert64`] to a fraction with fewer bits: from VAX D.
const NARROWER: i32 = -WIDER;

/// A change of format, with what the quick way needs. Magnitudes are numbers without
/// their sign.
struct Job {
    from: Layout,
    to: Layout,
    /// The smallest and the largest magnitude in `from` whose exponents are ordinary in
    /// both formats.
    least: u64,
    most: u64,
    /// What is added to a magnitude that has been shifted for `to`.
    delta: u64,
}

impl Job {
    fn new(from: Layout, to: Layout) -> Job {
        let delta = i64::from(to.bias) - i64::from(from.bias);
        let first = 1.max(1 - delta) as u64;
        let last_from = i64::from(from.largest_exponent());
        let last = last_from.min(i64::from(to.largest_exponent()) - delta) as u64;
        Job {
            from,
            to,
            least: first << from.fraction,
            most: ((last + 1) << from.fraction) - 1,
            delta: (delta << to.fraction) as u64,
        }
    }

    /// The number in the new format, if it is ordinary or zero, and a sign bit that is set
    /// if it is not. Both formats have fractions of one size.
    #[inline(always)]
    fn convert32(&self, number: u32) -> (u32, u32) {
        let magnitude = number & !SIGN32;
        let nonzero = number | number.wrapping_neg();
        let too_small = magnitude.wrapping_sub(self.least as u32);
        let too_large = (self.most as u32).wrapping_sub(magnitude);
        let mask = (nonzero >> 31).wrapping_neg();
        let converted = number.wrapping_add(self.delta as u32 & mask);
        (converted, (too_small | too_large) & nonzero)
    }

    /// The same for numbers of 8 bytes, whose fractions in the new format have `SHIFT`
    /// more bits.
    #[inline(always)]
    fn convert64<const SHIFT: i32>(&self, number: u64) -> (u64, u64) {
        let magnitude = number & !SIGN64;
        let nonzero = number | number.wrapping_neg();
        let too_small = magnitude.wrapping_sub(self.least);
        let too_large = self.most.wrapping_sub(magnitude);
        let shifted = match SHIFT {
            WIDER => magnitude << 3,
            // To nearest: half of what is dropped, less a bit, which a tie gets back if
            // what is kept would be odd.
            NARROWER => (magnitude + 3 + ((magnitude >> 3) & 1)) >> 3,
            _ => magnitude,
        };
        let mask = (nonzero >> 63).wrapping_neg();
        let converted = shifted.wrapping_add(self.delta) | (number & SIGN64);
        (converted & mask, (too_small | too_large) & nonzero)
    }

    /// 1 where [`Job::convert64`] rounds.
    #[inline(always)]
    fn inexact64<const SHIFT: i32>(number: u64) -> u64 {
        match SHIFT {
            NARROWER => ((number & 7) + 7) >> 3,
            _ => 0,
        }
    }
}

fn blocks32<S: Order, T: Order>(job: &Job, span: Span, report: &mut Report) {
    let Span { tag, mut at, data } = span;
    let (blocks, rest) = data.as_chunks_mut::<BLOCK>();
    for block in blocks {
        let mut numbers = [0u32; BLOCK / 4];
        let mut special = 0;
        for (number, bytes) in numbers.iter_mut().zip(block.as_chunks::<4>().0) {
            let (converted, unusual) = job.convert32(S::get32(*bytes));
            *number = converted;
            special |= unusual;
        }
        if special & SIGN32 == 0 {
            for (bytes, number) in block.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
                *bytes = T::put32(number);
            }
        } else {
            let data = &mut block[..];
            one_by_one32::<S, T>(job, Span { tag, at, data }, report);
        }
        at = at + Bytes(BLOCK as u64);
    }
    let data = rest;
    one_by_one32::<S, T>(job, Span { tag, at, data }, report);
}

fn blocks64<S: Order, T: Order, const SHIFT: i32>(job: &Job, span: Span, report: &mut Report) {
    let Span { tag, mut at, data } = span;
    let (blocks, rest) = data.as_chunks_mut::<BLOCK>();
    for block in blocks {
        let mut numbers = [0u64; BLOCK / 8];
        let (mut special, mut inexact) = (0, 0);
        for (number, bytes) in numbers.iter_mut().zip(block.as_chunks::<8>().0) {
            let bits = S::get64(*bytes);
            let (converted, unusual) = job.convert64::<SHIFT>(bits);
            *number = converted;
            special |= unusual;
            inexact += Job::inexact64::<SHIFT>(bits);
        }
        if special & SIGN64 == 0 {
            for (bytes, number) in block.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
                *bytes = T::put64(number);
            }
            report.count_inexact(inexact);
        } else {
            let data = &mut block[..];
            one_by_one64::<S, T, SHIFT>(job, Span { tag, at, data }, report);
        }
        at = at + Bytes(BLOCK as u64);
    }
    let data = rest;
    one_by_one64::<S, T, SHIFT>(job, Span { tag, at, data }, report);
}

fn one_by_one32<S: Order, T: Order>(job: &Job, span: Span, report: &mut Report) {
    let Span { tag, at, data } = span;
    for (index, bytes) in data.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let number = S::get32(*bytes);
        let (converted, unusual) = job.convert32(number);
        if unusual & SIGN32 == 0 {
            *bytes = T::put32(converted);
        } else {
            let place = at + Bytes(4 * index as u64);
            *bytes = T::put32(careful(job, tag, place, number.into(), report) as u32);
        }
    }
}

fn one_by_one64<S: Order, T: Order, const SHIFT: i32>(job: &Job, span: Span, report: &mut Report) {
    let Span { tag, at, data } = span;
    for (index, bytes) in data.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let number = S::get64(*bytes);
        let (converted, unusual) = job.convert64::<SHIFT>(number);
        if unusual & SIGN64 == 0 {
            report.count_inexact(Job::inexact64::<SHIFT>(number));
            *bytes = T::put64(converted);
        } else {
            let place = at + Bytes(8 * index as u64);
            *bytes = T::put64(careful(job, tag, place, number, report));
        }
    }
}

/// A number that is out of the ordinary, in the new format.
fn careful(job: &Job, tag: TypeTag, offset: ObjectOffset, number: u64, report: &mut Report) -> u64 {
    let (converted, kind) = float::convert(job.from, job.to, number);
    if let Some(kind) = kind {
        report.note(Place { offset, tag, kind });
    }
    converted
}

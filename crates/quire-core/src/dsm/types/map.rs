//! Which segment of an object has which type tag.
//!
//! A segment is a range of bytes. It begins and ends at multiples of its elements' size, so
//! no page of a scheduler cuts an element. Segments do not overlap, and neighbours with the
//! same tag are one. What has no tag is untyped.
//!
//! A segment with one tag does not get another at once: its contents may be in use, in the
//! forms of several machines, and a new tag would change their meaning. Who means it first
//! makes the range untyped (as the allocator does with memory that nobody uses).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{TypeTag, UnknownTag};
use crate::units::{Bytes, ObjectOffset, SizeError};

/// A part of an object whose elements are of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Segment {
    /// The first byte.
    pub start: ObjectOffset,
    /// The first byte after it.
    pub end: ObjectOffset,
    /// What its elements are.
    pub tag: TypeTag,
}

impl Segment {
    /// Its size.
    #[must_use]
    pub const fn len(self) -> Bytes {
        Bytes(self.end.0.saturating_sub(self.start.0))
    }

    /// Whether it holds no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }
}

/// Why a range did not get a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// There is nothing in it, or it goes beyond the object.
    #[error(
        "the range {start:#x} to {end:#x} is not inside of the object: give a start, then a larger end of at most {size:#x}"
    )]
    Outside {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
        /// The object's size in bytes.
        size: u64,
    },
    /// It would cut an element.
    #[error(
        "{offset:#x} is in the middle of an element of type {tag}: use a multiple of {element} bytes", element = tag.element()
    )]
    Misaligned {
        /// The start or end that cuts.
        offset: u64,
        /// The type of the element.
        tag: TypeTag,
    },
    /// It has another already.
    #[error(
        "the segment at {start:#x} is tagged {tag}: make it untyped first, if its contents are not needed any more"
    )]
    Tagged {
        /// The start of the segment.
        start: u64,
        /// Its tag.
        tag: TypeTag,
    },
}

/// Why a text is no list of segments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The form is wrong.
    #[error(
        "`{0}` is no segment: write TYPE:START-END, such as float64:0-64K, or only TYPE for the whole object"
    )]
    Form(String),
    /// There is no such type.
    #[error(transparent)]
    Tag(#[from] UnknownTag),
    /// The start or end is no size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The segment cannot be.
    #[error(transparent)]
    Refused(#[from] TagError),
}

/// The tags of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Plain", into = "Plain")]
pub struct TagMap {
    size: Bytes,
    /// By start: the end, and the tag, which is never [`TypeTag::Untyped`].
    segments: BTreeMap<u64, (u64, TypeTag)>,
}

/// The map as it is stored.
#[derive(Serialize, Deserialize)]
struct Plain {
    size: Bytes,
    segments: Vec<Segment>,
}

impl From<TagMap> for Plain {
    fn from(map: TagMap) -> Plain {
        Plain {
            size: map.size,
            segments: map.segments().collect(),
        }
    }
}

impl TryFrom<Plain> for TagMap {
    type Error = TagError;

    fn try_from(plain: Plain) -> Result<TagMap, TagError> {
        let mut map = TagMap::new(plain.size);
        for segment in plain.segments {
            map.tag(segment.start..segment.end, segment.tag)?;
        }
        Ok(map)
    }
}

impl TagMap {
    /// All of an object of this size is untyped.
    #[must_use]
    pub const fn new(size: Bytes) -> TagMap {
        TagMap {
            size,
            segments: BTreeMap::new(),
        }
    }

    /// The size of the object.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// Gives a range a tag. Parts of it may have the same tag already;
    /// [`TypeTag::Untyped`] takes any tags away.
    ///
    /// # Errors
    /// When the range is not inside of the object, cuts an element, or has a part with
    /// another tag. Then nothing has changed.
    pub fn tag(&mut self, range: Range<ObjectOffset>, tag: TypeTag) -> Result<(), TagError> {
        let (start, end) = (range.start.0, range.end.0);
        self.check(start, end, tag)?;
        if tag == TypeTag::Untyped {
            self.cut(start, end);
            return Ok(());
        }
        let touching = self.touching(start, end);
        let same: Vec<(u64, u64)> = touching
            .filter(|segment| segment.tag == tag)
            .map(|segment| (segment.start.0, segment.end.0))
            .collect();
        let mut whole = (start, end);
        for (start, end) in same {
            self.segments.remove(&start);
            whole = (whole.0.min(start), whole.1.max(end));
        }
        self.segments.insert(whole.0, (whole.1, tag));
        Ok(())
    }

    /// Whether the range may get the tag.
    fn check(&self, start: u64, end: u64, tag: TypeTag) -> Result<(), TagError> {
        if start >= end || end > self.size.0 {
            let size = self.size.0;
            return Err(TagError::Outside { start, end, size });
        }
        for offset in [start, end] {
            let cut = self.tag_at(ObjectOffset(offset));
            let inside = tag == TypeTag::Untyped && !self.segments.contains_key(&offset);
            let tag = if inside { cut } else { tag };
            if !offset.is_multiple_of(tag.element()) {
                return Err(TagError::Misaligned { offset, tag });
            }
        }
        let other = self
            .overlapping(start, end)
            .find(|segment| tag != TypeTag::Untyped && segment.tag != tag);
        other.map_or(Ok(()), |segment| {
            Err(TagError::Tagged {
                start: segment.start.0,
                tag: segment.tag,
            })
        })
    }

    /// Makes a range untyped; the parts of segments outside of it stay.
    fn cut(&mut self, start: u64, end: u64) {
        let cut: Vec<Segment> = self.overlapping(start, end).collect();
        for segment in cut {
            self.segments.remove(&segment.start.0);
            if segment.start.0 < start {
                self.segments.insert(segment.start.0, (start, segment.tag));
            }
            if segment.end.0 > end {
                self.segments.insert(end, (segment.end.0, segment.tag));
            }
        }
    }

    /// The tag of the byte at an offset.
    #[must_use]
    pub fn tag_at(&self, offset: ObjectOffset) -> TypeTag {
        let before = self.segments.range(..=offset.0).next_back();
        match before {
            Some((_, (end, tag))) if *end > offset.0 => *tag,
            _ => TypeTag::Untyped,
        }
    }

    /// The segments with a tag, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        self.segments.iter().map(as_segment)
    }

    /// The segments that have bytes in a range, whole, in order.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Segment> {
        self.touching(start, end)
            .filter(move |segment| segment.start.0 < end && segment.end.0 > start)
    }

    /// The same, with those that end where the range starts or start where it ends.
    fn touching(&self, start: u64, end: u64) -> impl Iterator<Item = Segment> {
        let before = self.segments.range(..start).next_back();
        let before = before.filter(move |(_, (end, _))| *end >= start);
        let others = self.segments.range(start..=end.max(start));
        before.into_iter().chain(others).map(as_segment)
    }

    /// A range as spans of one type each, in order, cut to the range. Untyped parts are
    /// among them, so together they are the whole range.
    pub fn spans(&self, range: Range<ObjectOffset>) -> impl Iterator<Item = Segment> {
        let (mut at, end) = (range.start.0, range.end.0);
        let mut segments = self.overlapping(at, end).peekable();
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let start = at;
            let (stop, tag) = match segments.peek() {
                Some(next) if next.start.0 > at => (next.start.0, TypeTag::Untyped),
                Some(next) => (next.end.0.min(end), next.tag),
                None => (end, TypeTag::Untyped),
            };
            if tag != TypeTag::Untyped {
                segments.next();
            }
            at = stop;
            Some(Segment {
                start: ObjectOffset(start),
                end: ObjectOffset(stop),
                tag,
            })
        })
    }

    /// Reads segments as a user writes them: `int32:0-1M,float64:1M-2M`, or only a type
    /// for the whole object. Nothing stands for an untyped object.
    ///
    /// # Errors
    /// When the text has another form, names a type or size that does not exist, or
    /// segments that cannot be.
    pub fn parse(text: &str, size: Bytes) -> Result<TagMap, ParseError> {
        let mut map = TagMap::new(size);
        if text.is_empty() {
            return Ok(map);
        }
        for part in text.split(',') {
            let (tag, range) = match part.split_once(':') {
                None => (part, Bytes::ZERO..size),
                Some((tag, range)) => {
                    let bounds = range.split_once('-');
                    let (start, end) = bounds.ok_or_else(|| ParseError::Form(part.to_owned()))?;
                    (tag, start.parse::<Bytes>()?..end.parse::<Bytes>()?)
                }
            };
            let range = ObjectOffset(range.start.0)..ObjectOffset(range.end.0);
            map.tag(range, tag.parse()?)?;
        }
        Ok(map)
    }
}

fn as_segment((start, (end, tag)): (&u64, &(u64, TypeTag))) -> Segment {
    Segment {
        start: ObjectOffset(*start),
        end: ObjectOffset(*end),
        tag: *tag,
    }
}

impl fmt::Display for TagMap {
    /// As [`TagMap::parse`] reads it, in bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.segments().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let Segment { start, end, tag } = segment;
            write!(f, "{comma}{tag}:{}-{}", start.0, end.0)?;
        }
        Ok(())
    }
}

//! The types of data, and their translation between machines (paper 003, section 3.2).
//!
//! Each segment of an object has a type tag, and each kernel says what machine it is.
//! Contents stay in the form of the machine that wrote them last, and are translated once,
//! when they are sent to a machine of another kind. Only hardware types are known, as in
//! the paper: integers and floating point numbers.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | what kinds of machines there are, and the presets by name |
//! | [`map`] | which segment of an object has which tag |
//! | [`float`] | the formats of floating point numbers, converted one by one, with care |
//! | [`translate`] | whole spans of contents, fast |
//! | [`report`] | what a target could not hold |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub mod float;
pub mod machine;
pub mod map;
pub mod report;
pub mod translate;

pub use machine::{ByteOrder, FloatFormat, Machine, UnknownMachine};
pub use map::{Segment, TagError, TagMap};
pub use report::{Kind, Place, Report};
pub use translate::{SpanError, Translation};

/// What the elements of a segment are.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TypeTag {
    /// Bytes that nothing is known of. They are never translated.
    #[default]
    Untyped,
    /// Integers of 1 byte, signed or not.
    Int8,
    /// Integers of 2 bytes.
    Int16,
    /// Integers of 4 bytes.
    Int32,
    /// Integers of 8 bytes.
    Int64,
    /// Floating point numbers of 4 bytes: IEEE single, or VAX F.
    Float32,
    /// Floating point numbers of 8 bytes: IEEE double, or VAX D or G.
    Float64,
}

impl TypeTag {
    /// All tags, in the order of their numbers.
    pub const ALL: [TypeTag; 7] = [
        TypeTag::Untyped,
        TypeTag::Int8,
        TypeTag::Int16,
        TypeTag::Int32,
        TypeTag::Int64,
        TypeTag::Float32,
        TypeTag::Float64,
    ];

    /// The size of an element in bytes, which is its alignment in an object, too.
    #[must_use]
    pub const fn element(self) -> u64 {
        match self {
            TypeTag::Untyped | TypeTag::Int8 => 1,
            TypeTag::Int16 => 2,
            TypeTag::Int32 | TypeTag::Float32 => 4,
            TypeTag::Int64 | TypeTag::Float64 => 8,
        }
    }

    /// What a user calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TypeTag::Untyped => "untyped",
            TypeTag::Int8 => "int8",
            TypeTag::Int16 => "int16",
            TypeTag::Int32 => "int32",
            TypeTag::Int64 => "int64",
            TypeTag::Float32 => "float32",
            TypeTag::Float64 => "float64",
        }
    }
}

impl fmt::Display for TypeTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown type `{0}`: choose one of {known}", known = TypeTag::ALL.map(TypeTag::name).join(", "))]
pub struct UnknownTag(pub String);

impl FromStr for TypeTag {
    type Err = UnknownTag;

    /// Reads a tag by its name, such as `int32`.
    fn from_str(text: &str) -> Result<TypeTag, UnknownTag> {
        let known = TypeTag::ALL.into_iter().find(|tag| tag.name() == text);
        known.ok_or_else(|| UnknownTag(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_they_are_printed() {
        for tag in TypeTag::ALL {
            assert_eq!(tag.to_string().parse(), Ok(tag));
            let json = serde_json::to_string(&tag).unwrap();
            assert_eq!(json, format!("\"{tag}\""));
            assert_eq!(serde_json::from_str::<TypeTag>(&json).unwrap(), tag);
        }
    }

    #[test]
    fn unknown_tags_are_refused_with_the_known_ones() {
        let refused = "float80".parse::<TypeTag>().unwrap_err().to_string();
        assert_eq!(
            refused,
            "unknown type `float80`: choose one of untyped, int8, int16, int32, int64, \
             float32, float64"
        );
        assert!(serde_json::from_str::<TypeTag>("\"float80\"").is_err());
    }
}

//! Machines, types and segments as numbers, and back.
//!
//! On the wire they are plain numbers: a peer that says one which is not known here is
//! refused with an answer, where a value that cannot be decoded would end the link. The
//! numbers are places in [`Machine::ALL`] and [`TypeTag::ALL`].

use quire_core::dsm::types::{self, Machine, TypeTag};
use quire_core::units::{Bytes, ObjectOffset};

use super::control::{MachineCode, Segment, TypeCode};

impl From<Machine> for MachineCode {
    fn from(machine: Machine) -> MachineCode {
        MachineCode(machine as u16)
    }
}

impl MachineCode {
    /// The machine, if it is known here.
    #[must_use]
    pub fn machine(self) -> Option<Machine> {
        Machine::ALL.get(usize::from(self.0)).copied()
    }
}

impl From<TypeTag> for TypeCode {
    fn from(tag: TypeTag) -> TypeCode {
        TypeCode(tag as u16)
    }
}

impl TypeCode {
    /// The type, if it is known here.
    #[must_use]
    pub fn tag(self) -> Option<TypeTag> {
        TypeTag::ALL.get(usize::from(self.0)).copied()
    }
}

impl From<types::Segment> for Segment {
    fn from(segment: types::Segment) -> Segment {
        Segment {
            start: Bytes(segment.start.0),
            length: segment.len(),
            tag: segment.tag.into(),
        }
    }
}

/// Why a segment cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// Its type is not known here.
    #[error("unknown type {0}")]
    Type(u16),
    /// It ends beyond all addresses.
    #[error("a segment ends beyond all addresses")]
    End,
}

impl TryFrom<Segment> for types::Segment {
    type Error = SegmentError;

    fn try_from(segment: Segment) -> Result<types::Segment, SegmentError> {
        let tag = segment.tag.tag();
        let end = segment.start.0.checked_add(segment.length.0);
        Ok(types::Segment {
            start: ObjectOffset(segment.start.0),
            end: ObjectOffset(end.ok_or(SegmentError::End)?),
            tag: tag.ok_or(SegmentError::Type(segment.tag.0))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_machines_and_types() {
        for machine in Machine::ALL {
            assert_eq!(MachineCode::from(machine).machine(), Some(machine));
        }
        for tag in TypeTag::ALL {
            assert_eq!(TypeCode::from(tag).tag(), Some(tag));
        }
        assert_eq!(MachineCode(4).machine(), None);
        assert_eq!(TypeCode(7).tag(), None);
    }

    #[test]
    fn segments_go_there_and_back() {
        let segment = types::Segment {
            start: ObjectOffset(4096),
            end: ObjectOffset(8192),
            tag: TypeTag::Float64,
        };
        let sent = Segment::from(segment);
        assert_eq!((sent.start.0, sent.length.0), (4096, 4096));
        assert_eq!(types::Segment::try_from(sent), Ok(segment));
        let (start, tag) = (Bytes(u64::MAX), TypeCode(3));
        let beyond = Segment { start, ..sent };
        assert_eq!(types::Segment::try_from(beyond), Err(SegmentError::End));
        let unknown = Segment {
            tag: TypeCode(9),
            ..sent
        };
        assert_eq!(
            types::Segment::try_from(unknown),
            Err(SegmentError::Type(9))
        );
        assert_eq!(tag.tag(), Some(TypeTag::Int32));
    }
}

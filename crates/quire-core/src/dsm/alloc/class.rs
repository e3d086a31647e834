//! The size classes: blocks of one type, in sizes that are powers of two.

use std::fmt;

use super::AllocError;
use crate::dsm::types::TypeTag;
use crate::units::Bytes;

/// The smallest block has 2 to this power bytes.
const LEAST_ORDER: u32 = 4;
/// The largest block has 2 to this power bytes: half of the largest object.
const MOST_ORDER: u32 = 46;
/// Sizes of each type.
const ORDERS: usize = (MOST_ORDER - LEAST_ORDER + 1) as usize;

/// A size class: all its blocks are of one type and size. Each has a free list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    tag: TypeTag,
    order: u32,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = TypeTag::ALL.len() * ORDERS;

    /// The class whose blocks hold so many elements of a type; for none, the smallest.
    ///
    /// # Errors
    /// When no block is so large.
    pub fn of(tag: TypeTag, count: u64) -> Result<Class, AllocError> {
        let bytes = count.checked_mul(tag.element());
        let size = bytes.and_then(u64::checked_next_power_of_two);
        match size.map(|size| size.trailing_zeros().max(LEAST_ORDER)) {
            Some(order @ ..=MOST_ORDER) => Ok(Class { tag, order }),
            _ => Err(AllocError::TooLarge { tag, count }),
        }
    }

    /// What its blocks hold.
    #[must_use]
    pub const fn tag(self) -> TypeTag {
        self.tag
    }

    /// The size of its blocks.
    #[must_use]
    pub const fn size(self) -> Bytes {
        Bytes(1 << self.order)
    }

    /// Its number, below [`Class::COUNT`].
    #[must_use]
    pub const fn number(self) -> usize {
        self.tag as usize * ORDERS + (self.order - LEAST_ORDER) as usize
    }

    /// The class with a number.
    #[must_use]
    pub fn from_number(number: usize) -> Option<Class> {
        let tag = *TypeTag::ALL.get(number / ORDERS)?;
        let order = LEAST_ORDER + (number % ORDERS) as u32;
        Some(Class { tag, order })
    }

    /// All of them, by number.
    pub fn all() -> impl Iterator<Item = Class> {
        (0..Class::COUNT).filter_map(Class::from_number)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in blocks of {}", self.tag, self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_name_classes() {
        for number in 0..Class::COUNT {
            assert_eq!(Class::from_number(number).unwrap().number(), number);
        }
        assert_eq!(Class::from_number(Class::COUNT), None);
        assert_eq!(Class::all().count(), Class::COUNT);
    }

    #[test]
    fn a_class_holds_what_was_asked_for() {
        let size = |tag, count| Class::of(tag, count).map(|class| class.size().0);
        assert_eq!(size(TypeTag::Int8, 0), Ok(16));
        assert_eq!(size(TypeTag::Int8, 17), Ok(32));
        assert_eq!(size(TypeTag::Float64, 4), Ok(32));
        assert_eq!(size(TypeTag::Float64, 5), Ok(64));
        assert_eq!(size(TypeTag::Int8, 1 << 46), Ok(1 << 46));
        assert!(size(TypeTag::Int8, (1 << 46) + 1).is_err());
        assert!(size(TypeTag::Int64, u64::MAX).is_err());
        assert!(size(TypeTag::Int8, u64::MAX).is_err());
    }
}

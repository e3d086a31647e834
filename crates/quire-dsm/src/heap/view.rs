//! The elements of a block, one by one.
//!
//! Others may read and write them at any time, so each is loaded and stored in one step, and
//! there is never a slice of them. A program that says that it runs on another machine than
//! it does sees memory in that machine's form. Here it gets and sets its own values all the
//! same; what [`quire_core::dsm::types::report`] says holds for those that the other form
//! lacks.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use quire_core::dsm::types::{Machine, Report, Translation, TypeTag};
use quire_core::units::ObjectOffset;

use crate::client::{Cell, Shared};

/// What a block may hold: integers and floating point numbers of the processor.
pub trait Element: Copy + sealed::Sealed {
    /// The type of its segments.
    const TAG: TypeTag;
    /// As what it is loaded and stored.
    type Cell: Cell;

    /// Its bits, as they lie in memory; above them zeros.
    fn load(cell: &Self::Cell) -> u64;
    /// Puts bits into memory.
    fn store(cell: &Self::Cell, bits: u64);
    /// The bits of a value.
    fn to_bits(self) -> u64;
    /// The value with these bits.
    fn from_bits(bits: u64) -> Self;
}

mod sealed {
    /// Only what is listed here can be an element.
    pub trait Sealed {}
}

/// Types with the cell, the unsigned integer and the tag of each.
macro_rules! elements {
    ($($value:ty, $cell:ty, $unsigned:ty, $tag:ident;)*) => {$(
        impl sealed::Sealed for $value {}

        impl Element for $value {
            const TAG: TypeTag = TypeTag::$tag;
            type Cell = $cell;

            fn load(cell: &$cell) -> u64 {
                cell.load(Acquire) as u64
            }

            fn store(cell: &$cell, bits: u64) {
                cell.store(bits as $unsigned, Release);
            }

            fn to_bits(self) -> u64 {
                <$unsigned>::from_ne_bytes(self.to_ne_bytes()) as u64
            }

            fn from_bits(bits: u64) -> $value {
                <$value>::from_ne_bytes((bits as $unsigned).to_ne_bytes())
            }
        }
    )*};
}

elements! {
    i8, AtomicU8, u8, Int8;
    u8, AtomicU8, u8, Int8;
    i16, AtomicU16, u16, Int16;
    u16, AtomicU16, u16, Int16;
    i32, AtomicU32, u32, Int32;
    u32, AtomicU32, u32, Int32;
    i64, AtomicU64, u64, Int64;
    u64, AtomicU64, u64, Int64;
    f32, AtomicU32, u32, Float32;
    f64, AtomicU64, u64, Float64;
}

/// The elements of a block.
pub struct View<'a, T: Element> {
    cells: &'a [T::Cell],
    at: ObjectOffset,
    /// The machine in whose form they are, if it is not this one's.
    form: Option<Machine>,
}

impl<'a, T: Element> View<'a, T> {
    /// So many elements from an offset on, all of them inside of the object.
    pub(super) fn new(shared: &'a Shared, at: ObjectOffset, count: usize) -> View<'a, T> {
        let first = (at.0 / T::TAG.element()) as usize;
        let to_native = Translation::new(shared.machine(), Machine::native());
        View {
            cells: &shared.cells()[first..first + count],
            at,
            form: to_native.touches(T::TAG).then_some(shared.machine()),
        }
    }

    /// Where it is in the object: what others need to find it.
    #[must_use]
    pub const fn offset(&self) -> ObjectOffset {
        self.at
    }

    /// How many elements there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// An element.
    ///
    /// # Panics
    /// When there is none with this number.
    #[must_use]
    pub fn get(&self, index: usize) -> T {
        let bits = T::load(&self.cells[index]);
        T::from_bits(match self.form {
            Some(form) => translated(Translation::new(form, Machine::native()), T::TAG, bits),
            None => bits,
        })
    }

    /// Makes an element a value.
    ///
    /// # Panics
    /// When there is none with this number.
    pub fn set(&self, index: usize, value: T) {
        let bits = value.to_bits();
        let bits = match self.form {
            Some(form) => translated(Translation::new(Machine::native(), form), T::TAG, bits),
            None => bits,
        };
        T::store(&self.cells[index], bits);
    }

    /// All elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len()).map(|index| self.get(index))
    }
}

/// The bits of one element in the form of another machine.
fn translated(translation: Translation, tag: TypeTag, bits: u64) -> u64 {
    let size = tag.element() as usize;
    let mut bytes = bits.to_ne_bytes();
    let used = match cfg!(target_endian = "big") {
        true => bytes.len() - size..bytes.len(),
        false => 0..size,
    };
    let whole = translation.in_place(tag, ObjectOffset(0), &mut bytes[used], &mut Report::new());
    debug_assert!(whole.is_ok(), "one whole element");
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back<T: Element>(value: T, form: Machine) -> T {
        let there = Translation::new(Machine::native(), form);
        let back = Translation::new(form, Machine::native());
        T::from_bits(translated(
            back,
            T::TAG,
            translated(there, T::TAG, value.to_bits()),
        ))
    }

    proptest! {
        #[test]
        fn values_survive_other_forms(small: i16, large: i64, number in -1e30f64..1e30) {
            for form in Machine::ALL {
                prop_assert_eq!(there_and_back(small, form), small);
                prop_assert_eq!(there_and_back(large, form), large);
                // A zero without a sign, and single numbers, are in all forms.
                let single = if number.abs() < 1e-30 { 0.0 } else { number as f32 };
                prop_assert_eq!(there_and_back(single, form), single);
                prop_assert_eq!(there_and_back(f64::from(single), form), f64::from(single));
            }
        }
    }

    #[test]
    fn forms_are_those_of_the_machines() {
        let bits = |form, tag, bits| translated(Translation::new(Machine::Little, form), tag, bits);
        if Machine::native() == Machine::Little {
            assert_eq!(bits(Machine::Big, TypeTag::Int16, 0x1234), 0x3412);
            assert_eq!(bits(Machine::VaxD, TypeTag::Int32, 77), 77);
            assert_eq!(
                bits(Machine::VaxD, TypeTag::Float64, 1.0f64.to_bits()),
                0x4080
            );
            assert_eq!(
                bits(Machine::VaxG, TypeTag::Float64, 1.0f64.to_bits()),
                0x4010
            );
            assert_eq!(
                bits(Machine::VaxG, TypeTag::Float32, 1.0f32.to_bits().into()),
                0x4080
            );
        }
    }
}

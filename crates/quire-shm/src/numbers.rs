//! The numbers of segments, which programs pass to each other: each follows from the place of its
//! attachment in the environment, so it means the same in all programs that `quire run` started in the
//! same way.
//!
//! A segment that was removed and is still attached leaves its key to another one, which has another
//! number: beside the place, that has bits of the exact spelling by which a server knows the object.

use std::ffi::c_int;

use quire_dsm::wire::control::Name;

/// The first of our numbers. The kernel comes to these when it has used one of its places
/// for segments more than 65000 times.
const FIRST: c_int = 0x7fff_0000;
/// So many bits are ours.
const BITS: u32 = 16;
/// So many of them say the place, or more where there are more places.
const LEAST: u32 = 8;

/// What a number means: one of the objects that have had the name of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub place: usize,
    /// 0 where the object has its name as its key.
    tag: u32,
}

impl Number {
    /// The number of an object, one of so many attachments.
    pub fn of(place: usize, exact: &Name, count: usize) -> Number {
        let is_plain = exact.key().is_none_or(|key| key.is_plain());
        let most = (1 << (BITS - for_places(count))) - 1;
        let tag = match is_plain {
            true => 0,
            false => 1 + (hashed(exact) % most) as u32,
        };
        Number { place, tag }
    }

    /// Whether it is that of an object, one of so many attachments.
    pub fn is_of(self, exact: &Name, count: usize) -> bool {
        Number::of(self.place, exact, count) == self
    }

    /// What a program gives, if it is one of ours.
    pub fn read(id: c_int, count: usize) -> Option<Number> {
        let bits = u32::try_from(id.checked_sub(FIRST)?).ok()?;
        let place = (bits % (1 << for_places(count))) as usize;
        let tag = bits >> for_places(count);
        (place < count).then_some(Number { place, tag })
    }

    /// What a program gets.
    pub fn id(self, count: usize) -> c_int {
        let bits = self.tag << for_places(count) | self.place as u32;
        FIRST + bits.cast_signed()
    }

    /// Whether it is of the object that has its name as its key.
    pub const fn is_plain(self) -> bool {
        self.tag == 0
    }
}

/// Whether a number is one that programs get for objects, whatever attachments they have.
pub const fn is_ours(id: c_int) -> bool {
    id >= FIRST
}

/// How many bits say the place of one of so many attachments. A variable of the environment has no room
/// for more of them than 15 bits say.
fn for_places(count: usize) -> u32 {
    let last = count.saturating_sub(1);
    (usize::BITS - last.leading_zeros()).clamp(LEAST, BITS - 1)
}

/// The same in all programs, whoever has built the library (FNV-1a).
pub fn hashed(exact: &Name) -> u64 {
    let bytes = exact.as_str().bytes();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn numbers_mean_what_they_were_made_of() {
        for count in [1, 2, 256, 257, 1000, 10_000] {
            for place in [0, count / 2, count - 1] {
                let ids = ["grid~", "grid~8f3a", "grid~8f3b"].map(|exact| {
                    let number = Number::of(place, &name(exact), count);
                    let id = number.id(count);
                    assert_eq!(Number::read(id, count), Some(number), "{exact} {count}");
                    id
                });
                assert_eq!(ids[0], FIRST + place as c_int);
                assert!(ids[0] != ids[1] && ids[0] != ids[2], "{count}");
            }
        }
        let number = |exact| Number::of(3, &name(exact), 5);
        assert!(number("grid~").is_plain() && !number("grid~1").is_plain());
    }

    #[test]
    fn other_numbers_are_the_kernels() {
        for id in [-1, 0, 65536, FIRST - 1, FIRST + 2, FIRST + 0x102] {
            assert_eq!(Number::read(id, 2), None, "{id}");
        }
        assert!(Number::read(FIRST + 0x101, 2).is_some());
    }

    #[test]
    fn keys_of_one_name_have_many_numbers() {
        let id = |n: u32| Number::of(0, &name(&format!("grid~{n:x}")), 1).id(1);
        let all: BTreeSet<c_int> = (0..1000).map(id).collect();
        assert!(all.len() > 200, "{}", all.len());
    }
}

//! One small thing in a file that has two places for it, written in turns: the latest is always
//! whole, and to replace it takes one sync of bytes that the file has already.
//!
//! A new file and a rename would be durable in the same way, and need the file system's journal
//! twice. On a disk that others write much to, each time takes as long as what they have written
//! by then; and what waits for this is who leads a directory, on which leases depend.
//!
//! Behind a first block, which says how large the places are, each place has a length, and what
//! [`seal`] makes of a number and the thing: the larger number is the later. One that is torn has a
//! wrong checksum, and the other one counts. Where something needs a larger place, a new
//! file is made.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::disk::{Disk, read_all, replace};
use super::object::{seal, unseal};
use super::{Damage, StoreError};

/// What such a file begins with.
const MAGIC: &[u8; 8] = b"quire2sl";
/// A place begins and ends with a block of the disk.
const BLOCK: usize = 4096;
/// The least that a place has, in bytes.
const LEAST: usize = 128 << 10;

/// A file with two places.
pub(super) struct Slots {
    disk: Arc<dyn Disk>,
    /// What to call the directory.
    directory: String,
    file: &'static str,
    /// How large each place is, in bytes, where there is a file with places.
    size: Option<usize>,
    /// The number of the latest. Its place is the one of its parity.
    latest: u64,
}

impl Slots {
    /// A file of this name, which may be missing, and what is in it. Whoever goes on with that is to
    /// write it once more: who wrote it may have ended before it was durable, or because it could
    /// not be made so.
    ///
    /// # Errors
    /// That it is damaged, or what the disk said.
    pub fn open<T: DeserializeOwned>(
        disk: Arc<dyn Disk>,
        directory: &str,
        file: &'static str,
    ) -> Result<(Slots, Option<T>), StoreError> {
        let mut slots = Slots {
            disk,
            directory: directory.to_owned(),
            file,
            size: None,
            latest: 0,
        };
        let found = slots.read()?;
        Ok((slots, found))
    }

    /// What is there.
    fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        let bytes = read_all(&*self.disk, self.file);
        let bytes = bytes.map_err(|error| self.failed("read", &error))?;
        let Some(bytes) = bytes else {
            return Ok(None);
        };
        let value = match Places::of(&bytes) {
            // As an earlier version wrote it, whole.
            None => unseal(&bytes),
            Some(places) => {
                let found = places.each().filter_map(read_place::<T>);
                let latest = found.max_by_key(|(number, _)| *number);
                latest.map(|(number, value)| {
                    (self.size, self.latest) = (Some(places.size), number);
                    value
                })
            }
        };
        value.map(Some).ok_or_else(|| self.damaged(&bytes))
    }

    /// Puts something in the place of what is there. This waits for the disk.
    ///
    /// # Errors
    /// What the disk said. Then the old or the new one is there, and which is not known: nothing
    /// more is to be written.
    pub fn replace<T: Serialize>(&mut self, value: &T) -> Result<(), StoreError> {
        let number = self.latest + 1;
        let sealed = seal(&(number, value))?;
        let length = (sealed.len() as u64).to_le_bytes();
        let place = [&length[..], &sealed].concat();
        let done = match self.size {
            Some(size) if place.len() <= size => {
                let at = BLOCK + size * (number % 2) as usize;
                let written = self.disk.write_at(self.file, at as u64, &place);
                written.and_then(|()| self.disk.sync(self.file))
            }
            _ => {
                let size = (2 * place.len()).next_multiple_of(BLOCK).max(LEAST);
                let whole = new_file(size, number, &place);
                let done = replace(&*self.disk, "", self.file, &whole);
                self.size = Some(size);
                done
            }
        };
        done.map_err(|error| self.failed("write", &error))?;
        self.latest = number;
        Ok(())
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> StoreError {
        StoreError::io(
            &format!("cannot {what} {}/{}", self.directory, self.file),
            error,
        )
    }

    fn damaged(&self, bytes: &[u8]) -> StoreError {
        StoreError::Damaged {
            directory: self.directory.clone(),
            damage: Damage::new(self.file, 0..bytes.len() as u64, "wrong checksum"),
        }
    }
}

/// A file with something in one of its places.
fn new_file(size: usize, number: u64, place: &[u8]) -> Vec<u8> {
    let mut whole = vec![0; BLOCK + 2 * size];
    whole[..8].copy_from_slice(MAGIC);
    whole[8..16].copy_from_slice(&(size as u64).to_le_bytes());
    let at = BLOCK + size * (number % 2) as usize;
    whole[at..at + place.len()].copy_from_slice(place);
    whole
}

/// The places of a file.
struct Places<'a> {
    size: usize,
    bytes: &'a [u8],
}

impl<'a> Places<'a> {
    /// Those of a file that has some.
    fn of(bytes: &'a [u8]) -> Option<Places<'a>> {
        let (size, _) = bytes.strip_prefix(MAGIC)?.split_first_chunk()?;
        let size = usize::try_from(u64::from_le_bytes(*size)).ok()?;
        let all = size.checked_mul(2)?.checked_add(BLOCK)?;
        (bytes.len() == all).then_some(Places { size, bytes })
    }

    fn each(&self) -> impl Iterator<Item = &'a [u8]> {
        let (size, bytes) = (self.size, self.bytes);
        (0..2).map(move |number| &bytes[BLOCK + size * number..][..size])
    }
}

/// The number and the thing in a place; `None` where it is empty or torn.
fn read_place<T: DeserializeOwned>(place: &[u8]) -> Option<(u64, T)> {
    let (length, rest) = place.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    unseal(rest.get(..length)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simulated::Simulated;
    use super::*;

    const FILE: &str = "thing";

    type Thing = Vec<u8>;

    fn open(disk: Arc<Simulated>) -> Result<(Slots, Option<Thing>), StoreError> {
        Slots::open(disk, "here", FILE)
    }

    fn thing(number: usize, length: usize) -> Thing {
        vec![number as u8; length]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However often it crashes, and in the midst of what: what was replaced is there, or what
        /// was about to take its place.
        #[test]
        fn the_latest_or_the_one_before_is_there_after_a_crash(
            lengths in proptest::collection::vec(
                prop_oneof![4 => 0..9_000_usize, 1 => LEAST / 2..2 * LEAST], 1..12),
            crashes in proptest::collection::vec((0..30_u64, any::<u64>()), 1..5),
        ) {
            let mut disk = Arc::new(Simulated::new());
            let mut known: Option<Thing> = None;
            let mut next = lengths.iter().enumerate().cycle();
            for (after, seed) in crashes {
                let (mut slots, found) = open(disk.clone()).unwrap();
                prop_assert_eq!(&found, &known);
                disk.fail_after(after);
                let tried = loop {
                    let (number, length) = next.next().unwrap();
                    let thing = thing(number, *length);
                    match slots.replace(&thing) {
                        Ok(()) => known = Some(thing),
                        Err(_) => break thing,
                    }
                };
                disk = Arc::new(disk.crash(seed));
                let (_, found) = open(disk.clone()).unwrap();
                prop_assert!(found == known || found.as_ref() == Some(&tried));
                known = found;
            }
        }
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read_and_replaced() {
        let disk = Arc::new(Simulated::new());
        replace(&*disk, "", FILE, &seal(&thing(1, 10)).unwrap()).unwrap();
        let (mut slots, found) = open(disk.clone()).unwrap();
        assert_eq!(found, Some(thing(1, 10)));
        for number in 2..5 {
            slots.replace(&thing(number, 10)).unwrap();
            let (_, found) = open(disk.clone()).unwrap();
            assert_eq!(found, Some(thing(number, 10)));
        }
    }

    #[test]
    fn once_there_are_places_no_file_is_made() {
        let disk = Arc::new(Simulated::new());
        let (mut slots, _) = open(disk.clone()).unwrap();
        slots.replace(&thing(1, 100)).unwrap();
        // A write and a sync, and nothing else.
        disk.fail_after(3);
        slots.replace(&thing(2, LEAST / 2)).unwrap();
        assert!(slots.replace(&thing(3, 1)).is_err());
    }

    #[test]
    fn damage_of_both_places_is_an_error() {
        let disk = Arc::new(Simulated::new());
        let (mut slots, _) = open(disk.clone()).unwrap();
        slots.replace(&thing(1, 100)).unwrap();
        slots.replace(&thing(2, 100)).unwrap();
        let spoil = |at: usize| disk.damage(FILE, |bytes| bytes[at] ^= 1);
        spoil(BLOCK + 20);
        let (_, found) = open(disk.clone()).unwrap();
        assert_eq!(found, Some(thing(1, 100)), "the other one counts");
        spoil(BLOCK + LEAST + 20);
        assert!(matches!(
            open(disk.clone()),
            Err(StoreError::Damaged { .. })
        ));
        disk.damage(FILE, |bytes| bytes.truncate(100));
        assert!(matches!(open(disk), Err(StoreError::Damaged { .. })));
    }
}

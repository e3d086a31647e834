//! The pages of objects in their places: an object's contents lie in *parts*, files of 4096
//! pages each, so that no file grows beyond what file systems take, and only parts that
//! hold something exist.
//!
//! A part begins with a table that says of each page whether it is all zeros (it takes no
//! space then), held (with its checksum) or lost. Every entry is checked by itself, bound to
//! its object and page, and none is all zeros: neither a hole nor another page's entry can
//! pass for one. The list of an object's parts says which files must be there.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::disk::{Disk, join, read_all};
use super::log::Logged;
use super::object::ObjectId;
use super::{Damage, Page};
use crate::link::Seldom;

/// The directory of the objects.
pub(super) const OBJECTS: &str = "objects";
/// How many pages a part has.
pub(super) const PAGES: u64 = 4096;
/// The name of the list of parts.
pub(super) const LIST: &str = "parts";
const TABLE: usize = PAGES as usize * 8;
/// Where the first page lies.
const DATA: u64 = 64 << 10;
const RECORD: usize = 8;

/// The directory of an object.
pub(super) fn directory(object: ObjectId) -> String {
    format!("{OBJECTS}/{object}")
}

/// The name of a part's file in its object's directory.
fn name(part: u32) -> String {
    format!("{part:08x}.pages")
}

fn file(object: ObjectId, part: u32) -> String {
    join(&directory(object), &name(part))
}

/// Where a page is: its part, and its number in it.
fn place(page: u64) -> (u32, usize) {
    ((page / PAGES) as u32, (page % PAGES) as usize)
}

/// What a table says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Zero,
    Held(u32),
    Lost,
    /// The entry itself is damaged.
    Damaged,
}

impl Entry {
    fn encode(self, object: ObjectId, page: u64) -> u64 {
        let (state, sum) = match self {
            Entry::Zero => (1, 0),
            Entry::Held(sum) => (2, sum),
            Entry::Lost | Entry::Damaged => (3, 0),
        };
        let mut bound = [0; 32];
        let numbers = [object.0, page, state, u64::from(sum)];
        for (place, number) in bound.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        u64::from(sum) << 32 | u64::from(crc32fast::hash(&bound) & !3) | state
    }

    fn decode(entry: u64, object: ObjectId, page: u64) -> Entry {
        let found = match entry & 3 {
            1 => Entry::Zero,
            2 => Entry::Held((entry >> 32) as u32),
            3 => Entry::Lost,
            _ => return Entry::Damaged,
        };
        if found.encode(object, page) == entry {
            found
        } else {
            Entry::Damaged
        }
    }
}

/// A part whose table was read.
struct Part {
    entries: Vec<Entry>,
    /// Whether its file is there.
    exists: bool,
}

/// The parts of an object.
struct Parts {
    page_size: u64,
    /// Those that the list names; without a table where that was not read yet.
    listed: HashMap<u32, Option<Part>>,
    /// How many records the list has, damaged ones included.
    records: u64,
    /// The part in the last record, as long as that is not known to be durable.
    unsure: Option<u32>,
}

/// The list of an object's parts, as it is found.
#[derive(Default)]
struct List {
    parts: HashSet<u32>,
    records: u64,
    /// The part in the last record.
    last: Option<u32>,
    damage: Vec<Damage>,
}

/// The parts of all objects.
pub(super) struct Places {
    disk: Arc<dyn Disk>,
    objects: HashMap<ObjectId, Parts>,
}

/// What can be said of a page without more than a look at what is known.
pub(super) enum Known {
    /// Its part's table was not read yet: [`Places::load`] does.
    No,
    /// This.
    Yes(Page),
}

impl Places {
    pub(super) fn new(disk: Arc<dyn Disk>) -> Places {
        Places {
            disk,
            objects: HashMap::new(),
        }
    }

    /// Takes an object in, by its list of parts; what is damaged in that.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn admit(&mut self, object: ObjectId, page_size: u64) -> io::Result<Vec<Damage>> {
        let list = list(&*self.disk, object)?;
        let parts = Parts {
            page_size,
            listed: list.parts.into_iter().map(|part| (part, None)).collect(),
            records: list.records,
            unsure: list.last,
        };
        self.objects.insert(object, parts);
        Ok(list.damage)
    }

    /// Takes a new object in, which has no parts.
    pub(super) fn admit_new(&mut self, object: ObjectId, page_size: u64) {
        let parts = Parts {
            page_size,
            listed: HashMap::new(),
            records: 0,
            unsure: None,
        };
        self.objects.insert(object, parts);
    }

    /// An object is gone.
    pub(super) fn dismiss(&mut self, object: ObjectId) {
        self.objects.remove(&object);
    }

    /// What a page holds, as far as that is known without reading a table.
    pub(super) fn read(&self, object: ObjectId, page: u64) -> Known {
        let (part, index) = place(page);
        let Some(parts) = self.objects.get(&object) else {
            return Known::Yes(Page::Lost);
        };
        let entry = match parts.listed.get(&part) {
            None => Entry::Zero,
            Some(None) => return Known::No,
            Some(Some(part)) => part.entries[index],
        };
        Known::Yes(match entry {
            Entry::Zero => Page::Zero,
            Entry::Lost | Entry::Damaged => Page::Lost,
            Entry::Held(sum) => contents(&*self.disk, parts.page_size, object, page, sum),
        })
    }

    /// Whether a page is known to be all zeros.
    pub(super) fn is_zero(&self, object: ObjectId, page: u64) -> bool {
        let (part, index) = place(page);
        let Some(parts) = self.objects.get(&object) else {
            return false;
        };
        match parts.listed.get(&part) {
            None => true,
            Some(None) => false,
            Some(Some(part)) => part.entries[index] == Entry::Zero,
        }
    }

    /// Reads the table of a page's part, where it has one.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn load(&mut self, object: ObjectId, page: u64) -> io::Result<()> {
        let (part, _) = place(page);
        let Some(slot) = self
            .objects
            .get_mut(&object)
            .and_then(|parts| parts.listed.get_mut(&part))
        else {
            return Ok(());
        };
        if slot.is_none() {
            *slot = Some(table(&*self.disk, object, part)?);
        }
        Ok(())
    }

    /// Whether a page has space of its own; its part's table must have been read.
    fn has_space(&self, object: ObjectId, page: u64) -> bool {
        let (part, index) = place(page);
        let part = self
            .objects
            .get(&object)
            .and_then(|parts| parts.listed.get(&part)?.as_ref());
        part.is_some_and(|part| matches!(part.entries[index], Entry::Held(_)))
    }

    /// Sees to it that a page can be put into its place later, whatever else fills the
    /// disk. Says whether space was taken for that.
    ///
    /// # Errors
    /// What the disk said; in particular that it is full.
    pub(super) fn reserve(&mut self, object: ObjectId, page: u64) -> io::Result<bool> {
        self.load(object, page)?;
        self.confirm(object)?;
        if self.has_space(object, page) {
            return Ok(false);
        }
        let (part, index) = place(page);
        self.make(object, part)?;
        let size = self.page_size(object);
        let offset = DATA + index as u64 * size;
        self.disk.reserve(&file(object, part), offset, size)?;
        Ok(true)
    }

    /// Sees to it that the last record of an object's list is durable. Who wrote it may have
    /// ended before it was, or after a sync of it failed; a second sync alone would say yes
    /// then without having done it.
    fn confirm(&mut self, object: ObjectId) -> io::Result<()> {
        let Some(parts) = self.objects.get_mut(&object) else {
            return Ok(());
        };
        if let (Some(part), Some(last)) = (parts.unsure, parts.records.checked_sub(1)) {
            let list = join(&directory(object), LIST);
            let record = record(object, last, part);
            self.disk.write_at(&list, last * RECORD as u64, &record)?;
            self.disk.sync(&list)?;
            parts.unsure = None;
        }
        Ok(())
    }

    /// Gives back what [`Places::reserve`] took.
    pub(super) fn release(&self, object: ObjectId, page: u64) {
        let (part, index) = place(page);
        let size = self.page_size(object);
        let offset = DATA + index as u64 * size;
        // Where this fails, the space stays with the page, which may need it later.
        let _ = self.disk.punch(&file(object, part), offset, size);
    }

    /// Puts a page into its place. It is durable after [`Places::sync`]. Zeros give the
    /// page's space back, unless it is to be kept.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn put(
        &mut self,
        object: ObjectId,
        page: u64,
        logged: &Logged,
        keep: bool,
    ) -> io::Result<()> {
        self.load(object, page)?;
        let (part, index) = place(page);
        let known = self
            .objects
            .get(&object)
            .is_some_and(|parts| parts.listed.contains_key(&part));
        if *logged == Logged::Zero && !known {
            return Ok(());
        }
        self.make(object, part)?;
        let size = self.page_size(object);
        let (file, offset) = (file(object, part), DATA + index as u64 * size);
        let entry = match logged {
            Logged::Zero => Entry::Zero,
            Logged::Lost => Entry::Lost,
            Logged::Held(contents) => {
                self.disk.write_at(&file, offset, contents)?;
                Entry::Held(crc32fast::hash(contents))
            }
        };
        let bytes = entry.encode(object, page).to_le_bytes();
        self.disk.write_at(&file, index as u64 * 8, &bytes)?;
        if entry == Entry::Zero && !keep {
            // The entry alone says what the page holds; this only saves space.
            let _ = self.disk.punch(&file, offset, size);
        }
        if let Some(Some(part)) = self
            .objects
            .get_mut(&object)
            .and_then(|parts| parts.listed.get_mut(&part))
        {
            part.entries[index] = entry;
        }
        Ok(())
    }

    /// Makes the part of a page durable.
    ///
    /// # Errors
    /// What the disk said.
    pub(super) fn sync(disk: &dyn Disk, object: ObjectId, part: u32) -> io::Result<()> {
        disk.sync(&file(object, part))
    }

    /// The part that a page is in, where there is one.
    pub(super) fn part_of(&self, object: ObjectId, page: u64) -> Option<u32> {
        let (part, _) = place(page);
        let parts = self.objects.get(&object)?;
        parts.listed.contains_key(&part).then_some(part)
    }

    fn page_size(&self, object: ObjectId) -> u64 {
        self.objects.get(&object).map_or(0, |parts| parts.page_size)
    }

    /// Makes a part, where it is missing. Its file is whole and durable before the list
    /// names it. One that the list names and that has gone is made without a table: what
    /// it held stays lost.
    fn make(&mut self, object: ObjectId, part: u32) -> io::Result<()> {
        let disk = self.disk.clone();
        let Some(parts) = self.objects.get_mut(&object) else {
            return Ok(());
        };
        let (listed, exists) = match parts.listed.get(&part) {
            None => (false, false),
            Some(None) => (true, true),
            Some(Some(part)) => (true, part.exists),
        };
        if exists {
            return Ok(());
        }
        let (file, directory) = (file(object, part), directory(object));
        let entry = if listed { Entry::Damaged } else { Entry::Zero };
        disk.create(&file)?;
        disk.reserve(&file, 0, DATA)?;
        if !listed {
            let first = u64::from(part) * PAGES;
            let table: Vec<u8> = (first..first + PAGES)
                .flat_map(|page| entry.encode(object, page).to_le_bytes())
                .collect();
            disk.write_at(&file, 0, &table)?;
        }
        disk.sync(&file)?;
        disk.sync_directory(&directory)?;
        if !listed {
            let list = join(&directory, LIST);
            let record = record(object, parts.records, part);
            disk.write_at(&list, parts.records * RECORD as u64, &record)?;
            disk.sync(&list)?;
            if parts.records == 0 {
                disk.sync_directory(&directory)?;
            }
            parts.records += 1;
        }
        let made = Part {
            entries: vec![entry; PAGES as usize],
            exists: true,
        };
        parts.listed.insert(part, Some(made));
        Ok(())
    }
}

/// A record of the list of parts: the part, and a checksum that binds it to its place.
fn record(object: ObjectId, index: u64, part: u32) -> [u8; RECORD] {
    let mut check = crc32fast::Hasher::new();
    check.update(&object.0.to_le_bytes());
    check.update(&index.to_le_bytes());
    check.update(&part.to_le_bytes());
    let mut record = [0; RECORD];
    record[..4].copy_from_slice(&part.to_le_bytes());
    record[4..].copy_from_slice(&check.finalize().to_le_bytes());
    record
}

/// The parts that an object has. One that holds something and is missing in the list is
/// believed to be one.
fn list(disk: &dyn Disk, object: ObjectId) -> io::Result<List> {
    let directory = directory(object);
    let path = join(&directory, LIST);
    let bytes = read_all(disk, &path)?.unwrap_or_default();
    let mut list = List::default();
    for (index, found) in bytes.chunks_exact(RECORD).enumerate() {
        let part = u32::from_le_bytes([found[0], found[1], found[2], found[3]]);
        if record(object, index as u64, part) == found {
            list.parts.insert(part);
            for bad in list.records..index as u64 {
                let range = bad * RECORD as u64..(bad + 1) * RECORD as u64;
                list.damage
                    .push(Damage::new(&path, range, "wrong checksum"));
            }
            list.records = index as u64 + 1;
            list.last = Some(part);
        }
    }
    for found in disk.list(&directory)? {
        let Some(part) = found
            .strip_suffix(".pages")
            .and_then(|part| u32::from_str_radix(part, 16).ok())
        else {
            continue;
        };
        if !list.parts.contains(&part) && holds_something(disk, object, part)? {
            let what = format!("it does not name {found}, which holds pages");
            let all = 0..bytes.len() as u64;
            list.damage.push(Damage::new(&path, all, &what));
            list.parts.insert(part);
        }
    }
    Ok(list)
}

/// Whether a part's table names pages: one whose making was cut off does not.
fn holds_something(disk: &dyn Disk, object: ObjectId, part: u32) -> io::Result<bool> {
    let entries = table(disk, object, part)?.entries;
    Ok(entries
        .iter()
        .any(|entry| matches!(entry, Entry::Held(_) | Entry::Lost)))
}

/// Reads the table of a part.
fn table(disk: &dyn Disk, object: ObjectId, part: u32) -> io::Result<Part> {
    let file = file(object, part);
    let exists = disk.len(&file)?.is_some();
    let mut bytes = vec![0; TABLE];
    if exists {
        disk.read_at(&file, 0, &mut bytes)?;
    }
    let first = u64::from(part) * PAGES;
    let entries = bytes
        .chunks_exact(8)
        .zip(first..)
        .map(|(entry, page)| {
            let mut number = [0; 8];
            number.copy_from_slice(entry);
            Entry::decode(u64::from_le_bytes(number), object, page)
        })
        .collect();
    Ok(Part { entries, exists })
}

/// A page's contents; lost where they are not what the table says, or cannot be read.
fn contents(disk: &dyn Disk, size: u64, object: ObjectId, page: u64, sum: u32) -> Page {
    let (part, index) = place(page);
    let (file, offset) = (file(object, part), DATA + index as u64 * size);
    let mut bytes = vec![0; size as usize];
    match disk.read_at(&file, offset, &mut bytes) {
        Ok(got) if got == bytes.len() && crc32fast::hash(&bytes) == sum => Page::Held(bytes.into()),
        Ok(_) => {
            tell(&file, page, offset, "wrong checksum");
            Page::Lost
        }
        Err(error) => {
            tell(&file, page, offset, &error.to_string());
            Page::Lost
        }
    }
}

/// A page was read that is damaged. Where many are, one line a minute will do: `quire object check` names
/// all of them.
fn tell(file: &str, page: u64, offset: u64, why: &str) {
    static TOLD: Mutex<Seldom> = Mutex::new(Seldom::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(more) = told.due(Instant::now()) {
        tracing::warn!("{file}: page {page} at byte {offset}: {why}{more}");
    }
}

/// Reads all of an object: how many pages it holds, and what is damaged and not in the log. A function
/// is told with each of its pages.
///
/// # Errors
/// What the disk said.
pub(super) fn look(
    disk: &dyn Disk,
    object: ObjectId,
    page_size: u64,
    is_logged: impl Fn(u64) -> bool,
    looks: &mut dyn FnMut(),
) -> io::Result<(u64, Vec<Damage>)> {
    let List {
        parts, mut damage, ..
    } = list(disk, object)?;
    let mut parts: Vec<u32> = parts.into_iter().collect();
    parts.sort_unstable();
    let mut held = 0;
    for part in parts {
        let path = file(object, part);
        let found = table(disk, object, part)?;
        if !found.exists {
            damage.push(Damage::new(&path, 0..0, "the file is missing"));
            continue;
        }
        for (index, entry) in found.entries.iter().enumerate() {
            let page = u64::from(part) * PAGES + index as u64;
            let at = index as u64 * 8;
            let data = DATA + index as u64 * page_size;
            let (range, what) = match *entry {
                Entry::Zero => continue,
                Entry::Held(sum) => {
                    held += 1;
                    looks();
                    match contents(disk, page_size, object, page, sum) {
                        Page::Lost => (data..data + page_size, "wrong checksum"),
                        _ => continue,
                    }
                }
                Entry::Lost => (at..at + 8, "lost earlier"),
                Entry::Damaged => (at..at + 8, "damaged entry of the table"),
            };
            if !is_logged(page) {
                damage.push(Damage::new(&path, range, what).in_page(page));
            }
        }
    }
    Ok((held, damage))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to two bits of an entry that have changed, an entry of another page or object, and
    /// a hole, are found.
    #[test]
    fn each_entry_is_guarded() {
        let object = ObjectId(0x1234_5678_9abc_def0);
        for entry in [
            Entry::Zero,
            Entry::Lost,
            Entry::Held(0),
            Entry::Held(0xdead_beef),
        ] {
            for page in [0, 1, 4095, 1 << 35] {
                let right = entry.encode(object, page);
                assert_eq!(Entry::decode(right, object, page), entry);
                for first in 0..64 {
                    for second in 0..64 {
                        let wrong = right ^ (1 << first | 1 << second);
                        let found = Entry::decode(wrong, object, page);
                        assert_eq!(found, Entry::Damaged, "{entry:?} {first} {second}");
                    }
                }
                let elsewhere = Entry::decode(right, object, page + 1);
                assert_eq!(elsewhere, Entry::Damaged);
                let other = Entry::decode(right, ObjectId(7), page);
                assert_eq!(other, Entry::Damaged);
            }
        }
        assert_eq!(Entry::decode(0, object, 0), Entry::Damaged);
    }
}

//! What is known of an object, and the file in which that is kept.

use std::time::{SystemTime, UNIX_EPOCH};

use quire_core::dsm::message::Pages;
use quire_core::dsm::types::Machine;
use quire_core::units::{Bytes, ObjectOffset};
use serde::{Deserialize, Serialize};

use super::StoreError;

/// The size of an object is at most this.
pub const LARGEST: Bytes = Bytes(1 << 47);
/// The page size of a scheduler is a power of two from here on.
pub const SMALLEST_PAGE: Bytes = Bytes(4 << 10);
/// The page size of a scheduler is at most this.
pub const LARGEST_PAGE: Bytes = Bytes(2 << 20);
/// A name has at most so many bytes.
pub const LONGEST_NAME: usize = 255;

/// An object, among all that a store ever held. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ObjectId(pub u64);

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Which fault scheduler an object has (paper 003, sections 3 and 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SchedulerKind {
    /// One page size, one server.
    Simple,
    /// Several page sizes, one server.
    Multi,
    /// Several servers.
    Distributed,
}

/// A part of an object whose data have one type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tagged {
    /// Where it begins.
    pub start: ObjectOffset,
    /// How long it is.
    pub length: Bytes,
    /// The name of the type.
    pub tag: String,
}

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// An identity; what it means is up to whoever keeps the object here.
    pub who: String,
    /// Whether it may read the object.
    pub read: bool,
    /// Whether it may write to it.
    pub write: bool,
}

/// An object that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewObject {
    /// Its name; no other object of the store may have it.
    pub name: String,
    /// Its size: not zero, at most [`LARGEST`].
    pub size: Bytes,
    /// The page size of its scheduler.
    pub page_size: Bytes,
    /// Its scheduler.
    pub scheduler: SchedulerKind,
    /// The machine in whose form its contents are.
    pub machine: Machine,
    /// The types of its data; what has none is bytes.
    pub tags: Vec<Tagged>,
    /// The identity of its maker, who may do everything to it.
    pub owner: String,
    /// What others may do; whom no grant names may do nothing.
    pub rights: Vec<Grant>,
}

/// What the name of an object ends with that was removed, and is in the store while it is used.
const REMOVED: char = '~';

impl NewObject {
    /// It was removed, and is still used.
    pub(crate) fn mark_removed(&mut self) {
        self.name.push(REMOVED);
    }

    /// Its key, and whether it was removed.
    pub(crate) fn key(&self) -> (&str, bool) {
        let removed = self.name.strip_suffix(REMOVED);
        removed.map_or((&self.name, false), |key| (key, true))
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Which it is.
    pub id: ObjectId,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// What was asked for.
    pub is: NewObject,
}

impl NewObject {
    /// How many pages it has, the last one counted whole.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.size.0.div_ceil(self.page_size.0)
    }

    /// # Errors
    /// What is wrong with it, and what would be right.
    pub(super) fn look(&self) -> Result<(), StoreError> {
        let invalid = |reason: String| Err(StoreError::Invalid(reason));
        if self.name.is_empty() || self.name.len() > LONGEST_NAME {
            return invalid(format!("a name has 1 to {LONGEST_NAME} bytes"));
        }
        if self.name.chars().any(|c| c.is_control() || c == '/') {
            return invalid("a name has no slashes and no control characters".to_owned());
        }
        if self.size.0 == 0 || self.size > LARGEST {
            return invalid(format!("{} bytes: a size is 1 to 2^47 bytes", self.size.0));
        }
        let page = self.page_size;
        if !page.0.is_power_of_two() || page < SMALLEST_PAGE || page > LARGEST_PAGE {
            return invalid(format!(
                "{} bytes: a page size is a power of two from 4 KiB to 2 MiB",
                page.0
            ));
        }
        Ok(())
    }
}

impl Object {
    /// # Errors
    /// Where the pages are not all in the object.
    pub(super) fn look_at(&self, pages: Pages) -> Result<(), StoreError> {
        let end = pages.first.0.checked_add(u64::from(pages.count));
        if pages.count == 0 || end.is_none_or(|end| end > self.is.pages()) {
            return Err(StoreError::Invalid(format!(
                "{} pages from page {} on: {} has {}",
                pages.count,
                pages.first.0,
                self.is.name,
                self.is.pages()
            )));
        }
        Ok(())
    }
}

/// The time, in seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

const MAGIC: &[u8; 8] = b"QUIREOBJ";

/// Anything small as a file that says when it is damaged: a magic number, a checksum of
/// what follows, and that.
///
/// # Errors
/// What cannot be written down.
pub(super) fn seal<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let body =
        postcard::to_stdvec(value).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let mut bytes = Vec::with_capacity(12 + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// What [`seal`] wrote; `None` where it is damaged.
pub(super) fn unseal<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    postcard::from_bytes(sealed(bytes)?).ok()
}

/// What is in something that [`seal`] wrote; `None` where it is damaged.
pub(super) fn sealed(bytes: &[u8]) -> Option<&[u8]> {
    let body = bytes.strip_prefix(MAGIC)?;
    let (sum, body) = body.split_first_chunk::<4>()?;
    (crc32fast::hash(body) == u32::from_le_bytes(*sum)).then_some(body)
}

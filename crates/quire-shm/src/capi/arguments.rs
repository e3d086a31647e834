//! What a program passes, read and checked.

use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use quire_core::dsm::types::map::TagMap;
use quire_core::units::Bytes;
use quire_dsm::attachment::{Attachments, Tls};
use quire_dsm::link::identity::Files;
use quire_dsm::wire::control::{Name, Object, PageSize, Rights, SchedulerKind, Segment, TypeCode};

use crate::trouble::{Result, Trouble};

/// `struct quire_dsm_identity`.
#[repr(C)]
pub struct Identity {
    name: *const c_char,
    certificate: *const c_char,
    key: *const c_char,
    ca: *const c_char,
    tls: *const c_char,
}

/// `struct quire_dsm_shape`.
#[repr(C)]
pub struct Shape {
    page_size: u64,
    scheduler: *const c_char,
    types: *const c_char,
}

/// An argument that makes no sense.
pub fn bad(why: impl Display) -> Trouble {
    Trouble::new(libc::EINVAL, why.to_string())
}

/// A text, or none.
///
/// # Safety
/// It is null or a C string.
pub unsafe fn text(text: *const c_char) -> Result<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller vouches for it.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| bad("a text that is no UTF-8"))?;
    Ok(Some(text.to_owned()))
}

/// A text that must be there.
///
/// # Safety
/// It is null or a C string.
pub unsafe fn needed(given: *const c_char, what: &str) -> Result<String> {
    // SAFETY: the caller vouches for it.
    unsafe { text(given)? }.ok_or_else(|| bad(format!("{what} is a null pointer")))
}

/// What a text says.
///
/// # Safety
/// It is null or a C string.
pub unsafe fn read<T: FromStr<Err: Display>>(given: *const c_char, what: &str) -> Result<T> {
    // SAFETY: the caller vouches for it.
    unsafe { needed(given, what)? }.parse().map_err(bad)
}

/// As whom a server is reached, and how.
///
/// # Safety
/// The structure is null or holds null pointers and C strings.
pub unsafe fn identity(who: *const Identity) -> Result<Attachments> {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        let Some(who) = who.as_ref() else {
            return named(None);
        };
        let mut all = named(text(who.name)?)?;
        all.tls = match text(who.tls)?.as_deref() {
            None | Some("automatic") => Tls::Automatic,
            Some("everywhere") => Tls::Everywhere,
            Some("plaintext") => Tls::Plaintext,
            Some(_) => return Err(bad("tls: choose automatic, everywhere or plaintext")),
        };
        let files = (text(who.certificate)?, text(who.key)?, text(who.ca)?);
        all.files = match files {
            (Some(certificate), Some(key), Some(ca)) => Some(Files {
                certificate: PathBuf::from(certificate),
                key: PathBuf::from(key),
                authority: PathBuf::from(ca),
            }),
            (None, None, None) => None,
            _ => return Err(bad("a certificate needs its key and its CA")),
        };
        if all.tls == Tls::Everywhere && all.files.is_none() {
            return Err(bad("tls everywhere needs a certificate"));
        }
        Ok(all)
    }
}

fn named(name: Option<String>) -> Result<Attachments> {
    let name: Name = name.as_deref().unwrap_or("program").parse().map_err(bad)?;
    Attachments::new(Vec::new(), Some(name)).map_err(bad)
}

/// An object as it is to be made.
///
/// # Safety
/// The structure is null or holds null pointers and C strings.
pub unsafe fn object(name: Name, size: u64, shape: *const Shape) -> Result<Object> {
    let mut object = Object::usual(name, Bytes(size));
    // SAFETY: the caller vouches for all of it.
    unsafe {
        if let Some(shape) = shape.as_ref() {
            if shape.page_size != 0 {
                object.page_size = PageSize::try_from(Bytes(shape.page_size)).map_err(bad)?;
            }
            if let Some(scheduler) = text(shape.scheduler)? {
                let scheduler = scheduler.parse::<SchedulerKind>();
                object.scheduler = scheduler.map_err(|error| bad(format!("scheduler: {error}")))?;
            }
            if let Some(types) = text(shape.types)? {
                object.tags = tags(&types, object.size)?;
            }
        }
    }
    Ok(object)
}

/// The types of an object of a size.
pub fn tags(text: &str, size: Bytes) -> Result<Vec<Segment>> {
    let map = TagMap::parse(text, size).map_err(bad)?;
    let segments = map.segments().map(|segment| Segment {
        start: Bytes(segment.start.0),
        length: segment.len(),
        tag: TypeCode(segment.tag as u16),
    });
    Ok(segments.collect())
}

/// What somebody may do.
pub fn rights(text: &str) -> Result<Rights> {
    let (read, write) = match text {
        "none" => (false, false),
        "r" => (true, false),
        "rw" => (true, true),
        _ => return Err(bad("rights: choose r, rw or none")),
    };
    Ok(Rights { read, write })
}

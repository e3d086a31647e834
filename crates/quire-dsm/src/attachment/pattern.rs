//! Patterns of names: shared memory that gets its name while the program runs, as libraries invent one
//! (`psm_4a1f9c` of Python, `boost_…`, `ShM.…` of APR). Each name that a pattern stands for is an object by
//! the same name.

use std::fmt;
use std::str::FromStr;

use super::{Attachment, AttachmentError, Target, is_shm_name};
use crate::link::Addresses;
use crate::link::address::AddressError;
use crate::wire::control::Name;

/// What the C library puts before the names of semaphores.
const SEMAPHORE: &str = "sem.";
/// So much of a name is kept that no object can have.
const KEPT: usize = 150;

/// All names of shared memory that look like this, at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// A name, in which `*` stands for any characters, and `?` for one.
    text: String,
    /// Where the server is, or servers that are joined.
    servers: Addresses,
}

impl Pattern {
    /// As it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the objects are.
    #[must_use]
    pub const fn servers(&self) -> &Addresses {
        &self.servers
    }

    /// Whether it stands for a name of shared memory. It stands for semaphores by the name that a program
    /// gives to `sem_open`, too.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        let semaphore = name.strip_prefix(SEMAPHORE);
        let mut names = [Some(name), semaphore].into_iter().flatten();
        names.any(|name| matches(self.text.as_bytes(), name.as_bytes()))
    }

    /// The attachment of a name that it stands for.
    #[must_use]
    pub fn attachment(&self, name: &str) -> Attachment {
        Attachment {
            object: object_of(name),
            target: Target::Posix(name.to_owned()),
            servers: self.servers.clone(),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.text, self.servers)
    }
}

/// What `--dsm` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// One object.
    One(Attachment),
    /// As many as the program asks for.
    Many(Pattern),
}

impl FromStr for Wanted {
    type Err = AttachmentError;

    /// Reads what [`Attachment`] reads, or `PATTERN@ADDRESS`.
    fn from_str(text: &str) -> Result<Wanted, AttachmentError> {
        let (pattern, servers) = text.split_once('@').unwrap_or((text, ""));
        if !pattern.contains(['*', '?']) || pattern.contains('=') || servers.is_empty() {
            return text.parse().map(Wanted::One);
        }
        if servers.contains('\n') {
            return Err(AddressError::Unreadable(servers.to_owned()).into());
        }
        let pattern = pattern.strip_prefix('/').unwrap_or(pattern);
        if !is_shm_name(pattern) {
            return Err(AttachmentError::Shm(pattern.to_owned()));
        }
        Ok(Wanted::Many(Pattern {
            text: pattern.to_owned(),
            servers: servers.parse()?,
        }))
    }
}

/// Whether a name looks like a pattern. Where more follows a `*`, it takes as little as will do, and one
/// more byte each time that what follows does not fit.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[in_name] => {
                (at, in_name) = (at + 1, in_name + 1);
            }
            _ => match star {
                Some((from, taken)) => {
                    star = Some((from, taken + 1));
                    (at, in_name) = (from + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// What the object of a name is called: the same, or where no object can have that name, what an object can
/// have of it, with a number of 64 bits that tells it from others.
fn object_of(name: &str) -> Name {
    name.parse::<Name>()
        .ok()
        .filter(Name::is_plain)
        .unwrap_or_else(|| {
            let kept: String = Name::like(name).as_str().chars().take(KEPT).collect();
            Name::like(&format!("{kept}-{:016x}", fnv(name.as_bytes())))
        })
}

/// FNV-1a: all machines must find the same number.
fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        match text.parse() {
            Ok(Wanted::Many(pattern)) => pattern,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn patterns_are_read() {
        let psm = pattern("/psm_*@127.0.0.1:7450");
        assert_eq!(psm.to_string(), "psm_*@127.0.0.1:7450");
        assert!(psm.is_of("psm_12ab") && psm.is_of("psm_") && !psm.is_of("xpsm_1"));
        assert!(psm.is_of("sem.psm_12ab"), "a semaphore beside it");
        assert!(pattern("*@unix:/s").is_of("sem.any"));
        assert!(pattern("?-*.x*@unix:/s").is_of("a-b.x.xyz"));
        assert!(!pattern("?-*.x@unix:/s").is_of("ab-b.x"));
        let one = "grid=a*b@unix:/s".parse::<Wanted>();
        assert!(matches!(one, Ok(Wanted::One(_))), "a name that has a star");
        for (text, words) in [
            ("psm_*", "NAME@ADDRESS"),
            ("a/*@unix:/s", "slash"),
            ("*@nowhere", "HOST:PORT"),
        ] {
            let error = text.parse::<Wanted>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn an_object_has_the_name_or_one_that_no_other_has() {
        assert_eq!(object_of("psm_12ab").as_str(), "psm_12ab");
        let hidden = object_of(".org.chromium.Chromium.x");
        assert!(hidden.as_str().starts_with("org.chromium.Chromium.x-"));
        assert_ne!(object_of("a b"), object_of("a\tb"));
        assert_ne!(object_of("a~1"), object_of("a~2"));
        let long = "x".repeat(255);
        assert!(object_of(&long).as_str().len() <= 200);
        let other = format!("{}y", "x".repeat(254));
        assert_ne!(object_of(&other), object_of(&long));
    }

    proptest! {
        #[test]
        fn a_pattern_fits_what_it_was_made_of(
            parts in prop::collection::vec("[ab]{0,3}", 1..5),
            stars in prop::collection::vec("[ab*]{0,3}", 1..5),
        ) {
            let name: String = parts.concat();
            prop_assert!(matches(parts.join("*").as_bytes(), name.as_bytes()));
            // As a slow one would say it.
            fn slow(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern.split_first(), name.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), _) => {
                        (0..=name.len()).any(|taken| slow(rest, &name[taken..]))
                    }
                    (Some((byte, rest)), Some((first, more))) => byte == first && slow(rest, more),
                    _ => false,
                }
            }
            let any = stars.concat();
            let fits = matches(any.as_bytes(), name.as_bytes());
            prop_assert_eq!(fits, slow(any.as_bytes(), name.as_bytes()));
        }
    }
}

//! Where objects lie in a directory: each at a *slot*, which follows from its key and from
//! whether it was removed.
//!
//! An object has a *key*, which never changes: the name that it was made under, a tilde and hex digits
//! (`grid~8f3a`). That of an object of servers of before is plain, and the same as its name (`grid`). The *exact spelling* of a
//! key always has a tilde: `grid~` for the plain `grid`, and `grid~8f3a` for itself. What has
//! none is a *name*, and leads to the object that lives.
//!
//! An object that lives lies at its name, one that was removed at the exact spelling of its key.
//! So its name is free, and no slot is both: no name has a tilde. Objects only ever move from the
//! former to the latter.

use std::iter;

use super::Entry;

/// What is between a name and digits.
const MARK: char = '~';

/// The name of the object with a key: what is before its tilde, if it has one.
#[must_use]
pub fn name_of(key: &str) -> &str {
    key.split_once(MARK).map_or(key, |(name, _)| name)
}

/// The exact spelling of a key, plain or not. That of what is spelled exactly already is the same.
#[must_use]
pub fn exact(key: &str) -> String {
    match key.contains(MARK) {
        true => key.to_owned(),
        false => format!("{key}{MARK}"),
    }
}

/// The slots at which there may be what is asked for by a name or an exact spelling, in the order
/// in which objects move.
pub(super) fn of(asked: &str) -> impl Iterator<Item = &str> {
    let name = name_of(asked);
    iter::once(name).chain((name != asked).then_some(asked))
}

/// Whether what lies at one of these slots is what was asked for.
pub(super) fn is_meant(asked: &str, entry: &Entry) -> bool {
    !asked.contains(MARK) || exact(&entry.object.is.name) == asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_a_name_and_digits() {
        for (key, name, spelled) in [
            ("grid", "grid", "grid~"),
            ("grid~", "grid", "grid~"),
            ("grid~8f3a", "grid", "grid~8f3a"),
        ] {
            assert_eq!(name_of(key), name);
            assert_eq!(exact(key), spelled);
        }
    }

    #[test]
    fn a_name_is_looked_for_before_an_exact_spelling() {
        let all = |asked| of(asked).collect::<Vec<_>>();
        assert_eq!(all("grid"), ["grid"]);
        assert_eq!(all("grid~"), ["grid", "grid~"]);
        assert_eq!(all("grid~8f3a"), ["grid", "grid~8f3a"]);
    }
}

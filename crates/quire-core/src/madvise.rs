//! The advice that `madvise` knows, up to Linux 6.18, and what Quire does with each on memory
//! that it provides.
//!
//! Such memory is a file's for the kernel and private to the program, so advice that changes
//! contents, or that has another meaning for files, is obeyed by Quire. What is not in the
//! table may mean anything: the range becomes plain memory, and the kernel is told.

/// What is done with an advice on memory that Quire provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is handed on: it has one meaning for all memory, and leaves nothing behind that
    /// mapping the memory anew would lose.
    HandOn,
    /// The same, where it is no page of a hugetlb pool: the kernel takes no such advice for
    /// those, or only for whole ones.
    Hint,
    /// The contents are given up, and read as zeros from now on.
    Empty {
        /// Those of locked memory, too; else it is refused there.
        locked: bool,
    },
    /// A child gets the range, or does not.
    DontFork(bool),
    /// A child finds zeros there, or the contents.
    WipeOnFork(bool),
    /// The range is left out of core dumps, or is not.
    DontDump(bool),
    /// The next touches map superpages.
    Superpages,
    /// The program wants no superpages: the range becomes plain memory.
    BasePages,
    /// Superpages are made now of what is in use.
    Collapse,
    /// Nothing is to be done for memory that Quire provides; elsewhere it is the kernel's.
    Nothing,
    /// Private memory cannot have it.
    Refused,
    /// The range becomes plain memory, and the kernel does it.
    Plain,
}

/// An advice: its number, its name in the kernel's headers, and what is done with it.
type Entry = (i32, &'static str, Treatment);

/// Every advice up to Linux 6.18, by number.
const TABLE: [Entry; 27] = {
    use Treatment::{
        BasePages, Collapse, DontDump, DontFork, Empty, HandOn, Hint, Nothing, Plain, Refused,
        Superpages, WipeOnFork,
    };
    [
        (0, "MADV_NORMAL", Hint),
        (1, "MADV_RANDOM", Hint),
        (2, "MADV_SEQUENTIAL", Hint),
        (3, "MADV_WILLNEED", HandOn),
        (4, "MADV_DONTNEED", Empty { locked: false }),
        (8, "MADV_FREE", Empty { locked: false }),
        (9, "MADV_REMOVE", Refused),
        (10, "MADV_DONTFORK", DontFork(true)),
        (11, "MADV_DOFORK", DontFork(false)),
        // Pages of a file cannot be merged, and no program may rely on that they are.
        (12, "MADV_MERGEABLE", Nothing),
        (13, "MADV_UNMERGEABLE", Nothing),
        (14, "MADV_HUGEPAGE", Superpages),
        (15, "MADV_NOHUGEPAGE", BasePages),
        (16, "MADV_DONTDUMP", DontDump(true)),
        (17, "MADV_DODUMP", DontDump(false)),
        (18, "MADV_WIPEONFORK", WipeOnFork(true)),
        (19, "MADV_KEEPONFORK", WipeOnFork(false)),
        (20, "MADV_COLD", Hint),
        (21, "MADV_PAGEOUT", Hint),
        (22, "MADV_POPULATE_READ", HandOn),
        (23, "MADV_POPULATE_WRITE", HandOn),
        (24, "MADV_DONTNEED_LOCKED", Empty { locked: true }),
        (25, "MADV_COLLAPSE", Collapse),
        (100, "MADV_HWPOISON", HandOn),
        (101, "MADV_SOFT_OFFLINE", HandOn),
        (102, "MADV_GUARD_INSTALL", Plain),
        // Guarded memory is plain, so what is provided has no guards.
        (103, "MADV_GUARD_REMOVE", Nothing),
    ]
};

/// What is done with an advice of this number.
#[must_use]
pub fn treatment(number: i32) -> Treatment {
    match TABLE.binary_search_by_key(&number, |entry| entry.0) {
        Ok(at) => TABLE[at].2,
        Err(_) => Treatment::Plain,
    }
}

/// The advice that the table has, by number and name.
pub fn known() -> impl Iterator<Item = (i32, &'static str)> {
    TABLE.iter().map(|(number, name, _)| (*number, *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn numbers_are_those_of_the_c_library() {
        let numbers = [
            ("MADV_DONTNEED", libc::MADV_DONTNEED),
            ("MADV_FREE", libc::MADV_FREE),
            ("MADV_REMOVE", libc::MADV_REMOVE),
            ("MADV_DONTFORK", libc::MADV_DONTFORK),
            ("MADV_HUGEPAGE", libc::MADV_HUGEPAGE),
            ("MADV_NOHUGEPAGE", libc::MADV_NOHUGEPAGE),
            ("MADV_DONTDUMP", libc::MADV_DONTDUMP),
            ("MADV_WIPEONFORK", libc::MADV_WIPEONFORK),
            ("MADV_POPULATE_WRITE", libc::MADV_POPULATE_WRITE),
            ("MADV_HWPOISON", libc::MADV_HWPOISON),
        ];
        for (name, number) in numbers {
            assert!(known().any(|known| known == (number, name)), "{name}");
        }
    }

    #[test]
    fn what_is_not_known_makes_memory_plain() {
        for number in [5, 26, 99, 104, -1, i32::MAX] {
            assert_eq!(treatment(number), Treatment::Plain);
        }
        assert_eq!(treatment(103), Treatment::Nothing);
    }
}

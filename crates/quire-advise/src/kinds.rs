//! What mappings are, as the kernel lists them for this process or another one.

use quire_core::stat::RegionKind;
use quire_core::units::Bytes;
use quire_linux::sysinfo::maps::{Kind, Mapping};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// Guards of stacks are no larger than this; what is inaccessible and larger is room to grow.
const LARGEST_GUARD: Bytes = Bytes(64 << 10);
/// Shared memory of Quire's own begins so; it has its own superpages.
const OWN_SHARED: &str = "/memfd:quire";

/// Smaller mappings have nothing from folios of several pages.
const LEAST_SMALL: Bytes = Bytes(64 << 10);

/// The same as [`kind_of`] for private memory that is too small for a superpage, and no stack.
#[must_use]
pub fn small_kind_of(
    before: Option<&Mapping>,
    mapping: &Mapping,
    name: &str,
) -> Option<RegionKind> {
    let is_small =
        mapping.range.whole_superpages().is_empty() && mapping.range.len() >= LEAST_SMALL;
    let is_writable = mapping.prot & READ_WRITE == READ_WRITE;
    let is_plain = mapping.kind(name) == Kind::Anonymous && !is_stack(before, mapping, name);
    let kind = if name == "[heap]" {
        RegionKind::Heap
    } else {
        RegionKind::Anon
    };
    (is_small && is_writable && is_plain).then_some(kind)
}

/// What a mapping is, which comes after `before` in the kernel's list; nothing where it can have no superpages.
#[must_use]
pub fn kind_of(before: Option<&Mapping>, mapping: &Mapping, name: &str) -> Option<RegionKind> {
    if mapping.range.whole_superpages().is_empty() {
        return None;
    }
    let is_writable = mapping.prot & READ_WRITE == READ_WRITE;
    match mapping.kind(name) {
        Kind::Anonymous if !is_writable => None,
        Kind::Anonymous if is_stack(before, mapping, name) => Some(RegionKind::Stack),
        Kind::Anonymous if name == "[heap]" => Some(RegionKind::Heap),
        Kind::Anonymous => Some(RegionKind::Anon),
        Kind::Shared if mapping.prot & libc::PROT_READ == 0 || name.starts_with(OWN_SHARED) => None,
        Kind::Shared => mapping.is_congruent().then_some(RegionKind::Shared),
        Kind::Other => {
            let file = mapping.file.is_some() && !mapping.is_in_memory();
            let fits = mapping.is_read_only() && mapping.is_congruent();
            (file && fits).then_some(RegionKind::File)
        }
    }
}

/// Whether a private mapping is taken for a stack. The C library maps the stacks of threads by system calls of its
/// own, behind a small inaccessible page. Other memory may look the same; then it is not advised ahead, and becomes
/// superpages when it is full.
fn is_stack(before: Option<&Mapping>, mapping: &Mapping, name: &str) -> bool {
    let guards = |guard: &Mapping| {
        guard.prot == libc::PROT_NONE
            && !guard.shared
            && guard.file.is_none()
            && guard.range.len() <= LARGEST_GUARD
            && guard.range.end == mapping.range.start
    };
    name.starts_with("[stack") || (name.is_empty() && before.is_some_and(guards))
}

#[cfg(test)]
mod tests {
    use quire_core::units::{AddrRange, ObjectOffset, VirtAddr};

    use super::*;

    fn mapping(start: u64, len: u64, prot: i32) -> Mapping {
        Mapping {
            range: AddrRange::new(VirtAddr(start), Bytes(len)),
            prot,
            shared: false,
            offset: ObjectOffset(0),
            file: None,
        }
    }

    #[test]
    fn a_guard_makes_a_stack_and_room_to_grow_does_not() {
        let guard = mapping(0x1ff000, 0x1000, libc::PROT_NONE);
        let stack = mapping(0x200000, 0x80_0000, READ_WRITE);
        let kind = |before, name| kind_of(before, &stack, name);
        assert_eq!(kind(Some(&guard), ""), Some(RegionKind::Stack));
        assert_eq!(kind(None, "[stack]"), Some(RegionKind::Stack));
        assert_eq!(kind(None, ""), Some(RegionKind::Anon));
        assert_eq!(kind(Some(&guard), "[heap]"), Some(RegionKind::Heap));
        let room = mapping(0x100000, 0x100000, libc::PROT_NONE);
        assert_eq!(kind(Some(&room), ""), Some(RegionKind::Anon));
    }

    #[test]
    fn what_can_have_no_superpages_is_left_out() {
        let small = mapping(0x201000, 0x30_0000, READ_WRITE);
        assert_eq!(kind_of(None, &small, ""), None);
        let read = mapping(0x200000, 0x80_0000, libc::PROT_READ);
        assert_eq!(kind_of(None, &read, ""), None);
        let shared = Mapping {
            shared: true,
            ..mapping(0x200000, 0x80_0000, READ_WRITE)
        };
        let named = |name| kind_of(None, &shared, name);
        assert_eq!(named("/dev/zero (deleted)"), Some(RegionKind::Shared));
        assert_eq!(named("/memfd:quire-object (deleted)"), None);
    }
}

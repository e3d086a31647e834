//! Which mappings are stacks.
//!
//! The C library maps the stacks of threads by system calls of its own, so
//! nobody sees it do so. A stack is private memory behind an inaccessible guard
//! page. Other memory may look the same; collapsing that is as harmless.

use quire_linux::sysinfo::maps::Mapping;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Whether `mapping`, of the name `name`, which comes after `before` in the kernel's list, is taken
/// for a stack.
pub(super) fn is_stack(before: Option<&Mapping>, mapping: &Mapping, name: &str) -> bool {
    let private = |m: &Mapping| !m.shared && m.file.is_none();
    if mapping.prot != READ_WRITE || !private(mapping) {
        return false;
    }
    let guarded = before.is_some_and(|guard| {
        private(guard) && guard.prot == libc::PROT_NONE && guard.range.end == mapping.range.start
    });
    name == "[stack]" || (name.is_empty() && guarded)
}

#[cfg(test)]
mod tests {
    use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};

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
    fn guarded_memory_is_a_stack() {
        let guard = mapping(0x1000, 0x1000, libc::PROT_NONE);
        let stack = mapping(0x2000, 0x80_0000, READ_WRITE);
        assert!(is_stack(Some(&guard), &stack, ""));
        assert!(!is_stack(None, &stack, ""));
        let apart = mapping(0x3000, 0x80_0000, READ_WRITE);
        assert!(!is_stack(Some(&guard), &apart, ""));
        assert!(!is_stack(Some(&guard), &stack, "[heap]"));
        assert!(is_stack(None, &stack, "[stack]"));
        let shared = Mapping {
            shared: true,
            ..stack
        };
        assert!(!is_stack(Some(&guard), &shared, ""));
    }
}

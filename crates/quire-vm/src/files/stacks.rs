//! Which mappings are stacks.
//!
//! The C library maps the stacks of threads by system calls of its own, so
//! nobody sees it do so. A stack is private memory behind an inaccessible guard
//! page. Other memory may look the same; collapsing that is as harmless.

use quire_linux::sysinfo::maps::Mapping;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Whether `mapping`, which comes after `before` in the kernel's list, is taken
/// for a stack.
pub(super) fn is_stack(before: Option<&Mapping>, mapping: &Mapping) -> bool {
    let private = |m: &Mapping| !m.shared && m.file.is_none();
    if mapping.prot != READ_WRITE || !private(mapping) {
        return false;
    }
    let guarded = before.is_some_and(|guard| {
        private(guard) && guard.prot == libc::PROT_NONE && guard.range.end == mapping.range.start
    });
    mapping.name == "[stack]" || (mapping.name.is_empty() && guarded)
}

#[cfg(test)]
mod tests {
    use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};

    use super::*;

    fn mapping(start: u64, len: u64, prot: i32, name: &str) -> Mapping {
        Mapping {
            range: AddrRange::new(VirtAddr(start), Bytes(len)),
            prot,
            shared: false,
            offset: ObjectOffset(0),
            file: None,
            name: name.to_owned(),
        }
    }

    #[test]
    fn guarded_memory_is_a_stack() {
        let guard = mapping(0x1000, 0x1000, libc::PROT_NONE, "");
        let stack = mapping(0x2000, 0x80_0000, READ_WRITE, "");
        assert!(is_stack(Some(&guard), &stack));
        assert!(!is_stack(None, &stack));
        let apart = mapping(0x3000, 0x80_0000, READ_WRITE, "");
        assert!(!is_stack(Some(&guard), &apart));
        let heap = mapping(0x2000, 0x80_0000, READ_WRITE, "[heap]");
        assert!(!is_stack(Some(&guard), &heap));
        assert!(is_stack(
            None,
            &mapping(0, 0x80_0000, READ_WRITE, "[stack]")
        ));
        let shared = Mapping {
            shared: true,
            ..stack.clone()
        };
        assert!(!is_stack(Some(&guard), &shared));
    }
}

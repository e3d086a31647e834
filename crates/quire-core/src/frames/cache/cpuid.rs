//! Caches from what CPUID says of them.
//!
//! Intel describes them in leaf 4 and AMD in leaf 0x8000_001D, one in each subleaf,
//! with registers of the same layout. One bit differs: whether the index is "complex",
//! a hash, is said by Intel only. AMD leaves the bit reserved, and hypervisors have
//! been seen to set it there, so it is not read.

use super::{Cache, Index, Kind, Shape};

/// Which leaf describes the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Leaf 4.
    Intel,
    /// Leaf 0x8000_001D.
    Amd,
}

/// Reads the subleaves (EAX, EBX, ECX, EDX of each), up to the first that describes
/// nothing. What is no possible cache is left out.
///
/// How many processors share a cache is left open: the registers bound it only.
#[must_use]
pub fn describe(leaf: Leaf, subleaves: &[[u32; 4]]) -> Vec<Cache> {
    subleaves
        .iter()
        .take_while(|registers| is_described(registers))
        .filter_map(|registers| cache(leaf, *registers))
        .collect()
}

/// Whether the subleaf describes something, so that there may be another.
#[must_use]
pub const fn is_described(registers: &[u32; 4]) -> bool {
    registers[0] & 31 != 0
}

fn cache(leaf: Leaf, [eax, ebx, ecx, edx]: [u32; 4]) -> Option<Cache> {
    const COMPLEX: u32 = 1 << 2;
    let kind = match eax & 31 {
        1 => Kind::Data,
        2 => Kind::Instruction,
        3 => Kind::Unified,
        _ => return None,
    };
    let level = (eax >> 5) & 7;
    let line = (ebx & 0xfff) + 1;
    let partitions = ((ebx >> 12) & 0x3ff) + 1;
    let ways = (ebx >> 22) + 1;
    // A partition of a line has a tag of the line, but is filled for itself.
    let shape = Shape::new(ecx.checked_add(1)?, ways, line * partitions)?;
    let index = match leaf {
        Leaf::Intel if edx & COMPLEX != 0 => Index::Hashed,
        Leaf::Intel => Index::Plain,
        Leaf::Amd => Index::assumed(level),
    };
    (level > 0).then_some(Cache {
        level,
        kind,
        shape,
        index,
        shared_by: None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{cascade_lake, naples};
    use super::*;

    fn without_sharing(mut caches: Vec<Cache>) -> Vec<Cache> {
        caches.iter_mut().for_each(|cache| cache.shared_by = None);
        caches
    }

    #[test]
    fn intel_cascade_lake() {
        // EBX: ways - 1, partitions - 1, line - 1; ECX: sets - 1.
        let subleaves = [
            [0x7c00_4121, 0x01c0_003f, 63, 0],
            [0x7c00_4122, 0x01c0_003f, 63, 0],
            [0x7c00_4143, 0x03c0_003f, 1023, 0],
            [0x7c0f_c163, 0x0280_003f, 53247, 4],
            [0; 4],
            [0x7c00_4121, 0x01c0_003f, 63, 0],
        ];
        let caches = describe(Leaf::Intel, &subleaves);
        assert_eq!(caches, without_sharing(cascade_lake()));
    }

    #[test]
    fn amd_naples() {
        let subleaves = [
            [0x4121, 0x01c0_003f, 63, 0],
            [0x4122, 0x00c0_003f, 255, 0],
            [0x4143, 0x01c0_003f, 1023, 2],
            // As a hypervisor has it that sets the reserved bit.
            [0x1_c163, 0x03c0_003f, 8191, 6],
            [0; 4],
        ];
        let caches = describe(Leaf::Amd, &subleaves);
        assert_eq!(caches, without_sharing(naples()));
    }

    proptest! {
        #[test]
        fn any_values_give_possible_caches(
            subleaves in prop::collection::vec(any::<[u32; 4]>(), 0..6),
            is_amd: bool,
        ) {
            let leaf = if is_amd { Leaf::Amd } else { Leaf::Intel };
            for cache in describe(leaf, &subleaves) {
                prop_assert!((1..=7).contains(&cache.level));
                prop_assert!(cache.shape.size() <= Shape::MAX_SIZE);
                prop_assert!(cache.shape.lines() > 0);
            }
        }
    }
}

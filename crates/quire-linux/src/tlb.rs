//! What CPUID says of this machine's TLBs.

use quire_core::tlb::cpuid::Leaves;

use crate::arch::cpuid;

const DESCRIPTORS: u32 = 2;
const PARAMETERS: u32 = 0x18;
const EXTENDED: u32 = 0x8000_0000;
const AMD_L1: u32 = 0x8000_0005;
const AMD_L2: u32 = 0x8000_0006;
const AMD_GIANT: u32 = 0x8000_0019;
/// More subleaves of leaf 0x18 than this are taken for nonsense.
const MOST_SUBLEAVES: u32 = 64;

/// Reads the leaves that describe TLBs, on the processor that runs this.
#[must_use]
pub fn leaves() -> Leaves {
    let highest = cpuid(0, 0)[0];
    let highest_extended = cpuid(EXTENDED, 0)[0];
    let basic = |leaf| (leaf <= highest).then(|| cpuid(leaf, 0));
    let extended = |leaf| (leaf <= highest_extended).then(|| cpuid(leaf, 0));
    let first_two = |leaf| extended(leaf).map_or([0; 2], |[eax, ebx, ..]| [eax, ebx]);
    Leaves {
        descriptors: basic(DESCRIPTORS).unwrap_or_default(),
        parameters: basic(PARAMETERS).map_or_else(Vec::new, parameters),
        amd_l1: first_two(AMD_L1),
        amd_l2: first_two(AMD_L2),
        amd_giant: first_two(AMD_GIANT),
    }
}

/// Every subleaf of leaf 0x18, of which `first` is the first; none where it
/// describes nothing, as on machines whose leaf 2 does.
fn parameters(first: [u32; 4]) -> Vec<[u32; 4]> {
    let last = first[0].min(MOST_SUBLEAVES);
    let all: Vec<[u32; 4]> = (0..=last)
        .map(|subleaf| cpuid(PARAMETERS, subleaf))
        .collect();
    let describes = |one: &[u32; 4]| one[3] & 31 != 0;
    if all.iter().any(describes) {
        all
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use quire_core::tlb::{Tlb, cpuid};

    use super::*;

    #[test]
    fn this_machine_has_tlbs() {
        let leaves = leaves();
        assert_eq!(leaves, super::leaves());
        let described = cpuid::describe(&leaves);
        println!(
            "{leaves:x?}: {} {:?}",
            described.geometry, described.assumed
        );
        let mut tlb = Tlb::new(&described.geometry);
        assert_eq!(tlb.take_counts(), Default::default());
    }
}

//! The geometry of a machine's TLBs from what CPUID says of them.
//!
//! Intel describes arrays by one-byte descriptors (leaf 2) or one by one (leaf
//! 0x18), AMD by entries and ways for each page size (leaves 0x8000_0005,
//! 0x8000_0006 and 0x8000_0019). A virtual machine may hide all of it; then
//! places are filled from [`Geometry::assumed`], and the answer says which.

use super::PageSize::{self, Base, Giant, Super};
use super::geometry::{Geometry, PageSizes, SecondLevel, Structure};

/// The registers that matter here, as CPUID leaves them. What a machine does
/// not have is zero or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaves {
    /// Leaf 2: EAX, EBX, ECX, EDX.
    pub descriptors: [u32; 4],
    /// Leaf 0x18, one for each subleaf: EAX, EBX, ECX, EDX.
    pub parameters: Vec<[u32; 4]>,
    /// Leaf 0x8000_0005, where it describes TLBs (AMD): EAX, EBX.
    pub amd_l1: [u32; 2],
    /// Leaf 0x8000_0006, the same: EAX, EBX.
    pub amd_l2: [u32; 2],
    /// Leaf 0x8000_0019, the same: EAX, EBX.
    pub amd_giant: [u32; 2],
}

/// What CPUID says, and what it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The geometry.
    pub geometry: Geometry,
    /// The places that were assumed, as they are written in a geometry.
    pub assumed: Vec<&'static str>,
}

/// Reads the leaves.
#[must_use]
pub fn describe(leaves: &Leaves) -> Described {
    let mut found = Found::default();
    if leaves.amd_l1 != [0; 2] {
        found.read_amd(leaves);
    } else if !leaves.parameters.is_empty() {
        leaves
            .parameters
            .iter()
            .for_each(|one| found.read_parameters(*one));
    } else {
        descriptors(leaves.descriptors).for_each(|byte| found.read_descriptor(byte));
    }
    found.complete()
}

/// What has been found so far.
#[derive(Debug, Default)]
struct Found {
    l1_data: Vec<Structure>,
    l1_code: Vec<Structure>,
    l2_both: Vec<Structure>,
    l2_data: Vec<Structure>,
    l2_code: Vec<Structure>,
}

impl Found {
    /// Fills what is missing from what is assumed. A processor that describes
    /// its first level and no second one has none.
    fn complete(self) -> Described {
        let default = Geometry::assumed();
        let mut assumed = Vec::new();
        let nothing = self.l1_data.is_empty() && self.l1_code.is_empty();
        let mut filled = |found: Vec<Structure>, other: Vec<Structure>, place| {
            if found.is_empty() {
                assumed.push(place);
                return other;
            }
            found
        };
        let l1_data = filled(self.l1_data, default.l1_data, "l1d");
        let l1_code = filled(self.l1_code, default.l1_code, "l1i");
        let l2 = if !self.l2_data.is_empty() || !self.l2_code.is_empty() {
            SecondLevel::Split {
                data: [self.l2_data, self.l2_both.clone()].concat(),
                code: [self.l2_code, self.l2_both].concat(),
            }
        } else if nothing && self.l2_both.is_empty() {
            assumed.push("l2");
            default.l2
        } else {
            SecondLevel::Unified(self.l2_both)
        };
        Described {
            geometry: Geometry {
                l1_data,
                l1_code,
                l2,
                coalesce: false,
            },
            assumed,
        }
    }

    fn read_amd(&mut self, leaves: &Leaves) {
        let [l1_super, l1_base] = leaves.amd_l1;
        let [l2_super, l2_base] = leaves.amd_l2;
        let [l1_giant, l2_giant] = leaves.amd_giant;
        let first = |shift| {
            [
                (Base, amd_first(l1_base >> shift)),
                (Super, amd_first(l1_super >> shift)),
                (Giant, amd_second(l1_giant >> shift)),
            ]
        };
        let second = |shift| {
            [
                (Base, amd_second(l2_base >> shift)),
                (Super, amd_second(l2_super >> shift)),
                (Giant, amd_second(l2_giant >> shift)),
            ]
        };
        self.l1_data = merged(&first(16));
        self.l1_code = merged(&first(0));
        // Nothing in the upper half: the lower one is for both.
        if l2_base >> 16 == 0 && l2_super >> 16 == 0 {
            self.l2_both = merged(&second(0));
        } else {
            self.l2_data = merged(&second(16));
            self.l2_code = merged(&second(0));
        }
    }

    /// One subleaf of leaf 0x18.
    fn read_parameters(&mut self, [_, ebx, ecx, edx]: [u32; 4]) {
        const FULLY_ASSOCIATIVE: u32 = 1 << 8;
        let mut sizes = PageSizes::NONE;
        for (bit, size) in [(0, Base), (1, Super), (3, Giant)] {
            if ebx & (1 << bit) != 0 {
                sizes = sizes.with(size);
            }
        }
        let ways = ebx >> 16;
        let Some(entries) = ways.checked_mul(ecx) else {
            return;
        };
        let ways = if edx & FULLY_ASSOCIATIVE != 0 {
            entries
        } else {
            ways
        };
        let one = Structure::new(entries, ways, sizes);
        // Arrays for stores alone (type 5) exist beside one for loads; the
        // model asks the one for loads for both.
        match (edx & 31, (edx >> 5) & 7) {
            (1 | 4, 1) => self.l1_data.extend(one),
            (2, 1) => self.l1_code.extend(one),
            (3, 1) => {
                self.l1_data.extend(one);
                self.l1_code.extend(one);
            }
            (1 | 4, 2) => self.l2_data.extend(one),
            (2, 2) => self.l2_code.extend(one),
            (3, 2) => self.l2_both.extend(one),
            _ => {}
        }
    }

    /// One descriptor of leaf 2. Those of the first processors with a small
    /// array in front of the data TLB (`DTLB0`) are read without it.
    fn read_descriptor(&mut self, byte: u8) {
        let place = match byte {
            0x01 | 0x02 | 0x0b | 0x4f..=0x52 | 0x55 | 0x61 | 0x76 | 0xb0..=0xb2 | 0xb5 | 0xb6 => {
                &mut self.l1_code
            }
            0xc1 | 0xc3 | 0xca => &mut self.l2_both,
            _ => &mut self.l1_data,
        };
        let large = PageSizes::of(&[Super]);
        let small = PageSizes::of(&[Base]);
        let both = PageSizes::of(&[Base, Super]);
        let giant = PageSizes::of(&[Giant]);
        let mut put = |entries, ways, sizes| place.extend(Structure::new(entries, ways, sizes));
        match byte {
            0x01 => put(32, 4, small),
            0x02 => put(2, 2, large),
            0x03 => put(64, 4, small),
            0x04 => put(8, 4, large),
            0x05 | 0x5a | 0xc4 => put(32, 4, large),
            0x0b => put(4, 4, large),
            0x4f => put(32, 32, small),
            0x50 | 0x5b => put(64, 64, both),
            0x51 | 0x5c => put(128, 128, both),
            0x52 | 0x5d => put(256, 256, both),
            0x55 => put(7, 7, large),
            0x61 => put(48, 48, small),
            0x63 => {
                put(32, 4, large);
                put(4, 4, giant);
            }
            0x64 => put(512, 4, small),
            0x6a => put(64, 8, small),
            0x6b => put(256, 8, small),
            0x6c => put(128, 8, large),
            0x6d => put(16, 16, giant),
            0x76 => put(8, 8, large),
            0xa0 => put(32, 32, small),
            0xb0 | 0xb3 => put(128, 4, small),
            0xb1 => put(8, 4, large),
            0xb2 | 0xba => put(64, 4, small),
            0xb4 => put(256, 4, small),
            0xb5 => put(64, 8, small),
            0xb6 => put(128, 8, small),
            0xc0 => put(8, 4, both),
            0xc1 => put(1024, 8, both),
            0xc2 => put(16, 4, both),
            0xc3 => {
                // Documented with 6 ways; 1536 entries in 128 sets have 12.
                put(1536, 12, both);
                put(16, 4, giant);
            }
            0xca => put(512, 4, small),
            _ => {}
        }
    }
}

/// The bytes of leaf 2 that are descriptors: those of registers whose highest
/// bit is clear, without the lowest byte of EAX.
fn descriptors(registers: [u32; 4]) -> impl Iterator<Item = u8> {
    registers
        .into_iter()
        .enumerate()
        .filter(|(_, register)| register >> 31 == 0)
        .flat_map(|(index, register)| {
            let bytes = register.to_le_bytes();
            bytes.into_iter().skip(usize::from(index == 0))
        })
}

/// Entries and ways from 16 bits of leaf 0x8000_0005: eight bits each.
fn amd_first(field: u32) -> Option<(u32, u32)> {
    let (entries, ways) = (field & 0xff, (field >> 8) & 0xff);
    match ways {
        0xff => Some((entries, entries)),
        ways => Some((entries, ways)),
    }
}

/// Entries and ways from 16 bits of the leaves after it: four bits of code for
/// the ways, and twelve bits.
fn amd_second(field: u32) -> Option<(u32, u32)> {
    let entries = field & 0xfff;
    let ways = match (field >> 12) & 0xf {
        1 => 1,
        2 => 2,
        3 => 3,
        4 => 4,
        5 => 6,
        6 => 8,
        8 => 16,
        0xa => 32,
        0xb => 48,
        0xc => 64,
        0xd => 96,
        0xe => 128,
        0xf => entries,
        _ => return None,
    };
    Some((entries, ways))
}

/// The arrays for these page sizes. AMD does not say whether sizes share an
/// array; sizes with the same number of entries are taken to share one, with
/// the ways of the smallest size, because its arrays since Zen do.
fn merged(parts: &[(PageSize, Option<(u32, u32)>)]) -> Vec<Structure> {
    let mut arrays: Vec<(u32, u32, PageSizes)> = Vec::new();
    for (size, part) in parts {
        let Some((entries, ways)) = *part else {
            continue;
        };
        match arrays.iter_mut().find(|array| array.0 == entries) {
            Some(array) => array.2 = array.2.with(*size),
            None => arrays.push((entries, ways, PageSizes::of(&[*size]))),
        }
    }
    let arrays = arrays.into_iter();
    arrays
        .filter_map(|(entries, ways, sizes)| Structure::new(entries, ways, sizes))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tlb::Tlb;

    fn known(leaves: &Leaves) -> String {
        let described = describe(leaves);
        assert!(described.assumed.is_empty(), "{described:?}");
        described.geometry.to_string()
    }

    fn amd(l1: [u32; 2], l2: [u32; 2], giant: [u32; 2]) -> Leaves {
        Leaves {
            amd_l1: l1,
            amd_l2: l2,
            amd_giant: giant,
            ..Leaves::default()
        }
    }

    #[test]
    fn amd_zen_2() {
        // Ryzen 9 (Matisse).
        let leaves = amd(
            [0xff40_ff40, 0xff40_ff40],
            [0x4800_6400, 0x6800_6400],
            [0xf040_f040, 0],
        );
        assert_eq!(
            known(&leaves),
            "l1d=64:full:4K+2M+1G,l1i=64:full:4K+2M+1G,l2d=2048:8:4K+2M,l2i=1024:8:4K+2M"
        );
    }

    #[test]
    fn amd_zen_3_in_a_virtual_machine() {
        // EPYC of family 25 whose hypervisor hides leaf 0x8000_0019.
        let leaves = amd(
            [0xff40_ff40, 0xff40_ff40],
            [0x4800_2200, 0x6800_4200],
            [0, 0],
        );
        assert_eq!(
            known(&leaves),
            "l1d=64:full:4K+2M,l1i=64:full:4K+2M,l2d=2048:8:4K+2M,l2i=512:4:4K+2M"
        );
    }

    #[test]
    fn intel_cascade_lake() {
        // Xeon Gold 6252: descriptors 63 03 76, b5 f0, c3.
        let leaves = Leaves {
            descriptors: [0x7603_6301, 0x00f0_b5ff, 0, 0x00c3_0000],
            ..Leaves::default()
        };
        assert_eq!(
            known(&leaves),
            "l1d=32:4:2M,l1d=4:full:1G,l1d=64:4:4K,l1i=8:full:2M,l1i=64:8:4K,\
             l2=1536:12:4K+2M,l2=16:4:1G"
        );
    }

    #[test]
    fn intel_alder_lake() {
        // Core i7-12700K; leaf 2 refers to leaf 0x18.
        let leaves = Leaves {
            descriptors: [0x00fe_ff01, 0xf0, 0, 0],
            parameters: vec![
                [8, 0, 0, 0],
                [0, 0x0008_0001, 0x20, 0x4022],
                [0, 0x0008_0006, 0x04, 0x4022],
                [0, 0x0010_000f, 0x01, 0x4125],
                [0, 0x0004_0001, 0x10, 0x4024],
                [0, 0x0004_0006, 0x08, 0x4024],
                [0, 0x0008_0008, 0x01, 0x4124],
                [0, 0x0008_0007, 0x80, 0x4043],
                [0, 0x0008_0009, 0x80, 0x4043],
            ],
            ..Leaves::default()
        };
        assert_eq!(
            known(&leaves),
            "l1d=64:4:4K,l1d=32:4:2M,l1d=8:full:1G,l1i=256:8:4K,l1i=32:8:2M,\
             l2=1024:8:4K+2M,l2=1024:8:4K+1G"
        );
    }

    #[test]
    fn what_is_hidden_is_assumed() {
        let described = describe(&Leaves::default());
        assert_eq!(described.geometry, Geometry::assumed());
        assert_eq!(described.assumed, ["l1d", "l1i", "l2"]);
    }

    proptest! {
        #[test]
        fn any_values_give_a_geometry_that_can_be_used(
            descriptors: [u32; 4],
            amd_l1: [u32; 2],
            amd_l2: [u32; 2],
            subleaf in proptest::option::of(proptest::array::uniform4(0u32..0x20_0000)),
            is_amd: bool,
        ) {
            let leaves = Leaves {
                descriptors,
                parameters: subleaf.into_iter().collect(),
                amd_l1: if is_amd { amd_l1 } else { [0; 2] },
                amd_l2,
                amd_giant: [0; 2],
            };
            let geometry = describe(&leaves).geometry;
            prop_assert!(!geometry.l1_data.is_empty() && !geometry.l1_code.is_empty());
            prop_assert_eq!(geometry.to_string().parse(), Ok(geometry.clone()));
            prop_assert_eq!(Tlb::new(&geometry).take_counts(), Default::default());
        }
    }
}

//! What kinds of machines there are.
//!
//! To a translation a machine is the form of its numbers: the order of bytes in integers,
//! and the formats of floating point numbers. Machines of the same form are compatible, and
//! nothing is translated between them. VAX formats exist only together with little-endian
//! integers, so there are four forms. Names of machines and architectures stand for them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The form of a machine's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// Least significant byte first, IEEE 754.
    Little,
    /// Most significant byte first, IEEE 754.
    Big,
    /// Integers with the least significant byte first, VAX F and D.
    VaxD,
    /// Integers with the least significant byte first, VAX F and G.
    VaxG,
}

/// The order of the bytes in an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// The format of floating point numbers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatFormat {
    /// IEEE 754 binary32 or binary64.
    Ieee,
    /// VAX F: 4 bytes, 8 bits of exponent, 24 of precision.
    VaxF,
    /// VAX D: 8 bytes, 8 bits of exponent, 56 of precision.
    VaxD,
    /// VAX G: 8 bytes, 11 bits of exponent, 53 of precision.
    VaxG,
}

/// The names of machines and architectures, with their forms. The first name of a form is
/// its own.
pub const PRESETS: [(&str, Machine); 29] = [
    ("little", Machine::Little),
    ("big", Machine::Big),
    ("vax-d", Machine::VaxD),
    ("vax-g", Machine::VaxG),
    ("x86-64", Machine::Little),
    ("x86", Machine::Little),
    ("aarch64", Machine::Little),
    ("arm", Machine::Little),
    ("riscv64", Machine::Little),
    ("loongarch64", Machine::Little),
    ("ppc64le", Machine::Little),
    ("mipsel", Machine::Little),
    ("alpha", Machine::Little),
    ("encore", Machine::Little),
    ("sparc", Machine::Big),
    ("sparc64", Machine::Big),
    ("sun-3", Machine::Big),
    ("sun-4", Machine::Big),
    ("m68k", Machine::Big),
    ("mips", Machine::Big),
    ("power", Machine::Big),
    ("ppc64", Machine::Big),
    ("s390x", Machine::Big),
    ("hppa", Machine::Big),
    ("ibm-rt", Machine::Big),
    ("vax", Machine::VaxD),
    ("microvax", Machine::VaxD),
    ("alpha-d", Machine::VaxD),
    ("alpha-g", Machine::VaxG),
];

impl Machine {
    /// All forms.
    pub const ALL: [Machine; 4] = [Machine::Little, Machine::Big, Machine::VaxD, Machine::VaxG];

    /// The machine that this program was built for.
    #[must_use]
    pub const fn native() -> Machine {
        if cfg!(target_endian = "big") {
            Machine::Big
        } else {
            Machine::Little
        }
    }

    /// The form's own name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Machine::Little => "little",
            Machine::Big => "big",
            Machine::VaxD => "vax-d",
            Machine::VaxG => "vax-g",
        }
    }

    /// The order of the bytes in its integers.
    #[must_use]
    pub const fn order(self) -> ByteOrder {
        match self {
            Machine::Big => ByteOrder::Big,
            Machine::Little | Machine::VaxD | Machine::VaxG => ByteOrder::Little,
        }
    }

    /// The format of its floating point numbers of 4 bytes.
    #[must_use]
    pub const fn float32(self) -> FloatFormat {
        match self {
            Machine::Little | Machine::Big => FloatFormat::Ieee,
            Machine::VaxD | Machine::VaxG => FloatFormat::VaxF,
        }
    }

    /// The format of its floating point numbers of 8 bytes.
    #[must_use]
    pub const fn float64(self) -> FloatFormat {
        match self {
            Machine::Little | Machine::Big => FloatFormat::Ieee,
            Machine::VaxD => FloatFormat::VaxD,
            Machine::VaxG => FloatFormat::VaxG,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown machine `{0}`: choose one of {known}", known = PRESETS.map(|(name, _)| name).join(", "))]
pub struct UnknownMachine(pub String);

impl FromStr for Machine {
    type Err = UnknownMachine;

    /// Reads the name of a form, or of a machine that has it, such as `big` or `sparc`.
    fn from_str(text: &str) -> Result<Machine, UnknownMachine> {
        let preset = PRESETS.iter().find(|(name, _)| *name == text);
        preset.map_or_else(
            || Err(UnknownMachine(text.to_owned())),
            |(_, machine)| Ok(*machine),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_as_they_are_printed() {
        for machine in Machine::ALL {
            assert_eq!(machine.to_string().parse(), Ok(machine));
            let json = serde_json::to_string(&machine).unwrap();
            assert_eq!(json, format!("\"{machine}\""));
            assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), machine);
        }
    }

    #[test]
    fn presets_stand_for_forms() {
        assert_eq!("x86-64".parse(), Ok(Machine::Little));
        assert_eq!("sparc".parse(), Ok(Machine::Big));
        assert_eq!("vax".parse(), Ok(Machine::VaxD));
        let names: std::collections::BTreeSet<&str> =
            PRESETS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), PRESETS.len());
    }

    #[test]
    fn unknown_machines_are_refused_with_the_known_ones() {
        let refused = "cray".parse::<Machine>().unwrap_err().to_string();
        assert!(refused.starts_with("unknown machine `cray`: choose one of little, big, vax-d"));
        assert!(refused.ends_with("alpha-g"));
        assert!("VAX-D".parse::<Machine>().is_err());
        assert!("".parse::<Machine>().is_err());
    }

    #[test]
    fn the_native_machine_is_what_its_integers_say() {
        let little = 1u16.to_ne_bytes()[0] == 1;
        assert_eq!(Machine::native().order() == ByteOrder::Little, little);
    }
}

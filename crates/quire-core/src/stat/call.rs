//! Which system call failed, and why: what [`Note::SystemCallFailed`] leaves out.
//!
//! [`Note::SystemCallFailed`]: super::Note::SystemCallFailed

use std::fmt;

use serde::{Deserialize, Serialize};

/// A system call that changes how an extent is mapped or watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
pub enum Call {
    /// `UFFDIO_REGISTER`.
    Register = 1,
    /// `UFFDIO_UNREGISTER`.
    Unregister = 2,
    /// `madvise(MADV_HUGEPAGE)`.
    AdviseHuge = 3,
    /// `madvise(MADV_NOHUGEPAGE)`.
    AdviseBase = 4,
}

impl Call {
    const ALL: [Call; 4] = [
        Call::Register,
        Call::Unregister,
        Call::AdviseHuge,
        Call::AdviseBase,
    ];

    /// Its name, as the manual pages have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Call::Register => "ioctl(UFFDIO_REGISTER)",
            Call::Unregister => "ioctl(UFFDIO_UNREGISTER)",
            Call::AdviseHuge => "madvise(MADV_HUGEPAGE)",
            Call::AdviseBase => "madvise(MADV_NOHUGEPAGE)",
        }
    }
}

/// A call that failed, with the kernel's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCall {
    /// The call.
    pub call: Call,
    /// Why, as `errno` has it.
    pub errno: i32,
}

impl FailedCall {
    /// One word; never zero, which stands for none.
    pub(super) fn encode(self) -> u64 {
        u64::from(self.call as u32) << 32 | u64::from(self.errno.cast_unsigned())
    }

    /// A word that no failure has says nothing.
    pub(super) fn decode(word: u64) -> Option<FailedCall> {
        let code = (word >> 32) as u32;
        let call = Call::ALL.into_iter().find(|call| *call as u32 == code)?;
        let errno = (word as u32).cast_signed();
        Some(FailedCall { call, errno })
    }
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = std::io::Error::from_raw_os_error(self.errno);
        write!(f, "{}: {why}", self.call.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for call in Call::ALL {
            for errno in [0, 1, 12, 4095, i32::MAX, -1] {
                let failed = FailedCall { call, errno };
                assert_ne!(failed.encode(), 0);
                assert_eq!(FailedCall::decode(failed.encode()), Some(failed));
            }
        }
        assert_eq!(FailedCall::decode(0), None);
        assert_eq!(FailedCall::decode(u64::MAX), None);
    }

    #[test]
    fn it_is_named_with_the_reason() {
        let call = Call::AdviseBase;
        let text = FailedCall { call, errno: 12 }.to_string();
        assert!(text.starts_with("madvise(MADV_NOHUGEPAGE): Cannot allocate memory"));
    }
}

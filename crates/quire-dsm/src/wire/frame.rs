//! The header of a frame, its limits, and what can be wrong with it. All numbers are little
//! endian.

use quire_core::units::BASE_PAGE;

/// The version of the protocol that is spoken here.
pub const VERSION: u16 = 12;

/// The first bytes of each frame.
pub const MAGIC: [u8; 4] = *b"QDSM";

/// A header, in bytes.
pub const HEADER: usize = 24;

/// Header and control part together fill whole blocks of this size, in bytes, so that a
/// payload after a short control part begins where the reader expects it.
pub const BLOCK: usize = 64;

/// The largest control part, in bytes.
pub const MAX_CONTROL: u32 = 64 << 10;

/// The largest payload, in bytes: 16 pages of 2 MiB.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The most pages in a message.
pub const MAX_PAGES: u32 = MAX_PAYLOAD / BASE_PAGE as u32;

/// Pages of objects are numbered below this: the largest object has 2^47 bytes.
pub const END_OF_OBJECTS: u64 = (1 << 47) / BASE_PAGE;

/// The most descriptors with a message.
pub const MAX_DESCRIPTORS: u8 = 8;

/// How much a peer may send in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Control part, in bytes.
    pub control: u32,
    /// Payload, in bytes.
    pub payload: u32,
    /// Descriptors.
    pub descriptors: u8,
}

impl Limits {
    /// As long as it has not said who it is.
    pub const GREETING: Limits = Limits {
        control: 2048,
        payload: 0,
        descriptors: 0,
    };

    /// Afterwards.
    pub const SESSION: Limits = Limits {
        control: MAX_CONTROL,
        payload: MAX_PAYLOAD,
        descriptors: MAX_DESCRIPTORS,
    };
}

/// What is wrong with bytes that should be a frame, or with a message that should become one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first bytes are not those of a frame.
    #[error("this is no frame ({0:02x?} instead of \"QDSM\"): maybe the peer is not quire")]
    Magic([u8; 4]),
    /// The first bytes are those of TLS.
    #[error("the peer begins a TLS session, and plain text is spoken here: set both to the same")]
    Tls,
    /// Another version of the protocol.
    #[error("the peer speaks version {theirs} of the protocol, we speak {ours}")]
    Version {
        /// What the peer speaks.
        theirs: u16,
        /// What is spoken here.
        ours: u16,
    },
    /// The header is damaged.
    #[error("the checksum of a frame's header is wrong")]
    HeaderChecksum,
    /// The control part is damaged.
    #[error("the checksum of a frame's control part is wrong")]
    ControlChecksum,
    /// Flags that nobody knows.
    #[error("a frame has unknown flags ({0:#04x})")]
    Flags(u8),
    /// The control part is too long.
    #[error("a frame's control part has {length} bytes, more than {limit}")]
    ControlSize {
        /// Its length, in bytes.
        length: u64,
        /// The most that it may have.
        limit: u32,
    },
    /// The payload is too long.
    #[error("a frame's payload has {length} bytes, more than {limit}")]
    PayloadSize {
        /// Its length, in bytes.
        length: u64,
        /// The most that it may have.
        limit: u32,
    },
    /// Too many descriptors.
    #[error("a frame has {count} descriptors, more than {limit}")]
    Descriptors {
        /// How many.
        count: usize,
        /// The most that it may have.
        limit: u8,
    },
    /// The control part is no message.
    #[error("a frame's control part cannot be decoded: {0}")]
    Undecodable(postcard::Error),
    /// The control part goes on after its message.
    #[error("a frame's control part has {0} bytes after its end")]
    Trailing(usize),
    /// The fill after the control part is not zero.
    #[error("a frame's fill is not zero")]
    Fill,
    /// Pages that no object has, or too many or none of them.
    #[error("a message is about pages {first} and on, {count} of them: there are no such pages")]
    Pages {
        /// The first.
        first: u64,
        /// How many.
        count: u32,
    },
    /// The message and its payload do not fit.
    #[error("a message's contents do not fit: {0}")]
    Contents(&'static str),
}

/// A header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many descriptors come with the frame.
    pub descriptors: u8,
    /// The control part, in bytes, without its fill.
    pub control: u32,
    /// The payload, in bytes.
    pub payload: u32,
    /// The control part's checksum.
    pub checksum: u32,
}

impl Header {
    /// Header, control part and fill, in bytes.
    #[must_use]
    pub const fn block(&self) -> usize {
        (HEADER + self.control as usize).next_multiple_of(BLOCK)
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[7] = self.descriptors;
        bytes[8..12].copy_from_slice(&self.control.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// From the first bytes of what was read; `None` while too few are there.
    ///
    /// # Errors
    /// When they are no header, or one that asks for more than the limits.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Option<Header>, WireError> {
        check_magic(bytes)?;
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let theirs = u16::from_le_bytes([bytes[4], bytes[5]]);
        if theirs != VERSION {
            return Err(WireError::Version {
                theirs,
                ours: VERSION,
            });
        }
        if crc32fast::hash(&bytes[..20]) != number(bytes, 20) {
            return Err(WireError::HeaderChecksum);
        }
        if bytes[6] != 0 {
            return Err(WireError::Flags(bytes[6]));
        }
        let header = Header {
            descriptors: bytes[7],
            control: number(bytes, 8),
            payload: number(bytes, 12),
            checksum: number(bytes, 16),
        };
        header.check(limits)?;
        Ok(Some(header))
    }

    /// Whether it keeps to the limits.
    ///
    /// # Errors
    /// When it does not.
    pub fn check(&self, limits: &Limits) -> Result<(), WireError> {
        if self.control > limits.control {
            return Err(WireError::ControlSize {
                length: self.control.into(),
                limit: limits.control,
            });
        }
        if self.payload > limits.payload {
            return Err(WireError::PayloadSize {
                length: self.payload.into(),
                limit: limits.payload,
            });
        }
        if self.descriptors > limits.descriptors {
            return Err(WireError::Descriptors {
                count: self.descriptors.into(),
                limit: limits.descriptors,
            });
        }
        Ok(())
    }
}

/// The first bytes, also where only some of them are there.
fn check_magic(bytes: &[u8]) -> Result<(), WireError> {
    let there = bytes.len().min(MAGIC.len());
    if bytes[..there] == MAGIC[..there] {
        return Ok(());
    }
    if bytes.starts_with(&[0x16, 0x03]) {
        return Err(WireError::Tls);
    }
    let mut wrong = [0; 4];
    wrong[..there].copy_from_slice(&bytes[..there]);
    Err(WireError::Magic(wrong))
}

/// The number at an offset of a header.
fn number(bytes: &[u8; HEADER], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

//! Why something cannot be had: what the program is told, and a line for the log.

use std::ffi::c_int;

use quire_dsm::client::ClientError;
use quire_dsm::node::MappingError;
use quire_dsm::wire::control::FailureKind;

/// Why something cannot be had.
#[derive(Debug)]
pub struct Trouble {
    /// What the program is told.
    pub errno: c_int,
    /// What people are told.
    pub text: String,
}

/// What a call gives.
pub type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// A trouble.
    pub fn new(errno: c_int, text: impl Into<String>) -> Trouble {
        Trouble {
            errno,
            text: text.into(),
        }
    }

    /// What the C library has just said (`errno`).
    pub fn last(text: &str) -> Trouble {
        let error = std::io::Error::last_os_error();
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Trouble::new(errno, format!("{text}: {error}"))
    }

    /// Whether the user should know. That something is there already, or not yet, is what
    /// programs ask for.
    pub fn is_worth_telling(&self) -> bool {
        !matches!(self.errno, libc::ENOENT | libc::EEXIST)
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Trouble {
        let errno = match &error {
            ClientError::Unreachable {
                is_denied: true, ..
            } => libc::EACCES,
            ClientError::Unreachable { .. } => libc::EHOSTUNREACH,
            ClientError::Refused(failure) => refused(failure.kind),
            ClientError::Mapping(error) => unmapped(error),
            ClientError::System(error) => error.raw_os_error().unwrap_or(libc::EIO),
            ClientError::Confused => libc::EPROTO,
            ClientError::Lost { .. } => libc::EIO,
            ClientError::Changed(_) => libc::ESTALE,
            ClientError::Apart(_) | ClientError::Failed { .. } => libc::ENOTCONN,
        };
        Trouble::new(errno, error.to_string())
    }
}

fn refused(kind: FailureKind) -> c_int {
    match kind {
        FailureKind::NotFound | FailureKind::Begun => libc::ENOENT,
        FailureKind::Exists => libc::EEXIST,
        FailureKind::Denied => libc::EACCES,
        FailureKind::Invalid => libc::EINVAL,
        FailureKind::Busy => libc::EBUSY,
        FailureKind::Full => libc::ENOSPC,
        FailureKind::Unavailable => libc::EAGAIN,
    }
}

fn unmapped(error: &MappingError) -> c_int {
    match error {
        MappingError::Unaligned => libc::EINVAL,
        MappingError::Uffd(errno)
        | MappingError::Addresses(errno)
        | MappingError::Register(errno)
        | MappingError::Replace(errno) => errno.0,
    }
}

/// Opens something, which may be made: once more as often as it was there, and was removed before it was
/// open.
pub fn opened_in_the_end<T>(makes: bool, mut open: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match open() {
            Err(trouble) if trouble.errno == libc::ENOENT && makes => {}
            opened => return opened,
        }
    }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives the address of this thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

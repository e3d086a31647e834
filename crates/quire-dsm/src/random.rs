//! Numbers that nobody else has: they name servers, objects and leases, and are secrets of the
//! store's log.

use std::hash::{BuildHasher, Hasher};
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// A number that nobody can guess.
///
/// # Errors
/// What the kernel said.
pub(crate) fn secret() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // So few bytes come at once or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A number that nobody else has; never 0.
pub(crate) fn random() -> u64 {
    // Old kernels only fail: each of these is hashed with keys of its own.
    let hashed = |_| {
        let state = std::collections::hash_map::RandomState::new();
        state.build_hasher().finish()
    };
    secret().unwrap_or_else(hashed).max(1)
}

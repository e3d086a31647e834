//! Numbers that nobody else has: they name servers, objects and leases.

/// A number that nobody else has.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes).max(1),
        // Old kernels only: each of these is hashed with keys of its own.
        _ => {
            use std::hash::{BuildHasher, Hasher};
            let state = std::collections::hash_map::RandomState::new();
            state.build_hasher().finish().max(1)
        }
    }
}

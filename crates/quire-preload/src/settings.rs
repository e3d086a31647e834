//! What the user chose. It is read once, when the library starts: into memory of the library, without allocating,
//! as the program may change its environment later.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use quire_core::attach::CpuShare;
use quire_core::config::{ENV_ADVICE, ENV_CPU, ENV_POLICY, ENV_SESSION, Policy};
use quire_linux::sysinfo::process::disable_huge_pages;

use crate::beside;

/// The longest path of a session directory that is kept.
const LONGEST: usize = 256;

static POLICY: AtomicU32 = AtomicU32::new(Policy::Base.code());
static CPU: AtomicU32 = AtomicU32::new(0);
static SESSION: Text = Text {
    bytes: UnsafeCell::new([0; LONGEST]),
    len: AtomicUsize::new(0),
};

/// A text that is written once, before anybody reads it.
struct Text {
    bytes: UnsafeCell<[u8; LONGEST]>,
    len: AtomicUsize,
}

// SAFETY: it is written only by `read`, when the library starts, and read after its length has been set.
unsafe impl Sync for Text {}

/// The value of a variable of the environment.
fn variable(name: &'static CStr) -> Option<&'static str> {
    // SAFETY: the name is a C string. The value is read at once, when the program's own code has not begun.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the C library gives a C string.
    unsafe { CStr::from_ptr(value) }.to_str().ok()
}

/// Reads the environment. A value that cannot be read is `quire run`'s business to refuse; here the program must
/// go on, and nothing is done to it.
pub fn read() {
    const NAMES: [&CStr; 4] = [
        c"QUIRE_POLICY",
        c"QUIRE_CPU",
        c"QUIRE_SESSION",
        c"QUIRE_ADVICE",
    ];
    debug_assert!(
        NAMES
            .iter()
            .zip([ENV_POLICY, ENV_CPU, ENV_SESSION, ENV_ADVICE])
            .all(|(c, name)| c.to_bytes() == name.as_bytes())
    );
    // Beside a library that provides memory, the policy is that library's.
    let advice = variable(NAMES[3]).filter(|_| beside::provides());
    let name = advice.or_else(|| variable(NAMES[0]));
    let name = name.unwrap_or(Policy::default().name());
    POLICY.store(of_name(name).code(), Ordering::Relaxed);
    let share = variable(NAMES[1]).and_then(|text| text.parse::<f64>().ok());
    let hundredths = share.map_or(0, |percent| (percent * 100.0).clamp(1.0, 10_000.0) as u32);
    CPU.store(hundredths, Ordering::Relaxed);
    if let Some(path) = variable(NAMES[2]).filter(|path| path.len() <= LONGEST) {
        // SAFETY: nobody reads it before its length is set, and this runs once.
        unsafe { (&mut *SESSION.bytes.get())[..path.len()].copy_from_slice(path.as_bytes()) };
        SESSION.len.store(path.len(), Ordering::Release);
    }
    // `quire run` has done so; who preloads the library by hand has not.
    if name == Policy::Base.name() {
        disable_huge_pages(true);
    }
}

/// Whether the process was given objects of servers as its shared memory (`quire run --dsm`).
pub fn has_objects() -> bool {
    variable(c"QUIRE_DSM_ASKED").is_some()
}

/// A policy that only advises; others are not this library's, and no thread is started under them.
fn of_name(text: &str) -> Policy {
    let known = [Policy::Adaptive, Policy::Eager];
    let found = known.into_iter().find(|policy| policy.name() == text);
    found.unwrap_or(Policy::Base)
}

/// The policy.
pub fn policy() -> Policy {
    Policy::from_code(POLICY.load(Ordering::Relaxed)).unwrap_or(Policy::Base)
}

/// Another policy from now on, also for children.
pub fn set_policy(policy: Policy) {
    POLICY.store(policy.code(), Ordering::Relaxed);
}

/// Whether there is a helper under the policy.
pub fn has_helper() -> bool {
    policy() != Policy::Base
}

/// The share of a processor that copies may take.
pub fn share() -> CpuShare {
    match CPU.load(Ordering::Relaxed) {
        0 => CpuShare::FOR_COPIES,
        hundredths => {
            CpuShare::from_percent(f64::from(hundredths) / 100.0).unwrap_or(CpuShare::FOR_COPIES)
        }
    }
}

/// The session directory.
pub fn session() -> Option<&'static str> {
    let len = SESSION.len.load(Ordering::Acquire);
    // SAFETY: it was written before the length was set, and is not written again.
    let bytes = unsafe { &(&*SESSION.bytes.get())[..len] };
    std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

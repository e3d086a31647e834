//! The decoder takes any bytes without a panic, and never takes more memory than a message
//! may have. `cargo test --release -p quire-dsm --test wire_fuzz -- --ignored` goes on for
//! a minute, or for as many seconds as `QUIRE_FUZZ_SECONDS` says.

mod wire_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quire_core::units::ObjectOffset;
use quire_dsm::wire::frame::{MAGIC, MAX_PAYLOAD};
use quire_dsm::wire::{Control, Decoder, Lent, Limits, Loans, Pool, VERSION, WireError};
use wire_support::{bytes_of, message, scatter};

/// Counts what each thread takes and gives back, in bytes.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

fn count(more: usize, less: usize) {
    // Not while the thread ends.
    let _ = NOW.try_with(|now| {
        now.set((now.get() + more).saturating_sub(less));
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: all is done by the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most memory that was taken meanwhile, in bytes.
fn most_memory(work: impl FnOnce()) -> usize {
    let before = NOW.get();
    MOST.set(before);
    work();
    MOST.get() - before
}

/// A file in which contents may have a place.
struct Places {
    file: Arc<OwnedFd>,
    loans: Loans,
}

impl Places {
    fn new() -> Places {
        let file = rustix::fs::memfd_create(c"places", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, MAX_PAYLOAD.into()).unwrap();
        Places {
            file: Arc::new(file),
            loans: Loans::default(),
        }
    }

    /// A place for pages of 4 KiB, which those of a message need not be.
    fn of(&self, message: &Control) -> Option<Arc<Lent>> {
        let pages = match message {
            Control::ToKernel { message, .. } => message.pages(),
            _ => return None,
        };
        let length = pages.count as usize * 4096;
        Some(
            self.loans
                .lend(&self.file, ObjectOffset(0), length, &Pool::new()),
        )
    }
}

/// Feeds bytes until they end or are refused, and says why; messages are dropped as they come.
fn feed(bytes: &[u8], limits: Limits, places: Option<&Places>) -> Option<WireError> {
    let mut decoder = Decoder::new(limits, Pool::new());
    let mut rest = bytes;
    loop {
        loop {
            match decoder.message_with(&mut |message| places?.of(message)) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Some(error),
            }
        }
        if rest.is_empty() {
            return None;
        }
        let to_file = decoder.fill_file(|file, at, length| {
            let part = &rest[..rest.len().min(length)];
            Ok(Some(rustix::io::pwrite(file, part, at)?))
        });
        let read = match to_file.unwrap() {
            Some(read) => Ok(read),
            None => decoder.fill(|pieces| Ok(scatter(rest, pieces))),
        };
        rest = &rest[read.unwrap().bytes..];
    }
}

/// What a decoder may take: its memory at first, a control part with what is made of it,
/// and a payload, which begins at a page boundary and fills a power of two of pages.
fn allowance(limits: Limits) -> usize {
    let control = (1 << 20) + 8 * limits.control as usize;
    (64 << 10) + control + 2 * (limits.payload as usize).next_power_of_two()
}

/// Why it is refused in a session, if it is.
fn check(bytes: &[u8]) -> Option<WireError> {
    let places = Places::new();
    let mut refused = Vec::new();
    for limits in [Limits::GREETING, Limits::SESSION] {
        for places in [None, Some(&places)] {
            let most = most_memory(|| refused.push(feed(bytes, limits, places)));
            assert!(most <= allowance(limits), "{most} bytes for {limits:?}");
        }
    }
    let in_session = refused.pop().flatten();
    assert_eq!(refused.pop().flatten(), in_session, "in a file or not");
    in_session
}

/// The first bytes of a header.
fn beginning() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.resize(8, 0);
    bytes
}

/// Makes checksums right again, so that what is behind them is met, too.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < 64 {
        return;
    }
    let control = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
    if let Some(control) = bytes.get(24..24 + control) {
        let checksum = crc32fast::hash(control);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = crc32fast::hash(&bytes[..20]);
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
}

fn flip(bytes: &mut [u8], flips: &[(prop::sample::Index, u8)]) {
    for (at, bit) in flips {
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << (bit % 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..2000)) {
        check(&bytes);
    }

    #[test]
    fn random_control_parts(control in vec(any::<u8>(), 0..500), payload in 0_u32..4) {
        let mut bytes = beginning();
        bytes.extend_from_slice(&(control.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(payload * 4096).to_le_bytes());
        bytes.resize(24, 0);
        bytes.extend_from_slice(&control);
        bytes.resize(bytes.len().next_multiple_of(64) + payload as usize * 4096, 0);
        seal(&mut bytes);
        let refused = check(&bytes);
        // They get as far as that.
        let is_in_control = matches!(
            refused,
            None | Some(
                WireError::Undecodable(_)
                    | WireError::Trailing(_)
                    | WireError::Pages { .. }
                    | WireError::Contents(_)
            )
        );
        prop_assert!(is_in_control, "{refused:?}");
    }

    #[test]
    fn flipped_bits(
        message in message(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        sealed in any::<bool>(),
    ) {
        let mut bytes = bytes_of(&[message]);
        let near = bytes.len().min(256);
        flip(&mut bytes[..near], &flips);
        if sealed {
            seal(&mut bytes);
        }
        check(&bytes);
    }

    #[test]
    fn truncated(message in message(), keep in any::<prop::sample::Index>()) {
        let bytes = bytes_of(&[message]);
        check(&bytes[..keep.index(bytes.len())]);
    }
}

/// A header that asks for much does not get it before it is checked.
#[test]
fn what_a_header_asks_for_is_not_taken_at_once() {
    let header = |control: u32, payload: u32| {
        let mut bytes = beginning();
        bytes.extend_from_slice(&control.to_le_bytes());
        bytes.extend_from_slice(&payload.to_le_bytes());
        bytes.resize(64, 0);
        seal(&mut bytes);
        bytes
    };
    for bytes in [
        header(u32::MAX, 0),
        header(0, u32::MAX),
        header(10, 32 << 20),
    ] {
        let mut refused = None;
        let most = most_memory(|| refused = feed(&bytes, Limits::SESSION, None));
        assert!(refused.is_some() && most < 64 << 10, "{most} bytes");
    }
}

/// The same without end, almost.
#[test]
#[ignore = "runs for a minute, or QUIRE_FUZZ_SECONDS"]
fn for_long() {
    let seconds = std::env::var("QUIRE_FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(60));
    let mut runner = TestRunner::default();
    let flips = vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let input = (
        vec(message(), 1..4),
        flips,
        any::<[bool; 3]>(),
        any::<prop::sample::Index>(),
    );
    let mut cases = 0_u64;
    while Instant::now() < end {
        let tree = input.new_tree(&mut runner).unwrap();
        let (messages, flips, [sealed, near, cut], keep) = tree.current();
        let mut bytes = bytes_of(&messages);
        let reach = if near {
            bytes.len().min(128)
        } else {
            bytes.len()
        };
        flip(&mut bytes[..reach], &flips);
        if sealed {
            seal(&mut bytes);
        }
        if cut {
            bytes.truncate(keep.index(bytes.len()));
        }
        check(&bytes);
        cases += 1;
    }
    println!("{cases} cases");
}

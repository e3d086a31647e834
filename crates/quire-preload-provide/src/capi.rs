//! The C interface, `include/quire.h`: what a program asks of Quire by itself.
//!
//! The functions follow POSIX: they return -1 or a null pointer and set `errno`. What
//! they do is in `quire_vm::frames`; here arguments are read and checked, and results
//! are written. Pointers of the program are used with no lock held, since what they name
//! can be memory that waits for `quire-frames`.
//!
//! | module | holds |
//! |---|---|
//! | `arguments` | what is passed, read and checked |
//! | `refusal` | why a call fails |

mod arguments;
mod refusal;

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use quire_core::frames::colour::{Colours, ColoursError};
use quire_core::frames::remap::{Left, Outcome, Reason};
use quire_core::frames::spec::StrategySpec;
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, Frame};
use quire_vm::frames::{self, Page, RecordError, Which};

use self::refusal::{Refusal, Result};
use crate::frames as choice;
use crate::frames::overrides;
use crate::{MANAGER, mappings, set_errno};

/// `QUIRE_API`.
const API: c_int = 1;
/// `QUIRE_FRAME_HIDDEN`.
const FRAME_HIDDEN: u64 = u64::MAX;
/// `QUIRE_COLOUR_UNKNOWN`.
const COLOUR_UNKNOWN: u32 = u32::MAX;

/// `struct quire_page`.
#[repr(C)]
struct CPage {
    address: u64,
    frame: u64,
    colour: u32,
    flags: u32,
}

/// `struct quire_remap`.
#[repr(C)]
struct CRemap {
    moved: u64,
    kept: u64,
    made_way: u64,
    missing: u64,
    left: u64,
    left_ranges: u64,
}

/// `struct quire_left`.
#[repr(C)]
struct CLeft {
    address: u64,
    pages: u64,
    reason: u32,
    unused: u32,
}

/// Takes a refusal to `errno`.
fn answer<T>(result: Result<T>, failed: T) -> T {
    result.unwrap_or_else(|refusal| {
        set_errno(refusal.errno);
        failed
    })
}

fn status(result: Result<()>) -> c_int {
    answer(result.map(|()| 0), -1)
}

#[unsafe(no_mangle)]
extern "C" fn quire_api() -> c_int {
    API
}

#[unsafe(no_mangle)]
extern "C" fn quire_start() -> c_int {
    status(choice::ensure().map(drop).map_err(Refusal::from))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_set_colour_bits(bits: *const c_char) -> c_int {
    // SAFETY: the header asks for a C string.
    let bits = unsafe { arguments::text(bits, "the colour bits") };
    status(bits.and_then(|bits| set_colour_bits(&bits)))
}

fn set_colour_bits(bits: &str) -> Result<()> {
    let given: Colours = bits
        .parse()
        .map_err(|error: ColoursError| Refusal::argument(error.to_string()))?;
    match *choice::decide_colours(Some(given.clone())) == given {
        true => Ok(()),
        false => Err(Refusal::new(
            libc::EBUSY,
            "other colour bits are in use already",
        )),
    }
}

#[unsafe(no_mangle)]
extern "C" fn quire_colours() -> c_int {
    choice::decide_colours(None).count() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn quire_colour_of(frame: u64) -> u32 {
    match frame {
        FRAME_HIDDEN => COLOUR_UNKNOWN,
        frame => choice::decide_colours(None).of(Frame(frame)).0,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_check(strategy: *const c_char, why: *mut c_char, size: usize) -> c_int {
    // SAFETY: the header asks for a C string.
    let strategy = unsafe { arguments::text(strategy, "the strategy") };
    let checked = strategy.and_then(|strategy| arguments::which(&strategy).map(drop));
    let text = checked.as_ref().err().map_or("", |refusal| &refusal.text);
    if !why.is_null() && size > 0 {
        // SAFETY: the header asks for so many bytes, to which nothing else refers.
        unsafe { write_text(text, why, size) };
    }
    status(checked)
}

/// Writes a C string, cut at a character where it does not fit.
///
/// # Safety
/// `size` bytes can be written at `to`; it is at least 1.
unsafe fn write_text(text: &str, to: *mut c_char, size: usize) {
    let fits = (0..size.min(text.len() + 1)).rev();
    let len = fits.into_iter().find(|len| text.is_char_boundary(*len));
    let len = len.unwrap_or(0);
    // SAFETY: no more than `size` bytes with the last zero, as the caller says.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        to.add(len).write(0);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_set_default(strategy: *const c_char) -> c_int {
    // SAFETY: the header asks for a C string.
    let strategy = unsafe { arguments::text(strategy, "the strategy") };
    let which = strategy.and_then(|strategy| arguments::which(&strategy));
    status(which.map(overrides::set_for_all))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_hint(
    address: *mut c_void,
    size: usize,
    strategy: *const c_char,
) -> c_int {
    // SAFETY: the header asks for a C string.
    let strategy = unsafe { arguments::text(strategy, "the strategy") };
    let which = arguments::range(address, size).and_then(|range| {
        let which = arguments::which(&strategy?)?;
        Ok((range, which))
    });
    status(which.map(|(range, which)| hint(range, which)))
}

fn hint(range: AddrRange, which: Which) {
    overrides::set(range, which);
    frames::know(&MANAGER, range);
    frames::place_known(range, which);
}

#[unsafe(no_mangle)]
extern "C" fn quire_unhint(address: *mut c_void, size: usize) -> c_int {
    status(arguments::range(address, size).map(|range| {
        overrides::remove(range);
        frames::place_known(range, Which::KERNEL);
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_alloc(size: usize, strategy: *const c_char) -> *mut c_void {
    // SAFETY: the header asks for a C string.
    let strategy = unsafe { arguments::text(strategy, "the strategy") };
    let memory = strategy
        .and_then(|strategy| arguments::which(&strategy))
        .and_then(|which| Ok(frames::allocate(Bytes(size as u64), which)?));
    let start = memory.map(|range| range.start.as_ptr().cast());
    answer(start, ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_free(address: *mut c_void, size: usize) -> c_int {
    let whole = (size as u64).checked_next_multiple_of(BASE_PAGE);
    let whole = whole.unwrap_or(u64::MAX) as usize;
    match arguments::range(address, whole) {
        // SAFETY: the caller gives the memory up.
        Ok(_) => unsafe { mappings::unmap(address, whole) },
        Err(refusal) => status(Err(refusal)),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_read_map(
    address: *const c_void,
    size: usize,
    pages: *mut CPage,
    count: usize,
) -> isize {
    let read = arguments::range(address, size).and_then(|range| {
        if pages.is_null() || (count as u64) < range.len().to_pages().0 {
            return Err(Refusal::argument("there is no room for all pages"));
        }
        let colours = choice::decide_colours(None);
        let mut next = 0;
        frames::pages(range, |page| {
            // SAFETY: the header asks for room for `count` pages, and there are no more
            // in the range.
            unsafe { pages.add(next).write(told(&page, colours)) };
            next += 1;
        })?;
        Ok(next as isize)
    });
    answer(read, -1)
}

fn told(page: &Page, colours: &Colours) -> CPage {
    let flags = [
        page.present,
        page.swapped,
        page.shared,
        page.zero,
        page.superpage,
    ];
    let flags = flags.iter().enumerate();
    CPage {
        address: page.address.0,
        frame: page.frame.map_or(FRAME_HIDDEN, |frame| frame.0),
        colour: page
            .frame
            .map_or(COLOUR_UNKNOWN, |frame| colours.of(frame).0),
        flags: flags.map(|(bit, is)| u32::from(*is) << bit).sum(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_remap(
    address: *mut c_void,
    size: usize,
    strategy: *const c_char,
    result: *mut CRemap,
    left: *mut CLeft,
    capacity: usize,
) -> c_int {
    // SAFETY: the header asks for a C string.
    let strategy = unsafe { arguments::text(strategy, "the strategy") };
    let outcome = arguments::range(address, size).and_then(|range| remap(range, &strategy?));
    status(outcome.map(|outcome| {
        if !result.is_null() {
            // SAFETY: the header asks for room for one.
            unsafe { result.write(totals(&outcome)) };
        }
        let capacity = if left.is_null() { 0 } else { capacity };
        for (n, part) in outcome.left.iter().take(capacity).enumerate() {
            // SAFETY: the header asks for room for `capacity` of them.
            unsafe { left.add(n).write(told_left(part)) };
        }
    }))
}

/// Moves the pages of a range, and waits until that is done.
fn remap(range: AddrRange, strategy: &str) -> Result<Outcome> {
    let (spec, colours) = arguments::strategy(strategy)?;
    let which = arguments::named(&spec, colours)?;
    frames::know(&MANAGER, range);
    let outcome = frames::remap(range, which)?.wait();
    if spec == StrategySpec::Default {
        // What is touched later is the kernel's business again.
        frames::place_known(range, Which::KERNEL);
    }
    Ok(outcome)
}

fn totals(outcome: &Outcome) -> CRemap {
    CRemap {
        moved: outcome.moved.0,
        kept: outcome.kept.0,
        made_way: outcome.made_way.0,
        missing: outcome.missing.0,
        left: outcome.pages_left().0,
        left_ranges: outcome.left.len() as u64,
    }
}

fn told_left(left: &Left) -> CLeft {
    let reasons = Reason::ALL.iter().zip(1..);
    let number = reasons
        .filter(|(reason, _)| **reason == left.reason)
        .map(|(_, number)| number);
    CLeft {
        address: left.range.start.0,
        pages: left.range.len().to_pages().0,
        reason: number.sum(),
        unused: 0,
    }
}

#[unsafe(no_mangle)]
extern "C" fn quire_left_text(reason: u32) -> *const c_char {
    let reasons = Reason::ALL.iter().zip(1..);
    let known = reasons.filter(|(_, number)| *number == reason).last();
    known
        .map_or(c"no known reason", |(known, _)| known.c_text())
        .as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_record(
    address: *const c_void,
    size: usize,
    file: *const c_char,
) -> isize {
    // SAFETY: the header asks for a C string.
    let file = unsafe { arguments::path(file) };
    let recorded = arguments::range(address, size).and_then(|range| {
        let colours = choice::decide_colours(None);
        let recorded = frames::record(range, colours, &file?);
        recorded.map_err(|error| not_recorded(&error))
    });
    answer(recorded.map(|pages| pages.0 as isize), -1)
}

fn not_recorded(error: &RecordError) -> Refusal {
    let errno = match error {
        RecordError::Nothing => libc::ENODATA,
        RecordError::Hidden => libc::EPERM,
        RecordError::File(error) => error.raw_os_error().unwrap_or(libc::EIO),
        RecordError::Map(_) => libc::ENOTSUP,
    };
    Refusal::new(errno, error.to_string())
}

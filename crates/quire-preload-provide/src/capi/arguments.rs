//! What a C program passes, read and checked. Nothing is looked at while a lock is held:
//! texts can lie in memory that has a strategy and has not been touched.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use quire_core::frames::colour::Colours;
use quire_core::frames::record::Record;
use quire_core::frames::spec::{SpecError, StrategySpec};
use quire_core::units::{AddrRange, BASE_PAGE, Bytes, VirtAddr};
use quire_linux::pagemap;
use quire_vm::frames::{self, Which};

use super::refusal::{Refusal, Result};
use crate::frames as choice;

/// Programs have addresses below this one.
const ADDRESS_END: u64 = 1 << 47;

/// A text of the program's.
///
/// # Safety
/// The pointer is null, or names a C string.
pub unsafe fn text(pointer: *const c_char, what: &str) -> Result<String> {
    if pointer.is_null() {
        return Err(Refusal::argument(format!("{what} is a null pointer")));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(pointer) };
    let text = text.to_str().map(str::to_owned);
    text.map_err(|_| Refusal::argument(format!("{what} is no UTF-8 text")))
}

/// Whole pages of the program's address space, at least one.
pub fn range(address: *const c_void, size: usize) -> Result<AddrRange> {
    let (start, size) = (address as u64, size as u64);
    let end = start.checked_add(size).filter(|end| *end <= ADDRESS_END);
    if end.is_none() {
        return Err(Refusal::argument(
            "the range reaches beyond the addresses that a program has",
        ));
    }
    if start == 0 || size == 0 {
        return Err(Refusal::argument("the range is empty or begins at NULL"));
    }
    if !start.is_multiple_of(BASE_PAGE) || !size.is_multiple_of(BASE_PAGE) {
        return Err(Refusal::argument(
            "the range does not begin and end with a page of 4096 bytes",
        ));
    }
    Ok(AddrRange::new(VirtAddr(start), Bytes(size)))
}

/// A strategy that can be used here, and the colours of this process. Frames are given by
/// strategy when this returns.
pub fn strategy(text: &str) -> Result<(StrategySpec, &'static Colours)> {
    let spec: StrategySpec = text
        .parse()
        .map_err(|error: SpecError| Refusal::argument(error.to_string()))?;
    let colours = choice::ensure()?;
    let known = colours.count() > 1;
    match &spec {
        StrategySpec::Colour { .. } | StrategySpec::BinHop(_) | StrategySpec::Modulo(_)
            if !known =>
        {
            return Err(Refusal::new(
                libc::ENOTSUP,
                "this machine has no cache whose colours are known: give the address bits with quire_set_colour_bits or --colour-bits",
            ));
        }
        StrategySpec::Exact(_) if !shows_frames() => {
            return Err(Refusal::new(
                libc::EPERM,
                "`exact` needs frame numbers, which the kernel hides from those without CAP_SYS_ADMIN",
            ));
        }
        _ => (),
    }
    spec.check(colours)
        .map_err(|error| Refusal::new(libc::ERANGE, error.to_string()))?;
    if let Some(file) = spec.record_file() {
        let text = std::fs::read_to_string(file)?;
        let read = text.parse::<Record>();
        read.map_err(|error| Refusal::new(libc::EBADMSG, format!("{file}: {error}")))?;
    }
    Ok((spec, colours))
}

/// The number of a strategy for memory that is placed; `default` is the kernel's choice.
pub fn which(text: &str) -> Result<Which> {
    let (spec, colours) = strategy(text)?;
    match spec {
        StrategySpec::Default => Ok(Which::KERNEL),
        spec => named(&spec, colours),
    }
}

/// The number of a strategy, also of the one that takes any frame.
pub fn named(spec: &StrategySpec, colours: &Colours) -> Result<Which> {
    let named = frames::strategy(spec, colours);
    named.map_err(|why| Refusal::new(libc::ENOTSUP, why))
}

/// Whether the kernel shows frame numbers to this process: that of a page of the stack,
/// which is there.
fn shows_frames() -> bool {
    let here = std::hint::black_box(1u8);
    let page = VirtAddr(std::ptr::from_ref(std::hint::black_box(&here)) as u64).page_floor();
    quire_vm::apart(|| {
        let pagemap = pagemap::open();
        pagemap.is_ok_and(|fd| pagemap::frame(fd.as_fd(), page).is_some())
    })
}

/// The name of a file.
///
/// # Safety
/// The pointer is null, or names a C string.
pub unsafe fn path(pointer: *const c_char) -> Result<PathBuf> {
    // SAFETY: as the caller says.
    let text = unsafe { text(pointer, "the name of the file") }?;
    match text.is_empty() {
        true => Err(Refusal::new(libc::ENOENT, "the name of the file is empty")),
        false => Ok(Path::new(&text).to_owned()),
    }
}

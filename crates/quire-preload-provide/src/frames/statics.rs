//! Static data that begins as zeros (`.bss`) of the program and of the libraries that are
//! loaded when it begins. Behind the part of a segment that comes from the file it is
//! private anonymous memory, whole pages of it. What comes from the file stays the
//! kernel's, and so do libraries that are loaded later: whoever stands between a program
//! and `dlopen` changes where libraries are found.
//!
//! This library, the C library and the loader are left out: `quire-frames` and whoever
//! holds a lock that it takes use their data. Of plug-ins the same is true, so with one
//! only the program's own data takes part by itself.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use quire_core::frames::config::FrameConfig;
use quire_core::frames::hints::Target;
use quire_core::frames::spec::StrategySpec;
use quire_core::units::{AddrRange, BASE_PAGE, VirtAddr};

use super::{Kind, choice, names, place_as, place_existing};

/// The program or a library.
pub struct Object {
    /// Its file, as the loader names it; empty for the program.
    file: PathBuf,
    /// From its first address to its last.
    pub whole: AddrRange,
    /// Its static data without contents in the file.
    zeroed: Vec<AddrRange>,
}

impl Object {
    /// Whether an address lies in it.
    pub fn holds(&self, at: VirtAddr) -> bool {
        self.whole.start <= at && at < self.whole.end
    }

    fn is_program(&self) -> bool {
        self.file.as_os_str().is_empty()
    }

    /// What it may be called: its path or the last part of it, before or after links are
    /// followed.
    fn names(&self) -> Vec<String> {
        let path = match self.is_program() {
            true => Path::new("/proc/self/exe"),
            false => &self.file,
        };
        let followed = std::fs::canonicalize(path).ok();
        let paths = [Some(self.file.clone()), followed];
        let text = |name: &OsStr| name.to_string_lossy().into_owned();
        let names = |path: PathBuf| [Some(text(path.as_os_str())), path.file_name().map(text)];
        paths
            .into_iter()
            .flatten()
            .flat_map(names)
            .flatten()
            .collect()
    }
}

/// What is loaded, the program first.
pub fn loaded() -> Vec<Object> {
    let mut found: Vec<Object> = Vec::new();
    // SAFETY: `note` takes what it is given here, and this outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn note(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader describes an object that stays loaded during the call, and
    // `loaded` passes its list.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Object>>()) };
    // SAFETY: as before.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let segments = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD);
    let at = |offset: u64| VirtAddr(info.dlpi_addr.wrapping_add(offset));
    let starts = segments.clone().map(|s| at(s.p_vaddr)).min();
    let ends = segments.clone().map(|s| at(s.p_vaddr + s.p_memsz)).max();
    let zeroed = segments
        .filter(|s| s.p_flags & libc::PF_W != 0)
        .map(|s| AddrRange {
            start: page_ceil(at(s.p_vaddr + s.p_filesz)),
            end: page_ceil(at(s.p_vaddr + s.p_memsz)),
        });
    let file = match info.dlpi_name.is_null() {
        true => &[],
        // SAFETY: the loader gives a C string.
        false => unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes(),
    };
    if let (Some(start), Some(end)) = (starts, ends) {
        found.push(Object {
            file: OsStr::from_bytes(file).into(),
            whole: AddrRange { start, end },
            zeroed: zeroed.filter(|range| !range.is_empty()).collect(),
        });
    }
    0
}

fn page_ceil(at: VirtAddr) -> VirtAddr {
    VirtAddr(at.0.next_multiple_of(BASE_PAGE))
}

/// Places static data, and finds out whether there are hints for other names than those
/// of what is loaded.
pub fn place(config: &FrameConfig) {
    let hinted = |target: &Target| matches!(target, Target::Map(_));
    let hinted = config
        .hints
        .iter()
        .filter(|hint| hinted(&hint.target))
        .count();
    let plugins = config
        .strategies()
        .any(|spec| matches!(spec, StrategySpec::Plugin(_)));
    let left_out = left_out();
    let mut used = Vec::new();
    for object in loaded() {
        let names = if hinted > 0 {
            object.names()
        } else {
            Vec::new()
        };
        let number = choice::number_by_name(config, |hint| names.iter().any(|name| name == hint));
        used.extend(number);
        let takes_part = number.is_some() || object.is_program() || !plugins;
        if !takes_part || left_out.iter().any(|at| object.holds(*at)) {
            continue;
        }
        let number = number.unwrap_or_else(|| choice::number_of(config, Kind::Mapping));
        for range in object.zeroed {
            place_as(config, range, number, place_existing);
        }
    }
    used.sort_unstable();
    used.dedup();
    if used.len() < hinted {
        names::expect();
    }
}

/// Addresses in what is left out: this library, the C library and its threads, and the
/// loader.
fn left_out() -> Vec<VirtAddr> {
    let functions = [c"gnu_get_libc_version", c"pthread_key_create"];
    let known = functions.iter().map(|name| {
        // SAFETY: the name is a C string.
        let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        VirtAddr(at as u64)
    });
    // SAFETY: the call only looks something up.
    let loader = VirtAddr(unsafe { libc::getauxval(libc::AT_BASE) });
    let own = VirtAddr(left_out as *const () as u64);
    known.chain([loader, own]).collect()
}

//! Finds the libraries that `quire run` preloads: `libquire.so`, which advises the kernel,
//! `libquire_provide.so` and `libquire_provide_jemalloc.so`, which provide memory, and
//! `libquire_dsm.so` for shared memory across machines.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use quire_core::config::{self, ENV_ADVICE, Malloc, Policy, Way};
use rustix::param::linux_execfn;

use crate::failure::{Failure, Outcome};

/// What is looked for.
struct Wanted {
    name: &'static str,
    /// The variable by which a user names the file.
    variable: &'static str,
    /// The packages that are built, as Cargo is told.
    packages: &'static str,
    /// The profile that it is built with, and so where it lies in a build tree.
    profile: &'static str,
}

const ADVISER: Wanted = Wanted {
    name: "libquire.so",
    variable: "QUIRE_LIB",
    packages: "'quire-preload*'",
    profile: "preload",
};
const PROVIDER: Wanted = Wanted {
    name: "libquire_provide.so",
    variable: "QUIRE_PROVIDE_LIB",
    ..ADVISER
};
const JEMALLOC: Wanted = Wanted {
    name: "libquire_provide_jemalloc.so",
    variable: "QUIRE_JEMALLOC_LIB",
    ..ADVISER
};
/// Those that manage memory.
const MANAGERS: [&Wanted; 3] = [&ADVISER, &PROVIDER, &JEMALLOC];
const SHARED_MEMORY: Wanted = Wanted {
    name: "libquire_dsm.so",
    variable: "QUIRE_DSM_LIB",
    packages: "quire-shm",
    profile: "preload-dsm",
};
/// As much of the head of an ELF file as is looked at: its class and order of bytes, its type, and
/// for which machine it is.
const ELF_HEAD: usize = 20;
const ELF_CLASS: Range<usize> = 4..6;
const ELF_TYPE: Range<usize> = 16..18;
const ELF_MACHINE: Range<usize> = 18..20;
/// The type of shared objects.
const SHARED_OBJECT: u16 = 3;

const INSTALLED: [&str; 2] = ["/usr/local/lib/quire", "/usr/lib/quire"];

/// The library, by a path that the loader can read from a list.
#[derive(Debug)]
pub struct Library(PathBuf);

impl Library {
    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Takes a file that exists. The loader splits its list at colons and
    /// blanks and knows no way to quote them.
    fn new(path: &Path, wanted: &Wanted) -> Outcome<Library> {
        let path = path.canonicalize().map_err(|error| {
            Failure::bad_usage(format!("cannot use {}: {error}", path.display()))
        })?;
        if path.to_string_lossy().contains([':', ' ', '\t', '\n']) {
            return Err(Failure::bad_usage(format!(
                "cannot preload {}: its path holds a blank or a colon; move it and set {} to its new path",
                path.display(),
                wanted.variable
            )));
        }
        Ok(Library(path))
    }
}

/// The libraries that manage the memory of a program.
#[derive(Debug)]
pub struct Managers {
    libraries: Vec<Library>,
    /// By which policy what is not managed is advised, where memory is provided.
    advice: Option<Policy>,
}

impl Managers {
    /// Finds those for a program that gets its superpages in this way, by a policy: where the
    /// user says, near this executable, or where they are installed.
    ///
    /// # Errors
    /// When one is not there, or the user names something else.
    pub fn find(way: Way, malloc: Malloc, policy: Policy, has_frames: bool) -> Outcome<Managers> {
        let advice = match way {
            Way::Advise => None,
            Way::Provide => config::advice(policy, malloc, has_frames),
        };
        let mut libraries = Vec::new();
        if advice.is_some() {
            // It calls the other one, as that is behind it.
            libraries.push(find(Way::Advise, malloc)?);
        }
        libraries.push(find(way, malloc)?);
        Ok(Managers { libraries, advice })
    }

    /// Has a program that is started by a command be managed by them.
    pub fn manage(&self, command: &mut Command, preloaded: Option<OsString>) {
        command.env("LD_PRELOAD", with_managers(&self.libraries, preloaded));
        if let Some(policy) = self.advice {
            command.env(ENV_ADVICE, policy.name());
        }
    }
}

/// Finds the library that manages memory in this way.
fn find(way: Way, malloc: Malloc) -> Outcome<Library> {
    // A library that the user has moved has the others beside it.
    let (wanted, near): (_, &[&Wanted]) = match (way, malloc) {
        (Way::Advise, _) => (&ADVISER, &[]),
        (Way::Provide, Malloc::Libc) => (&PROVIDER, &[&ADVISER]),
        (Way::Provide, Malloc::Jemalloc) => (&JEMALLOC, &[&PROVIDER, &ADVISER]),
    };
    if let Some(path) = named(wanted) {
        return check(&path, wanted);
    }
    let mut near = near.iter().filter_map(|other| named(other));
    match near.find_map(|other| beside(&other, wanted)) {
        Some(path) => Library::new(&path, wanted),
        None => search(wanted),
    }
}

/// Whether the user names the library that advises.
pub fn is_named() -> bool {
    named(&ADVISER).is_some()
}

/// Finds the library of shared memory across machines in the same way.
///
/// # Errors
/// As [`find`].
pub fn find_shared_memory() -> Outcome<Library> {
    match named(&SHARED_MEMORY) {
        Some(path) => check(&path, &SHARED_MEMORY),
        None => search(&SHARED_MEMORY),
    }
}

/// Whether an item of a list of libraries to preload is one of those that manage memory.
pub fn manages_memory(item: &OsStr) -> bool {
    let name = Path::new(item).file_name();
    name.is_some_and(|name| MANAGERS.iter().any(|wanted| name == wanted.name))
}

/// A list to preload with these libraries that manage memory. They take the place of others
/// of these, and stand before all others where there are none.
fn with_managers(libraries: &[Library], existing: Option<OsString>) -> OsString {
    let mut ours: Vec<&OsStr> = libraries.iter().map(|l| l.path().as_os_str()).collect();
    ours.dedup();
    let existing = existing.unwrap_or_default();
    let all: Vec<&OsStr> = items(&existing).collect();
    let is_one = |item: &&OsStr| ours.contains(item) || manages_memory(item);
    let place = all.iter().position(is_one).unwrap_or(0);
    let (before, behind) = all.split_at(place);
    let behind = behind.iter().copied().filter(|item| !is_one(item));
    let list: Vec<&OsStr> = before
        .iter()
        .copied()
        .chain(ours.iter().copied())
        .chain(behind)
        .collect();
    list.join(OsStr::new(":"))
}

/// A list to preload with this library before all others, and only once.
pub fn with_first(library: &Library, existing: Option<OsString>) -> OsString {
    let ours = library.path().as_os_str();
    let existing = existing.unwrap_or_default();
    if items(&existing).any(|item| item == ours) {
        return existing;
    }
    let list: Vec<&OsStr> = [ours].into_iter().chain(items(&existing)).collect();
    list.join(OsStr::new(":"))
}

/// The items of a list, as the loader takes it apart.
fn items(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    let separates = |byte: &u8| matches!(byte, b':' | b' ');
    let items = list.as_bytes().split(separates).map(OsStr::from_bytes);
    items.filter(|item| !item.is_empty())
}

/// The file that the user names.
fn named(wanted: &Wanted) -> Option<PathBuf> {
    let path = env::var_os(wanted.variable).filter(|path| !path.is_empty());
    path.map(PathBuf::from)
}

/// A library in the directory of another one.
fn beside(other: &Path, wanted: &Wanted) -> Option<PathBuf> {
    let path = other.with_file_name(wanted.name);
    is_library(&path).then_some(path)
}

/// Takes the file that the user names, if it is a library.
fn check(path: &Path, wanted: &Wanted) -> Outcome<Library> {
    let Wanted { name, variable, .. } = wanted;
    if !path.is_file() {
        return Err(Failure::bad_usage(format!(
            "{variable}={} is no file: set it to the path of {name}, or unset it",
            path.display()
        )));
    }
    if !is_library(path) {
        return Err(Failure::bad_usage(format!(
            "{variable}={} is no library that this machine's programs can load: set it to the \
             path of {name}, or unset it",
            path.display()
        )));
    }
    Library::new(path, wanted)
}

/// Looks near this executable, and where libraries are installed.
fn search(wanted: &Wanted) -> Outcome<Library> {
    let exe = executable();
    let near = exe.as_deref().ok().and_then(Path::parent);
    let near = near.map(|dir| candidates_near(dir, wanted));
    let installed = INSTALLED.iter().map(|dir| Path::new(dir).join(wanted.name));
    let mut all = near.into_iter().flatten().chain(installed);
    match (all.find(|path| path.is_file()), exe) {
        (Some(path), _) => Library::new(&path, wanted),
        (None, Ok(_)) => Err(absent(wanted)),
        (None, Err(error)) => Err(lost(wanted, &error)),
    }
}

/// This executable: without `/proc`, by the path that it was started by.
fn executable() -> io::Result<PathBuf> {
    let started_by = || PathBuf::from(OsStr::from_bytes(linux_execfn().to_bytes()));
    env::current_exe()
        .unwrap_or_else(|_| started_by())
        .canonicalize()
}

/// Whether a file is a shared object for programs like this one. The loader would say of another
/// one that it is ignored, and the program would run without.
fn is_library(path: &Path) -> bool {
    let head = |path: &Path| {
        let mut head = [0; ELF_HEAD];
        File::open(path)?.read_exact(&mut head)?;
        Ok::<_, io::Error>(head)
    };
    let Ok(found) = head(path) else {
        return false;
    };
    // Where this executable is not known, it is not known which machine it is for.
    let own = executable().and_then(|exe| head(&exe));
    let is_alike = own.map_or(true, |own| {
        found[ELF_CLASS] == own[ELF_CLASS] && found[ELF_MACHINE] == own[ELF_MACHINE]
    });
    let is_shared = found[ELF_TYPE] == u16::to_ne_bytes(SHARED_OBJECT);
    found.starts_with(b"\x7fELF") && is_shared && is_alike
}

fn absent(wanted: &Wanted) -> Failure {
    let Wanted {
        name,
        variable,
        packages,
        profile,
    } = wanted;
    Failure::bad_usage(format!(
        "{name} was not found: build it with `cargo build --profile {profile} -p {packages}`, or set {variable} to its path"
    ))
}

/// Where this executable is not known, because of this error, no library can be looked for near it.
fn lost(wanted: &Wanted, error: &io::Error) -> Failure {
    let Wanted { name, variable, .. } = wanted;
    Failure::bad_usage(format!(
        "quire does not know where it lies ({error}): set {variable} to the path of {name}"
    ))
}

/// Where the library may lie, given the directory of this executable. In a
/// build tree it has a profile, and so a directory, of its own.
fn candidates_near(dir: &Path, wanted: &Wanted) -> Vec<PathBuf> {
    let name = wanted.name;
    let mut list = Vec::new();
    if dir.ends_with("debug") || dir.ends_with("release") {
        list.push(dir.with_file_name(wanted.profile).join(name));
    }
    list.push(dir.join(name));
    if let Some(prefix) = dir.parent() {
        list.push(prefix.join("lib/quire").join(name));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_tree_comes_before_its_own_directory() {
        let list = candidates_near(Path::new("/w/target/release"), &ADVISER);
        assert_eq!(list[0], Path::new("/w/target/preload/libquire.so"));
        assert_eq!(list[1], Path::new("/w/target/release/libquire.so"));
        let list = candidates_near(Path::new("/w/target/debug"), &SHARED_MEMORY);
        assert_eq!(list[0], Path::new("/w/target/preload-dsm/libquire_dsm.so"));
        let list = candidates_near(Path::new("/opt/bin"), &PROVIDER);
        assert_eq!(list[0], Path::new("/opt/bin/libquire_provide.so"));
        assert_eq!(list[1], Path::new("/opt/lib/quire/libquire_provide.so"));
    }

    #[test]
    fn no_more_libraries_that_manage_memory_are_preloaded() {
        let with = |ours: &str, existing: &str| {
            let ours: Vec<Library> = ours.split(' ').map(|l| Library(l.into())).collect();
            let list = with_managers(&ours, Some(existing.into()));
            list.into_string().unwrap()
        };
        assert_eq!(with("/q/libquire.so", ""), "/q/libquire.so");
        assert_eq!(
            with("/q/libquire.so", "libdl.so.2"),
            "/q/libquire.so:libdl.so.2"
        );
        let (advise, provide) = ("/q/libquire.so", "/p/libquire_provide.so");
        let jemalloc = "/p/libquire_provide_jemalloc.so";
        assert_eq!(with(provide, advise), provide);
        assert_eq!(with(provide, jemalloc), provide);
        assert_eq!(with(jemalloc, advise), jemalloc);
        let both = format!("{advise} {provide}");
        assert_eq!(with(&both, "a.so"), format!("{advise}:{provide}:a.so"));
        assert_eq!(with(&both, jemalloc), format!("{advise}:{provide}"));
        assert_eq!(with(provide, &both), provide);
        assert_eq!(with("/q/one.so /q/one.so", ""), "/q/one.so");
        assert_eq!(with(advise, provide), advise);
        assert_eq!(
            with(advise, "/old/libquire.so a.so"),
            format!("{advise}:a.so")
        );
        // The library of shared memory stays before it.
        assert_eq!(
            with(
                provide,
                "/q/libquire_dsm.so:/q/libquire.so:/r/libquire.so:a.so"
            ),
            format!("/q/libquire_dsm.so:{provide}:a.so")
        );
        // Others are not Quire's, whatever they are called.
        assert_eq!(
            with(advise, "/x/libquire.so.1"),
            format!("{advise}:/x/libquire.so.1")
        );
        let none = with_managers(&[Library(advise.into())], None);
        assert_eq!(none, advise);
    }

    #[test]
    fn the_first_one_is_listed_once() {
        let library = Library("/q/libquire_dsm.so".into());
        let with = |existing: &str| with_first(&library, Some(existing.into()));
        assert_eq!(with("/q/libquire.so"), "/q/libquire_dsm.so:/q/libquire.so");
        let list = "/q/libquire_dsm.so:/q/libquire.so";
        assert_eq!(with(list), list);
    }

    #[test]
    fn the_provider_is_looked_for_beside_the_adviser() {
        let dir = tempfile::tempdir().unwrap();
        let adviser = dir.path().join("libquire.so");
        assert_eq!(beside(&adviser, &PROVIDER), None);
        let provider = dir.path().join("libquire_provide.so");
        std::fs::write(&provider, "").unwrap();
        assert_eq!(beside(&adviser, &PROVIDER), None, "it is no library");
        let own = std::env::current_exe().unwrap();
        std::fs::copy(own, &provider).unwrap();
        assert_eq!(beside(&adviser, &PROVIDER), Some(provider.clone()));
        assert_eq!(beside(&provider, &JEMALLOC), None);
    }

    #[test]
    fn the_reason_is_told_where_nothing_is_found() {
        let text = absent(&PROVIDER).to_string();
        assert!(
            text.starts_with("libquire_provide.so was not found"),
            "{text}"
        );
        assert!(text.contains("-p 'quire-preload*'"), "{text}");
        let text = lost(&ADVISER, &io::ErrorKind::NotFound.into()).to_string();
        assert!(
            text.contains("QUIRE_LIB") && !text.contains("was not found"),
            "{text}"
        );
    }
}

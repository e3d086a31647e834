//! Finds `libquire.so`, and `libquire_dsm.so` for shared memory across machines.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// What is looked for.
struct Wanted {
    name: &'static str,
    /// The variable by which a user names the file.
    variable: &'static str,
    /// The crate that it is built from.
    package: &'static str,
    /// The profile that it is built with, and so where it lies in a build tree.
    profile: &'static str,
}

const MANAGER: Wanted = Wanted {
    name: "libquire.so",
    variable: "QUIRE_LIB",
    package: "quire-preload",
    profile: "preload",
};
const SHARED_MEMORY: Wanted = Wanted {
    name: "libquire_dsm.so",
    variable: "QUIRE_DSM_LIB",
    package: "quire-shm",
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

/// Finds the library that manages memory: where the user says, near this executable, or
/// where it is installed.
pub fn find() -> Outcome<Library> {
    find_wanted(&MANAGER)
}

/// Finds the library of shared memory across machines in the same way.
pub fn find_shared_memory() -> Outcome<Library> {
    find_wanted(&SHARED_MEMORY)
}

fn find_wanted(wanted: &Wanted) -> Outcome<Library> {
    let Wanted { name, variable, .. } = wanted;
    if let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(Failure::bad_usage(format!(
                "{variable}={} is no file: set it to the path of {name}, or unset it",
                path.display()
            )));
        }
        if !is_library(&path) {
            return Err(Failure::bad_usage(format!(
                "{variable}={} is no library that this machine's programs can load: set it to the \
                 path of {name}, or unset it",
                path.display()
            )));
        }
        return Library::new(&path, wanted);
    }
    let exe = env::current_exe().and_then(|exe| exe.canonicalize());
    let near = exe.ok();
    let near = near.and_then(|exe| exe.parent().map(|dir| candidates_near(dir, wanted)));
    let installed = INSTALLED.iter().map(|dir| Path::new(dir).join(name));
    near.into_iter()
        .flatten()
        .chain(installed)
        .find(|path| path.is_file())
        .map_or_else(|| Err(absent(wanted)), |path| Library::new(&path, wanted))
}

/// Whether a file is a shared object for programs like this one. The loader would say of another
/// one that it is ignored, and the program would run without.
fn is_library(path: &Path) -> bool {
    let head = |path: &Path| {
        let mut head = [0; ELF_HEAD];
        File::open(path)?.read_exact(&mut head)?;
        Ok::<_, io::Error>(head)
    };
    let own = env::current_exe().and_then(|exe| head(&exe));
    let (Ok(own), Ok(found)) = (own, head(path)) else {
        return false;
    };
    let is_shared = found[ELF_TYPE] == u16::to_ne_bytes(SHARED_OBJECT);
    found.starts_with(b"\x7fELF")
        && found[ELF_CLASS] == own[ELF_CLASS]
        && found[ELF_MACHINE] == own[ELF_MACHINE]
        && is_shared
}

fn absent(wanted: &Wanted) -> Failure {
    let Wanted {
        name,
        variable,
        package,
        profile,
    } = wanted;
    Failure::bad_usage(format!(
        "{name} was not found: build it with `cargo build --profile {profile} -p {package}`, or set {variable} to its path"
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
        let list = candidates_near(Path::new("/w/target/release"), &MANAGER);
        assert_eq!(list[0], Path::new("/w/target/preload/libquire.so"));
        assert_eq!(list[1], Path::new("/w/target/release/libquire.so"));
        let list = candidates_near(Path::new("/w/target/debug"), &SHARED_MEMORY);
        assert_eq!(list[0], Path::new("/w/target/preload-dsm/libquire_dsm.so"));
        let list = candidates_near(Path::new("/opt/bin"), &MANAGER);
        assert_eq!(list[0], Path::new("/opt/bin/libquire.so"));
        assert_eq!(list[1], Path::new("/opt/lib/quire/libquire.so"));
    }
}

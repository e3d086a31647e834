//! Finds `libquire.so`.

use std::env;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

const NAME: &str = "libquire.so";
const VARIABLE: &str = "QUIRE_LIB";
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
    fn new(path: &Path) -> Outcome<Library> {
        let path = path.canonicalize().map_err(|error| {
            Failure::bad_usage(format!("cannot use {}: {error}", path.display()))
        })?;
        if path.to_string_lossy().contains([':', ' ', '\t', '\n']) {
            return Err(Failure::bad_usage(format!(
                "cannot preload {}: its path holds a blank or a colon; move it and set {VARIABLE} to its new path",
                path.display()
            )));
        }
        Ok(Library(path))
    }
}

/// Finds the library: where the user says, near this executable, or where it
/// is installed.
pub fn find() -> Outcome<Library> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            return Err(Failure::bad_usage(format!(
                "{VARIABLE}={} is no file: set it to the path of {NAME}, or unset it",
                path.display()
            )));
        }
        return Library::new(&path);
    }
    let exe = env::current_exe().and_then(|exe| exe.canonicalize());
    let near = exe.ok().and_then(|exe| exe.parent().map(candidates_near));
    let installed = INSTALLED.iter().map(|dir| Path::new(dir).join(NAME));
    near.into_iter()
        .flatten()
        .chain(installed)
        .find(|path| path.is_file())
        .map_or_else(|| Err(absent()), |path| Library::new(&path))
}

fn absent() -> Failure {
    Failure::bad_usage(format!(
        "{NAME} was not found: build it with `cargo build --profile preload -p quire-preload`, or set {VARIABLE} to its path"
    ))
}

/// Where the library may lie, given the directory of this executable. In a
/// build tree it has a profile, and so a directory, of its own.
fn candidates_near(dir: &Path) -> Vec<PathBuf> {
    let mut list = Vec::new();
    if dir.ends_with("debug") || dir.ends_with("release") {
        list.push(dir.with_file_name("preload").join(NAME));
    }
    list.push(dir.join(NAME));
    if let Some(prefix) = dir.parent() {
        list.push(prefix.join("lib/quire").join(NAME));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_tree_comes_before_its_own_directory() {
        let list = candidates_near(Path::new("/w/target/release"));
        assert_eq!(list[0], Path::new("/w/target/preload/libquire.so"));
        assert_eq!(list[1], Path::new("/w/target/release/libquire.so"));
        let list = candidates_near(Path::new("/opt/bin"));
        assert_eq!(list[0], Path::new("/opt/bin/libquire.so"));
        assert_eq!(list[1], Path::new("/opt/lib/quire/libquire.so"));
    }
}

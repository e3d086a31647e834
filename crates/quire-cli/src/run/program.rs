//! Finds the program as a shell does, and tells whether the loader will
//! preload anything into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, Outcome};

/// Where programs are looked for when PATH is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// How many interpreters of interpreters the kernel follows.
const INTERPRETERS: usize = 5;

/// A program that can be executed.
#[derive(Debug)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// As it was typed.
    pub name: String,
    /// Why the loader will not preload the library, where it will not.
    pub unmanaged: Option<&'static str>,
    /// The files that this executes: its own, by the name that was found and by the one that links lead to, and
    /// those of its interpreters.
    pub files: Vec<PathBuf>,
}

impl Program {
    /// Finds the program that `words` begin with.
    pub fn find(words: &[OsString]) -> Outcome<Program> {
        let Some(word) = words.first().filter(|word| !word.is_empty()) else {
            return Err(Failure::with_status(
                NOT_FOUND,
                "the program's name is empty: name a program to run",
            ));
        };
        let name = word.to_string_lossy().into_owned();
        let path = if word.as_bytes().contains(&b'/') {
            check(Path::new(word), &name)?
        } else {
            search(word, &name)?
        };
        let unmanaged = unmanaged(&path, INTERPRETERS);
        let files = executed(&path, INTERPRETERS);
        Ok(Program {
            path,
            name,
            unmanaged,
            files,
        })
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn check(path: &Path, name: &str) -> Outcome<PathBuf> {
    if is_executable(path) {
        return Ok(path.to_owned());
    }
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Err(Failure::with_status(
            NOT_EXECUTABLE,
            format!("{name} is a directory: name a program in it"),
        )),
        Ok(_) => Err(not_executable(path)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(not_executable(path))
        }
        Err(_) => Err(Failure::with_status(
            NOT_FOUND,
            format!("{name} does not exist: check the path"),
        )),
    }
}

fn not_executable(path: &Path) -> Failure {
    let path = path.display();
    Failure::with_status(
        NOT_EXECUTABLE,
        format!("{path} is not executable: chmod +x {path}"),
    )
}

fn search(word: &OsStr, name: &str) -> Outcome<PathBuf> {
    let list = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let mut refused = None;
    for dir in env::split_paths(&list) {
        // An empty entry stands for the current directory.
        let path = Path::new(".").join(dir).join(word);
        if is_executable(&path) {
            return Ok(path);
        }
        if path.is_file() {
            refused.get_or_insert(path);
        }
    }
    Err(match refused {
        Some(path) => not_executable(&path),
        None => Failure::with_status(
            NOT_FOUND,
            format!("{name} was not found: install it, or give its path"),
        ),
    })
}

/// What executing a file executes.
fn executed(path: &Path, interpreters: usize) -> Vec<PathBuf> {
    let mut files = vec![path.to_owned()];
    files.extend(fs::canonicalize(path));
    let mut head = [0; 256];
    let read = File::open(path).and_then(|mut file| file.read(&mut head));
    let head = &head[..read.unwrap_or(0)];
    if !head.starts_with(b"#!") || interpreters == 0 {
        return files;
    }
    let mut words = words_of_script(head);
    let Some(interpreter) = words.next() else {
        return files;
    };
    // `env` looks for the interpreter as a shell does.
    let asked = words.find(|word| !word.as_os_str().as_bytes().starts_with(b"-"));
    let is_env = interpreter.file_name() == Some(OsStr::new("env"));
    files.extend(executed(&interpreter, interpreters - 1));
    if let Some(word) = asked.filter(|_| is_env)
        && let Ok(found) = search(word.as_os_str(), "")
    {
        files.extend(executed(&found, interpreters - 1));
    }
    files
}

/// Why the loader will not preload anything into the program at `path`. A
/// file that cannot be read is taken for an ordinary program.
fn unmanaged(path: &Path, interpreters: usize) -> Option<&'static str> {
    let mut file = File::open(path).ok()?;
    let mut head = [0; 256];
    let len = file.read(&mut head).ok()?;
    let head = &head[..len];
    if head.starts_with(b"#!") {
        let interpreter = interpreter(head)?;
        return unmanaged(&interpreter, interpreters.checked_sub(1)?);
    }
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    // The loader's secure mode: it preloads nothing by path.
    if changes_privilege(path, &file.metadata().ok()?) {
        return Some("runs with other privileges than yours (setuid, setgid or capabilities)");
    }
    match has_loader(&file) {
        Some(Loader::None) => Some("is statically linked"),
        Some(Loader::OtherWord) => Some("is not a 64-bit program"),
        Some(Loader::Dynamic) | None => None,
    }
}

/// The interpreter that the first line of a script names.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    words_of_script(head).next()
}

/// The words of the first line of a script.
fn words_of_script(head: &[u8]) -> impl Iterator<Item = PathBuf> {
    let line = head[2..].split(|byte| *byte == b'\n').next();
    let words = line
        .unwrap_or_default()
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\0'))
        .filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec()).into())
}

fn changes_privilege(path: &Path, meta: &Metadata) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010;
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid();
    let setuid = meta.mode() & SETUID != 0 && meta.uid() != uid.as_raw();
    let setgid = meta.mode() & SETGID == SETGID && meta.gid() != gid.as_raw();
    let mut none: [u8; 0] = [];
    let capable = !uid.is_root()
        && rustix::fs::getxattr(path, c"security.capability", &mut none).is_ok_and(|len| len > 0);
    setuid || setgid || capable
}

enum Loader {
    Dynamic,
    None,
    OtherWord,
}

/// Whether an ELF file asks for a loader (`PT_INTERP`). Nothing where the file
/// cannot be understood.
fn has_loader(file: &File) -> Option<Loader> {
    const PT_INTERP: u32 = 3;
    const CLASS_64: u8 = 2;
    let mut header = [0u8; 64];
    file.read_exact_at(&mut header[..52], 0).ok()?;
    if header[4] != CLASS_64 {
        return Some(Loader::OtherWord);
    }
    file.read_exact_at(&mut header, 0).ok()?;
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let table = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    for index in 0..count {
        let mut kind = [0; 4];
        let at = table.checked_add(index * size)?;
        file.read_exact_at(&mut kind, at).ok()?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Some(Loader::Dynamic);
        }
    }
    Some(Loader::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0u8; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn static_programs_are_told_from_dynamic_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        fs::write(&path, elf(3)).unwrap();
        assert_eq!(unmanaged(&path, 5), None);
        fs::write(&path, elf(1)).unwrap();
        assert_eq!(unmanaged(&path, 5), Some("is statically linked"));
        let script = dir.path().join("script");
        fs::write(&script, format!("#! {} -x\n", path.display())).unwrap();
        assert_eq!(unmanaged(&script, 5), Some("is statically linked"));
        assert_eq!(unmanaged(Path::new("/bin/sh"), 5), None);
    }

    #[test]
    fn the_interpreters_of_a_script_are_executed() {
        let dir = tempfile::tempdir().unwrap();
        let (script, link) = (dir.path().join("script"), dir.path().join("link"));
        fs::write(&script, "#!/usr/bin/env -S sh -e\n").unwrap();
        std::os::unix::fs::symlink(&script, &link).unwrap();
        let files = executed(&link, INTERPRETERS);
        let has = |name: &str| files.iter().any(|file| file.ends_with(name));
        assert!(
            ["link", "script", "env", "sh"].into_iter().all(has),
            "{files:?}"
        );
        assert!(!has("-e"), "{files:?}");
    }

    #[test]
    fn a_script_that_interprets_itself_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("loop");
        fs::write(&path, format!("#!{}\n", path.display())).unwrap();
        assert_eq!(unmanaged(&path, 5), None);
        assert!(executed(&path, 5).len() > 5);
    }
}

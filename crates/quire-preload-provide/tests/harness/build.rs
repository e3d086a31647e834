//! Builds what is run: the test programs with the C compiler, and the library
//! in its own profile, each once per test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Where Cargo builds.
pub fn target_dir() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent()
        .expect("the directory for tests lies in target")
}

/// Has Cargo build something, unless `QUIRE_BUILT` says that all is built. For a package alone it
/// builds much anew that it has for the workspace, as what packages need of others is another set.
fn cargo_builds(arguments: &[&str]) {
    if std::env::var_os("QUIRE_BUILT").is_some() {
        return;
    }
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--target-dir"])
        .arg(target_dir())
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("Cargo can be run");
    assert!(status.success(), "{arguments:?} cannot be built");
}

/// The `quire` command.
pub fn command() -> &'static Path {
    static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| {
        cargo_builds(&["--package", "quire-cli"]);
        target_dir().join("debug/quire")
    });
    &COMMAND
}

/// The library: `QUIRE_PROVIDE_LIB`, or what Cargo builds.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os("QUIRE_PROVIDE_LIB") {
            return fs::canonicalize(&path)
                .unwrap_or_else(|e| panic!("QUIRE_PROVIDE_LIB={}: {e}", path.display()));
        }
        cargo_builds(&["--profile", "preload", "--package", "quire-preload-provide"]);
        target_dir().join("preload/libquire_provide.so")
    });
    &LIBRARY
}

/// The executable of `programs/NAME.c`.
pub fn program(name: &str) -> PathBuf {
    static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(compile_all);
    PROGRAMS.join(name)
}

fn compile_all() -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&out).expect("the target directory is writable");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let mut running = Vec::new();
    for entry in fs::read_dir(&sources)
        .expect("the programs are here")
        .flatten()
    {
        let source = entry.path();
        if source.extension().is_none_or(|e| e != "c") {
            continue;
        }
        let name = source.file_stem().expect("a source has a name").to_owned();
        // Another test run may be using the executable of this name.
        let fresh = out.join(format!("{}.{}", name.display(), std::process::id()));
        let compiling = Command::new(&compiler)
            .args([
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-O1",
                "-g",
                "-pthread",
                "-o",
            ])
            .arg(&fresh)
            .arg(&source)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", compiler.display()));
        running.push((name, fresh, compiling));
    }
    for (name, fresh, mut compiling) in running {
        let status = compiling.wait().expect("the compiler is our child");
        assert!(status.success(), "{}.c does not compile", name.display());
        fs::rename(&fresh, out.join(&name)).expect("the target directory is writable");
    }
    out
}

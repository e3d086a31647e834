//! Builds what is run: the test programs with the C compiler, and the library in its own profile, each once per
//! test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::LazyLock;

/// Programs of the tests of `libquire_provide.so` that concern this library as well.
const OTHERS: [&str; 20] = [
    "align",
    "churn",
    "closefds",
    "discard",
    "dontunmap",
    "fork_storm",
    "fork_write",
    "given",
    "leaves",
    "limits",
    "maps",
    "pieces",
    "pressure",
    "remap",
    "shared",
    "signals",
    "stacks",
    "stress",
    "syscalls_untouched",
    "threads",
];

/// Where Cargo builds.
pub fn target_dir() -> &'static Path {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    tmp.parent()
        .expect("the directory for tests lies in target")
}

/// The library: `QUIRE_LIB`, or what Cargo builds; it does not where `QUIRE_BUILT` says that all is built.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(path) = std::env::var_os("QUIRE_LIB") {
            return fs::canonicalize(&path)
                .unwrap_or_else(|e| panic!("QUIRE_LIB={}: {e}", path.display()));
        }
        if std::env::var_os("QUIRE_BUILT").is_none() {
            let status = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--profile", "preload"])
                .args(["--package", "quire-preload", "--target-dir"])
                .arg(target_dir())
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status()
                .expect("Cargo can be run");
            assert!(status.success(), "the library cannot be built");
        }
        target_dir().join("preload/libquire.so")
    });
    &LIBRARY
}

fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(compile_all);
    &BUILT
}

/// The executable of `programs/NAME.c`, here or in the tests of `libquire_provide.so`.
pub fn program(name: &str) -> PathBuf {
    built().join(name)
}

/// The shared object of `plugins/NAME.c`.
pub fn plugin(name: &str) -> PathBuf {
    built().join(format!("{name}.so"))
}

/// A shared library of the machine, if the C compiler finds it.
pub fn shared_library(name: &str) -> Option<PathBuf> {
    let asked = compiler().arg(format!("-print-file-name={name}")).output();
    let path = String::from_utf8(asked.ok()?.stdout).ok()?;
    let path = PathBuf::from(path.trim());
    path.is_absolute().then_some(path)
}

/// The program `programs/NAME.c`, linked with a shared library.
pub fn linked_with(name: &str, library: &Path) -> PathBuf {
    let source = here("programs").join(format!("{name}.c"));
    let with = library.file_stem().expect("a library has a name");
    let out = built().join(format!("{name}.{}", with.display()));
    let fresh = fresh(&out);
    let mut compiling = compiler();
    compiling.args(["-pthread", "-o"]).arg(&fresh).arg(&source);
    compiling.args(["-Wl,--no-as-needed"]).arg(library);
    let status = compiling.status().expect("the compiler can be run");
    assert!(status.success(), "{name}.c cannot be linked");
    fs::rename(&fresh, &out).expect("the target directory is writable");
    out
}

fn here(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder)
}

fn provide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../quire-preload-provide/tests/programs")
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "gcc".into()));
    // The programs mean the calls that they make.
    command.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-O1",
        "-g",
        "-fno-builtin",
    ]);
    command.arg("-I").arg(provide());
    command
}

/// Another test run may be using the file of this name.
fn fresh(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    name.into()
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(here(folder)).expect("the sources are here");
    let paths = entries.flatten().map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "c"))
        .collect()
}

fn compile_all() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("advised");
    fs::create_dir_all(&built).expect("the target directory is writable");
    let mut running = Vec::new();
    let others = OTHERS
        .iter()
        .map(|name| provide().join(format!("{name}.c")));
    for source in sources("programs").into_iter().chain(others) {
        running.push(compile(source, &built, &["-pthread", "-rdynamic"], ""));
    }
    for source in sources("plugins") {
        running.push(compile(source, &built, &["-fPIC", "-shared"], ".so"));
    }
    for (source, fresh, out, mut compiling) in running {
        let status = compiling.wait().expect("the compiler is our child");
        assert!(status.success(), "{} does not compile", source.display());
        fs::rename(&fresh, &out).expect("the target directory is writable");
    }
    built
}

type Compiling = (PathBuf, PathBuf, PathBuf, Child);

fn compile(source: PathBuf, built: &Path, arguments: &[&str], ending: &str) -> Compiling {
    let name = source.file_stem().expect("a source has a name");
    let out = built.join(format!("{}{ending}", name.display()));
    let fresh = fresh(&out);
    let mut compiling = compiler();
    compiling.args(arguments).arg("-o").arg(&fresh).arg(&source);
    let started = compiling
        .spawn()
        .unwrap_or_else(|e| panic!("the C compiler: {e}"));
    (source, fresh, out, started)
}

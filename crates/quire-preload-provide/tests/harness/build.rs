//! Builds what is run: the test programs with the C compiler, and the library
//! in its own profile, each once per test run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
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

/// The library without an allocator: `QUIRE_PROVIDE_LIB`, or what Cargo builds.
pub fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> =
        LazyLock::new(|| library_of("QUIRE_PROVIDE_LIB", "libquire_provide.so"));
    &LIBRARY
}

/// The library that advises beside it: `QUIRE_LIB`, or what Cargo builds.
pub fn adviser() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| library_of("QUIRE_LIB", "libquire.so"));
    &LIBRARY
}

/// The library with jemalloc: `QUIRE_JEMALLOC_LIB`, or what Cargo builds.
pub fn jemalloc() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> =
        LazyLock::new(|| library_of("QUIRE_JEMALLOC_LIB", "libquire_provide_jemalloc.so"));
    &LIBRARY
}

fn library_of(variable: &str, file: &str) -> PathBuf {
    static BUILT: LazyLock<()> = LazyLock::new(|| {
        cargo_builds(&["--profile", "preload", "--package", "quire-preload*"]);
    });
    if let Some(path) = std::env::var_os(variable) {
        return fs::canonicalize(&path)
            .unwrap_or_else(|e| panic!("{variable}={}: {e}", path.display()));
    }
    LazyLock::force(&BUILT);
    target_dir().join("preload").join(file)
}

/// Programs and plug-ins of the tests of `libquire.so` that concern these libraries as well.
const OTHERS: [&str; 7] = [
    "programs/checked.c",
    "programs/deepbind.c",
    "programs/filter.c",
    "programs/huge_malloc.c",
    "programs/leaving.c",
    "programs/realloc_errno.c",
    "programs/waits.c",
];
const PLUGINS: [&str; 2] = ["plugins/audit.c", "plugins/bound.c"];

/// The executable of `programs/NAME.c`, here or in the tests of `libquire.so`.
pub fn program(name: &str) -> PathBuf {
    BUILT.join(name)
}

/// The shared object of `plugins/NAME.c` of the tests of `libquire.so`.
pub fn plugin(name: &str) -> PathBuf {
    BUILT.join(format!("{name}.so"))
}

static BUILT: LazyLock<PathBuf> = LazyLock::new(compile_all);

fn compile_all() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let others = here.join("../quire-preload/tests");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&out).expect("the target directory is writable");
    let mut sources: Vec<(PathBuf, &[&str])> = Vec::new();
    let own = fs::read_dir(here.join("tests/programs")).expect("the programs are here");
    sources.extend(own.flatten().map(|entry| (entry.path(), &[][..])));
    // They mean the calls that they make.
    let means: &[&str] = &["-fno-builtin"];
    sources.extend(OTHERS.map(|name| (others.join(name), means)));
    sources.extend(PLUGINS.map(|name| (others.join(name), &["-shared", "-fPIC"][..])));
    sources.retain(|(source, _)| source.extension().is_some_and(|e| e == "c"));
    let running: Vec<_> = sources
        .iter()
        .map(|(source, how)| {
            let to = match how.contains(&"-shared") {
                true => source.with_extension("so"),
                false => source.with_extension(""),
            };
            let name = to.file_name().expect("a source has a name").to_owned();
            // Another test run may be using the executable of this name.
            let fresh = out.join(format!("{}.{}", name.display(), std::process::id()));
            (name, fresh.clone(), compile(source, how, &fresh))
        })
        .collect();
    for (name, fresh, mut compiling) in running {
        let status = compiling.wait().expect("the compiler is our child");
        assert!(status.success(), "{} does not compile", name.display());
        fs::rename(&fresh, out.join(&name)).expect("the target directory is writable");
    }
    out
}

fn compile(source: &Path, how: &[&str], to: &Path) -> Child {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    Command::new(&compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-g", "-pthread"])
        .args(how)
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs"))
        .arg("-o")
        .arg(to)
        .arg(source)
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}", compiler.display()))
}

//! Libraries that are opened while the program runs, and use memory when they are.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::harness::setting::{self, Setting};
use crate::harness::{Program, build};

/// The library of `maps.c`.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/loading/maps.c");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loading");
    fs::create_dir_all(&out).expect("the target directory is writable");
    // Another test run may be using the library of this name.
    let fresh = out.join(format!("maps.{}", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let status = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .args(["-shared", "-fPIC", "-o"])
        .args([&fresh, &source])
        .status()
        .expect("the compiler can be run");
    assert!(status.success(), "maps.c does not compile");
    let library = out.join("libmaps.so");
    fs::rename(&fresh, &library).expect("the target directory is writable");
    library
});

fn open_under(setting: &Setting) {
    Program {
        name: "opens",
        argv: vec![
            OsString::from(build::program("opens")),
            OsString::from(&*LIBRARY),
        ],
        prepare: &|_| (),
        result: None,
        memory_limit: None,
    }
    .check(setting);
}

macro_rules! opened {
    ($($test:ident = $setting:ident;)*) => {$(
        #[test]
        fn $test() {
            open_under(&setting::$setting);
        }
    )*};
}

opened! {
    plain = PLAIN;
    reserve = RESERVE;
    eager = EAGER;
    reserve_ahead = RESERVE_AHEAD;
    static_pool = STATIC;
    unprivileged = UNPRIVILEGED;
    colour = COLOUR;
}

//! Strategies that plug-ins bring: the colours are what the plug-in promises, and what
//! a plug-in does wrong is not the program's undoing.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use super::{COLOURS, Filled, Page, check};
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

/// The plug-ins of `examples/` and of `tests/frames/plugins/`, by their names.
fn plugin(name: &str) -> PathBuf {
    static PLUGINS: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
        fs::create_dir_all(&out).expect("the target directory is writable");
        for directory in ["examples", "tests/frames/plugins"] {
            let sources = fs::read_dir(own.join(directory)).expect("the sources are here");
            for source in sources.flatten() {
                compile(&source.path(), &own.join("include"), &out);
            }
        }
        out
    });
    PLUGINS.join(name).with_extension("so")
}

/// Another test run may be using the library of this name, so it is replaced.
fn compile(source: &Path, include: &Path, out: &Path) {
    let name = source.file_stem().expect("a source has a name").display();
    let fresh = out.join(format!("{name}.{}", std::process::id()));
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "gcc".into());
    let status = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
        .args(["-shared", "-fPIC", "-I"])
        .args([include, Path::new("-o"), &fresh, source])
        .status()
        .expect("the compiler can be run");
    assert!(status.success(), "{name}.c does not compile");
    fs::rename(&fresh, out.join(format!("{name}.so"))).expect("the target directory is writable");
}

/// A setting in which a plug-in serves all memory, or what a hint says.
fn with(name: &str, argument: &str, hint: Option<&str>) -> Setting {
    let path = |name: &str| plugin(name).display().to_string();
    let mut env = vec![
        ("QUIRE_STRATEGY", format!("{}{argument}", path(name))),
        ("QUIRE_COLOURS", "12,13,14,15".to_owned()),
    ];
    if let Some(hint) = hint {
        env.push(("QUIRE_HINTS", format!("heap={}", path(hint))));
    }
    // A test run has few of them.
    let env = env.into_iter().map(|(name, value)| (name, &*value.leak()));
    Setting {
        name: name.to_owned().leak(),
        env: env.collect::<Vec<_>>().leak(),
        ..setting::COLOUR
    }
}

#[test]
fn a_plugin_decides_for_mappings_heap_threads_and_children() {
    let names = ["ordered", "random", "heap", "child"];
    check(&with("skew", ":8", None), &names, |page| {
        page.colour == (page.number + page.number / 8) % COLOURS
    });
}

#[test]
fn a_plugin_that_depends_on_order_gives_threads_their_shares() {
    let setting = with("shares", ":2", None);
    // The main thread comes first, in the child as well.
    check(&setting, &["ordered", "heap", "child"], |p| p.colour < 8);
    check(&setting, &["random"], |page| page.colour >= 8);
    if !process::is_root() {
        return;
    }
    let filled = Filled::start(&setting);
    let pages = filled.pages("ordered");
    let next = |pair: &&[Page]| pair[1].colour == (pair[0].colour + 1) % 8;
    let hops = pages.windows(2).filter(next).count();
    assert!(hops + 8 > pages.len() - 1, "{hops} of {}", pages.len() - 1);
    filled.end();
}

#[test]
fn two_plugins_serve_one_program() {
    let setting = with("skew", "", Some("shares"));
    check(&setting, &["ordered", "random", "child"], |page| {
        page.colour == (page.number + page.number / COLOURS) % COLOURS
    });
    check(&setting, &["heap"], |page| page.colour < 8);
}

#[test]
fn a_plugin_that_lies_does_no_harm() {
    let setting = with("liar", "", None);
    let filled = Filled::start(&setting);
    filled.end();
    crate::check("lied_to", "stress", &["3", "4", "200"], None, &setting);
}

/// Forks, threads and signals meet the thread that runs the plug-in anywhere.
#[test]
fn programs_run_as_without_a_plugin() {
    let setting = with("shares", "", Some("skew"));
    crate::check(
        "plugin_forks",
        "fork_storm",
        &["8", "8", "32"],
        None,
        &setting,
    );
    crate::check("plugin_threads", "threads", &["16", "2000"], None, &setting);
    crate::check("plugin_churn", "churn", &["1000"], None, &setting);
    crate::check("plugin_closes", "closefds", &[], None, &setting);
}

/// Runs a script under `quire run`, in a directory with one plug-in; what it wrote.
fn run_script(strategy: &str, script: &str) -> process::Outcome {
    let scratch = Scratch::new(false);
    scratch.take_copy(&plugin("skew"));
    let mut library = OsString::from("QUIRE_JEMALLOC_LIB=");
    library.push(build::jemalloc());
    let words = ["run", "--colour-bits", "12,13,14,15", "--frames", strategy];
    let script = format!("FILL={}; {script}", build::program("fill").display());
    let mut argv = vec!["env".into(), library, build::command().into()];
    argv.extend(words.map(OsString::from));
    argv.extend(["--", "sh", "-c", &script].map(OsString::from));
    process::run(&argv, scratch.path())
}

#[test]
fn a_plugin_is_found_from_other_directories() {
    if !process::is_root() {
        return skip("frames by strategy may take root");
    }
    let outcome = run_script("./skew.so:8", "cd / && exec $FILL 8");
    let summary = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
    let pages = summary.split("frames: ").nth(1);
    let pages = pages.and_then(|text| text.split(' ').next()?.parse().ok());
    assert!(pages.is_some_and(|pages: u64| pages >= 8 << 8), "{summary}");
    assert!(summary.contains(" 0 in any"), "{summary}");
    assert!(!summary.contains("plug-in"), "{summary}");
}

#[test]
fn a_program_goes_on_when_the_plugin_is_gone() {
    let outcome = run_script("./skew.so", "rm skew.so && $FILL 8 && exec $FILL 8");
    let summary = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
    assert_eq!(outcome.stdout, b"ready\nready\n");
    assert!(summary.contains("a strategy's plug-in"), "{summary}");
}

//! `malloc` where memory is provided: the program's own in `libquire_provide.so`, and what it does with jemalloc. With
//! its own, programs run that a foreign allocator broke.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::held::Held;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{
    COLOUR_LIBC, EAGER, RESERVE, RESERVE_AHEAD, RESERVE_JEMALLOC, STATIC, STATIC_JEMALLOC, Setting,
    UNPRIVILEGED, UNPRIVILEGED_JEMALLOC,
};
use crate::harness::{Program, build, process, skip};
use crate::managed::huge_bytes;

/// With the program's own `malloc`.
const OWN: [&Setting; 6] = [
    &RESERVE,
    &RESERVE_AHEAD,
    &EAGER,
    &STATIC,
    &UNPRIVILEGED,
    &COLOUR_LIBC,
];
/// With either.
const ANY: [&Setting; 9] = [
    &RESERVE,
    &RESERVE_AHEAD,
    &EAGER,
    &STATIC,
    &UNPRIVILEGED,
    &COLOUR_LIBC,
    &RESERVE_JEMALLOC,
    &STATIC_JEMALLOC,
    &UNPRIVILEGED_JEMALLOC,
];

/// Runs a command line under each of the settings, where a plug-in lies.
fn check(name: &str, argv: &[OsString], plugin: Option<&str>, settings: &[&Setting]) {
    let prepare = |directory: &Path| {
        if let Some(plugin) = plugin.map(build::plugin) {
            let to = directory.join(plugin.file_name().expect("a plug-in has a name"));
            std::fs::copy(plugin, to).expect("the directory can be written");
        }
    };
    for setting in settings {
        Program {
            name,
            argv: argv.to_vec(),
            prepare: &prepare,
            result: None,
            memory_limit: None,
        }
        .check(setting);
    }
}

/// A command line of a tool of the system, where it is installed.
fn tool(words: &[&str]) -> Option<Vec<OsString>> {
    let Some(path) = process::find(words[0]) else {
        skip(&format!("{} is not installed", words[0]));
        return None;
    };
    let rest = words[1..].iter().map(OsString::from);
    Some(std::iter::once(path.into()).chain(rest).collect())
}

/// It opens its extensions with `RTLD_DEEPBIND`.
#[test]
fn php() {
    let script = r#"$a = []; for ($i = 0; $i < 600000; $i++) $a[] = "x$i";
        echo count($a), " ", strlen(json_encode($a)), "\n";"#;
    if let Some(argv) = tool(&["php", "-d", "memory_limit=-1", "-r", script]) {
        check("php", &argv, None, &OWN);
    }
}

#[test]
fn a_plugin_that_is_bound_to_the_c_library() {
    let argv = [build::program("deepbind").into()];
    check("deepbind", &argv, Some("bound"), &OWN);
}

/// An auditor has a C library of its own, and takes static thread-local storage.
#[test]
fn an_auditor() {
    let program = build::program("waits").into();
    let argv = [
        "env".into(),
        "LD_AUDIT=./audit.so".into(),
        program,
        "128".into(),
    ];
    // Other users may not read the directory of the build.
    check("ld_audit", &argv, Some("audit"), &OWN[..4]);
}

#[test]
fn valgrind() {
    if let Some(mut argv) = tool(&["valgrind", "-q"]) {
        argv.push(build::program("checked").into());
        check("valgrind", &argv, None, &OWN[..4]);
    }
}

/// What the program maps is managed, and the kernel is advised of what its `malloc` has.
#[test]
fn its_memory_is_advised() {
    if !process::is_root() {
        return skip("superpages are certain only for root");
    }
    const EACH: u64 = 96 << 20;
    let held = Held::start(&RESERVE, "hold", &(EACH >> 20).to_string());
    let pid = held.child.id();
    let mapped = || anonymous_huge_bytes(pid);
    let begin = Instant::now();
    while (mapped() < EACH / 8 * 7 || huge_bytes(pid) < EACH / 2 * 7)
        && begin.elapsed() < Duration::from_secs(20)
    {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (all, advised) = (huge_bytes(pid), mapped());
    let page = held.page();
    let beside = page.with_file_name(format!("stat.{pid}.advice"));
    assert!(page.exists() && beside.exists());
    held.end();
    assert!(advised >= EACH / 8 * 7, "{} MiB", advised >> 20);
    assert!(all >= EACH / 2 * 7, "{} MiB", all >> 20);
}

/// Superpages of private anonymous memory.
fn anonymous_huge_bytes(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup
        .lines()
        .find_map(|l| l.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Two libraries tell of the process, which is one.
#[test]
fn a_process_with_two_libraries_is_one() {
    if !process::is_root() {
        return skip("superpages are certain only for root");
    }
    let scratch = Scratch::new(false);
    let script = format!(
        "sleep 6 | {} run --policy reserve -- {} 96",
        build::command().display(),
        build::program("hold").display()
    );
    let libraries = RESERVE.libraries();
    let mut argv = vec![OsString::from("env")];
    for (variable, library) in ["QUIRE_LIB", "QUIRE_PROVIDE_LIB"].iter().zip(&libraries) {
        argv.push(format!("{variable}={}", library.display()).into());
    }
    argv.extend(["sh", "-c", &script].map(OsString::from));
    let outcome = process::run(&argv, scratch.path());
    assert_eq!(outcome.status, "exit status: 0", "{outcome}");
    let summary = String::from_utf8_lossy(&outcome.stderr);
    assert!(summary.contains("1 process\n"), "{summary}");
    let superpages = summary.split(' ').nth(2).and_then(|n| n.parse().ok());
    assert!(
        superpages.is_some_and(|n: u64| n > 3 * 48 + 24),
        "{summary}"
    );
}

/// What the kernel refuses is refused, at once.
#[test]
fn more_than_there_is() {
    let program = build::program("huge_malloc").into();
    check("huge_malloc", &[program], None, &ANY);
}

/// The same by the kernel's other rules: `cargo test -p quire-preload-provide -- --ignored each_rule`.
#[test]
#[ignore = "changes vm.overcommit_memory, which is the whole machine's"]
fn more_than_there_is_by_each_rule() {
    const RULE: &str = "/proc/sys/vm/overcommit_memory";
    let before = std::fs::read_to_string(RULE).expect("there is /proc");
    for rule in ["0", "1", "2"] {
        if std::fs::write(RULE, rule).is_err() {
            return skip("only root changes vm.overcommit_memory");
        }
        let argv = [build::program("huge_malloc").into()];
        let name = format!("huge_malloc by rule {rule}");
        // It may not stay like that when this panics.
        let done = std::panic::catch_unwind(|| check(&name, &argv, None, &ANY));
        std::fs::write(RULE, &before).expect("it was possible before");
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_failed_realloc_says_why() {
    let argv = [build::program("realloc_errno").into()];
    check("realloc_errno", &argv, None, &ANY);
}

//! The command as a user meets it. Programs run with a harmless library
//! preloaded, so none of this needs `libquire.so` or `libquire_provide.so`.

#[path = "common/refusal.rs"]
mod refusal;
#[path = "common/signals.rs"]
mod signals;
#[path = "common/waiting.rs"]
mod waiting;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use refusal::assert_refused;
use signals::send;
use waiting::{state, wait_for};

/// A library that every machine has and that does nothing when preloaded.
fn harmless_library() -> &'static str {
    [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib64/libm.so.6",
        "/usr/lib/libm.so.6",
    ]
    .into_iter()
    .find(|path| Path::new(path).exists())
    .expect("the C library's libm.so.6")
}

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    for variable in ["QUIRE_LIB", "QUIRE_PROVIDE_LIB", "QUIRE_JEMALLOC_LIB"] {
        command.env(variable, harmless_library());
    }
    command.args(args);
    command
}

/// A directory with the libraries, which do nothing.
fn libraries() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in [
        "libquire.so",
        "libquire_provide.so",
        "libquire_provide_jemalloc.so",
    ] {
        fs::copy(harmless_library(), dir.path().join(name)).unwrap();
    }
    dir
}

/// `quire` with these libraries, of which the variable names the one that advises.
fn quire_with(libraries: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command
        .env("QUIRE_LIB", libraries.join("libquire.so"))
        .env_remove("QUIRE_PROVIDE_LIB")
        .env_remove("QUIRE_JEMALLOC_LIB")
        .env_remove("QUIRE_MALLOC")
        .args(args);
    command
}

fn output(args: &[&str]) -> Output {
    quire(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn sh(script: &str) -> Output {
    output(&["run", "--quiet", "--", "sh", "-c", script])
}

#[test]
fn the_exit_status_is_the_programs() {
    assert_eq!(sh("exit 0").status.code(), Some(0));
    assert_eq!(sh("exit 42").status.code(), Some(42));
    assert_eq!(sh("exit 255").status.code(), Some(255));
}

#[test]
fn a_signal_that_kills_the_program_kills_quire() {
    // SIGABRT, SIGKILL, SIGSEGV, SIGPIPE, SIGTERM.
    for signal in [6, 9, 11, 13, 15] {
        let done = sh(&format!("kill -{signal} $$"));
        assert_eq!(done.status.signal(), Some(signal));
        assert!(!done.status.core_dumped());
    }
}

/// Starts a shell under quire and waits until its script made the file.
fn start(script: &str, ready: &Path) -> Child {
    // A stop from the keyboard is void where nobody in the session could end it,
    // that is, unless the parent is in another process group. A shell cannot trap
    // what was ignored when it began, as it is where tests run in the background.
    let quire = quire(&["run", "--quiet", "--", "sh", "-c", script]);
    let variables = quire.get_envs();
    let child = Command::new("env")
        .arg("--default-signal")
        .arg(quire.get_program())
        .args(quire.get_args())
        .envs(variables.filter_map(|(name, value)| Some((name, value?))))
        .process_group(0)
        .spawn()
        .unwrap();
    wait_for(|| ready.exists());
    child
}

#[test]
fn signals_are_passed_on() {
    // Those of job control, which a program may catch, and those of real time, too.
    let all = "TERM HUP INT QUIT USR1 USR2 ALRM VTALRM PROF XCPU XFSZ IO PWR 16 ABRT SYS TSTP TTIN TTOU 40";
    for signal in all.split(' ') {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let script = format!(
            "trap 'exit 7' {signal}; : > {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let mut child = start(&script, &ready);
        send(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(7), "{signal}");
    }
}

#[test]
fn the_word_of_a_queued_signal_is_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!(
        "import signal as s\ns.pthread_sigmask(s.SIG_BLOCK, [40])\nopen({:?}, 'w')\n\
         print(s.sigwaitinfo([40]).si_code)",
        ready.display()
    );
    let mut command = quire(&["run", "--quiet", "--", "python3", "-c", &script]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_for(|| ready.exists());
    let word = libc::sigval {
        sival_ptr: std::ptr::null_mut(),
    };
    // SAFETY: the call touches no memory.
    let sent = unsafe { libc::sigqueue(child.id().cast_signed(), 40, word) };
    assert_eq!(sent, 0);
    let done = child.wait_with_output().unwrap();
    assert_eq!(stdout(&done), format!("{}\n", libc::SI_QUEUE));
}

/// A program that ignores stops from the keyboard goes on, and `quire run` with it.
#[test]
fn quire_stops_only_where_the_program_does() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!("trap '' TSTP; : > {}; sleep 0.5; exit 3", ready.display());
    let mut child = start(&script, &ready);
    send("TSTP", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn closed_descriptors_stay_closed() {
    for redirected in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let open = |before: &str| {
            let dir = tempfile::tempdir().unwrap();
            let list = dir.path().join("list");
            let run = format!(
                "{before} python3 -c 'import os; open(\"{}\", \"w\").write(str([fd for fd in range(3) if os.path.exists(f\"/proc/self/fd/{{fd}}\")]))' {redirected}",
                list.display()
            );
            let mut bash = Command::new("bash");
            let done = bash.args(["-c", &run]).env("QUIRE_LIB", harmless_library());
            done.output().unwrap();
            std::fs::read_to_string(&list).unwrap()
        };
        let wrapped = format!("{} run --quiet --", env!("CARGO_BIN_EXE_quire"));
        assert_eq!(open(&wrapped), open(""), "{redirected}");
    }
}

#[test]
fn programs_run_without_proc() {
    let script = format!(
        "mount -t tmpfs none /proc && exec {} run --quiet -- echo runs",
        env!("CARGO_BIN_EXE_quire")
    );
    let mut unshare = Command::new("unshare");
    let done = unshare
        .args(["-Urmpf", "sh", "-c", &script])
        .output()
        .unwrap();
    if stderr(&done).contains("unshare") {
        eprintln!("SKIP: programs_run_without_proc: {}", stderr(&done).trim());
        return;
    }
    assert_eq!(stdout(&done), "runs\n", "{}", stderr(&done));
}

#[test]
fn quire_stops_and_continues_with_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!(": > {}; kill -s TSTP $$; exit 5", ready.display());
    let mut child = start(&script, &ready);
    wait_for(|| state(child.id()) == 'T');
    send("CONT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

/// The signals that a program started by `shell` under quire ignores and
/// blocks, and those without quire.
fn masks(shell: &str) -> (String, String) {
    let script =
        |command: &str| format!("{shell} {command} grep -E '^Sig(Blk|Ign)' /proc/self/status");
    let run = |script: &str| {
        let done = Command::new("bash")
            .args(["-c", script])
            .env("QUIRE_LIB", harmless_library())
            .output()
            .unwrap();
        stdout(&done)
    };
    let wrapped = format!("{} run --quiet --", env!("CARGO_BIN_EXE_quire"));
    (run(&script(&wrapped)), run(&script("env")))
}

#[test]
fn dispositions_and_mask_are_inherited() {
    for shell in ["", "trap '' PIPE;", "trap '' HUP INT;", "trap '' CHLD;"] {
        let (wrapped, direct) = masks(shell);
        assert!(direct.contains("SigIgn"), "{direct}");
        assert_eq!(wrapped, direct, "{shell}");
    }
}

#[test]
fn input_output_and_arguments_pass_through() {
    let mut child = quire(&["run", "--quiet", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    assert_eq!(stdout(&child.wait_with_output().unwrap()), "hello\n");
    let done = output(&[
        "run", "--quiet", "printf", "%s|", "--policy", "-x", "--", "a b",
    ]);
    assert_eq!(stdout(&done), "--policy|-x|--|a b|");
    let done = output(&["run", "--quiet", "--", "sh", "-c", "echo $0 >&2"]);
    assert_eq!(stderr(&done), "sh\n");
}

#[test]
fn the_configuration_reaches_the_program() {
    let script = "echo $QUIRE_POLICY $QUIRE_CPU; stat -c %a $QUIRE_SESSION";
    let done = quire(&["run", "-q", "--cpu", "2.5", "--", "sh", "-c", script]);
    let done = { done }.env("QUIRE_CPU", "99").output().unwrap();
    assert_eq!(stdout(&done), "adaptive 2.5\n1733\n");
    let script = "echo $QUIRE_POLICY $QUIRE_AHEAD $QUIRE_RESERVE_LIMIT; stat -c %a $QUIRE_SESSION";
    let done = quire(&[
        "run",
        "-q",
        "--policy=eager",
        "--ahead",
        "--reserve-limit",
        "1M",
    ])
    .args(["--", "sh", "-c", script])
    .output()
    .unwrap();
    assert_eq!(stdout(&done), "eager 268435456 1048576\n700\n");
    let done = quire(&[
        "run",
        "-q",
        "--ahead=64K",
        "sh",
        "-c",
        "echo $QUIRE_AHEAD $LD_PRELOAD",
    ])
    .env("LD_PRELOAD", "libdl.so.2")
    .env("QUIRE_RESERVE_LIMIT", "nonsense")
    .output()
    .unwrap();
    let library = fs::canonicalize(harmless_library()).unwrap();
    assert_eq!(
        stdout(&done),
        format!("65536 {}:libdl.so.2\n", library.display())
    );
}

/// The library is chosen by what is asked for; one that the user has moved has the other
/// one beside it.
#[test]
fn the_way_chooses_the_library() {
    let libraries = libraries();
    let preloaded = |options: &[&str]| {
        let program = ["--", "sh", "-c", "echo ${LD_PRELOAD##*/} $QUIRE_POLICY"];
        let args = [&["run", "-q"], options, &program].concat();
        let done = quire_with(libraries.path(), &args).output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        stdout(&done)
    };
    assert_eq!(preloaded(&[]), "libquire.so adaptive\n");
    assert_eq!(
        preloaded(&["--cpu", "5", "--policy", "eager"]),
        "libquire.so eager\n"
    );
    assert_eq!(preloaded(&["--policy", "base"]), "libquire.so base\n");
    assert_eq!(
        preloaded(&["--policy", "static"]),
        "libquire_provide.so static\n"
    );
    for options in [
        &["--ahead"][..],
        &["--reserve-limit", "1G"],
        &["--largest", "64K"],
        &["--pool-page", "2M"],
        &["--align"],
        &["--text"],
        &["--stock", "8M"],
    ] {
        let provided = preloaded(options);
        assert_eq!(provided, "libquire_provide.so adaptive\n", "{options:?}");
    }
    let frames = ["--frames", "default", "--colour-bits", "12,13"];
    assert_eq!(preloaded(&frames), "libquire_provide_jemalloc.so base\n");
    let own = [&frames[..], &["--malloc", "libc"]].concat();
    assert_eq!(preloaded(&own), "libquire_provide.so base\n");
    for options in [
        &["--malloc", "jemalloc"][..],
        &["--hint", "heap=default", "--colour-bits", "12,13"],
        &["--largest", "64K", "--malloc=jemalloc"],
    ] {
        let provided = preloaded(options);
        assert_eq!(
            provided, "libquire_provide_jemalloc.so adaptive\n",
            "{options:?}"
        );
    }
}

/// The environment says whose `malloc` is meant where memory is provided, and no more.
#[test]
fn the_environment_chooses_the_malloc() {
    let libraries = libraries();
    let preloaded = |malloc: &str, options: &[&str]| {
        let program = ["--", "sh", "-c", "echo ${LD_PRELOAD##*/}"];
        let args = [&["run", "-q"], options, &program].concat();
        let done = quire_with(libraries.path(), &args)
            .env("QUIRE_MALLOC", malloc)
            .output();
        done.unwrap()
    };
    let reserve = ["--policy", "reserve"];
    let with = |malloc, options: &[&str]| stdout(&preloaded(malloc, options));
    assert_eq!(with("jemalloc", &reserve), "libquire_provide_jemalloc.so\n");
    assert_eq!(with("", &reserve), "libquire_provide.so\n");
    assert_eq!(with("jemalloc", &[]), "libquire.so\n");
    let own = [&reserve[..], &["--malloc", "libc"]].concat();
    assert_eq!(with("jemalloc", &own), "libquire_provide.so\n");
    let frames = ["--frames", "default", "--colour-bits", "12,13"];
    assert_eq!(with("libc", &frames), "libquire_provide.so\n");
    assert_refused(
        &preloaded("mimalloc", &reserve),
        2,
        &["QUIRE_MALLOC", "mimalloc", "libc or jemalloc"],
    );
}

/// Programs that jemalloc breaks are refused by their names, before they start.
#[test]
fn jemalloc_is_not_for_every_program() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let ran = dir.path().join("ran");
    let text = format!("#!/bin/sh\n: > {}\n", ran.display());
    let php = make("php8.4", &text);
    let link = dir.path().join("interpreter");
    symlink(&php, &link).unwrap();
    let link = link.display().to_string();
    let script = make("page", &format!("#!{php} -q\n"));
    for program in [&php, &link, &script, &make("valgrind", &text)] {
        let done = output(&["run", "--malloc", "jemalloc", "--", program]);
        assert_refused(&done, 2, &["jemalloc", "use --malloc libc"]);
        assert!(!ran.exists(), "{program}");
    }
    let audited = quire(&["run", "--malloc", "jemalloc", "true"])
        .env("LD_AUDIT", "/no/audit.so")
        .output()
        .unwrap();
    // The loader has a line of its own about the module, which is none.
    let said = String::from_utf8_lossy(&audited.stderr);
    assert_eq!(audited.status.code(), Some(2), "{said}");
    assert!(
        said.contains("quire: no jemalloc for this program: LD_AUDIT is set"),
        "{said}"
    );
    for options in [&["--policy", "reserve"][..], &["--align", "--malloc=libc"]] {
        let args = [&["run", "-q"], options, &["--", &php]].concat();
        assert_eq!(output(&args).status.code(), Some(0), "{options:?}");
        assert!(ran.exists());
        fs::remove_file(&ran).unwrap();
    }
    let heap = ["run", "--malloc", "libc", "--hint", "heap=colour", "true"];
    assert_refused(&output(&heap), 2, &["heap=", "--malloc jemalloc"]);
}

/// The libraries of the outer run are in no process of the inner one.
#[test]
fn a_run_in_a_run_replaces_the_library() {
    let libraries = libraries();
    let quire = env!("CARGO_BIN_EXE_quire");
    let nested = |outer: &str, inner: &str| {
        let script = format!("{quire} run -q --policy {inner} -- sh -c 'echo $LD_PRELOAD'");
        let outer: Vec<&str> = outer.split(' ').collect();
        let args = [
            &["run", "-q", "--policy"],
            &outer[..],
            &["--", "sh", "-c", &script],
        ]
        .concat();
        let done = quire_with(libraries.path(), &args)
            .env("LD_PRELOAD", "libdl.so.2")
            .output()
            .unwrap();
        stdout(&done)
    };
    let with = |name: &str| {
        let path = libraries.path().canonicalize().unwrap().join(name);
        format!("{}:libdl.so.2\n", path.display())
    };
    let both = format!(
        "{}:{}",
        with("libquire.so").split(':').next().unwrap(),
        with("libquire_provide.so")
    );
    assert_eq!(nested("adaptive", "reserve"), both);
    assert_eq!(nested("static", "eager"), with("libquire.so"));
    assert_eq!(nested("eager", "adaptive"), with("libquire.so"));
    let jemalloc = with("libquire_provide_jemalloc.so");
    assert_eq!(nested("static", "reserve --malloc jemalloc"), jemalloc);
    assert_eq!(nested("reserve --malloc jemalloc", "static"), both);
}

/// Transparent huge pages are off for all programs, also for those without a loader.
#[test]
fn base_holds_for_static_programs_too() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("s.c"), dir.path().join("s"));
    let text = "#include <stdio.h>\n#include <string.h>\nint main(void) {\n\
        char line[256]; FILE *f = fopen(\"/proc/self/status\", \"r\");\n\
        while (f && fgets(line, sizeof line, f))\n\
        if (!strncmp(line, \"THP_enabled\", 11)) fputs(line, stdout);\nreturn 0;\n}\n";
    fs::write(&source, text).unwrap();
    let made = Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .output();
    if !made.is_ok_and(|made| made.status.success()) {
        println!("SKIP: no static programs can be linked here");
        return;
    }
    let program = program.to_str().unwrap();
    let plain = Command::new(program).output().unwrap();
    if stdout(&plain) != "THP_enabled:\t1\n" {
        println!("SKIP: the kernel has no transparent huge pages, or they are off here");
        return;
    }
    let done = output(&["run", "--policy", "base", "--", program]);
    assert_eq!(stdout(&done), "THP_enabled:\t0\n");
    assert_eq!(
        stderr(&done),
        "quire: base: transparent huge pages were switched off\n"
    );
    let done = output(&["run", "--", program]);
    assert_eq!(stdout(&done), "THP_enabled:\t1\n");
    assert!(
        stderr(&done).contains("is statically linked"),
        "{}",
        stderr(&done)
    );
    // Whoever inherits that is told.
    let quire = env!("CARGO_BIN_EXE_quire");
    let done = output(&["run", "-q", "--policy", "base", "--", quire, "run", "true"]);
    assert!(
        stderr(&done).contains("PR_SET_THP_DISABLE"),
        "{}",
        stderr(&done)
    );
}

/// A program that is killed with its `quire run` leaves nothing for ever.
#[test]
fn the_next_run_clears_what_a_killed_one_left() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = format!("echo $QUIRE_SESSION > {}; exec sleep 1000", ready.display());
    let mut child = quire(&["run", "-q", "--", "sh", "-c", &script])
        .process_group(0)
        .spawn()
        .unwrap();
    let said = || fs::read_to_string(&ready).unwrap_or_default();
    wait_for(|| said().ends_with('\n'));
    let session = said().trim().to_owned();
    assert!(Path::new(&session).exists());
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
    assert!(killed.unwrap().success());
    child.wait().unwrap();
    assert!(Path::new(&session).exists());
    sh("true");
    assert!(!Path::new(&session).exists());
}

/// Another user's process keeps its page in the directory, and nobody lists it.
#[test]
fn programs_that_change_their_user_may_make_files() {
    let script = "setpriv --reuid 65534 --clear-groups sh -c \
        'cd $QUIRE_SESSION; : > stat.1.65534; : > junk && echo $PWD; ls .'";
    let done = sh(script);
    let has_setpriv = !stderr(&done).contains("setpriv: ") && done.status.code() != Some(127);
    if !rustix::process::geteuid().is_root() || !has_setpriv {
        println!("SKIP: only root can change its user, with setpriv");
        return;
    }
    let session = stdout(&done);
    assert!(session.contains("/quire.0."), "{session}");
    assert!(!Path::new(session.trim()).exists());
    assert!(
        stderr(&done).contains("Permission denied"),
        "{}",
        stderr(&done)
    );
}

#[test]
fn the_session_directory_is_removed() {
    let done = sh("echo $QUIRE_SESSION; : > $QUIRE_SESSION/stat.999999999");
    let dir = stdout(&done);
    assert!(dir.starts_with("/dev/shm/quire."), "{dir}");
    assert!(!Path::new(dir.trim()).exists());
}

#[test]
fn a_missing_program_is_127() {
    let done = output(&["run", "--", "no-such-program-anywhere"]);
    assert_refused(&done, 127, &["no-such-program-anywhere", "not found"]);
    let done = output(&["run", "--", "/no/such/program"]);
    assert_refused(&done, 127, &["/no/such/program", "does not exist"]);
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let done = output(&["run", "--", script.to_str().unwrap()]);
    assert_refused(&done, 127, &["interpreter"]);
}

#[test]
fn a_program_that_cannot_be_executed_is_126() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "echo\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let done = output(&["run", "--", file.to_str().unwrap()]);
    assert_refused(&done, 126, &["not executable", "chmod +x"]);
    let done = quire(&["run", "--", "file"])
        .env("PATH", dir.path())
        .output()
        .unwrap();
    assert_refused(&done, 126, &["not executable"]);
    let done = output(&["run", "--", dir.path().to_str().unwrap()]);
    assert_refused(&done, 126, &["directory"]);
}

#[test]
fn bad_options_are_refused() {
    let done = output(&["run", "--policy", "huge", "true"]);
    assert_refused(
        &done,
        2,
        &["huge", "base, eager, reserve, adaptive, static"],
    );
    let done = output(&["run", "--ahead=12x", "true"]);
    assert_refused(&done, 2, &["12x", "256M"]);
    let done = output(&["run", "--reserve-limit", "much", "true"]);
    assert_refused(&done, 2, &["much"]);
    let done = output(&["run", "--cpu", "101", "true"]);
    assert_refused(&done, 2, &["101", "percentage"]);
    let done = output(&["run", "--polcy", "base", "true"]);
    assert_refused(&done, 2, &["--polcy", "--policy"]);
    assert_refused(&output(&["run"]), 2, &["PROGRAM"]);
    assert_refused(&output(&["fly"]), 2, &["fly"]);
    assert_refused(&output(&["stat", "--jsn"]), 2, &["--jsn"]);
    assert_refused(&output(&["completions", "tcsh"]), 2, &["bash, zsh, fish"]);
}

#[test]
fn a_missing_library_is_named() {
    let done = quire(&["run", "true"])
        .env("QUIRE_LIB", "/no/libquire.so")
        .output()
        .unwrap();
    assert_refused(&done, 2, &["/no/libquire.so", "QUIRE_LIB"]);
    let done = quire(&["run", "--ahead", "true"])
        .env("QUIRE_PROVIDE_LIB", "/no/libquire_provide.so")
        .output()
        .unwrap();
    let words = ["/no/libquire_provide.so", "QUIRE_PROVIDE_LIB"];
    assert_refused(&done, 2, &words);
}

/// A file that the loader would ignore is no library.
#[test]
fn what_is_no_library_is_not_preloaded() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.so");
    fs::write(&text, "no library at all").unwrap();
    let words = |variable| [variable, "text.so is no library"];
    let run = ["run", "--dsm", "grid@127.0.0.1:1", "--", "/bin/true"];
    let output = quire(&run).env("QUIRE_DSM_LIB", &text).output().unwrap();
    assert_refused(&output, 2, &words("QUIRE_DSM_LIB="));
    let mut run = quire(&["run", "--quiet", "--", "/bin/true"]);
    let output = run.env("QUIRE_LIB", &text).output().unwrap();
    assert_refused(&output, 2, &words("QUIRE_LIB="));
}

#[test]
fn statistics_that_cannot_be_written_stop_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().join("mark");
    let done = output(&[
        "run",
        "--stats",
        "/no/dir/s.json",
        "touch",
        mark.to_str().unwrap(),
    ]);
    assert_refused(&done, 2, &["/no/dir/s.json"]);
    assert!(!mark.exists());
}

#[test]
fn statistics_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.json");
    let run = |script: &str| -> Value {
        let file = path.to_str().unwrap();
        output(&[
            "run", "-q", "--policy", "base", "--stats", file, "--", "sh", "-c", script,
        ]);
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap()
    };
    let value = run("exit 3");
    assert_eq!(value["version"], 1);
    assert_eq!(value["command"], serde_json::json!(["sh", "-c", "exit 3"]));
    assert_eq!(value["policy"], "base");
    assert_eq!(value["way"], "advise");
    assert_eq!(
        value["exit"],
        serde_json::json!({"code": 3, "signal": null})
    );
    assert_eq!(value["totals"]["promotions"], 0);
    assert_eq!(value["processes"], serde_json::json!([]));
    assert!(value["wall_s"].as_f64().unwrap() > 0.0);
    let value = run("kill -9 $$");
    assert_eq!(
        value["exit"],
        serde_json::json!({"code": null, "signal": 9})
    );
}

#[test]
fn the_summary_is_on_standard_error() {
    let done = output(&["run", "true"]);
    assert_eq!(stdout(&done), "");
    assert_eq!(
        stderr(&done),
        "quire: adaptive: nothing was advised, as far as is known: no process said that it had \
         grown to 64 MiB\n"
    );
    let done = output(&["run", "--policy", "reserve", "true"]);
    assert_eq!(
        stderr(&done),
        "quire: reserve: nothing to manage (true used little memory)\n"
    );
    let done = output(&["run", "--policy", "base", "true"]);
    assert_eq!(
        stderr(&done),
        "quire: base: transparent huge pages were switched off\n"
    );
    assert_eq!(stderr(&output(&["run", "--quiet", "true"])), "");
}

#[test]
fn a_program_of_which_nothing_is_known_is_not_said_to_be_small() {
    // As after a change of its user, no process makes a page: here, for want of the library.
    let program = "head -c 64M /dev/zero | tail -c 64M > /dev/null";
    let done = output(&["run", "--policy", "reserve", "sh", "-c", program]);
    let said = stderr(&done);
    assert!(
        said.starts_with("quire: reserve: nothing was managed, as far as is known"),
        "{said}"
    );
    assert!(!said.contains("little memory"), "{said}");
}

#[test]
fn stat_of_a_process_that_is_not_there() {
    assert_refused(&output(&["stat", "4194305"]), 2, &["no process 4194305"]);
    let pid = std::process::id().to_string();
    assert_refused(&output(&["stat", &pid]), 2, &["not managed", "quire run"]);
    assert_refused(&output(&["stat", "zero"]), 2, &["zero"]);
}

#[test]
fn a_wrong_option_is_told_with_the_help_of_its_command() {
    let done = output(&["run", "--nosuch", "true"]);
    assert_refused(&done, 2, &["--nosuch", "(see `quire run --help`)"]);
    // It would be a program of that name.
    assert!(!stderr(&done).contains("-- --nosuch"), "{}", stderr(&done));
    let done = output(&["stat", "shell"]);
    assert_refused(&done, 2, &["write a whole number", "`quire stat --help`"]);
    assert_refused(&output(&["nosuch"]), 2, &["(see `quire --help`)"]);
}

#[test]
fn stat_shows_the_machine() {
    let done = output(&["stat"]);
    assert!(done.status.success());
    assert!(stdout(&done).contains("Free blocks"), "{}", stdout(&done));
    let value: Value = serde_json::from_slice(&output(&["stat", "--json"]).stdout).unwrap();
    assert!(value["processes"].is_array());
    assert!(value["machine"]["free_blocks"].is_array());
}

#[test]
fn doctor_checks_everything() {
    let done = output(&["doctor"]);
    assert!(done.status.success());
    let text = stdout(&done);
    let verdict = |about: &str| text.lines().find(|line| line.starts_with(about)).unwrap();
    let policies = verdict("Policies that work ");
    for policy in ["adaptive", "base", "eager", "reserve", "static"] {
        assert!(policies.contains(policy), "{policies}");
    }
    for check in [
        "page table (/proc/self/pagemap)",
        "PAGEMAP_SCAN",
        "MADV_COLLAPSE",
        "shrinker of superpages (khugepaged/max_ptes_none)",
    ] {
        assert!(text.lines().any(|line| line.contains(check)), "{check}");
    }
    let frames = verdict("Frames by strategy ");
    assert!(!text.contains('\x1b'));
    let value: Value = serde_json::from_slice(&output(&["doctor", "--json"]).stdout).unwrap();
    for check in value["checks"].as_array().unwrap() {
        let ok = check["status"] == "ok";
        assert_eq!(check["remedy"] == "", ok, "{check}");
    }
    assert_eq!(value["policies"]["base"], "ok");
    let how = match value["frames"].as_str().unwrap() {
        "ok" => "work fully",
        "limited" => "work in part",
        _ => "do not work",
    };
    assert!(frames.contains(how), "{frames}");
    let needs = |check: &&Value| check["frames"] == "needs";
    let checks = value["checks"].as_array().unwrap();
    let needed: Vec<&str> = checks
        .iter()
        .filter(needs)
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    let wanted = [
        "userfaultfd that moves pages",
        "folios for the stock",
        "caches",
    ];
    assert_eq!(needed, wanted);
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&output(&["completions", shell]));
        assert!(
            text.contains("doctor") && text.contains("reserve-limit") && text.contains("cpu"),
            "{shell}"
        );
    }
    assert!(stdout(&output(&["man"])).contains(".TH quire 1"));
    let dir = tempfile::tempdir().unwrap();
    assert!(
        output(&["man", dir.path().to_str().unwrap()])
            .status
            .success()
    );
    for page in [
        "quire",
        "quire-run",
        "quire-stat",
        "quire-top",
        "quire-tlb",
        "quire-attach",
        "quire-set",
        "quire-report",
        "quire-compare",
        "quire-doctor",
        "quire-completions",
        "quire-man",
    ] {
        let text = fs::read_to_string(dir.path().join(format!("{page}.1"))).unwrap();
        assert!(text.contains(&format!(".TH {page} 1")), "{page}: {text}");
        assert!(text.contains(".SH EXAMPLES"), "{page}");
    }
    assert_refused(&output(&["man", "/proc/no"]), 2, &["/proc/no"]);
    let run = fs::read_to_string(dir.path().join("quire-run.1")).unwrap();
    assert!(run.contains("\\-\\-cpu") && run.contains("QUIRE_PROVIDE_LIB"));
    // Commands below others have pages, too, with what they share.
    let page = |name: &str| fs::read_to_string(dir.path().join(format!("{name}.1"))).unwrap();
    for action in [
        "create", "ls", "stat", "trace", "rm", "grant", "cp", "check",
    ] {
        let name = format!("quire-object-{action}");
        let text = page(&name);
        assert!(text.contains(&format!(".TH {name} 1")), "{text}");
        assert!(text.contains(&format!("quire object {action}")), "{text}");
        assert!(text.contains("\\-\\-server"), "{text}");
        let listed = page("quire-object");
        assert!(listed.contains(&format!("object\\-{action}")), "{listed}");
    }
    for action in ["demo", "certify"] {
        let text = page(&format!("quire-dsm-{action}"));
        assert!(text.contains(".SH EXAMPLES"), "{text}");
    }
    // What is hidden has none, and is offered by nobody.
    for action in ["member", "host"] {
        assert!(!dir.path().join(format!("quire-dsm-{action}.1")).exists());
    }
    let all = fs::read_dir(dir.path()).unwrap();
    for entry in all {
        let path = entry.unwrap().path();
        let has_version = fs::read_to_string(&path).unwrap().contains("\\-\\-version");
        assert_eq!(has_version, path.ends_with("quire.1"), "{}", path.display());
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = stdout(&output(&["completions", shell]));
        assert!(text.contains("certify") && text.contains("demo"), "{shell}");
        let hidden = ["member", "Run one member", "until the input ends"];
        let offered = hidden.iter().find(|words| text.contains(**words));
        assert_eq!(offered, None, "{shell}");
    }
}

#[test]
fn help_and_version() {
    let done = output(&["--version"]);
    assert_eq!(
        stdout(&done),
        format!("quire {}\n", env!("CARGO_PKG_VERSION"))
    );
    for command in [
        "run",
        "stat",
        "top",
        "set",
        "attach",
        "tlb",
        "report",
        "compare",
        "doctor",
        "completions",
        "man",
    ] {
        let done = output(&[command, "--help"]);
        assert!(done.status.success());
        assert!(stdout(&done).contains("EXAMPLES"), "{command}");
    }
    assert_eq!(output(&[]).status.code(), Some(2));
}

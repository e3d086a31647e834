//! Programs of the system under the library, of those that broke other ways of making superpages.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::harness::setting::{ADAPTIVE, ADAPTIVE_ORDINARY, BASE, EAGER, EVERY, Setting};
use crate::harness::{Program, build, process, skip};

/// A command line; says why there is none where the tool is missing.
fn tool(test: &str, argv: &[&str]) -> Option<Vec<OsString>> {
    let Some(path) = process::find(argv[0]) else {
        skip(test, &format!("{} is not installed", argv[0]));
        return None;
    };
    let rest = argv[1..].iter().map(OsString::from);
    Some(std::iter::once(path.into()).chain(rest).collect())
}

fn check(name: &'static str, argv: &[&str], settings: &[Setting]) {
    if let Some(argv) = tool(name, argv) {
        Program {
            name,
            argv,
            ..Program::default()
        }
        .check(settings);
    }
}

/// It opens its extensions with `RTLD_DEEPBIND`.
#[test]
fn php() {
    let script = r#"$a = []; for ($i = 0; $i < 600000; $i++) $a[] = "x$i";
        echo count($a), " ", strlen(json_encode($a)), "\n";"#;
    check(
        "php",
        &["php", "-d", "memory_limit=-1", "-r", script],
        &EVERY,
    );
}

#[test]
fn valgrind() {
    if let Some(mut argv) = tool("valgrind", &["valgrind", "-q"]) {
        argv.push(build::program("checked").into());
        Program {
            name: "valgrind",
            argv,
            ..Program::default()
        }
        .check(&[ADAPTIVE, EAGER, BASE]);
    }
}

/// AddressSanitizer's runtime refuses to run behind other libraries, unless it is told that they do no harm.
#[test]
fn address_sanitizer() {
    let script = r#"cat >wrong.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
  size_t len = 128 << 20;
  char *large = malloc(len), *small = malloc(16 + argc);
  memset(large, 1, len);
  large = realloc(large, 2 * len);
  memset(large + len, 2, len);
  printf("%d %d\n", large[len - 1], large[2 * len - 1]);
  fflush(stdout);
  return small[16 + argc] + argc + argv[0][0];
}
C
        gcc -g -fsanitize=address wrong.c -o wrong && ./wrong 2>said; echo $?; grep -o 'SUMMARY.*overflow' said"#;
    if tool("address_sanitizer", &["gcc"]).is_some() {
        check(
            "address_sanitizer",
            &["sh", "-c", script],
            &[ADAPTIVE, ADAPTIVE_ORDINARY, EAGER],
        );
    }
}

/// A leak checker looks for addresses of blocks in the data of libraries, too: one that is there hides a leak.
#[test]
fn leak_checker() {
    let script = r#"cat >leak.c <<'C'
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) static void leak(void) {
  char *block = calloc(1, 100 << 20);
  memset(block, 3, 100 << 20);
  usleep(500000);
}
int main(void) {
  char room[4096];
  leak();
  memset(room, 0, sizeof room);
  return room[(long)environ & 1];
}
C
        gcc -D_GNU_SOURCE -fsanitize=leak leak.c -o leak && ./leak 2>said; echo $?; grep SUMMARY said"#;
    if tool("leak_checker", &["gcc"]).is_some() {
        check(
            "leak_checker",
            &["sh", "-c", script],
            &[ADAPTIVE, ADAPTIVE_ORDINARY, EAGER],
        );
    }
}

/// An auditor has a C library of its own, and takes static thread-local storage.
#[test]
fn ld_audit() {
    let audit = "LD_AUDIT=./audit.so";
    let dense = build::program("waits");
    Program {
        name: "ld_audit",
        argv: vec!["env".into(), audit.into(), dense.into(), "128".into()],
        files: vec![build::plugin("audit")],
        ..Program::default()
    }
    .check(&EVERY);
}

/// Its zygote must have one thread when it forks. It leaves crash handlers behind, which end with its group.
#[test]
fn chromium() {
    let script = r#"HOME=$PWD timeout -k 2 50 chromium --headless --no-sandbox --disable-gpu \
        --user-data-dir="$PWD/profile" --dump-dom 'data:text/html,<p>hello</p>' 2>/dev/null | grep '<p>hello</p>'"#;
    if tool("chromium", &["chromium"]).is_some() {
        check("chromium", &["sh", "-c", script], &[ADAPTIVE, EAGER]);
    }
}

/// The system's Python, if there is one: other users may run that.
fn python() -> &'static str {
    let system = "/usr/bin/python3";
    if Path::new(system).exists() {
        system
    } else {
        "python3"
    }
}

/// numpy's wheel, which is fetched once; for no longer than this.
fn numpy_at() -> Result<&'static Path, String> {
    const PATIENCE: Duration = Duration::from_secs(40);
    static AT: OnceLock<Result<std::path::PathBuf, String>> = OnceLock::new();
    let fetch = || {
        let at = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wheels");
        if at.join("numpy/__init__.py").exists() {
            return Ok(at);
        }
        let fresh = at.with_extension(std::process::id().to_string());
        let mut pip = Command::new(python())
            .args(["-m", "pip", "-q", "install", "--no-input", "--retries", "0"])
            .args(["--timeout", "10", "numpy", "--target"])
            .arg(&fresh)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", python()))?;
        let begin = Instant::now();
        loop {
            match pip.try_wait() {
                Ok(Some(status)) if status.success() => break,
                Ok(None) if begin.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                ended => {
                    let _ = pip.kill();
                    let _ = pip.wait();
                    let _ = std::fs::remove_dir_all(&fresh);
                    return Err(format!("numpy cannot be installed by pip: {ended:?}"));
                }
            }
        }
        // Another test run may have been faster.
        let renamed = std::fs::rename(&fresh, &at);
        if renamed.is_err() {
            let _ = std::fs::remove_dir_all(&fresh);
        }
        Ok(at)
    };
    AT.get_or_init(fetch).as_deref().map_err(Clone::clone)
}

/// It maps memory in a constructor, and asks for superpages itself.
#[test]
fn numpy() {
    let at = match numpy_at() {
        Ok(at) => at,
        Err(reason) => return skip("numpy", &reason),
    };
    let script = "import numpy as np\n\
        a = np.ones(20_000_000)\n\
        print(a.sum(), (np.random.default_rng(1).random((600, 600)) @ np.ones((600, 600))).shape)";
    let variable = format!("PYTHONPATH={}", at.display());
    let argv = ["env", &variable, python(), "-c", script];
    check("numpy", &argv, &[ADAPTIVE, EAGER, BASE]);
}

/// A `MemoryError` is one, and the program goes on.
#[test]
fn python_without_memory() {
    let script = r#"
try:
    b"x" * (1 << 46)
except MemoryError:
    print("MemoryError")
rows = [[i, str(i)] for i in range(600000)]
import os
for n in range(3):
    pid = os.fork()
    if pid == 0:
        rows.sort(key=lambda r: r[1]); os._exit(n)
    print(os.waitpid(pid, 0)[1] >> 8)
print(len(rows), rows[-1])"#;
    let settings = [ADAPTIVE, EAGER, BASE, ADAPTIVE_ORDINARY];
    check("python", &[python(), "-c", script], &settings);
}

/// A group of processes is frozen and thawed while the program uses memory.
#[test]
fn freezer() {
    let waits = build::program("frozen");
    let script = r#"
        base=/sys/fs/cgroup; [ -d $base/freezer ] && base=$base/freezer
        cg=$base/quire-test.$$; mkdir $cg 2>/dev/null || { echo "no group can be made"; exit 77; }
        if [ -e $cg/freezer.state ]; then f=$cg/freezer.state on=FROZEN off=THAWED; else f=$cg/cgroup.freeze on=1 off=0; fi
        [ -e $f ] || { rmdir $cg; echo "there is no freezer"; exit 77; }
        is() { [ $on = 1 ] && grep -q 'frozen 1' $cg/cgroup.events || [ "$(cat $f)" = FROZEN ]; }
        sh -c 'echo 0 > "$0/cgroup.procs"; exec ./frozen' $cg & run=$!
        sleep 0.5; bad=0
        for i in $(seq 30); do
          echo $on > $f; n=0
          until is; do sleep 0.01; n=$((n + 1)); [ $n -gt 300 ] && { echo "not frozen within 3 s"; bad=1; break; }; done
          sleep 0.02; echo $off > $f; sleep 0.02
        done
        touch stop; wait $run; rc=$?; sleep 0.1; rmdir $cg; [ $bad = 0 ] && exit $rc; exit 1"#;
    if let Some(mut argv) = tool("freezer", &["sh", "-c"]) {
        argv.push(script.into());
        Program {
            name: "freezer",
            argv,
            files: vec![waits],
            ..Program::default()
        }
        .check(&[ADAPTIVE, EAGER]);
    }
}

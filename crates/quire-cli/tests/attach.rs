//! `quire attach` as a user meets it: its service with its configuration, its
//! signals and its metrics; and what it says where it cannot work.

#[path = "common/refusal.rs"]
mod refusal;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::Value;

use refusal::assert_refused;

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("attach").args(args);
    command
}

/// Whether attaching works here at all.
fn can_attach() -> bool {
    let output = quire(&["--once", "--all-above", "1000T"]).output().unwrap();
    if !output.status.success() {
        println!("SKIP: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    output.status.success()
}

/// A program that fills `mib` MiB and then waits, built once as a static binary.
fn filler(mib: u32) -> Option<Child> {
    filler_of(mib, None)
}

/// As [`filler`], run by another user.
fn filler_of(mib: u32, user: Option<u32>) -> Option<Child> {
    let mut command = Command::new(filler_program()?);
    command.arg(mib.to_string());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    Some(ready(&mut command))
}

/// As [`filler`], under another name, so that no rule of another test selects it.
fn filler_apart(mib: u32) -> Option<Child> {
    let program = filler_program()?;
    let name = format!("apart{}.{mib}", std::process::id());
    let apart = program.with_file_name(name);
    fs::hard_link(&program, &apart).unwrap();
    let child = ready(Command::new(&apart).arg(mib.to_string()));
    fs::remove_file(&apart).unwrap();
    Some(child)
}

/// The program, built once.
fn filler_program() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/prctl.h>
        // On base pages, whatever the kernel does by itself.
        int main(int argc, char **argv) {
          size_t len = (size_t)atoi(argv[argc - 1]) << 20;
          void *p = mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
          memset(p, 1, len);
          prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
          puts("ready"), fflush(stdout);
          return getchar() == EOF ? 0 : 1;
        }"#;
    let name = format!("filler{}", std::process::id());
    let program = dir.join(&name);
    if !program.exists() {
        let unfinished = dir.join(format!("{name}.{:?}", std::thread::current().id()));
        let mut gcc = Command::new("gcc")
            .args(["-O1", "-static", "-xc", "-", "-o"])
            .arg(&unfinished)
            .stdin(Stdio::piped())
            .spawn()
            .ok()?;
        gcc.stdin.take()?.write_all(source.as_bytes()).ok()?;
        if !gcc.wait().ok()?.success() {
            println!("SKIP: gcc cannot build static programs here");
            return None;
        }
        fs::rename(&unfinished, &program).unwrap();
    }
    Some(program)
}

/// Starts a program, and waits until it says that it is ready.
fn ready(command: &mut Command) -> Child {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    child
}

fn end(mut child: Child) {
    child.stdin.take();
    assert!(child.wait().unwrap().success());
}

fn superpages_mib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text
        .lines()
        .find(|l| l.starts_with("AnonHugePages:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        >> 10
}

#[test]
fn bad_input_is_refused() {
    let outcome = |args: &[&str]| quire(args).output().unwrap();
    assert_refused(&outcome(&[]), 2, &["PID", "--cgroup"]);
    assert_refused(
        &outcome(&["1", "--all-above", "1G"]),
        2,
        &["cannot be used"],
    );
    assert_refused(&outcome(&["1", "--threshold", "0"]), 2, &["threshold"]);
    assert_refused(&outcome(&["1", "--cpu", "200"]), 2, &["percentage"]);
    assert_refused(&outcome(&["1", "--interval", "-1"]), 2, &[]);
    assert_refused(
        &outcome(&["--config", "/no/file.toml"]),
        2,
        &["/no/file.toml"],
    );
    assert_refused(
        &outcome(&["--cgroup", "/no/such/group"]),
        2,
        &["control group"],
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attach.toml");
    fs::write(&path, "cpu = 1\n\n[[rule]]\nprogramm = 'x'\n").unwrap();
    let path = path.to_str().unwrap();
    assert_refused(&outcome(&["--config", path]), 2, &[":4:", "programm"]);
    if can_attach() {
        assert_refused(&outcome(&["4000000000"]), 2, &["no process 4000000000"]);
    }
}

#[test]
fn one_pass_reports_what_it_did() {
    let Some(child) = can_attach().then(|| filler(32)).flatten() else {
        return;
    };
    let pid = child.id().to_string();
    let output = quire(&["--once", "--json", &pid]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = &report["processes"][0];
    assert_eq!(process["pid"], child.id());
    // The mapping need not begin at the boundary of an extent.
    let promoted = process["promoted"].as_u64().unwrap();
    assert!((15..=16).contains(&promoted), "{report}");
    assert_eq!(superpages_mib(child.id()), 2 * promoted);
    let table = quire(&["--once", &pid]).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("SUPERPAGES"));
    end(child);
}

#[test]
fn without_the_right_to_the_remedy_is_named() {
    if !can_attach() || !rustix::process::geteuid().is_root() {
        return println!("SKIP: not root, so there are no rights to give up");
    }
    let mut command = quire(&["1"]);
    command.uid(65534).gid(65534);
    assert_refused(&command.output().unwrap(), 1, &["sudo", "CAP_SYS_NICE"]);
}

/// Starts `quire attach` under a filter that answers as an older kernel.
#[test]
fn a_kernel_that_cannot_is_named() {
    const SCRIPT: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# Load the number of the call; for the given one, the given error; else allow.
call, errno = int(sys.argv[1]), int(sys.argv[2])
code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | errno), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *step) for step in code)
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
"#;
    let cases = [
        ("440", "22", "MADV_COLLAPSE"),
        ("440", "38", "MADV_COLLAPSE"),
        // ioctl: the only one that is asked for is PAGEMAP_SCAN.
        ("16", "25", "PAGEMAP_SCAN"),
    ];
    for (call, errno, word) in cases {
        let started = Command::new("python3")
            .args(["-c", SCRIPT, call, errno])
            .args([env!("CARGO_BIN_EXE_quire"), "attach", "1"])
            .output();
        let Ok(output) = started else {
            return println!("SKIP: there is no python3");
        };
        assert_refused(&output, 1, &["Linux 6.7", word]);
    }
}

/// A service that runs, and the lines that it says.
struct Service {
    child: Child,
    lines: Receiver<String>,
}

impl Service {
    fn start(config: &Path) -> Service {
        let mut command = quire(&["--config", config.to_str().unwrap(), "--json"]);
        let pipes = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Service { child, lines }
    }

    /// Waits for a line that holds `words`.
    fn says(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(20));
            let line = line.unwrap_or_else(|_| panic!("never said `{words}`"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: i32) {
        quire_linux::sysinfo::signals::send(self.child.id(), signal);
    }

    /// Ends it by SIGTERM; returns what it printed.
    fn end(mut self) -> Value {
        self.signal(15);
        let mut text = String::new();
        let mut output = self.child.stdout.take().unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Over already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fetch(address: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

/// The sum of a metric over its labels.
fn metric(address: &str, name: &str) -> f64 {
    let text = fetch(address);
    let samples = text.lines().filter(|line| line.starts_with(name));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_service_starts_reloads_and_stops() {
    let Some(first) = can_attach().then(|| filler(32)).flatten() else {
        return;
    };
    let Some(second) = filler(64) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attach.toml");
    let write = |rules: &str| {
        let head = "cpu = 50.0\ninterval = 0.1\naccesses = 'none'\nmetrics = '127.0.0.1:0'\n";
        fs::write(&path, format!("{head}{rules}")).unwrap();
    };
    // The same program twice, told apart by size.
    let program = format!("program = 'filler{}'\n", std::process::id());
    let small = format!("[[rule]]\n{program}min_size = '48M'\nexclude = true\n[[rule]]\n{program}");
    write(&small);
    let service = Service::start(&path);
    let line = service.says("metrics at http://");
    let address = line
        .split("http://")
        .nth(1)
        .unwrap()
        .trim_end_matches("/metrics")
        .to_owned();
    wait_for("the first is promoted", || superpages_mib(first.id()) >= 30);
    assert_eq!(superpages_mib(second.id()), 0);
    assert_eq!(metric(&address, "quire_attach_processes"), 1.0);

    write("[[rule]]\nmin_sizes = 1\n");
    service.signal(1);
    assert!(service.says("the old configuration stays").contains(":6:"));
    assert_eq!(metric(&address, "quire_attach_processes"), 1.0);

    write(&format!("[[rule]]\n{program}"));
    service.signal(1);
    service.says("is read anew");
    wait_for("the second is promoted", || {
        superpages_mib(second.id()) >= 62
    });
    assert_eq!(
        metric(&address, "quire_attach_reloads_total{result=\"ok\"}"),
        1.0
    );
    assert_eq!(
        metric(&address, "quire_attach_reloads_total{result=\"failed\"}"),
        1.0
    );
    // It tells after the fact.
    wait_for("all are counted", || {
        metric(&address, "quire_attach_promotions_total") >= 46.0
            && metric(&address, "quire_attach_superpage_bytes") >= (92 << 20) as f64
    });

    end(first);
    wait_for("the end is noticed", || {
        metric(&address, "quire_attach_exits_total") == 1.0
    });
    let report = service.end();
    assert_eq!(report["exits"], 1);
    assert_eq!(report["processes"][0]["pid"], second.id());
    // Superpages stay.
    assert!(superpages_mib(second.id()) >= 62);
    end(second);
}

/// What `quire stat` and the like say, where they end well.
fn shown(args: &[&str]) -> Option<String> {
    let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output = quire.args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

#[test]
fn processes_that_are_attached_to_are_shown() {
    let Some(child) = can_attach().then(|| filler_apart(32)).flatten() else {
        return;
    };
    let pid = child.id().to_string();
    let args = ["--cpu", "100", "--interval", "0.1", "--quiet", &pid];
    let mut attach = quire(&args).spawn().unwrap();
    let stat = || -> Option<Value> {
        let text = shown(&["stat", "--json", &pid])?;
        let stat: Value = serde_json::from_str(&text).unwrap();
        Some(stat["processes"][0].clone())
    };
    let promoted = |stat: &Value| stat["promotions"].as_u64().unwrap_or(0);
    wait_for("the process is shown", || {
        let shown = stat().map_or(0, |stat| promoted(&stat));
        shown >= 15 && superpages_mib(child.id()) == 2 * shown
    });
    let stat_now = stat().unwrap();
    assert_eq!(stat_now["privilege"], "advised");
    assert_eq!(stat_now["policy"], "adaptive");
    assert_eq!(stat_now["superpages"].as_u64(), Some(promoted(&stat_now)));
    let regions = stat_now["regions"].as_array().unwrap();
    let large = regions.iter().find(|region| promoted(region) > 0).unwrap();
    assert!(large["picture"]["states"].as_str().unwrap().len() >= 15);
    let metrics = shown(&["stat", "--prometheus"]).unwrap();
    let label = format!("pid=\"{pid}\"");
    let mut superpages = metrics
        .lines()
        .filter(|line| line.starts_with("quire_superpages{"));
    assert!(superpages.any(|line| line.contains(&label)), "{metrics}");
    assert!(shown(&["top", "--once", &pid]).unwrap().contains(&pid));

    let session = format!(
        "/dev/shm/quire.{}.{}",
        rustix::process::geteuid().as_raw(),
        attach.id()
    );
    assert!(Path::new(&session).is_dir());
    quire_linux::sysinfo::signals::send(attach.id(), 15);
    assert!(attach.wait().unwrap().success());
    assert!(!Path::new(&session).exists());
    assert!(stat().is_none());
    end(child);
}

#[test]
fn the_share_of_a_processor_is_kept() {
    let Some(child) = can_attach().then(|| filler_apart(512)).flatten() else {
        return;
    };
    let pid = child.id().to_string();
    let args = ["--cpu", "1", "--json", "--accesses", "none", &pid];
    let attach = quire(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // On a slow machine the first look alone takes what is due for seconds.
    std::thread::sleep(Duration::from_secs(9));
    quire_linux::sysinfo::signals::send(attach.id(), 2);
    let output = attach.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| report[name].as_f64().unwrap();
    // The last promotion may go into debt; where the kernel has to find a block
    // first, that takes tens of milliseconds.
    let bound = 0.01 * number("elapsed_seconds") + 0.05;
    assert!(number("cpu_seconds") < bound, "{report}");
    assert!(number("elapsed_seconds") > 5.0, "{report}");
    assert!(
        report["total"]["promoted"].as_u64().unwrap() > 0,
        "{report}"
    );
    assert!(
        report["processes"][0]["waiting"].as_u64().unwrap() > 0,
        "{report}"
    );
    end(child);
}

#[test]
fn programs_with_a_runtime_of_their_own_are_promoted() {
    if !can_attach() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "Fill.java",
        "public class Fill { static long[] a = new long[8 << 20]; public static void main(String[] x) throws Exception { java.util.Arrays.fill(a, 7); System.out.println(\"ready\"); System.in.read(); } }",
    );
    write(
        "fill.go",
        "package main\nimport (\"fmt\"; \"os\")\nvar a [64 << 20]byte\nfunc main() { for i := range a { a[i] = 7 }; fmt.Println(\"ready\"); os.Stdin.Read(make([]byte, 1)) }\n",
    );
    write(
        "fill.py",
        "import sys\na = list(range(1000, 2_000_000))\nprint('ready', flush=True)\nsys.stdin.read()\n",
    );
    let go = [&["go", "build", "-o", "fill", "fill.go"][..], &["./fill"]];
    let java = [&["javac", "Fill.java"][..], &["java", "-Xmx256m", "Fill"]];
    let python = [&["true"][..], &["python3", "fill.py"]];
    for [build, start] in [go, java, python] {
        let run = |words: &[&str]| {
            let program = if words[0].starts_with("./") {
                dir.path().join(&words[0][2..])
            } else {
                words[0].into()
            };
            let mut command = Command::new(program);
            command.args(&words[1..]).current_dir(dir.path());
            command
                .env("CGO_ENABLED", "0")
                .env("GO111MODULE", "off")
                .env("HOME", dir.path());
            command
        };
        if !run(build).output().is_ok_and(|o| o.status.success()) {
            println!("SKIP: {} is missing or cannot build", build[0]);
            continue;
        }
        let child = ready(&mut run(start));
        let before = superpages_mib(child.id());
        if before > 0 {
            println!("SKIP: {} has superpages without quire here", start[0]);
            end(child);
            continue;
        }
        let pid = child.id().to_string();
        // Python leaves single pages unused.
        let args = ["--once", "--json", "--threshold", "90%", &pid];
        let output = quire(&args).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let after = superpages_mib(child.id());
        assert!(
            after >= before + 40,
            "{}: {before} to {after} MiB, {report}",
            start[0]
        );
        end(child);
    }
}

#[test]
fn what_is_installed_is_understood() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let config = dist.join("quire-attach.toml");
    quire_attach::config::read(&config).unwrap();
    // The unit names where things will be installed.
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(dist.join("quire-attach.service")).unwrap();
    let unit = unit.replace("/usr/local/bin/quire", env!("CARGO_BIN_EXE_quire"));
    let path = dir.path().join("quire-attach.service");
    fs::write(&path, unit).unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output();
    let Ok(output) = verified else {
        return println!("SKIP: systemd-analyze is missing");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let about_ours = text.lines().filter(|line| line.contains("quire-attach"));
    assert_eq!(about_ours.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(output.status.success(), "{text}");
}

/// As the unit gives them: what is left of root.
#[test]
fn the_capabilities_of_the_unit_are_enough() {
    if !rustix::process::geteuid().is_root() || !can_attach() {
        return println!("SKIP: not root, so there are no rights to give up");
    }
    // A process of another user needs more of them.
    let Some(child) = filler_of(16, Some(65534)) else {
        return;
    };
    let unit = include_str!("../../../dist/quire-attach.service");
    let bounding = unit
        .lines()
        .find_map(|l| l.strip_prefix("CapabilityBoundingSet="))
        .unwrap();
    let kept: Vec<String> = bounding
        .split(' ')
        .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let pid = child.id().to_string();
    let started = Command::new("setpriv")
        .arg(format!("--bounding-set=-all,{}", kept.join(",")))
        .arg("--no-new-privs")
        .args([
            env!("CARGO_BIN_EXE_quire"),
            "attach",
            "--once",
            "--json",
            &pid,
        ])
        .output();
    let Ok(output) = started else {
        return println!("SKIP: setpriv is missing");
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(superpages_mib(child.id()) >= 14);
    end(child);
}

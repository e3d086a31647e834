//! Memory with a strategy goes onto swap, and comes back, as any other does.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::cgroup::MemoryCgroup;
use crate::harness::scratch::Scratch;
use crate::harness::setting::{self, Setting};
use crate::harness::{build, process, skip};

const SWAP: u64 = 160 << 20;
/// What the group of a program holds, and what the program fills twice, in MiB.
const HELD: u64 = 24;
const FILLED: u64 = 48;

/// A swap file; dropping takes it away.
struct Swap {
    file: PathBuf,
    is_on: bool,
}

impl Swap {
    /// Why there is none, where there is none.
    fn new() -> Result<Swap, String> {
        if !process::is_root() {
            return Err("only root may add swap".to_owned());
        }
        // Not where temporary files are kept in memory.
        let file = Path::new("/var/tmp").join(format!("quire-test.{}", std::process::id()));
        let mut swap = Swap { file, is_on: false };
        let mut zeros = std::io::repeat(0).take(SWAP);
        let made = File::create(&swap.file).and_then(|mut f| std::io::copy(&mut zeros, &mut f));
        made.map_err(|e| format!("no swap file: {e}"))?;
        swap.call("mkswap")?;
        swap.call("swapon")?;
        swap.is_on = true;
        Ok(swap)
    }

    fn call(&self, tool: &str) -> Result<(), String> {
        let called = Command::new(tool).arg(&self.file).output();
        let output = called.map_err(|e| format!("{tool}: {e}"))?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(complaint)
    }

    /// Bytes that are used of it.
    fn used(&self) -> u64 {
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let name = self.file.to_string_lossy();
        let line = swaps.lines().find(|line| line.starts_with(&*name));
        let kib = line.and_then(|line| line.split_whitespace().nth(3));
        kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    }

    fn end(&mut self) {
        self.call("swapoff")
            .expect("what is on swap fits into memory");
        self.is_on = false;
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        if self.is_on {
            let _ = self.call("swapoff");
        }
        let _ = fs::remove_file(&self.file);
    }
}

fn start(setting: &Setting, cgroup: &MemoryCgroup, scratch: &Scratch) -> std::process::Child {
    let argv = [build::program("swapped").into(), FILLED.to_string().into()];
    let command = setting.command(&argv, &setting.libraries(), Some(cgroup));
    process::command(&command, scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built")
}

/// Programs of all strategies are forced out; then all pages are brought back at once,
/// and the programs go on.
#[test]
fn pages_go_onto_swap_and_come_back() {
    let scratch = Scratch::new(false);
    let mut swap = match Swap::new() {
        Ok(swap) => swap,
        Err(reason) => return skip(&reason),
    };
    let mut programs = Vec::new();
    for setting in [&setting::COLOUR, &setting::BINHOP] {
        let cgroup = match MemoryCgroup::with_swap(HELD << 20) {
            Ok(cgroup) => cgroup,
            Err(reason) => return skip(&reason),
        };
        let mut program = start(setting, &cgroup, &scratch);
        let output = program.stdout.take().expect("stdout is a pipe");
        let mut lines = BufReader::new(output).lines();
        let line = lines.next().and_then(Result::ok);
        assert_eq!(line.as_deref(), Some("swapped"), "{}", setting.name);
        programs.push((setting, program, lines, cgroup));
    }
    let used = swap.used();
    assert!(used > FILLED << 20, "{} MiB are on swap", used >> 20);
    for (.., cgroup) in &programs {
        cgroup.limit(1 << 30).expect("the group is ours");
    }
    swap.end();
    for (setting, mut program, mut lines, _cgroup) in programs {
        drop(program.stdin.take());
        let line = lines.next().and_then(Result::ok);
        assert_eq!(line.as_deref(), Some("back"), "{}", setting.name);
        assert!(program.wait().expect("the child is ours").success());
    }
}

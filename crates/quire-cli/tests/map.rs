//! `quire map` as a user meets it, on a program that has pages of every kind at known
//! places.

#[path = "common/refusal.rs"]
mod refusal;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Cursor};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use refusal::assert_refused;

/// Somebody without privileges.
const NOBODY: u32 = 65534;

fn quire(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("map").args(args);
    command
}

/// The output of `quire map PID ARGS`, which must succeed.
fn text(pid: u32, args: &[&str]) -> String {
    let pid = pid.to_string();
    let done = quire(&[&[pid.as_str()], args].concat()).output().unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8(done.stdout).unwrap()
}

/// A program that runs, and where it has what.
struct Program {
    child: Child,
    places: BTreeMap<String, (u64, u64)>,
}

impl Program {
    /// Starts the program, as another user if one is given; nothing where it cannot be
    /// built.
    fn start(user: Option<u32>) -> Option<Program> {
        let mut command = Command::new(built()?);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let mut places = BTreeMap::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let [what, address, bytes] = words[..] else {
                break;
            };
            let place = (hex(address), bytes.parse().unwrap());
            places.insert(what.to_owned(), place);
        }
        assert_eq!(places.len(), 5);
        Some(Program { child, places })
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A place, as RANGE takes it.
    fn range(&self, what: &str) -> String {
        let (start, bytes) = self.places[what];
        format!("{start:x}-{:#x}", start + bytes)
    }

    fn rows(&self, what: &str) -> Vec<Row> {
        rows(&text(self.pid(), &[&self.range(what), "--csv"]))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.stdin.take();
        let _ = self.child.wait();
    }
}

/// The program, built once.
fn built() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/pages.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-static", "-o"]).arg(&program).arg(source);
        let works = gcc.status().is_ok_and(|status| status.success());
        if !works {
            println!("SKIP: gcc cannot build static programs here");
        }
        works.then_some(program)
    };
    PROGRAM.get_or_init(build).as_deref()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether frames are told at all: root in a container may not know them.
fn knows_frames(rows: &[Row]) -> bool {
    let known = rows.iter().any(|row| row.frame.is_some());
    if !known {
        println!("SKIP: frames are hidden here: run the tests as root");
    }
    known
}

/// A row of --csv.
#[derive(Debug)]
struct Row {
    address: u64,
    pages: u64,
    frame: Option<u64>,
    colour: Option<u64>,
    page_size: u64,
    kind: String,
    name: String,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn rows(text: &str) -> Vec<Row> {
    let mut lines = text.lines();
    let header = "address,pages,frame,colour,page_size,kind,name";
    assert_eq!(lines.next(), Some(header));
    let row = |line: &str| {
        let fields: Vec<&str> = line.splitn(7, ',').collect();
        let known = |n: usize| (!fields[n].is_empty()).then(|| fields[n]);
        Row {
            address: hex(fields[0]),
            pages: fields[1].parse().unwrap(),
            frame: known(2).map(hex),
            colour: known(3).map(|n| n.parse().unwrap()),
            page_size: fields[4].parse().unwrap(),
            kind: fields[5].to_owned(),
            name: fields[6].to_owned(),
        }
    };
    lines.map(row).collect()
}

fn pages(rows: &[Row]) -> u64 {
    rows.iter().map(|row| row.pages).sum()
}

#[test]
fn every_kind_is_told() {
    let Some(program) = Program::start(None) else {
        return;
    };
    let base = program.rows("base");
    assert_eq!(pages(&base), 8 * 512);
    assert!(
        base.iter()
            .all(|row| row.kind == "anonymous" && row.page_size == 4096)
    );
    let (start, _) = program.places["base"];
    assert_eq!(base[0].address, start);
    let follows = |pair: &[Row]| pair[0].address + pair[0].pages * 4096 == pair[1].address;
    assert!(base.windows(2).all(follows));

    let zero = program.rows("zero");
    assert_eq!((zero.len(), pages(&zero)), (1, 512));
    assert_eq!((zero[0].kind.as_str(), zero[0].frame), ("zero", None));
    let shared = program.rows("shared");
    assert!(shared.iter().all(|row| row.kind == "shared"), "{shared:?}");
    assert_eq!(pages(&shared), 512);
    assert!(shared[0].name.starts_with("/dev/zero"));
    let sparse = program.rows("sparse");
    assert_eq!((sparse.len(), pages(&sparse)), (64, 64));

    let files = rows(&text(program.pid(), &["--csv"]));
    let of_file = |row: &&Row| row.kind == "file" && row.name.ends_with("/pages");
    assert!(files.iter().find(of_file).is_some(), "{files:?}");
}

#[test]
fn superpages_are_runs_of_blocks() {
    let Some(program) = Program::start(None) else {
        return;
    };
    let rows = program.rows("super");
    assert_eq!(pages(&rows), 2 * 512);
    if rows.iter().any(|row| row.page_size == 4096) {
        println!("SKIP: the kernel makes no superpages here");
        return;
    }
    for row in &rows {
        assert_eq!((row.page_size, row.pages % 512), (2 << 20, 0));
        assert!(row.frame.is_none_or(|frame| frame % 512 == 0));
    }
    // A part of one is a run that begins at the frame in the middle of it.
    let (start, _) = program.places["super"];
    let part = format!("{:x}-{:x}", start + 0x3000, start + 0x5000);
    let part = self::rows(&text(program.pid(), &[&part, "--csv"]));
    assert_eq!(
        (part.len(), part[0].pages, part[0].page_size),
        (1, 2, 2 << 20)
    );
    assert_eq!(part[0].frame, rows[0].frame.map(|frame| frame + 3));
}

#[test]
fn colours_are_those_of_the_frames() {
    let Some(program) = Program::start(None) else {
        return;
    };
    let range = program.range("base");
    let args = [range.as_str(), "--csv", "--colour-bits", "12,13^16"];
    let rows = rows(&text(program.pid(), &args));
    if !knows_frames(&rows) {
        return;
    }
    let mut counts = [0; 4];
    for row in &rows {
        let of = |frame: u64| frame & 1 | ((frame >> 1 ^ frame >> 4) & 1) << 1;
        let frame = row.frame.unwrap();
        assert_eq!(row.colour, Some(of(frame)));
        (0..row.pages).for_each(|n| counts[of(frame + n) as usize] += 1);
    }
    let args = [range.as_str(), "--json", "--colour-bits", "12,13^16"];
    let json: Value = serde_json::from_str(&text(program.pid(), &args)).unwrap();
    assert_eq!(json["pages_by_colour"], serde_json::json!(counts));
    assert_eq!(json["totals"]["present_runs"], rows.len());
    assert_eq!(
        json["mappings"][0]["runs"][0]["colour"],
        rows[0].colour.unwrap()
    );
    let args = [range.as_str(), "--colour-bits", "12,13^16"];
    let table = text(program.pid(), &args);
    assert!(
        table.contains("4 colours (address bits 12,13^16)"),
        "{table}"
    );
}

#[test]
fn what_is_present_is_what_is_resident() {
    let Some(program) = Program::start(None) else {
        return;
    };
    let json: Value = serde_json::from_str(&text(program.pid(), &["--json"])).unwrap();
    let present = json["totals"]["present_pages"].as_u64().unwrap();
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", program.pid())).unwrap();
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Rss:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    // The kernel's own pages in the process count here and not there.
    assert!(present.abs_diff(kib / 4) <= 8, "{present} {kib}");
    let sum = |key: &str| -> u64 {
        let mappings = json["mappings"].as_array().unwrap();
        mappings.iter().map(|m| m[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("present_pages"), present);
    assert_eq!(json["totals"]["zero_pages"], sum("zero_pages"));
    let stack: Value = serde_json::from_str(&text(program.pid(), &["[stack]", "--json"])).unwrap();
    assert_eq!(stack["mappings"].as_array().unwrap().len(), 1);
    assert_eq!(stack["mappings"][0]["name"], "[stack]");
    let table = text(program.pid(), &[]);
    assert!(
        table.contains("[stack]") && table.contains("\ntotal"),
        "{table}"
    );
}

#[test]
fn the_picture_can_be_read() {
    let Some(program) = Program::start(None) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("colours.png");
    let file = path.to_str().unwrap();
    let table = text(program.pid(), &["--image", file]);
    assert!(table.contains(&format!("Picture: {file}")), "{table}");
    let data = Cursor::new(fs::read(&path).unwrap());
    let mut reader = png::Decoder::new(data).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert!(info.width >= 512 && u64::from(info.width) * u64::from(info.height) <= 4_000_000);
    let looks: std::collections::BTreeSet<&[u8]> = pixels.chunks(3).collect();
    assert!(looks.len() > 3, "{}", looks.len());
    let pid = program.pid().to_string();
    let done = quire(&[&pid, "--image", "/no/dir/x.png"]).output().unwrap();
    assert_refused(&done, 2, &["/no/dir/x.png"]);
}

#[test]
fn bad_input_is_refused() {
    let outcome = |args: &[&str]| quire(args).output().unwrap();
    let own = std::process::id().to_string();
    assert_refused(&outcome(&[]), 2, &["PID"]);
    assert_refused(&outcome(&["x"]), 2, &["x"]);
    assert_refused(
        &outcome(&["4000000000"]),
        2,
        &["no process 4000000000", "ps -e"],
    );
    assert_refused(&outcome(&["0"]), 2, &["no process 0"]);
    if fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        assert_refused(&outcome(&["2"]), 2, &["process 2 has no memory"]);
    }
    assert_refused(&outcome(&[&own, "heap"]), 2, &["START-END"]);
    assert_refused(
        &outcome(&[&own, "2000-1000"]),
        2,
        &["larger than its start"],
    );
    let high = "ffffffffff600000-ffffffffff601000";
    assert_refused(
        &outcome(&[&own, high]),
        2,
        &["outside of the address space"],
    );
    assert_refused(
        &outcome(&[&own, "0-1000"]),
        2,
        &["nothing mapped in 0-1000", "/maps"],
    );
    assert_refused(&outcome(&[&own, "[nothing]"]), 2, &["no mapping [nothing]"]);
    assert_refused(&outcome(&[&own, "--csv", "--json"]), 2, &["cannot be used"]);
    assert_refused(&outcome(&[&own, "--colour-bits", "11"]), 2, &["bit 11"]);
    assert_refused(&outcome(&[&own, "--colour-bits", "L2"]), 2, &["L2"]);
}

#[test]
fn without_privileges_frames_are_hidden() {
    if !is_root() {
        println!("SKIP: only root can become somebody else");
        return;
    }
    let (Some(theirs), Some(ours)) = (Program::start(Some(NOBODY)), Program::start(None)) else {
        return;
    };
    let as_nobody = |args: &[&str]| quire(args).uid(NOBODY).gid(NOBODY).output().unwrap();
    let ours = ours.pid().to_string();
    assert_refused(
        &as_nobody(&[&ours]),
        2,
        &["cannot be looked at", "sudo quire map"],
    );
    let (pid, range) = (theirs.pid().to_string(), theirs.range("base"));
    let done = as_nobody(&[&pid, &range, "--json", "--colour-bits", "12"]);
    assert_refused(&done, 0, &["hidden", "CAP_SYS_ADMIN", "sudo quire map"]);
    let json: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(json["pages_by_colour"].is_null());
    assert!(json["mappings"][0]["runs"][0]["frame"].is_null());
    assert_eq!(json["totals"]["present_pages"], 8 * 512);
    let done = as_nobody(&[&pid, &range, "--csv"]);
    let rows = rows(&String::from_utf8(done.stdout).unwrap());
    assert_eq!((rows.len(), rows[0].pages), (1, 8 * 512));
    assert_eq!((rows[0].frame, rows[0].colour), (None, None));
}

#[test]
fn help_and_manual_page() {
    let help = quire(&["--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(
        help.contains("EXAMPLES") && help.contains("PICTURE"),
        "{help}"
    );
    let dir = tempfile::tempdir().unwrap();
    let mut man = Command::new(env!("CARGO_BIN_EXE_quire"));
    assert!(man.arg("man").arg(dir.path()).status().unwrap().success());
    let page = fs::read_to_string(dir.path().join("quire-map.1")).unwrap();
    assert!(page.contains(".TH quire-map 1") && page.contains(".SH EXAMPLES"));
}

//! `quire remap` on a real process.

use serde_json::Value;

use crate::managed::{Real, offers_frames, quire};

/// A mapping of 4 MiB at a known address, of which half is touched, and a large heap.
const SCRIPT: &str = "
import ctypes
libc=ctypes.CDLL(None)
libc.mmap.restype=ctypes.c_void_p
libc.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t]+[ctypes.c_int]*3+[ctypes.c_long]
at=libc.mmap(0x200000000000,4<<20,3,0x100022,-1,0)
assert at==0x200000000000
ctypes.memset(at,1,2<<20)";
const RANGE: &str = "200000000000-200000400000";
/// Base pages of 2 MiB.
const HALF: u64 = 512;
const FRAMES: [&str; 4] = ["--frames", "default", "--colour-bits", "12,13,14,15"];
const BITS: [&str; 2] = ["--colour-bits", "12,13,14,15"];

/// What `quire remap` of a process says in JSON, and its exit status.
fn remap(pid: u32, args: &[&str]) -> (Value, i32) {
    let pid = pid.to_string();
    let all = [&["remap", pid.as_str()], args, &BITS, &["--json"]].concat();
    let done = quire(&all).output().unwrap();
    let said = serde_json::from_slice(&done.stdout);
    let said = said.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)));
    (said, done.status.code().unwrap())
}

/// What it complains of, with exit status 2.
fn refusal(args: &[&str]) -> String {
    let done = quire(&[&["remap"], args].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn pages_of_a_running_program_are_moved() {
    if !offers_frames() {
        println!("SKIP: frames cannot be given by strategy here (quire doctor)");
        return;
    }
    let real = match Real::start("base", &FRAMES, SCRIPT) {
        Ok(real) => real,
        Err(why) => return println!("SKIP: {why}"),
    };
    let (said, status) = remap(real.pid, &[RANGE, "modulo:3"]);
    assert_eq!(status, 0, "{said}");
    assert_eq!(said["pages"], 2 * HALF);
    assert_eq!(said["not_touched"], HALF);
    assert_eq!(said["left"], Value::Array(Vec::new()));
    let moved = said["moved"].as_u64().unwrap() + said["kept"].as_u64().unwrap();
    assert_eq!(moved, HALF);
    // All have a right frame now.
    let (said, _) = remap(real.pid, &[RANGE, "modulo:3"]);
    assert_eq!((&said["moved"], &said["kept"]), (&0.into(), &HALF.into()));
    // What has to stay is listed.
    let (said, status) = remap(real.pid, &["1000-3000", "colour"]);
    assert_eq!(status, 1);
    assert_eq!(said["left"][0]["reason"], "foreign");
    assert_eq!(said["left"][0]["pages"], 2);
    let pid = real.pid.to_string();
    let text = quire(&["remap", &pid, RANGE, "colour", BITS[0], BITS[1]]);
    let text = { text }.output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("colour: of 1024 pages, "), "{text}");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let own = std::process::id().to_string();
    assert!(refusal(&[&own, RANGE, "best"]).contains("best"));
    assert!(refusal(&[&own, "3000-1000", "colour"]).contains("end"));
    assert!(refusal(&[&own, RANGE, "modulo:99", BITS[0], BITS[1]]).contains("99"));
    assert!(refusal(&[&own, RANGE, "exact:/nowhere.csv"]).contains("quire map --csv"));
    assert!(refusal(&[&own, RANGE, "colour", BITS[0], BITS[1]]).contains("quire run"));
    assert!(refusal(&["999999999", RANGE, "colour", BITS[0], BITS[1]]).contains("no process"));
    let real = match Real::start("reserve", &[], "x=bytearray(64<<20)") {
        Ok(real) => real,
        Err(why) => return println!("SKIP: {why}"),
    };
    let pid = real.pid.to_string();
    let unprepared = refusal(&[&pid, RANGE, "colour", BITS[0], BITS[1]]);
    assert!(unprepared.contains("--frames default"), "{unprepared}");
}

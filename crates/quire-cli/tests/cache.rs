//! `quire cache` as a user meets it.

#[path = "common/refusal.rs"]
mod refusal;

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use refusal::assert_refused;

/// A cache that every machine can be given, and a level that hardly one has.
const WHOLE: &str = "level=7,sets=2048,ways=16,line=64";

fn quire(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(args: &[&str]) -> Value {
    let output = quire(&[&["cache", "--json"], args].concat());
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn level(value: &Value, level: u64) -> &Value {
    let caches = value["caches"].as_array().unwrap();
    let mut found = caches.iter().filter(|cache| cache["level"] == level);
    found.next().unwrap()
}

#[test]
fn this_machine_is_described() {
    let text = stdout(&quire(&["cache"]));
    let value = json(&[]);
    let caches = value["caches"].as_array().unwrap();
    if caches.is_empty() {
        println!("SKIP: nobody describes the caches of this machine");
        assert!(text.contains("--set level=2"), "{text}");
        return;
    }
    assert!(text.starts_with("CACHE"), "{text}");
    assert!(text.contains("Page colouring "), "{text}");
    for cache in caches {
        let number = |key: &str| cache[key].as_u64().unwrap();
        let size = number("sets") * number("ways") * number("line_bytes");
        assert_eq!(size, number("size_bytes"), "{cache}");
        assert_eq!(cache["colours"].is_null(), cache["colour_bits"].is_null());
        let name = cache["name"].as_str().unwrap();
        assert!(text.contains(&format!("\n{name} ")), "{text}");
    }
    let used = caches
        .iter()
        .filter(|cache| cache["unused_because"].is_null());
    assert_eq!(used.count(), usize::from(!value["colour_cache"].is_null()));
    let warns = text.contains("Warning: this is a virtual machine");
    assert_eq!(warns, value["virtual_machine"] == true);
}

#[test]
fn a_user_can_say_what_is_true() {
    let value = json(&["--set", WHOLE]);
    let cache = level(&value, 7);
    assert_eq!(cache["index"], "plain");
    assert_eq!(cache["indexed_by"], "physical");
    assert_eq!(cache["colours"], 32);
    assert_eq!(cache["colour_bits"], "12,13,14,15,16");
    let value = json(&[
        "--set",
        WHOLE,
        "--set",
        "level=7,ways=8,colour-bits=12^18,13^19",
    ]);
    let cache = level(&value, 7);
    assert_eq!(cache["size_bytes"], 1 << 20);
    assert_eq!(cache["colour_bits"], "12^18,13^19");
}

#[test]
fn the_largest_cache_with_colours_is_used() {
    let huge = "level=7,sets=1048576,ways=64,line=64,colour-bits=12^18,13^19";
    let value = json(&["--set", huge]);
    let expected = serde_json::json!({
        "name": "L7", "level": 7, "colours": 4, "colour_bits": "12^18,13^19",
        "period_bytes": 1 << 20,
    });
    assert_eq!(value["colour_cache"], expected);
    assert!(level(&value, 7)["unused_because"].is_null());
    let text = stdout(&quire(&["cache", "--set", huge, "--set", "colour-bits=14"]));
    assert!(
        text.contains("uses L7: 2 colours, from bits 14 of"),
        "{text}"
    );
}

#[test]
fn bad_settings_are_refused() {
    for (set, words) in [
        (
            "level=2,sets=1000",
            &["`sets=1000`", "power of two", "write level=2"][..],
        ),
        ("level=2", &["says nothing"]),
        (
            "way=2",
            &["the keys are level, sets, ways, line and colour-bits"],
        ),
        ("colour-bits=11", &["address bit 11", "12 to 51"]),
        ("colour-bits=12,ways=3", &["colour-bits must come last"]),
        (
            "level=7,ways=3",
            &["no level 7 cache", "sets, ways and line"],
        ),
        (
            "level=7,sets=128,ways=8,line=64,colour-bits=12,13",
            &["bad --set", "4 colours", "L7 cache has 2 pages"],
        ),
    ] {
        let output = quire(&["cache", "--set", set]);
        assert_refused(&output, 2, words);
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn it_is_in_help_completions_and_the_manual() {
    let text = stdout(&quire(&["cache", "--help"]));
    assert!(
        text.contains("EXAMPLES") && text.contains("colour-bits="),
        "{text}"
    );
    assert!(stdout(&quire(&["completions", "bash"])).contains("quire__subcmd__cache"));
    let dir = tempfile::tempdir().unwrap();
    stdout(&quire(&["man", dir.path().to_str().unwrap()]));
    let page = fs::read_to_string(dir.path().join("quire-cache.1")).unwrap();
    assert!(
        page.contains(".TH quire-cache 1") && page.contains(".SH COLOURS"),
        "{page}"
    );
}

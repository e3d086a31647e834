//! `quire run --frames` as a user meets it: what is refused, before the program starts.
//! That frames are what strategies promise is tested with the library.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What `quire run` says about these options, and that the program was not started.
fn refusal(options: &[&str]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    let started = scratch.path().join("started");
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .arg("run")
        .args(options)
        .args(["--", "touch"])
        .arg(&started)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{options:?}: {output:?}");
    assert!(!started.exists(), "{options:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn strategies_that_do_not_exist_are_refused() {
    assert!(refusal(&["--frames", "best"]).contains("best"));
    let beyond = refusal(&["--frames", "modulo:0-16", "--colour-bits", "12,13,14,15"]);
    assert!(beyond.contains("16"), "{beyond}");
    assert!(refusal(&["--frames", "colour", "--colour-bits", "11"]).contains("11"));
}

#[test]
fn hints_that_do_not_go_together_are_refused() {
    let both = ["--hint", "heap=colour", "--hint", "heap=binhop"];
    assert!(refusal(&both).contains("heap"));
    let overlapping = [
        "--hint",
        "7f0000000000-7f0000200000=colour",
        "--hint",
        "7f0000100000-7f0000300000=binhop",
    ];
    assert!(refusal(&overlapping).contains("7f0000100000"));
    let outside = refusal(&["--hint", "ffff000000000000-ffff000000001000=colour"]);
    assert!(outside.contains("ffff000000000000"), "{outside}");
    let unnamed = refusal(&["--hint", "map:=colour"]);
    assert!(unnamed.contains("map:NAME"), "{unnamed}");
    let twice = ["--hint", "map:x=colour", "--hint", "map:x=binhop"];
    assert!(refusal(&twice).contains("map:x"));
}

#[test]
fn recorded_mappings_that_cannot_be_read_are_refused() {
    let missing = refusal(&["--frames", "exact:/nowhere/frames.csv"]);
    assert!(missing.contains("quire map --csv"), "{missing}");
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("frames.csv");
    fs::write(&file, "address,pages\n0x1000,1\n").unwrap();
    let bad = refusal(&["--frames", &format!("exact:{}", file.display())]);
    assert!(bad.contains("frame"), "{bad}");
}

/// A shared library that the compiler makes of a text.
fn library(scratch: &Path, name: &str, text: &str) -> String {
    let source = scratch.join(format!("{name}.c"));
    fs::write(&source, text).unwrap();
    let library = scratch.join(format!("{name}.so"));
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../quire-preload-provide/include");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .args([&include, Path::new("-o"), &library, &source])
        .status()
        .unwrap();
    assert!(compiled.success(), "{name}");
    library.display().to_string()
}

#[test]
fn plugins_that_cannot_be_used_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let refused = |plugin: &str, why: &str| {
        let bits = ["--colour-bits", "12,13,14,15"];
        let hint = format!("heap={plugin}");
        for option in [["--frames", plugin], ["--hint", &hint]] {
            let message = refusal(&[option, bits].concat());
            assert!(message.contains(why), "{plugin}: {message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    };
    let made = |name: &str, text: &str| library(scratch.path(), name, text);
    refused("/nowhere/mine.so", "No such file");
    let text = scratch.path().join("text.so");
    fs::write(&text, "no library, however long\n".repeat(9)).unwrap();
    refused(&text.display().to_string(), "invalid ELF header");
    refused(&made("other", "int other;"), "quire_strategy.h");
    let future = "unsigned quire_strategy[16] = {2};";
    refused(&made("future", future), "version 2 of the interface");
    let header = "#include \"quire_strategy.h\"\n";
    let mute = "const struct quire_strategy quire_strategy = {1, 0, \"mute\", 0, 0, 0, 0, 0};";
    refused(
        &made("mute", &format!("{header}{mute}")),
        "no function `choose`",
    );
    let choosy = r#"
        static const char *create(const struct quire_host *host, void **state) {
          (void)state;
          return host->colours == 16 && *host->argument == 'x' ? "never x" : "x, please";
        }
        static uint64_t choose(const void *state, uint64_t first, uint32_t order,
                               const struct quire_request *request) {
          (void)state, (void)order, (void)request;
          return first;
        }
        const struct quire_strategy quire_strategy = {
            .abi_version = 1, .name = "choosy", .create = create, .choose = choose};
    "#;
    let choosy = made("choosy", &format!("{header}{choosy}"));
    refused(&choosy, "choosy: x, please");
    refused(&format!("{choosy}:x"), "choosy: never x");
}

#[test]
fn frames_that_no_program_can_have_are_refused() {
    if fs::File::open("/proc/kpageflags").is_err() {
        println!("SKIP: the kernel tells only root about frames");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("frames.csv");
    let exact = format!("exact:{}", file.display());
    let refused = |frame: &str| {
        fs::write(&file, format!("address,pages,frame\n0x1000,1,{frame}\n")).unwrap();
        refusal(&["--frames", &exact, "--colour-bits", "12,13"])
    };
    let absent = refused("0xfffffffff");
    assert!(absent.contains("does not exist"), "{absent}");
    // The first pages of a PC are the firmware's and the kernel's.
    let kernels = refused("0x1");
    assert!(kernels.contains("the kernel's"), "{kernels}");
}

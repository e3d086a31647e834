//! What starting a program costs `quire-measure bench`, beside a C program that only spawns and waits.

use std::path::Path;
use std::process::Command;

const NOTHING: &str = "int main(void) { return 0; }";
/// Prints the seconds that each of N starts of a program took.
const SPAWN: &str = r#"
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(int c, char **v)
{
    posix_spawn_file_actions_t f;
    posix_spawn_file_actions_init(&f);
    posix_spawn_file_actions_addopen(&f, 1, "/dev/null", O_WRONLY, 0);
    for (int i = 0; i < atoi(v[1]); i++) {
        pid_t pid;
        int status;
        double start = now();
        if (posix_spawn(&pid, v[2], &f, 0, v + 2, environ)) return 1;
        waitpid(pid, &status, 0);
        printf("%.9f\n", now() - start);
    }
    return c < 3;
}
"#;
/// How often both are executed in turns, and how many starts each makes then.
const ROUNDS: usize = 10;
const STARTS: &str = "20";
/// As many times as long as the least of the C program the least of `bench` may be. A copy of this
/// process's page tables (fork) alone takes longer than that.
const MOST: f64 = 1.3;
/// At rest, one start in four takes less than so many times the least one.
const RESTLESS: f64 = 1.3;

fn compile(directory: &Path, name: &str, source: &str) -> bool {
    let file = directory.join(name).with_extension("c");
    std::fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    let made = cc.args(["-O2", "-o"]).arg(directory.join(name)).arg(&file);
    made.status().is_ok_and(|status| status.success())
}

/// The times in seconds by the C program and by `bench`, each in order.
fn measured(directory: &Path) -> [Vec<f64>; 2] {
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program)
            .args(args)
            .current_dir(directory)
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{program}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let spawn = directory.join("spawn");
    let bench = ["bench", "-N", "-q", "-r", STARTS, "-o", "r.jsonl"];
    let [mut spawned, mut benched] = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let times = run(spawn.to_str().unwrap(), &[STARTS, "./nothing"]);
        spawned.extend(times.lines().map(|line| line.parse::<f64>().unwrap()));
        let _ = std::fs::remove_file(directory.join("r.jsonl"));
        run(
            env!("CARGO_BIN_EXE_quire-measure"),
            &[&bench[..], &["./nothing"]].concat(),
        );
        let text = std::fs::read_to_string(directory.join("r.jsonl")).unwrap();
        benched.extend(text.lines().filter_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["metrics"]["time"][0].as_f64()
        }));
    }
    for times in [&mut spawned, &mut benched] {
        assert_eq!(times.len(), ROUNDS * STARTS.parse::<usize>().unwrap());
        times.sort_by(f64::total_cmp);
    }
    [spawned, benched]
}

#[test]
fn a_program_that_does_nothing_takes_little_longer_than_spawn_and_wait() {
    let dir = tempfile::tempdir().unwrap();
    let sources = [("nothing", NOTHING), ("spawn", SPAWN)];
    if !sources
        .iter()
        .all(|(name, source)| compile(dir.path(), name, source))
    {
        println!("SKIP: the time to start a program: there is no C compiler");
        return;
    }
    let mut said = String::new();
    // Whatever else the machine does makes a start longer, never shorter: so a pass is one on any
    // machine, and only a machine at rest can tell that it is none.
    for _ in 0..3 {
        let [spawned, benched] = measured(dir.path());
        let (least, quarter) = (spawned[0], spawned[spawned.len() / 4]);
        if benched[0] <= MOST * least {
            return;
        }
        said = format!(
            "the least of `bench` is {:.0} µs, and {:.0} of a C program, of which a quarter takes {:.0}",
            benched[0] * 1e6,
            least * 1e6,
            quarter * 1e6
        );
        if quarter > RESTLESS * least {
            println!("SKIP: the time to start a program: the machine is too restless ({said})");
            return;
        }
    }
    panic!("{said}");
}

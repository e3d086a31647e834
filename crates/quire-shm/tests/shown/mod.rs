//! What `quire stat` and `quire top` say of objects that processes have.

use crate::harness::{Running, Served};
use crate::program;

/// The rows of `quire stat` about objects of a server: of other servers there may be more.
fn rows(served: &Served) -> Vec<Vec<String>> {
    let all = served.does(&["stat"]);
    let cells = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(|cell| cell.trim().to_owned());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<Vec<String>> = all.lines().map(cells).collect();
    let is_ours = |row: &Vec<String>| row.get(2) == Some(&served.address);
    rows.into_iter().filter(is_ours).collect()
}

#[test]
fn objects_of_processes_are_shown() {
    let served = Served::start();
    let posix = program("posix");
    let mut maker = Running::start(&mut served.run("grid", &posix, &["make", "/grid"]));
    maker.hear("made");
    let found = rows(&served);
    let open = found.iter().find(|row| row[3] == "open");
    let open = open.unwrap_or_else(|| panic!("nobody has it open: {found:?}"));
    assert_eq!([&open[1], &open[5]], ["grid", "4 KiB"]);
    let number = |column: usize| open[column].parse::<u64>().expect("a number");
    let (used, to_write, times, write) = (number(6), number(7), number(9), number(11) + number(12));
    assert!(
        to_write > 0 && to_write <= used && write >= to_write,
        "{open:?}"
    );
    assert_eq!(times, 1);

    let pid = &open[0];
    let in_json = served.does(&["stat", "--json", pid]);
    for part in [
        "\"shared_objects\": [".to_owned(),
        format!("\"pid\": {pid},"),
        "\"object\": \"grid\"".to_owned(),
        format!("\"server\": \"{}\"", served.address),
        "\"state\": \"open\"".to_owned(),
        format!("\"pages_to_write\": {to_write}"),
        format!("\"faults_write\": {}", number(11)),
    ] {
        assert!(in_json.contains(&part), "{in_json} lacks {part}");
    }
    let top = served.does(&["top", "--once", "--interval", "0.1", pid]);
    let line = format!("Object grid at {}: open", served.address);
    assert!(top.contains(&line), "{top} lacks {line}");
    // Nobody has given it a name.
    let of_server = served.does(&["object", "stat", "grid", "--server", &served.address]);
    let mut lines = of_server.lines();
    let is_named = lines.any(|line| line.starts_with("open: posix (") && line.contains(pid));
    assert!(is_named, "{of_server} lacks the program");
    // It finds that nobody has used what it made, and ends.
    maker.status();
    assert!(rows(&served).is_empty(), "they are gone");
}

/// A server that is gone is said to be, and nobody waits for it for long.
#[test]
fn a_server_that_does_not_answer_is_named() {
    let mut served = Served::start();
    let posix = program("posix");
    let mut maker = Running::start(&mut served.run("grid", &posix, &["make", "/grid"]));
    maker.hear("made");
    served.kill();
    let found = rows(&served);
    assert!(
        !found.is_empty() && found.iter().all(|row| row[3] == "unknown"),
        "{found:?}"
    );
    let all = served.does(&["stat"]);
    let path = served.address.strip_prefix("unix:").expect("a socket");
    let mut whys = all
        .lines()
        .filter(|line| line.trim_start().starts_with("grid: "));
    assert!(whys.any(|why| why.contains(path)), "{all}");
}

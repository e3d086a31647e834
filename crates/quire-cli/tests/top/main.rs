//! `quire top` as a user at a terminal meets it, and the metrics of `quire
//! stat`.

mod frames;
mod managed;
#[path = "../common/refusal.rs"]
mod refusal;
mod remap;
#[path = "../common/signals.rs"]
mod signals;
mod tty;

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quire_core::config::Policy;
use quire_core::stat::{Counter, Privilege};

use managed::{Fake, Real, quire, region, stat};
use refusal::assert_refused;
use signals::send;
use tty::Tty;

const DOWN: &str = "\x1b[B";
const ESCAPE: &str = "\x1b";
const CTRL_C: &str = "\x03";

/// The places of processes on the screen, from above.
fn order(tty: &Tty, fakes: &[&Fake]) -> Vec<usize> {
    let line = |fake: &Fake| tty.line(&[&fake.pid().to_string(), &fake.name]);
    fakes.iter().map(|fake| line(fake).unwrap()).collect()
}

fn wait_for_order(tty: &mut Tty, fakes: &[&Fake]) {
    let names: Vec<String> = fakes.iter().map(|f| f.name.clone()).collect();
    tty.wait_for(&names.join(" over "), |lines| {
        let place = |name: &String| {
            lines
                .iter()
                .position(|l| l.contains(name.as_str()) && l.contains(" off "))
        };
        let places: Vec<Option<usize>> = names.iter().map(place).collect();
        places.iter().all(Option::is_some) && places.is_sorted()
    });
    assert!(order(tty, fakes).is_sorted());
}

/// Shows only this test's processes: others run on the machine, too.
fn filter(tty: &mut Tty, text: &str) {
    tty.wait_for_line(&["quire top:"]);
    tty.press(&format!("/{text}\r"));
    tty.wait_for_line(&[&format!("filter `{text}`")]);
}

#[test]
fn processes_are_shown_and_sorted() {
    let few = Fake::start("sfew", Policy::Reserve);
    let many = Fake::start("smany", Policy::Eager);
    few.page.set(Counter::Superpages, 3);
    few.page.set(Counter::Populated, 900 << 20);
    many.page.set(Counter::Superpages, 70);
    many.page.set(Counter::Populated, 6 << 20);
    let mut tty = Tty::start(&[], &[], 100, 30);
    filter(&mut tty, &format!("q{}s", std::process::id()));
    wait_for_order(&mut tty, &[&many, &few]);
    tty.wait_for_line(&[&few.name, "reserve", "off", "900M", "3"]);
    tty.wait_for_line(&[&many.name, "eager", "off", "6M", "70"]);
    tty.press("r");
    wait_for_order(&mut tty, &[&few, &many]);
    tty.wait_for_line(&["PID", "SUPER▲", "FAIL/s"]);
    tty.press("r<<");
    tty.wait_for_line(&["POPUL▼"]);
    wait_for_order(&mut tty, &[&few, &many]);
    tty.press("S");
    tty.wait_for_line(&["MAPPED▼"]);
    tty.press("s\x1b[C>");
    tty.wait_for_line(&["SUPER▼"]);
    wait_for_order(&mut tty, &[&many, &few]);
    tty.press("q");
    assert!(tty.finish().success());
}

#[test]
fn rates_are_shown_and_a_pause_holds_them() {
    let fake = Fake::start("rate", Policy::Reserve);
    let mut tty = Tty::start(&[&fake.pid().to_string()], &[], 100, 30);
    tty.wait_for_line(&[&fake.name, "0", "0", "0", "0"]);
    let busy = Arc::new(AtomicBool::new(true));
    let (page, go_on) = (fake.page, Arc::clone(&busy));
    let counting = thread::spawn(move || {
        while go_on.load(Ordering::Relaxed) {
            page.add(Counter::Promotions, 40);
            page.add(Counter::FailedReservations, 4);
            thread::sleep(Duration::from_millis(10));
        }
    });
    let name = fake.name.clone();
    tty.wait_for("rates", |lines| {
        let line = lines
            .iter()
            .find(|line| line.contains(&name) && line.starts_with('>'));
        let rates: Vec<f64> = line
            .map(|line| {
                line.split_whitespace()
                    .skip(9)
                    .flat_map(str::parse)
                    .collect()
            })
            .unwrap_or_default();
        // Ten promotions to one failure; nothing else happened.
        matches!(rates[..], [promotions, 0.0, 0.0, failures]
            if failures > 10.0 && promotions > 5.0 * failures && promotions < 20.0 * failures)
    });
    busy.store(false, Ordering::Relaxed);
    counting.join().unwrap();
    tty.press(" ");
    tty.wait_for_line(&["PAUSED"]);
    fake.page.set(Counter::Superpages, 4321);
    thread::sleep(Duration::from_millis(400));
    tty.press("h");
    tty.wait_for_line(&["quit"]);
    assert_eq!(tty.line(&[&fake.name, "4321"]), None);
    tty.press("x");
    tty.wait_for_line(&["h help"]);
    tty.press(" ");
    tty.wait_for_line(&[&fake.name, "4321"]);
}

#[test]
fn a_process_that_ends_disappears() {
    let first = Fake::start("end1", Policy::Reserve);
    let second = Fake::start("end2", Policy::Reserve);
    let mut tty = Tty::start(&[], &[], 100, 30);
    filter(&mut tty, &format!("q{}end", std::process::id()));
    wait_for_order(&mut tty, &[&first, &second]);
    let gone = first.name.clone();
    drop(first);
    tty.wait_for("end of the first", |lines| {
        lines.iter().all(|line| !line.contains(&gone))
    });
    tty.wait_for_line(&["> ", &second.name]);
    drop(second);
    tty.wait_for_line(&["No "]);
    tty.press("q");
    assert!(tty.finish().success());
}

#[test]
fn regions_are_chosen_and_pictured() {
    let fake = Fake::start("pict", Policy::Reserve);
    fake.page
        .set_regions([region(1 << 30, "pppwwwrrbb.."), region(2 << 30, "prb.")]);
    let mut tty = Tty::start(&[&fake.pid().to_string()], &[], 100, 30);
    tty.wait_for_line(&["Picture of 000040000000-000041800000: 12 extents"]);
    tty.wait_for_line(&["███■■■▄▄▒▒··"]);
    tty.press(&format!("\r{DOWN}"));
    tty.wait_for_line(&["Picture of 000080000000-000080800000: 4 extents"]);
    tty.wait_for("other picture", |lines| {
        lines.iter().any(|line| line == "█▄▒·")
    });
    tty.wait_for_line(&["> 000080000000"]);
    fake.page.set_regions([region(1 << 30, "pppwwwrrbb..")]);
    tty.wait_for_line(&["███■■■▄▄▒▒··"]);
    // From the regions Escape goes back, and only then out.
    tty.press(ESCAPE);
    tty.wait_for_line(&["Enter regions"]);
    tty.press(ESCAPE);
    assert!(tty.finish().success());
}

/// The picture that the statistics hold, as the screen shows it.
fn drawn(region: &serde_json::Value) -> String {
    let picture = &region["picture"];
    assert_eq!(picture["extents_per_cell"], 1);
    let states = picture["states"].as_str().unwrap().chars();
    let populations = picture["sixteenths"].as_str().unwrap().chars();
    states
        .zip(populations.map(|digit| digit.to_digit(17).unwrap()))
        .map(|cell| match cell {
            ('p', _) => '█',
            ('w', 16) => '■',
            ('w', _) => '□',
            ('r', part) => "▁▂▃▄▅▆▇".chars().nth(part as usize * 6 / 16).unwrap(),
            ('b', part) => "░▒▓".chars().nth(part as usize * 2 / 16).unwrap(),
            ('.', 0) => '·',
            other => panic!("no such cell: {other:?}"),
        })
        .collect()
}

/// What the statistics say when they have stopped changing.
fn stat_at_rest(pid: u32) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let before = stat(pid)["regions"].clone();
        thread::sleep(Duration::from_millis(500));
        let after = stat(pid);
        if after["regions"] == before && !before.as_array().unwrap().is_empty() {
            return after;
        }
        assert!(Instant::now() < end, "the process does not rest");
    }
}

#[test]
fn a_real_process_looks_like_its_statistics() {
    // Dense memory, and a mapping of which every fourth page is touched, but for the rest of it, more
    // than is reserved ahead.
    let script = "import ctypes\n\
                  libc = ctypes.CDLL(None)\n\
                  libc.mmap.restype = ctypes.c_void_p\n\
                  b = bytearray(64 << 20)\n\
                  a = libc.mmap(None, ctypes.c_size_t(64 << 20), 3, 0x22, -1, None)\n\
                  for i in range(0, 8 << 20, 16384): ctypes.memset(a + i, 1, 1)";
    let real = match Real::start("reserve", &[], script) {
        Ok(real) => real,
        Err(reason) => return println!("SKIP: {reason}"),
    };
    let stat = stat_at_rest(real.pid);
    let regions = stat["regions"].as_array().unwrap();
    let mut tty = Tty::start(&[&real.pid.to_string()], &[], 120, 40);
    tty.wait_for_line(&[&real.pid.to_string(), "python3", "reserve", "off"]);
    let superpages = stat["superpages"].to_string();
    tty.wait_for_line(&["Process", &format!("{superpages} superpages")]);
    tty.press("\r");
    (0..regions.len()).for_each(|_| tty.press("k"));
    for region in regions {
        let start = format!("Picture of {:012x}-", region["start"].as_u64().unwrap());
        let picture = drawn(region);
        tty.wait_for(&format!("{start} {picture}"), |lines| {
            let at = lines.iter().position(|line| line.starts_with(&start));
            at.is_some_and(|at| picture.is_empty() || lines.get(at + 1) == Some(&picture))
        });
        // Each superpage that is counted has a cell.
        let full = picture.matches(['█', '■']).count() as u64;
        assert_eq!(region["superpages"].as_u64(), Some(full));
        tty.press("j");
    }
    let all: String = regions.iter().map(drawn).collect();
    assert!(all.matches(['█', '■']).count() >= 28, "{all}");
    assert!(all.contains('▂') && all.contains('·'), "{all}");
    drop(real);
    tty.wait_for_line(&["No managed process is known"]);
    tty.press("q");
    assert!(tty.finish().success());
}

#[test]
fn policy_and_alignment_are_switched() {
    let fake = Fake::start("set", Policy::Reserve);
    fake.obey(None);
    let mut tty = Tty::start(&[&fake.pid().to_string()], &[], 100, 30);
    tty.wait_for_line(&[&fake.name, "reserve", "off"]);
    tty.press("p");
    tty.wait_for_line(&[&format!("Policy of {} ({})", fake.pid(), fake.name)]);
    tty.wait_for_line(&["> 3 reserve"]);
    tty.press(&format!("{DOWN}{DOWN}"));
    tty.wait_for_line(&["> 5 static"]);
    tty.press("kkk");
    tty.wait_for_line(&["> 2 eager"]);
    tty.press("\r");
    tty.wait_for_line(&[&format!("process {} has policy=eager", fake.pid())]);
    tty.wait_for_line(&[&fake.name, "eager", "off"]);
    tty.press("a");
    tty.wait_for_line(&["has align=on"]);
    tty.wait_for_line(&[&fake.name, "eager", "on"]);
    tty.press("a");
    tty.wait_for_line(&["has align=off"]);
    tty.wait_for_line(&[&fake.name, "eager", "off"]);
}

#[test]
fn a_change_that_fails_is_told_and_survived() {
    let deaf = Fake::start("deaf", Policy::Reserve);
    let mut tty = Tty::start(&[&deaf.pid().to_string()], &[], 100, 30);
    tty.wait_for_line(&[&deaf.name]);
    tty.press("a");
    tty.wait_for_line(&[&format!("process {} takes no changes", deaf.pid())]);
    deaf.obey(Some("the pool is empty"));
    tty.press("p1");
    tty.wait_for_line(&["the pool is empty"]);
    tty.press("q");
    assert!(tty.finish().success());
}

#[test]
fn the_terminal_is_given_back() {
    for quit in ["q", ESCAPE, CTRL_C, "/abc\x03", "h\x03"] {
        let mut tty = Tty::start(&[], &[], 80, 24);
        tty.wait_for_line(&["quire top:"]);
        assert!(tty.is_taken_over());
        tty.press(quit);
        assert!(tty.finish().success(), "{quit:?}");
    }
    for (name, number) in [("TERM", 15), ("HUP", 1), ("INT", 2)] {
        let mut tty = Tty::start(&[], &[], 80, 24);
        tty.wait_for_line(&["quire top:"]);
        send(name, tty.pid());
        assert_eq!(tty.finish().signal(), Some(number));
    }
}

#[test]
fn a_stop_gives_the_terminal_back_for_its_time() {
    let mut tty = Tty::start(&[], &[], 80, 24);
    for by_key in [true, false] {
        tty.wait_for_line(&["quire top:"]);
        if by_key {
            tty.press("\x1a");
        } else {
            send("TSTP", tty.pid());
        }
        tty.wait_until_stopped();
        send("CONT", tty.pid());
        tty.wait_for_line(&["Memory"]);
    }
    tty.press("q");
    assert!(tty.finish().success());
}

#[test]
fn the_screen_follows_the_terminals_size() {
    let fake = Fake::start("size", Policy::Reserve);
    fake.page.set_regions([region(1 << 30, "pppwww")]);
    let mut tty = Tty::start(&[&fake.pid().to_string()], &[], 100, 30);
    tty.wait_for_line(&["███■■■"]);
    tty.resize(40, 8);
    tty.wait_for("small screen", |lines| {
        lines.len() == 8
            && lines[7].starts_with("h help")
            && lines.iter().any(|l| l.contains(&fake.name))
            && lines.iter().all(|l| !l.contains("Picture"))
    });
    tty.resize(3, 2);
    tty.wait_for("tiny screen", |lines| lines[1].starts_with("h h"));
    tty.resize(120, 40);
    tty.wait_for_line(&["███■■■"]);
    tty.wait_for("bottom line", |lines| lines[39].starts_with("h help"));
    tty.press("q");
    assert!(tty.finish().success());
}

/// Whether a text holds an escape sequence that sets a colour.
fn is_coloured(text: &str) -> bool {
    text.split("\x1b[").any(|part| {
        let parameters = part.split('m').next().unwrap_or("");
        let known = |p: &str| matches!(p.parse(), Ok(30u32..=38 | 90..=97));
        part.contains('m') && parameters.split(';').any(known)
    })
}

#[test]
fn colours_and_unicode_can_be_left_out() {
    let fake = Fake::start("plain", Policy::Reserve);
    fake.page.set_regions([region(1 << 30, "pwrb.")]);
    let pid = fake.pid().to_string();
    let mut tty = Tty::start(&[&pid], &[], 100, 30);
    tty.wait_for_line(&["█■▄▒·"]);
    assert!(is_coloured(&tty.raw()));
    let mut tty = Tty::start(&[&pid], &[("NO_COLOR", "1"), ("LC_ALL", "C")], 100, 30);
    tty.wait_for_line(&["#W4b."]);
    assert!(!is_coloured(&tty.raw()), "{:?}", tty.raw());
    assert!(tty.raw().is_ascii());
}

#[test]
fn one_frame_is_text() {
    let fake = Fake::start("once", Policy::Adaptive);
    fake.page.set_regions([region(1 << 30, "pprr..")]);
    let done = quire(&["top", "--once", "-i", "0.1", &fake.pid().to_string()])
        .env("LC_ALL", "C")
        .env("COLUMNS", "90")
        .output()
        .unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success());
    assert!(!text.contains('\x1b'));
    let has = |words: &[&str]| {
        text.lines()
            .any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(has(&[&fake.name, "adaptive", "off"]), "{text}");
    assert!(has(&["##44.."]), "{text}");
    assert!(text.lines().all(|line| line.len() <= 90), "{text}");
}

#[test]
fn without_a_terminal_the_remedy_is_told() {
    let refused = |args: &[&str], words: &[&str]| {
        assert_refused(&quire(args).output().unwrap(), 2, words);
    };
    refused(&["top"], &["no terminal", "quire top --once"]);
    refused(&["top", "4194305"], &["no process 4194305"]);
    refused(&["top", "--interval", "0"], &["0.1 to 3600"]);
    refused(
        &["stat", "--json", "--prometheus"],
        &["--prometheus", "--json"],
    );
    let mut tty = Tty::start(&[], &[("TERM", "dumb")], 80, 24);
    tty.wait_for_line(&["dumb terminal", "--once"]);
    assert_eq!(tty.finish().code(), Some(2));
}

#[test]
fn metrics_are_printed() {
    let fake = Fake::start("prom", Policy::Eager);
    fake.page.set_privilege(Privilege::Advised);
    fake.page.add(Counter::Promotions, 42);
    fake.page.add(Counter::Advised, 496);
    let pid = fake.pid().to_string();
    let done = quire(&["stat", "--prometheus", &pid]).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    let labels = format!("pid=\"{pid}\",command=\"{}\",policy=\"eager\"", fake.name);
    for line in [
        format!("quire_promotions_total{{{labels}}} 42"),
        "# TYPE quire_promotions_total counter".to_owned(),
        format!("quire_advised_extents_total{{{labels}}} 496"),
        format!("quire_refused_extents_total{{{labels}}} 0"),
        format!("quire_process_info{{{labels},faults=\"advised\",align=\"off\"}} 1"),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    assert!(text.contains("quire_machine_free_blocks{order=\"0\",bytes=\"4096\"} "));
    let json = stat(fake.pid());
    assert_eq!(json["privilege"], "advised");
    assert_eq!(
        (&json["advised"], &json["refused"]),
        (&496.into(), &0.into())
    );
}

/// What an advised process does not know comes back in its own words.
#[test]
fn a_refusal_of_an_advised_process_is_passed_on() {
    let fake = Fake::start("adv", Policy::Adaptive);
    fake.page.set_privilege(Privilege::Advised);
    fake.obey(Some("policy=reserve needs memory that Quire provides"));
    let pid = fake.pid().to_string();
    let done = quire(&["set", &pid, "policy=reserve"]).output().unwrap();
    assert_refused(&done, 1, &[&pid, "needs memory that Quire provides"]);
}

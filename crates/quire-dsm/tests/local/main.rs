//! Programs of one machine that share the server's copy of each page: real processes, which
//! are killed and stopped.

use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, PageNumber, Pages};
use quire_core::units::{AddrRange, Bytes, ObjectOffset, VirtAddr};
use quire_dsm::client::{Client, Options, Place, Shared};
use quire_dsm::heap::Heap;
use quire_dsm::node::Part;
use quire_dsm::wire::control::{
    Answer, FailureKind, Faults, Handle, MachineCode, MappingNumber, Object, PageSize, PageState,
    Request, SchedulerKind,
};
use quire_linux::thread::now_ns;
use rustix::fs::OFlags;
use rustix::process::Signal;
use tempfile::TempDir;

use program::{BOTH, Process, Program, name, serve, serve_as};
use stranger::{Stranger, first_page, userfaultfd};

mod program;
mod stranger;

/// How long a program that went silent is waited for.
const LEASE: Duration = Duration::from_secs(3);
/// The same where nothing is expected to go on within it.
const SHORT_LEASE: Duration = Duration::from_secs(1);
const WORDS: usize = 512;

/// Not a test: what another process of a test does.
#[test]
fn another_process() {
    if let Ok(role) = std::env::var("LOCAL_ROLE") {
        program::act(&role);
    }
}

/// A server with an object of 256 pages.
struct Machine {
    server: Process,
    address: String,
    directory: TempDir,
    client: Client,
}

impl Machine {
    fn start() -> Machine {
        Machine::start_as(|address| serve(address, LEASE))
    }

    fn start_as(serve: impl FnOnce(&str) -> Process) -> Machine {
        let directory = tempfile::tempdir().expect("a directory");
        let address = format!("unix:{}/socket", directory.path().display());
        let server = serve(&address);
        let client = Client::connect(options(&address)).expect("a server");
        client.create(object("grid")).expect("it is new");
        Machine {
            server,
            address,
            directory,
            client,
        }
    }

    fn program(&self) -> Program {
        self.program_as(|_| {})
    }

    fn program_as(&self, change: impl FnOnce(&mut std::process::Command)) -> Program {
        Program::start(self.directory.path(), &self.address, change)
    }

    fn attached(&self) -> Program {
        let mut program = self.program();
        program.attach("grid");
        program
    }

    /// Another machine, which has pages of its own.
    fn other(&self) -> Shared {
        let mut options = options(&self.address);
        options.own_pages = true;
        let client = Client::connect(options).expect("a server");
        client.open(name("grid"), BOTH).expect("it is there")
    }

    /// How many kernels have the object open, its faults, and its first page.
    fn statistics(&self) -> (usize, Faults, Option<PageState>) {
        let first = Pages::one(PageNumber(0));
        match self.client.statistics(name("grid"), Some(first)) {
            Ok(Answer::Statistics {
                inside: Some(inside),
                ..
            }) => {
                let first = inside.pages.into_iter().next();
                let mut kernels: Vec<_> = inside.kernels.iter().map(|it| it.kernel).collect();
                kernels.dedup();
                (kernels.len(), inside.faults, first)
            }
            other => panic!("{other:?}"),
        }
    }

    fn wait_until_open(&self, times: usize) {
        let begin = Instant::now();
        while self.statistics().0 != times {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn options(address: &str) -> Options {
    Options::new(address.parse().expect("an address"), name("tests"))
}

fn object(text: &str) -> Object {
    Object {
        name: name(text),
        size: Bytes::mib(1),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Simple,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

#[test]
fn programs_of_a_machine_are_one_kernel_and_fetch_each_page_once() {
    let machine = Machine::start();
    let mut programs = [machine.attached(), machine.attached(), machine.attached()];
    // The last first: nothing is asked for ahead.
    for page in (0..64).rev() {
        programs[0].does(&format!("set {} {}", page * WORDS, page + 1));
    }
    let (kernels, faults, _) = machine.statistics();
    assert_eq!((kernels, faults.write), (1, 64));
    for program in &mut programs[1..] {
        for page in 0..64 {
            let value = program.does(&format!("get {}", page * WORDS));
            assert_eq!(value, (page + 1).to_string());
            program.does(&format!("set {} 7", page * WORDS + 1));
        }
    }
    let (kernels, after, _) = machine.statistics();
    assert_eq!((kernels, after), (1, faults), "they were here already");
    drop(programs);
    machine.wait_until_open(0);
}

/// Whoever answers its faults, a program's pages come when it says that it will need them.
/// A handler of the program that ran there could wait for a page that only this thread brings, and a
/// peer that is gone would end the program (SIGPIPE).
#[test]
fn a_carrier_takes_no_signals_of_the_program() {
    let machine = Machine::start();
    let mut carriers = 0;
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // Other tests' threads may have ended.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        if field("Name:") == "quire-dsm" {
            let blocked = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
            for signal in [Signal::PIPE, Signal::USR1, Signal::TERM, Signal::ALARM] {
                let bit = 1 << (signal.as_raw() - 1);
                assert!(blocked & bit != 0, "{signal:?} is not blocked: {blocked:x}");
            }
            carriers += 1;
        }
    }
    assert!(carriers > 0, "no thread quire-dsm");
    drop(machine);
}

#[test]
fn what_is_needed_comes_before_it_is_touched() {
    let machine = Machine::start();
    let here = machine.client.open(name("grid"), BOTH).expect("a server");
    let apart = machine.other();
    assert!(here.is_attached() && !apart.is_attached());
    let all = || ObjectOffset(0)..ObjectOffset(1 << 20);
    let wait = |is_there: &dyn Fn(Faults) -> bool| {
        let begin = Instant::now();
        while !is_there(machine.statistics().1) {
            let waited = begin.elapsed();
            assert!(waited < LEASE, "{:?}", machine.statistics().1);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Where it may be read already, only the right to write comes.
    let to_write = |faults: Faults| faults.write + faults.unlock;
    let mut before = Faults::default();
    for (mine, other) in [(&here, &apart), (&apart, &here)] {
        mine.will_need(all(), Access::Write);
        wait(&|now| to_write(now) >= to_write(before) + 256);
        for page in 0..256 {
            mine.words()[page * WORDS].fetch_add(1, Ordering::SeqCst);
        }
        let now = machine.statistics().1;
        assert_eq!(to_write(now), to_write(before) + 256);
        let part = Part {
            start: ObjectOffset(64 * 4096),
            len: Bytes(64 * 4096),
        };
        let region = other.map(part, Place::Anywhere, true).expect("room");
        region.will_need(region.range(), Access::Read);
        wait(&|now| now.read >= before.read + 64);
        let words = other.words()[64 * WORDS..128 * WORDS].iter();
        let seen: Vec<u64> = words
            .step_by(WORDS)
            .map(|word| word.load(Ordering::SeqCst))
            .collect();
        assert_eq!(seen, [mine.words()[0].load(Ordering::SeqCst); 64]);
        assert_eq!(machine.statistics().1.read, before.read + 64);
        // Where nothing of it is mapped, nothing is needed.
        let beside = AddrRange::new(region.range().end, Bytes(1 << 20));
        region.will_need(beside, Access::Write);
        before = machine.statistics().1;
    }
    // Who may only read: a request to write would end its link.
    let mut options = options(&machine.address);
    options.own_pages = true;
    let client = Client::connect(options).expect("a server");
    let reader = client.open(name("grid"), program::READ).expect("a server");
    let part = Part {
        start: ObjectOffset(0),
        len: Bytes(1 << 20),
    };
    let region = reader.map(part, Place::Anywhere, false).expect("room");
    region.will_need(region.range(), Access::Write);
    reader.will_need(all(), Access::Write);
    wait(&|now| now.read >= before.read + 256);
    assert_eq!(reader.words()[0].load(Ordering::SeqCst), 2);
    assert_eq!(reader.breaks(), 0);
    assert_eq!(to_write(machine.statistics().1), to_write(before));
}

#[test]
fn writers_of_one_word_add_up_on_one_machine_and_on_two() {
    let machine = Machine::start();
    let mut programs = [machine.attached(), machine.attached()];
    for program in &mut programs {
        program.order("add 5 100000");
    }
    for program in &mut programs {
        assert_eq!(program.answer(), "done");
    }
    let (_, faults, _) = machine.statistics();
    assert_eq!(faults.write, 1, "the page was not taken away meanwhile");
    let other = machine.other();
    for program in &mut programs {
        program.order("add 5 100000");
    }
    for _ in 0..20_000 {
        other.words()[5].fetch_add(1, Ordering::SeqCst);
    }
    for program in &mut programs {
        assert_eq!(program.answer(), "done");
    }
    for program in &mut programs {
        assert_eq!(program.does("get 5"), "420000");
    }
    assert_eq!(other.words()[5].load(Ordering::SeqCst), 420_000);
}

#[test]
fn what_a_killed_program_wrote_stays() {
    let machine = Machine::start();
    let mut programs = [machine.attached(), machine.attached()];
    for page in 0..9 {
        programs[0].does(&format!("set {} 11", page * WORDS));
    }
    let [killed, mut other] = programs;
    drop(killed);
    assert_eq!(other.does("get 0"), "11");
    assert_eq!(other.does(&format!("add {WORDS} 1")), "done");
    // The last one is killed, too: the server has all of it.
    drop(other);
    machine.wait_until_open(0);
    let elsewhere = machine.other();
    assert_eq!(elsewhere.words()[WORDS].load(Ordering::SeqCst), 12);
    assert_eq!(elsewhere.words()[8 * WORDS].load(Ordering::SeqCst), 11);
}

/// The copy that programs share is the server's, which has nothing more of the object than that.
#[test]
fn what_is_flushed_stays_and_what_is_closed_goes_back() {
    let machine = Machine::start();
    let mut program = machine.attached();
    program.does("set 0 3");
    let owner = || machine.statistics().2.expect("a page").owner;
    assert!(owner().is_some());
    assert_eq!(program.does("flush"), "true");
    assert!(owner().is_some(), "it was taken away for nothing");
    assert_eq!(program.does("add 0 1"), "done");
    assert_eq!(program.does("close"), "done");
    assert_eq!(machine.statistics().0, 0);
    assert!(owner().is_none());
    program.attach("grid");
    assert_eq!(program.does("get 0"), "4");
}

#[test]
fn a_stopped_program_holds_nobody_up_and_goes_on_with_what_is_there() {
    let machine = Machine::start();
    for is_alone in [false, true] {
        let mut stopped = machine.attached();
        let peer_server = (!is_alone).then(|| machine.attached());
        stopped.does("set 0 1");
        stopped.process.signal(Signal::STOP);
        // At once, before its lease is over, and again when it was given up.
        let other = machine.other();
        let begin = Instant::now();
        assert_eq!(other.words()[0].fetch_add(1, Ordering::SeqCst), 1);
        assert!(begin.elapsed() < LEASE, "{:?}", begin.elapsed());
        std::thread::sleep(2 * LEASE);
        if let Some(mut peer_server) = peer_server {
            assert_eq!(peer_server.does("add 0 1"), "done");
            drop(peer_server);
            other.words()[0].fetch_sub(1, Ordering::SeqCst);
        }
        other.words()[0].fetch_add(1, Ordering::SeqCst);
        stopped.process.signal(Signal::CONT);
        assert_eq!(stopped.does("get 0"), "3", "alone: {is_alone}");
        assert_eq!(stopped.does("add 0 1"), "done");
        assert_eq!(other.words()[0].load(Ordering::SeqCst), 4);
        drop((stopped, other));
        machine.wait_until_open(0);
    }
}

/// Threads of a program look at a word all the time, while another program changes it as soon as the
/// first is stopped for longer than its lease. Going on, it must not see what was there before.
fn sees_nothing_old(looking: &mut Program, other: &Shared) {
    looking.does("look 0 3");
    for value in 1..8 {
        let begin = now_ns();
        while looking.saw(value - 1) < begin {}
        looking.process.signal(Signal::STOP);
        other.words()[0].store(value, Ordering::SeqCst);
        let changed = now_ns();
        looking.process.signal(Signal::CONT);
        while looking.saw(value) == 0 {}
        let late = looking.saw(value - 1).saturating_sub(changed);
        assert_eq!(
            late, 0,
            "{value}: {late} ns after the change the old value was seen"
        );
    }
}

#[test]
fn a_stopped_program_with_pages_of_its_own_sees_nothing_old_when_it_goes_on() {
    let machine = Machine::start_as(|address| serve(address, SHORT_LEASE));
    let mut looking = machine.program_as(|command| {
        command.env("LOCAL_OWN_PAGES", "");
    });
    assert_eq!(looking.does("open grid rw"), "apart");
    sees_nothing_old(&mut looking, &machine.other());
}

#[test]
fn a_stopped_program_sees_nothing_when_it_goes_on_and_its_server_is_dead() {
    let mut machine = Machine::start_as(|address| serve(address, SHORT_LEASE));
    let mut looking = machine.program_as(|command| {
        command.env("LOCAL_RECONNECT", "60000");
    });
    looking.attach("grid");
    looking.does("look 0 3");
    while looking.saw(0) == 0 {}
    looking.process.signal(Signal::STOP);
    machine.server.0.kill().expect("it is ours");
    machine.server.0.wait().expect("it ends");
    std::thread::sleep(2 * SHORT_LEASE);
    let goes_on = now_ns();
    looking.process.signal(Signal::CONT);
    std::thread::sleep(SHORT_LEASE);
    assert_eq!(looking.saw(0).saturating_sub(goes_on), 0);
}

#[test]
fn a_stopped_program_that_is_killed_then_is_forgotten() {
    let machine = Machine::start();
    let mut stopped = machine.attached();
    stopped.does("set 0 9");
    stopped.process.signal(Signal::STOP);
    std::thread::sleep(2 * LEASE);
    assert_eq!(machine.statistics().0, 1, "it may come back");
    drop(stopped);
    machine.wait_until_open(0);
    assert_eq!(machine.other().words()[0].load(Ordering::SeqCst), 9);
}

#[test]
fn a_server_that_was_stopped_goes_on() {
    let machine = Machine::start();
    let mut program = machine.attached();
    program.does("set 0 5");
    machine.server.signal(Signal::STOP);
    std::thread::sleep(2 * LEASE);
    // Its lease is over, so that it may not see its pages any more.
    program.order("get 0");
    assert!(program.waits());
    machine.server.signal(Signal::CONT);
    assert_eq!(program.answer(), "5");
    assert_eq!(program.does("add 0 1"), "done");
    assert_eq!(program.does("get 0"), "6");
}

#[test]
fn memory_of_a_server_that_is_killed_fails_in_time() {
    let mut machine = Machine::start();
    let mut program = machine.program_as(|command| {
        command.env("LOCAL_RECONNECT", "500");
    });
    program.attach("grid");
    program.does("set 0 5");
    machine.server.0.kill().expect("it is ours");
    machine.server.0.wait().expect("it ends");
    let begin = Instant::now();
    program.order("add 0 1000000000000");
    let ended = program.wait();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
    assert!(begin.elapsed() < Duration::from_secs(5));
}

#[test]
fn who_may_only_read_has_pages_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be another user");
        return;
    }
    let machine = Machine::start();
    let path = machine.directory.path();
    program::everybody_may(path);
    program::everybody_may(&path.join("socket"));
    let mut writer = machine.attached();
    writer.does("set 0 5");
    let to_nobody = |rights| {
        let granted = machine
            .client
            .grant(name("grid"), "uid:65534".into(), rights);
        granted.expect("it is ours");
    };
    to_nobody(program::READ);
    let mut reader = machine.program_as(|command| {
        command.uid(65534);
    });
    assert!(reader.does("open grid rw").contains("no right"));
    assert_eq!(reader.does("open grid r"), "apart");
    assert_eq!(machine.statistics().0, 2);
    for value in ["5", "6"] {
        writer.does(&format!("set 0 {value}"));
        assert_eq!(reader.does("get 0"), value);
    }
    to_nobody(BOTH);
    assert_eq!(reader.does("close"), "done");
    assert_eq!(reader.does("open grid r"), "attached");
    assert_eq!(reader.does("get 0"), "6");
    assert_eq!(machine.statistics().0, 1);
    // It asked for reading only.
    reader.order("set 0 1");
    assert_eq!(reader.wait().signal(), Some(libc::SIGSEGV));
    assert_eq!(writer.does("get 0"), "6");
}

#[test]
fn a_child_maps_the_object_again_and_has_no_memory_before() {
    let machine = Machine::start();
    let mut program = machine.attached();
    program.does("set 0 5");
    assert_eq!(program.does("fork touch 0"), "signal 11");
    assert_eq!(program.does("fork again 0"), "code 0");
    assert_eq!(program.does("get 0"), "6");
    assert_eq!(machine.statistics().0, 1);
}

#[test]
fn a_program_of_another_kind_of_machine_or_page_has_pages_of_its_own() {
    let machine = Machine::start();
    let open = |change: fn(&mut Options)| {
        let mut options = options(&machine.address);
        change(&mut options);
        let client = Client::connect(options).expect("a server");
        client.open(name("grid"), BOTH).expect("it is there")
    };
    let same = open(|_| {});
    let vax = open(|options| options.machine = "vax-d".parse().expect("a machine"));
    let large = open(|options| options.page_size = Bytes(16 << 10).try_into().expect("a size"));
    let all = [&same, &vax, &large].map(Shared::is_attached);
    assert_eq!(all, [true, false, false]);
    assert_eq!(machine.statistics().0, 3);
    for shared in [&same, &vax, &large] {
        shared.words()[0].fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(same.words()[0].load(Ordering::SeqCst), 3);
}

#[test]
fn programs_that_synchronise_are_apart() {
    use quire_core::dsm::sync::{Answer, Name as Point, Request};
    let machine = Machine::start();
    let open = || {
        let client = Client::connect(options(&machine.address)).expect("a server");
        client.open(name("grid"), BOTH).expect("it is there")
    };
    let (one, other) = (open(), open());
    let lock = || Request::Lock(Point("it".into()));
    let try_lock = || Request::TryLock(Point("it".into()));
    assert_eq!(one.synchronise(lock()).expect("a server"), Answer::Done);
    let answer = other.synchronise(try_lock()).expect("a server");
    assert_eq!(answer, Answer::Busy);
    drop(one);
    let answer = other.synchronise(try_lock()).expect("a server");
    assert!(
        matches!(answer, Answer::Done | Answer::Abandoned),
        "{answer:?}"
    );
}

#[test]
fn a_typed_heap_lies_in_a_copy_that_programs_share() {
    let machine = Machine::start();
    let clients = [(); 2].map(|()| Client::connect(options(&machine.address)).expect("a server"));
    let made = Object {
        size: Bytes::mib(2),
        ..object("heap")
    };
    clients[0].create(made).expect("it is new");
    let shared = clients.each_ref().map(|client| {
        let opened = client.open(name("heap"), BOTH);
        opened.expect("it is there")
    });
    assert!(shared.iter().all(Shared::is_attached));
    let heaps = shared
        .each_ref()
        .map(|shared| Heap::open(shared).expect("a heap"));
    // Pages get one type after the other, from either program.
    for round in 0..20 {
        let (own, other) = (&heaps[round % 2], &heaps[(round + 1) % 2]);
        let reals = own.alloc::<f64>(20_000).expect("there is room");
        reals.set(19_999, round as f64);
        let seen = other.view::<f64>(reals.offset()).expect("a block");
        assert_eq!(seen.get(19_999), round as f64);
        other.free(reals.offset()).expect("it is in use");
        let whole = other.alloc::<i32>(40_000).expect("there is room");
        whole.set(39_999, round as i32);
        let seen = own.view::<i32>(whole.offset()).expect("a block");
        assert_eq!(seen.get(39_999), round as i32);
        own.free(whole.offset()).expect("it is in use");
    }
}

#[test]
fn parts_of_a_copy_that_programs_share_are_mapped_where_they_like() {
    let machine = Machine::start();
    let mut programs = [machine.attached(), machine.attached()];
    for (program, first) in programs.iter_mut().zip([3, 2]) {
        assert_eq!(program.does(&format!("map {first} 4")), "mapped");
    }
    let [one, other] = &mut programs;
    // The fourth page of the object, which the second of the other's part is.
    assert_eq!(one.does("part set 7 5"), "done");
    let (kernels, faults, _) = machine.statistics();
    assert_eq!((kernels, faults.write), (1, 1));
    assert_eq!(other.does(&format!("part get {}", WORDS + 7)), "5");
    assert_eq!(
        other.does(&format!("part add {} 100000", WORDS + 7)),
        "done"
    );
    assert_eq!(other.does(&format!("get {}", 3 * WORDS + 7)), "100005");
    assert_eq!(one.does("part get 7"), "100005");
    assert_eq!(machine.statistics().1, faults, "it was here already");
    // Unmapped, and mapped again: somewhere else in the object.
    assert_eq!(one.does("unmap"), "done");
    assert_eq!(one.does("map 2 2"), "mapped");
    assert_eq!(one.does(&format!("part get {}", WORDS + 7)), "100005");
    // Another machine takes the page from all mappings.
    let elsewhere = machine.other();
    let word = &elsewhere.words()[3 * WORDS + 7];
    assert_eq!(word.fetch_add(1, Ordering::SeqCst), 100_005);
    assert_eq!(other.does(&format!("part get {}", WORDS + 7)), "100006");
    assert_eq!(one.does(&format!("part add {} 1", WORDS + 7)), "done");
    assert_eq!(word.load(Ordering::SeqCst), 100_007);
}

#[test]
fn what_a_killed_program_wrote_to_a_part_stays_and_others_go_on() {
    let machine = Machine::start();
    let mut programs = [machine.attached(), machine.attached()];
    for program in &mut programs {
        assert_eq!(program.does("map 1 1"), "mapped");
    }
    let [mut killed, mut other] = programs;
    killed.does("part set 0 11");
    killed.order("part add 1 1000000000000");
    while other.does("part get 1") == "0" {}
    drop(killed);
    assert_eq!(other.does("part add 0 1"), "done");
    let elsewhere = machine.other();
    assert_eq!(elsewhere.words()[WORDS].load(Ordering::SeqCst), 12);
    elsewhere.words()[WORDS].store(20, Ordering::SeqCst);
    assert_eq!(other.does("part get 0"), "20");
}

#[test]
fn parts_wait_for_a_server_that_was_stopped() {
    let machine = Machine::start();
    let mut program = machine.attached();
    assert_eq!(program.does("map 0 2"), "mapped");
    program.does("part set 0 5");
    machine.server.signal(Signal::STOP);
    std::thread::sleep(2 * LEASE);
    program.order("part get 0");
    assert!(program.waits());
    machine.server.signal(Signal::CONT);
    assert_eq!(program.answer(), "5");
    assert_eq!(program.does("part add 0 1"), "done");
    // What is unmapped is known no more, and what is mapped is.
    // On a busy machine the new link may break, too, and nothing is asked twice.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match &*program.does("map 0 1") {
            "mapped" => break,
            broken => assert!(
                broken.contains("the link is broken") && Instant::now() < end,
                "{broken}"
            ),
        }
    }
    assert_eq!(program.does("part get 0"), "6");
}

#[test]
fn parts_of_a_stopped_program_hold_nobody_up() {
    let machine = Machine::start();
    let mut stopped = machine.attached();
    assert_eq!(stopped.does("map 0 2"), "mapped");
    stopped.does("part set 0 1");
    stopped.process.signal(Signal::STOP);
    let other = machine.other();
    assert_eq!(other.words()[0].fetch_add(1, Ordering::SeqCst), 1);
    std::thread::sleep(2 * LEASE);
    assert_eq!(other.words()[0].fetch_add(1, Ordering::SeqCst), 2);
    stopped.process.signal(Signal::CONT);
    assert_eq!(stopped.does("part add 0 1"), "done");
    assert_eq!(other.words()[0].load(Ordering::SeqCst), 4);
    assert_eq!(stopped.does("close"), "done");
    drop(other);
    machine.wait_until_open(0);
}

#[test]
fn parts_fail_when_their_server_is_killed() {
    let mut machine = Machine::start();
    let mut program = machine.program_as(|command| {
        command.env("LOCAL_RECONNECT", "500");
    });
    program.attach("grid");
    assert_eq!(program.does("map 0 2"), "mapped");
    program.does("part set 0 5");
    machine.server.0.kill().expect("it is ours");
    machine.server.0.wait().expect("it ends");
    program.order("part add 0 1000000000000");
    let ended = program.wait();
    assert_eq!(ended.signal(), Some(libc::SIGBUS), "{ended}");
}

#[test]
fn a_part_that_outlives_its_object_fails() {
    let machine = Machine::start();
    let client = Client::connect(options(&machine.address)).expect("a server");
    let shared = client.open(name("grid"), BOTH).expect("it is there");
    let part = Part {
        start: ObjectOffset(4096),
        len: Bytes(4096),
    };
    let region = shared.map(part, Place::Anywhere, true).expect("a part");
    let mut bytes = [0; 8];
    let at = region.range().start;
    quire_linux::memory::read_checked(at, &mut bytes).expect("it is there");
    drop(shared);
    quire_linux::memory::read_checked(at, &mut bytes).expect_err("it is closed");
    drop(region);
    machine.wait_until_open(0);
}

/// Whatever is registered that makes no sense is refused, and others go on.
#[test]
fn registrations_that_make_no_sense_are_refused() {
    let machine = Machine::start();
    let mut program = machine.attached();
    let mut stranger = Stranger::connect(&machine.address);
    let object = stranger.attach("grid");
    let at = |mapping, start, length, base| Request::Register {
        object,
        mapping: MappingNumber(mapping),
        start: ObjectOffset(start),
        length: Bytes(length),
        base: VirtAddr(base),
    };
    let one = || vec![userfaultfd()];
    let file = tempfile::tempfile().expect("a file");
    let unregister = |object| Request::Unregister {
        object,
        mapping: MappingNumber(1),
    };
    const BASE: u64 = 0x1000_0000;
    const WHOLE: u64 = 1 << 20;
    const LAST: u64 = u64::MAX - 4095;
    let cases: [(Request, Vec<OwnedFd>); 15] = [
        (at(1, 0, 4096, BASE), Vec::new()),
        (at(1, 0, 4096, BASE), vec![userfaultfd(), userfaultfd()]),
        (at(1, 0, 4096, BASE), vec![OwnedFd::from(file)]),
        (at(1, 0, 0, BASE), one()),
        (at(1, 1, 4096, BASE), one()),
        (at(1, 0, 4097, BASE), one()),
        (at(1, 0, 4096, BASE + 1), one()),
        (at(1, 0, WHOLE + 4096, BASE), one()),
        (at(1, WHOLE, 4096, BASE), one()),
        (at(1, LAST, 4096, BASE), one()),
        (at(1, 4096, LAST, BASE), one()),
        (at(1, 0, 8192, LAST), one()),
        (first_page(Handle(object.0 + 1), 1), one()),
        (unregister(object), Vec::new()),
        (unregister(Handle(object.0 + 1)), Vec::new()),
    ];
    for (request, with) in cases {
        let shown = format!("{request:?}");
        let refused = stranger.ask(request, with).expect_err(&shown);
        let kinds = [FailureKind::Invalid, FailureKind::NotFound];
        assert!(kinds.contains(&refused.kind), "{shown}: {refused:?}");
    }
    let registered = stranger.ask(first_page(object, 1), one());
    registered.expect("it makes sense");
    let twice = stranger.ask(first_page(object, 1), one());
    assert_eq!(
        twice.expect_err("it is there").kind,
        FailureKind::Invalid,
        "twice"
    );
    let gone = stranger.ask(unregister(object), Vec::new());
    gone.expect("it was there");
    let again = stranger.ask(first_page(object, 1), one());
    again.expect("it is free");
    assert_eq!(program.does("set 0 5"), "done");
    let elsewhere = machine.other();
    assert_eq!(elsewhere.words()[0].load(Ordering::SeqCst), 5);
    assert_eq!(program.does("add 0 1"), "done");
}

/// Whether reads of a userfaultfd wait is the program's choice, too; the server waits for nobody.
#[test]
fn a_userfaultfd_whose_reads_wait_holds_nobody_up() {
    let machine = Machine::start();
    let mut program = machine.attached();
    let mut stranger = Stranger::connect(&machine.address);
    let object = stranger.attach("grid");
    let uffd = userfaultfd();
    let flags = rustix::fs::fcntl_getfl(&uffd).expect("its flags");
    rustix::fs::fcntl_setfl(&uffd, flags - OFlags::NONBLOCK).expect("it takes others");
    let registered = stranger.ask(first_page(object, 1), vec![uffd]);
    registered.expect("it makes sense");
    assert_eq!(program.does("set 0 5"), "done");
    assert_eq!(program.does("add 0 1"), "done");
}

/// The mappings that are registered until one is refused.
fn register_until_full(stranger: &mut Stranger, object: Handle) -> (u64, String) {
    let uffd = userfaultfd();
    for mapping in 0..10_000 {
        let with = vec![uffd.try_clone().expect("a descriptor")];
        if let Err(failure) = stranger.ask(first_page(object, mapping), with) {
            assert_eq!(failure.kind, FailureKind::Full);
            return (mapping, failure.text);
        }
    }
    panic!("there is no bound");
}

#[test]
fn a_program_registers_no_more_mappings_than_its_share() {
    let machine = Machine::start();
    let mut program = machine.attached();
    let mut stranger = Stranger::connect(&machine.address);
    let object = stranger.attach("grid");
    let (count, why) = register_until_full(&mut stranger, object);
    assert_eq!(count, 1024);
    assert!(why.contains("unmap some"), "{why}");
    let one_less = Request::Unregister {
        object,
        mapping: MappingNumber(9),
    };
    stranger.ask(one_less, Vec::new()).expect("it was there");
    let more = stranger.ask(first_page(object, 9), vec![userfaultfd()]);
    more.expect("there is room");
    assert_eq!(program.does("map 0 1"), "mapped");
    assert_eq!(program.does("part set 0 5"), "done");
    // What it had counts until it is certainly dead; others are not concerned.
    drop(stranger);
    assert_eq!(program.does("map 0 2"), "mapped");
    assert_eq!(program.does("part get 0"), "5");
}

#[test]
fn mappings_leave_the_server_half_of_its_descriptors() {
    let machine = Machine::start_as(|address| {
        serve_as(address, LEASE, |command| {
            command.env("LOCAL_DESCRIPTORS", "100");
        })
    });
    let mut program = machine.attached();
    let mut stranger = Stranger::connect(&machine.address);
    let object = stranger.attach("grid");
    let (count, why) = register_until_full(&mut stranger, object);
    assert_eq!(count, 49, "the program has one");
    assert!(why.contains("ulimit"), "{why}");
    assert!(program.does("map 0 1").contains("ulimit"));
    assert_eq!(program.does("set 0 5"), "done");
    // Others can still connect, and use objects with pages of their own.
    assert_eq!(machine.other().words()[0].load(Ordering::SeqCst), 5);
}

#[test]
fn it_is_said_which_programs_share_a_copy() {
    let machine = Machine::start();
    let _programs = [machine.attached(), machine.attached()];
    let _other = machine.other();
    let Ok(Answer::Statistics {
        inside: Some(inside),
        ..
    }) = machine.client.statistics(name("grid"), None)
    else {
        panic!("it may be looked at");
    };
    assert_eq!((inside.open, inside.kernels.len()), (3, 3));
    let is_program = |name: &str| name.starts_with("program (uid ");
    let sharing = inside.kernels.iter().filter(|it| is_program(&it.name));
    let sharing: Vec<_> = sharing.map(|it| it.kernel).collect();
    assert_eq!(sharing.len(), 2, "{:?}", inside.kernels);
    assert_eq!(sharing[0], sharing[1]);
}

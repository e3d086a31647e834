//! Pagers behind a server, with a real client: whoever supplies the contents, programs see
//! memory; and a pager that is slow, silent or wrong costs its own pages only.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Options, Shared};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::pager::{
    Attributes, Backed, Compressed, Contents, Control, Generated, Pager, Writes, ZeroFill, threaded,
};
use quire_dsm::server::{self, Offer, PAGER_PATIENCE, Server};
use quire_dsm::store::{Settings, Store};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind, Segment, TypeCode,
};

const PAGE: usize = 4096;
const PAGES: u64 = 16;
const BOTH: Rights = Rights {
    read: true,
    write: true,
};
const SCHEDULERS: [SchedulerKind; 2] = [SchedulerKind::Simple, SchedulerKind::Multi];

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn object(text: &str, scheduler: SchedulerKind) -> Object {
    Object {
        name: name(text),
        size: Bytes(PAGES * PAGE as u64),
        page_size: PageSize::BASE,
        scheduler,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

fn offer(text: &str, scheduler: SchedulerKind) -> Offer {
    Offer {
        object: object(text, scheduler),
        owner: "nobody".into(),
        anyone: BOTH,
        patience: PAGER_PATIENCE,
    }
}

/// A server in a thread of this process.
struct Served {
    address: Address,
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Served {
    /// A server that is prepared in its thread.
    fn start(prepare: impl FnOnce(&mut Server) + Send + 'static) -> Served {
        let directory = tempfile::tempdir().expect("a directory");
        let address = format!("unix:{}/socket", directory.path().display());
        let address: Address = address.parse().expect("an address");
        let (end, ended) = UnixStream::pair().expect("sockets");
        let (ready, is_ready) = mpsc::channel();
        let at = address.clone();
        let thread = thread::spawn(move || {
            let hello = Hello {
                name: name("server"),
                role: Role::Server,
                machine: MachineCode(0),
                page_size: PageSize::BASE,
                features: 0,
            };
            let mut turn = Turn::new(Config::new(hello)).expect("a loop");
            server::listen(&mut turn, &[at], &Security::Automatic(None)).expect("a socket");
            let mut server = Server::new(name("server"), server::LEASE);
            prepare(&mut server);
            ready.send(()).expect("somebody waits");
            server::serve(&mut turn, &mut server, ended.as_fd()).expect("it ends well");
        });
        is_ready.recv().expect("it is prepared");
        Served {
            address,
            end: Some(end),
            thread: Some(thread),
            _directory: directory,
        }
    }

    fn client(&self) -> Client {
        self.client_with(|_| {})
    }

    fn client_with(&self, change: impl FnOnce(&mut Options)) -> Client {
        let mut options = Options::new(self.address.clone().into(), name("user"));
        // Each stands for a machine of its own.
        options.own_pages = true;
        change(&mut options);
        Client::connect(options).expect("the server is there")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        let thread = self.thread.take().expect("it was started");
        thread.join().expect("the server ended well");
    }
}

fn open(client: &Client, text: &str) -> Shared {
    client.open(name(text), BOTH).expect("the object is there")
}

fn word(shared: &Shared, page: u64) -> u64 {
    shared.words()[page as usize * PAGE / 8].load(Ordering::Relaxed)
}

fn set(shared: &Shared, page: u64, value: u64) {
    shared.words()[page as usize * PAGE / 8].store(value, Ordering::Relaxed);
}

/// Whether a page can be read, or written to.
fn can(shared: &Shared, page: u64, access: Access) -> bool {
    let at = ObjectOffset(page * PAGE as u64);
    match access {
        Access::Read => shared.checked_read_at(at, &mut [0; 8]).is_ok(),
        Access::Write => shared.checked_write_at(at, &[1; 8]).is_ok(),
    }
}

/// Each page begins with its own number and 1000.
fn numbers(offset: u64, page: &mut [u8]) {
    let number = offset / PAGE as u64 + 1000;
    page[..8].copy_from_slice(&number.to_ne_bytes());
}

#[test]
fn contents_come_from_pagers_and_go_back_to_them() {
    for scheduler in SCHEDULERS {
        let served = Served::start(move |server| {
            let pagers: [(&str, Box<dyn Pager>); 4] = [
                ("zero", Box::new(ZeroFill::default())),
                ("small", Box::new(Compressed::default())),
                ("made", Box::new(Generated::new(numbers, Writes::Kept))),
                (
                    "apart",
                    threaded(Box::new(Generated::new(numbers, Writes::Kept))).expect("a thread"),
                ),
            ];
            for (name, pager) in pagers {
                let made = server.create_with_pager(offer(name, scheduler), pager);
                made.expect("it is new");
            }
            let twice =
                server.create_with_pager(offer("zero", scheduler), Box::new(ZeroFill::default()));
            assert!(twice.expect_err("there is one").text.contains("already"));
        });
        let (one, other) = (served.client(), served.client());
        for (name, begins) in [("zero", 0), ("small", 0), ("made", 1000), ("apart", 1000)] {
            let (mine, theirs) = (open(&one, name), open(&other, name));
            for page in 0..PAGES {
                let right = if begins == 0 { 0 } else { begins + page };
                assert_eq!(word(&mine, page), right, "{name}");
                set(&theirs, page, page + 7);
                assert_eq!(word(&mine, page), page + 7, "{name}");
            }
            mine.flush().expect("it is safe");
            theirs.flush().expect("it is safe");
        }
    }
}

/// Provides pages for reading only, and lets even ones be written to when it is asked.
struct Choosy {
    control: Option<Control>,
    unlocked: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Pager for Choosy {
    fn init(&mut self, object: &Backed, control: Control) {
        assert_eq!(object.name, "choosy", "whatever its key is");
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.as_ref().expect("a control");
        for page in pages.iter() {
            let mut contents = vec![0; PAGE];
            numbers(page.0 * PAGE as u64, &mut contents);
            control.data_provided(Pages::one(page), vec![contents.into()], Access::Read);
        }
    }

    fn data_unlock(&mut self, pages: Pages) {
        let control = self.control.clone().expect("a control");
        self.unlocked.fetch_add(1, Ordering::SeqCst);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            for page in pages.iter() {
                match page.0 % 2 {
                    0 => control.lock_request(Pages::one(page), Lock::AllowWrite),
                    _ => control.data_error(Pages::one(page), "odd pages stay as they are"),
                }
            }
        });
    }

    fn data_write(&mut self, pages: Pages, _: Vec<Option<Contents>>) {
        self.written
            .fetch_add(u64::from(pages.count), Ordering::SeqCst);
        let control = self.control.as_ref().expect("a control");
        control.data_written(pages, Ok(()));
    }
}

#[test]
fn a_pager_is_asked_before_its_pages_are_written_to() {
    for scheduler in SCHEDULERS {
        let (unlocked, written) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let pager = Choosy {
            control: None,
            unlocked: unlocked.clone(),
            written: written.clone(),
        };
        let served = Served::start(move |server| {
            let made = server.create_with_pager(offer("choosy", scheduler), Box::new(pager));
            made.expect("it is new");
        });
        let (one, other) = (served.client(), served.client());
        let (mine, theirs) = (open(&one, "choosy"), open(&other, "choosy"));
        assert_eq!(word(&mine, 4), 1004);
        assert_eq!(unlocked.load(Ordering::SeqCst), 0);
        // Missing pages, and such that are there to be read.
        set(&mine, 2, 5);
        set(&mine, 4, 6);
        assert_eq!(unlocked.load(Ordering::SeqCst), 2);
        assert_eq!((word(&theirs, 2), word(&theirs, 4)), (5, 6));
        // Nobody is asked again.
        set(&theirs, 4, 7);
        assert_eq!(word(&mine, 4), 7);
        assert_eq!(unlocked.load(Ordering::SeqCst), 2);
        // Whoever writes to a page that stays as it is fails; others go on reading it.
        assert_eq!(word(&theirs, 3), 1003);
        assert!(!can(&mine, 3, Access::Write));
        assert_eq!(word(&theirs, 3), 1003);
        assert!(!can(&theirs, 5, Access::Write));
        assert_eq!(word(&mine, 5), 1005);
        mine.flush().expect("it is safe");
        theirs.flush().expect("it is safe");
        assert!(written.load(Ordering::SeqCst) >= 3);
    }
}

#[test]
fn what_can_only_be_read_is_not_opened_to_be_written_to() {
    let served = Served::start(|server| {
        let pager = Generated::new(numbers, Writes::Refused);
        let made = server.create_with_pager(offer("fixed", SchedulerKind::Multi), Box::new(pager));
        made.expect("it is new");
    });
    let client = served.client();
    let refused = client.open(name("fixed"), BOTH).map(drop);
    let refused = refused.expect_err("it may not be written to").to_string();
    assert!(refused.contains("can only be read"), "{refused}");
    let read = Rights {
        read: true,
        write: false,
    };
    let shared = client.open(name("fixed"), read).expect("it may be read");
    assert_eq!(word(&shared, 9), 1009);
}

/// Answers for even pages only.
struct Silent(Option<Control>);

impl Pager for Silent {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.0 = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.0.as_ref().expect("a control");
        for page in pages.iter().filter(|page| page.0 % 2 == 0) {
            control.data_unavailable(Pages::one(page));
        }
    }

    fn data_write(&mut self, pages: Pages, _: Vec<Option<Contents>>) {
        let control = self.0.as_ref().expect("a control");
        for page in pages.iter().filter(|page| page.0 != 2) {
            control.data_written(Pages::one(page), Ok(()));
        }
    }
}

#[test]
fn a_silent_pager_costs_its_own_pages() {
    let served = Served::start(|server| {
        let mut quick = offer("silent", SchedulerKind::Multi);
        quick.patience = Duration::from_millis(300);
        let made = server.create_with_pager(quick, Box::new(Silent(None)));
        made.expect("it is new");
        let other = offer("other", SchedulerKind::Multi);
        let made = server.create_with_pager(other, Box::new(ZeroFill::default()));
        made.expect("it is new");
    });
    let (one, two) = (served.client(), served.client());
    let shared = open(&one, "silent");
    thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            assert!(!can(&shared, 1, Access::Read));
            assert!(begin.elapsed() < Duration::from_secs(5));
        });
        // Others are served meanwhile.
        let begin = Instant::now();
        let fine = open(&two, "other");
        for page in 0..PAGES {
            set(&fine, page, 1);
        }
        fine.flush().expect("it is safe");
        assert!(
            begin.elapsed() < Duration::from_millis(250),
            "{:?}",
            begin.elapsed()
        );
    });
    set(&shared, 4, 8);
    shared.flush().expect("it is safe");
    set(&shared, 2, 9);
    let unsafe_yet = shared
        .flush()
        .expect_err("nobody said that it is safe")
        .to_string();
    assert!(unsafe_yet.contains("page 2 of silent"), "{unsafe_yet}");
    assert!(
        unsafe_yet.contains("did not answer in time"),
        "{unsafe_yet}"
    );
    // It is still there.
    assert_eq!(word(&shared, 2), 9);
}

#[test]
fn a_store_has_the_form_of_the_objects_own_machine() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().to_owned();
    let serve = move || {
        let store = Store::open(&place, &Settings::default()).expect("a store");
        Served::start(move |server| server.keep_in(store).expect("threads"))
    };
    let served = serve();
    let mut made = object("numbers", SchedulerKind::Multi);
    made.tags = vec![Segment {
        start: Bytes(0),
        length: Bytes(PAGE as u64),
        // A floating point number of 8 bytes.
        tag: TypeCode(6),
    }];
    served.client().create(made).expect("it is new");
    let vax = |options: &mut Options| options.machine = "vax-d".parse().expect("a machine");
    let theirs = served.client_with(vax);
    let shared = open(&theirs, "numbers");
    // 1.0 is 0x4080 in the first word of VAX D; what has no type stays as it is.
    set(&shared, 0, 0x4080);
    set(&shared, 1, 0x4080);
    shared.flush().expect("it is safe");
    drop((shared, theirs));
    drop(served);
    let served = serve();
    let (ours, theirs) = (served.client(), served.client_with(vax));
    let (mine, other) = (open(&ours, "numbers"), open(&theirs, "numbers"));
    assert_eq!(word(&mine, 0), 1.0f64.to_bits());
    assert_eq!(word(&mine, 1), 0x4080);
    assert_eq!(word(&other, 0), 0x4080);
}

/// Contents that somebody else changes: the pager takes its pages back for that.
struct Live {
    control: Option<Control>,
    share: Arc<Mutex<LiveState>>,
}

#[derive(Default)]
struct LiveState {
    control: Option<Control>,
    pages: BTreeMap<u64, Contents>,
    back: Vec<Pages>,
}

impl Live {
    fn state(&self) -> std::sync::MutexGuard<'_, LiveState> {
        self.share.lock().expect("nobody has failed")
    }
}

impl Pager for Live {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.state().control = Some(control.clone());
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.as_ref().expect("a control");
        for page in pages.iter() {
            match self.state().pages.get(&page.0).cloned() {
                Some(held) => control.data_provided(Pages::one(page), vec![held], Access::Write),
                None => control.data_unavailable(Pages::one(page)),
            }
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        for (page, contents) in pages.iter().zip(data) {
            let contents = contents.unwrap_or_else(|| vec![0; PAGE].into());
            self.state().pages.insert(page.0, contents);
        }
        let control = self.control.as_ref().expect("a control");
        control.data_written(pages, Ok(()));
    }

    fn lock_completed(&mut self, pages: Pages) {
        // What was written is here; from now on this is what the pages hold.
        let mut state = self.state();
        for page in pages.iter() {
            let contents = state.pages.entry(page.0);
            let contents = contents.or_insert_with(|| vec![0; PAGE].into());
            let mut changed = contents.to_vec();
            changed[0] = changed[0].wrapping_add(100);
            *contents = changed.into();
        }
        state.back.push(pages);
    }
}

#[test]
fn a_pager_gets_pages_back_and_may_change_them() {
    for scheduler in SCHEDULERS {
        let share = Arc::new(Mutex::new(LiveState::default()));
        let pager = Live {
            control: None,
            share: share.clone(),
        };
        let served = Served::start(move |server| {
            let made = server.create_with_pager(offer("live", scheduler), Box::new(pager));
            made.expect("it is new");
        });
        let (one, other) = (served.client(), served.client());
        let (mine, theirs) = (open(&one, "live"), open(&other, "live"));
        // One page that is written to, one that two read, one that nobody has.
        set(&mine, 0, 5);
        assert_eq!((word(&mine, 1), word(&theirs, 1)), (0, 0));
        let wanted = Pages {
            first: PageNumber(0),
            count: 3,
        };
        for round in 1..4 {
            let control = share.lock().expect("no panic").control.clone();
            control
                .expect("a control")
                .lock_request(wanted, Lock::Flush);
            let end = Instant::now() + Duration::from_secs(10);
            while share.lock().expect("no panic").back.len() < round {
                assert!(Instant::now() < end, "they do not come back");
                thread::sleep(Duration::from_millis(2));
            }
            let added = 100 * round as u64 % 256;
            for shared in [&mine, &theirs] {
                assert_eq!(word(shared, 0), (5 + added) % 256, "round {round}");
                assert_eq!(word(shared, 1), added, "round {round}");
            }
            assert_eq!(word(&theirs, 2), added, "round {round}");
        }
        // Pages that there are not are not waited for.
        let control = share.lock().expect("no panic").control.clone();
        let outside = Pages {
            first: PageNumber(PAGES),
            count: 1,
        };
        control
            .expect("a control")
            .lock_request(outside, Lock::Flush);
        set(&mine, 3, 1);
        assert_eq!(word(&theirs, 3), 1);
    }
}

/// A pager that wants its pages back all the time loses nothing that is written.
#[test]
fn nothing_is_lost_while_pages_are_taken_back() {
    for scheduler in SCHEDULERS {
        let share = Arc::new(Mutex::new(LiveState::default()));
        let pager = Live {
            control: None,
            share: share.clone(),
        };
        let served = Served::start(move |server| {
            let made = server.create_with_pager(offer("live", scheduler), Box::new(pager));
            made.expect("it is new");
        });
        let is_over = AtomicBool::new(false);
        let rounds = 400;
        thread::scope(|scope| {
            let users: Vec<_> = (0..3)
                .map(|user| {
                    let served = &served;
                    scope.spawn(move || {
                        let client = served.client();
                        let shared = open(&client, "live");
                        for _ in 0..rounds {
                            // The first byte is the pager's.
                            shared.words()[1 + user].fetch_add(1, Ordering::Relaxed);
                            shared.words()[512 + 1].fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let control = share.lock().expect("no panic").control.clone();
                let control = control.expect("a control");
                while !is_over.load(Ordering::Relaxed) {
                    for page in 0..2 {
                        control.lock_request(Pages::one(PageNumber(page)), Lock::Flush);
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            for user in users {
                user.join().expect("no panic");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let client = served.client();
        let shared = open(&client, "live");
        for user in 0..3 {
            assert_eq!(shared.words()[1 + user].load(Ordering::Relaxed), rounds);
        }
        assert_eq!(shared.words()[513].load(Ordering::Relaxed), 3 * rounds);
        assert!(share.lock().expect("no panic").back.len() > 5);
    }
}

/// Takes its time for what it gets.
struct Slow {
    control: Option<Control>,
    got: Arc<Mutex<Vec<u64>>>,
}

impl Pager for Slow {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.as_ref().expect("a control");
        control.data_unavailable(pages);
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        thread::sleep(Duration::from_millis(100));
        for contents in data.into_iter().flatten() {
            let (first, _) = contents.split_first_chunk::<8>().expect("a page");
            let mut got = self.got.lock().expect("no panic");
            got.push(u64::from_ne_bytes(*first));
        }
        let control = self.control.as_ref().expect("a control");
        control.data_written(pages, Ok(()));
    }
}

#[test]
fn what_was_given_back_is_kept_when_the_server_ends() {
    let got = Arc::new(Mutex::new(Vec::new()));
    let pager = Slow {
        control: None,
        got: got.clone(),
    };
    let served = Served::start(move |server| {
        let pager = threaded(Box::new(pager)).expect("a thread");
        let made = server.create_with_pager(offer("slow", SchedulerKind::Multi), pager);
        made.expect("it is new");
    });
    let (one, other) = (served.client(), served.client());
    let (mine, theirs) = (open(&one, "slow"), open(&other, "slow"));
    for value in 1..=20 {
        set(&mine, 0, value);
        // So it is given back.
        assert_eq!(word(&theirs, 0), value);
    }
    drop(served);
    let got = got.lock().expect("no panic").clone();
    assert_eq!(got.last(), Some(&20), "{got:?}");
    assert!(got.len() < 20, "each version was kept: {got:?}");
}

/// Has what it got only after a while, and answers with what it had before until then.
#[derive(Default)]
struct Lagging {
    control: Option<Control>,
    pages: Arc<Mutex<BTreeMap<u64, Contents>>>,
}

impl Pager for Lagging {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.as_ref().expect("a control");
        for page in pages.iter() {
            let held = self.pages.lock().expect("no panic").get(&page.0).cloned();
            let begins = || {
                let mut contents = vec![0; PAGE];
                numbers(page.0 * PAGE as u64, &mut contents);
                contents.into()
            };
            let held = held.unwrap_or_else(begins);
            control.data_provided(Pages::one(page), vec![held], Access::Write);
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let (control, kept) = (self.control.clone(), self.pages.clone());
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            for (page, contents) in pages.iter().zip(data) {
                let contents = contents.unwrap_or_else(|| vec![0; PAGE].into());
                kept.lock().expect("no panic").insert(page.0, contents);
            }
            control.expect("a control").data_written(pages, Ok(()));
        });
    }
}

/// Contents stay in memory until the pager has them.
#[test]
fn what_is_not_safe_does_not_go_from_memory() {
    for scheduler in SCHEDULERS {
        let served = Served::start(move |server| {
            server.limit_memory(Bytes(PAGE as u64));
            let lagging = Box::new(Lagging::default());
            let made = server.create_with_pager(offer("lagging", scheduler), lagging);
            made.expect("it is new");
        });
        let clients = [(); 3].map(|()| served.client());
        let [mine, theirs, fresh] = clients.each_ref().map(|client| open(client, "lagging"));
        for page in (0..PAGES).step_by(2) {
            // It comes from the pager, is written to, and given back.
            assert_eq!(word(&mine, page), 1000 + page);
            set(&mine, page, page + 7);
            assert_eq!(word(&theirs, page), page + 7);
            assert_eq!(word(&theirs, page + 1), 1001 + page);
            assert_eq!(word(&fresh, page), page + 7);
        }
    }
}

/// Counts the pages that its pager is asked for.
struct Counted<P> {
    pager: P,
    asked: Arc<AtomicU64>,
}

impl<P: Pager> Pager for Counted<P> {
    fn init(&mut self, object: &Backed, control: Control) {
        self.pager.init(object, control);
    }

    fn data_request(&mut self, pages: Pages, access: Access) {
        self.asked
            .fetch_add(u64::from(pages.count), Ordering::SeqCst);
        self.pager.data_request(pages, access);
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        self.pager.data_write(pages, data);
    }
}

#[test]
fn what_the_pager_has_goes_from_memory_and_comes_back() {
    for (scheduler, limit) in SCHEDULERS.into_iter().flat_map(|s| [(s, 4), (s, 1000)]) {
        let asked = Arc::new(AtomicU64::new(0));
        let pager = Counted {
            pager: ZeroFill::default(),
            asked: asked.clone(),
        };
        let served = Served::start(move |server| {
            server.limit_memory(Bytes(limit * PAGE as u64));
            let made = server.create_with_pager(offer("large", scheduler), Box::new(pager));
            made.expect("it is new");
        });
        let (one, other) = (served.client(), served.client());
        let (mine, theirs) = (open(&one, "large"), open(&other, "large"));
        for round in 1..6 {
            for page in 0..PAGES {
                set(&mine, page, round * 100 + page);
            }
            mine.flush().expect("it is safe");
            for page in 0..PAGES {
                assert_eq!(word(&theirs, page), round * 100 + page);
            }
        }
        let asked = asked.load(Ordering::SeqCst);
        match limit {
            4 => assert!(asked > PAGES, "only {asked} pages came back"),
            _ => assert_eq!(asked, PAGES, "nothing had to go"),
        }
    }
}

/// How much waits for a pager.
#[derive(Default)]
struct Load {
    /// So many pages.
    waiting: AtomicU64,
    /// At most; since it was back and kept up again, where it was away.
    most: AtomicU64,
    /// It takes nothing.
    is_away: AtomicBool,
}

/// Takes what it is given one page after the other.
struct Burdened {
    queue: mpsc::Sender<(Control, Pages)>,
    load: Arc<Load>,
    control: Option<Control>,
}

impl Burdened {
    fn new(load: &Arc<Load>, limit: u64) -> Burdened {
        let (queue, given) = mpsc::channel::<(Control, Pages)>();
        let left = Arc::clone(load);
        thread::spawn(move || {
            let mut was_away = false;
            for (control, pages) in given {
                while left.is_away.load(Ordering::SeqCst) {
                    was_away = true;
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(Duration::from_micros(300) * pages.count);
                let count = u64::from(pages.count);
                let waiting = left.waiting.fetch_sub(count, Ordering::SeqCst) - count;
                if was_away && waiting <= limit {
                    was_away = false;
                    left.most.store(waiting, Ordering::SeqCst);
                }
                control.data_written(pages, Ok(()));
            }
        });
        Burdened {
            queue,
            load: Arc::clone(load),
            control: None,
        }
    }
}

/// An object with such a pager, of which more than `limit` pages are not to wait there.
fn slow(scheduler: SchedulerKind, limit: u64, pages: u64, load: &Arc<Load>) -> Served {
    let pager = Box::new(Burdened::new(load, limit));
    Served::start(move |server| {
        server.limit_memory(Bytes(limit * PAGE as u64));
        let mut offer = offer("slow", scheduler);
        offer.object.size = Bytes(pages * PAGE as u64);
        let made = server.create_with_pager(offer, pager);
        made.expect("it is new");
    })
}

impl Pager for Burdened {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: false,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.as_ref().expect("it was told");
        control.data_unavailable(pages);
    }

    fn data_write(&mut self, pages: Pages, _: Vec<Option<Contents>>) {
        let count = u64::from(pages.count);
        let waiting = self.load.waiting.fetch_add(count, Ordering::SeqCst) + count;
        self.load.most.fetch_max(waiting, Ordering::SeqCst);
        let control = self.control.clone().expect("it was told");
        self.queue.send((control, pages)).expect("a thread");
    }
}

/// Who writes faster than the pager can keep it waits; memory does not fill with it.
#[test]
fn who_writes_faster_than_the_pager_waits_for_it() {
    const LIMIT: u64 = 16;
    const LARGE: u64 = 2048;
    for scheduler in SCHEDULERS {
        let load = Arc::new(Load::default());
        let served = slow(scheduler, LIMIT, LARGE, &load);
        // It gives back all but a few as it goes.
        let client = served.client_with(|options| options.room = Some(Bytes(8 * PAGE as u64)));
        let shared = open(&client, "slow");
        for page in 0..LARGE {
            set(&shared, page, page);
        }
        shared.flush().expect("it is safe");
        // It has something to do, and a window may come on top.
        let most = load.most.load(Ordering::SeqCst);
        assert!((LIMIT / 2..LIMIT + 512).contains(&most), "{most} pages");
    }
}

/// What a pager with a limit of `limit` pages had to keep at most, when programs began to write together:
/// once it was back, where it was away at first.
fn most_that_waits(limit: u64, is_away: bool) -> u64 {
    const EACH: u64 = 256;
    const PROGRAMS: u64 = 5;
    let load = Arc::new(Load::default());
    load.is_away.store(is_away, Ordering::SeqCst);
    let served = slow(SchedulerKind::Multi, limit, (PROGRAMS + 1) * EACH, &load);
    let program = || {
        let client = served.client_with(|options| options.room = Some(Bytes(8 * PAGE as u64)));
        open(&client, "slow")
    };
    let first = program();
    if is_away {
        (0..16).for_each(|page| set(&first, page, page));
    }
    thread::scope(|scope| {
        for number in 1..=PROGRAMS {
            scope.spawn(move || {
                let shared = program();
                let at = |page: u64| ObjectOffset(page * PAGE as u64);
                let (from, to) = (number * EACH, (number + 1) * EACH);
                shared.will_need(at(from)..at(to), Access::Write);
                (from..to).for_each(|page| set(&shared, page, page));
                shared.flush().expect("it is safe");
            });
        }
        if is_away {
            // All of them wait by now.
            thread::sleep(Duration::from_secs(1));
            load.is_away.store(false, Ordering::SeqCst);
        }
    });
    load.most.load(Ordering::SeqCst)
}

/// Programs that wait for a pager to keep up go on one after the other, not all at once. Nor do they
/// begin so.
#[test]
fn programs_write_to_a_slow_pager_one_window_at_a_time() {
    const LIMIT: u64 = 16;
    for is_away in [true, false] {
        let most = most_that_waits(LIMIT, is_away);
        // A window may come on top, and not one of each.
        assert!((LIMIT..LIMIT + 512).contains(&most), "{most} pages");
    }
}

/// More is flushed, and then closed, than may wait in a link at a time.
#[test]
fn large_objects_are_given_back_in_pieces() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), &Settings::default()).expect("a store");
    let served = Served::start(move |server| {
        server.limit_memory(Bytes::mib(16));
        server.keep_in(store).expect("threads");
    });
    let client = served.client();
    let huge = PageSize::try_from(Bytes::mib(2)).expect("a size");
    let pages = 70;
    let large = Object {
        size: Bytes::mib(2 * pages),
        page_size: huge,
        ..object("large", SchedulerKind::Multi)
    };
    client.create(large).expect("it is new");
    let first = |shared: &Shared, page: u64| {
        shared.words()[page as usize * (2 << 20) / 8].load(Ordering::Relaxed)
    };
    for round in 1..3 {
        let shared = open(&client, "large");
        for page in 0..pages {
            let word = &shared.words()[page as usize * (2 << 20) / 8];
            word.store(round * 100 + page, Ordering::Relaxed);
        }
        if round == 1 {
            shared.flush().expect("it is safe");
        }
        drop(shared);
        let other = served.client();
        let shared = open(&other, "large");
        for page in 0..pages {
            assert_eq!(first(&shared, page), round * 100 + page, "page {page}");
        }
    }
}

#[test]
fn many_requests_wait_for_the_store_together() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(directory.path(), &Settings::default()).expect("a store");
    let served = Served::start(move |server| server.keep_in(store).expect("threads"));
    let client = served.client();
    thread::scope(|scope| {
        for user in 0..4 {
            let client = &client;
            scope.spawn(move || {
                for number in 0..20 {
                    let text = format!("object-{user}-{number}");
                    client
                        .create(object(&text, SchedulerKind::Simple))
                        .expect("it is new");
                    let again = client.create(object(&text, SchedulerKind::Simple));
                    assert!(again.is_err_and(|error| error.to_string().contains("already")));
                    let none = Rights {
                        read: false,
                        write: number % 2 == 0,
                    };
                    let granted = client.grant(name(&text), "node-1".into(), none);
                    granted.expect("it is its own");
                    if number % 4 == 3 {
                        client.remove(name(&text)).expect("nobody has it open");
                        let gone = client.open(name(&text), BOTH).map(drop);
                        assert!(gone.is_err());
                    }
                }
            });
        }
    });
    assert_eq!(client.list().expect("a list").len(), 60);
}

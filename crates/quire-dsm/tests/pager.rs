//! Pagers as they stand behind a scheduler: what is written is read back, late and from
//! other threads, and one that lies or is silent harms nobody.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;
use quire_dsm::pager::{
    Attributes, Backed, Backing, Compressed, Contents, Control, Event, FilePager, Generated, Pager,
    Readers, Stored, Writes, ZeroFill, threaded,
};
use quire_dsm::store::{NewObject, SchedulerKind, Settings, Store};

const PAGE: usize = 4096;
const PAGES: u64 = 16;
const LONG: Duration = Duration::from_secs(20);

fn backed() -> Backed {
    Backed {
        name: "one".to_owned(),
        size: Bytes(PAGES * PAGE as u64),
        page_size: Bytes(PAGE as u64),
    }
}

fn pages(first: u64, count: u32) -> Pages {
    Pages {
        first: PageNumber(first),
        count,
    }
}

/// A pager at work, and a way to wait for it.
struct Work {
    backing: Backing,
    woken: mpsc::Receiver<()>,
}

impl Work {
    fn new(pager: Box<dyn Pager>) -> Work {
        let (sender, woken) = mpsc::channel();
        let wake = Arc::new(move || {
            let _ = sender.send(());
        });
        let backing = Backing::new(pager, backed(), wake, LONG);
        Work { backing, woken }
    }

    /// The next events; the pager is given time.
    fn wait(&mut self) -> Vec<Event> {
        loop {
            let events = self.backing.events(Instant::now());
            if !events.is_empty() {
                return events;
            }
            self.woken.recv_timeout(LONG).expect("the pager is silent");
        }
    }

    /// Waits until a request is answered for all of its pages.
    fn load(&mut self, wanted: Pages) -> HashMap<u64, Option<Option<Contents>>> {
        self.backing.load(wanted, Access::Read, Instant::now());
        let mut found = HashMap::new();
        while found.len() < wanted.count as usize {
            for event in self.wait() {
                if let Event::Loaded(pages, data) = event {
                    for (index, page) in pages.iter().enumerate() {
                        let data = data.as_ref().map(|data| data[index].clone());
                        found.insert(page.0, data);
                    }
                }
            }
        }
        found
    }

    fn page(&mut self, page: u64) -> Vec<u8> {
        let found = self.load(pages(page, 1)).remove(&page).unwrap();
        found
            .expect("an error")
            .map_or(vec![0; PAGE], |page| page.to_vec())
    }

    fn save(&mut self, wanted: Pages, data: Vec<Option<Contents>>) -> Result<(), String> {
        self.backing.save(wanted, data, Instant::now());
        loop {
            for event in self.wait() {
                if let Event::Saved(pages, result) = event {
                    assert_eq!(pages, wanted);
                    return result;
                }
            }
        }
    }
}

fn contents(value: u8) -> Option<Contents> {
    // One that compresses well, one that does not, and one that is all zeros.
    match value % 3 {
        0 => None,
        1 => Some(vec![value; PAGE].into()),
        _ => {
            let noise = (0..PAGE as u32).map(|at| {
                let mixed = (at + u32::from(value) * 9973).wrapping_mul(0x9e37_79b9);
                (mixed ^ (mixed >> 15))
                    .wrapping_mul(0x85eb_ca6b)
                    .to_le_bytes()[3]
            });
            Some(noise.collect::<Vec<u8>>().into())
        }
    }
}

/// Saves and loads at random against a map.
fn behaves(mut work: Work, steps: &[(u64, u8, u8)], begins: impl Fn(u64) -> Vec<u8>) {
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    for (first, count, value) in steps {
        let count = u32::from(*count).min((PAGES - first) as u32);
        let wanted = pages(*first, count);
        let data: Vec<_> = (0..count)
            .map(|at| contents(value.wrapping_add(at as u8)))
            .collect();
        for (page, data) in wanted.iter().zip(&data) {
            let bytes = data.as_ref().map_or(vec![0; PAGE], |data| data.to_vec());
            model.insert(page.0, bytes);
        }
        work.save(wanted, data).unwrap();
        let found = work.load(pages(0, PAGES as u32));
        for page in 0..PAGES {
            let found = found[&page].clone().expect("an error");
            let found = found.map_or(vec![0; PAGE], |page| page.to_vec());
            let right = model.get(&page).cloned().unwrap_or_else(|| begins(page));
            assert!(found == right, "page {page}");
        }
    }
}

fn squares(offset: u64, page: &mut [u8]) {
    for (at, word) in (offset / 8..).zip(page.chunks_exact_mut(8)) {
        word.copy_from_slice(&(at * at).to_le_bytes());
    }
}

fn squares_of(page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    squares(page * PAGE as u64, &mut bytes);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pager_gives_back_what_it_got(
        steps in prop::collection::vec((0..PAGES, 1..5_u8, any::<u8>()), 1..12)
    ) {
        let zeros = |_| vec![0; PAGE];
        behaves(Work::new(Box::new(ZeroFill::default())), &steps, zeros);
        behaves(Work::new(Box::new(Compressed::default())), &steps, zeros);
        let late = threaded(Box::new(Compressed::default())).unwrap();
        behaves(Work::new(late), &steps, zeros);
        let generated = Generated::new(squares, Writes::Kept);
        behaves(Work::new(Box::new(generated)), &steps, squares_of);
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGES * PAGE as u64).unwrap();
        let pager = threaded(Box::new(FilePager::new(file, true).unwrap())).unwrap();
        behaves(Work::new(pager), &steps, zeros);
    }
}

#[test]
fn a_store_is_a_pager() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        log: Settings::SMALLEST_LOG,
        ..Settings::default()
    };
    let store = Arc::new(Store::open(directory.path(), &settings).unwrap());
    let object = store.create(NewObject {
        name: "one".to_owned(),
        size: backed().size,
        page_size: backed().page_size,
        scheduler: SchedulerKind::Simple,
        machine: Machine::Little,
        tags: Vec::new(),
        owner: "uid:7".to_owned(),
        rights: Vec::new(),
    });
    let id = object.unwrap().id;
    let steps = [(0, 4, 1), (3, 2, 9), (15, 1, 2), (0, 4, 0)];
    let readers = Arc::new(Readers::start(store).unwrap());
    let work = Work::new(Box::new(Stored::new(readers.clone(), id)));
    behaves(work, &steps, |_| vec![0; PAGE]);
    drop(readers);
    let store = Arc::new(Store::open(directory.path(), &settings).unwrap());
    let readers = Arc::new(Readers::start(store).unwrap());
    let mut work = Work::new(Box::new(Stored::new(readers, id)));
    assert_eq!(work.page(15), contents(2).unwrap().to_vec());
}

#[test]
fn compressed_pages_take_less() {
    let mut pager = Compressed::default();
    let (control, _) = control_of(&mut pager);
    drop(control);
    let text = b"the quick brown fox ".repeat(205)[..PAGE].to_vec();
    for page in 0..PAGES {
        pager.data_write(pages(page, 1), vec![Some(text.clone().into())]);
    }
    let held = pager.held();
    assert!(held.0 * 10 < PAGES * PAGE as u64, "{held:?}");
    pager.data_write(pages(0, PAGES as u32), vec![None; PAGES as usize]);
    assert_eq!(pager.held(), Bytes::ZERO);
}

/// Starts a pager without a backing.
fn control_of(pager: &mut impl Pager) -> (Backing, ()) {
    struct Nobody(mpsc::Sender<Control>);
    impl Pager for Nobody {
        fn init(&mut self, _: &Backed, control: Control) {
            self.0.send(control).unwrap();
        }
        fn data_request(&mut self, _: Pages, _: Access) {}
        fn data_write(&mut self, _: Pages, _: Vec<Option<Contents>>) {}
    }
    let (sender, receiver) = mpsc::channel();
    let backing = Backing::new(Box::new(Nobody(sender)), backed(), Arc::new(|| ()), LONG);
    pager.init(&backed(), receiver.recv().unwrap());
    (backing, ())
}

#[test]
fn a_file_is_shown_and_written_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("numbers");
    let mut bytes: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut work = Work::new(Box::new(FilePager::new(file, true).unwrap()));
    let last = work.page(2);
    assert_eq!(last[..10_000 - 2 * PAGE], bytes[2 * PAGE..]);
    assert!(last[10_000 - 2 * PAGE..].iter().all(|byte| *byte == 0));
    assert_eq!(work.page(3), vec![0; PAGE]);
    // What lies behind the end is dropped; the file keeps its length.
    work.save(pages(2, 2), vec![Some(vec![5; PAGE].into()); 2])
        .unwrap();
    bytes[2 * PAGE..].fill(5);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);

    let file = File::open(&path).unwrap();
    let mut work = Work::new(Box::new(FilePager::new(file, false).unwrap()));
    assert_eq!(work.page(0), bytes[..PAGE]);
    assert!(work.backing.is_locked(pages(0, 1)));
    let refused = work.save(pages(0, 1), vec![None]).unwrap_err();
    assert!(refused.contains("reading only"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn what_is_generated_refuses_writes() {
    let mut work = Work::new(Box::new(Generated::new(squares, Writes::Refused)));
    let Event::Ready(attributes) = work.wait().remove(0) else {
        panic!("not ready");
    };
    assert!(!attributes.may_write);
    assert_eq!(work.page(3), squares_of(3));
    assert!(work.backing.is_locked(pages(3, 1)));
    work.backing.unlock(pages(3, 1), Instant::now());
    let [Event::Unlocked(_, Err(why))] = &work.wait()[..] else {
        panic!("it may be written to");
    };
    assert!(why.contains("nobody may write"), "{why}");
    assert!(work.save(pages(3, 1), vec![None]).is_err());
    assert_eq!(work.page(3), squares_of(3));
}

/// A pager that answers from other threads, in pieces, backwards; lets pages be written to
/// only after a while; and wants some back.
#[derive(Default)]
struct Late {
    control: Option<Control>,
    flushed: Arc<AtomicUsize>,
    gone: Arc<AtomicUsize>,
}

impl Pager for Late {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: false,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let control = self.control.clone().unwrap();
        std::thread::spawn(move || {
            for page in pages.iter().rev() {
                std::thread::sleep(Duration::from_millis(5));
                let contents = vec![page.0 as u8; PAGE].into();
                control.data_provided(Pages::one(page), vec![contents], Access::Read);
            }
        });
    }

    fn data_unlock(&mut self, pages: Pages) {
        let control = self.control.clone().unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            control.lock_request(pages, Lock::AllowWrite);
            control.lock_request(pages, Lock::Flush);
        });
    }

    fn data_write(&mut self, pages: Pages, _: Vec<Option<Contents>>) {
        // First the second half, then the first one.
        let control = self.control.as_ref().unwrap();
        for page in pages.iter().rev() {
            control.data_written(Pages::one(page), Ok(()));
        }
    }

    fn lock_completed(&mut self, pages: Pages) {
        self.flushed
            .fetch_add(pages.count as usize, Ordering::SeqCst);
    }

    fn terminate(&mut self) {
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn answers_come_late_and_in_pieces() {
    let pager = Late::default();
    let (flushed, gone) = (pager.flushed.clone(), pager.gone.clone());
    let mut work = Work::new(Box::new(pager));
    let found = work.load(pages(2, 4));
    for page in 2..6 {
        let bytes = found[&page].clone().unwrap().unwrap();
        assert!(bytes.iter().all(|byte| u64::from(*byte) == page));
    }
    assert!(work.backing.is_locked(pages(0, 3)));
    work.backing.unlock(pages(2, 1), Instant::now());
    let mut events = work.wait();
    while events.len() < 2 {
        events.extend(work.wait());
    }
    let wanted = [
        Event::Unlocked(pages(2, 1), Ok(())),
        Event::WantsBack(pages(2, 1)),
    ];
    assert_eq!(events, wanted);
    assert!(!work.backing.is_locked(pages(2, 1)));
    work.save(pages(2, 3), vec![None; 3]).unwrap();
    work.backing.flushed(pages(2, 1));
    assert_eq!(flushed.load(Ordering::SeqCst), 1);
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    drop(work);
    assert_eq!(gone.load(Ordering::SeqCst), 1);
}

/// A pager that says what nobody asked, pages that are too short, or nothing.
struct Liar(Option<Control>);

impl Pager for Liar {
    fn init(&mut self, _: &Backed, control: Control) {
        control.data_unavailable(pages(0, u32::MAX));
        control.data_written(pages(5, 1), Ok(()));
        self.0 = Some(control);
    }

    fn data_request(&mut self, wanted: Pages, access: Access) {
        let control = self.0.as_ref().unwrap();
        match wanted.first.0 {
            1 => control.data_provided(wanted, vec![vec![1; 17].into()], access),
            2 => {
                control.data_unavailable(wanted);
                control.data_provided(wanted, vec![vec![1; PAGE].into()], access);
            }
            _ => {}
        }
    }

    fn data_write(&mut self, _: Pages, _: Vec<Option<Contents>>) {}
}

#[test]
fn lies_and_silence_harm_nobody() {
    let short = Duration::from_millis(50);
    let mut backing = Backing::new(Box::new(Liar(None)), backed(), Arc::new(|| ()), short);
    let start = Instant::now();
    assert_eq!(backing.events(start), []);
    assert_eq!(backing.next_deadline(), None);
    backing.load(pages(1, 1), Access::Read, start);
    assert_eq!(backing.events(start), [Event::Loaded(pages(1, 1), None)]);
    backing.load(pages(2, 1), Access::Read, start);
    let zeros = Event::Loaded(pages(2, 1), Some(vec![None]));
    assert_eq!(backing.events(start), [zeros]);
    backing.load(pages(3, 2), Access::Read, start);
    backing.save(pages(6, 2), vec![None; 2], start);
    assert_eq!(backing.next_deadline(), Some(start + short));
    assert_eq!(backing.events(start), []);
    let late = backing.events(start + short);
    assert_eq!(
        late[..2],
        [
            Event::Loaded(pages(3, 1), None),
            Event::Loaded(pages(4, 1), None),
        ]
    );
    assert!(matches!(&late[2..], [Event::Saved(_, Err(_))]));
    assert_eq!(backing.next_deadline(), None);
}

/// A pager that answers for what it was given when it is told to.
struct Slow(mpsc::Sender<Control>);

impl Pager for Slow {
    fn init(&mut self, _: &Backed, control: Control) {
        self.0.send(control).unwrap();
    }

    fn data_request(&mut self, _: Pages, _: Access) {}

    fn data_write(&mut self, _: Pages, _: Vec<Option<Contents>>) {}
}

/// What was given up is not what a later answer is for.
#[test]
fn a_late_answer_is_not_taken_for_another() {
    let short = Duration::from_millis(50);
    let (sender, receiver) = mpsc::channel();
    let pager = Box::new(Slow(sender));
    let mut backing = Backing::new(pager, backed(), Arc::new(|| ()), short);
    let control = receiver.recv().unwrap();
    let start = Instant::now();
    let one = pages(3, 1);
    backing.save(one, vec![None], start);
    let given_up = backing.events(start + short);
    assert!(matches!(given_up[..], [Event::Saved(_, Err(_))]));
    backing.save(one, vec![None], start + short);
    control.data_written(one, Ok(()));
    assert_eq!(backing.events(start + short), []);
    control.data_written(one, Ok(()));
    assert_eq!(backing.events(start + short), [Event::Saved(one, Ok(()))]);
}

/// A pager that takes its time to terminate.
struct Lingering(Arc<AtomicUsize>);

impl Pager for Lingering {
    fn init(&mut self, _: &Backed, _: Control) {}
    fn data_request(&mut self, _: Pages, _: Access) {}
    fn data_unlock(&mut self, _: Pages) {}
    fn data_write(&mut self, _: Pages, _: Vec<Option<Contents>>) {}
    fn lock_completed(&mut self, _: Pages) {}

    fn terminate(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whoever drops a pager with a thread of its own finds it terminated, once, whether or not it was
/// told to.
#[test]
fn a_pager_with_a_thread_has_terminated_when_it_is_gone() {
    let terminated = Arc::new(AtomicUsize::new(0));
    for told in 0..2 {
        let pager = Lingering(Arc::clone(&terminated));
        let mut pager = threaded(Box::new(pager)).expect("a thread");
        if told == 1 {
            pager.terminate();
        }
        drop(pager);
        assert_eq!(terminated.load(Ordering::SeqCst), told + 1);
    }
}

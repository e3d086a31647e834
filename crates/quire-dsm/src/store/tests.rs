//! The store over a disk that crashes, fills up and is damaged, against a naive model.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use quire_core::dsm::message::{PageNumber, Pages};
use quire_core::dsm::types::Machine;
use quire_core::units::Bytes;

use super::disk::Disk;
use super::engine::Engine;
use super::shared::{Request, Shared};
use super::simulated::{Dice, Simulated};
use super::{
    Contents, Grant, NewObject, ObjectId, Page, SchedulerKind, Settings, StoreError, check,
};

mod trouble;

/// Pages in three parts, near their beginnings, so that the disk's files stay short.
const UNIVERSE: [u64; 12] = [0, 1, 2, 3, 4, 4096, 4097, 4098, 8192, 8193, 8194, 8195];

fn settings() -> Settings {
    Settings {
        log: Bytes(64 << 10),
        batch: Bytes(24 << 10),
        ..Settings::default()
    }
}

fn new_object(name: &str) -> NewObject {
    NewObject {
        name: name.to_owned(),
        size: Bytes(10_000 * 4096),
        page_size: Bytes(4096),
        scheduler: SchedulerKind::Simple,
        machine: Machine::Big,
        tags: Vec::new(),
        owner: "uid:7".to_owned(),
        rights: vec![Grant {
            who: "node-1".to_owned(),
            read: true,
            write: false,
        }],
    }
}

/// A page that shows when it is made of two.
fn filled(value: u64) -> Option<Contents> {
    (value != 0).then(|| value.to_le_bytes().repeat(512).into())
}

fn value_of(page: &Page) -> Option<u64> {
    match page {
        Page::Zero => Some(0),
        Page::Lost => None,
        Page::Held(bytes) => {
            let (words, _) = bytes.as_chunks::<8>();
            assert_eq!(bytes.len(), 4096);
            assert!(words.iter().all(|word| *word == words[0]), "a torn page");
            Some(u64::from_le_bytes(words[0]))
        }
    }
}

struct Opened {
    disk: Arc<Simulated>,
    shared: Arc<Shared>,
    engine: Engine,
}

fn open(disk: Simulated) -> Result<Opened, StoreError> {
    open_on(Arc::new(disk))
}

fn open_on(disk: Arc<Simulated>) -> Result<Opened, StoreError> {
    let (shared, engine) = Engine::open(disk.clone(), &settings(), "DIR")?;
    Ok(Opened {
        disk,
        shared,
        engine,
    })
}

impl Opened {
    fn fresh() -> (Opened, ObjectId) {
        let mut opened = open(Simulated::new()).unwrap();
        let object = opened.engine.create(new_object("one")).unwrap();
        (opened, object.id)
    }

    fn request(&self, object: ObjectId, first: u64, values: &[u64]) -> Request {
        let data: Vec<_> = values.iter().map(|value| filled(*value)).collect();
        let ticket = self.shared.note(object, first, &data);
        Request {
            ticket,
            object,
            first,
            data,
        }
    }

    fn write(&mut self, object: ObjectId, first: u64, values: &[u64]) -> Result<(), StoreError> {
        let request = self.request(object, first, values);
        self.engine.commit(&[request]).remove(0)
    }

    fn read(&self, object: ObjectId, page: u64) -> Page {
        let pages = Pages::one(PageNumber(page));
        self.shared.read(object, pages).unwrap().remove(0)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Requests that are committed together: a place in the universe, and values.
    Write(Vec<(usize, Vec<bool>)>),
    Empty,
    Free(Option<u64>),
    /// The power goes after so many operations, at the latest at the end of the next write.
    PowerCut(u64, u64),
    /// The process is killed between two operations.
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = (
        0..UNIVERSE.len(),
        prop::collection::vec(prop::bool::weighted(0.8), 1..4),
    );
    let step = prop_oneof![
        8 => prop::collection::vec(request, 1..6).prop_map(Step::Write),
        1 => Just(Step::Empty),
        1 => prop::option::weighted(0.6, 0..20_u64).prop_map(Step::Free),
        2 => (0..60_u64, any::<u64>()).prop_map(|(after, seed)| Step::PowerCut(after, seed)),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..40)
}

/// A place in a file: in the table of a part, in its contents, or anywhere.
fn start() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0..100_usize,
        1 => 32700..32768_usize,
        2 => 65536..90000_usize,
        1 => 0..200_000_usize,
    ]
}

/// What each page may hold: the last acknowledged value, and those that came after it.
struct Model {
    pages: BTreeMap<u64, Vec<u64>>,
    next: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            pages: UNIVERSE.iter().map(|page| (*page, vec![0])).collect(),
            next: 1,
        }
    }

    fn compare(&mut self, opened: &Opened, object: ObjectId) {
        for (page, allowed) in &mut self.pages {
            let found = value_of(&opened.read(object, *page));
            let found = found.expect("an undamaged page is lost");
            assert!(
                allowed.contains(&found),
                "page {page}: {found}, not {allowed:?}"
            );
            *allowed = vec![found];
        }
    }

    /// Commits, and says whether the disk still works.
    fn write(&mut self, opened: &mut Opened, object: ObjectId, wanted: &[(usize, Vec<bool>)]) {
        let mut written = Vec::new();
        let mut requests = Vec::new();
        for (place, zeros) in wanted {
            let first = UNIVERSE[*place];
            let known = (first..)
                .zip(zeros)
                .take_while(|(page, _)| UNIVERSE.contains(page));
            let values: Vec<u64> = known
                .map(|(_, written)| {
                    self.next += 1;
                    if *written { self.next } else { 0 }
                })
                .collect();
            requests.push(opened.request(object, first, &values));
            written.push((first, values));
        }
        let results = opened.engine.commit(&requests);
        for ((first, values), result) in written.into_iter().zip(results) {
            let over = self.pages[&first].iter().all(|value| *value != 0);
            if let Err(StoreError::Full(_)) = result {
                assert!(!over || values.len() > 1, "a page in use had no space");
                continue;
            }
            for (page, value) in (first..).zip(values) {
                let allowed = self.pages.get_mut(&page).unwrap();
                if result.is_ok() {
                    allowed.clear();
                }
                allowed.push(value);
            }
        }
    }
}

/// A crash in the middle of moving pages out of the log is no damage: the log has them still.
#[test]
fn what_the_log_has_is_not_damaged_in_its_place() {
    for after in 0..40 {
        let (mut opened, object) = Opened::fresh();
        let last = UNIVERSE[UNIVERSE.len() - 1];
        for value in [7, 8] {
            opened.write(object, last, &[value]).unwrap();
            opened.disk.fail_after(if value == 8 { after } else { 40 });
            let _ = opened.engine.checkpoint();
            if value == 7 {
                opened = open(opened.disk.copy()).unwrap();
            }
        }
        let report = check::look(&opened.disk.copy(), &mut || ()).unwrap();
        assert_eq!(report.damage, vec![], "after {after} operations");
        let again = open(opened.disk.copy()).unwrap();
        assert_eq!(
            value_of(&again.read(object, last)),
            Some(8),
            "after {after} operations"
        );
    }
}

/// A process is killed when a batch is in its log and not durable yet, and the power goes while the
/// next one puts that into its place: the page is as it was before, or as it was to be.
#[test]
fn what_a_killed_process_left_is_durable_before_it_is_put() {
    for after in 0..20 {
        for seed in 0..4 {
            let (mut opened, object) = Opened::fresh();
            opened.write(object, 0, &[1]).unwrap();
            opened.engine.checkpoint().unwrap();
            // The log is written, and not synced.
            opened.disk.fail_after(1);
            assert!(opened.write(object, 0, &[2]).is_err());
            let disk = Arc::new(opened.disk.copy());
            disk.fail_after(after);
            let _ = open_on(disk.clone());
            let crashed = disk.crash(seed);
            let report = check::look(&crashed, &mut || ()).unwrap();
            assert_eq!(report.damage, vec![], "after {after} operations");
            let again = open(crashed).unwrap();
            let found = value_of(&again.read(object, 0));
            assert!(matches!(found, Some(1 | 2)), "{found:?} after {after}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens: what was acknowledged is there, nothing torn is served, and what
    /// was refused for want of space changed nothing.
    #[test]
    fn what_was_acknowledged_survives(steps in steps()) {
        let (mut opened, object) = Opened::fresh();
        let mut model = Model::new();
        let mut cut = None;
        for step in steps {
            match step {
                Step::Write(wanted) => {
                    model.write(&mut opened, object, &wanted);
                    if let Some(seed) = cut.take() {
                        opened = open(opened.disk.crash(seed)).unwrap();
                    }
                    model.compare(&opened, object);
                }
                Step::Empty => {
                    let _ = opened.engine.checkpoint();
                }
                Step::Free(blocks) => opened.disk.set_free(blocks),
                Step::PowerCut(after, seed) => {
                    opened.disk.fail_after(after);
                    cut = Some(seed);
                }
                Step::Kill => {
                    cut = None;
                    opened = open(opened.disk.copy()).unwrap();
                    model.compare(&opened, object);
                }
            }
        }
        let report = check::look(&opened.disk.copy(), &mut || ()).unwrap();
        prop_assert_eq!(report.damage, vec![]);
    }

    /// A crash while a store is opened and made for the first time leaves none, or one.
    #[test]
    fn a_crash_at_any_operation_of_the_first_start(after in 0..60_u64, seed in any::<u64>()) {
        let disk = Arc::new(Simulated::new());
        disk.fail_after(after);
        let mut made = false;
        if let Ok((_, mut engine)) = Engine::open(disk.clone(), &settings(), "DIR") {
            made = engine.create(new_object("one")).is_ok();
        }
        let opened = open(disk.crash(seed)).unwrap();
        prop_assert!(!made || opened.shared.find("one").is_some());
    }

    /// Whatever is changed in whatever file: right contents, or none.
    #[test]
    fn damage_is_never_served(
        file in any::<prop::sample::Index>(),
        start in start(),
        length in prop_oneof![1..40_usize, 1..9000_usize],
        how in 0..4_u8,
        seed in any::<u64>(),
    ) {
        let (mut opened, object) = Opened::fresh();
        for (value, page) in (1..).zip(UNIVERSE) {
            opened.write(object, page, &[value]).unwrap();
        }
        opened.write(object, 2, &[0]).unwrap();
        opened.engine.checkpoint().unwrap();
        let disk = opened.disk.copy();
        let paths = disk.paths();
        let path = file.get(&paths);
        let mut changed = true;
        if how == 3 {
            disk.lose(path);
        } else {
            let mut dice = Dice(seed);
            disk.damage(path, |bytes| {
                let before = bytes.clone();
                let from = start.min(bytes.len());
                let to = (from + length).min(bytes.len());
                match how {
                    0 => bytes[from..to].fill(0),
                    1 => bytes[from..to].fill_with(|| dice.next(256) as u8),
                    // The first page's entry everywhere, as if it had been misplaced.
                    2 if from < 32768 && bytes.len() > 65536 => bytes.copy_within(..8, from / 8 * 8),
                    _ => bytes.truncate(from),
                }
                changed = *bytes != before;
            });
        }
        let report = check::look(&disk.copy(), &mut || ());
        let Ok(opened) = open(disk) else {
            return Ok(());
        };
        if opened.shared.find("one").is_none() {
            prop_assert!(path.ends_with("meta"), "{path}");
            return Ok(());
        }
        let mut lost = 0;
        for (value, page) in (1..).zip(UNIVERSE) {
            let right = if page == 2 { 0 } else { value };
            match value_of(&opened.read(object, page)) {
                None => lost += 1,
                found => prop_assert_eq!(found, Some(right), "page {} by {}", page, path),
            }
        }
        if lost > 0 {
            prop_assert!(changed);
            prop_assert!(!report.unwrap().damage.is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is changed in a log that is in use: the store is refused, pages are lost, or
    /// the last batch was never finished.
    #[test]
    fn a_damaged_log_is_never_believed(
        from in 0..60_000_usize,
        length in 1..20_000_usize,
        zeros in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let (mut opened, object) = Opened::fresh();
        for (value, page) in [(1, 0), (2, 1), (3, 9000), (4, 2)] {
            opened.write(object, page, &[value]).unwrap();
        }
        let last = opened.request(object, 3, &[5, 6]);
        opened.engine.commit(&[last]).remove(0).unwrap();
        let disk = opened.disk.copy();
        let mut dice = Dice(seed);
        disk.damage("log", |log| {
            let end = (from + length).min(log.len());
            log[from..end].fill_with(|| if zeros { 0 } else { dice.next(256) as u8 });
        });
        let report = check::look(&disk, &mut || ()).unwrap();
        let Ok(opened) = open(disk) else {
            prop_assert!(!report.damage.is_empty());
            return Ok(());
        };
        // Each value's page, and where its batch ends; the last one begins at 40960.
        let written = [
            (1, 0, 16384),
            (2, 1, 24576),
            (3, 9000, 32768),
            (4, 2, 40960),
            (5, 3, 53248),
            (6, 4, 53248),
        ];
        for (value, page, end) in written {
            let found = value_of(&opened.read(object, page));
            // Where the damage reaches into the last batch, nothing tells that anything
            // followed.
            let unfinished = found == Some(0) && from + length > 40960 && from < end;
            prop_assert!(found == Some(value) || found.is_none() || unfinished, "{page}");
        }
    }
}

/// Each block of a log that is in use, damaged: the store is refused, a page is lost, or
/// the last batch was never finished, as far as anybody can tell.
#[test]
fn each_block_of_the_log_is_guarded() {
    let (mut opened, object) = Opened::fresh();
    for (value, page) in [(1, 0), (2, 1), (3, 0), (4, 9000)] {
        opened.write(object, page, &[value]).unwrap();
    }
    let written = [(0, 3), (1, 2), (9000, 4)];
    let mut outcomes = BTreeMap::new();
    for block in 0..16_usize {
        let disk = opened.disk.copy();
        disk.damage("log", |log| log[block * 4096 + 20] ^= 0x40);
        let report = check::look(&disk, &mut || ()).unwrap();
        let Ok(damaged) = open(disk) else {
            assert!(!report.damage.is_empty());
            *outcomes.entry("refused").or_insert(0) += 1;
            continue;
        };
        let wrong: Vec<_> = written
            .iter()
            .filter(|(page, value)| value_of(&damaged.read(object, *page)) != Some(*value))
            .map(|(page, _)| (*page, damaged.read(object, *page)))
            .collect();
        let outcome = match &wrong[..] {
            [] => "nothing",
            [(_, Page::Lost)] => {
                assert!(!report.damage.is_empty());
                "lost"
            }
            [(9000, Page::Zero)] => {
                assert!(report.torn.is_some());
                "unfinished"
            }
            other => panic!("{other:?}"),
        };
        *outcomes.entry(outcome).or_insert(0) += 1;
    }
    // Two beginnings and six blocks without batches; the headers and the contents of three
    // batches, of which one page was written over; and the last batch.
    let expected = [
        ("lost", 2),
        ("nothing", 2 + 6 + 1),
        ("refused", 3),
        ("unfinished", 2),
    ];
    assert_eq!(outcomes, BTreeMap::from(expected));
}

/// A page of a client that looks like a batch is a page, also where the log's next
/// generation ends just before it.
#[test]
fn contents_cannot_pass_for_a_batch() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 1, &[1]).unwrap();
    opened.write(object, 0, &[0]).unwrap();
    // The second batch of a generation: page 0 is all zeros.
    let mut forged = vec![0; 4096];
    opened.disk.read_at("log", 16384, &mut forged).unwrap();
    assert!(forged.starts_with(b"QUIREBAT"));
    opened.engine.checkpoint().unwrap();

    let data = vec![Some(Contents::from(forged.clone()))];
    let ticket = opened.shared.note(object, 3, &data);
    let request = Request {
        ticket,
        object,
        first: 3,
        data,
    };
    opened.engine.commit(&[request]).remove(0).unwrap();
    opened.write(object, 0, &[7]).unwrap();
    opened.engine.checkpoint().unwrap();

    // One block, so that the page of the generation before follows.
    opened.write(object, 4, &[0]).unwrap();
    let mut next = vec![0; 4096];
    opened.disk.read_at("log", 12288, &mut next).unwrap();
    assert_eq!(next, forged);
    let opened = open(opened.disk.copy()).unwrap();
    assert_eq!(value_of(&opened.read(object, 0)), Some(7));
}

/// After a sync that failed, another one would tell lies: nothing more is acknowledged.
#[test]
fn a_failed_sync_stops_all_writing() {
    for part in [false, true] {
        let (mut opened, object) = Opened::fresh();
        opened.write(object, 0, &[1]).unwrap();
        if part {
            let file = format!("objects/{object}/00000000.pages");
            opened.disk.fail_sync_of(&file);
            assert!(opened.engine.checkpoint().is_err());
        } else {
            opened.disk.fail_sync_of("log");
            let refused = opened.write(object, 0, &[2]).unwrap_err();
            assert!(
                refused.to_string().contains("a sector is gone"),
                "{refused}"
            );
        }
        let refused = opened.write(object, 1, &[3]);
        assert!(matches!(refused, Err(StoreError::Failed(_))));
        assert!(opened.engine.checkpoint().is_err());
        assert_eq!(value_of(&opened.read(object, 0)), Some(1));
        for seed in 0..20 {
            let opened = open(opened.disk.crash(seed)).unwrap();
            let found = value_of(&opened.read(object, 0));
            assert!(found == Some(1) || (!part && found == Some(2)), "{found:?}");
        }
    }
}

#[test]
fn pages_across_two_parts() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 4094, &[1, 2, 3, 4]).unwrap();
    opened.engine.checkpoint().unwrap();
    let opened = open(opened.disk.crash(1)).unwrap();
    for (value, page) in (1..5).zip(4094..) {
        assert_eq!(value_of(&opened.read(object, page)), Some(value));
    }
}

#[test]
fn zero_pages_take_no_space() {
    let (mut opened, object) = Opened::fresh();
    for page in 0..20 {
        opened.write(object, page, &[9]).unwrap();
    }
    opened.engine.checkpoint().unwrap();
    let full = opened.disk.used();
    for page in 0..20 {
        opened.write(object, page, &[0]).unwrap();
    }
    opened.engine.checkpoint().unwrap();
    assert_eq!(opened.disk.used(), full - 20);
    opened.write(object, 9500, &[0]).unwrap();
    opened.engine.checkpoint().unwrap();
    assert_eq!(opened.disk.used(), full - 20);
}

/// Zeros of a page wait in the log, and the disk is full, when the page gets contents again:
/// the log is emptied for them, and must not give away the place that they were promised.
#[test]
fn a_promised_place_is_kept() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 0, &[1]).unwrap();
    opened.engine.checkpoint().unwrap();
    for page in 1..7 {
        opened.write(object, page, &[page]).unwrap();
    }
    opened.write(object, 0, &[0]).unwrap();
    opened.disk.set_free(Some(0));
    // Two blocks go into a log that has one left.
    opened.write(object, 0, &[2]).unwrap();
    opened.disk.set_free(Some(0));
    opened.engine.checkpoint().unwrap();
    assert_eq!(value_of(&opened.read(object, 0)), Some(2));
}

#[test]
fn a_lost_page_is_good_again_when_it_is_written() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 5, &[1]).unwrap();
    opened.engine.checkpoint().unwrap();
    let path = format!("objects/{object}/00000000.pages");
    let disk = opened.disk.copy();
    disk.damage(&path, |bytes| bytes[(64 << 10) + 5 * 4096] ^= 1);
    let mut opened = open(disk).unwrap();
    assert_eq!(opened.read(object, 5), Page::Lost);
    opened.write(object, 5, &[2]).unwrap();
    opened.engine.checkpoint().unwrap();
    let opened = open(opened.disk.copy()).unwrap();
    assert_eq!(value_of(&opened.read(object, 5)), Some(2));
}

#[test]
fn a_missing_part_loses_its_pages_only() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 0, &[1]).unwrap();
    opened.write(object, 5000, &[2]).unwrap();
    opened.engine.checkpoint().unwrap();
    let disk = opened.disk.copy();
    disk.lose(&format!("objects/{object}/00000001.pages"));
    let mut opened = open(disk).unwrap();
    assert_eq!(value_of(&opened.read(object, 0)), Some(1));
    assert_eq!(opened.read(object, 5000), Page::Lost);
    assert_eq!(opened.read(object, 5001), Page::Lost);
    opened.write(object, 5001, &[3]).unwrap();
    opened.engine.checkpoint().unwrap();
    let opened = open(opened.disk.crash(1)).unwrap();
    assert_eq!(opened.read(object, 5000), Page::Lost);
    assert_eq!(value_of(&opened.read(object, 5001)), Some(3));
}

#[test]
fn objects_come_and_go() {
    let (mut opened, object) = Opened::fresh();
    opened.write(object, 0, &[1]).unwrap();
    let again = opened.engine.create(new_object("one"));
    assert_eq!(again.unwrap_err(), StoreError::Exists("one".to_owned()));
    let mut other = new_object("two");
    other.tags.push(super::Tagged {
        start: quire_core::units::ObjectOffset(0),
        length: Bytes(64),
        tag: "float64".to_owned(),
    });
    let changed = opened.engine.change(object, other.clone()).unwrap();
    assert_eq!(changed.is, other);
    let mut opened = open(opened.disk.crash(3)).unwrap();
    assert!(opened.shared.find("one").is_none());
    assert_eq!(opened.shared.find("two").unwrap().is, other);
    opened.engine.remove(object).unwrap();
    assert!(opened.shared.objects().is_empty());
    let opened = open(opened.disk.crash(4)).unwrap();
    assert!(opened.shared.objects().is_empty());
    assert_eq!(opened.disk.list("objects").unwrap(), Vec::<String>::new());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (mut opened, object) = Opened::fresh();
    assert!(matches!(
        opened.write(object, 9999, &[1, 2]),
        Err(StoreError::Invalid(_))
    ));
    let short = Request {
        ticket: 0,
        object,
        first: 0,
        data: vec![Some(vec![1; 100].into())],
    };
    let result = opened.engine.commit(&[short]).remove(0);
    assert!(matches!(result, Err(StoreError::Invalid(_))));
    let nobody = opened.write(ObjectId(7), 0, &[1]);
    assert!(matches!(nobody, Err(StoreError::NoObject(_))));
    for (name, size, page) in [
        ("", 4096, 4096),
        ("a/b", 1, 4096),
        ("a", 0, 4096),
        ("a", 1, 12288),
    ] {
        let wrong = NewObject {
            size: Bytes(size),
            page_size: Bytes(page),
            ..new_object(name)
        };
        let result = opened.engine.create(wrong);
        assert!(matches!(result, Err(StoreError::Invalid(_))));
    }
}

#[test]
fn another_format_and_another_directory_are_refused() {
    let (opened, _) = Opened::fresh();
    let disk = opened.disk.copy();
    disk.damage("format", |bytes| *bytes = b"quire-store 2\n".to_vec());
    assert!(matches!(
        open(disk),
        Err(StoreError::Newer { found: 2, .. })
    ));
    let disk = opened.disk.copy();
    disk.lose("format");
    assert!(matches!(open(disk), Err(StoreError::Damaged { .. })));
    let disk = Simulated::new();
    disk.create("letters").unwrap();
    assert!(matches!(open(disk), Err(StoreError::Foreign { .. })));
}

#[test]
fn small_things_are_kept() {
    let (opened, _) = Opened::fresh();
    assert_eq!(opened.shared.kept::<u32>("count").unwrap(), None);
    opened.shared.keep("count", &7_u32).unwrap();
    opened.shared.keep("count", &8_u32).unwrap();
    let disk = opened.disk.crash(9);
    let opened = open(disk.copy()).unwrap();
    assert_eq!(opened.shared.kept::<u32>("count").unwrap(), Some(8));
    disk.damage("kept/count", |bytes| bytes[12] ^= 1);
    let report = check::look(&disk, &mut || ()).unwrap();
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    assert_eq!(report.damage[0].file, "kept/count");
    let opened = open(disk).unwrap();
    assert!(opened.shared.kept::<u32>("count").is_err());
}

//! Against a naive model: a list of all that was given back, and a pager that keeps the
//! latest contents that it was told of.

use proptest::prelude::*;

use super::*;

const PAGES: u64 = 4;

/// What happens.
#[derive(Clone, Debug)]
enum Step {
    /// Pages are given back.
    Give(u64, u32),
    /// The pager answers for the first, second, ... of what it has: well or not.
    Answer(usize, bool),
    Retry,
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..PAGES, 1..4_u32).prop_map(|(first, count)| Step::Give(first, count)),
        6 => (0..4_usize, prop::bool::weighted(0.8)).prop_map(|(at, well)| Step::Answer(at, well)),
        1 => Just(Step::Retry),
        2 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

fn contents(number: u64) -> Option<Contents> {
    Some(number.to_le_bytes().to_vec().into())
}

fn number(contents: &Option<Contents>) -> u64 {
    let bytes = contents.as_deref().expect("contents");
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// What was given back, and what the pager has made of it.
#[derive(Default)]
struct Model {
    /// The number of what was given back last of each page.
    latest: [u64; PAGES as usize],
    /// What of that the pager has kept.
    kept: [u64; PAGES as usize],
    with_pager: Vec<Save>,
    clock: u64,
    /// Who waits: what must be kept for that.
    waiting: Vec<[u64; PAGES as usize]>,
}

impl Model {
    fn take(&mut self, saves: Vec<Save>) {
        for (pages, data) in saves {
            assert_eq!(pages.count as usize, data.len());
            for page in pages.iter() {
                let twice = self.with_pager.iter().any(|(had, _)| had.contains(page));
                assert!(!twice, "page {} is with the pager already", page.0);
            }
            self.with_pager.push((pages, data));
        }
    }

    fn step(&mut self, saves: &mut Saves<usize>, step: Step) {
        match step {
            Step::Give(first, count) => {
                let count = count.min((PAGES - first) as u32);
                let pages = Pages {
                    first: PageNumber(first),
                    count,
                };
                self.clock += 1;
                for page in pages.iter() {
                    self.latest[page.0 as usize] = self.clock;
                }
                let data = vec![contents(self.clock); count as usize];
                let given = saves.given(pages, data);
                self.take(given);
            }
            Step::Answer(at, well) if at < self.with_pager.len() => {
                let (pages, data) = self.with_pager.remove(at);
                let result = if well { Ok(()) } else { Err("no".to_owned()) };
                if well {
                    for (page, contents) in pages.iter().zip(&data) {
                        self.kept[page.0 as usize] = number(contents);
                    }
                }
                let next = saves.answered(pages, &result);
                self.take(next);
            }
            Step::Answer(..) => {}
            Step::Retry => {
                let again = saves.retry();
                self.take(again);
            }
            Step::Wait => {
                saves.wait(self.waiting.len());
                self.waiting.push(self.latest);
            }
        }
        for (who, result) in saves.ended() {
            let wanted = self.waiting[who];
            let lacking = (0..PAGES as usize).find(|page| self.kept[*page] < wanted[*page]);
            match result {
                Ok(()) => assert_eq!(lacking, None, "told too early"),
                Err((page, why)) => {
                    assert!(!why.is_empty());
                    assert!(self.kept[page.0 as usize] < self.latest[page.0 as usize]);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_told_too_early_and_nothing_is_forgotten(steps in steps()) {
        let mut saves = Saves::default();
        let mut model = Model::default();
        for step in steps {
            model.step(&mut saves, step);
        }
        // From here on the pager keeps everything: all ends well.
        model.step(&mut saves, Step::Wait);
        let last = model.waiting.len() - 1;
        for _ in 0..200 {
            model.step(&mut saves, Step::Retry);
            model.step(&mut saves, Step::Answer(0, true));
        }
        prop_assert!(saves.is_idle());
        prop_assert_eq!(saves.failed(), 0);
        prop_assert_eq!(model.kept, model.latest);
        prop_assert!(saves.waiting.is_empty(), "{} waits for ever", last);
        prop_assert!(saves.by_age.is_empty());
    }
}

#[test]
fn a_page_that_wanders_is_kept_once_at_a_time() {
    let mut saves: Saves<()> = Saves::default();
    let page = Pages::one(PageNumber(3));
    let mut with_pager = saves.given(page, vec![contents(1)]);
    for turn in 2..1000 {
        assert!(saves.given(page, vec![contents(turn)]).is_empty());
    }
    assert_eq!(with_pager.len(), 1);
    with_pager = saves.answered(page, &Ok(()));
    assert_eq!(number(&with_pager[0].1[0]), 999);
    assert!(!saves.is_safe(page.first));
    assert!(saves.answered(page, &Ok(())).is_empty());
    assert!(saves.is_safe(page.first));
}

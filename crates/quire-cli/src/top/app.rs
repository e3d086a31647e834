//! What `quire top` knows, without a terminal: the processes, which of them is
//! chosen, how they are sorted, and what a key does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use quire_core::config::Policy;
use quire_core::control::Change;
use quire_core::stat::{ProcessStat, RegionStat};
use quire_core::units::VirtAddr;
use quire_linux::sysinfo::MemInfo;

use super::columns::Column;
use super::rates::Rates;
use super::sample::Sample;
use crate::stat::machine::Machine;
use crate::stat::objects::SharedObject;

/// How many looks back the number of superpages is kept.
const HISTORY: usize = 120;
/// The intervals that the keys choose from, in milliseconds.
const INTERVALS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// What names a process for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessKey {
    /// Its number.
    pub pid: u32,
    /// Its start time in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessKey {
    /// The name of a process.
    pub fn of(stat: &ProcessStat) -> ProcessKey {
        ProcessKey {
            pid: stat.pid,
            start_time: stat.start_time,
        }
    }
}

/// A process.
#[derive(Clone, Debug)]
pub struct Row {
    /// What its page says.
    pub stat: ProcessStat,
    /// How often things happened since the look before, if there was one.
    pub rates: Option<Rates>,
    /// Superpages at the last looks, the latest at the end.
    pub history: VecDeque<u64>,
}

impl Row {
    fn new(stat: ProcessStat) -> Row {
        let history = VecDeque::from([stat.totals.superpages]);
        Row {
            stat,
            rates: None,
            history,
        }
    }

    fn then(mut self, stat: ProcessStat, elapsed: Duration) -> Row {
        self.rates = Rates::between(&self.stat.totals, &stat.totals, elapsed);
        self.history.push_back(stat.totals.superpages);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.stat = stat;
        self
    }
}

/// What the keys act upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The table of processes.
    #[default]
    Processes,
    /// The regions of the chosen process.
    Regions,
    /// The line in which a filter is typed.
    Filter,
    /// The window in which a policy is chosen: its place in the list.
    Policy(usize),
    /// The window that explains the keys.
    Help,
}

/// What is to be done after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but drawing.
    None,
    /// End.
    Quit,
    /// Stop, as Ctrl-Z does.
    Suspend,
    /// Look anew.
    Look,
    /// Ask a process for a change.
    Ask(ProcessKey, Change),
}

/// A line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What happened.
    pub text: String,
    /// Whether it went wrong.
    pub is_error: bool,
}

/// Everything that the screen shows.
#[derive(Debug)]
pub struct App {
    /// The processes, in the order of the table.
    rows: Vec<Row>,
    /// Objects of servers that the processes have.
    pub objects: Vec<SharedObject>,
    /// Free blocks and memory pressure.
    pub machine: Machine,
    /// The machine's memory.
    pub memory: Option<MemInfo>,
    /// The column by which the table is sorted.
    pub sort: Column,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// Only commands that hold this text are shown.
    pub filter: String,
    /// What the keys act upon.
    pub mode: Mode,
    /// No further looks are taken.
    pub paused: bool,
    /// Time between two looks.
    pub interval: Duration,
    /// What there is to say.
    pub notice: Option<Notice>,
    chosen: Option<ProcessKey>,
    chosen_region: Option<VirtAddr>,
    looked: Option<Instant>,
}

impl App {
    /// Nothing seen yet.
    pub fn new(interval: Duration) -> App {
        App {
            rows: Vec::new(),
            objects: Vec::new(),
            machine: Machine::default(),
            memory: None,
            sort: Column::Superpages,
            reversed: false,
            filter: String::new(),
            mode: Mode::default(),
            paused: false,
            interval,
            notice: None,
            chosen: None,
            chosen_region: None,
            looked: None,
        }
    }

    /// Takes in a look. Processes that are gone are forgotten.
    pub fn update(&mut self, sample: Sample) {
        let elapsed = self.looked.map(|before| sample.at - before);
        let place = self.place();
        let mut known = std::mem::take(&mut self.rows);
        let row = |stat: ProcessStat| {
            let key = ProcessKey::of(&stat);
            let before = known.iter().position(|r| ProcessKey::of(&r.stat) == key);
            match (before, elapsed) {
                (Some(at), Some(elapsed)) => known.swap_remove(at).then(stat, elapsed),
                _ => Row::new(stat),
            }
        };
        self.rows = sample.processes.into_iter().map(row).collect();
        self.objects = sample.objects;
        self.machine = sample.machine;
        self.memory = sample.memory;
        self.looked = Some(sample.at);
        self.arrange();
        self.settle(place);
    }

    fn arrange(&mut self) {
        let (sort, reversed) = (self.sort, self.reversed);
        self.rows.sort_by(|a, b| {
            let order = sort.order(a, b);
            if reversed { order.reverse() } else { order }
        });
    }

    /// The processes that are shown, in order.
    pub fn visible(&self) -> Vec<&Row> {
        let wanted = self.filter.to_lowercase();
        let shown = |row: &&Row| row.stat.comm.to_lowercase().contains(&wanted);
        self.rows.iter().filter(shown).collect()
    }

    /// All processes.
    pub fn all(&self) -> &[Row] {
        &self.rows
    }

    /// The place of the chosen process among those that are shown.
    pub fn place(&self) -> Option<usize> {
        let chosen = self.chosen?;
        let visible = self.visible();
        let mut keys = visible.iter().map(|row| ProcessKey::of(&row.stat));
        keys.position(|key| key == chosen)
    }

    /// The chosen process.
    pub fn chosen(&self) -> Option<&Row> {
        self.visible().get(self.place()?).copied()
    }

    /// The place of the chosen region in its process.
    pub fn region_place(&self) -> usize {
        let regions = self.chosen().map_or(&[][..], |row| &row.stat.regions);
        let mut starts = regions.iter().map(|region| region.range.start);
        self.chosen_region
            .and_then(|chosen| starts.position(|start| start == chosen))
            .unwrap_or_else(|| largest(regions))
    }

    /// The chosen region.
    pub fn region(&self) -> Option<&RegionStat> {
        self.chosen()?.stat.regions.get(self.region_place())
    }

    /// Chooses a process that is there: the one that was chosen, or else the
    /// one in its place.
    fn settle(&mut self, place: Option<usize>) {
        if self.place().is_none() {
            let visible = self.visible();
            let last = visible.len().checked_sub(1);
            let place = last.map(|last| place.unwrap_or(0).min(last));
            self.chosen = place.map(|place| ProcessKey::of(&visible[place].stat));
            self.chosen_region = None;
            if self.mode == Mode::Regions {
                self.mode = Mode::Processes;
            }
        }
    }

    /// Goes up or down in the table or the regions.
    pub fn go(&mut self, by: isize) {
        let to = |place: usize, len: usize| {
            let last = len.saturating_sub(1);
            place.saturating_add_signed(by).min(last)
        };
        if self.mode == Mode::Regions {
            let place = self.region_place();
            let regions = self.chosen().map_or(&[][..], |row| &row.stat.regions);
            let region = regions.get(to(place, regions.len()));
            self.chosen_region = region.map(|region| region.range.start);
            return;
        }
        let visible = self.visible();
        let place = to(self.place().unwrap_or(0), visible.len());
        self.chosen = visible.get(place).map(|row| ProcessKey::of(&row.stat));
        self.chosen_region = None;
    }

    /// Sorts by the column `by` places to the right.
    pub fn shift_sort(&mut self, by: isize) {
        self.sort = self.sort.shifted(by);
        self.arrange();
    }

    /// Turns the order round.
    pub fn reverse(&mut self) {
        self.reversed = !self.reversed;
        self.arrange();
    }

    /// Shows only commands that hold a text.
    pub fn set_filter(&mut self, filter: String) {
        let place = self.place();
        self.filter = filter;
        self.settle(place);
    }

    /// Goes between the processes and the regions of the chosen one.
    pub fn switch_table(&mut self) {
        let has_regions = self.chosen().is_some_and(|r| !r.stat.regions.is_empty());
        self.mode = match self.mode {
            Mode::Processes if has_regions => Mode::Regions,
            _ => Mode::Processes,
        };
    }

    /// Opens the window of policies at the present one.
    pub fn open_policies(&mut self) {
        if let Some(row) = self.chosen() {
            let present = row.stat.policy;
            let place = Policy::ALL.iter().position(|policy| *policy == present);
            self.mode = Mode::Policy(place.unwrap_or(0));
        }
    }

    /// The next longer interval, or the next shorter one.
    pub fn change_interval(&mut self, longer: bool) {
        let mut known = INTERVALS.map(Duration::from_millis).into_iter();
        let next = if longer {
            known.find(|interval| *interval > self.interval)
        } else {
            known.rfind(|interval| *interval < self.interval)
        };
        self.interval = next.unwrap_or(self.interval);
    }

    /// Asks the chosen process for a change.
    pub fn ask(&self, change: impl FnOnce(&ProcessStat) -> Change) -> Action {
        match self.chosen() {
            Some(row) => Action::Ask(ProcessKey::of(&row.stat), change(&row.stat)),
            None => Action::None,
        }
    }

    /// Says something.
    pub fn say(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.notice = Some(Notice {
            text,
            is_error: false,
        });
    }

    /// Says what went wrong.
    pub fn complain(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.notice = Some(Notice {
            text,
            is_error: true,
        });
    }
}

/// The place of the region with the most address space.
fn largest(regions: &[RegionStat]) -> usize {
    let places = 0..regions.len();
    // Of equals the first.
    places
        .rev()
        .max_by_key(|place| regions[*place].mapped_bytes)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{app, process, sample};
    use super::*;

    fn pids(app: &App) -> Vec<u32> {
        app.visible().iter().map(|row| row.stat.pid).collect()
    }

    fn superpages(pid: u32, start_time: u64, superpages: u64) -> ProcessStat {
        let mut stat = process(pid, "name");
        stat.start_time = start_time;
        stat.totals.superpages = superpages;
        stat
    }

    #[test]
    fn the_table_is_sorted() {
        let mut app = app([
            superpages(1, 0, 5),
            superpages(2, 0, 9),
            superpages(3, 0, 9),
        ]);
        assert_eq!(pids(&app), [2, 3, 1]);
        app.reverse();
        assert_eq!(pids(&app), [1, 3, 2]);
        app.reverse();
        app.sort = Column::Failures;
        app.shift_sort(1);
        assert_eq!((app.sort, pids(&app)), (Column::Pid, vec![1, 2, 3]));
    }

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let mut app = app([superpages(1, 10, 5)]);
        let next = |start, promotions| {
            let mut stat = superpages(1, start, 6);
            stat.totals.promotions = promotions;
            stat
        };
        app.update(sample(2, [next(10, 8)]));
        let rates = app.chosen().unwrap().rates.unwrap();
        assert_eq!(rates.promotions, 4.0);
        assert_eq!(app.chosen().unwrap().history, [5, 6]);
        app.update(sample(3, [next(11, 9)]));
        let row = app.chosen().unwrap();
        assert_eq!((row.rates, row.history.len()), (None, 1));
    }

    #[test]
    fn what_vanishes_gives_its_place_to_the_next() {
        let all = || [process(1, "a"), process(2, "b"), process(3, "c")];
        let mut app = app(all());
        app.go(1);
        assert_eq!(app.chosen().unwrap().stat.pid, 2);
        app.update(sample(1, [process(1, "a"), process(3, "c")]));
        assert_eq!(app.chosen().unwrap().stat.pid, 3);
        app.update(sample(2, [process(1, "a")]));
        assert_eq!(app.chosen().unwrap().stat.pid, 1);
        app.update(sample(3, []));
        assert!(app.chosen().is_none() && app.region().is_none());
        app.go(1);
        app.switch_table();
        app.open_policies();
        assert_eq!(app.mode, Mode::Processes);
        app.update(sample(4, all()));
        assert_eq!(app.chosen().unwrap().stat.pid, 1);
    }

    #[test]
    fn the_choice_follows_the_process_when_it_is_sorted_anew() {
        let mut app = app([superpages(1, 0, 5), superpages(2, 0, 9)]);
        app.go(1);
        assert_eq!((app.chosen().unwrap().stat.pid, app.place()), (1, Some(1)));
        app.reverse();
        assert_eq!((app.chosen().unwrap().stat.pid, app.place()), (1, Some(0)));
    }

    #[test]
    fn a_filter_hides_the_rest() {
        let mut app = app([process(1, "redis"), process(2, "Python3")]);
        app.set_filter("pyth".to_owned());
        assert_eq!(pids(&app), [2]);
        assert_eq!(app.chosen().unwrap().stat.pid, 2);
        app.set_filter("none such".to_owned());
        assert!(app.chosen().is_none());
    }

    #[test]
    fn the_largest_region_is_chosen_first() {
        let mut app = app([process(1, "a")]);
        assert_eq!(app.region_place(), 1);
        app.switch_table();
        app.go(-1);
        assert_eq!(app.region_place(), 0);
        app.go(-1);
        assert_eq!(app.region_place(), 0);
        app.go(100);
        assert_eq!(app.region_place(), 1);
    }

    #[test]
    fn intervals_have_bounds() {
        let mut app = App::new(Duration::from_millis(300));
        app.change_interval(true);
        assert_eq!(app.interval, Duration::from_millis(500));
        (0..20).for_each(|_| app.change_interval(true));
        assert_eq!(app.interval, Duration::from_secs(60));
        (0..20).for_each(|_| app.change_interval(false));
        assert_eq!(app.interval, Duration::from_millis(100));
    }

    #[test]
    fn the_history_is_bounded() {
        let mut app = app([process(1, "a")]);
        for second in 1..300 {
            app.update(sample(second, [process(1, "a")]));
        }
        assert_eq!(app.chosen().unwrap().history.len(), HISTORY);
    }
}

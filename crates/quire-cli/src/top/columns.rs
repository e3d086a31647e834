//! The columns of the table of processes: what they show, and how they sort.

use std::cmp::Ordering;

use quire_core::units::{BASE_PAGE, Bytes};

use super::app::Row;
use super::rates::{Rates, rate_text};
use crate::stat::printable;

/// A column, by which the table can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Process number.
    Pid,
    /// Command name.
    Command,
    /// Policy.
    Policy,
    /// Whether its own mappings begin on a superpage boundary.
    Align,
    /// Managed address space.
    Mapped,
    /// What the program has populated.
    Populated,
    /// What is reserved and not populated.
    Reserved,
    /// Superpages mapped.
    Superpages,
    /// Promotions per second.
    Promotions,
    /// Demotions per second.
    Demotions,
    /// Preemptions per second.
    Preemptions,
    /// Failed reservations per second.
    Failures,
}

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Column; 12] = [
        Column::Pid,
        Column::Command,
        Column::Policy,
        Column::Align,
        Column::Mapped,
        Column::Populated,
        Column::Reserved,
        Column::Superpages,
        Column::Promotions,
        Column::Demotions,
        Column::Preemptions,
        Column::Failures,
    ];
    /// How many of them are text, and so begin at the left edge.
    pub const TEXT: usize = 4;

    /// Its place from the left.
    pub fn index(self) -> usize {
        Column::ALL.iter().position(|c| *c == self).unwrap_or(0)
    }

    /// The column `by` places to the right, round and round.
    pub fn shifted(self, by: isize) -> Column {
        let len = Column::ALL.len() as isize;
        Column::ALL[(self.index() as isize + by).rem_euclid(len) as usize]
    }

    /// What stands above it.
    pub fn title(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::Command => "COMMAND",
            Column::Policy => "POLICY",
            Column::Align => "ALIGN",
            Column::Mapped => "MAPPED",
            Column::Populated => "POPUL",
            Column::Reserved => "RESERV",
            Column::Superpages => "SUPER",
            Column::Promotions => "PROM/s",
            Column::Demotions => "DEM/s",
            Column::Preemptions => "PREE/s",
            Column::Failures => "FAIL/s",
        }
    }

    /// What it shows of a process.
    pub fn text(self, row: &Row) -> String {
        let rate = |rate: fn(&Rates) -> f64| match &row.rates {
            Some(rates) => rate_text(rate(rates)),
            None => "-".to_owned(),
        };
        let (stat, totals) = (&row.stat, &row.stat.totals);
        match self {
            Column::Pid => stat.pid.to_string(),
            Column::Command => printable(&stat.comm),
            Column::Policy => stat.policy.to_string(),
            Column::Align => if stat.align { "on" } else { "off" }.to_owned(),
            Column::Mapped => size(Bytes(totals.mapped_bytes)),
            Column::Populated => size(Bytes(totals.populated_bytes)),
            Column::Reserved => size(Bytes(totals.reserved_bytes)),
            Column::Superpages => totals.superpages.to_string(),
            Column::Promotions => rate(|r| r.promotions),
            Column::Demotions => rate(|r| r.demotions),
            Column::Preemptions => rate(|r| r.preemptions),
            Column::Failures => rate(|r| r.failures),
        }
    }

    /// The order of two processes by this column: names from A, numbers from
    /// the largest down. Equals are ordered by process number.
    pub fn order(self, a: &Row, b: &Row) -> Ordering {
        let totals = |row: &Row| row.stat.totals;
        let rates = |row: &Row| row.rates.unwrap_or_default();
        let by = match self {
            Column::Pid => Ordering::Equal,
            Column::Command => a.stat.comm.cmp(&b.stat.comm),
            Column::Policy => a.stat.policy.name().cmp(b.stat.policy.name()),
            Column::Align => b.stat.align.cmp(&a.stat.align),
            Column::Mapped => totals(b).mapped_bytes.cmp(&totals(a).mapped_bytes),
            Column::Populated => totals(b).populated_bytes.cmp(&totals(a).populated_bytes),
            Column::Reserved => totals(b).reserved_bytes.cmp(&totals(a).reserved_bytes),
            Column::Superpages => totals(b).superpages.cmp(&totals(a).superpages),
            Column::Promotions => rates(b).promotions.total_cmp(&rates(a).promotions),
            Column::Demotions => rates(b).demotions.total_cmp(&rates(a).demotions),
            Column::Preemptions => rates(b).preemptions.total_cmp(&rates(a).preemptions),
            Column::Failures => rates(b).failures.total_cmp(&rates(a).failures),
        };
        by.then(a.stat.pid.cmp(&b.stat.pid))
    }
}

/// A size in at most five characters below 1 PiB.
pub fn size(bytes: Bytes) -> String {
    const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];
    if bytes.0 < BASE_PAGE {
        return bytes.0.to_string();
    }
    let mut value = bytes.0 as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value < 99.95 && value.fract() != 0.0 {
        format!("{value:.1}{}", UNITS[unit])
    } else {
        format!("{value:.0}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 4096, 2 << 20, 1_300_000_000, (1 << 40) - 1, 150 << 20];
        assert_eq!(
            sizes.map(|n| size(Bytes(n))),
            ["0", "4K", "2M", "1.2G", "1.0T", "150M"]
        );
    }

    #[test]
    fn columns_go_round() {
        assert_eq!(Column::Pid.shifted(-1), Column::Failures);
        assert_eq!(Column::Failures.shifted(1), Column::Pid);
        assert_eq!(Column::ALL[Column::Policy.index()], Column::Policy);
    }
}

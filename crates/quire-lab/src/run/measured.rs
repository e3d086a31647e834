//! The measurements of an execution, by metric.
//!
//! A map would take half a KiB for each execution, however few metrics it has: results of many
//! executions would need twice the memory of their measurements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

/// Measurements by metric, in the order of the metrics' names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<String, Vec<f64>>")]
pub struct Measured(Vec<(String, Vec<f64>)>);

impl Measured {
    fn place(&self, metric: &str) -> Result<usize, usize> {
        self.0
            .binary_search_by(|(name, _)| name.as_str().cmp(metric))
    }

    /// The measurements of a metric, in their order.
    #[must_use]
    pub fn get(&self, metric: &str) -> Option<&Vec<f64>> {
        self.place(metric).ok().map(|place| &self.0[place].1)
    }

    /// The same, to be added to; none are there of a metric that is new.
    pub fn of(&mut self, metric: &str) -> &mut Vec<f64> {
        let place = self.place(metric).unwrap_or_else(|place| {
            self.0.insert(place, (metric.to_owned(), Vec::new()));
            place
        });
        &mut self.0[place].1
    }

    /// Each metric with its measurements.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Vec<f64>)> {
        self.0.iter().map(|(name, values)| (name, values))
    }

    /// The measurements of each metric.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Vec<f64>> {
        self.0.iter_mut().map(|(_, values)| values)
    }
}

impl From<BTreeMap<String, Vec<f64>>> for Measured {
    fn from(map: BTreeMap<String, Vec<f64>>) -> Measured {
        // What is read has grown by doubling.
        let fitting = |(name, mut values): (String, Vec<f64>)| {
            values.shrink_to_fit();
            (name, values)
        };
        Measured(map.into_iter().map(fitting).collect())
    }
}

impl<const N: usize> From<[(String, Vec<f64>); N]> for Measured {
    fn from(all: [(String, Vec<f64>); N]) -> Measured {
        BTreeMap::from(all).into()
    }
}

impl Serialize for Measured {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl IntoIterator for Measured {
    type Item = (String, Vec<f64>);
    type IntoIter = std::vec::IntoIter<(String, Vec<f64>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_and_read_as_a_map_and_takes_no_more_room_than_its_measurements() {
        let values: Vec<f64> = (0..50).map(f64::from).collect();
        let text = serde_json::to_string(&Measured::from([
            ("b".to_owned(), values.clone()),
            ("a".to_owned(), vec![0.5]),
        ]));
        let text = text.unwrap();
        assert!(text.starts_with(r#"{"a":[0.5],"b":[0.0,1.0,"#), "{text}");
        let read: Measured = serde_json::from_str(&text).unwrap();
        assert_eq!(read.get("a"), Some(&vec![0.5]));
        assert_eq!(read.get("b"), Some(&values));
        assert_eq!(read.get("c"), None);
        for (_, values) in read.iter() {
            assert_eq!(values.capacity(), values.len());
        }
    }

    #[test]
    fn metrics_are_in_order_whenever_they_come() {
        let mut measured = Measured::default();
        for name in ["b", "c", "a", "b"] {
            measured.of(name).push(1.0);
        }
        let all = [("a", 1), ("b", 2), ("c", 1)].map(|(name, n)| (name.to_owned(), vec![1.0; n]));
        assert_eq!(measured, Measured::from(all));
    }
}

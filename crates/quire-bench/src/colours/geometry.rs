//! The cache that colours are for: that of `quire cache`, or the one that is asked for.

use quire_core::frames::cache::{self, Cache, Shape};
use quire_core::frames::colour::Colours;
use quire_core::units::Bytes;
use quire_linux::sysinfo::caches;
use serde::Serialize;

use crate::cli::CacheChoice;

/// With `--quick`, the cache has this part of its ways, and at least one.
const QUICK: u32 = 16;

/// A cache with colours.
#[derive(Clone, Debug, Serialize)]
pub struct Geometry {
    /// Its name, such as `L2`.
    pub name: String,
    /// The cache.
    #[serde(flatten)]
    pub cache: Cache,
    /// How frames are coloured for it.
    #[serde(rename = "colour_bits")]
    pub colours: Colours,
    /// Its size.
    pub size_bytes: Bytes,
}

impl Geometry {
    /// The cache that is asked for; with `quick` one that is like it and smaller.
    ///
    /// # Errors
    /// One line with the remedy, where it has no colours or is not known.
    pub fn of(choice: &CacheChoice, quick: bool) -> Result<Geometry, String> {
        let geometry = Geometry::among(caches::of_this_machine(), choice)?;
        Ok(if quick { geometry.smaller() } else { geometry })
    }

    fn among(mut caches: Vec<Cache>, choice: &CacheChoice) -> Result<Geometry, String> {
        let overrides: Vec<_> = choice.set.iter().map(|set| set.meant.clone()).collect();
        cache::apply(&mut caches, &overrides).map_err(|error| format!("--set: {error}"))?;
        let remedy =
            "`quire cache` says why; give the bits, as in --set level=2,colour-bits=12,13,14,15";
        let cache = match choice.level {
            None => cache::colour_cache(&caches)
                .ok_or_else(|| format!("no cache of this machine has known colours: {remedy}"))?,
            Some(level) => caches
                .iter()
                .find(|cache| cache.level == level && cache.holds_data())
                .ok_or_else(|| {
                    format!("--level {level}: no such cache is known; give it, as in --set level={level},sets=1024,ways=16,line=64")
                })?,
        };
        let colours = cache
            .colours()
            .map_err(|error| format!("{}: {error}: {remedy}", cache.name()))?;
        if colours.count() == 1 {
            let name = cache.name();
            return Err(format!(
                "{name}: all pages have one colour in it: choose another --level"
            ));
        }
        Ok(Geometry {
            name: cache.name(),
            cache: cache.clone(),
            colours,
            size_bytes: cache.shape.size(),
        })
    }

    /// The size whose half, equal and double the kernels use.
    pub fn reference(&self, choice: &CacheChoice) -> Bytes {
        choice.cache_size.unwrap_or(self.size_bytes)
    }

    /// A cache with the same colours and fewer ways.
    fn smaller(mut self) -> Geometry {
        let shape = self.cache.shape;
        let ways = (shape.ways() / QUICK).max(1);
        let shape = Shape::new(shape.sets(), ways, shape.line().0 as u32).unwrap_or(shape);
        self.cache.shape = shape;
        self.size_bytes = shape.size();
        self
    }

    /// What it is, in a line.
    pub fn describe(&self) -> String {
        let shape = self.cache.shape;
        format!(
            "{}, {}, {} sets of {} lines of {} bytes, {} colours from bits {}",
            self.name,
            shape.size(),
            shape.sets(),
            shape.ways(),
            shape.line().0,
            self.colours.count(),
            self.colours
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::SetCache;

    fn choice(level: Option<u32>, set: &[&str]) -> CacheChoice {
        let set = set.iter().map(|text| text.parse::<SetCache>().unwrap());
        CacheChoice {
            level,
            set: set.collect(),
            cache_size: None,
        }
    }

    fn found(level: Option<u32>, set: &[&str]) -> Result<Geometry, String> {
        Geometry::among(Vec::new(), &choice(level, set))
    }

    const L2: &str = "level=2,sets=1024,ways=16,line=64";

    #[test]
    fn the_cache_with_colours_is_taken() {
        let geometry = found(None, &[L2, "level=1,sets=64,ways=8,line=64"]).unwrap();
        let text = "L2, 1 MiB, 1024 sets of 16 lines of 64 bytes, 16 colours from bits 12,13,14,15";
        assert_eq!(geometry.describe(), text);
        let mut choice = choice(None, &[]);
        assert_eq!(geometry.reference(&choice), Bytes::mib(1));
        let quick = geometry.clone().smaller();
        assert_eq!(
            (quick.reference(&choice), quick.cache.shape.ways()),
            (Bytes(64 << 10), 1)
        );
        assert_eq!(quick.cache.colours().unwrap(), geometry.colours);
        choice.cache_size = Some(Bytes::mib(3));
        assert_eq!(geometry.reference(&choice), Bytes::mib(3));
    }

    #[test]
    fn a_level_can_be_chosen() {
        let small = "level=3,sets=256,ways=4,line=64";
        assert_eq!(found(Some(3), &[L2, small]).unwrap().cache.level, 3);
    }

    #[test]
    fn what_has_no_colours_is_refused() {
        let text = |level, set: &[&str]| found(level, set).unwrap_err();
        assert!(text(None, &[]).contains("no cache of this machine"));
        assert!(text(Some(4), &[L2]).contains("--set level=4,sets="));
        let flat = "level=2,sets=64,ways=16,line=64";
        assert!(text(Some(2), &[flat]).contains("one colour"));
        assert!(text(None, &["colour-bits=12"]).starts_with("--set: "));
    }
}

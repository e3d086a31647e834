//! First touches where reservations have failed: they may cost no more than
//! base pages do.

use std::ops::Range;

use anyhow::Result;
use quire_core::units::{BASE_PAGE, Bytes, PAGES_PER_SUPERPAGE, SUPERPAGE};

use crate::memory::Block;
use crate::results::Sample;
use crate::worker::{Setup, seconds};

/// What may be reserved without being used.
pub const RESERVE_LIMIT: Bytes = Bytes::mib(16);
/// Extents that are touched until that is used up.
const USED_UP: usize = 2 * (RESERVE_LIMIT.0 / SUPERPAGE) as usize;

const EXTENT: usize = SUPERPAGE as usize;
const PAGE: usize = BASE_PAGE as usize;

/// One page in each of many extents, then every page of others.
pub fn run(setup: &Setup) -> Result<Sample> {
    let many = setup.size(512, 64);
    let dense = USED_UP..USED_UP + many / 4;
    let sparse = dense.end..dense.end + many;
    let mut block = Block::map(sparse.end * EXTENT)?;
    for extent in 0..USED_UP {
        block.touch_at(extent * EXTENT);
    }
    let mut sample = Sample::default();
    let one = |extent: usize| extent * EXTENT + extent % PAGES_PER_SUPERPAGE * PAGE;
    sample.put("sparse_ns", each_touch(&mut block, sparse.map(one)));
    let every = dense_pages(dense);
    sample.put("dense_ns", each_touch(&mut block, every));
    Ok(sample)
}

fn dense_pages(extents: Range<usize>) -> impl ExactSizeIterator<Item = usize> {
    let pages = extents.len() * PAGES_PER_SUPERPAGE;
    (0..pages).map(move |page| extents.start * EXTENT + page * PAGE)
}

/// Nanoseconds per touch of the bytes at `offsets`.
fn each_touch(block: &mut Block, offsets: impl ExactSizeIterator<Item = usize>) -> f64 {
    let count = offsets.len();
    let time = seconds(|| offsets.for_each(|offset| block.touch_at(offset)));
    time * 1e9 / count as f64
}

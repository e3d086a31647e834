//! The allocator of frames: a buddy allocator that lets a strategy choose.
//!
//! As in paper 002, section 3, free blocks are offered to the strategy from the
//! smallest order up; the block that it accepts is divided until the chosen frame is by
//! itself, and where it accepts none, the page gets any frame. What is new here is the
//! run: neighbouring pages that get neighbouring frames are served at once, without
//! taking the block apart page by page.

use std::collections::BTreeSet;

use super::colour::Colours;
use super::colour_index::ColourIndex;
use super::strategy::{Block, Request, Strategy, Wanted};
use crate::units::Frame;

/// The order of the largest block, 2 MiB.
pub const MAX_ORDER: u32 = 9;
const ORDERS: usize = MAX_ORDER as usize + 1;

/// Free frames, in maximal blocks: no two of them are buddies.
///
/// With n free blocks, to add a block, to take one out and to divide one takes
/// O(log n) for each order. To find a frame takes as much where the strategy says which
/// frame it wants, or which colour and the pool knows colours; otherwise a question
/// for each block that is offered before the accepted one, n at most.
#[derive(Clone, Debug, Default)]
pub struct FramePool {
    /// The first frames of the free blocks of each order.
    blocks: [BTreeSet<Frame>; ORDERS],
    /// The same blocks by colour, where there are several.
    by_colour: Option<ColourIndex>,
    free_frames: u64,
}

/// A frame for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The frame.
    pub frame: Frame,
    /// Whether the strategy accepted it.
    pub accepted: bool,
}

/// Neighbouring frames for neighbouring pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The frame of the first page.
    pub first: Frame,
    /// How many pages got a frame, at least one.
    pub count: u64,
    /// Whether the strategy accepted the first frame; all others it did.
    pub accepted: bool,
}

impl FramePool {
    /// An empty pool, for strategies that use these colours. They decide how fast a
    /// colour is found, never which frame.
    #[must_use]
    pub fn new(colours: &Colours) -> FramePool {
        let several = colours.count() > 1;
        FramePool {
            by_colour: several.then(|| ColourIndex::new(colours, MAX_ORDER)),
            ..FramePool::default()
        }
    }

    /// Gives frames to the pool. A block of which a frame is there already shows a
    /// mistake of the caller: it is left out as a whole, so that no frame is ever
    /// handed out twice.
    pub fn add(&mut self, block: Block) {
        let end = Frame(block.first.0 + block.frames());
        let known = self.overlaps(block.first, end);
        debug_assert!(!known, "frames of {block:?} are in the pool already");
        if !known {
            pieces(block.first, end).for_each(|piece| self.insert_merged(piece));
        }
    }

    /// A frame for a page: one that the strategy accepts, or else any. The smallest
    /// block goes first, and of these the one with the lowest address. `None` when the
    /// pool is empty.
    pub fn allocate(&mut self, strategy: &mut dyn Strategy, request: &Request) -> Option<Placed> {
        let run = self.allocate_run(strategy, request, 1)?;
        Some(Placed {
            frame: run.first,
            accepted: run.accepted,
        })
    }

    /// Frames for up to `pages` pages from the requested one on. The first is found as
    /// by [`allocate`](FramePool::allocate); others follow as long as the next frame
    /// is free and the strategy accepts just that one for the next page. `None` when
    /// the pool is empty or no page is asked for.
    ///
    /// The strategy is asked once for each page; the blocks are divided once for the
    /// whole run.
    pub fn allocate_run(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        let accepted = self.allocate_accepted(strategy, request, pages);
        accepted.or_else(|| {
            let any = self.blocks().next()?;
            self.allocate_from(any, any.first, strategy, request, pages)
        })
    }

    /// As [`allocate_run`](FramePool::allocate_run), but nothing happens and there is
    /// no run where the strategy accepts no free frame for the first page.
    pub fn allocate_accepted(
        &mut self,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        let (block, first) = self.chosen(strategy, request)?;
        let run = self.allocate_from(block, first, strategy, request, pages)?;
        Some(Run {
            accepted: true,
            ..run
        })
    }

    /// The run that begins with a frame of a free block. `None` when no page is asked
    /// for.
    fn allocate_from(
        &mut self,
        mut block: Block,
        first: Frame,
        strategy: &mut dyn Strategy,
        request: &Request,
        pages: u64,
    ) -> Option<Run> {
        if pages == 0 {
            return None;
        }
        strategy.note(first, request);
        let mut count = 1;
        while count < pages {
            let next = Frame(first.0 + count);
            if !block.contains(next) {
                match self.holding(next) {
                    Some(following) => block = following,
                    None => break,
                }
            }
            let request = request.further(count);
            if strategy.choose(Block::single(next), &request) != Some(next) {
                break;
            }
            strategy.note(next, &request);
            count += 1;
        }
        self.carve(first, Frame(first.0 + count));
        Some(Run {
            first,
            count,
            accepted: false,
        })
    }

    /// Whether a frame is free.
    #[must_use]
    pub fn has(&self, frame: Frame) -> bool {
        self.holding(frame).is_some()
    }

    /// Takes one particular frame out, and says whether it was free.
    pub fn take(&mut self, frame: Frame) -> bool {
        let free = self.has(frame);
        if free {
            self.carve(frame, Frame(frame.0 + 1));
        }
        free
    }

    /// Takes out a free block of exactly this order, the one with the highest address:
    /// allocation begins with the lowest.
    pub fn take_block(&mut self, order: u32) -> Option<Block> {
        let first = *self.blocks.get(order as usize)?.last()?;
        let block = Block { first, order };
        self.remove(block);
        Some(block)
    }

    /// How many frames are free.
    #[must_use]
    pub const fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// The order of the largest free block; `None` when the pool is empty.
    #[must_use]
    pub fn largest_order(&self) -> Option<u32> {
        let orders = (0..).zip(&self.blocks);
        let occupied = orders.filter(|(_, blocks)| !blocks.is_empty());
        occupied.map(|(order, _)| order).last()
    }

    /// The free blocks, from the smallest order up, in order of address in each.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        (0..).zip(&self.blocks).flat_map(|(order, blocks)| {
            blocks.iter().map(move |first| Block {
                first: *first,
                order,
            })
        })
    }

    /// The frame that the strategy chooses, and the block that has it. A strategy that
    /// chooses a frame which it was not offered accepts none.
    fn chosen(&self, strategy: &dyn Strategy, request: &Request) -> Option<(Block, Frame)> {
        let offer = |block: Block| {
            let frame = strategy.choose(block, request)?;
            block.contains(frame).then_some((block, frame))
        };
        match (strategy.wanted(request), &self.by_colour) {
            (Wanted::Frame(frame), _) => self.holding(frame).and_then(offer),
            (Wanted::Colour(colour), Some(index)) => index.with(colour).find_map(offer),
            _ => self.blocks().find_map(offer),
        }
    }

    /// The free block that has a frame.
    fn holding(&self, frame: Frame) -> Option<Block> {
        let around = |(order, blocks): (u32, &BTreeSet<Frame>)| {
            let first = Frame(frame.0 >> order << order);
            blocks.contains(&first).then_some(Block { first, order })
        };
        (0..).zip(&self.blocks).find_map(around)
    }

    /// Whether a frame from `start` to `end` is free.
    fn overlaps(&self, start: Frame, end: Frame) -> bool {
        let begins_inside = |blocks: &BTreeSet<Frame>| blocks.range(start..end).next().is_some();
        self.holding(start).is_some() || self.blocks.iter().any(begins_inside)
    }

    /// Takes the frames from `start` to `end` out, all of which are free, and puts back
    /// what remains of the blocks that had them. The pieces are maximal: the buddy of
    /// each lies in the same block and has a frame that is taken.
    fn carve(&mut self, start: Frame, end: Frame) {
        let mut at = start;
        while at < end
            && let Some(block) = self.holding(at)
        {
            let block_end = Frame(block.first.0 + block.frames());
            self.remove(block);
            pieces(block.first, at).for_each(|piece| self.insert(piece));
            pieces(end.min(block_end), block_end).for_each(|piece| self.insert(piece));
            at = block_end;
        }
    }

    /// Enters a block, joined with its buddy as long as that one is free.
    fn insert_merged(&mut self, mut block: Block) {
        while block.order < MAX_ORDER {
            let buddy = Block {
                first: Frame(block.first.0 ^ block.frames()),
                ..block
            };
            if !self.blocks[buddy.order as usize].contains(&buddy.first) {
                break;
            }
            self.remove(buddy);
            block = Block {
                first: block.first.min(buddy.first),
                order: block.order + 1,
            };
        }
        self.insert(block);
    }

    /// Enters a block as it is.
    fn insert(&mut self, block: Block) {
        self.blocks[block.order as usize].insert(block.first);
        if let Some(index) = &mut self.by_colour {
            index.insert(block);
        }
        self.free_frames += block.frames();
    }

    /// Takes out a block that is there.
    fn remove(&mut self, block: Block) {
        self.blocks[block.order as usize].remove(&block.first);
        if let Some(index) = &mut self.by_colour {
            index.remove(block);
        }
        self.free_frames -= block.frames();
    }
}

/// The largest blocks that make up the frames from `start` to `end`.
fn pieces(start: Frame, end: Frame) -> impl Iterator<Item = Block> {
    let mut at = start.0;
    std::iter::from_fn(move || {
        let rest = end.0.saturating_sub(at).checked_ilog2()?;
        let order = at.trailing_zeros().min(rest).min(MAX_ORDER);
        let block = Block {
            first: Frame(at),
            order,
        };
        at += block.frames();
        Some(block)
    })
}

#[cfg(test)]
mod tests;

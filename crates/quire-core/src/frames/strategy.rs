//! Which free frame a page gets: the callback between the allocator and a strategy.
//!
//! The allocator offers free blocks, and the strategy says which frame of a block may
//! be used, if any (paper 002, section 3). It decides about nothing else: whether the
//! page gets a frame at all is the allocator's business.

use super::colour::Colour;
use crate::units::{BASE_PAGE, Bytes, Frame, VirtAddr};

/// A free block: 2 to the power `order` frames, aligned to their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The first frame.
    pub first: Frame,
    /// The number of frames, as a power of two.
    pub order: u32,
}

/// A page that needs a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address of the page.
    pub page: VirtAddr,
    /// The thread that touched it.
    pub thread: u32,
}

/// What a strategy looks for, as far as the allocator can find it by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Only asking tells: all blocks are offered.
    #[default]
    Unknown,
    /// Any frame of this colour and no other, in the colours of the allocator.
    Colour(Colour),
    /// This frame and no other.
    Frame(Frame),
}

/// A way to choose frames.
pub trait Strategy: Send {
    /// Which frame of a free block the page may get, if any. For one request it is
    /// asked about one block after the other, and answers as if each were the only one.
    fn choose(&self, block: Block, request: &Request) -> Option<Frame>;

    /// What `choose` looks for. It decides nothing, but where there are many free
    /// blocks it spares most of the questions: blocks without what is wanted are not
    /// offered.
    fn wanted(&self, _request: &Request) -> Wanted {
        Wanted::Unknown
    }

    /// The page got this frame, whether the strategy chose it or accepted none.
    fn note(&mut self, frame: Frame, request: &Request);

    /// The frames that were noted last, from this one on, were not given after all: the
    /// next one is chosen as if they had not been noted.
    fn take_back(&mut self, _first: Frame, _request: &Request) {}

    /// The sequence that the page belongs to: what it gets depends on which pages of
    /// the same sequence got theirs before. `None` where it depends on no other page,
    /// so that pages around a touched one can be given frames at once.
    fn sequence(&self, request: &Request) -> Option<u32>;
}

impl Request {
    /// The number of the page: its address in base pages.
    #[must_use]
    pub const fn page_number(&self) -> u64 {
        self.page.0 / BASE_PAGE
    }

    /// The request of the same thread for the page that lies so many base pages
    /// further.
    #[must_use]
    pub fn further(&self, pages: u64) -> Request {
        Request {
            page: self.page + Bytes(pages * BASE_PAGE),
            ..*self
        }
    }
}

impl Block {
    /// One frame.
    #[must_use]
    pub const fn single(frame: Frame) -> Block {
        Block {
            first: frame,
            order: 0,
        }
    }

    /// How many frames it has.
    #[must_use]
    pub const fn frames(self) -> u64 {
        1 << self.order
    }

    /// Whether a frame is one of its own.
    #[must_use]
    pub const fn contains(self, frame: Frame) -> bool {
        frame.0 >> self.order == self.first.0 >> self.order
    }
}

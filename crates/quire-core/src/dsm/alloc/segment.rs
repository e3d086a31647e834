//! A segment: pages with blocks of one class, and a control page before them.
//!
//! The control page has a bit for each block, set while the block is in use. So the
//! allocator never touches a block, and a page of blocks goes only to machines that use
//! them. One change of one bit allocates or frees a block; there is no state in between.
//!
//! Only who owns the segment sets bits. Everybody may clear them, without a lock: the pages of
//! a block that is in use go to nobody else.

use super::class::Class;
use super::map::{Geometry, Run, Use, WORD};
use super::{AllocError, Owner, Shared, Word, change_if, set, update};
use crate::units::ObjectOffset;

/// The word of a control page that says who owns the segment.
const STATE: u64 = 0;
/// The word that says where in its class's directory the segment is.
const SLOT: u64 = 1;
/// The first word with bits.
const BITS: u64 = 8;
/// The blocks of a word.
const BLOCKS: u64 = u64::BITS as u64;

/// Who owns a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nobody. It has free blocks.
    Listed,
    /// Nobody. When it was last looked at, all blocks were in use.
    Full,
    /// It is being given back.
    Leaving,
    /// A heap.
    Owned(Owner),
}

impl State {
    const fn encode(self) -> u64 {
        match self {
            State::Listed => 0,
            State::Owned(owner) => owner.number(),
            State::Leaving => u64::MAX - 1,
            State::Full => u64::MAX,
        }
    }

    const fn decode(word: u64) -> State {
        match word {
            u64::MAX => State::Full,
            0xffff_ffff_ffff_fffe => State::Leaving,
            number => match Owner::new(number) {
                Some(owner) => State::Owned(owner),
                None => State::Listed,
            },
        }
    }
}

/// A segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub run: Run,
    pub class: Class,
    /// How many blocks it has.
    pub blocks: u64,
    geometry: Geometry,
}

/// How many blocks a control page can count.
pub(super) const fn capacity(geometry: Geometry) -> u64 {
    (geometry.page / WORD - BITS) * BLOCKS
}

impl Segment {
    /// The segment in a run, if there is one.
    pub fn of(geometry: Geometry, run: Run) -> Option<Segment> {
        let Use::Segment(class) = run.usage else {
            return None;
        };
        let blocks = (run.pages - 1) * geometry.page / class.size().0;
        Some(Segment {
            run,
            class,
            blocks: blocks.min(capacity(geometry)),
            geometry,
        })
    }

    /// Where a block is.
    pub const fn block(self, index: u64) -> ObjectOffset {
        ObjectOffset((self.run.first + 1) * self.geometry.page + index * self.class.size().0)
    }

    /// The number of the block that begins at an offset.
    pub fn index_of(self, at: ObjectOffset) -> Option<u64> {
        let distance = at.0.checked_sub(self.block(0).0)?;
        let index = distance / self.class.size().0;
        (index < self.blocks && self.block(index) == at).then_some(index)
    }

    const fn at(self, index: u64) -> ObjectOffset {
        self.geometry.word(self.run.first, index)
    }

    fn word<S: Shared>(self, shared: &S, index: u64) -> Word<'_> {
        shared.word(self.at(index))
    }

    /// Writes the control page: all blocks are free. The pages are the caller's.
    ///
    /// # Errors
    /// When they may have gone to others.
    pub fn begin<S: Shared>(self, shared: &S, owner: Owner, slot: u64) -> Result<(), AllocError> {
        for index in 0..self.words() {
            set(shared, self.at(BITS + index), 0)?;
        }
        set(shared, self.at(SLOT), slot)?;
        set(shared, self.at(STATE), State::Owned(owner).encode())
    }

    /// Where in its class's directory it is.
    pub fn slot<S: Shared>(self, shared: &S) -> u64 {
        self.word(shared, SLOT).load()
    }

    /// Who owns it.
    pub fn state<S: Shared>(self, shared: &S) -> State {
        State::decode(self.word(shared, STATE).load())
    }

    /// Changes who owns it, if it is as expected. Returns whether it was.
    ///
    /// # Errors
    /// When it may be no segment any more.
    pub fn change<S: Shared>(self, shared: &S, from: State, to: State) -> Result<bool, AllocError> {
        change_if(shared, self.at(STATE), from.encode(), to.encode())
    }

    /// How many words of bits there are.
    pub const fn words(self) -> u64 {
        self.blocks.div_ceil(BLOCKS)
    }

    /// The bits of a word that stand for blocks.
    const fn mask(self, index: u64) -> u64 {
        let blocks = self.blocks - index * BLOCKS;
        if blocks >= BLOCKS {
            u64::MAX
        } else {
            (1 << blocks) - 1
        }
    }

    /// The free blocks of a word, as bits.
    fn free_in<S: Shared>(self, shared: &S, index: u64) -> u64 {
        !self.word(shared, BITS + index).load() & self.mask(index)
    }

    /// Allocates a block in the words from `cursor` on, then in those before; the cursor
    /// is left at the word where it was found. The caller owns the segment.
    ///
    /// # Errors
    /// When it may not own it any more.
    pub fn take<S: Shared>(
        self,
        shared: &S,
        cursor: &mut u64,
    ) -> Result<Option<ObjectOffset>, AllocError> {
        let mut words = (*cursor..self.words()).chain(0..*cursor);
        let taken = words.find_map(|index| self.take_in(shared, index).transpose());
        let Some(block) = taken.transpose()? else {
            return Ok(None);
        };
        *cursor = block / BLOCKS;
        Ok(Some(self.block(block)))
    }

    /// Allocates a block of a word; says which.
    fn take_in<S: Shared>(self, shared: &S, index: u64) -> Result<Option<u64>, AllocError> {
        let first_free = |used: u64| {
            let free = !used & self.mask(index);
            (free != 0).then(|| free.trailing_zeros())
        };
        let take = |used: u64| Some(used | 1 << first_free(used)?);
        let used = update(shared, self.at(BITS + index), take)?;
        let bit = used.and_then(first_free);
        Ok(bit.map(|bit| index * BLOCKS + u64::from(bit)))
    }

    /// Frees a block. Returns whether it was in use.
    ///
    /// # Errors
    /// When it may be no segment any more: the block may have been forgotten with this machine.
    pub fn free<S: Shared>(self, shared: &S, block: u64) -> Result<bool, AllocError> {
        let (bit, at) = (1 << (block % BLOCKS), self.at(BITS + block / BLOCKS));
        let was = update(shared, at, |used| (used & bit != 0).then_some(used & !bit))?;
        Ok(was.is_some())
    }

    /// Whether a block is in use.
    pub fn is_used<S: Shared>(self, shared: &S, block: u64) -> bool {
        let word = self.word(shared, BITS + block / BLOCKS).load();
        word & 1 << (block % BLOCKS) != 0
    }

    /// Whether so many blocks are free.
    pub fn has_free<S: Shared>(self, shared: &S, least: u64) -> bool {
        let mut free = 0;
        (0..self.words()).any(|index| {
            free += u64::from(self.free_in(shared, index).count_ones());
            free >= least
        })
    }

    /// Whether all blocks are free.
    pub fn is_empty<S: Shared>(self, shared: &S) -> bool {
        (0..self.words()).all(|index| self.free_in(shared, index) == self.mask(index))
    }
}

//! Where free blocks with frames of a colour are.
//!
//! A program that is kept to a few colours leaves behind ever more small blocks with
//! frames of the others, and to ask about each of them at every page would take time
//! that grows with the memory. So blocks of an order are kept by their *class*: two
//! blocks of one order have either the same colours or none in common.

use std::collections::BTreeSet;

use super::colour::{Colour, Colours};
use super::strategy::Block;
use crate::units::Frame;

/// Blocks by order and by the colours of their frames.
#[derive(Clone, Debug, Default)]
pub struct ColourIndex {
    colours: Colours,
    orders: Vec<Order>,
}

/// The blocks of one order.
#[derive(Clone, Debug, Default)]
struct Order {
    /// What the colours inside a block differ by is an XOR of some of these. Each has a
    /// highest bit of its own, and the highest comes first.
    span: Vec<u32>,
    /// Class and first frame of each block.
    blocks: BTreeSet<(u32, Frame)>,
}

impl ColourIndex {
    /// An empty index for blocks of orders up to `max_order`.
    #[must_use]
    pub fn new(colours: &Colours, max_order: u32) -> ColourIndex {
        let mut orders = vec![Order::default()];
        for bit in 0..max_order {
            // Both halves of a block have the colours of a block of the order below,
            // and this is what lies between them.
            let step = colours.of(Frame(1 << bit)).0;
            let mut span = orders[bit as usize].span.clone();
            let rest = reduced(&span, step);
            if rest != 0 {
                span.push(rest);
                span.sort_unstable_by(|a, b| b.cmp(a));
            }
            orders.push(Order {
                span,
                blocks: BTreeSet::new(),
            });
        }
        ColourIndex {
            colours: colours.clone(),
            orders,
        }
    }

    /// Enters a block.
    pub fn insert(&mut self, block: Block) {
        let colour = self.colours.of(block.first);
        if let Some(order) = self.orders.get_mut(block.order as usize) {
            order
                .blocks
                .insert((reduced(&order.span, colour.0), block.first));
        }
    }

    /// Takes a block out.
    pub fn remove(&mut self, block: Block) {
        let colour = self.colours.of(block.first);
        if let Some(order) = self.orders.get_mut(block.order as usize) {
            order
                .blocks
                .remove(&(reduced(&order.span, colour.0), block.first));
        }
    }

    /// The blocks with frames of a colour, from the smallest order up, in order of
    /// address in each. The first is found in O(log n) for each order.
    pub fn with(&self, colour: Colour) -> impl Iterator<Item = Block> {
        (0..).zip(&self.orders).flat_map(move |(order, blocks)| {
            let class = reduced(&blocks.span, colour.0);
            let alike = (class, Frame(0))..=(class, Frame(u64::MAX));
            let found = blocks.blocks.range(alike);
            found.map(move |(_, first)| Block {
                first: *first,
                order,
            })
        })
    }
}

/// What is left of a colour when all that `span` makes up is taken out of it: the same
/// for all colours of a block.
fn reduced(span: &[u32], colour: u32) -> u32 {
    span.iter().fold(colour, |rest, part| {
        let leads = rest >> part.ilog2() & 1 == 1;
        if leads { rest ^ part } else { rest }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn colours() -> impl Strategy<Value = Colours> {
        const TEXTS: [&str; 5] = [
            "12,13,14,15",
            "12^16,13^17",
            "13^15,14^15^21,12^22",
            "20,21",
            "",
        ];
        prop::sample::select(&TEXTS[..])
            .prop_map(|text| Colours::try_from(text.to_owned()).unwrap())
    }

    proptest! {
        /// Against a look into every block.
        #[test]
        fn exactly_the_blocks_with_the_colour_are_found(
            colours in colours(),
            blocks in prop::collection::btree_set((0u32..=9, 0u64..64), 0..40),
            gone in 0usize..10,
        ) {
            let block = |(order, n): (u32, u64)| Block { first: Frame(n << order), order };
            let mut blocks: Vec<Block> = blocks.into_iter().map(block).collect();
            let mut index = ColourIndex::new(&colours, 9);
            blocks.iter().for_each(|block| index.insert(*block));
            blocks.drain(..gone.min(blocks.len())).for_each(|block| index.remove(block));
            for colour in (0..colours.count() + 1).map(Colour) {
                let has = |block: &&Block| colours.first_in(**block, colour).is_some();
                let expected: Vec<Block> = blocks.iter().filter(has).copied().collect();
                prop_assert_eq!(index.with(colour).collect::<Vec<_>>(), expected);
            }
        }
    }
}

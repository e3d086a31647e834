//! What an event of the poll is about, in the number that the poll keeps for it.

use mio::Token;

use super::links::LinkId;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Waker,
    Listener(usize),
    Link(LinkId),
    /// A descriptor of the loop's owner, by the owner's key.
    Source(u64),
    /// The machine may have been asleep.
    Alarm,
}

/// The kind is in the lowest two bits.
const KINDS: usize = 4;

/// A link's index has so many bits; its generation has those above.
const INDEX_BITS: u32 = 20;

/// A link's index is below this.
pub(super) const MAX_INDEX: u32 = 1 << INDEX_BITS;

/// The owner's keys are below this.
pub(super) const MAX_KEY: u64 = 1 << 62;

impl From<Target> for Token {
    fn from(target: Target) -> Token {
        let (kind, rest) = match target {
            Target::Waker => (0, 0),
            Target::Alarm => (0, 1),
            Target::Listener(index) => (1, index),
            Target::Link(link) => (
                2,
                link.index as usize | (link.generation as usize) << INDEX_BITS,
            ),
            Target::Source(key) => (3, key as usize),
        };
        Token(rest * KINDS + kind)
    }
}

impl From<Token> for Target {
    fn from(token: Token) -> Target {
        let rest = token.0 / KINDS;
        match token.0 % KINDS {
            0 if rest == 0 => Target::Waker,
            0 => Target::Alarm,
            1 => Target::Listener(rest),
            2 => Target::Link(LinkId {
                index: rest as u32 % MAX_INDEX,
                generation: (rest >> INDEX_BITS) as u32,
            }),
            _ => Target::Source(rest as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_come_back_from_tokens() {
        let link = |index, generation| Target::Link(LinkId { index, generation });
        let targets = [
            Target::Waker,
            Target::Alarm,
            Target::Listener(0),
            Target::Listener(77),
            link(0, 0),
            link(MAX_INDEX - 1, u32::MAX),
            Target::Source(MAX_KEY - 1),
        ];
        for target in targets {
            assert_eq!(Target::from(Token::from(target)), target);
        }
    }
}

//! Rijndael as the standard has it (AES, FIPS 197), chained over the blocks of a short
//! text: encryption and decryption.

use anyhow::{Result, ensure};

use crate::set::Work;

type Block = [u8; 16];

/// The text: that of the standard's examples first, so that what it becomes is known.
const TEXT: [Block; 4] = [
    [
        0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
        0xff,
    ],
    *b"A short text of ",
    *b"four blocks, to ",
    *b"be kept secret.\n",
];

/// How long the key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySize {
    /// 16 bytes, 10 rounds.
    Bits128,
    /// 32 bytes, 14 rounds.
    Bits256,
}

impl KeySize {
    /// Both.
    pub const ALL: [KeySize; 2] = [KeySize::Bits128, KeySize::Bits256];

    /// As in the name of the cipher.
    pub const fn bits(self) -> u32 {
        match self {
            KeySize::Bits128 => 128,
            KeySize::Bits256 => 256,
        }
    }

    /// What the first block of the text becomes by the key of the example (FIPS 197,
    /// appendix C).
    const fn example(self) -> Block {
        match self {
            KeySize::Bits128 => 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a_u128.to_be_bytes(),
            KeySize::Bits256 => 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089_u128.to_be_bytes(),
        }
    }

    /// The key of the example.
    fn key(self) -> Vec<u8> {
        (0..=255).take(self.bits() as usize / 8).collect()
    }
}

/// The product in the field of 256 elements.
const fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = twice(a);
        b >>= 1;
    }
    product
}

const fn twice(a: u8) -> u8 {
    let carry = if a & 0x80 != 0 { 0x1b } else { 0 };
    (a << 1) ^ carry
}

/// What the rounds look up.
struct Tables {
    substitute: [u8; 256],
    restore: [u8; 256],
    /// Products with 9, 11, 13 and 14.
    multiples: [[u8; 256]; 4],
}

impl Tables {
    fn new() -> Tables {
        let mut tables = Tables {
            substitute: [0; 256],
            restore: [0; 256],
            multiples: [[0; 256]; 4],
        };
        for value in 0..=255u8 {
            // The inverse is the power 254; that of zero is zero.
            let inverse = (0..254).fold(1, |power, _| times(power, value));
            let turned = (0..5).fold(0, |sum, by| sum ^ inverse.rotate_left(by));
            let place = usize::from(value);
            tables.substitute[place] = turned ^ 0x63;
            tables.restore[usize::from(turned ^ 0x63)] = value;
            for (table, factor) in tables.multiples.iter_mut().zip([9, 11, 13, 14]) {
                table[place] = times(value, factor);
            }
        }
        tables
    }
}

/// A key, made ready.
struct Cipher {
    tables: Tables,
    rounds: Vec<Block>,
}

impl Cipher {
    fn new(key: &[u8]) -> Cipher {
        let tables = Tables::new();
        let in_key = key.len() / 4;
        let mut words: Vec<[u8; 4]> = key
            .chunks_exact(4)
            .map(|w| [w[0], w[1], w[2], w[3]])
            .collect();
        let mut constant = 1;
        for n in in_key..4 * (in_key + 7) {
            let mut word = words[n - 1];
            if n % in_key == 0 {
                word.rotate_left(1);
            }
            if n % in_key == 0 || (in_key > 6 && n % in_key == 4) {
                word = word.map(|byte| tables.substitute[usize::from(byte)]);
            }
            if n % in_key == 0 {
                word[0] ^= constant;
                constant = twice(constant);
            }
            let before = words[n - in_key];
            words.push(std::array::from_fn(|at| word[at] ^ before[at]));
        }
        let round = |four: &[[u8; 4]]| std::array::from_fn(|at| four[at / 4][at % 4]);
        let rounds = words.chunks_exact(4).map(round).collect();
        Cipher { tables, rounds }
    }

    fn encrypt(&self, block: Block) -> Block {
        let last = self.rounds.len() - 1;
        let mut state = xor(block, self.rounds[0]);
        for (number, key) in self.rounds.iter().enumerate().skip(1) {
            // A row moves by its number, column by column.
            let moved: Block = std::array::from_fn(|at| {
                let from = state[(at + 4 * (at % 4)) % 16];
                self.tables.substitute[usize::from(from)]
            });
            let mixed = if number == last { moved } else { mix(moved) };
            state = xor(mixed, *key);
        }
        state
    }

    fn decrypt(&self, block: Block) -> Block {
        let last = self.rounds.len() - 1;
        let mut state = block;
        for (number, key) in self.rounds.iter().enumerate().skip(1).rev() {
            let plain = xor(state, *key);
            let unmixed = if number == last {
                plain
            } else {
                self.unmix(plain)
            };
            state = std::array::from_fn(|at| {
                let from = unmixed[(at + 16 - 4 * (at % 4)) % 16];
                self.tables.restore[usize::from(from)]
            });
        }
        xor(state, self.rounds[0])
    }

    fn unmix(&self, state: Block) -> Block {
        let [nine, eleven, thirteen, fourteen] = &self.tables.multiples;
        std::array::from_fn(|at| {
            let other = |by| usize::from(state[at / 4 * 4 + (at + by) % 4]);
            fourteen[other(0)] ^ eleven[other(1)] ^ thirteen[other(2)] ^ nine[other(3)]
        })
    }
}

fn xor(a: Block, b: Block) -> Block {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}

fn mix(state: Block) -> Block {
    std::array::from_fn(|at| {
        let other = |by| state[at / 4 * 4 + (at + by) % 4];
        let sum = twice(other(0)) ^ twice(other(1)) ^ other(1);
        sum ^ other(2) ^ other(3)
    })
}

/// A text that is encrypted and decrypted, again and again.
pub struct Text {
    size: KeySize,
    cipher: Cipher,
    secret: [Block; 4],
    plain: [Block; 4],
}

impl Text {
    /// The text, and the key of the standard's example.
    pub fn new(size: KeySize) -> Text {
        Text {
            size,
            cipher: Cipher::new(&size.key()),
            secret: TEXT,
            plain: TEXT,
        }
    }
}

impl Work for Text {
    fn batch(&self) -> u32 {
        500
    }

    fn operate(&mut self) -> Result<()> {
        let mut chain = [0; 16];
        for (secret, text) in self.secret.iter_mut().zip(TEXT) {
            chain = self.cipher.encrypt(xor(text, chain));
            *secret = chain;
        }
        let mut chain = [0; 16];
        for (plain, secret) in self.plain.iter_mut().zip(self.secret) {
            *plain = xor(self.cipher.decrypt(secret), chain);
            chain = secret;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        ensure!(
            self.secret[0] == self.size.example(),
            "the first block is not that of the standard's example"
        );
        ensure!(
            self.plain == TEXT,
            "the text is not what it was before encryption"
        );
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        self.plain[3][15] ^= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for size in KeySize::ALL {
            let cipher = Cipher::new(&size.key());
            assert_eq!(size.key().len() as u32 * 8, size.bits());
            assert_eq!(cipher.encrypt(TEXT[0]), size.example());
            assert_eq!(cipher.decrypt(size.example()), TEXT[0]);
        }
    }

    #[test]
    fn the_table_has_known_values() {
        let tables = Tables::new();
        let found = [0x00, 0x01, 0x53, 0xff].map(|at: usize| tables.substitute[at]);
        assert_eq!(found, [0x63, 0x7c, 0xed, 0x16]);
    }

    #[test]
    fn a_wrong_first_block_is_found_too() {
        let mut text = Text::new(KeySize::Bits256);
        text.operate().unwrap();
        text.check().unwrap();
        text.secret[0][3] ^= 4;
        assert!(text.check().is_err());
    }

    proptest! {
        #[test]
        fn what_is_encrypted_comes_back(key in any::<[u8; 32]>(), block in any::<[u8; 16]>()) {
            for length in [16, 32] {
                let cipher = Cipher::new(&key[..length]);
                let secret = cipher.encrypt(block);
                prop_assert_ne!(secret, block);
                prop_assert_eq!(cipher.decrypt(secret), block);
            }
        }
    }
}

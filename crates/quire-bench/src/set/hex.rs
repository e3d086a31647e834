//! Bytes as hexadecimal digits.

use anyhow::{Result, ensure};

use crate::kernels::Numbers;
use crate::set::Work;

const BYTES: usize = 8 << 20;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Bytes at random, and what they are in digits.
pub struct Encoding {
    bytes: Vec<u8>,
    digits: Vec<u8>,
}

impl Encoding {
    /// Bytes that are always the same.
    pub fn new() -> Encoding {
        let mut numbers = Numbers::new(9);
        Encoding {
            bytes: (0..BYTES).map(|_| (numbers.word() >> 20) as u8).collect(),
            digits: Vec::new(),
        }
    }
}

impl Work for Encoding {
    fn operate(&mut self) -> Result<()> {
        self.digits = Vec::with_capacity(2 * self.bytes.len());
        for byte in &self.bytes {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            self.digits.extend_from_slice(&[DIGITS[high], DIGITS[low]]);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        ensure!(
            self.digits.len() == 2 * self.bytes.len(),
            "there are {} digits",
            self.digits.len()
        );
        for (at, (pair, byte)) in self.digits.chunks_exact(2).zip(&self.bytes).enumerate() {
            let text = std::str::from_utf8(pair)?;
            let found = u8::from_str_radix(text, 16).ok();
            ensure!(found == Some(*byte), "byte {at} is {byte} and not {text}");
        }
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        let middle = self.digits.len() / 2;
        self.digits[middle] = if self.digits[middle] == b'0' {
            b'1'
        } else {
            b'0'
        };
        Ok(())
    }
}

//! Short texts in words of the statistics page.

use std::sync::atomic::{AtomicU64, Ordering};

const WORD: usize = size_of::<u64>();

/// What stands for the middle of a text that has no room.
const CUT: char = '…';

/// Writes a text into words. Bytes that have no room are left out at the end.
pub(super) fn store(words: &[AtomicU64], text: &str) {
    let bytes = text.as_bytes();
    for (n, word) in words.iter().enumerate() {
        let from = bytes.iter().skip(n * WORD).take(WORD);
        let mut eight = [0; WORD];
        eight
            .iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = *from);
        word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
}

/// Reads a text, which ends with its first zero byte.
pub(super) fn load(words: &[AtomicU64]) -> String {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text, without its middle where it is longer than `room` bytes: the ends say
/// most, the last part of a path above all.
pub(super) fn shortened(text: &str, room: usize) -> String {
    if text.len() <= room {
        return text.to_owned();
    }
    let rest = room.saturating_sub(CUT.len_utf8());
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=rest / 3).rev().find(is_boundary).unwrap_or(0);
    let latest = text.len() - (rest - rest / 3);
    let tail = (latest..text.len()).find(is_boundary).unwrap_or(text.len());
    format!("{}{CUT}{}", &text[..head], &text[tail..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ends_of_a_long_text_are_kept() {
        assert_eq!(shortened("exact:/a/b.csv", 14), "exact:/a/b.csv");
        assert_eq!(
            shortened("exact:/home/user/frames.csv", 21),
            "exact:…r/frames.csv"
        );
    }

    proptest! {
        #[test]
        fn what_has_room_is_read_again(text in "[^\0]{0,12}", room in 8usize..64) {
            let words: Vec<AtomicU64> = (0..room.div_ceil(WORD)).map(|_| AtomicU64::new(7)).collect();
            let short = shortened(&text, room);
            prop_assert!(short.len() <= room, "{} in {room}", short.len());
            prop_assert_eq!(short == text, text.len() <= room);
            store(&words, &short);
            prop_assert_eq!(load(&words), short);
        }
    }
}

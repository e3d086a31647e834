//! Which pages of a message have contents in its payload: one bit for each page. A page
//! without contents is all zeros, and nothing is sent for it.

use quire_core::dsm::message::Pages;
use quire_core::units::{BASE_PAGE, SUPERPAGE};
use serde::{Deserialize, Serialize};

use super::buffer::Contents;
use super::frame::{END_OF_OBJECTS, MAX_PAGES, WireError};

/// The pages of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Presence {
    /// How many pages.
    pages: u32,
    /// The binary logarithm of a page's size in bytes; 0 where no page has contents.
    shift: u8,
    /// The lowest bit of the first byte is the first page's.
    bits: Vec<u8>,
}

impl Presence {
    /// Of pages that are to be sent.
    ///
    /// # Errors
    /// When they are too many, or not all of the same size.
    pub fn of(data: &[Option<Contents>]) -> Result<Presence, WireError> {
        let pages = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if pages > MAX_PAGES {
            return Err(WireError::Contents("too many pages"));
        }
        let mut sizes = data.iter().flatten().map(|page| page.len());
        let size = sizes.next().unwrap_or(1);
        if sizes.any(|other| other != size) {
            return Err(WireError::Contents("pages of several sizes"));
        }
        let mut bits = vec![0; data.len().div_ceil(8)];
        for (page, _) in data.iter().enumerate().filter(|(_, page)| page.is_some()) {
            bits[page / 8] |= 1 << (page % 8);
        }
        let presence = Presence {
            pages,
            shift: size.ilog2() as u8,
            bits,
        };
        if !size.is_power_of_two() {
            return Err(WireError::Contents("a page's size is no power of two"));
        }
        presence.check()?;
        Ok(presence)
    }

    /// How many pages.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Their contents, in bytes.
    pub fn payload(&self) -> u64 {
        u64::from(self.present()) << self.shift
    }

    /// Whether all pages have contents.
    pub fn is_full(&self) -> bool {
        self.present() == self.pages
    }

    /// How many pages have contents.
    fn present(&self) -> u32 {
        self.bits.iter().map(|byte| byte.count_ones()).sum()
    }

    fn has(&self, page: usize) -> bool {
        self.bits[page / 8] & (1 << (page % 8)) != 0
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), WireError> {
        if self.pages > MAX_PAGES {
            return Err(WireError::Contents("too many pages"));
        }
        if self.bits.len() != (self.pages as usize).div_ceil(8) {
            return Err(WireError::Contents("not one bit for each page"));
        }
        let (last, used) = (self.bits.last().copied().unwrap_or(0), self.pages % 8);
        if used != 0 && last >> used != 0 {
            return Err(WireError::Contents("bits of pages that are not there"));
        }
        let sizes = BASE_PAGE.ilog2()..=SUPERPAGE.ilog2();
        let fits = match self.present() {
            0 => self.shift == 0,
            _ => sizes.contains(&self.shift.into()),
        };
        if !fits {
            return Err(WireError::Contents("a page is not of 4 KiB to 2 MiB"));
        }
        Ok(())
    }

    /// The pages with their parts of the payload.
    pub fn spread(&self, payload: Option<&Contents>) -> Vec<Option<Contents>> {
        let size = 1_usize << self.shift;
        let mut start = 0;
        let mut next = |page| {
            let payload = payload.filter(|_| self.has(page))?;
            start += size;
            Some(payload.slice(start - size, size))
        };
        (0..self.pages as usize).map(&mut next).collect()
    }
}

/// Whether a message is about pages that can be, so that nobody who counts them has to fear
/// that they are too many, or end beyond the last number.
pub fn check_pages(pages: Option<Pages>) -> Result<(), WireError> {
    let Some(Pages { first, count }) = pages else {
        return Ok(());
    };
    let end = first.0.saturating_add(count.into());
    if (1..=MAX_PAGES).contains(&count) && end <= END_OF_OBJECTS {
        return Ok(());
    }
    Err(WireError::Pages {
        first: first.0,
        count,
    })
}

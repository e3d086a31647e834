//! A pager that keeps pages compressed in memory: for objects that are larger than what a
//! machine has to spare, and that are not touched all the time.

use std::collections::HashMap;

use lz4_flex::block::{compress, decompress_into};
use quire_core::dsm::message::{Access, PageNumber, Pages};
use quire_core::units::Bytes;

use super::{Attributes, Backed, Contents, Control, Pager, answer_each, is_zero};

/// A page as it is kept.
enum Kept {
    Small(Box<[u8]>),
    /// It does not get smaller.
    AsItIs(Contents),
}

impl Kept {
    fn new(contents: Contents) -> Kept {
        let small = compress(&contents);
        if small.len() < contents.len() {
            Kept::Small(small.into())
        } else {
            Kept::AsItIs(contents)
        }
    }

    fn length(&self) -> usize {
        match self {
            Kept::Small(bytes) => bytes.len(),
            Kept::AsItIs(bytes) => bytes.len(),
        }
    }

    fn contents(&self, length: usize) -> Result<Contents, String> {
        match self {
            Kept::AsItIs(contents) => Ok(contents.clone()),
            Kept::Small(small) => {
                let mut page = vec![0; length];
                match decompress_into(small, &mut page) {
                    Ok(got) if got == length => Ok(page.into()),
                    Ok(got) => Err(format!("a page of {got} bytes came out")),
                    Err(error) => Err(error.to_string()),
                }
            }
        }
    }
}

/// Zeros, and what was written over them, compressed.
#[derive(Default)]
pub struct Compressed {
    control: Option<Control>,
    length: usize,
    pages: HashMap<PageNumber, Kept>,
    held: Bytes,
}

impl Compressed {
    /// How much memory the contents take.
    #[must_use]
    pub fn held(&self) -> Bytes {
        self.held
    }

    fn keep(&mut self, page: PageNumber, contents: Option<Contents>) {
        if let Some(old) = self.pages.remove(&page) {
            self.held.0 -= old.length() as u64;
        }
        if let Some(contents) = contents.filter(|contents| !is_zero(contents)) {
            let kept = Kept::new(contents);
            self.held.0 += kept.length() as u64;
            self.pages.insert(page, kept);
        }
    }
}

impl Pager for Compressed {
    fn init(&mut self, object: &Backed, control: Control) {
        self.length = object.page_length();
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some(control) = &self.control else { return };
        answer_each(control, pages, Access::Write, |page| {
            let kept = self.pages.get(&PageNumber(page));
            kept.map(|kept| kept.contents(self.length)).transpose()
        });
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        for (page, contents) in pages.iter().zip(data) {
            self.keep(page, contents);
        }
        if let Some(control) = &self.control {
            control.data_written(pages, Ok(()));
        }
    }
}

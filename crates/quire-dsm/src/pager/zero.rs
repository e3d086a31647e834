//! The simplest pager: memory that begins as zeros and lives as long as the object is used.

use std::collections::HashMap;

use quire_core::dsm::message::{Access, PageNumber, Pages};

use super::{Attributes, Backed, Contents, Control, Pager, answer_each};

/// Zeros, and what was written over them, in memory.
#[derive(Default)]
pub struct ZeroFill {
    control: Option<Control>,
    pages: HashMap<PageNumber, Contents>,
}

impl Pager for ZeroFill {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some(control) = &self.control else { return };
        answer_each(control, pages, Access::Write, |page| {
            Ok(self.pages.get(&PageNumber(page)).cloned())
        });
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        for (page, contents) in pages.iter().zip(data) {
            match contents {
                Some(contents) => self.pages.insert(page, contents),
                None => self.pages.remove(&page),
            };
        }
        if let Some(control) = &self.control {
            control.data_written(pages, Ok(()));
        }
    }
}

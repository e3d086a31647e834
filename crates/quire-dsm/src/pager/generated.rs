//! A pager whose contents are made when they are asked for: a function of the place in the
//! object.

use std::collections::HashMap;

use quire_core::dsm::message::{Access, Lock, PageNumber, Pages};

use super::{Attributes, Backed, Contents, Control, Pager, answer_each};

/// What becomes of pages that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Nobody may write.
    Refused,
    /// They are kept in memory, over what is generated.
    Kept,
}

/// Contents that a function makes. It gets the offset of a page in the object, in bytes,
/// and the page, which is all zeros.
pub struct Generated<F> {
    generate: F,
    writes: Writes,
    object: Option<(Backed, Control)>,
    over: HashMap<PageNumber, Option<Contents>>,
}

impl<F: FnMut(u64, &mut [u8]) + Send> Generated<F> {
    /// A pager of this function.
    pub fn new(generate: F, writes: Writes) -> Generated<F> {
        Generated {
            generate,
            writes,
            object: None,
            over: HashMap::new(),
        }
    }
}

impl<F: FnMut(u64, &mut [u8]) + Send> Pager for Generated<F> {
    fn init(&mut self, object: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: self.writes == Writes::Kept,
            keeps: true,
        });
        self.object = Some((object.clone(), control));
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some((object, control)) = &self.object else {
            return;
        };
        let access = match self.writes {
            Writes::Refused => Access::Read,
            Writes::Kept => Access::Write,
        };
        answer_each(control, pages, access, |page| {
            if let Some(written) = self.over.get(&PageNumber(page)) {
                return Ok(written.clone());
            }
            let mut contents = vec![0; object.page_length()];
            (self.generate)(object.offset(PageNumber(page)), &mut contents);
            Ok(Some(contents.into()))
        });
    }

    fn data_unlock(&mut self, pages: Pages) {
        let Some((_, control)) = &self.object else {
            return;
        };
        match self.writes {
            Writes::Refused => control.data_error(pages, "nobody may write to this object"),
            Writes::Kept => control.lock_request(pages, Lock::AllowWrite),
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let Some((_, control)) = &self.object else {
            return;
        };
        let result = match self.writes {
            Writes::Refused => Err("nobody may write to this object".to_owned()),
            Writes::Kept => {
                self.over.extend(pages.iter().zip(data));
                Ok(())
            }
        };
        control.data_written(pages, result);
    }
}

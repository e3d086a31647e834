//! The pager of `quire serve --store`: an object's pages on disk.

use std::sync::Arc;

use quire_core::dsm::message::{Access, Pages};

use super::{Attributes, Backed, Contents, Control, Pager, answer_each};
use crate::store::{ObjectId, Page, Store};

/// An object of a store. Reading waits for the disk where the system has a page not in its
/// cache; writing never waits.
pub struct Stored {
    store: Arc<Store>,
    id: ObjectId,
    control: Option<Control>,
}

impl Stored {
    /// The pager of an object of this store.
    #[must_use]
    pub fn new(store: Arc<Store>, id: ObjectId) -> Stored {
        Stored {
            store,
            id,
            control: None,
        }
    }
}

impl Pager for Stored {
    fn init(&mut self, _: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: true,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some(control) = &self.control else { return };
        let found = match self.store.read(self.id, pages) {
            Ok(found) => found,
            Err(error) => return control.data_error(pages, &error.to_string()),
        };
        let mut found = found.into_iter();
        answer_each(control, pages, Access::Write, |_| match found.next() {
            Some(Page::Held(contents)) => Ok(Some(contents)),
            Some(Page::Zero) => Ok(None),
            Some(Page::Lost) | None => Err("the page is damaged on disk".to_owned()),
        });
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let Some(control) = self.control.clone() else {
            return;
        };
        self.store.write(self.id, pages.first, data, move |result| {
            control.data_written(pages, result.map_err(|error| error.to_string()));
        });
    }
}

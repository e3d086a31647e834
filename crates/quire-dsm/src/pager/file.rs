//! A pager of a file's contents: what is written to the object is written to the file.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use quire_core::dsm::message::{Access, Pages};
use quire_core::units::Bytes;

use super::{Attributes, Backed, Contents, Control, Pager, answer_each, is_zero};

/// The contents of a file. What lies behind its end reads as zeros; the file keeps its
/// length, so what is written there is dropped. It waits for the disk: see
/// [`threaded`](super::threaded).
pub struct FilePager {
    file: File,
    length: u64,
    writable: bool,
    object: Option<(Backed, Control)>,
}

impl FilePager {
    /// A pager of a file that is open for reading, and for writing where `writable`.
    ///
    /// # Errors
    /// Where the file's length cannot be had.
    pub fn new(file: File, writable: bool) -> io::Result<FilePager> {
        let length = file.metadata()?.len();
        Ok(FilePager {
            file,
            length,
            writable,
            object: None,
        })
    }

    /// The size of the file, and so of an object that shows all of it.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.length)
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Option<Contents>> {
        let mut page = vec![0; length];
        let end = self.inside(offset, length);
        let mut got = 0;
        while got < end {
            match self.file.read_at(&mut page[got..end], offset + got as u64) {
                // Somebody has cut the file.
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((!is_zero(&page)).then(|| page.into()))
    }

    /// How much of a page lies in the file.
    fn inside(&self, offset: u64, length: usize) -> usize {
        self.length.saturating_sub(offset).min(length as u64) as usize
    }

    fn write(&self, object: &Backed, pages: Pages, data: &[Option<Contents>]) -> io::Result<()> {
        let length = object.page_length();
        let zeros = vec![0; length];
        for (page, contents) in pages.iter().zip(data) {
            let offset = object.offset(page);
            let contents = contents.as_deref().unwrap_or(&zeros);
            let end = self.inside(offset, length);
            self.file.write_all_at(&contents[..end], offset)?;
        }
        self.file.sync_data()
    }
}

impl Pager for FilePager {
    fn init(&mut self, object: &Backed, control: Control) {
        control.set_attributes(Attributes {
            may_write: self.writable,
            keeps: true,
        });
        self.object = Some((object.clone(), control));
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some((object, control)) = &self.object else {
            return;
        };
        let access = if self.writable {
            Access::Write
        } else {
            Access::Read
        };
        let size = object.page_size.0;
        answer_each(control, pages, access, |page| {
            self.read(page * size, object.page_length())
                .map_err(|error| error.to_string())
        });
    }

    fn data_unlock(&mut self, pages: Pages) {
        if let Some((_, control)) = &self.object {
            control.data_error(pages, "the file is open for reading only");
        }
    }

    fn data_write(&mut self, pages: Pages, data: Vec<Option<Contents>>) {
        let Some((object, control)) = &self.object else {
            return;
        };
        let result = if self.writable {
            self.write(object, pages, &data)
                .map_err(|error| error.to_string())
        } else {
            Err("the file is open for reading only".to_owned())
        };
        control.data_written(pages, result);
    }
}

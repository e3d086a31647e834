//! Pagers: those that are there, and one of your own.
//!
//! ```sh
//! cargo run -p quire-dsm --example pagers
//! ```
//!
//! A pager supplies the contents of one memory object, and takes back what was written. It
//! is told what the server needs, and answers through its `Control`, now or later.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, PageNumber, Pages};
use quire_core::units::Bytes;
use quire_dsm::pager::{
    Attributes, Backed, Backing, Compressed, Contents, Control, Event, FilePager, Generated, Pager,
    Writes, ZeroFill, threaded,
};

/// A pager of your own: pages that say which they are, and that nobody can write to.
struct Greeting {
    control: Option<Control>,
    size: usize,
}

impl Pager for Greeting {
    fn init(&mut self, object: &Backed, control: Control) {
        self.size = object.page_length();
        control.set_attributes(Attributes {
            may_write: false,
            keeps: true,
        });
        self.control = Some(control);
    }

    fn data_request(&mut self, pages: Pages, _: Access) {
        let Some(control) = self.control.clone() else {
            return;
        };
        let size = self.size;
        // Whoever answers may take its time: it does so from another thread.
        std::thread::spawn(move || {
            for page in pages.iter() {
                let mut contents = format!("this is page {}", page.0).into_bytes();
                contents.resize(size, b'.');
                control.data_provided(Pages::one(page), vec![contents.into()], Access::Read);
            }
        });
    }

    fn data_unlock(&mut self, pages: Pages) {
        if let Some(control) = &self.control {
            control.data_error(pages, "a greeting is not written to");
        }
    }

    fn data_write(&mut self, pages: Pages, _: Vec<Option<Contents>>) {
        if let Some(control) = &self.control {
            control.data_written(pages, Err("a greeting is not written to".to_owned()));
        }
    }
}

/// Asks a pager for a page, as a server does, and shows how it begins.
fn show(what: &str, pager: Box<dyn Pager>, page: u64) {
    let object = Backed {
        name: what.to_owned(),
        size: Bytes::mib(1),
        page_size: Bytes(4096),
    };
    let (sender, woken) = mpsc::channel();
    let wake = Arc::new(move || {
        let _ = sender.send(());
    });
    let mut backing = Backing::new(pager, object, wake, Duration::from_secs(5));
    backing.load(Pages::one(PageNumber(page)), Access::Read, Instant::now());
    loop {
        for event in backing.events(Instant::now()) {
            if let Event::Loaded(_, data) = event {
                let line = match data.as_deref() {
                    None => "cannot be had".to_owned(),
                    Some([Some(contents)]) => String::from_utf8_lossy(&contents[..24]).into_owned(),
                    Some(_) => "zeros".to_owned(),
                };
                println!("{what:12} page {page}: {line}");
                return;
            }
        }
        if woken.recv_timeout(Duration::from_secs(10)).is_err() {
            println!("{what:12} page {page}: no answer");
            return;
        }
    }
}

fn main() -> std::io::Result<()> {
    show("zero-fill", Box::new(ZeroFill::default()), 0);
    show("compressed", Box::new(Compressed::default()), 0);
    let letters = |offset: u64, page: &mut [u8]| {
        for (at, byte) in (offset..).zip(page) {
            *byte = b'a' + (at / 4096 % 26) as u8;
        }
    };
    show(
        "generated",
        Box::new(Generated::new(letters, Writes::Kept)),
        3,
    );
    // A pager of a file waits for the disk, so it gets a thread of its own.
    let this = std::fs::File::open(std::env::current_exe()?)?;
    show("file", threaded(Box::new(FilePager::new(this, false)?))?, 1);
    let own = Greeting {
        control: None,
        size: 0,
    };
    show("your own", Box::new(own), 7);
    Ok(())
}

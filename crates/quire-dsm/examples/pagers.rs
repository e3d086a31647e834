//! Pagers: those that are there, and one of your own, behind a server and used by a program.
//!
//! ```sh
//! cargo run -p quire-dsm --example pagers
//! ```
//!
//! A pager supplies the contents of one memory object, and takes back what was written. It
//! is told what the server needs, and answers through its `Control`, now or later. Programs
//! see memory, whoever stands behind it.

use std::error::Error;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use quire_core::dsm::message::{Access, Pages};
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Options};
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::pager::{
    Attributes, Backed, Compressed, Contents, Control, FilePager, Generated, Pager, Writes,
    ZeroFill, threaded,
};
use quire_dsm::server::{self, Offer, PAGER_PATIENCE, Server};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

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

/// The pagers, each behind an object of its own.
fn pagers() -> Outcome<Vec<(&'static str, Box<dyn Pager>)>> {
    let letters = |offset: u64, page: &mut [u8]| {
        for (at, byte) in (offset..).zip(page) {
            *byte = b'a' + (at / 4096 % 26) as u8;
        }
    };
    let own = Greeting {
        control: None,
        size: 0,
    };
    let this = FilePager::new(File::open(std::env::current_exe()?)?, false)?;
    Ok(vec![
        ("zero-fill", Box::new(ZeroFill::default())),
        ("compressed", Box::new(Compressed::default())),
        ("generated", Box::new(Generated::new(letters, Writes::Kept))),
        // A pager of a file waits for the disk, so it gets a thread of its own.
        ("file", threaded(Box::new(this))?),
        ("your-own", Box::new(own)),
    ])
}

/// An object of 1 MiB that everybody may read and write to.
fn offer(name: &str) -> Outcome<Offer> {
    Ok(Offer {
        object: Object {
            name: name.parse()?,
            size: Bytes::mib(1),
            page_size: PageSize::BASE,
            scheduler: SchedulerKind::Multi,
            machine: MachineCode(0),
            tags: Vec::new(),
        },
        owner: "nobody".to_owned(),
        anyone: Rights {
            read: true,
            write: true,
        },
        patience: PAGER_PATIENCE,
    })
}

/// Serves until the other end of `end` is closed. Says where.
fn serve(end: &UnixStream, ready: &mpsc::Sender<Address>) -> Outcome<()> {
    let name: Name = "server".parse()?;
    let mut turn = Turn::new(Config::new(Hello {
        name: name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    }))?;
    let at = ["127.0.0.1:0".parse()?];
    let at = server::listen(&mut turn, &at, &Security::Automatic(None))?;
    let mut server = Server::new(name, server::LEASE);
    for (name, pager) in pagers()? {
        server.create_with_pager(offer(name)?, pager)?;
    }
    for address in at {
        ready.send(address)?;
    }
    server::serve(&mut turn, &mut server, end.as_fd())?;
    Ok(())
}

/// Shows how a page begins, and what becomes of it when it is written to.
fn show(client: &Client, name: &str, page: u64) -> Outcome<()> {
    let at = ObjectOffset(page * 4096);
    let mut begins = [0; 24];
    let both = Rights {
        read: true,
        write: true,
    };
    let only_read = Rights {
        read: true,
        write: false,
    };
    let (shared, may_write) = match client.open(name.parse()?, both) {
        Ok(shared) => (shared, true),
        Err(_) => (client.open(name.parse()?, only_read)?, false),
    };
    shared.checked_read_at(at, &mut begins)?;
    let text = String::from_utf8_lossy(&begins).replace(|c: char| c.is_control(), "\u{b7}");
    let written = match may_write {
        true => {
            shared.checked_write_at(at, b"written")?;
            shared.flush()?;
            "written to, and given back"
        }
        false => "can only be read",
    };
    println!("{name:12} page {page}: {text}   {written}");
    Ok(())
}

fn main() -> Outcome<()> {
    let (end, ended) = UnixStream::pair()?;
    let (ready, is_ready) = mpsc::channel();
    let server = thread::spawn(move || serve(&ended, &ready));
    if let Ok(address) = is_ready.recv() {
        let client = Client::connect(Options::new(address.into(), "program".parse()?))?;
        for (name, page) in [
            ("zero-fill", 0),
            ("compressed", 0),
            ("generated", 3),
            ("file", 1),
            ("your-own", 7),
        ] {
            show(&client, name, page)?;
        }
    }
    drop(end);
    server.join().map_err(|_| "the server has failed")?
}

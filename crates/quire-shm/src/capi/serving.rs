//! A server in a program in C, whose objects have pagers of the program's own.
//!
//! It gets its objects first. Then it starts: a thread makes the server and runs its loop until
//! the program ends it.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::pager::{Pager, threaded};
use quire_dsm::server::{self, Offer, PAGER_PATIENCE, Server};
use quire_dsm::wire::control::{Hello, MachineCode, Name, Object, PageSize, Rights, Role};

use super::arguments::{self, Identity, Shape, bad};
use super::pager::{CPager, Callbacks};
use super::{answer, given, status};
use crate::trouble::{Result, Trouble};

/// `quire_dsm_server`.
struct Serving {
    name: Name,
    security: Security,
    stage: Mutex<Stage>,
}

/// How far a server is. The lock is held only to look and to change it: nothing waits, and no
/// function of the program's is called meanwhile.
struct Stage {
    /// What it will have, until it is to start, with or without success.
    offers: Option<Vec<Offered>>,
    running: Option<Running>,
}

/// An object that a server will have.
struct Offered {
    offer: Offer,
    pager: CPager,
    /// Whether the pager gets a thread of its own.
    waits: bool,
}

/// A server that has started.
struct Running {
    /// It ends when the other end of this is closed.
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    at: CString,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

impl Serving {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in an object that it will have, if it can.
    fn offer(
        &self,
        object: Object,
        anyone: Rights,
        pager: impl FnOnce() -> Result<CPager>,
        waits: bool,
    ) -> Result<()> {
        let mut stage = self.stage();
        let started = || bad("the server has started: objects are offered before that");
        let offers = stage.offers.as_mut().ok_or_else(started)?;
        let mut names = offers.iter().map(|it| &it.offer.object.name);
        if names.any(|name| *name == object.name) {
            let text = format!("there is an object {} already", object.name);
            return Err(Trouble::new(libc::EEXIST, text));
        }
        let pager = pager()?;
        let offer = Offer {
            object,
            owner: format!("uid:{}", rustix::process::geteuid().as_raw()),
            anyone,
            patience: PAGER_PATIENCE,
        };
        offers.push(Offered {
            offer,
            pager,
            waits,
        });
        Ok(())
    }

    /// Starts it, and waits until it listens. Says where.
    fn start(&self, address: Address) -> Result<*const c_char> {
        let offers = self.stage().offers.take();
        let started = || bad("the server was started already: make another one");
        let offers = offers.ok_or_else(started)?;
        let (end, ended) = UnixStream::pair().map_err(system)?;
        let (ready, is_ready) = mpsc::channel();
        let (name, security) = (self.name.clone(), self.security.clone());
        let thread = thread::Builder::new()
            .name("quire-serve".into())
            .spawn(move || serve(name, &security, offers, &address, &ended, &ready))
            .map_err(system)?;
        let mut running = Running {
            end: Some(end),
            thread: Some(thread),
            at: CString::default(),
        };
        let listening = is_ready.recv();
        let gone = |_| Trouble::new(libc::EIO, "the server's thread has ended");
        let at = listening.map_err(gone)??.to_string();
        running.at = CString::new(at).map_err(bad)?;
        Ok(self.stage().running.insert(running).at.as_ptr())
    }
}

fn system(error: io::Error) -> Trouble {
    let of_kind = match error.kind() {
        ErrorKind::AddrInUse => libc::EADDRINUSE,
        ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    };
    Trouble::new(error.raw_os_error().unwrap_or(of_kind), error.to_string())
}

/// The thread of a server.
fn serve(
    name: Name,
    security: &Security,
    offers: Vec<Offered>,
    address: &Address,
    end: &UnixStream,
    ready: &Sender<Result<Address>>,
) {
    let begun = begin(name, security, offers, address);
    let (mut turn, mut server, at) = match begun {
        Ok(begun) => begun,
        Err(trouble) => return drop(ready.send(Err(trouble))),
    };
    if ready.send(Ok(at)).is_err() {
        return;
    }
    if let Err(error) = server::serve(&mut turn, &mut server, end.as_fd()) {
        tracing::error!("the server has ended: {error}");
    }
}

fn begin(
    name: Name,
    security: &Security,
    offers: Vec<Offered>,
    address: &Address,
) -> Result<(Turn, Server, Address)> {
    let hello = Hello {
        name: name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut turn = Turn::new(Config::new(hello)).map_err(system)?;
    let at = server::listen(&mut turn, std::slice::from_ref(address), security);
    let at = at.map_err(system)?.pop().unwrap_or(address.clone());
    let mut server = Server::new(name, server::LEASE);
    for Offered {
        offer,
        pager,
        waits,
    } in offers
    {
        let pager: Box<dyn Pager> = Box::new(pager);
        let pager = match waits {
            true => threaded(pager).map_err(system)?,
            false => pager,
        };
        let made = server.create_with_pager(offer, pager);
        made.map_err(|failure| Trouble::from(quire_dsm::client::ClientError::from(failure)))?;
    }
    Ok((turn, server, at))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_server_new(who: *const Identity) -> *mut c_void {
    let made = || {
        // SAFETY: the header asks for a structure of C strings.
        let who = unsafe { arguments::identity(who)? };
        let security = who.security();
        let serving = Serving {
            security: security.map_err(|e| Trouble::new(libc::EACCES, e.to_string()))?,
            name: who.identity(),
            stage: Mutex::new(Stage {
                offers: Some(Vec::new()),
                running: None,
            }),
        };
        Ok(Box::into_raw(Box::new(serving)).cast())
    };
    answer(made(), ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_server_offer(
    server: *mut c_void,
    name: *const c_char,
    size: u64,
    shape: *const Shape,
    anyone: *const c_char,
    pager: *const Callbacks,
    context: *mut c_void,
) -> c_int {
    let offer = || {
        // SAFETY: the header asks for a server that is not ended, C strings, and structures of them
        // and of functions that do what it says. Other threads may use the server, too: nothing but
        // its lock gives more than a look at it.
        unsafe {
            let server = given::<Serving>(server.cast())?;
            let name = arguments::read(name, "the name")?;
            let object = arguments::object(name, size, shape)?;
            let anyone = arguments::text(anyone)?;
            let anyone = arguments::rights(anyone.as_deref().unwrap_or("none"))?;
            let callbacks = given(pager)?;
            let pager = || CPager::new(*callbacks, context);
            server.offer(object, anyone, pager, callbacks.may_wait != 0)
        }
    };
    status(offer())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_server_start(
    server: *mut c_void,
    address: *const c_char,
) -> *const c_char {
    let start = || {
        // SAFETY: the header asks for a server that is not ended, and a C string. As above, other
        // threads may use the server.
        let (server, address) = unsafe {
            let address = arguments::read(address, "the address")?;
            (given::<Serving>(server.cast())?, address)
        };
        server.start(address)
    };
    answer(start(), ptr::null())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quire_dsm_server_end(server: *mut c_void) -> c_int {
    if server.is_null() {
        return status(Err(bad("a null pointer")));
    }
    // SAFETY: `quire_dsm_server_new` gave it, and the program gives it up.
    drop(unsafe { Box::from_raw(server.cast::<Serving>()) });
    0
}

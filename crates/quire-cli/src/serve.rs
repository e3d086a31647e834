//! `quire serve`: an object server, alone or joined to others.

mod joining;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use quire_dsm::link::identity::Files;
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Identity, Security, Turn};
use quire_dsm::pager::{FilePager, threaded};
use quire_dsm::server::{self, Ended, Offer, PAGER_PATIENCE, Server};
use quire_dsm::store::{Settings, Store};
use quire_dsm::wire::control::{
    Hello, MachineCode, Name, Object, PageSize, Rights, Role, SchedulerKind,
};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::ClockId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracing::Level;

use crate::args::dsm::{Export, Grant, ServeArgs, TlsArgs};
use crate::dsm::settings;
use crate::failure::{Failure, Outcome};

/// What a server is called that has no other name.
const NAME: &str = "server";

/// Serves until a signal ends it, which may take some seconds; another one ends it at once.
pub fn serve(options: &ServeArgs) -> Outcome<()> {
    log(Level::WARN);
    let options = &settings::served(options)?;
    let name = options.name.clone().unwrap_or_else(|| Name::like(NAME));
    let (end, signalled) = UnixStream::pair().map_err(refused)?;
    let is_ending = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // A second one ends it at once, as if nothing caught it.
        let at_once = 128 + signal;
        flag::register_conditional_shutdown(signal, at_once, is_ending.clone()).map_err(refused)?;
        flag::register(signal, is_ending.clone()).map_err(refused)?;
        pipe::register(signal, signalled.try_clone().map_err(refused)?).map_err(refused)?;
    }
    let hello = Hello {
        name: name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut config = Config::new(hello.clone());
    config.spin = Duration::from_micros(options.spin.into());
    config.realtime = !options.no_realtime;
    let mut turn = Turn::new(config).map_err(refused)?;
    let security = security(&options.tls, &name)?;
    secured(&security, &options.listen)?;
    let mut server = prepared(options, name)?;
    let at = server::listen(&mut turn, &options.listen, &security)
        .map_err(|error| cannot_listen(&error))?;
    if let Some(joining) = joining::joining(options, &at, &security, hello)? {
        server.join(&turn, joining).map_err(refused)?;
    }
    let mut stdout = io::stdout().lock();
    for address in at {
        writeln!(stdout, "serving at {address}")?;
    }
    stdout.flush()?;
    drop(stdout);
    match server::serve(&mut turn, &mut server, end.as_fd()).map_err(refused)? {
        Ended::Whole => Ok(()),
        Ended::Lost => Err(Failure::system(
            "some of what this server had is lost; the lines before say what",
        )),
    }
}

/// A server with the objects that it begins with.
fn prepared(options: &ServeArgs, name: Name) -> Outcome<Server> {
    let mut server = Server::new(name, options.lease);
    let grants = options.grant.iter().cloned();
    server.grant_usually(grants.map(|Grant { to, rights }| (to, rights)).collect());
    server.limit_memory(options.memory);
    server.number_from(first_number());
    let now = rustix::time::clock_gettime(ClockId::Realtime);
    server.stamp_from((now.tv_sec as u64) << 30 | now.tv_nsec as u64);
    if let Some(directory) = &options.store {
        let store = Store::open(directory, &Settings::default())
            .map_err(|error| Failure::bad_usage(format!("--store: {error}")))?;
        server.keep_in(store).map_err(refused)?;
    }
    let exports = options.export.iter().map(|export| (export, false));
    let writable = options.export_writable.iter().map(|export| (export, true));
    for (export, may_write) in exports.chain(writable) {
        show(&mut server, export, may_write).map_err(|why| {
            let Export { name, file } = export;
            Failure::bad_usage(format!("cannot export {name}={}: {why}", file.display()))
        })?;
    }
    Ok(server)
}

/// From where this server numbers programs: far from where the one did that it is started in the place of.
fn first_number() -> u64 {
    let mut random = [0; 8];
    // Without it, the clock tells them apart.
    let random = match getrandom(&mut random, GetRandomFlags::NONBLOCK) {
        Ok(_) => u64::from_ne_bytes(random),
        Err(_) => rustix::time::clock_gettime(ClockId::Realtime)
            .tv_sec
            .unsigned_abs(),
    };
    (random & u64::from(u32::MAX)) << 29
}

/// Shows a file as an object.
fn show(server: &mut Server, export: &Export, may_write: bool) -> Result<(), String> {
    let told = |error: io::Error| error.to_string();
    let mut open = File::options();
    let file = open.read(true).write(may_write).open(&export.file);
    let file = file.map_err(told)?;
    if !file.metadata().map_err(told)?.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let pager = FilePager::new(file, may_write).map_err(told)?;
    let offer = Offer {
        object: Object {
            scheduler: SchedulerKind::Multi,
            ..Object::usual(export.name.clone(), pager.length())
        },
        owner: format!("uid:{}", rustix::process::getuid().as_raw()),
        anyone: Rights {
            read: true,
            write: may_write,
        },
        patience: PAGER_PATIENCE,
    };
    let pager = threaded(Box::new(pager)).map_err(told)?;
    let made = server.create_with_pager(offer, pager);
    made.map_err(|failure| failure.to_string())
}

/// Why it cannot listen, with the remedy.
fn cannot_listen(error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "; a server may be there already: name another with --listen",
        io::ErrorKind::AddrNotAvailable => "; name an address of this machine with --listen",
        io::ErrorKind::AlreadyExists => "; name a path at which nothing is with --listen",
        io::ErrorKind::NotFound => "; make the directory of the socket first",
        io::ErrorKind::PermissionDenied => {
            "; name a port from 1024 on, or a socket in a directory of your own"
        }
        _ => "",
    };
    Failure::bad_usage(format!("cannot listen at {error}{remedy}"))
}

fn refused(error: io::Error) -> Failure {
    Failure::system(error.to_string())
}

/// Writes what is logged to standard error, from this level on.
pub fn log(level: Level) {
    let subscriber = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_max_level(level);
    // Only one is there in a process: this one.
    let _ = subscriber.try_init();
}

/// Whether all addresses can be used that need TLS.
///
/// # Errors
/// Which one cannot, and what to do.
pub fn secured<'a>(
    security: &Security,
    addresses: impl IntoIterator<Item = &'a Address>,
) -> Outcome<()> {
    let mut addresses = addresses.into_iter();
    match addresses.find(|address| security.lacks_identity(address)) {
        None => Ok(()),
        Some(address) => Err(Failure::bad_usage(format!(
            "{address} can be reached from other machines, and there is no certificate: give one \
             with --certificate, --key and --ca, or allow plain text with --plaintext, where nobody \
             listens on the way"
        ))),
    }
}

/// How links are secured.
pub fn security(options: &TlsArgs, name: &Name) -> Outcome<Security> {
    if options.plaintext {
        return Ok(Security::Plaintext);
    }
    let (Some(certificate), Some(key), Some(ca)) =
        (&options.certificate, &options.key, &options.ca)
    else {
        return Ok(Security::Automatic(None));
    };
    let files = Files {
        certificate: certificate.clone(),
        key: key.clone(),
        authority: ca.clone(),
    };
    let identity = Identity::load(name, &files).map_err(|e| Failure::bad_usage(e.to_string()))?;
    let identity = Arc::new(identity);
    Ok(match options.tls_everywhere {
        true => Security::Tls(identity),
        false => Security::Automatic(Some(identity)),
    })
}

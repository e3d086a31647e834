//! `quire serve`: an object server.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use quire_dsm::link::identity::Files;
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Identity, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{Hello, MachineCode, Name, PageSize, Role};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use tracing::Level;

use crate::args::dsm::{ServeArgs, TlsArgs};
use crate::failure::{Failure, Outcome};

/// Serves until a signal ends it.
pub fn serve(options: &ServeArgs) -> Outcome<()> {
    log(Level::WARN);
    let (end, signalled) = UnixStream::pair().map_err(refused)?;
    for signal in [SIGINT, SIGTERM] {
        pipe::register(signal, signalled.try_clone().map_err(refused)?).map_err(refused)?;
    }
    let mut config = Config::new(Hello {
        name: options.name.clone(),
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    });
    config.spin = Duration::from_micros(options.spin.into());
    let mut turn = Turn::new(config).map_err(refused)?;
    let security = security(&options.tls, &options.name)?;
    let at = server::listen(&mut turn, &options.listen, &security)
        .map_err(|error| Failure::bad_usage(format!("cannot listen: {error}")))?;
    let mut stdout = io::stdout().lock();
    for address in at {
        writeln!(stdout, "serving at {address}")?;
    }
    stdout.flush()?;
    drop(stdout);
    let mut server = Server::new(options.name.clone(), options.lease);
    server::serve(&mut turn, &mut server, end.as_fd()).map_err(refused)
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

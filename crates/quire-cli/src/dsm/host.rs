//! The server of `quire dsm demo`: a process, so that it can have a network namespace of its
//! own. It ends with whoever started it, however that ends: when its input does.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use quire_dsm::link::address::AddressError;
use quire_dsm::link::turn::Config;
use quire_dsm::link::{Address, Security, Turn};
use quire_dsm::server::{self, Server};
use quire_dsm::wire::control::{Hello, MachineCode, NameError, PageSize, Role};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tracing::Level;

use crate::args::dsm::HostArgs;
use crate::failure::{Failure, Outcome};
use crate::serve;

/// A directory that goes at the end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // What cannot be removed is an empty directory among temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Serves until the input ends. Signals for all of a terminal's processes do not end it:
/// whoever started it ends then, and with that the input.
pub fn host(options: &HostArgs) -> Outcome<()> {
    serve::log(Level::ERROR);
    for signal in [SIGINT, SIGTERM] {
        flag::register(signal, Arc::default()).map_err(refused)?;
    }
    let made = DirBuilder::new().mode(0o700).create(&options.directory);
    made.map_err(|error| {
        let directory = options.directory.display();
        Failure::system(format!(
            "{directory}: {error}; set TMPDIR to another directory"
        ))
    })?;
    let directory = Directory(options.directory.clone());
    let socket = format!("unix:{}/socket", directory.0.display());
    let socket = socket.parse();
    let socket = socket.map_err(|error: AddressError| Failure::bad_usage(error.to_string()))?;
    serve_at(&[socket, options.listen.clone()])
}

fn serve_at(addresses: &[Address]) -> Outcome<()> {
    let name = "demo".parse();
    let name = name.map_err(|error: NameError| Failure::bad_usage(error.to_string()))?;
    let hello = Hello {
        name,
        role: Role::Server,
        machine: MachineCode(0),
        page_size: PageSize::BASE,
        features: 0,
    };
    let mut server = Server::new(hello.name.clone(), server::LEASE);
    let mut turn = Turn::new(Config::new(hello)).map_err(refused)?;
    // Only the demonstration is in the network that it made.
    let at = server::listen(&mut turn, addresses, &Security::Plaintext).map_err(refused)?;
    let mut stdout = io::stdout().lock();
    for address in at {
        writeln!(stdout, "serving at {address}")?;
    }
    stdout.flush()?;
    drop(stdout);
    server::serve(&mut turn, &mut server, io::stdin().as_fd()).map_err(refused)?;
    Ok(())
}

fn refused(error: io::Error) -> Failure {
    Failure::system(error.to_string())
}

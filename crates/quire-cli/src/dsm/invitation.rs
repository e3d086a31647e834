//! `quire dsm invite` and `quire dsm join`: a file that lets a machine in. It has the address of the server,
//! a name, a certificate for that with its key, and the certificate of the CA. The CA and the certificate of
//! this machine's server are made with the first one.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use quire_dsm::link::identity::{self, Authority, Files, Pair, Validity};
use quire_dsm::link::{Address, Addresses, Identity};
use quire_dsm::wire::control::Name;
use serde::Deserialize;

use super::certify;
use super::settings::{self, Settings};
use crate::args::dsm::{InviteArgs, JoinArgs};
use crate::failure::{Failure, Outcome};

/// Standard input or output.
const STANDARD: &str = "-";
/// What the server is called, and its programs here.
const SERVER: &str = "server";
/// An invitation is no longer, in bytes.
const LONGEST: u64 = 1 << 20;

/// An invitation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Invitation {
    server: String,
    identity: Name,
    ca: String,
    certificate: String,
    key: String,
}

fn at(path: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |error| Failure::bad_usage(format!("{}: {error}", path.display()))
}

fn unfit(error: impl ToString) -> Failure {
    Failure::bad_usage(error.to_string())
}

/// Where the files of this user are.
struct Home {
    settings: PathBuf,
    directory: PathBuf,
}

impl Home {
    fn make() -> Outcome<Home> {
        let settings = settings::place()?;
        let directory = settings.parent().unwrap_or(Path::new(".")).to_owned();
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory);
        made.map_err(at(&directory))?;
        Ok(Home {
            settings,
            directory,
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes the settings of somebody who has a certificate here, which must not be there yet.
    fn write_settings(&self, server: &str, name: &Name, more: &str) -> Outcome<()> {
        let text = format!(
            "server = {}\nidentity = \"{name}\"\ncertificate = \"{name}.pem\"\nkey = \"{name}.key\"\n\
             ca = \"ca.pem\"\n{more}",
            quoted(server)
        );
        write_new(&self.settings, &text, 0o644)
    }
}

/// A string in TOML.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

fn write_new(path: &Path, text: &str, mode: u32) -> Outcome<()> {
    identity::write_new(path, text, mode).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => unfit(format!(
            "{} is there already: move it away, or have another written with --output FILE",
            path.display()
        )),
        _ => at(path)(error),
    })
}

/// Makes an invitation, and with the first one what a server needs.
pub fn invite(options: &InviteArgs) -> Outcome<()> {
    if options.name.as_str() == SERVER {
        return Err(unfit(
            "the server is called so: take another name for who is let in",
        ));
    }
    let home = Home::make()?;
    let known = Settings::at(&home.settings)?;
    let server = server(options, &known)?;
    let authority = authority(&home, &server, options.days)?;
    let validity = Validity::days(options.days);
    let pair = authority.issue(&options.name, validity).map_err(unfit)?;
    let text = text(&server, &options.name, &authority, &pair);
    let file = options.output.clone();
    let file = file.unwrap_or_else(|| format!("{}.invitation", options.name).into());
    if file.as_os_str() == STANDARD {
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    write_new(&file, &text, 0o600)?;
    let shown = file.display();
    Ok(writeln!(
        io::stdout(),
        "{shown} lets {} in: bring it there, so that nobody else reads it, and run quire dsm join {shown}",
        options.name
    )?)
}

/// Where others reach the server: said now, or before.
fn server(options: &InviteArgs, known: &Settings) -> Outcome<Addresses> {
    match (&options.server, &known.server) {
        (Some(said), Some(known)) if said != known => Err(unfit(format!(
            "the settings of this user name another server, {known}: leave out --server, or say {said} there"
        ))),
        (Some(server), _) | (None, Some(server)) => {
            server.iter().try_for_each(reachable)?;
            Ok(server.clone())
        }
        (None, None) => Err(unfit(
            "say where others reach the server of this machine: --server HOST:PORT",
        )),
    }
}

/// Refuses an address that no other machine can reach.
fn reachable(address: &Address) -> Outcome<()> {
    let why = match address {
        Address::Unix(_) => "is a socket of this machine",
        Address::Tcp(tcp) if tcp.port() == 0 => "has no port that anybody could know",
        Address::Tcp(tcp) if tcp.ip().is_unspecified() => "stands for all addresses of a machine",
        Address::Tcp(_) if address.is_local() => "is the loopback of this machine",
        Address::Tcp(_) => return Ok(()),
    };
    Err(unfit(format!(
        "{address} {why}: say by which address other machines reach this one, as --server HOST:PORT"
    )))
}

/// Says so where `quire serve` will not be able to listen at the first address: another machine has it.
fn warn_of_foreign(server: &Addresses) -> Outcome<()> {
    let first = server.iter().next();
    if let Some(Address::Tcp(address)) = first
        && UdpSocket::bind((address.ip(), 0))
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
    {
        writeln!(
            io::stderr(),
            "quire: warning: {} is no address of this machine, so quire serve cannot listen there: where \
             it is forwarded to this machine, write the address to listen at into dsm.toml ([serve] listen)",
            address.ip()
        )?;
    }
    Ok(())
}

/// The CA of this user, which is made with the first invitation, and the certificate and settings of the
/// server with it.
fn authority(home: &Home, server: &Addresses, days: u32) -> Outcome<Authority> {
    let (certificate, key) = (home.file("ca.pem"), home.file("ca.key"));
    if key.exists() {
        return Authority::load(&certificate, &key).map_err(unfit);
    }
    if home.settings.exists() || certificate.exists() {
        return Err(unfit(format!(
            "{} has no ca.key: invite on the machine that has it, or move dsm.toml and ca.pem away to \
             begin anew",
            home.directory.display()
        )));
    }
    warn_of_foreign(server)?;
    let authority = certify::authority(&home.directory, days).map_err(unfit)?;
    let name = Name::like(SERVER);
    let pair = authority
        .issue(&name, Validity::days(days))
        .map_err(unfit)?;
    let (certificate, key) = (home.file("server.pem"), home.file("server.key"));
    pair.write(&certificate, &key).map_err(unfit)?;
    let listen = server.iter().next().map(|first| quoted(&first.to_string()));
    let more = format!(
        "\n[serve]\nlisten = [{}]\n# All who are let in may use what any of them makes.\n\
         grant = [\"anyone=rw\"]\n",
        listen.unwrap_or_default()
    );
    home.write_settings(&server.to_string(), &name, &more)?;
    Ok(authority)
}

fn text(server: &Addresses, name: &Name, authority: &Authority, pair: &Pair) -> String {
    format!(
        "# Lets {name} in, by `quire dsm join`. Who reads this can come as {name}.\n\
         server = {}\nidentity = \"{name}\"\nca = '''\n{}'''\ncertificate = '''\n{}'''\nkey = '''\n{}'''\n",
        quoted(&server.to_string()),
        authority.pair().certificate,
        pair.certificate,
        pair.key
    )
}

/// Takes an invitation.
pub fn join(options: &JoinArgs) -> Outcome<()> {
    let bad = |why: String| unfit(format!("{}: {why}", options.invitation.display()));
    let text = read(&options.invitation)?;
    let invitation: Invitation = toml::from_str(&text)
        .map_err(|error| bad(format!("it is no invitation: {}", error.message())))?;
    let server: Addresses = invitation
        .server
        .parse()
        .map_err(|error| bad(format!("{error}")))?;
    let home = Home::make()?;
    let name = &invitation.identity;
    let files = Files {
        certificate: home.file(&format!("{name}.pem")),
        key: home.file(&format!("{name}.key")),
        authority: home.file("ca.pem"),
    };
    let ours = [
        &files.certificate,
        &files.key,
        &files.authority,
        &home.settings,
    ];
    if home.file("ca.key").exists() {
        return Err(unfit(format!(
            "{} has a CA of its own, which lets others in: it joins nobody",
            home.directory.display()
        )));
    }
    match ours.iter().find(|file| file.exists()) {
        Some(file) if !options.replace => {
            return Err(unfit(format!(
                "{} is there already: this user has joined before; --replace joins anew",
                file.display()
            )));
        }
        _ => ours.iter().for_each(|file| drop(fs::remove_file(file))),
    }
    let pair = Pair {
        certificate: invitation.certificate,
        key: invitation.key,
    };
    let joined = pair.write(&files.certificate, &files.key).map_err(unfit);
    let joined = joined
        .and_then(|()| write_new(&files.authority, &invitation.ca, 0o644))
        .and_then(|()| Identity::load(name, &files).map(drop).map_err(unfit))
        .and_then(|()| home.write_settings(&server.to_string(), name, ""));
    if joined.is_err() {
        ours.iter().for_each(|file| drop(fs::remove_file(file)));
        return joined;
    }
    Ok(writeln!(
        io::stdout(),
        "joined as {name}: quire run --dsm NAME gives programs objects of {server}"
    )?)
}

fn read(path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let read = match path.as_os_str() == STANDARD {
        true => io::stdin().take(LONGEST).read_to_string(&mut text),
        false => File::open(path).and_then(|file| file.take(LONGEST).read_to_string(&mut text)),
    };
    read.map_err(at(path))?;
    Ok(text)
}

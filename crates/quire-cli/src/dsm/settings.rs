//! What is said once about shared memory across machines: in `~/.config/quire/dsm.toml`, and for all users of
//! a machine in `/etc/quire/dsm.toml`. What the command line and `QUIRE_SERVER` say goes before, then what
//! the user's file says. `QUIRE_DSM_CONFIG` names a file that is read in the place of both.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quire_dsm::link::identity::Files;
use quire_dsm::link::{Address, Addresses, Identity, Security};
use quire_dsm::wire::control::Name;
use serde::Deserialize;

use crate::args::dsm::{ADDRESS, Grant, ServeArgs, ServerArgs, TlsArgs};
use crate::failure::{Failure, Outcome};
use crate::serve;

/// The variable that names a file.
const ENV: &str = "QUIRE_DSM_CONFIG";
/// Where all users find one.
const OF_ALL: &str = "/etc/quire/dsm.toml";
/// What a file is called, in the directory of a user's settings.
const OF_USER: &str = "quire/dsm.toml";

/// A file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    server: Option<String>,
    identity: Option<Name>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    ca: Option<PathBuf>,
    serve: Serving,
}

/// What it says of a server on this machine.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Serving {
    listen: Vec<String>,
    store: Option<PathBuf>,
    grant: Vec<String>,
}

/// What is said, read and put together.
#[derive(Debug, Default)]
pub struct Settings {
    /// Where the server is, or servers that are joined.
    pub server: Option<Addresses>,
    /// The name in the certificate, and its files.
    pub identity: Option<(Name, Files)>,
    listen: Vec<Address>,
    store: Option<PathBuf>,
    grant: Vec<Grant>,
}

/// The file of this user.
///
/// # Errors
/// When nothing says where that is.
pub fn place() -> Outcome<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty());
    if let Some(path) = named(ENV) {
        return Ok(path.into());
    }
    let home = || named("HOME").map(|home| Path::new(&home).join(".config"));
    let directory = named("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let directory = directory.ok_or_else(|| {
        Failure::bad_usage(format!(
            "neither HOME nor {ENV} says where dsm.toml is: set one"
        ))
    })?;
    Ok(directory.join(OF_USER))
}

/// Whether a variable names the only file.
fn is_named() -> bool {
    std::env::var_os(ENV).is_some_and(|path| !path.is_empty())
}

/// Whether a file is this user's.
fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.uid() == rustix::process::geteuid().as_raw())
}

impl Settings {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be read, or says what it cannot.
    pub fn read() -> Outcome<Settings> {
        if is_named() {
            let path = place()?;
            return Settings::found(&path)?.ok_or_else(|| {
                Failure::bad_usage(format!(
                    "{ENV} names {}, and there is no such file: name one that is there, or unset {ENV}",
                    path.display()
                ))
            });
        }
        let of_user =
            place().map_or_else(|_| Ok(Settings::default()), |path| Settings::at(&path))?;
        let of_all = Settings::at(Path::new(OF_ALL))?;
        let first = |one: Vec<_>, other| if one.is_empty() { other } else { one };
        Ok(Settings {
            server: of_user.server.or(of_all.server),
            identity: of_user.identity.or(of_all.identity),
            listen: first(of_user.listen, of_all.listen),
            store: of_user.store.or(of_all.store),
            grant: match of_user.grant.is_empty() {
                true => of_all.grant,
                false => of_user.grant,
            },
        })
    }

    /// What a file says; nothing where there is none.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn at(path: &Path) -> Outcome<Settings> {
        Ok(Settings::found(path)?.unwrap_or_default())
    }

    /// What a file says, where there is one.
    fn found(path: &Path) -> Outcome<Option<Settings>> {
        let bad =
            |why: &dyn std::fmt::Display| Failure::bad_usage(format!("{}: {why}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(None);
            }
            // Who keeps `HOME` and becomes another user has no settings there. One's own file is to be read.
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && !is_named() && !is_own(path) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(bad(&error)),
        };
        let file: File = toml::from_str(&text).map_err(|error| {
            let before = error.span().map(|span| &text[..span.start.min(text.len())]);
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            bad(&format!("line {line}: {}", in_words(error.message())))
        })?;
        let directory = path.parent().unwrap_or(Path::new("."));
        let beside = |file: PathBuf| directory.join(file);
        let identity = match (file.identity, file.certificate, file.key, file.ca) {
            (None, None, None, None) => None,
            (Some(name), Some(certificate), Some(key), Some(authority)) => Some((
                name,
                Files {
                    certificate: beside(certificate),
                    key: beside(key),
                    authority: beside(authority),
                },
            )),
            _ => {
                return Err(bad(
                    &"identity, certificate, key and ca go together: say all four",
                ));
            }
        };
        let address = |text: &String| text.parse().map_err(|error| bad(&error));
        let grant = |text: &String| text.parse().map_err(|error: String| bad(&error));
        Ok(Some(Settings {
            server: file
                .server
                .map(|text| text.parse().map_err(|error| bad(&error)))
                .transpose()?,
            identity,
            listen: file
                .serve
                .listen
                .iter()
                .map(address)
                .collect::<Outcome<_>>()?,
            store: file.serve.store.map(beside),
            grant: file.serve.grant.iter().map(grant).collect::<Outcome<_>>()?,
        }))
    }
}

/// What the reader of TOML says, in the words of TOML.
fn in_words(message: &str) -> String {
    message
        .replace(
            "expected a sequence",
            "expected a list, such as [\"10.0.0.5:7450\"]",
        )
        .replace("expected struct Serving", "expected a table: [serve]")
}

/// Where the server is that is meant where none is named.
pub fn usual(settings: &Settings) -> Outcome<Addresses> {
    let usual = || ADDRESS.parse().map_err(|_| Failure::system("no address"));
    settings.server.clone().map_or_else(usual, Ok)
}

/// A server, who this side is, and how the link is secured. The certificate of the settings is for servers
/// that need one, where the command line gives none.
///
/// # Errors
/// When files are wrong, or there is no certificate for a server that needs one.
pub fn reached(options: &ServerArgs) -> Outcome<(Addresses, Name, Security)> {
    let settings = Settings::read()?;
    let servers = match &options.server {
        Some(servers) => servers.clone(),
        None => usual(&settings)?,
    };
    let (name, tls) = identity(
        &options.tls,
        options.identity.as_ref(),
        &settings,
        servers.iter(),
    )?;
    let name = name.unwrap_or_else(|| Name::like("quire"));
    let security = serve::security(&tls, &name)?;
    serve::secured(&security, servers.iter())?;
    Ok((servers, name, security))
}

/// Who this side is, and its certificate: as the command line says it, or where an address needs a
/// certificate and it gives none, as the settings do.
///
/// # Errors
/// When the certificate of the settings is of no use.
pub fn identity<'a>(
    said: &TlsArgs,
    name: Option<&Name>,
    settings: &Settings,
    addresses: impl IntoIterator<Item = &'a Address>,
) -> Outcome<(Option<Name>, TlsArgs)> {
    let none = Security::Automatic(None);
    let mut addresses = addresses.into_iter();
    let is_said = said.certificate.is_some() || said.plaintext;
    let needs = !is_said && addresses.any(|address| none.lacks_identity(address));
    let Some((of_files, files)) = settings.identity.as_ref().filter(|_| needs) else {
        return Ok((name.cloned(), said.clone()));
    };
    let name = name.unwrap_or(of_files);
    Identity::load(name, files).map_err(|error| Failure::bad_usage(error.to_string()))?;
    let tls = TlsArgs {
        certificate: Some(files.certificate.clone()),
        key: Some(files.key.clone()),
        ca: Some(files.authority.clone()),
        ..said.clone()
    };
    Ok((Some(name.clone()), tls))
}

/// What a server is told, with what the settings say where the command line says nothing.
///
/// # Errors
/// As [`reached`].
pub fn served(options: &ServeArgs) -> Outcome<ServeArgs> {
    let settings = Settings::read()?;
    let mut all = options.clone();
    if all.listen.is_empty() {
        let usual = || ADDRESS.parse().map_err(|_| Failure::system("no address"));
        all.listen = match settings.listen.is_empty() {
            true => vec![usual()?],
            false => settings.listen.clone(),
        };
        // What is said of a server is said of the one that listens there.
        all.store = all.store.or_else(|| settings.store.clone());
        if all.grant.is_empty() {
            all.grant.clone_from(&settings.grant);
        }
    }
    let (name, tls) = identity(&options.tls, options.name.as_ref(), &settings, &all.listen)?;
    (all.name, all.tls) = (name, tls);
    Ok(all)
}

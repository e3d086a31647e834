//! How a server is joined to others: `--peers`, `--replicate-directory`, `--etcd` and
//! `--advertise`.

use std::net::IpAddr;
use std::sync::Arc;

use quire_dsm::directory::{
    Access, DirectoryError, Embedded, Etcd, EtcdFiles, EtcdUser, Plan, PlanError, Remote,
    Replicated, Shared,
};
use quire_dsm::link::identity::IdentityError;
use quire_dsm::link::{Address, Security};
use quire_dsm::server::{Host, Joining};
use quire_dsm::wire::control::Hello;

use super::refused;
use crate::args::dsm::ServeArgs;
use crate::failure::{Failure, Outcome};

/// Under which keys servers find each other in etcd.
const PREFIX: &str = "/quire/";

/// How a server that listens at these addresses is joined to others, if it is to be.
pub fn joining(
    options: &ServeArgs,
    at: &[Address],
    security: &Security,
    hello: Hello,
) -> Outcome<Option<Joining>> {
    if options.peers.is_empty() && options.etcd.is_none() {
        return Ok(None);
    }
    let address = match (&options.advertise, at.first()) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) if !is_any(address) => address.clone(),
        _ => {
            return Err(Failure::bad_usage(
                "others cannot reach the address that this server listens at; give the one \
                 that they can reach with --advertise"
                    .to_owned(),
            ));
        }
    };
    super::secured(security, options.peers.iter().chain([&address]))?;
    check_peers(&options.peers, &address)?;
    let names = match options.peer_server.is_empty() {
        true => vec![hello.name.clone()],
        false => options.peer_server.clone(),
    };
    let (directory, host) = directory(options, &address, security, hello)?;
    Ok(Some(Joining {
        directory,
        host,
        address,
        names,
        security: security.clone(),
    }))
}

/// Refuses a list of servers that cannot be reached by it, and says so where this one is not in it: it may
/// join late, or be called by another address than the others think.
fn check_peers(peers: &[Address], own: &Address) -> Outcome<()> {
    let has_no_port = |peer: &&Address| matches!(peer, Address::Tcp(tcp) if tcp.port() == 0);
    if let Some(peer) = peers.iter().find(has_no_port) {
        return Err(Failure::bad_usage(format!(
            "--peers: nobody can connect to {peer}: say the port at which that server listens"
        )));
    }
    if !peers.is_empty() && !peers.contains(own) {
        tracing::warn!(
            "{own}, by which others reach this server, is not in --peers: it joins the servers of that list; \
             if it was meant to be one of them, give all the same list, and this one --advertise ADDRESS as it \
             stands there"
        );
    }
    Ok(())
}

/// Through what servers agree, and where that is.
fn directory(
    options: &ServeArgs,
    own: &Address,
    security: &Security,
    hello: Hello,
) -> Outcome<(Shared, Host)> {
    let system = |error: DirectoryError| Failure::system(error.to_string());
    if let Some(urls) = &options.etcd {
        return Ok((etcd(options, urls)?, Host::Another));
    }
    if let Some(place) = &options.replicate_directory {
        return replicated(Plan {
            peers: options.peers.clone(),
            own: own.clone(),
            place: place.clone(),
            lease: options.lease,
            security: security.clone(),
            hello,
            realtime: !options.no_realtime,
        });
    }
    let Some(first) = options.peers.first() else {
        return Err(Failure::bad_usage("--peers names no server".to_owned()));
    };
    if first == own {
        let embedded = Embedded::new(None).map_err(system)?;
        return Ok((Arc::new(embedded), Host::This));
    }
    let remote = Remote::new(first.clone(), security.clone(), hello).map_err(refused)?;
    Ok((Arc::new(remote), Host::Another))
}

/// The directory that all servers keep together.
fn replicated(plan: Plan) -> Outcome<(Shared, Host)> {
    let opened = Replicated::open(plan).map_err(|error| match error {
        PlanError::Thread(error) => refused(error),
        error => Failure::bad_usage(format!("--replicate-directory: {error}")),
    })?;
    let host = Host::All(opened.inbox());
    Ok((Arc::new(opened), host))
}

/// An etcd cluster, as it is to be reached.
fn etcd(options: &ServeArgs, urls: &str) -> Outcome<Shared> {
    let etcd = Etcd::connect(urls, PREFIX, access(options, urls)?);
    let etcd = etcd.map_err(|error| {
        if let DirectoryError::Misnamed(why) = error {
            return Failure::bad_usage(format!("--etcd: {why}"));
        }
        let error = error.to_string();
        Failure::system(format!("{error}{}", remedy(options, urls, &error)))
    })?;
    Ok(Arc::new(etcd))
}

fn is_secured(urls: &str) -> bool {
    urls.split(',').any(|url| url.trim().starts_with("https:"))
}

/// What is shown to an etcd, and demanded of it.
fn access(options: &ServeArgs, urls: &str) -> Outcome<Access> {
    if options.etcd_ca.is_none() && is_secured(urls) {
        return Err(Failure::bad_usage(format!(
            "{urls}: give the CA that etcd's certificate is from with --etcd-ca FILE"
        )));
    }
    let certificate = options.etcd_certificate.clone();
    let own = certificate.zip(options.etcd_key.clone());
    let files = options.etcd_ca.clone().map(|authority| {
        let files = EtcdFiles { authority, own };
        files.load()
    });
    let user = options.etcd_user.as_deref();
    let user = user.zip(options.etcd_password_file.as_deref());
    let user = user.map(|(name, file)| EtcdUser::load(name, file));
    let bad = |error: IdentityError| Failure::bad_usage(error.to_string());
    Ok(Access {
        tls: files.transpose().map_err(bad)?,
        user: user.transpose().map_err(bad)?,
    })
}

/// What may help where an etcd refuses.
fn remedy(options: &ServeArgs, urls: &str, error: &str) -> &'static str {
    if error.contains("user name is empty") {
        "; give a user that it knows with --etcd-user and --etcd-password-file"
    } else if error.contains("permission denied") {
        "; grant the user's role to read and write all under /quire/: \
         etcdctl role grant-permission ROLE readwrite --prefix /quire/"
    } else if options.etcd_certificate.is_none() && is_secured(urls) {
        "; where it demands certificates, give one with --etcd-certificate and --etcd-key"
    } else {
        ""
    }
}

/// Whether an address stands for all of a machine.
fn is_any(address: &Address) -> bool {
    match address {
        Address::Tcp(address) => match address.ip() {
            IpAddr::V4(ip) => ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_unspecified(),
        },
        Address::Unix(_) => false,
    }
}

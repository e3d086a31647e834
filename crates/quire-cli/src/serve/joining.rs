//! How a server is joined to others: `--peers`, `--etcd` and `--advertise`.

use std::net::IpAddr;
use std::sync::Arc;

use quire_dsm::directory::{Embedded, Etcd, EtcdFiles, Remote, Shared};
use quire_dsm::link::{Address, Security};
use quire_dsm::server::Joining;
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
    let is_host = options.peers.first() == Some(&address);
    let names = match options.fellow.is_empty() {
        true => vec![options.name.clone()],
        false => options.fellow.clone(),
    };
    Ok(Some(Joining {
        directory: directory(options, is_host, security, hello)?,
        is_host,
        address,
        names,
        security: security.clone(),
    }))
}

/// Through what servers agree.
fn directory(
    options: &ServeArgs,
    is_host: bool,
    security: &Security,
    hello: Hello,
) -> Outcome<Shared> {
    let system = |error: quire_dsm::directory::DirectoryError| Failure::system(error.to_string());
    if let Some(urls) = &options.etcd {
        return etcd(options, urls);
    }
    if is_host {
        return Ok(Arc::new(Embedded::new(None).map_err(system)?));
    }
    let Some(first) = options.peers.first() else {
        return Err(Failure::bad_usage("--peers names no server".to_owned()));
    };
    let remote = Remote::new(first.clone(), security.clone(), hello).map_err(refused)?;
    Ok(Arc::new(remote))
}

/// An etcd cluster, as it is to be reached.
fn etcd(options: &ServeArgs, urls: &str) -> Outcome<Shared> {
    let is_secured = urls.split(',').any(|url| url.trim().starts_with("https:"));
    let tls = match &options.etcd_ca {
        None if is_secured => {
            return Err(Failure::bad_usage(format!(
                "{urls}: give the CA that etcd's certificate is from with --etcd-ca FILE"
            )));
        }
        None => None,
        Some(authority) => {
            let certificate = options.etcd_certificate.clone();
            let files = EtcdFiles {
                authority: authority.clone(),
                own: certificate.zip(options.etcd_key.clone()),
            };
            let loaded = files.load();
            Some(loaded.map_err(|error| Failure::bad_usage(error.to_string()))?)
        }
    };
    let remedy = match options.etcd_certificate {
        None if is_secured => {
            "; where it demands certificates, give one with --etcd-certificate and --etcd-key"
        }
        _ => "",
    };
    let etcd = Etcd::connect(urls, PREFIX, tls);
    let etcd = etcd.map_err(|error| Failure::system(format!("{error}{remedy}")))?;
    Ok(Arc::new(etcd))
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

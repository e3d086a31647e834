//! TLS with an etcd: which CA its certificate must be from, and what this side shows it. Unlike
//! servers of ours, an etcd is known by the name or address in its URL.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::link::identity::{self, IdentityError};

/// The files with certificates for an etcd, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdFiles {
    /// The certificate of the CA that etcd's is from.
    pub authority: PathBuf,
    /// This side's certificate and its key, where etcd demands one.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl EtcdFiles {
    /// Reads them, for [`super::Etcd::connect`].
    ///
    /// # Errors
    /// When one cannot be read, does not hold what it should, or others may read the key.
    pub fn load(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        let mut roots = RootCertStore::empty();
        for certificate in identity::read_certificates(&self.authority)? {
            roots.add(certificate)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.own else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let chain = identity::read_certificates(certificate)?;
        let pem = identity::read_secret(key)?;
        let key =
            PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| IdentityError::Pem {
                path: key.clone(),
                what: "key",
            })?;
        Ok(Arc::new(builder.with_client_auth_cert(chain, key)?))
    }
}

/// What is wrong with a session, for a person.
pub(super) fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;
    match error {
        E::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is not from the CA that was given for it".into()
        }
        E::InvalidCertificate(_) => format!("its certificate {}", identity::explain(error)),
        E::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA,
        ) => "it demands a certificate of this side, from a CA that it knows".into(),
        other => other.to_string(),
    }
}

//! Certificates. A CA of one's own issues one to each node, for its name. Whoever has a
//! certificate of this CA may connect, and nobody can take another node's name.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};

use crate::wire::control::Name;

pub use self::validity::Validity;

mod validity;

/// How a CA is called. Its key tells it from others.
const AUTHORITY: &str = "quire CA";

/// What a client expects of a server of which it does not know the name.
const ANY_NAME: &str = "any.quire.invalid";

/// A file with certificates or a key is no longer, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Before its end, a certificate is warned about for so long.
const SOON: Duration = Duration::from_secs(14 * 86400);

/// What is wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file that would be written is there.
    #[error("{0} is there already: move it away, or take another name or directory")]
    Exists(PathBuf),
    /// Others than its owner may use a key, or a password.
    #[error(
        "{path} is secret, and others than its owner may use it (mode {mode:03o}): chmod 600 {path}"
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{path} holds no {what} in PEM form")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The own certificate is of no use.
    #[error("our certificate for {name} {problem}")]
    Useless {
        /// For whom.
        name: Name,
        /// What is wrong with it.
        problem: String,
    },
    /// A name that no certificate can have.
    #[error(
        "{0} cannot be a name in a certificate: take small letters and digits, like node1 or node1.lab"
    )]
    Name(Name),
    /// A certificate would be valid for longer than that of its CA.
    #[error(
        "certificates for {asked} days are asked for, and the CA's own is valid for {left} days more: take no more than that, or make another CA"
    )]
    TooLong {
        /// For how many days from now.
        asked: u64,
        /// For how many days the CA's own is.
        left: u64,
    },
    /// The certificate's libraries refuse it.
    #[error("certificates: {0}")]
    Other(String),
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> IdentityError {
        IdentityError::Other(error.to_string())
    }
}

impl From<rustls::Error> for IdentityError {
    fn from(error: rustls::Error) -> IdentityError {
        match error {
            rustls::Error::InconsistentKeys(_) => IdentityError::Other(
                "the key is not that of the certificate: give the .key that was made with the .pem"
                    .to_owned(),
            ),
            error => IdentityError::Other(error.to_string()),
        }
    }
}

/// A certificate and its key, in PEM form.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key. Nobody else should see it.
    pub key: String,
}

impl Pair {
    /// Writes both into files that must not be there yet; the key for its owner alone.
    ///
    /// # Errors
    /// When a file is there, or cannot be written.
    pub fn write(&self, certificate: &Path, key: &Path) -> Result<(), IdentityError> {
        let write = |path: &Path, text, mode| {
            write_new(path, text, mode).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => IdentityError::Exists(path.into()),
                _ => IdentityError::File {
                    path: path.into(),
                    error,
                },
            })
        };
        write(key, &self.key, 0o600)?;
        write(certificate, &self.certificate, 0o644)
    }
}

/// Writes a file that must not be there yet, onto the disk.
///
/// # Errors
/// `AlreadyExists`, and what else the system says.
pub fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A CA. It issues certificates to nodes.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pair: Pair,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn generate(validity: Validity) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = authority_params()?;
        validity.apply(&mut params);
        let pair = Pair {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        Ok(Authority {
            issuer: Issuer::new(params, key),
            pair,
        })
    }

    /// One that was generated before.
    ///
    /// # Errors
    /// When files cannot be read, or others may read the key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Authority, IdentityError> {
        let pair = Pair {
            certificate: read(certificate)?,
            key: read_secret(key)?,
        };
        Ok(Authority {
            issuer: Issuer::new(authority_params()?, KeyPair::from_pem(&pair.key)?),
            pair,
        })
    }

    /// Its certificate and key.
    #[must_use]
    pub const fn pair(&self) -> &Pair {
        &self.pair
    }

    /// Whether certificates may be valid for so long: no longer than the CA's own, but for clocks
    /// that are late.
    ///
    /// # Errors
    /// For how long they may be.
    pub fn allows(&self, validity: Validity) -> Result<(), IdentityError> {
        let end = validity::end_of(&self.pair.certificate).unwrap_or(SystemTime::UNIX_EPOCH);
        if validity.until > end + validity::LATE {
            return Err(IdentityError::TooLong {
                asked: validity::days_until(validity.until + validity::LATE),
                left: validity::days_until(end),
            });
        }
        Ok(())
    }

    /// A certificate for a node, for both ends of a connection.
    ///
    /// # Errors
    /// When the name cannot be in one, it would be valid for longer than the CA's own, or no key can
    /// be made.
    pub fn issue(&self, name: &Name, validity: Validity) -> Result<Pair, IdentityError> {
        dns_name(name)?;
        self.allows(validity)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_string()])?;
        params.distinguished_name = named(name.as_str());
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        validity.apply(&mut params);
        Ok(Pair {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn authority_params() -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = named(AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// The name as it stands in a certificate. To certificates, `Node1` and `node1.` are the same
/// as `node1`; to whoever gives rights they would be three, so only the last can be one.
fn dns_name(name: &Name) -> Result<ServerName<'static>, IdentityError> {
    let refused = || IdentityError::Name(name.clone());
    let text = name.as_str();
    if text.ends_with('.') || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(refused());
    }
    DnsName::try_from(text.to_owned())
        .map(ServerName::DnsName)
        .map_err(|_| refused())
}

/// The files of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Its certificate, in PEM form; others that lead to the CA's may follow.
    pub certificate: PathBuf,
    /// Its key. Only its owner may read it.
    pub key: PathBuf,
    /// The CA's certificate.
    pub authority: PathBuf,
}

/// A node's certificate, ready to be used for both ends of connections.
pub struct Identity {
    name: Name,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Identity {
    /// Reads a node's files.
    ///
    /// # Errors
    /// When one cannot be read, others may read the key, or the certificate is of no use:
    /// it has ended, is for another name, or not of this CA.
    pub fn load(name: &Name, files: &Files) -> Result<Identity, IdentityError> {
        let chain = read_certificates(&files.certificate)?;
        let key = read_secret(&files.key)?;
        let key =
            PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| IdentityError::Pem {
                path: files.key.clone(),
                what: "key",
            })?;
        let roots = read_certificates(&files.authority)?;
        let identity = Identity::new(name, chain.clone(), key, roots)?;
        identity.check(&chain, UnixTime::now())?;
        Ok(identity)
    }

    /// From certificates that were read before. They are not checked: a peer does that.
    ///
    /// # Errors
    /// When they and the key do not belong together.
    pub fn new(
        name: &Name,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authority: Vec<CertificateDer<'static>>,
    ) -> Result<Identity, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in authority {
            roots.add(certificate)?;
        }
        let roots = Arc::new(roots);
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let verifier = builder
            .build()
            .map_err(|error| IdentityError::Other(error.to_string()))?;
        Ok(Identity {
            name: name.clone(),
            client: client_config(&provider, &roots, chain.clone(), key.clone_key())?,
            server: server_config(&provider, &verifier, chain, key)?,
            verifier,
        })
    }

    /// A pair with its CA's certificate, all in PEM form, without files.
    ///
    /// # Errors
    /// When something is missing in them, or they do not belong together.
    pub fn from_pem(name: &Name, pair: &Pair, authority: &str) -> Result<Identity, IdentityError> {
        let missing = |what: &str| IdentityError::Other(format!("no {what} in PEM form"));
        let chain = certificates(&pair.certificate).ok_or_else(|| missing("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes());
        let key = key.map_err(|_| missing("key"))?;
        let roots = certificates(authority).ok_or_else(|| missing("certificate of a CA"))?;
        Identity::new(name, chain, key, roots)
    }

    /// Whom it names.
    #[must_use]
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Whether peers will accept it.
    fn check(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Result<(), IdentityError> {
        let useless = |problem| IdentityError::Useless {
            name: self.name.clone(),
            problem,
        };
        is_for(&chain[0], &self.name).map_err(useless)?;
        let verifier = &self.verifier;
        let verify = |at| verifier.verify_client_cert(&chain[0], &chain[1..], at);
        verify(now).map_err(|error| useless(explain(&error)))?;
        let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON);
        if let Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) = verify(soon)
        {
            let left = span(not_after.as_secs().saturating_sub(now.as_secs()));
            tracing::warn!(name = %self.name, "our certificate ends in {left}: issue a new one");
        }
        Ok(())
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.name)
    }
}

fn read(path: &Path) -> Result<String, IdentityError> {
    let read = || {
        if fs::metadata(path)?.len() > MAX_FILE {
            return Err(io::Error::other("too long for a certificate or key"));
        }
        fs::read_to_string(path)
    };
    read().map_err(|error| IdentityError::File {
        path: path.into(),
        error,
    })
}

/// A file that nobody but its owner may read.
pub(crate) fn read_secret(path: &Path) -> Result<String, IdentityError> {
    let text = read(path)?;
    let metadata = fs::metadata(path).map_err(|error| IdentityError::File {
        path: path.into(),
        error,
    })?;
    match metadata.mode() & 0o777 {
        mode if mode & 0o077 == 0 => Ok(text),
        mode => Err(IdentityError::Permissions {
            path: path.into(),
            mode,
        }),
    }
}

/// The certificates of a file, at least one.
pub(crate) fn read_certificates(
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    certificates(&read(path)?).ok_or_else(|| IdentityError::Pem {
        path: path.into(),
        what: "certificate",
    })
}

/// At least one certificate.
fn certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.ok().filter(|all| !all.is_empty())
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let verifier = NodeVerifier {
        roots: Arc::clone(roots),
        provider: Arc::clone(provider),
    };
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)?;
    // Each connection looks at certificates anew.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    verifier: &Arc<dyn ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::clone(verifier))
        .with_single_cert(chain, key)?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What a client expects of a server: a certificate of the CA, and where it knows the name,
/// that the certificate is for it.
#[derive(Debug)]
struct NodeVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        if server_name.to_str() != ANY_NAME {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// What a client shall find at the other end: a certificate for this name, or any.
pub(super) fn expected_name(name: Option<&Name>) -> Result<ServerName<'static>, IdentityError> {
    match name {
        Some(name) => dns_name(name),
        None => {
            ServerName::try_from(ANY_NAME).map_err(|error| IdentityError::Other(error.to_string()))
        }
    }
}

/// Whether a certificate is for a name; if not, what is wrong.
pub(super) fn is_for(certificate: &CertificateDer<'_>, name: &Name) -> Result<(), String> {
    let wanted = dns_name(name).map_err(
        |_| "cannot have that name: take small letters and digits, like node1 or node1.lab",
    )?;
    ParsedCertificate::try_from(certificate)
        .and_then(|certificate| verify_server_name(&certificate, &wanted))
        .map_err(|error| explain(&error))
}

/// What is wrong with a certificate, or with a session, as the end of a sentence.
pub(crate) fn explain(error: &rustls::Error) -> String {
    use CertificateError as E;
    let rustls::Error::InvalidCertificate(problem) = error else {
        return error.to_string();
    };
    match problem {
        E::Expired => "has ended: issue a new one".into(),
        E::ExpiredContext { time, not_after } => format!(
            "ended {} ago: issue a new one",
            span(time.as_secs().saturating_sub(not_after.as_secs()))
        ),
        E::NotValidYet => "is not valid yet: look at the clocks of both machines".into(),
        E::NotValidYetContext { time, not_before } => format!(
            "is not valid for another {}: look at the clocks of both machines",
            span(not_before.as_secs().saturating_sub(time.as_secs()))
        ),
        E::UnknownIssuer | E::BadSignature => "is not from our CA: use one CA for all nodes".into(),
        E::NotValidForName => "is for another name".into(),
        E::NotValidForNameContext {
            expected,
            presented,
        } => {
            // Each is written as a kind of name with the name in quotes.
            let names = presented
                .iter()
                .map(|name| name.split('"').nth(1).unwrap_or(name));
            let names = names.collect::<Vec<_>>().join(", ");
            format!("is for {names}, not for {}", expected.to_str())
        }
        other => format!("is of no use: {other}"),
    }
}

/// A number of seconds for a person.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} seconds"),
        120..7200 => format!("{} minutes", seconds / 60),
        7200..172_800 => format!("{} hours", seconds / 3600),
        _ => format!("{} days", seconds / 86400),
    }
}

//! TLS over a transport. The transport is read into one piece of memory, so that a message
//! comes with one read, and rustls takes its records from there.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use rustls::{ClientConnection, Connection, ServerConnection};

use super::connection::{LinkError, Pulled};
use super::identity::{Identity, expected_name, explain, is_for};
use super::transport::Transport;
use crate::wire::control::Name;
use crate::wire::{Decoder, Outgoing};

/// Memory for what was read and is still encrypted, in bytes.
const CIPHER: usize = 32 << 10;

/// A session.
pub struct Tls {
    session: Connection,
    /// What was read and is still encrypted lies from `start` to `end`.
    cipher: Vec<u8>,
    start: usize,
    end: usize,
    /// The transport had no more when it was read last.
    drained: bool,
}

impl Tls {
    /// The side that connects. The other must have a certificate, for this name if there is
    /// one.
    pub fn client(identity: &Identity, expected: Option<&Name>) -> Result<Tls, LinkError> {
        let name = expected_name(expected).map_err(|error| LinkError::Tls(error.to_string()))?;
        let session = ClientConnection::new(Arc::clone(&identity.client), name);
        Ok(Tls::new(Connection::Client(session.map_err(broken)?)))
    }

    /// The side that accepts.
    pub fn server(identity: &Identity) -> Result<Tls, LinkError> {
        let session = ServerConnection::new(Arc::clone(&identity.server));
        Ok(Tls::new(Connection::Server(session.map_err(broken)?)))
    }

    fn new(session: Connection) -> Tls {
        Tls {
            session,
            cipher: vec![0; CIPHER],
            start: 0,
            end: 0,
            drained: false,
        }
    }

    /// Whether both sides know each other's certificate.
    pub fn is_ready(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// Whether it has something to send by itself.
    pub fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    /// Whether the peer's certificate is for a name; if not, what is wrong.
    pub fn peer_is(&self, name: &Name) -> Result<(), String> {
        match self.session.peer_certificates() {
            Some([certificate, ..]) => is_for(certificate, name),
            _ => Err("was not shown".into()),
        }
    }

    /// Brings bytes to the decoder. `until_end`: read on until the end of the stream is met.
    pub fn pull(
        &mut self,
        transport: &mut dyn Transport,
        decoder: &mut Decoder,
        until_end: bool,
    ) -> Result<Pulled, LinkError> {
        loop {
            match decoder.fill(|pieces| self.session.reader().read_vectored(pieces)) {
                Ok(filled) if filled.bytes == 0 => return Err(LinkError::Ended),
                Ok(filled) => return Ok(Pulled::Bytes(filled.bytes)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(LinkError::Ended);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if self.start == self.end && !self.read(transport, until_end)? {
                return Ok(Pulled::Nothing);
            }
            self.decrypt(transport)?;
        }
    }

    /// Reads the transport; says whether something came.
    fn read(&mut self, transport: &mut dyn Transport, until_end: bool) -> Result<bool, LinkError> {
        if std::mem::take(&mut self.drained) && !until_end {
            return Ok(false);
        }
        match transport.read(&mut [IoSliceMut::new(&mut self.cipher)]) {
            Ok(0) => Err(LinkError::Ended),
            Ok(bytes) => {
                self.start = 0;
                self.end = bytes;
                self.drained = bytes < self.cipher.len() && !transport.may_have_more();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives rustls what was read.
    fn decrypt(&mut self, transport: &mut dyn Transport) -> Result<(), LinkError> {
        let mut rest = &self.cipher[self.start..self.end];
        self.session.read_tls(&mut rest)?;
        self.start = self.end - rest.len();
        if let Err(error) = self.session.process_new_packets() {
            // The peer is told why, if it still listens.
            let _ = self.session.write_tls(&mut Writer(transport));
            return Err(broken(error));
        }
        Ok(())
    }

    /// Sends what is to be sent; says whether all of it is gone.
    pub fn push(
        &mut self,
        transport: &mut dyn Transport,
        outgoing: &mut Outgoing,
    ) -> Result<bool, LinkError> {
        loop {
            if self.is_ready() {
                self.encrypt(outgoing)?;
            }
            if !self.session.wants_write() {
                return Ok(true);
            }
            match self.session.write_tls(&mut Writer(transport)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Gives rustls as much of what is queued as it takes.
    fn encrypt(&mut self, outgoing: &mut Outgoing) -> Result<(), LinkError> {
        let result = outgoing.write_to(|pieces, descriptors| {
            if !descriptors.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "TLS carries no descriptors",
                ));
            }
            match self.session.writer().write_vectored(pieces)? {
                0 => Err(io::ErrorKind::WouldBlock.into()),
                bytes => Ok(bytes),
            }
        });
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => Ok(other?),
        }
    }
}

/// A session that cannot go on.
fn broken(error: rustls::Error) -> LinkError {
    use rustls::AlertDescription as A;
    let text = match &error {
        rustls::Error::InvalidCertificate(_) => {
            format!("the peer's certificate {}", explain(&error))
        }
        rustls::Error::AlertReceived(A::CertificateExpired) => {
            "the peer says that our certificate has ended, or is not valid yet".into()
        }
        rustls::Error::AlertReceived(A::UnknownCA | A::DecryptError) => {
            "the peer says that our certificate is not from its CA".into()
        }
        rustls::Error::AlertReceived(A::BadCertificate) => {
            "the peer says that our certificate is not for the name that it expects".into()
        }
        rustls::Error::InvalidMessage(what) => {
            format!("this is no TLS ({what:?}): maybe the peer is not quire, or set to plain text")
        }
        _ => error.to_string(),
    };
    LinkError::Tls(text)
}

/// A transport to which rustls writes.
struct Writer<'a>(&'a mut dyn Transport);

impl Write for Writer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&[IoSlice::new(bytes)], &[], false)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write(pieces, &[], false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! A connection to an etcd, plain or with TLS. Until a moment the answer has to begin, in however
//! many pieces it comes; from then on, each piece has its time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// A connection.
pub(super) enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

/// Whom a certificate has to name, and what to show and to demand.
pub(super) type Tls = (ServerName<'static>, Arc<ClientConfig>);

impl Stream {
    /// Connects to a host and port within a time; what is asked has to be answered until then.
    ///
    /// # Errors
    /// Where nobody is there, or not in time.
    pub(super) fn open(
        authority: &str,
        tls: Option<Tls>,
        (within, until): (Duration, Instant),
    ) -> io::Result<Stream> {
        let socket = connect(authority, within)?;
        socket.set_nodelay(true)?;
        let until = Some(until);
        let timed = Timed { socket, until };
        let Some((name, config)) = tls else {
            return Ok(Stream::Plain(timed));
        };
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(session, timed))))
    }

    /// The answer has begun: from now on each piece has so long.
    pub(super) fn begun(&mut self, each: Duration) -> io::Result<()> {
        let timed = match self {
            Stream::Plain(timed) => timed,
            Stream::Tls(session) => session.get_mut(),
        };
        timed.until = None;
        timed.socket.set_read_timeout(Some(each))
    }

    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(timed) => &timed.socket,
            Stream::Tls(session) => &session.get_ref().socket,
        }
    }
}

/// Tries each address of a host in its part of the time.
fn connect(authority: &str, within: Duration) -> io::Result<TcpStream> {
    let addresses: Vec<_> = authority.to_socket_addrs()?.collect();
    let each = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in &addresses {
        match TcpStream::connect_timeout(address, each) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.read(buffer),
            Stream::Tls(session) => session.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(timed) => timed.write(bytes),
            Stream::Tls(session) => session.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(timed) => timed.flush(),
            Stream::Tls(session) => session.flush(),
        }
    }
}

/// A socket that is used until a moment.
pub(super) struct Timed {
    socket: TcpStream,
    until: Option<Instant>,
}

impl Timed {
    /// What is left of the time; `None` where there is no end.
    fn left(&self) -> io::Result<Option<Duration>> {
        let Some(until) = self.until else {
            return Ok(None);
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.socket.set_read_timeout(Some(left))?;
        }
        self.socket.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(left) = self.left()? {
            self.socket.set_write_timeout(Some(left))?;
        }
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

//! As much of HTTP/1.1 as it takes to speak with etcd's JSON gateway: one request for each
//! connection, answers of a length, in chunks, or up to the end.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustls::ClientConfig;
use serde_json::Value;

use super::endpoints::{Endpoint, Endpoints, PATIENCE};
use super::login::Login;
use super::secured::explain;
use super::socket::Stream;

/// An answer has at most so many bytes.
const LARGEST: u64 = 64 << 20;
/// A line of a header has at most so many bytes.
const LONGEST_LINE: u64 = 16 << 10;
/// A stream is looked at for a sign that the other side's machine lives so often.
const PULSE: Duration = Duration::from_secs(2);
/// A stream on which nothing comes looks up so often.
pub(super) const BLINK: Duration = Duration::from_millis(500);

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// None came, or one that says that there is no majority.
    Silent(String),
    /// The answer is no: the status, and what was said.
    Refused(u16, String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let tls = error.get_ref().and_then(|error| error.downcast_ref());
        Failure::Silent(match tls {
            Some(tls) => explain(tls),
            None if is_timeout(&error) => "no answer in time".to_owned(),
            None => error.to_string(),
        })
    }
}

/// A service at one of several addresses.
#[derive(Clone)]
pub(super) struct Client {
    endpoints: Arc<Endpoints>,
    tls: Option<Arc<ClientConfig>>,
    login: Option<Arc<Login>>,
}

/// What is sent.
#[derive(Clone, Copy)]
struct Request<'a> {
    path: &'a str,
    body: &'a Value,
    token: Option<&'a str>,
    /// How long an answer is waited for.
    patience: Duration,
}

impl Client {
    /// The endpoints of a list of URLs with commas between, what to show and to demand where
    /// they speak TLS, and as which user to come.
    ///
    /// # Errors
    /// Which of them is wrong, and how it would be right.
    pub(super) fn new(
        urls: &str,
        tls: Option<Arc<ClientConfig>>,
        login: Option<Login>,
    ) -> Result<Client, String> {
        let endpoints = Endpoints::new(urls)?;
        if tls.is_none() && endpoints.have_tls() {
            return Err(format!("{urls}: certificates are needed for https"));
        }
        Ok(Client {
            endpoints: Arc::new(endpoints),
            tls,
            login: login.map(Arc::new),
        })
    }

    /// Where the service listens.
    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Sends JSON and reads the JSON that answers, from whichever endpoint does. This is for
    /// what is read, and for leases: who does not answer at once is passed over.
    pub(super) fn ask(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.request((path, body), self.endpoints.patience(), |request| {
            self.post_any(request)
        })
    }

    /// As [`Client::ask`], for what changes something, and may wait for a disk: an endpoint that
    /// has taken it has longer. Where the answer is lost, the next one is asked for the same,
    /// so it may be done twice.
    pub(super) fn change(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        Ok(self.change_once(path, body)?.0)
    }

    /// The same, and whether it was sent more than once.
    pub(super) fn change_once(&self, path: &str, body: &Value) -> Result<(Value, bool), Failure> {
        let sent = Cell::new(0u64);
        let answer = self.request((path, body), PATIENCE, |request| {
            self.endpoints.any(|endpoint| {
                sent.set(sent.get() + 1);
                self.post_to(endpoint, request)
            })
        });
        Ok((answer?, sent.get() > 1))
    }

    /// Asks the endpoint that a stream comes from.
    pub(super) fn ask_same(
        &self,
        lines: &Lines,
        path: &str,
        body: &Value,
    ) -> Result<Value, Failure> {
        self.request((path, body), self.endpoints.patience(), |request| {
            self.post_to(lines.endpoint, request)
        })
    }

    /// Sends JSON and returns the answer as a stream of lines.
    pub(super) fn stream(&self, path: &str, body: &Value) -> Result<Lines, Failure> {
        self.request((path, body), self.endpoints.patience(), |request| {
            let open = |endpoint| Ok(Lines::new(self.open(endpoint, request)?, endpoint)?);
            self.endpoints.any(open)
        })
    }

    /// Does something with a request, which has a token where there is a user.
    fn request<T>(
        &self,
        (path, body): (&str, &Value),
        patience: Duration,
        act: impl Fn(Request<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let request = |token: Option<&str>| {
            act(Request {
                path,
                body,
                token,
                patience,
            })
        };
        let Some(login) = &self.login else {
            return request(None);
        };
        let authenticate = |body: &Value| {
            self.post_any(Request {
                path: "/v3/auth/authenticate",
                body,
                token: None,
                patience: PATIENCE,
            })
        };
        login.with_token(authenticate, |token| request(Some(token)))
    }

    fn post_any(&self, request: Request<'_>) -> Result<Value, Failure> {
        self.endpoints
            .any(|endpoint| self.post_to(endpoint, request))
    }

    fn post_to(&self, endpoint: usize, request: Request<'_>) -> Result<Value, Failure> {
        let bytes = self.open(endpoint, request)?.rest()?;
        serde_json::from_slice(&bytes).map_err(|_| Failure::Refused(200, reason(&bytes)))
    }

    /// Sends a request; what follows the header of an answer that is good.
    fn open(&self, endpoint: usize, request: Request<'_>) -> Result<Body, Failure> {
        let mut from = BufReader::new(self.send(endpoint, request)?);
        let first = line(&mut from)?;
        let status = first.split(' ').nth(1);
        let status = status.and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| Failure::Silent(format!("no HTTP: {first:?}")))?;
        let length = length(&mut from)?;
        from.get_mut().begun(request.patience)?;
        let body = Body {
            from,
            length,
            header: Vec::new(),
        };
        match status {
            200 => Ok(body),
            // No leader, or no answer in time: another endpoint may have one.
            500.. => Err(Failure::Silent(reason(&body.rest()?))),
            _ => Err(Failure::Refused(status, reason(&body.rest()?))),
        }
    }

    /// Sends a request. It asks for a leader: an etcd that knows of none says so at once, also
    /// on a stream, where it would be silent otherwise.
    fn send(&self, endpoint: usize, request: Request<'_>) -> io::Result<Stream> {
        let Endpoint { authority, name } = self.endpoints.at(endpoint);
        let tls = name.clone().zip(self.tls.clone());
        let until = Instant::now() + request.patience;
        let within = self.endpoints.patience();
        let mut stream = Stream::open(authority, tls, (within, until))?;
        let body = request.body.to_string();
        let token = request
            .token
            .map(|token| format!("Authorization: {token}\r\n"));
        let request = format!(
            "POST {} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n\
             Grpc-Metadata-hasleader: true\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n\
             {body}",
            request.path,
            token.unwrap_or_default(),
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        Ok(stream)
    }
}

/// What an answer says that is not good: the gateway gives a message in JSON.
fn reason(answer: &[u8]) -> String {
    let said: Option<Value> = serde_json::from_slice(answer).ok();
    match said.as_ref().and_then(message) {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(answer).trim().to_owned(),
    }
}

/// The message of an error. On a stream it lies deeper.
pub(super) fn message(said: &Value) -> Option<&str> {
    ["/error/message", "/message", "/error"]
        .iter()
        .find_map(|place| said.pointer(place)?.as_str())
}

/// Reads the rest of a header; how long what follows is.
fn length(from: &mut BufReader<Stream>) -> io::Result<Length> {
    let mut length = Length::ToEnd;
    loop {
        let header = line(from)?.to_ascii_lowercase();
        if header.is_empty() {
            return Ok(length);
        }
        let header = header.split_once(':');
        match header.map(|(name, value)| (name, value.trim())) {
            Some(("content-length", value)) => {
                length = value.parse().map_or(Length::ToEnd, Length::Left);
            }
            Some(("transfer-encoding", "chunked")) => length = Length::Chunk(0),
            _ => {}
        }
    }
}

/// A line of a header, without its end.
fn line(from: &mut BufReader<Stream>) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.by_ref()
        .take(LONGEST_LINE)
        .read_until(b'\n', &mut bytes)?;
    if bytes.pop() != Some(b'\n') {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

enum Length {
    ToEnd,
    /// Bytes that are left.
    Left(u64),
    /// Bytes that are left of this chunk.
    Chunk(u64),
}

/// What follows the header of an answer. A read that times out can be tried again.
struct Body {
    from: BufReader<Stream>,
    length: Length,
    /// The beginning of a chunk, as far as it has come.
    header: Vec<u8>,
}

impl Body {
    /// All of it.
    fn rest(self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the beginning of the next chunk; its length.
    fn next_chunk(&mut self) -> io::Result<u64> {
        loop {
            let room = LONGEST_LINE.saturating_sub(self.header.len() as u64);
            self.from
                .by_ref()
                .take(room)
                .read_until(b'\n', &mut self.header)?;
            if self.header.last() != Some(&b'\n') {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&self.header).trim().to_owned();
            self.header.clear();
            // The end of the chunk before.
            if text.is_empty() {
                continue;
            }
            let digits = text.split(';').next().unwrap_or_default();
            return u64::from_str_radix(digits, 16).map_err(io::Error::other);
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if matches!(self.length, Length::Chunk(0)) {
            self.length = match self.next_chunk()? {
                0 => Length::Left(0),
                length => Length::Chunk(length),
            };
        }
        let left = match &mut self.length {
            Length::ToEnd => return self.from.read(buffer),
            Length::Left(left) | Length::Chunk(left) => left,
        };
        let most = usize::try_from(*left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let got = self.from.read(&mut buffer[..most])?;
        if got == 0 && most > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        *left -= got as u64;
        Ok(got)
    }
}

/// An answer that goes on and on, line by line.
pub(super) struct Lines {
    /// Whom it comes from.
    endpoint: usize,
    body: BufReader<Body>,
    begun: Vec<u8>,
}

impl Lines {
    fn new(mut body: Body, endpoint: usize) -> io::Result<Lines> {
        body.from.get_mut().begun(BLINK)?;
        let socket = body.from.get_ref().socket();
        // So that a silent stream is known from a dead one.
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, PULSE)?;
        sockopt::set_tcp_keepintvl(socket, PULSE)?;
        sockopt::set_tcp_keepcnt(socket, 3)?;
        Ok(Lines {
            endpoint,
            body: BufReader::new(body),
            begun: Vec::new(),
        })
    }

    /// The number of the endpoint that it comes from.
    pub(super) fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// The next line; `None` where none has come for a moment. The last one may have no end.
    pub(super) fn next(&mut self) -> io::Result<Option<Value>> {
        match self.body.read_until(b'\n', &mut self.begun) {
            Ok(_) if self.begun.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                let line = std::mem::take(&mut self.begun);
                Ok(Some(serde_json::from_slice(&line)?))
            }
            Err(error) if is_timeout(&error) && (self.begun.len() as u64) < LARGEST => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

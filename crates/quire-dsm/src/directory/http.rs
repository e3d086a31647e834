//! As much of HTTP/1.1 as it takes to speak with etcd's JSON gateway: one request for each
//! connection, answers of a length, in chunks, or up to the end.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;

use super::login::Login;
use super::secured::explain;

/// An answer has at most so many bytes.
const LARGEST: u64 = 64 << 20;
/// A line of a header has at most so many bytes.
const LONGEST_LINE: u64 = 16 << 10;
/// How long to wait for a connection, and for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
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
            None if is_timeout(&error) => format!("no answer within {PATIENCE:?}"),
            None => error.to_string(),
        })
    }
}

/// An address of a service.
#[derive(Clone, Debug)]
struct Endpoint {
    /// Host and port.
    authority: String,
    /// Whom its certificate must name, where it speaks TLS.
    name: Option<ServerName<'static>>,
}

impl Endpoint {
    fn new(url: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{url}: an etcd is named as http://HOST:PORT or https://HOST:PORT");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let authority = rest.trim_end_matches('/');
        let (host, port) = authority
            .rsplit_once(':')
            .ok_or_else(|| format!("{url}: no port; etcd's is 2379"))?;
        port.parse::<u16>().map_err(|_| wrong())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = match scheme {
            "http" => None,
            "https" => Some(ServerName::try_from(host.to_owned()).map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        Ok(Endpoint {
            authority: authority.to_owned(),
            name,
        })
    }
}

/// Where a service listens: any of the addresses will do. The one that answered last is asked
/// first, so that one that is silent takes its time once, and not from each request.
#[derive(Clone)]
pub(super) struct Client {
    endpoints: Vec<Endpoint>,
    answers: Arc<AtomicUsize>,
    tls: Option<Arc<ClientConfig>>,
    login: Option<Arc<Login>>,
}

/// What is sent.
#[derive(Clone, Copy)]
struct Request<'a> {
    path: &'a str,
    body: &'a Value,
    token: Option<&'a str>,
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
        let endpoints: Result<Vec<_>, _> = urls
            .split(',')
            .map(|url| Endpoint::new(url.trim()))
            .collect();
        let endpoints = endpoints?;
        if tls.is_none() && endpoints.iter().any(|endpoint| endpoint.name.is_some()) {
            return Err(format!("{urls}: certificates are needed for https"));
        }
        Ok(Client {
            endpoints,
            answers: Arc::default(),
            tls,
            login: login.map(Arc::new),
        })
    }

    /// Sends JSON and reads the JSON that answers, from whichever endpoint does.
    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.with_token(|token| self.post_any(Request { path, body, token }))
    }

    /// Sends JSON and returns the answer as a stream of lines.
    pub(super) fn stream(&self, path: &str, body: &Value) -> Result<Lines, Failure> {
        self.with_token(|token| {
            let request = Request { path, body, token };
            self.any(|_, endpoint| match self.open(endpoint, request)? {
                (200, body) => Ok(Lines::new(body)?),
                (status, _) => Err(Failure::Refused(status, "no stream".to_owned())),
            })
        })
    }

    /// Does something with a token, where there is a user.
    fn with_token<T>(
        &self,
        request: impl Fn(Option<&str>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(login) = &self.login else {
            return request(None);
        };
        let authenticate = |body: &Value| {
            self.post_any(Request {
                path: "/v3/auth/authenticate",
                body,
                token: None,
            })
        };
        login.with_token(authenticate, |token| request(Some(token)))
    }

    fn post_any(&self, request: Request<'_>) -> Result<Value, Failure> {
        self.any(|at, endpoint| {
            let answer = self.post_to(endpoint, request);
            if !matches!(answer, Err(Failure::Silent(_))) {
                self.answers.store(at, Ordering::Relaxed);
            }
            answer
        })
    }

    /// Does something at whichever endpoint answers.
    fn any<T>(&self, ask: impl Fn(usize, &Endpoint) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut last = Failure::Silent("it has no address".to_owned());
        let first = self.answers.load(Ordering::Relaxed);
        let all = self.endpoints.iter().enumerate();
        for (at, endpoint) in all.clone().skip(first).chain(all.take(first)) {
            match ask(at, endpoint) {
                Err(Failure::Silent(why)) => {
                    last = Failure::Silent(format!("{}: {why}", endpoint.authority))
                }
                other => return other,
            }
        }
        Err(last)
    }

    fn connect(&self, endpoint: &Endpoint) -> io::Result<Stream> {
        let mut last = io::Error::from(ErrorKind::NotFound);
        for address in endpoint.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(socket) => return self.greet(endpoint, socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn greet(&self, endpoint: &Endpoint, socket: TcpStream) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        match (&endpoint.name, &self.tls) {
            (Some(name), Some(tls)) => {
                let session = ClientConnection::new(tls.clone(), name.clone());
                let session = session.map_err(io::Error::other)?;
                Ok(Stream::Tls(Box::new(StreamOwned::new(session, socket))))
            }
            _ => Ok(Stream::Plain(socket)),
        }
    }

    fn post_to(&self, endpoint: &Endpoint, request: Request<'_>) -> Result<Value, Failure> {
        let (status, answer) = self.open(endpoint, request)?;
        let mut bytes = Vec::new();
        answer.take(LARGEST).read_to_end(&mut bytes)?;
        match status {
            200 => {
                serde_json::from_slice(&bytes).map_err(|_| Failure::Refused(status, reason(&bytes)))
            }
            // No leader, or no answer in time: another endpoint may have one.
            500.. => Err(Failure::Silent(reason(&bytes))),
            _ => Err(Failure::Refused(status, reason(&bytes))),
        }
    }

    /// Sends a request and reads the answer's header.
    fn open(&self, endpoint: &Endpoint, request: Request<'_>) -> Result<(u16, Body), Failure> {
        let Request { path, body, token } = request;
        let mut stream = self.connect(endpoint)?;
        let body = body.to_string();
        let token = token.map(|token| format!("Authorization: {token}\r\n"));
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             {}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            endpoint.authority,
            token.unwrap_or_default(),
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        let mut from = BufReader::new(stream);
        let first = line(&mut from)?;
        let status = first.split(' ').nth(1);
        let status = status.and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| Failure::Silent(format!("no HTTP: {first:?}")))?;
        let length = length(&mut from)?;
        let body = Body {
            from,
            length,
            header: Vec::new(),
        };
        Ok((status, body))
    }
}

/// What an answer says that is not good: the gateway gives a message in JSON.
fn reason(answer: &[u8]) -> String {
    let said: Option<Value> = serde_json::from_slice(answer).ok();
    let message = said
        .as_ref()
        .and_then(|said| said.get("message").or_else(|| said.get("error")))
        .and_then(Value::as_str);
    match message {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(answer).trim().to_owned(),
    }
}

/// A connection.
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(session) => session.get_ref(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(session) => session.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(session) => session.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(session) => session.flush(),
        }
    }
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
    body: BufReader<Body>,
    begun: Vec<u8>,
}

impl Lines {
    fn new(body: Body) -> io::Result<Lines> {
        let stream = body.from.get_ref().socket();
        stream.set_read_timeout(Some(BLINK))?;
        // So that a silent stream is known from a dead one.
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, PATIENCE)?;
        sockopt::set_tcp_keepintvl(stream, PATIENCE)?;
        sockopt::set_tcp_keepcnt(stream, 3)?;
        Ok(Lines {
            body: BufReader::new(body),
            begun: Vec::new(),
        })
    }

    /// The next line; `None` where none has come for a moment.
    pub(super) fn next(&mut self) -> io::Result<Option<Value>> {
        match self.body.read_until(b'\n', &mut self.begun) {
            Ok(_) if self.begun.last() == Some(&b'\n') => {
                let line = std::mem::take(&mut self.begun);
                Ok(Some(serde_json::from_slice(&line)?))
            }
            Ok(_) => Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if is_timeout(&error) && (self.begun.len() as u64) < LARGEST => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    /// A service that answers so many requests with an empty object.
    fn answering(requests: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        thread::spawn(move || {
            for _ in 0..requests {
                let (mut socket, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).unwrap();
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
                socket.write_all(answer).unwrap();
            }
        });
        format!("http://{at}")
    }

    #[test]
    fn who_is_silent_is_waited_for_once() {
        // Its connections are taken by the kernel, and nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = silent.local_addr().unwrap();
        let client = Client::new(&format!("http://{at},{}", answering(3)), None, None);
        let client = client.unwrap();
        let asked = |client: &Client| {
            let begin = Instant::now();
            let answer = client.post("/v3/kv/range", &json!({}));
            assert_eq!(answer.ok(), Some(json!({})));
            begin.elapsed()
        };
        assert!(asked(&client) >= PATIENCE);
        assert!(asked(&client) < PATIENCE);
        assert!(
            asked(&client.clone()) < PATIENCE,
            "it knows what the other knows"
        );
    }
}

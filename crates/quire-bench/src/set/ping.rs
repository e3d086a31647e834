//! Calls between two processes: a client that asks, and a server that answers, over TCP
//! on this machine. One protocol has nothing but the data; the other one is HTTP with a
//! call in XML, as of a remote procedure.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::launch;
use crate::set::Work;

/// A server that answers no sooner has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// A message is this long, where the length is not part of the protocol.
const MESSAGE: usize = 64;
/// The longest call in XML.
const LONGEST: usize = 4096;

/// How they talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Messages of 64 bytes
    Tcp,
    /// HTTP with XML
    Http,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Protocol::Tcp, Protocol::Http];

    /// The name on the command line and in those of benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Http => "http",
        }
    }
}

/// The one method that can be called.
fn method(a: u64, b: u64) -> u64 {
    a.wrapping_mul(31).wrapping_add(b)
}

/// Runs the server: says its port, answers one client, and ends when that has gone.
///
/// # Errors
/// When there is no TCP here, or the client says what nobody understands.
pub fn serve(protocol: Protocol) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listening")?;
    println!("{}", listener.local_addr()?.port());
    answer(protocol, &listener)
}

fn answer(protocol: Protocol, listener: &TcpListener) -> Result<()> {
    let (stream, _) = listener.accept().context("waiting for the client")?;
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream.try_clone()?);
    match protocol {
        Protocol::Tcp => answer_messages(&mut from, stream),
        Protocol::Http => answer_posts(&mut from, stream),
    }
}

fn answer_messages(from: &mut impl Read, mut to: impl Write) -> Result<()> {
    let mut message = [0; MESSAGE];
    // Its end is the client's.
    while from.read_exact(&mut message).is_ok() {
        let (a, b) = numbers(&message);
        message[..8].copy_from_slice(&method(a, b).to_le_bytes());
        to.write_all(&message)?;
    }
    Ok(())
}

fn answer_posts(from: &mut impl BufRead, mut to: impl Write) -> Result<()> {
    while let Some((head, body)) = receive(from)? {
        ensure!(head.starts_with("POST /ping "), "what is `{head}`?");
        let number = |name| element(&body, name)?.parse().context("it is no number");
        let result = method(number("a")?, number("b")?);
        let body = envelope(&format!("<pong><result>{result}</result></pong>"));
        send(&mut to, "HTTP/1.1 200 OK", &body)?;
    }
    Ok(())
}

/// The numbers in a message.
fn numbers(message: &[u8; MESSAGE]) -> (u64, u64) {
    let number = |from: usize| u64::from_le_bytes(std::array::from_fn(|n| message[from + n]));
    (number(0), number(8))
}

fn envelope(call: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<Envelope xmlns=\"http://schemas.xmlsoap.org/soap/envelope/\">\
         <Body>{call}</Body></Envelope>\n"
    )
}

/// What stands between the tags of an element.
fn element<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    let inside = text.split_once(&format!("<{name}>"));
    let inside = inside.and_then(|(_, rest)| rest.split_once(&format!("</{name}>")));
    let (inside, _) = inside.with_context(|| format!("no element {name}"))?;
    Ok(inside)
}

fn send(to: &mut impl Write, head: &str, body: &str) -> Result<()> {
    let length = body.len();
    let text = format!(
        "{head}\r\nHost: localhost\r\nContent-Type: text/xml; charset=utf-8\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    to.write_all(text.as_bytes()).context("sending")
}

/// The first line and the body of what comes next; nothing at the end.
fn receive(from: &mut impl BufRead) -> Result<Option<(String, String)>> {
    let (mut head, mut length) = (String::new(), None);
    if from.read_line(&mut head)? == 0 {
        return Ok(None);
    }
    loop {
        let mut line = String::new();
        ensure!(from.read_line(&mut line)? > 0, "a head has no end");
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').context("a header has no value")?;
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse::<usize>().context("no length")?);
        }
    }
    let length = length.filter(|length| *length <= LONGEST);
    let mut body = vec![0; length.context("no length, or too long")?];
    from.read_exact(&mut body)?;
    let body = String::from_utf8(body).context("a body is no text")?;
    Ok(Some((head.trim_end().to_owned(), body)))
}

/// A client with its server.
pub struct Ping {
    protocol: Protocol,
    to: TcpStream,
    from: BufReader<TcpStream>,
    server: Option<Child>,
    calls: u64,
    /// Answers, added up.
    sum: u64,
}

impl Ping {
    /// Starts the server, and connects to it.
    ///
    /// # Errors
    /// When it cannot be started or reached.
    pub fn start(protocol: Protocol) -> Result<Ping> {
        let mut server = Command::new(launch::own_program()?)
            .args(["ping-server", protocol.name()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the server")?;
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let port = line.trim().parse().context("the server says no port");
        let client = port.and_then(|port| Ping::connect(protocol, port));
        match client {
            Ok(mut client) => {
                client.server = Some(server);
                Ok(client)
            }
            Err(error) => {
                // It may have ended by itself.
                let _ = server.kill();
                let _ = server.wait();
                Err(error)
            }
        }
    }

    fn connect(protocol: Protocol, port: u16) -> Result<Ping> {
        let to = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
        to.set_nodelay(true)?;
        to.set_read_timeout(Some(PATIENCE))?;
        Ok(Ping {
            from: BufReader::new(to.try_clone()?),
            protocol,
            to,
            server: None,
            calls: 0,
            sum: 0,
        })
    }

    fn call(&mut self, a: u64, b: u64) -> Result<u64> {
        match self.protocol {
            Protocol::Tcp => {
                let mut message = [7; MESSAGE];
                message[..8].copy_from_slice(&a.to_le_bytes());
                message[8..16].copy_from_slice(&b.to_le_bytes());
                self.to.write_all(&message).context("sending")?;
                self.from.read_exact(&mut message).context("the answer")?;
                Ok(numbers(&message).0)
            }
            Protocol::Http => {
                let call = envelope(&format!("<ping><a>{a}</a><b>{b}</b></ping>"));
                send(&mut self.to, "POST /ping HTTP/1.1", &call)?;
                let Some((head, body)) = receive(&mut self.from).context("the answer")? else {
                    bail!("the server has gone");
                };
                ensure!(head.ends_with("200 OK"), "the server says {head}");
                element(&body, "result")?.parse().context("it is no number")
            }
        }
    }
}

impl Work for Ping {
    fn batch(&self) -> u32 {
        50
    }

    fn operate(&mut self) -> Result<()> {
        let result = self.call(self.calls, self.calls / 2)?;
        self.calls += 1;
        self.sum = self.sum.wrapping_add(result);
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        let answers = (0..self.calls).map(|n| method(n, n / 2));
        let expected = answers.fold(0, u64::wrapping_add);
        let (calls, sum) = (self.calls, self.sum);
        ensure!(
            sum == expected,
            "the answers to {calls} calls come to {sum} and not {expected}"
        );
        Ok(())
    }

    fn spoil(&mut self) -> Result<()> {
        self.sum = self.sum.wrapping_add(1);
        Ok(())
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It ends by itself when nobody is connected; this is for one that hangs.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_answered_and_the_end_ends_the_server() {
        for protocol in Protocol::ALL {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = std::thread::spawn(move || answer(protocol, &listener));
            let mut ping = Ping::connect(protocol, port).unwrap();
            assert_eq!(ping.call(2, 5).unwrap(), 67);
            (0..10).for_each(|_| ping.operate().unwrap());
            ping.check().unwrap();
            ping.spoil().unwrap();
            assert!(ping.check().is_err());
            drop(ping);
            server.join().unwrap().unwrap();
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let said = |text: &str| receive(&mut text.as_bytes());
        assert!(said("").unwrap().is_none());
        for wrong in [
            "POST / HTTP/1.1\r\n",
            "POST / HTTP/1.1\r\n\r\nbody",
            "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort",
        ] {
            assert!(said(wrong).is_err(), "{wrong}");
        }
    }
}

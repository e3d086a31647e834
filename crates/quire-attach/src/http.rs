//! Where Prometheus fetches the metrics: `GET /metrics` and nothing else, one
//! connection at a time, on a thread of its own.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::metrics::{Snapshot, exposition};

/// The state that the loop publishes and the endpoint shows.
pub type Shared = Arc<Mutex<Snapshot>>;

/// The longest request.
const LONGEST: u64 = 8 << 10;
/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Listens at `address`, and answers from then on.
///
/// # Errors
/// When the address cannot be had or a thread cannot be started.
pub fn serve(address: SocketAddr, shared: Shared) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let bound = listener.local_addr()?;
    let run = move || {
        for client in listener.incoming() {
            match client {
                // A client that goes away early is no concern.
                Ok(client) => drop(answer(client, &shared)),
                // Out of descriptors, most likely: no reason to spin.
                Err(_) => thread::sleep(PATIENCE),
            }
        }
    };
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(run)?;
    Ok(bound)
}

fn answer(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut client)?;
    let snapshot = || {
        shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    };
    let (status, kind, body) = match request(&head) {
        Some(("GET", "/metrics")) => (
            "200 OK",
            "text/plain; version=0.0.4; charset=utf-8",
            exposition(&snapshot()),
        ),
        Some(("GET", _)) => ("404 Not Found", "text/plain", "see /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "text/plain", String::new()),
        None => ("400 Bad Request", "text/plain", String::new()),
    };
    let len = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

/// What comes up to the empty line, as far as it is not too long.
fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    let mut limited = client.take(LONGEST);
    let began = Instant::now();
    while began.elapsed() < PATIENCE && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match limited.read(&mut piece)? {
            0 => break,
            len => head.extend(&piece[..len]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The method and the path without the query of a request.
fn request(head: &str) -> Option<(&str, &str)> {
    let mut words = head.lines().next()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next()?;
    (version.starts_with("HTTP/1.") && path.starts_with('/')).then_some((method, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn metrics_are_fetched_and_nothing_else() {
        let shared = Shared::default();
        let address = serve("127.0.0.1:0".parse().unwrap(), shared.clone()).unwrap();
        shared.lock().unwrap().exits = 17;
        let ok = ask(address, "GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            ok.starts_with("HTTP/1.1 200 OK\r\n") && ok.contains("quire_attach_exits_total 17\n")
        );
        let (head, body) = ok.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(ask(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    }

    #[test]
    fn a_silent_client_does_not_block_the_next_one_for_ever() {
        let address = serve("127.0.0.1:0".parse().unwrap(), Shared::default()).unwrap();
        let _silent = TcpStream::connect(address).unwrap();
        assert!(ask(address, "GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn an_address_in_use_is_refused() {
        let address = serve("127.0.0.1:0".parse().unwrap(), Shared::default()).unwrap();
        assert!(serve(address, Shared::default()).is_err());
    }
}

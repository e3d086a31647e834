//! Where servers of these tests listen.

use std::net::TcpListener;

/// An address of this machine that nobody listens at.
pub fn free() -> String {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().to_string()
}

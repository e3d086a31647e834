//! Connections: sockets, TLS, heartbeats, and the loop that drives them.
//!
//! One thread drives all links of a process ([`turn`]). A link that breaks, or whose peer
//! sends what it should not, is closed, and no other link notices.
//!
//! | module | holds |
//! |---|---|
//! | [`address`] | where to listen and connect, and which addresses need TLS |
//! | [`addresses`] | several of them |
//! | [`transport`] | what a link needs from below; TCP and Unix sockets |
//! | [`identity`] | certificates: a CA, those of nodes, and what a peer's certificate says |
//! | [`connection`] | a transport, TLS, and messages |
//! | [`greeting`] | who may stay |
//! | `again` | when to connect again |
//! | [`lease`] | heartbeats: who stops when |
//! | `pace` | how much a link takes in a moment |
//! | [`round_trip`] | how long a message and its answer take |
//! | [`turn`] | the event loop |

pub mod address;
pub mod addresses;
mod again;
pub mod connection;
pub mod greeting;
pub mod identity;
pub mod lease;
mod pace;
mod pipe;
pub mod round_trip;
mod seldom;
mod tls;
pub mod transport;
pub mod turn;

pub use address::{Address, Security};
pub use addresses::Addresses;
pub(crate) use again::Again;
pub use connection::{Counters, Link, LinkError};
pub use greeting::Established;
pub use identity::Identity;
pub(crate) use seldom::Seldom;
pub use transport::{Peer, Transport};
pub use turn::{Handler, LinkId, Links, Turn};

//! Shared memory across machines (paper 003): programs map one memory object on several
//! machines and simply read and write it. What is decided is in `quire_core::dsm`; here is
//! what carries it out.
//!
//! | module | holds |
//! |---|---|
//! | [`wire`] | messages as bytes |
//! | [`link`] | connections: TCP and Unix sockets, TLS, heartbeats |
//! | [`server`] | the object server |
//! | [`attachment`] | what `quire run --dsm` tells the library in a program |
//! | [`client`] | a program's way to the objects of a server |
//! | [`heap`] | memory of an object, allocated by type |
//! | [`node`] | the cache of objects on this machine, and who maps it |
//! | [`pager`] | who supplies the contents of an object, and takes them back |
//! | [`store`] | pages on disk |
//! | [`directory`] | what servers agree on: names, members, views |
//! | [`programs`] | parallel programs over shared memory |

pub mod attachment;
pub mod client;
pub mod directory;
pub mod heap;
pub mod link;
pub mod node;
pub mod pager;
pub mod programs;
pub mod random;
pub mod server;
pub mod store;
mod whole;
pub mod wire;

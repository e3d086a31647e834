//! Messages as bytes (`docs/dsm-wire.md` has the layout).
//!
//! A frame has a header of fixed size, a control part, which is a [`Control`], and a payload,
//! which is the contents of pages. Contents never go through an encoder: they are written
//! from where they lie, and read into memory that begins at a page boundary. Limits are
//! checked before memory is taken.
//!
//! | module | holds |
//! |---|---|
//! | [`control`] | what is said |
//! | [`buffer`] | memory for contents, which is used again |
//! | [`lent`] | contents that stay in a file until they are sent |
//! | [`frame`] | the header, and the limits |
//! | [`encode`] | from messages to what is written |
//! | [`decode`] | from what was read to messages |

pub mod buffer;
mod codes;
pub mod control;
pub mod decode;
pub mod encode;
pub mod frame;
pub mod lent;
mod presence;

pub use buffer::{Buffer, Contents, Pool};
pub use codes::SegmentError;
pub use control::{Control, Kind};
pub use decode::{Decoder, Frame};
pub use encode::{Outgoing, Sink};
pub use frame::{Limits, VERSION, WireError};
pub use lent::{Lent, Loans};

//! Everything that runs, as one model: the caches of machines ([`crate::dsm::kernel`]), the
//! sessions between them and their servers, the schedulers, and the wires between servers.
//! All of it is the code that runs; only memory, programs and the network are played here.
//!
//! | module | holds |
//! |---|---|
//! | `machine` | a machine: its cache, its memory and its programs |
//! | `server` | what a scheduler has to be, alone or with peer servers |
//! | `world` | machines, sessions, servers, wires; each thing that can happen is one step |
//! | `mutant` | servers that are wrong |
//! | `check` | all orders of those steps, and what must hold in each state |

mod check;
mod machine;
mod mutant;
mod server;
mod tests;
mod world;

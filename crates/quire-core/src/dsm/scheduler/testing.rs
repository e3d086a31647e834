//! What the tests of the schedulers share: honest kernels, links, and a world in which
//! everything that can happen is one step.
//!
//! | module | holds |
//! |---|---|
//! | `kernel` | a small honest kernel |
//! | `world` | kernels, links, a backer and a scheduler, and what must hold at any time |
//! | `model` | the world as a model for the checker |
//! | `ending` | random runs with a server that ends |
//! | `forgetful` | a scheduler that lets go of all contents whenever it may |
//! | `mutant` | schedulers that are wrong, which the checks must find |
//! | `orders` | what is checked with each scheduler of a single server |
//! | `naive` | the plainest scheduler that is right, to compare with |
//! | `random` | long random runs of the world, with and without a liar |
//! | `say` | single messages, for tests that tell a story |
//! | `whole` | the caches that run, with each of the schedulers, as one model |

pub(super) mod ending;
mod forgetful;
pub(super) mod kernel;
pub(super) mod model;
pub(super) mod mutant;
pub(super) mod naive;
pub(super) mod orders;
pub(super) mod random;
pub(super) mod say;
mod whole;
pub(super) mod world;

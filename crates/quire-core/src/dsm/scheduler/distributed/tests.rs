//! Tests of the distributed scheduler: model checking, long random schedules, and the
//! messages of the hotspot of section 4.1.

mod bringing;
mod hotspot;
mod model;
mod random;
mod single;
mod views;
mod world;

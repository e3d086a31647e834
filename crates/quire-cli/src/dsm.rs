//! `quire dsm`: tries shared memory across machines.

mod certify;
mod demo;
mod host;
mod invitation;
pub mod recovery;
pub mod settings;

use std::io::{self, Write};
use std::time::Instant;

use quire_dsm::client::Client;
use quire_dsm::programs::{Program, Team, Trouble};
use quire_dsm::wire::control::Rights;
use tracing::Level;

use crate::args::dsm::{DsmAction, DsmArgs, MemberArgs, ProgramName};
use crate::failure::{Failure, Outcome};
use crate::object::{failed, reached};
use crate::serve;

/// Does what is asked for.
pub fn dsm(options: &DsmArgs) -> Outcome<()> {
    match &options.action {
        DsmAction::Demo(options) => demo::demo(options),
        DsmAction::Certify(options) => certify::certify(options),
        DsmAction::Invite(options) => invitation::invite(options),
        DsmAction::Join(options) => invitation::join(options),
        DsmAction::Member(options) => member(options),
        DsmAction::Host(options) => host::host(options),
        DsmAction::Recover => recovery::run(),
    }
}

/// A program of some size.
fn program(name: ProgramName, size: usize) -> Program {
    match name {
        ProgramName::Matrix => Program::Matrix(size),
        ProgramName::Paths => Program::Paths(size),
        ProgramName::Router => Program::Router(size),
        ProgramName::Particles => Program::Particles(size),
        ProgramName::Hotspot => Program::Hotspot(size as u64),
    }
}

/// Runs one member of a program, and prints how long it took, in seconds.
fn member(options: &MemberArgs) -> Outcome<()> {
    serve::log(Level::ERROR);
    let mut wanted = reached(&options.server)?;
    wanted.reconnect = options.reconnect;
    // Each member stands for a machine.
    wanted.own_pages = true;
    let client = Client::connect(wanted).map_err(failed)?;
    let both = Rights {
        read: true,
        write: true,
    };
    let shared = client.open(options.object.clone(), both).map_err(failed)?;
    let member = shared.member(options.me, options.members);
    let program = program(options.program, options.size);
    let ran = || -> Result<f64, Trouble> {
        member.barrier()?;
        let begin = Instant::now();
        program.run(&member, shared.words())?;
        let took = begin.elapsed().as_secs_f64();
        if options.me == 0 {
            program.check(shared.words(), options.members)?;
        }
        Ok(took)
    };
    let took = ran().map_err(|trouble| Failure::system(trouble.to_string()))?;
    Ok(writeln!(io::stdout(), "{took}")?)
}

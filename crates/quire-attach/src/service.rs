//! The loop: turns, signals, metrics, and configurations that are read anew.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::AttachError;
use crate::attach::{Attach, Next};
use crate::config;
use crate::http::{self, Shared};
use crate::metrics::Snapshot;

/// What happens from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// End in good order.
    Stop,
    /// Read the configuration anew.
    Reload,
}

/// How the loop runs.
pub struct Service<'a> {
    /// The configuration that `SIGHUP` reads anew.
    pub config: Option<&'a Path>,
    /// Where Prometheus fetches metrics.
    pub metrics: Option<SocketAddr>,
    /// Takes lines for people.
    pub say: &'a mut dyn FnMut(&str),
    /// Takes lines about what went wrong.
    pub warn: &'a mut dyn FnMut(&str),
    /// Shown the state after each turn.
    pub progress: &'a mut dyn FnMut(&Snapshot),
}

/// Handles `SIGTERM`, `SIGINT` and `SIGHUP` from now on.
///
/// # Errors
/// When the kernel refuses.
pub fn signals() -> Result<Receiver<Event>, AttachError> {
    let (sender, receiver) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(AttachError::Signals)?;
    let forward = move || {
        for signal in signals.forever() {
            let event = if signal == SIGHUP {
                Event::Reload
            } else {
                Event::Stop
            };
            if sender.send(event).is_err() {
                break;
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(forward)
        .map_err(AttachError::Signals)?;
    Ok(receiver)
}

/// Runs until there is nothing to wait for or a signal ends it, and returns the
/// last state.
///
/// # Errors
/// When the address for metrics cannot be had, or a group that was asked for is
/// gone.
pub fn run(
    mut attach: Attach,
    events: &Receiver<Event>,
    service: Service<'_>,
) -> Result<Snapshot, AttachError> {
    let shared: Shared = Arc::new(Mutex::new(attach.snapshot()));
    if let Some(address) = service.metrics {
        let bound = http::serve(address, Arc::clone(&shared))
            .map_err(|error| AttachError::Listen { address, error })?;
        (service.say)(&format!("metrics at http://{bound}/metrics"));
    }
    let mut reloads = Reloads::default();
    loop {
        let next = attach.turn()?;
        let snapshot = reloads.add_to(attach.snapshot());
        (service.progress)(&snapshot);
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = snapshot.clone();
        let Next::Wait(pause) = next else {
            return Ok(snapshot);
        };
        match events.recv_timeout(pause) {
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => {
                return Ok(reloads.add_to(attach.snapshot()));
            }
            Ok(Event::Reload) => match reloads.reload(&mut attach, service.config) {
                Ok(said) => (service.say)(&said),
                Err(said) => (service.warn)(&said),
            },
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[derive(Default)]
struct Reloads {
    ok: u64,
    failed: u64,
}

impl Reloads {
    fn add_to(&self, snapshot: Snapshot) -> Snapshot {
        Snapshot {
            reloads: self.ok,
            failed_reloads: self.failed,
            ..snapshot
        }
    }

    /// Reads the configuration anew, and says what came of it.
    fn reload(&mut self, attach: &mut Attach, path: Option<&Path>) -> Result<String, String> {
        let path = path.ok_or("there is no configuration to read anew")?;
        let read = config::read(path).map_err(AttachError::from);
        match read.and_then(|config| attach.replace_plan(config.plan)) {
            Ok(()) => {
                self.ok += 1;
                Ok(format!("{} is read anew", path.display()))
            }
            Err(error) => {
                self.failed += 1;
                Err(format!("{error}; the old configuration stays"))
            }
        }
    }
}

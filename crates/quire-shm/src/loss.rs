//! What becomes of a program that has lost something it wrote: others have been given the page since, or
//! its server is gone. It is told where it acts (`quire run --on-loss`): it is killed, or its locks and
//! calls fail, or it goes on with what there is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use quire_dsm::attachment::OnLoss;
use quire_dsm::client::Loss;

use crate::signals;
use crate::state;

/// Something was lost, and locks and calls are to fail from now on.
static FAILS: AtomicBool = AtomicBool::new(false);

/// Something of an object is lost, which the log says already. No thread of the program has touched that
/// memory since.
pub fn on_loss(loss: &Loss<'_>) {
    let choice = state::attachments().map_or(OnLoss::Kill, |all| all.on_loss);
    let name = loss.name;
    match choice {
        OnLoss::Kill => {
            tracing::error!(
                "{name}: so this program is killed; with quire run --on-loss errno its locks and calls \
                 fail, with --on-loss continue it goes on"
            );
            signals::die_by(libc::SIGBUS);
        }
        OnLoss::Errno => FAILS.store(true, Ordering::SeqCst),
        OnLoss::Continue => {}
    }
}

/// What locks in objects and calls about them fail with, if they do.
#[inline]
pub fn errno() -> Result<(), c_int> {
    match FAILS.load(Ordering::Relaxed) {
        true => Err(libc::ENOTRECOVERABLE),
        false => Ok(()),
    }
}

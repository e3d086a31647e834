//! The fault schedulers: which client gets a page, and when (paper 003, sections 3 and 4).
//!
//! | module | holds |
//! |---|---|
//! | [`simple`] | one scheduler page at a time, all kernels with pages of the same size |
//! | [`multi`] | several scheduler pages at once, kernels with pages of any size |
//! | [`distributed`] | several servers for one object |
//! | [`options`] | what is chosen when an object is created |
//! | [`observe`] | counters, and what is known of a page |
//! | [`trace`] | each message in and out, for whoever wants to watch |

use super::message::{Client, FromKernel, KernelId, PageNumber, Pages, ServerId, ToKernel};

mod alone;
mod contents;
pub mod distributed;
mod few;
mod hot;
pub mod multi;
pub mod observe;
pub mod options;
pub mod simple;
#[cfg(test)]
mod testing;
pub mod trace;

/// What a scheduler wants to be done. The order counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action<D> {
    /// A message to a kernel.
    Tell(KernelId, ToKernel<D>),
    /// A message to a peer server.
    TellServer(ServerId, distributed::Message<D>),
    /// Whoever backs the object is asked for pages; [`Scheduler::loaded`] brings them.
    Load(Pages),
    /// Whoever backs the object gets contents that a client gave back.
    Save(Pages, Vec<Option<D>>),
}

/// An automaton that orders the faults on one object.
pub trait Scheduler<D: Clone> {
    /// A kernel said something. What makes no sense from it (pages that it does not have,
    /// an answer that nobody asked for) is an error, and changes nothing.
    ///
    /// # Errors
    /// What makes no sense, in a line.
    fn kernel_says(
        &mut self,
        kernel: KernelId,
        message: FromKernel<D>,
        actions: &mut Vec<Action<D>>,
    ) -> Result<(), Nonsense>;

    /// Whoever backs the object answered [`Action::Load`]; `None` where the contents of a
    /// page cannot be had.
    fn loaded(&mut self, pages: Pages, data: Option<Vec<Option<D>>>, actions: &mut Vec<Action<D>>);

    /// A client is gone without having given back what it had: its pages go back to the
    /// latest copy that is here (paper 003, section 5).
    fn gone(&mut self, client: Client, actions: &mut Vec<Action<D>>);

    /// Whoever backs the object has all that is known here of a page: its contents may go,
    /// and are loaded again when somebody needs them. Whether they went; a scheduler that
    /// needs them, or keeps all that it has, says no.
    fn release(&mut self, page: PageNumber) -> bool {
        let _ = page;
        false
    }

    /// The pages that a kernel may write to and has not given back: what is written there is lost
    /// with the kernel, unless somebody brings it ([`Scheduler::restore`]).
    fn written_by(&self, kernel: KernelId) -> Vec<PageNumber> {
        let _ = kernel;
        Vec::new()
    }

    /// Somebody brings the latest contents of a page, whose writer is gone. They are taken if
    /// nobody has the page, waits for it, or has been given it since, which the caller knows.
    /// Whether they were taken.
    fn restore(&mut self, page: PageNumber, data: Option<D>, actions: &mut Vec<Action<D>>) -> bool {
        let (_, _, _) = (page, data, actions);
        false
    }
}

/// A scheduler of a server that may end.
pub trait Recall<D: Clone>: Scheduler<D> {
    /// The server ends: its kernels get nothing any more, what they ask for is passed over,
    /// and who may have written to a page is asked to give it back. They answer as ever.
    ///
    /// A page that is here then is given to no kernel any more. Peer servers are served.
    fn recall(&mut self, actions: &mut Vec<Action<D>>);

    /// A kernel that has a page and was asked for it, and has not answered.
    fn owes(&self, page: PageNumber) -> Option<KernelId>;
}

/// A message that makes no sense from the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Nonsense(pub &'static str);

/// What is to be made of a message that comes after [`FromKernel::Terminate`]: only a late
/// answer to a flush makes sense.
fn after_the_end<D>(message: &FromKernel<D>) -> Result<(), Nonsense> {
    match message {
        FromKernel::LockCompleted { .. } => Ok(()),
        _ => Err(Nonsense("a kernel speaks after Terminate")),
    }
}

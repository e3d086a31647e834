//! Answers about neighbouring pages, made one.

use crate::dsm::scheduler::Action;

/// Makes one of neighbours among the actions from `from` on, where they say the same to the
/// same kernel, or load pages. How many messages to kernels this saves.
pub(super) fn join<D>(actions: &mut Vec<Action<D>>, from: usize) -> u64 {
    let mut saved = 0;
    for action in actions.split_off(from) {
        let rest = match actions.get_mut(from..).and_then(<[_]>::last_mut) {
            Some(last) => append(last, action),
            None => Some(action),
        };
        match rest {
            Some(action) => actions.push(action),
            None => saved += u64::from(matches!(actions.last(), Some(Action::Tell(..)))),
        }
    }
    saved
}

/// Appends an action to the one before, or gives it back.
fn append<D>(last: &mut Action<D>, next: Action<D>) -> Option<Action<D>> {
    match (last, next) {
        (Action::Load(pages), Action::Load(more)) if pages.is_followed_by(more) => {
            pages.count += more.count;
            None
        }
        (Action::Tell(kernel, message), Action::Tell(to, next)) if *kernel == to => {
            message.append(next).map(|next| Action::Tell(to, next))
        }
        (_, next) => Some(next),
    }
}

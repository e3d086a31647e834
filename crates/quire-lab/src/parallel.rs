//! The same work on many things, on all cores.

use std::sync::Mutex;
use std::thread;

/// What `work` makes of each item, in their order.
pub fn map<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let workers = workers.min(items.len());
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let next = Mutex::new(items.into_iter().enumerate());
    // The lock is held while an item is taken, not while it is worked on.
    let take = || next.lock().ok().and_then(|mut next| next.next());
    let run = || {
        let mut own = Vec::new();
        while let Some((n, item)) = take() {
            own.push((n, work(item)));
        }
        // A worker that panics ends the whole, so nobody meets a poisoned lock.
        if let Ok(mut done) = done.lock() {
            done.append(&mut own);
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(run);
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_unstable_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept() {
        let items: Vec<u64> = (0..1000).collect();
        let squares: Vec<u64> = items.iter().map(|n| n * n).collect();
        assert_eq!(map(items, |n| n * n), squares);
        assert!(map(Vec::<u8>::new(), |n| n).is_empty());
    }
}

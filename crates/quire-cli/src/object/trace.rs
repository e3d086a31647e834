//! `quire object trace`: what the scheduler of an object is told and tells, as it happens.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use quire_core::dsm::message::{Access, Client as Holder, KernelId, Lock, Pages};
use quire_core::dsm::scheduler::trace::{Peer, What};
use quire_dsm::client::{Client, ClientError};
use quire_dsm::wire::control::{FailureKind, Known, Seen, Watched};
use serde_json::{Value, json};

use super::failed;
use super::stat::called;
use crate::args::dsm::TraceArgs;
use crate::failure::Outcome;

/// Whether it is over is looked at so often.
const LOOK: Duration = Duration::from_millis(500);

/// Prints messages until the time is over, the object is gone, or a signal ends it.
pub fn trace(client: &Client, options: &TraceArgs) -> Outcome<()> {
    let mut watch = client
        .watch(options.name.clone(), options.pages)
        .map_err(failed)?;
    let end = options.time.map(|time| Instant::now() + time);
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut names = Names::default();
    let mut first = None;
    // The first line says that from now on each message is seen.
    match options.json {
        true => writeln!(out, "{}", json!({ "watching": options.name.as_str() }))?,
        false => writeln!(out, "{}", heading())?,
    }
    out.flush()?;
    loop {
        let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
        let watched = match watch.next(left.min(LOOK)) {
            // It was removed.
            Err(ClientError::Refused(refusal)) if refusal.kind == FailureKind::NotFound => {
                return Ok(());
            }
            watched => watched.map_err(failed)?,
        };
        if let Some(watched) = watched {
            names.learn(&watched.known);
            write(&mut out, &watched, &names, &mut first, options.json)?;
            // Whoever reads along sees each line at once.
            out.flush()?;
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
    }
}

/// Writes messages; `first` is when the first of all was seen, in nanoseconds.
fn write(
    out: &mut impl Write,
    watched: &Watched,
    names: &Names,
    first: &mut Option<u64>,
    in_json: bool,
) -> Outcome<()> {
    if watched.lost > 0 {
        match in_json {
            true => writeln!(out, "{}", json!({ "lost": watched.lost }))?,
            false => writeln!(
                out,
                "... {} messages were too many to show ...",
                watched.lost
            )?,
        }
    }
    for seen in &watched.seen {
        let begin = *first.get_or_insert(seen.at);
        let since = Duration::from_nanos(seen.at.saturating_sub(begin));
        match in_json {
            true => writeln!(out, "{}", as_json(seen, names))?,
            false => writeln!(out, "{}", line(seen, since, names))?,
        }
    }
    Ok(())
}

/// Who is who, also of those who have left.
#[derive(Default)]
struct Names(BTreeMap<KernelId, String>);

impl Names {
    fn learn(&mut self, known: &[Known]) {
        for kernel in known.iter().map(|known| known.kernel) {
            self.0
                .extend(called(kernel, known).map(|name| (kernel, name)));
        }
    }

    fn of(&self, peer: Peer) -> String {
        match peer {
            Peer::Backer => "pager".to_owned(),
            Peer::Client(Holder::Server(server)) => format!("server {}", server.0),
            Peer::Client(Holder::Kernel(kernel)) => match self.0.get(&kernel) {
                Some(name) => format!("{name} #{}", kernel.0),
                None => format!("kernel #{}", kernel.0),
            },
        }
    }
}

fn heading() -> String {
    format!(
        "{:>12}  {:16}  {:12}     WHO",
        "SECONDS", "MESSAGE", "PAGES"
    )
}

fn line(seen: &Seen, since: Duration, names: &Names) -> String {
    let event = &seen.event;
    let (name, detail) = words(&event.what);
    let message = format!("{name} {detail}");
    let pages = event.pages.map_or_else(|| "-".to_owned(), range);
    let (seconds, message) = (since.as_secs_f64(), message.trim_end());
    let (arrow, who) = (arrow(event.incoming), names.of(event.peer));
    match &event.what {
        What::Nonsense(reason) => {
            format!("{seconds:>12.6}  {message:16}  {pages:12}  {arrow} {who}: {reason}")
        }
        _ => format!("{seconds:>12.6}  {message:16}  {pages:12}  {arrow} {who}"),
    }
}

/// From whom, or to whom.
const fn arrow(is_incoming: bool) -> &'static str {
    match is_incoming {
        true => "<-",
        false => "->",
    }
}

fn range(pages: Pages) -> String {
    match pages.count {
        1 => pages.first.0.to_string(),
        count => format!("{}-{}", pages.first.0, pages.first.0 + u64::from(count) - 1),
    }
}

/// What is said: the message's name, and what more there is to it.
fn words(what: &What) -> (&'static str, &'static str) {
    let access = |access: &Access| match access {
        Access::Read => "read",
        Access::Write => "write",
    };
    match what {
        What::DataRequest(wanted) => ("request", access(wanted)),
        What::DataUnlock => ("request", "unlock"),
        What::DataWrite => ("write-back", ""),
        What::LockCompleted => ("flushed", ""),
        What::Terminate => ("terminate", ""),
        What::Gone => ("gone", ""),
        What::Nonsense(_) => ("nonsense", ""),
        What::DataProvided(given) => ("provide", access(given)),
        What::LockRequest(Lock::Flush) => ("flush", ""),
        What::LockRequest(Lock::AllowWrite) => ("allow write", ""),
        What::DataError => ("error", ""),
        What::ToServer | What::FromServer => ("peer_server", ""),
        What::Load => ("load", ""),
        What::Loaded(true) => ("loaded", ""),
        What::Loaded(false) => ("loaded", "nothing"),
        What::Save => ("save", ""),
    }
}

fn as_json(seen: &Seen, names: &Names) -> Value {
    let event = &seen.event;
    let (name, detail) = words(&event.what);
    let kernel = match event.peer {
        Peer::Client(Holder::Kernel(kernel)) => Some(kernel.0),
        _ => None,
    };
    let reason = match &event.what {
        What::Nonsense(reason) => Some(reason.as_ref()),
        _ => None,
    };
    json!({
        "unix_ns": seen.at,
        "incoming": event.incoming,
        "who": names.of(event.peer),
        "kernel": kernel,
        "message": name,
        "detail": reason.unwrap_or(detail),
        "first_page": event.pages.map(|pages| pages.first.0),
        "pages": event.pages.map(|pages| pages.count),
    })
}

#[cfg(test)]
mod tests {
    use quire_core::dsm::message::{FromKernel, PageNumber};
    use quire_core::dsm::scheduler::trace::Event;

    use super::*;

    #[test]
    fn a_line_says_when_what_which_pages_and_who() {
        let mut names = Names::default();
        let kernel = KernelId(7);
        names.learn(&[Known {
            kernel,
            name: "node-1".into(),
        }]);
        let pages = Pages {
            first: PageNumber(4),
            count: 3,
        };
        let asked = FromKernel::<u8>::DataUnlock { pages };
        let seen = Seen {
            at: 9,
            event: Event::received(kernel, &asked),
        };
        let shown = line(&seen, Duration::from_micros(1500), &names);
        assert_eq!(
            shown,
            "    0.001500  request unlock    4-6           <- node-1 #7"
        );
        let seen = Seen {
            at: 9,
            event: Event::nonsense(KernelId(8), "a reason"),
        };
        let shown = line(&seen, Duration::ZERO, &names);
        assert!(shown.ends_with("<- kernel #8: a reason"), "{shown}");
        assert_eq!(as_json(&seen, &names)["detail"], "a reason");
    }
}

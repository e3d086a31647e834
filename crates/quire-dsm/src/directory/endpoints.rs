//! The endpoints of a cluster: which of them is asked first, and how long one is waited for.
//!
//! Whoever asks begins with the one that answered last, so one that is away costs time once. It
//! costs a part of half a lease: a renewal begins after a third of it, asks all of them in at
//! most half of it, and is answered before it ends.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;

use super::http::Failure;

/// The longest that one is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The shortest, whatever the lease.
const HASTE: Duration = Duration::from_millis(100);
/// How long a round over all of them takes at most, before there is a lease.
const ROUND: Duration = Duration::from_secs(2);

/// An address of a service.
#[derive(Debug)]
pub(super) struct Endpoint {
    /// Host and port.
    pub authority: String,
    /// Whom its certificate must name, where it speaks TLS.
    pub name: Option<ServerName<'static>>,
}

impl Endpoint {
    fn new(url: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{url}: an etcd is named as http://HOST:PORT or https://HOST:PORT");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let authority = rest.trim_end_matches('/');
        let (host, port) = authority
            .rsplit_once(':')
            .ok_or_else(|| format!("{url}: no port; etcd's is 2379"))?;
        port.parse::<u16>().map_err(|_| wrong())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = match scheme {
            "http" => None,
            "https" => Some(ServerName::try_from(host.to_owned()).map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        Ok(Endpoint {
            authority: authority.to_owned(),
            name,
        })
    }
}

/// Where a service listens: any of the addresses will do.
pub(super) struct Endpoints {
    all: Vec<Endpoint>,
    /// The one to begin with.
    first: AtomicUsize,
    /// How long a round over all of them takes at most, in milliseconds.
    round: AtomicU64,
}

impl Endpoints {
    /// Those of a list of URLs with commas between.
    ///
    /// # Errors
    /// Which of them is wrong, and how it would be right.
    pub(super) fn new(urls: &str) -> Result<Endpoints, String> {
        let all: Result<Vec<_>, _> = urls
            .split(',')
            .map(|url| Endpoint::new(url.trim()))
            .collect();
        let endpoints = Endpoints {
            all: all?,
            first: AtomicUsize::new(0),
            round: AtomicU64::new(0),
        };
        endpoints.set_round(ROUND);
        Ok(endpoints)
    }

    /// Whether one of them speaks TLS.
    pub(super) fn have_tls(&self) -> bool {
        self.all.iter().any(|endpoint| endpoint.name.is_some())
    }

    /// From now on a lease of this length depends on their answers.
    pub(super) fn hold(&self, lease: Duration) {
        self.set_round(lease / 2);
    }

    fn set_round(&self, round: Duration) {
        let milliseconds = u64::try_from(round.as_millis()).unwrap_or(u64::MAX);
        self.round.store(milliseconds, Ordering::Relaxed);
    }

    /// How long one of them is waited for.
    pub(super) fn patience(&self) -> Duration {
        let round = self.round.load(Ordering::Relaxed);
        let each = Duration::from_millis(round / (self.all.len() as u64).max(1));
        each.clamp(HASTE, PATIENCE)
    }

    /// The one of this number.
    pub(super) fn at(&self, number: usize) -> &Endpoint {
        &self.all[number % self.all.len()]
    }

    /// Does something at whichever of them answers, given its number.
    pub(super) fn any<T>(&self, ask: impl Fn(usize) -> Result<T, Failure>) -> Result<T, Failure> {
        let first = self.first.load(Ordering::Relaxed);
        let mut silent = Vec::new();
        for number in (0..self.all.len()).map(|index| (first + index) % self.all.len()) {
            match ask(number) {
                Err(Failure::Silent(why)) => {
                    silent.push(format!("{}: {why}", self.at(number).authority));
                }
                other => {
                    if number != first && self.begin_with(number, first) {
                        let instead = &self.at(number).authority;
                        tracing::warn!("{instead} is asked from now on; {}", silent.join("; "));
                    }
                    return other;
                }
            }
        }
        Err(Failure::Silent(silent.join("; ")))
    }

    /// One of them does not what it should though it answers: the next is asked from now on.
    pub(super) fn pass_over(&self, number: usize) {
        self.begin_with((number + 1) % self.all.len(), number);
    }

    /// Begins with one, in the place of another; whether it was that other until now.
    fn begin_with(&self, number: usize, other: usize) -> bool {
        let order = Ordering::Relaxed;
        let done = self.first.compare_exchange(other, number, order, order);
        done.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent<T>() -> Result<T, Failure> {
        Err(Failure::Silent("it is away".to_owned()))
    }

    fn three() -> Endpoints {
        Endpoints::new("http://a:1, http://b:2,http://c:3/").expect("they are right")
    }

    #[test]
    fn a_round_takes_at_most_half_a_lease() {
        for count in 1..10_u32 {
            let urls: Vec<_> = (0..count)
                .map(|index| format!("http://a:{index}"))
                .collect();
            let endpoints = Endpoints::new(&urls.join(",")).expect("they are right");
            assert!(endpoints.patience() * count <= ROUND);
            for seconds in [2, 3, 4, 60] {
                let lease = Duration::from_secs(seconds);
                endpoints.hold(lease);
                assert!(endpoints.patience() * count <= lease / 2);
                assert!(endpoints.patience() >= HASTE);
            }
        }
    }

    #[test]
    fn the_one_that_answered_is_asked_first() {
        let endpoints = three();
        let ask = |number| if number == 2 { Ok(number) } else { silent() };
        assert!(matches!(endpoints.any(ask), Ok(2)));
        assert!(matches!(endpoints.any(Ok), Ok(2)));
        // What is refused is an answer, too.
        let refuse = |_| Err::<(), _>(Failure::Refused(403, "no".to_owned()));
        assert!(matches!(endpoints.any(refuse), Err(Failure::Refused(..))));
        assert!(matches!(endpoints.any(Ok), Ok(2)));
        endpoints.pass_over(1);
        assert!(matches!(endpoints.any(Ok), Ok(2)));
        endpoints.pass_over(2);
        assert!(matches!(endpoints.any(Ok), Ok(0)));
    }

    #[test]
    fn where_none_answers_all_are_named() {
        let endpoints = three();
        let Err(Failure::Silent(why)) = endpoints.any(|_| silent::<()>()) else {
            panic!("somebody has answered");
        };
        assert_eq!(why, "a:1: it is away; b:2: it is away; c:3: it is away");
        assert!(matches!(endpoints.any(Ok), Ok(0)));
    }
}

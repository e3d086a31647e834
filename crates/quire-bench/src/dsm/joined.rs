//! Messages for each fault where so many write to one page, between real servers that are
//! joined, each with a program of its own (paper 003, section 7.2 and Table 1).
//!
//! The servers' own counters are read before and after, while nothing is under way. A shorter
//! time goes before, so that what is counted is how it goes on, without the views of those that
//! join and the search for a page that nobody has had. Nothing of it depends on time, but for
//! whose turn it is: here a round is as many faults as there are programs.

use std::ops::Sub;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use quire_dsm::client::{Client, Options};
use quire_dsm::link::Security;
use quire_dsm::wire::control::{
    self, Answer, Inside, MachineCode, PageSize, Rights, SchedulerKind,
};
use tempfile::TempDir;

use crate::dsm::orders::Orders;
use crate::dsm::results::{Bound, Results};
use crate::dsm::site::{PeerServers, Served, Site, Stopped, Waiting};
use crate::dsm::worker::Increments;
use crate::dsm::{Part, Plan};

/// How many servers are joined.
pub const PARTIES: std::ops::RangeInclusive<usize> = 2..=16;
/// Joined servers are so after this at the latest.
const PATIENCE: Duration = Duration::from_secs(60);
/// Sixteen servers on few processors renew no lease in the usual time.
const LEASE: Duration = Duration::from_secs(10);
const OBJECT: &str = "word";

/// What was counted for so many servers.
struct Counted {
    /// Messages that each server handled for each fault that came to it.
    handled: f64,
    /// Those of them that were from or to other servers.
    remote: f64,
    /// Messages between servers for one fault of each program.
    round: f64,
}

/// Sums over servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Faults of programs, each at its own server.
    pub own_faults: u64,
    /// Those, and the faults of peer servers that came to one, forwarded ones too.
    pub faults: u64,
    /// Messages between servers and their own programs; who gives a page back says one.
    pub local: u64,
    /// Messages that came from peer servers.
    pub received: u64,
    /// Messages that went to peer servers.
    pub sent: u64,
}

impl Sub for Sums {
    type Output = Sums;

    fn sub(self, earlier: Sums) -> Sums {
        Sums {
            own_faults: self.own_faults - earlier.own_faults,
            faults: self.faults - earlier.faults,
            local: self.local - earlier.local,
            received: self.received - earlier.received,
            sent: self.sent - earlier.sent,
        }
    }
}

/// Counts them, and judges what was counted.
pub fn measure(site: &Site, plan: Plan, results: &mut Results) -> Result<()> {
    let [mut handled, mut remote]: [f64; 2] = [0.0; 2];
    let most = plan.size(*PARTIES.end(), 4);
    for parties in (*PARTIES.start()..=*PARTIES.end()).filter(|&n| n <= most) {
        let counted =
            count(site, plan, parties).with_context(|| format!("{parties} joined servers"))?;
        (handled, remote) = (handled.max(counted.handled), remote.max(counted.remote));
        tell(parties, &counted, results);
    }
    let part = Part::Messages;
    let bound = |value| Bound::AtMost(value);
    let text = "real servers, distributed: at most 4.1 handled by each server for each fault";
    results.judge(part, "", text, Some(handled), bound(4.1));
    let text = "real servers, distributed: at most 2.0 of them remote";
    results.judge(part, "", text, Some(remote), bound(2.0));
    Ok(())
}

fn tell(parties: usize, counted: &Counted, results: &mut Results) {
    let (n, part) = (parties, Part::Messages);
    let round = format!("{} or {}", 2 * n, 2 * n - 1);
    for (what, value, paper) in [
        ("each fault", counted.handled, "4.1".to_owned()),
        ("remote", counted.remote, "2.0".to_owned()),
        ("one fault of each program", counted.round, round),
    ] {
        let name = format!("{n} real servers, {what}");
        results.add(part, "", &name, "", vec![value]);
        results.paper(paper);
    }
}

fn count(site: &Site, plan: Plan, parties: usize) -> Result<Counted> {
    let joined = Joined::new(site, parties)?;
    let milliseconds = plan.size(200 * parties, 100 * parties);
    let _: Vec<Increments> = site.together(programs(&joined, milliseconds / 4))?;
    let earlier = joined.sums()?;
    let _: Vec<Increments> = site.together(programs(&joined, milliseconds))?;
    let sums = joined.sums()? - earlier;
    ensure!(sums.own_faults > 0, "nobody faulted");
    let remote = (sums.received + sums.sent) as f64;
    Ok(Counted {
        handled: (remote + sums.local as f64) / sums.faults as f64,
        remote: remote / sums.faults as f64,
        round: sums.sent as f64 / sums.own_faults as f64 * parties as f64,
    })
}

/// A program at each server, all of which increment a word for so long.
fn programs(joined: &Joined, milliseconds: usize) -> impl Iterator<Item = Orders> {
    let all = joined.programs("increment").enumerate();
    let parties = joined.servers.len();
    all.map(move |(me, program)| {
        let program = program.member(me, parties);
        program.with("--milliseconds", milliseconds)
    })
}

/// Joined servers, with an object that was made at the first of them.
pub struct Joined {
    servers: PeerServers,
    /// Their sockets.
    _directory: TempDir,
}

impl Joined {
    /// So many of them; none has heard of the object's one page.
    pub fn new(site: &Site, parties: usize) -> Result<Joined> {
        let directory = tempfile::tempdir()?;
        let at = |server: usize| {
            format!(
                "unix:{}",
                directory.path().join(server.to_string()).display()
            )
        };
        let all: Vec<String> = (0..parties).map(at).collect();
        let peers = all.join(",");
        let serve = Orders::serve_leases(Waiting::Sleeping, LEASE).with("--peers", &peers);
        let servers = all.iter();
        let servers = servers.map(|listen| site.serve_at(listen, serve.clone()));
        let servers = PeerServers(servers.collect::<Result<_>>()?);
        make(servers.first().context("no server")?)?;
        Ok(Joined {
            servers,
            _directory: directory,
        })
    }

    /// A program at each server, which does this with the object.
    pub fn programs(&self, task: &str) -> impl Iterator<Item = Orders> {
        let servers = self.servers.iter();
        let at = move |server| Orders::at(server, OBJECT, task);
        servers.map(move |server| at(server).with("--scheduler", "distributed"))
    }

    /// Stops them all, until what is returned is dropped. Their links keep what is said to them.
    pub fn stop(&self) -> Result<Vec<Stopped>> {
        self.servers.iter().map(Served::stop).collect()
    }

    /// What all of them have counted so far, together.
    pub fn sums(&self) -> Result<Sums> {
        let mut sums = Sums::default();
        for server in self.servers.iter() {
            let inside = look(server)?;
            let messages = inside.messages;
            let own = inside.faults.read + inside.faults.write + inside.faults.unlock;
            sums.own_faults += own;
            sums.faults += own + messages.faults_of_servers;
            sums.local += messages.from_kernels + messages.to_kernels - messages.completions;
            sums.received += messages.from_servers;
            sums.sent += messages.to_servers;
        }
        Ok(sums)
    }
}

/// Makes the object, as soon as the servers are joined.
fn make(server: &Served) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    let object = control::Object {
        name: OBJECT.parse()?,
        size: PageSize::BASE.bytes(),
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Distributed,
        machine: MachineCode(0),
        tags: Vec::new(),
    };
    let client = client(server)?;
    while let Err(error) = client.create(object.clone()) {
        ensure!(Instant::now() < end, "{}: {error}", server.address);
        thread::sleep(Duration::from_millis(20));
    }
    let rights = Rights {
        read: true,
        write: true,
    };
    Ok(client.grant(object.name, "anyone".into(), rights)?)
}

fn client(server: &Served) -> Result<Client> {
    let mut options = Options::new(server.address.parse()?, OBJECT.parse()?);
    options.security = Security::Plaintext;
    Ok(Client::connect(options)?)
}

/// What a server has counted of the object.
fn look(server: &Served) -> Result<Inside> {
    match client(server)?.statistics(OBJECT.parse()?, None)? {
        Answer::Statistics {
            inside: Some(inside),
            ..
        } => Ok(inside),
        other => bail!("{} tells nothing of the object: {other:?}", server.address),
    }
}

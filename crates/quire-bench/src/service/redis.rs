//! A key-value store on superpages: throughput, slow requests, memory, and
//! what a snapshot, which forks, does to all of these.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cgroup::OwnedGroup;
use crate::launch::{self, Process};
use crate::procfs::{self, MIB};
use crate::results::Sample;
use crate::service::Setup;

const LIMIT: Duration = Duration::from_secs(300);
/// How long superpages may take to come back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Which part of them counts as back.
const BACK: f64 = 0.98;
/// How often each benchmark is made on one server; their median counts.
const ROUNDS: usize = 3;
/// Requests that are sent before their answers are read.
const PIPELINE: usize = 1000;

/// How much is stored and asked.
#[derive(Clone, Copy, Debug)]
struct Load {
    keys: usize,
    requests: usize,
}

/// A running server. It is stopped when this is dropped.
struct Server<'a> {
    setup: Setup<'a>,
    process: Process,
    socket: PathBuf,
    load: Load,
    // Dropped after the process, which lives in them.
    group: Option<OwnedGroup>,
    _dir: tempfile::TempDir,
}

/// Loads, asks, snapshots.
pub fn run(setup: Setup) -> Result<Sample> {
    let (keys, requests) = if setup.quick {
        (20_000, 10_000)
    } else {
        (5_000_000, 200_000)
    };
    let mut server = Server::start(setup, Load { keys, requests })?;
    let mut sample = Sample::default();
    let start = Instant::now();
    server.fill()?;
    sample.put("load_s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_millis(if setup.quick { 200 } else { 1500 }));
    server.memory(&mut sample)?;
    let (mut get, mut set) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        get.push(server.benchmark("get")?);
        set.push(server.benchmark("set")?);
    }
    for (test, rounds) in [("get", get), ("set", set)] {
        let median = |figure: fn(&Answered) -> f64| {
            quire_stats::median(&rounds.iter().map(figure).collect::<Vec<_>>())
        };
        sample.put_some(&format!("{test}_rps"), median(|a| a.rps));
        sample.put_some(&format!("{test}_p999_ms"), median(|a| a.p999_ms));
    }
    server.snapshot(&mut sample)?;
    ensure!(server.process.is_running(), "the server ended");
    Ok(sample)
}

impl<'a> Server<'a> {
    fn start(setup: Setup<'a>, load: Load) -> Result<Server<'a>> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().display().to_string();
        let socket = dir.path().join("redis.sock");
        let socket_arg = socket.display().to_string();
        let args = [
            "--port",
            "0",
            "--unixsocket",
            &socket_arg,
            "--dir",
            &path,
            "--save",
            "",
            "--appendonly",
            "no",
            "--disable-thp",
            "no",
        ];
        let group = OwnedGroup::create().ok();
        let inside = group.as_ref().map(OwnedGroup::program);
        let command = launch::command(setup.environment, inside, "redis-server", args)?;
        let process = Process::start(command)?;
        let mut server = Server {
            setup,
            process,
            socket,
            load,
            group,
            _dir: dir,
        };
        server.await_ready()?;
        Ok(server)
    }

    fn await_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while Client::connect(&self.socket)
            .and_then(|mut c| c.ask("PING"))
            .is_err()
        {
            ensure!(self.process.is_running(), "redis-server did not start");
            ensure!(start.elapsed() < PATIENCE, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Stores a value of 100 bytes under every key that redis-benchmark asks
    /// for.
    fn fill(&self) -> Result<()> {
        let mut client = Client::connect(&self.socket)?;
        let value = "v".repeat(100);
        for first in (0..self.load.keys).step_by(PIPELINE) {
            let last = (first + PIPELINE).min(self.load.keys);
            let mut batch = String::with_capacity(PIPELINE * 160);
            for key in first..last {
                let _ = write!(
                    batch,
                    "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n$100\r\n{value}\r\n"
                );
            }
            client.send(&batch)?;
            for _ in first..last {
                client.answer()?;
            }
            self.setup.interrupt.check()?;
        }
        Ok(())
    }

    fn memory(&self, sample: &mut Sample) -> Result<()> {
        sample.put(
            "rss_mib",
            procfs::resident(self.process.pid())? as f64 / MIB,
        );
        let charged = self
            .group
            .as_ref()
            .and_then(|g| g.program().program_memory());
        sample.put_some("charged_mib", charged.map(|b| b as f64 / MIB));
        sample.put_some("huge_mib", self.huge());
        Ok(())
    }

    /// MiB of the server that superpages map.
    fn huge(&self) -> Option<f64> {
        procfs::huge_mapped(self.process.pid()).map(|b| b as f64 / MIB)
    }

    fn benchmark_command(&self, test: &str) -> Command {
        let mut command = Command::new("redis-benchmark");
        command
            .arg("-s")
            .arg(&self.socket)
            .args(["-t", test, "-c", "20", "-d", "100"]);
        command.args(["-n", &self.load.requests.to_string()]);
        command.args(["-r", &self.load.keys.to_string()]);
        command
    }

    fn benchmark(&self, test: &str) -> Result<Answered> {
        let process = Process::start(self.benchmark_command(test))?;
        let text = process.wait(LIMIT, self.setup.interrupt)?.output()?;
        Answered::parse(&text).with_context(|| format!("reading what redis-benchmark {test} said"))
    }

    /// Writes a snapshot while values are set.
    fn snapshot(&mut self, sample: &mut Sample) -> Result<()> {
        let huge = self.huge().filter(|mib| *mib > 0.0);
        let by_all = procfs::huge_mapped_by_all();
        let clients = Process::start(self.benchmark_command("set"))?;
        std::thread::sleep(Duration::from_millis(200));
        let mut client = Client::connect(&self.socket)?;
        let start = Instant::now();
        client.ask("BGSAVE")?;
        while client
            .info("persistence")?
            .contains("rdb_bgsave_in_progress:1")
        {
            self.setup.interrupt.check()?;
            ensure!(start.elapsed() < LIMIT, "the snapshot does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        sample.put("save_s", start.elapsed().as_secs_f64());
        let ended = Instant::now();
        let text = client.info("stats")?;
        let fork = text
            .lines()
            .find_map(|l| l.strip_prefix("latest_fork_usec:"));
        let fork: Option<f64> = fork.and_then(|l| l.trim().parse().ok());
        sample.put_some("fork_ms", fork.map(|us| us / 1e3));
        if let Some((huge, by_all)) = huge.zip(by_all) {
            let wanted = by_all as f64 - (1.0 - BACK) * huge * MIB;
            self.superpages_back(wanted as u64, ended, sample)?;
        }
        sample.put_some("huge_after_mib", self.huge());
        let text = clients.wait(LIMIT, self.setup.interrupt)?.output()?;
        let set = Answered::parse(&text).context("reading what redis-benchmark said")?;
        sample.put("save_set_rps", set.rps);
        sample.put("save_set_p999_ms", set.p999_ms);
        Ok(())
    }

    /// Waits until superpages map so many bytes of all processes. Asking about
    /// the server itself would hold its memory calls up.
    fn superpages_back(&self, wanted: u64, ended: Instant, sample: &mut Sample) -> Result<()> {
        while procfs::huge_mapped_by_all().is_some_and(|now| now < wanted) {
            self.setup.interrupt.check()?;
            if ended.elapsed() > PATIENCE {
                let seconds = PATIENCE.as_secs();
                sample.note(format!("superpages were not back after {seconds} s"));
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        sample.put("back_s", ended.elapsed().as_secs_f64());
        Ok(())
    }
}

/// A connection to the server.
struct Client {
    write: UnixStream,
    read: BufReader<UnixStream>,
}

impl Client {
    fn connect(socket: &Path) -> Result<Client> {
        let write = UnixStream::connect(socket)?;
        write.set_read_timeout(Some(Duration::from_secs(60)))?;
        let read = BufReader::new(write.try_clone()?);
        Ok(Client { write, read })
    }

    fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.write.write_all(text.as_bytes())?)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        if line.is_empty() || line.starts_with('-') {
            bail!("redis-server: {}", line.trim());
        }
        Ok(line)
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        self.send(&format!("{request}\r\n"))?;
        self.answer()
    }

    fn info(&mut self, section: &str) -> Result<String> {
        let head = self.ask(&format!("INFO {section}"))?;
        let len: usize = head.trim().trim_start_matches('$').parse()?;
        let mut text = vec![0; len + 2];
        std::io::Read::read_exact(&mut self.read, &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// What redis-benchmark measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answered {
    rps: f64,
    p999_ms: f64,
}

impl Answered {
    fn parse(text: &str) -> Option<Answered> {
        let lines = || text.split(['\n', '\r']).map(str::trim);
        let rps = lines().find_map(|l| l.strip_prefix("throughput summary:"))?;
        let rps = rps.split_whitespace().next()?.parse().ok()?;
        let p999_ms = lines().filter_map(percentile).find(|(p, _)| *p >= 99.9)?.1;
        Some(Answered { rps, p999_ms })
    }
}

/// Reads `99.902% <= 0.311 milliseconds (cumulative count 99913)`.
fn percentile(line: &str) -> Option<(f64, f64)> {
    let (percent, rest) = line.split_once("% <= ")?;
    let value = rest.strip_suffix(')')?.split_once(" milliseconds (")?.0;
    Some((percent.parse().ok()?, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_benchmark_says_is_read() {
        let text = "Latency by percentile distribution:\n\
                    99.805% <= 0.287 milliseconds (cumulative count 99913)\n\
                    99.902% <= 0.311 milliseconds (cumulative count 99913)\n\
                    100.000% <= 0.5 milliseconds (cumulative count 100000)\n\
                    Summary:\n  throughput summary: 123456.79 requests per second\n";
        let expected = Answered {
            rps: 123_456.79,
            p999_ms: 0.311,
        };
        assert_eq!(Answered::parse(text), Some(expected));
        assert_eq!(Answered::parse("nothing"), None);
    }
}

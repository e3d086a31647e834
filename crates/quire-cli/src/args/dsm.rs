//! The command line of shared memory across machines.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use quire_core::dsm::types::map::TagMap;
use quire_core::units::Bytes;
use quire_dsm::attachment::OnLoss;
use quire_dsm::link::{Address, Addresses};
use quire_dsm::wire::control::{Name, NoScheduler, PageSize, Rights, SchedulerKind};

pub const SERVE_EXAMPLES: &str = "\
EXAMPLES:
  quire serve                                  for programs on this machine
  quire serve --listen unix:/run/quire.socket
  quire serve --store /var/lib/quire           objects survive the server
  quire serve --export samples=samples.bin     a file as an object, to be read
  quire serve --listen 10.0.0.5:7450 --certificate s.pem --key s.key --ca ca.pem
  quire serve --listen unix:/run/a --peers unix:/run/a,unix:/run/b
  quire serve --listen unix:/run/b --peers unix:/run/a,unix:/run/b
  quire serve --listen unix:/run/a --peers unix:/run/a,unix:/run/b,unix:/run/c \\
              --replicate-directory /var/lib/quire-a
  quire serve --etcd http://127.0.0.1:2379
  quire serve --etcd https://etcd-1:2379 --etcd-ca ca.pem --etcd-certificate s.pem --etcd-key s.key

Addresses that other machines reach need certificates of both sides, unless
--plaintext says that nobody listens on the way. It serves until SIGINT or SIGTERM;
then it takes back what programs have written, and hands over to other servers what they would
lose, which may take some seconds. A second signal ends it at once.
Without --store objects are in memory: they are gone when it ends. With --peers or --etcd,
servers share what is made at any of them, unless --scheduler says otherwise; when one fails, the
others go on with the newest copies that are left. An object that was made at a server with
--store is kept on its disk, whoever writes to it, and is away while that server is.";

pub const OBJECT_EXAMPLES: &str = "\
EXAMPLES:
  quire object create grid --size 1G
  quire object create samples --size 64M --tags float64:0-32M,int32:32M-64M
  quire object ls
  quire object stat grid                       the 10 pages with the most faults
  quire object stat grid --pages 0-15
  quire object trace grid --for 5              each message, as it happens
  quire object cp input.bin :grid              a colon stands before an object
  quire object cp :grid output.bin
  quire object cp :grid - | xxd | less         standard output; - is standard input, too
  quire object grant grid node-2 rw            by the name in its certificate
  quire object rm grid
  quire object check /var/lib/quire            a store that no server has open";

pub const TRACE_EXAMPLES: &str = "\
EXAMPLES:
  quire object trace grid
  quire object trace grid --pages 0-15 --for 10
  quire object trace grid --json | jq .message

A line has the seconds since the first message, the message, its pages, and who sent it
(<-) or gets it (->). Requests ask to read, to write, or to unlock: to write to what is
there to be read. A watcher that is too slow misses messages, and is told how many.";

pub const DEMO_EXAMPLES: &str = "\
EXAMPLES:
  quire dsm demo
  quire dsm demo --nodes 4 --programs matrix,hotspot --runs 5
  quire dsm demo --delay 500 --programs matrix
  quire dsm demo --quick --picture demo.html
  quire dsm demo --quick --json

Each node has a network namespace of its own where that is allowed (root); otherwise all
share the loopback. Behind the table is a picture for each program: pages from top to
bottom, time from left to right, and a letter for the node that could write to a page.";

pub const CERTIFY_EXAMPLES: &str = "\
EXAMPLES:
  quire dsm certify server node-1 node-2 --directory keys

makes keys/ca.pem and keys/ca.key, and a .pem and a .key for each node. A node needs its
two files and ca.pem; ca.key stays where it is.";

pub const INVITE_EXAMPLES: &str = "\
EXAMPLES:
  quire dsm invite node-2 --server 10.0.0.5:7450   writes node-2.invitation
  quire serve                                      lets in who has one
  quire dsm join node-2.invitation                 on the other machine
  quire dsm invite node-3 -o - | ssh node-3 quire dsm join -

The first one makes a CA and the server's certificate, in ~/.config/quire, and writes dsm.toml
there, which says where `quire serve` listens and where programs of this machine go. An
invitation holds a key: who reads it can come under its name.";

/// The variable that says where servers are.
pub const SERVER: &str = "QUIRE_SERVER";

/// Where a server listens that nobody told where.
pub const ADDRESS: &str = "127.0.0.1:7450";

/// What `quire serve` takes.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("joined").args(["peers", "etcd"])))]
pub struct ServeArgs {
    /// Where to listen: HOST:PORT or unix:PATH; may be given several times [default: what dsm.toml says,
    /// else 127.0.0.1:7450]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<Address>,
    /// What this server is called; with TLS its certificate is for this name [default: server]
    #[arg(long)]
    pub name: Option<Name>,
    /// Keep objects in this directory: they, their rights and what was acknowledged survive
    /// the server, also one that is killed
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Of objects that are kept or shown in files, have about so much in memory; the rest is
    /// read again when somebody needs it
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: Bytes,
    /// Show a file of this machine as an object, which everybody may read who reaches this
    /// server; may be given several times
    #[arg(long, value_name = "NAME=FILE")]
    pub export: Vec<Export>,
    /// The same, to be written to as well: what is written goes to the file
    #[arg(long, value_name = "NAME=FILE")]
    pub export_writable: Vec<Export>,
    /// What others may do to objects that are made from now on, unless their makers say otherwise:
    /// `anyone=rw` lets all who can connect use them; the name in a certificate or uid:NUMBER, and r or
    /// rw. May be given several times
    #[arg(long, value_name = "WHO=RIGHTS")]
    pub grant: Vec<Grant>,
    /// How long a machine that went silent keeps what it has, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = super::seconds)]
    pub lease: Duration,
    /// After a message, look for more for so many microseconds before sleeping: 100 is nearly as quick
    /// as more
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0)]
    pub spin: u32,
    /// Answer with the priority of programs, also where the system allows a real-time priority,
    /// with which faults and heartbeats do not wait for programs that compute
    #[arg(long)]
    pub no_realtime: bool,
    /// Servers that share objects, all given the same list; the first keeps the directory,
    /// unless --replicate-directory is given
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        conflicts_with = "etcd"
    )]
    pub peers: Vec<Address>,
    /// All servers of --peers, at least three, keep the directory together: as long as most
    /// of them run and are connected, they go on. This one has its copy in DIR, which nobody
    /// else may use, nor anybody empty
    #[arg(long, value_name = "DIR", requires = "peers")]
    pub replicate_directory: Option<PathBuf>,
    /// Share objects with all servers of this etcd cluster: URLs with commas between
    #[arg(long, value_name = "URL")]
    pub etcd: Option<String>,
    /// The CA that etcd's certificate is from (PEM), where its URLs begin with https
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub etcd_ca: Option<PathBuf>,
    /// The certificate that this server shows etcd (PEM), where etcd demands one
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    pub etcd_certificate: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_certificate")]
    pub etcd_key: Option<PathBuf>,
    /// The user as whom to come to etcd, where it has authentication enabled
    #[arg(long, value_name = "NAME", requires_all = ["etcd", "etcd_password_file"])]
    pub etcd_user: Option<String>,
    /// A file whose first line is the user's password, for nobody else to read
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    pub etcd_password_file: Option<PathBuf>,
    /// Where other servers reach this one, if not where it listens first
    #[arg(long, value_name = "ADDRESS", requires = "joined")]
    pub advertise: Option<Address>,
    /// The names of other servers' certificates; without it, they have this server's name
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        requires = "joined",
        alias = "fellow"
    )]
    pub peer_server: Vec<Name>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// Rights that somebody usually has.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Who.
    pub to: String,
    /// Which.
    pub rights: Rights,
}

impl std::str::FromStr for Grant {
    type Err = String;

    fn from_str(text: &str) -> Result<Grant, String> {
        let (to, what) = text
            .split_once('=')
            .ok_or("write WHO=RIGHTS, such as anyone=rw")?;
        Ok(Grant {
            to: holder(to)?,
            rights: rights(what)?,
        })
    }
}

/// A file that is shown as an object.
#[derive(Clone, Debug)]
pub struct Export {
    /// What the object is called.
    pub name: Name,
    /// The file.
    pub file: PathBuf,
}

impl std::str::FromStr for Export {
    type Err = String;

    fn from_str(text: &str) -> Result<Export, String> {
        let (name, file) = text
            .split_once('=')
            .ok_or("write NAME=FILE: what the object is called, and the file")?;
        Ok(Export {
            name: name.parse().map_err(|error| format!("{error}"))?,
            file: file.into(),
        })
    }
}

/// How links are secured.
#[derive(Clone, Debug, Default, Args)]
pub struct TlsArgs {
    /// This side's certificate (PEM)
    #[arg(long, global = true, value_name = "FILE", requires_all = ["key", "ca"])]
    pub certificate: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// The CA that the other side's certificate is from (PEM)
    #[arg(long, global = true, value_name = "FILE", requires = "certificate")]
    pub ca: Option<PathBuf>,
    /// Do without TLS, also where other machines can listen
    #[arg(long, global = true, conflicts_with = "certificate")]
    pub plaintext: bool,
    /// TLS also on addresses that only this machine reaches, but for Unix sockets
    #[arg(long, global = true, requires = "certificate")]
    pub tls_everywhere: bool,
}

/// How a server is reached.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// Where the server is: HOST:PORT or unix:PATH. Several servers that are joined stand
    /// with commas between: the first that answers is used, and the next when it fails. A
    /// comma in a PATH is written twice [default: what dsm.toml says, else 127.0.0.1:7450]
    #[arg(long, global = true, value_name = "ADDRESS[,ADDRESS]", env = SERVER)]
    pub server: Option<Addresses>,
    /// What this side is called; with TLS its certificate is for this name [default: with the certificate
    /// of dsm.toml, its name, else quire]
    #[arg(long, global = true, value_name = "NAME")]
    pub identity: Option<Name>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// What `quire run` takes of it.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// Give the program an object as shared memory: `grid@HOST:PORT` where it opens
    /// `/grid` (`shm_open`), `grid=NAME@ADDRESS` where it opens another name,
    /// `grid=0x1234@ADDRESS` where it gets the segment of this key (`shmget`),
    /// `turn=sem.NAME@ADDRESS` where it opens a semaphore (`sem_open`). `'psm_*@ADDRESS'` stands for all
    /// names that look like this, semaphores too, and objects that are called like them; what is named
    /// without a `*` goes before, and then what stands first. ADDRESS is HOST:PORT or
    /// unix:PATH, or several of them with commas between, as for --server of `quire object`; without
    /// @ADDRESS it is the server of QUIRE_SERVER, or that which dsm.toml names. May be given again
    #[arg(long, value_name = "OBJECT[@ADDRESS]")]
    pub dsm: Vec<String>,
    /// Do not make objects that do not exist when the program makes shared memory
    #[arg(long, requires = "dsm")]
    pub no_create: bool,
    /// An object that no program of this run made stays when one of them removes its name (`shm_unlink`):
    /// others may use it. This is so unless --no-keep is given
    #[arg(long, requires = "dsm", overrides_with = "no_keep")]
    pub keep: bool,
    /// Remove it
    #[arg(long, requires = "dsm", overrides_with = "keep")]
    pub no_keep: bool,
    /// How objects are scheduled that the program makes: simple, multi, or distributed, which can be
    /// opened at all joined servers; usual is distributed at a server that is joined to others, else multi
    #[arg(long, value_name = "SCHEDULER", default_value = "usual", requires = "dsm", value_parser = scheduler)]
    pub scheduler: SchedulerKind,
    /// Keep pages of the program's own, also where the server is on this machine and could
    /// share its copies: the program can then go on at a server of another machine
    #[arg(long, requires = "dsm")]
    pub own_pages: bool,
    /// Hold at most so much of an object whose pages are the program's own; what came first goes
    /// back to the server first [default: half of the memory that is free when it is opened]
    #[arg(long, value_name = "SIZE", requires = "dsm")]
    pub room: Option<Bytes>,
    /// Answer faults with the priority of the program, also where the system allows a real-time
    /// priority, with which they do not wait for threads that compute
    #[arg(long, requires = "dsm")]
    pub no_realtime: bool,
    /// Start no process beside the program. Without it, a program that was stopped for longer than
    /// its lease (by a signal or a debugger) may see what is old for a moment when it goes on
    #[arg(long, requires = "dsm", alias = "no-warden")]
    pub no_revoker: bool,
    /// What becomes of a program that has lost what it wrote, as others were given the page while it
    /// was stopped or cut off: `kill`: it is killed by SIGBUS; `errno`: its locks and msync fail with
    /// ENOTRECOVERABLE; `continue`: it goes on with what there is. A line says so in any case
    #[arg(long, value_name = "WHAT", requires = "dsm", default_value = "kill", value_parser = on_loss)]
    pub on_loss: OnLoss,
    /// What this side is called; with TLS its certificate is for this name [default: what the
    /// program is called, and with a certificate, quire]
    #[arg(long, value_name = "NAME", requires = "dsm")]
    pub identity: Option<Name>,
    #[command(flatten)]
    pub tls: TlsArgs,
}

/// What `quire object` takes.
#[derive(Debug, Args)]
pub struct ObjectArgs {
    /// What to do
    #[command(subcommand)]
    pub action: ObjectAction,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What can be done to objects.
#[derive(Debug, Subcommand)]
pub enum ObjectAction {
    /// Make an object that holds zeros
    Create(CreateArgs),
    /// List all objects
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show faults, readers and owners of an object, and of its pages with the most faults
    Stat(StatArgs),
    /// Show each message in and out of an object's scheduler as it happens
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(TraceArgs),
    /// Remove objects that nobody has open
    Rm {
        /// The objects
        #[arg(required = true)]
        names: Vec<Name>,
        /// Also objects that are open: the name is free at once, for another object too, and the memory
        /// goes when nobody has it open any more
        #[arg(long)]
        when_unused: bool,
    },
    /// Say what others may do to an object; its maker may do everything
    Grant {
        /// The object
        name: Name,
        /// Whom: the name in a certificate, uid:NUMBER for a user of the server's machine,
        /// or anyone
        #[arg(value_parser = holder)]
        to: String,
        /// What: r to read, rw to read and write, none
        #[arg(value_parser = rights)]
        rights: Rights,
    },
    /// Copy an object to a file, or a file to an object, which is made where there is none. Zeros
    /// take no space of a new object, nor of a file
    Cp {
        /// What is copied: a file, an object as :NAME, or - for standard input, which is read
        /// to its end first
        from: Place,
        /// Where to: a file, an object as :NAME, or - for standard output
        to: Place,
        /// Where pages of an object are damaged or lost, put zeros in their place, copy the rest, and say
        /// which pages these were. The exit status is 1 then
        #[arg(long)]
        salvage: bool,
    },
    /// Read all of a store that no server has open, and name what is damaged; nothing is
    /// changed. The exit status is 1 where something is
    Check {
        /// The store's directory
        directory: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// What `quire object stat` takes.
#[derive(Debug, Args)]
pub struct StatArgs {
    /// The object
    pub name: Name,
    /// Show so many pages, those with the most faults first
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "pages",
          value_parser = clap::value_parser!(u32).range(0..=512))]
    pub top: u32,
    /// Show these pages instead, such as 0-15
    #[arg(long, value_name = "FIRST-LAST", value_parser = pages)]
    pub pages: Option<quire_core::dsm::message::Pages>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `quire object trace` takes.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The object
    pub name: Name,
    /// Only messages about these pages, such as 0-15, and those that name none
    #[arg(long, value_name = "FIRST-LAST", value_parser = pages)]
    pub pages: Option<quire_core::dsm::message::Pages>,
    /// End after so many seconds; otherwise when the object is removed or a signal ends it
    #[arg(long = "for", value_name = "SECONDS", value_parser = super::seconds)]
    pub time: Option<Duration>,
    /// Print a line of JSON for each message
    #[arg(long)]
    pub json: bool,
}

/// What `quire object create` takes.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// What it is called
    pub name: Name,
    /// Its size, such as 64M
    #[arg(long, allow_negative_numbers = true)]
    pub size: Bytes,
    /// The size of its pages, a power of two from 4K to 2M
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = page_size)]
    pub page_size: PageSize,
    /// What orders the faults: `simple`, `multi` for machines with pages of several sizes, or
    /// `distributed` for several servers that are joined
    #[arg(long, value_name = "SCHEDULER", default_value = "usual", value_parser = scheduler)]
    pub scheduler: SchedulerKind,
    /// The types of its data, such as float64:0-4M,int32:4M-5M, or one type for all of it;
    /// what has none is not translated between machines
    #[arg(long, value_name = "TYPES", default_value = "")]
    pub tags: String,
}

/// A file, an object, or standard input or output.
#[derive(Clone, Debug)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// An object.
    Object(Name),
    /// Standard input or output.
    Standard,
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        match text.strip_prefix(':') {
            Some(name) => name
                .parse()
                .map(Place::Object)
                .map_err(|error| format!("{error}")),
            None if text == "-" => Ok(Place::Standard),
            None => Ok(Place::File(text.into())),
        }
    }
}

/// What `quire dsm` takes.
#[derive(Debug, Args)]
pub struct DsmArgs {
    /// What to do
    #[command(subcommand)]
    pub action: DsmAction,
}

/// What can be tried.
#[derive(Debug, Subcommand)]
pub enum DsmAction {
    /// Run parallel programs on several nodes of this machine, and compare their times
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Make certificates for nodes, and the CA that they are from
    #[command(after_help = CERTIFY_EXAMPLES)]
    Certify(CertifyArgs),
    /// Make a file that lets another machine in, and with the first one what a server here needs
    #[command(after_help = INVITE_EXAMPLES)]
    Invite(InviteArgs),
    /// Take such a file: `quire run --dsm NAME` goes to its server from then on
    Join(JoinArgs),
    /// Run one member of a program
    #[command(hide = true)]
    Member(MemberArgs),
    /// Serve in plain text until the input ends
    #[command(hide = true)]
    Host(HostArgs),
    /// Bring what programs of a `quire run` had written that were killed
    #[command(hide = true)]
    Recover,
}

/// What becomes of a program that has lost what it wrote.
fn on_loss(text: &str) -> Result<OnLoss, String> {
    let mut named = OnLoss::NAMES.into_iter().filter(|(name, _)| *name == text);
    let named = named.next().map(|(_, it)| it);
    named.ok_or_else(|| "choose kill, errno or continue".to_owned())
}

/// What `quire dsm certify` takes.
#[derive(Debug, Args)]
pub struct CertifyArgs {
    /// What the nodes are called
    #[arg(required = true)]
    pub names: Vec<Name>,
    /// Where the files go, and where the CA is; it is made where there is none
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub directory: PathBuf,
    /// For how many days certificates are valid, up to 36500: no longer than that of the CA, which
    /// has ten times as many when it is made
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// What `quire dsm invite` takes.
#[derive(Debug, Args)]
pub struct InviteArgs {
    /// What the other machine is called: a name for certificates and rights
    pub name: Name,
    /// Where other machines reach the server of this one: HOST:PORT, needed once
    #[arg(long, value_name = "ADDRESS")]
    pub server: Option<Addresses>,
    /// The file, or - for standard output [default: NAME.invitation]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// For how many days the certificate is valid, up to 36500
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// What `quire dsm join` takes.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The file, or - for standard input
    pub invitation: PathBuf,
    /// Forget what was joined before
    #[arg(long)]
    pub replace: bool,
}

/// What `quire dsm demo` takes.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// As many nodes at most, each a process with memory of its own; up to 63
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    pub nodes: NonZeroUsize,
    /// Which programs
    #[arg(long, alias = "program", value_delimiter = ',', value_name = "LIST")]
    pub programs: Vec<ProgramName>,
    /// How often each is run; medians are shown
    #[arg(long, value_name = "N", default_value = "3", value_parser = count)]
    pub runs: NonZeroUsize,
    /// What orders the faults: `simple`, `multi` or `distributed`
    #[arg(long, value_name = "SCHEDULER", default_value = "simple", value_parser = scheduler)]
    pub scheduler: SchedulerKind,
    /// How many microseconds a packet takes from a node to another
    #[arg(long, value_name = "MICROSECONDS", default_value = "0", value_parser = microseconds)]
    pub delay: Duration,
    /// Nodes without network namespaces of their own
    #[arg(long, conflicts_with = "delay")]
    pub loopback: bool,
    /// Small sizes
    #[arg(long)]
    pub quick: bool,
    /// Also draw who had which page when into this file, .html or .svg
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print the table alone
    #[arg(long)]
    pub no_picture: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The programs of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgramName {
    /// Two matrices are multiplied.
    Matrix,
    /// Shortest paths in a planar graph.
    Paths,
    /// Wires on a circuit.
    Router,
    /// Particles in a wind tunnel.
    Particles,
    /// Everybody increments one word.
    Hotspot,
}

/// What the server of the demonstration is told.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// A directory to be made for a socket; it goes when the server ends
    #[arg(long)]
    pub directory: PathBuf,
    /// Where else to listen
    #[arg(long)]
    pub listen: Address,
}

/// What a member of a program is told.
#[derive(Debug, Args)]
pub struct MemberArgs {
    /// The program
    #[arg(long)]
    pub program: ProgramName,
    /// Its size
    #[arg(long)]
    pub size: usize,
    /// Which member this is
    #[arg(long)]
    pub me: usize,
    /// How many there are
    #[arg(long)]
    pub members: usize,
    /// The object
    #[arg(long)]
    pub object: Name,
    /// How long memory waits for a server that is gone, in seconds
    #[arg(long, value_parser = super::seconds)]
    pub reconnect: Option<Duration>,
    #[command(flatten)]
    pub server: ServerArgs,
}

fn count(text: &str) -> Result<NonZeroUsize, &'static str> {
    text.parse().map_err(|_| "write a whole number, at least 1")
}

fn microseconds(text: &str) -> Result<Duration, &'static str> {
    let number = text.parse().ok().filter(|number| *number <= 1_000_000);
    let number = number.map(Duration::from_micros);
    number.ok_or("write a whole number of microseconds, at most 1000000")
}

fn rights(text: &str) -> Result<Rights, &'static str> {
    let (read, write) = match text {
        "none" => (false, false),
        "r" => (true, false),
        "rw" => (true, true),
        _ => return Err("choose `r`, `rw` or `none`"),
    };
    Ok(Rights { read, write })
}

/// Somebody who can have rights: a name that can be in a certificate, a user, or anyone.
fn holder(text: &str) -> Result<String, &'static str> {
    let bad = "write the name in a certificate, uid:NUMBER, or anyone";
    match text.strip_prefix("uid:") {
        Some(number) => match number.parse::<u32>() {
            // The last number stands for no user.
            Ok(number) if number != u32::MAX => Ok(format!("uid:{number}")),
            _ => Err(bad),
        },
        None => text
            .parse()
            .map(|name: Name| name.to_string())
            .map_err(|_| bad),
    }
}

fn page_size(text: &str) -> Result<PageSize, String> {
    let size: Bytes = text.parse().map_err(|error| format!("{error}"))?;
    PageSize::try_from(size).map_err(|error| error.to_string())
}

fn scheduler(text: &str) -> Result<SchedulerKind, NoScheduler> {
    text.parse()
}

fn pages(text: &str) -> Result<quire_core::dsm::message::Pages, String> {
    use quire_core::dsm::message::{PageNumber, Pages};
    let bad = || "write FIRST-LAST, such as 0-15".to_owned();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u64, u64) = (
        first.parse().map_err(|_| bad())?,
        last.parse().map_err(|_| bad())?,
    );
    let count = last
        .checked_sub(first)
        .and_then(|n| u32::try_from(n.checked_add(1)?).ok());
    Ok(Pages {
        first: PageNumber(first),
        count: count.ok_or_else(bad)?,
    })
}

/// The types of an object of some size.
pub fn tags(text: &str, size: Bytes) -> Result<TagMap, String> {
    match text {
        "" => Ok(TagMap::new(size)),
        text => TagMap::parse(text, size).map_err(|error| error.to_string()),
    }
}

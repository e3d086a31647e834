//! The workloads and what each of them measures.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::variant::Variant;

/// A workload of the superpage experiments.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// First touch of 256 MiB after an idle moment
    #[value(name = "touch-256m")]
    #[serde(rename = "touch-256m")]
    Touch256m,
    /// First touch of 4 GiB, with its CPU time
    #[value(name = "touch-4g")]
    #[serde(rename = "touch-4g")]
    Touch4g,
    /// Slowest first touches of single pages
    #[value(name = "touch-p999")]
    #[serde(rename = "touch-p999")]
    TouchP999,
    /// Random reads and a pointer chase over 1 GiB
    #[value(name = "random-1g")]
    #[serde(rename = "random-1g")]
    Random1g,
    /// Memory of a program that uses one page in each superpage, under pressure
    #[value(name = "sparse-4g")]
    #[serde(rename = "sparse-4g")]
    Sparse4g,
    /// First touches where reservations have failed
    Failed,
    /// Cost of a promotion, and whether frames stay where they are
    Promote,
    /// Matrix transposition by load and store stride (paper 004)
    Transpose,
    /// Matrix multiplication (paper 001)
    Matmul,
    /// A key-value store: throughput, slow requests, snapshots
    Redis,
    /// Programs that gain nothing: compiler, interpreter, database, processes
    Slowdown,
    /// Buffers that are mapped, filled and unmapped again and again
    Cycle,
    /// A sparse and a dense process that compete for the memory of a group
    Compete,
    /// Free memory in scattered holes of one page
    Fragmented,
    /// A server that forks again and again under write load
    Forks,
    /// Ten open programs, as in Figure 3 of GISP (paper 000)
    Figure3,
}

/// Which way of a metric is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// It explains other figures and is not compared.
    Neither,
}

impl Better {
    /// How many times as good `own` is as `other`, bounded, so that nothing at all
    /// has a ratio to something; two zeros are the same.
    pub fn gain(self, own: f64, other: f64) -> Option<f64> {
        let (numerator, denominator) = match self {
            Better::Lower => (other, own),
            Better::Higher => (own, other),
            Better::Neither => return None,
        };
        if numerator == 0.0 && denominator == 0.0 {
            return Some(1.0);
        }
        let gain = (numerator / denominator).min(1e6);
        gain.is_finite().then_some(gain)
    }
}

/// One figure that a workload measures. A sample may give it for several
/// sizes, then named `name@size`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// Key in the JSON file.
    pub name: &'static str,
    /// What it is, for people.
    pub label: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way is good.
    pub better: Better,
}

/// A figure of which less is better.
pub const fn lower(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
    Metric {
        name,
        label,
        unit,
        better: Better::Lower,
    }
}

const fn higher(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
    Metric {
        name,
        label,
        unit,
        better: Better::Higher,
    }
}

/// A figure that explains others.
pub const fn info(name: &'static str, label: &'static str, unit: &'static str) -> Metric {
    Metric {
        name,
        label,
        unit,
        better: Better::Neither,
    }
}

const TOUCH: &[Metric] = &[
    lower("wall_ms", "time", "ms"),
    lower("cpu_ms", "CPU time of all threads", "ms"),
];
const TOUCH_P999: &[Metric] = &[
    lower("p999_ns", "99.9th percentile", "ns"),
    lower("p50_ns", "median", "ns"),
    lower("p99_ns", "99th percentile", "ns"),
    lower("p9999_ns", "99.99th percentile", "ns"),
    lower("max_ns", "slowest", "ns"),
];
const RANDOM: &[Metric] = &[
    lower("read_ns", "independent random read", "ns"),
    lower("chase_ns", "step of a pointer chase", "ns"),
    info("huge_mib", "mapped by superpages", "MiB"),
];
const SPARSE: &[Metric] = &[
    lower("memory_mib", "charged memory under pressure", "MiB"),
    lower("rss_mib", "resident under pressure", "MiB"),
    info("touched_mib", "charged memory before pressure", "MiB"),
    info(
        "usage_mib",
        "all of the cgroup under pressure, kernel included",
        "MiB",
    ),
    info("ballast_mib", "taken by the other program", "MiB"),
];
const FAILED: &[Metric] = &[
    lower("dense_ns", "first touch of a page, every page", "ns"),
    lower(
        "sparse_ns",
        "first touch of a page, one in each 2 MiB",
        "ns",
    ),
];
const PROMOTE: &[Metric] = &[
    lower("promote_us", "promotion of one superpage", "us"),
    lower("moved_pages", "pages whose frame changed", "pages"),
    info("promotions", "promotions timed", ""),
    info(
        "probe_busy_us",
        "the same with a second running thread",
        "us",
    ),
    info(
        "collapse_busy_us",
        "the same by MADV_COLLAPSE of a plain file mapping",
        "us",
    ),
    info(
        "collapse_us",
        "MADV_COLLAPSE of a plain file mapping by a single thread",
        "us",
    ),
    info(
        "probe_us",
        "the kernel's part of it, without a second running thread",
        "us",
    ),
    info(
        "probe_moved_pages",
        "pages whose frame changed, probe of the kernel",
        "pages",
    ),
];
const TRANSPOSE: &[Metric] = &[
    lower("load_ns", "load stride, per element", "ns"),
    lower("store_ns", "store stride, per element", "ns"),
    lower(
        "load_mean_ns",
        "load stride, geometric mean over sizes",
        "ns",
    ),
    lower(
        "store_mean_ns",
        "store stride, geometric mean over sizes",
        "ns",
    ),
];
const MATMUL: &[Metric] = &[
    lower("ikj_s", "row by row", "s"),
    lower("ijk_s", "by columns, half the dimension", "s"),
    info("huge_mib", "mapped by superpages", "MiB"),
];
const REDIS: &[Metric] = &[
    higher("get_rps", "GET throughput", "1/s"),
    higher("set_rps", "SET throughput", "1/s"),
    lower("get_p999_ms", "GET, 99.9th percentile", "ms"),
    lower("set_p999_ms", "SET, 99.9th percentile", "ms"),
    higher("save_set_rps", "SET throughput during a snapshot", "1/s"),
    lower(
        "save_set_p999_ms",
        "SET during a snapshot, 99.9th percentile",
        "ms",
    ),
    lower("rss_mib", "resident memory", "MiB"),
    info("charged_mib", "charged memory", "MiB"),
    info("huge_mib", "mapped by superpages, loaded", "MiB"),
    info(
        "huge_after_mib",
        "mapped by superpages, 10 s after the snapshot at most",
        "MiB",
    ),
    lower("load_s", "loading", "s"),
    lower("save_s", "snapshot", "s"),
    lower("fork_ms", "fork for the snapshot", "ms"),
    lower(
        "back_s",
        "until superpages are back after the snapshot",
        "s",
    ),
];
const SLOWDOWN: &[Metric] = &[
    lower("total_s", "total", "s"),
    lower("gcc_s", "compiler", "s"),
    lower("python_s", "Python script", "s"),
    lower("sqlite_s", "SQLite script", "s"),
    lower("spawn_s", "fork and exec of /bin/true, all", "s"),
    lower("micro_s", "micro-costs below, all", "s"),
    lower("fault_ns", "first touch of a page of 64 MiB", "ns"),
    lower("mmap_64k_us", "mmap and munmap of 64 KiB", "us"),
    lower("mmap_8m_us", "mmap and munmap of 8 MiB", "us"),
    lower("fork_us", "fork with 64 MiB touched", "us"),
    lower("fork_exec_us", "fork and exec with 64 MiB touched", "us"),
    lower("syscall_ns", "null system call", "ns"),
    lower("switch_us", "context switch, with 64 MiB touched", "us"),
    lower("pipe_us", "round trip through two pipes", "us"),
    lower("socket_us", "round trip through a Unix socket", "us"),
    lower("create_us", "file of 10 KiB created and deleted", "us"),
    lower("minor_fault_ns", "fault of a mapped file, in memory", "ns"),
    lower("major_fault_us", "fault of a mapped file, on disk", "us"),
];
const FIGURE3: &[Metric] = &[
    lower("wall_s", "time", "s"),
    lower("cpu_s", "CPU time of all threads", "s"),
    lower("peak_mib", "resident memory, peak", "MiB"),
    info("huge_mib", "mapped by superpages, peak", "MiB"),
    info("superpages", "superpages of Quire, peak", ""),
    info("promotions", "promotions", ""),
    info("reported", "faults reported to the pager", ""),
    info("pager_ms", "CPU time of the pager", "ms"),
    info("calls_ms", "time in replaced memory calls", "ms"),
];

const CYCLE: &[Metric] = &[
    lower("mmap_4m_ms", "mmap, 4 MiB dense, a cycle", "ms"),
    lower("mmap_16m_ms", "mmap, 16 MiB dense, a cycle", "ms"),
    lower("mmap_64m_ms", "mmap, 64 MiB dense, a cycle", "ms"),
    lower(
        "mmap_sparse_ms",
        "mmap, 64 MiB, one page in each 2 MiB, a cycle",
        "ms",
    ),
    lower("malloc_4m_ms", "malloc, 4 MiB dense, a cycle", "ms"),
    lower("malloc_16m_ms", "malloc, 16 MiB dense, a cycle", "ms"),
    lower("malloc_64m_ms", "malloc, 64 MiB dense, a cycle", "ms"),
    lower(
        "malloc_sparse_ms",
        "malloc, 64 MiB, one page in each 2 MiB, a cycle",
        "ms",
    ),
];
const COMPETE: &[Metric] = &[
    higher(
        "survivors",
        "processes of two that lived and kept their contents",
        "",
    ),
    higher("huge_pct", "of the dense one on superpages", "%"),
    lower("fill_ms", "first touch of the dense one's memory", "ms"),
    lower("read_ns", "random read of the dense one", "ns"),
    info(
        "sparse_preemptions",
        "reservations that the sparse one yielded",
        "",
    ),
    info(
        "dense_preemptions",
        "reservations that the dense one yielded",
        "",
    ),
    info("sparse_rss_mib", "resident of the sparse one, then", "MiB"),
    higher(
        "tight_survivors",
        "processes of two that lived and kept their contents, tight",
        "",
    ),
    higher(
        "tight_huge_pct",
        "of the dense one on superpages, tight",
        "%",
    ),
    lower(
        "tight_fill_ms",
        "first touch of the dense one's memory, tight",
        "ms",
    ),
    info(
        "tight_sparse_preemptions",
        "reservations that the sparse one yielded, tight",
        "",
    ),
];
const FRAGMENTED: &[Metric] = &[
    lower("fill_ms", "first touch", "ms"),
    lower("read_ns", "random read", "ns"),
    lower("cpu_ms", "CPU time of the process", "ms"),
    info("huge_mib", "mapped by superpages", "MiB"),
    info("failed_reservations", "reservations that failed", ""),
    lower(
        "compact_fill_ms",
        "first touch, where compaction may help",
        "ms",
    ),
    lower(
        "compact_read_ns",
        "random read, where compaction may help",
        "ns",
    ),
    lower(
        "compact_cpu_ms",
        "CPU time, where compaction may help",
        "ms",
    ),
    info(
        "compact_huge_mib",
        "mapped by superpages, where compaction may help",
        "MiB",
    ),
    info(
        "compact_failed_reservations",
        "reservations that failed, where compaction may help",
        "",
    ),
    info(
        "free_huge_mib",
        "free blocks of 2 MiB and more at the start",
        "MiB",
    ),
    info(
        "free_small_mib",
        "free blocks of 8 KiB to 1 MiB at the start",
        "MiB",
    ),
    info("free_single_mib", "free single pages at the start", "MiB"),
    info(
        "compact_free_huge_mib",
        "free blocks of 2 MiB and more, before compaction",
        "MiB",
    ),
    info(
        "compact_free_small_mib",
        "free blocks of 8 KiB to 1 MiB, before compaction",
        "MiB",
    ),
    info(
        "holes_mib",
        "memory in holes, and as much held between them",
        "MiB",
    ),
    info("taken_mib", "memory of the machine that is held", "MiB"),
];
const FORKS: &[Metric] = &[
    higher("kept_pct", "superpages at the end, of those before", "%"),
    lower("fork_ms", "fork, mean", "ms"),
    higher("writes_mps", "random writes by the second thread", "1e6/s"),
    higher("intact", "contents right in parent and children", ""),
    info("huge_before_mib", "mapped by superpages before", "MiB"),
    info("huge_after_mib", "mapped by superpages at the end", "MiB"),
    info("back_s", "until all are back after the last fork", "s"),
];

impl Workload {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Touch256m => "touch-256m",
            Workload::Touch4g => "touch-4g",
            Workload::TouchP999 => "touch-p999",
            Workload::Random1g => "random-1g",
            Workload::Sparse4g => "sparse-4g",
            Workload::Failed => "failed",
            Workload::Promote => "promote",
            Workload::Transpose => "transpose",
            Workload::Matmul => "matmul",
            Workload::Redis => "redis",
            Workload::Slowdown => "slowdown",
            Workload::Cycle => "cycle",
            Workload::Compete => "compete",
            Workload::Fragmented => "fragmented",
            Workload::Forks => "forks",
            Workload::Figure3 => "figure3",
        }
    }

    /// What happens in it, for people.
    pub const fn description(self) -> &'static str {
        match self {
            Workload::Touch256m => {
                "Sleeps 300 ms, so that memory can be prepared, then takes 256 MiB and writes to each page in turn."
            }
            Workload::Touch4g => {
                "Takes 4 GiB at once and writes to each page in turn, without an idle moment before."
            }
            Workload::TouchP999 => {
                "Takes 64 MiB at a time with idle moments between and times each first touch of a page."
            }
            Workload::Random1g => {
                "Touches 1 GiB twice, waits 1.5 s, then reads at random places: independent reads, and a chain in which each read says where the next one is."
            }
            Workload::Sparse4g => {
                "Touches one page in each 2 MiB of 4 GiB, in a memory cgroup that is limited to 256 MiB more; then another program takes what the limit leaves. Charged memory counts reserved pages."
            }
            Workload::Failed => {
                "Touches one page in each of 512 superpages, and every page of 128 others, where Quire may not reserve any more (QUIRE_RESERVE_LIMIT=16M, used up before)."
            }
            Workload::Promote => {
                "Fills the extents of 64 MiB one after the other, notes every physical frame, waits for each promotion, and compares. The time is what Quire counts for a promotion, in which the processor that runs the program is interrupted; a probe makes the same calls alone. Under `thp` it is that of collapsing anonymous memory."
            }
            Workload::Transpose => {
                "a[i][j] = b[j][i] (load stride) and a[j][i] = b[i][j] (store stride) over square matrices of 64-bit numbers: the experiment of Figures 8 to 11 of paper 004."
            }
            Workload::Matmul => {
                "Multiplies two matrices of 2048 x 2048 numbers row by row, and two of half the dimension with a strided inner loop: the experiment of paper 001."
            }
            Workload::Redis => {
                "Redis holds about 1 GiB of small values; redis-benchmark asks for GET and SET, and SET while a snapshot is written by a forked child. Only the server runs under the variant."
            }
            Workload::Slowdown => {
                "A C compiler, a Python script, an in-memory SQLite database, processes made in a loop, and the kernel calls that memory management makes dearer."
            }
            Workload::Cycle => {
                "Takes a buffer, writes to each page, and gives it back, again and again: 4, 16 and 64 MiB, and 64 MiB of which one page in each 2 MiB is written; from mmap and from malloc. Means over all cycles, the first ones included."
            }
            Workload::Compete => {
                "In a memory cgroup with room for 656 MiB, and in one with 576 MiB (tight), one process touches a page in each of 150 superpages, then another fills 512 MiB and reads it at random. Both run under the variant and see each other."
            }
            Workload::Fragmented => {
                "Another process takes all free memory, 3 GiB of it on locked base pages, and gives every second one of these back: 1.5 GiB in holes of one page are what is left, and the kernel's list of free blocks shows it before each run. In them a process touches 512 MiB and reads them at random: once while the pages between the holes cannot be moved, and once, from the same state, while the kernel may compact them. All variants take turns in the same memory."
            }
            Workload::Forks => {
                "A process with 256 MiB on superpages forks 1000 times; each child reads some of the memory for 3 ms and ends, while a second thread of the parent writes at random. Superpages count up to 2 s after the last child."
            }
            Workload::Figure3 => {
                "Ten programs of the kinds that section 4.2 of GISP (paper 000) measures: go, a C compiler, network simplex, a parser of English, a database in memory, compression, Perl, placement and routing, chess, a browser engine. Inputs are generated; what the programs print must be the same under every variant."
            }
        }
    }

    /// What it measures; the first is the most important.
    pub const fn metrics(self) -> &'static [Metric] {
        match self {
            Workload::Touch256m | Workload::Touch4g => TOUCH,
            Workload::TouchP999 => TOUCH_P999,
            Workload::Random1g => RANDOM,
            Workload::Sparse4g => SPARSE,
            Workload::Failed => FAILED,
            Workload::Promote => PROMOTE,
            Workload::Transpose => TRANSPOSE,
            Workload::Matmul => MATMUL,
            Workload::Redis => REDIS,
            Workload::Slowdown => SLOWDOWN,
            Workload::Cycle => CYCLE,
            Workload::Compete => COMPETE,
            Workload::Fragmented => FRAGMENTED,
            Workload::Forks => FORKS,
            Workload::Figure3 => FIGURE3,
        }
    }

    /// The metric that a sample's figure called `key` belongs to.
    pub fn metric(self, key: &str) -> Option<&'static Metric> {
        let name = key.split_once('@').map_or(key, |(name, _)| name);
        self.metrics().iter().find(|m| m.name == name)
    }

    /// The variants that are compared in it.
    pub fn variants(self) -> Vec<Variant> {
        let all = Variant::value_variants().iter().copied();
        match self {
            Workload::Touch256m | Workload::TouchP999 => all.collect(),
            // Advice reserves nothing that could fail.
            Workload::Failed => vec![Variant::Kernel4k, Variant::QuireReserve],
            Workload::Promote => vec![Variant::Thp, Variant::QuireReserve, Variant::QuireAdaptive],
            Workload::Compete => vec![
                Variant::Kernel4k,
                Variant::Plain,
                Variant::Thp,
                Variant::QuireReserve,
                Variant::QuireAdaptive,
            ],
            // A hugetlb pool would be filled before memory is fragmented, and
            // has nothing to copy a page to after a fork.
            Workload::Fragmented | Workload::Forks | Workload::Figure3 => vec![
                Variant::Kernel4k,
                Variant::Plain,
                Variant::Thp,
                Variant::QuireBase,
                Variant::QuireEager,
                Variant::QuireReserve,
                Variant::QuireAdaptive,
            ],
            _ => all.filter(|v| v.ahead().is_none()).collect(),
        }
    }

    /// Whether it runs programs that do not ask for huge pages themselves.
    pub const fn runs_other_programs(self) -> bool {
        matches!(
            self,
            Workload::Redis | Workload::Slowdown | Workload::Figure3
        )
    }

    /// Whether its figures depend on where the kernel's free memory has been.
    pub const fn times_first_touches(self) -> bool {
        matches!(
            self,
            Workload::Touch256m | Workload::Touch4g | Workload::TouchP999
        )
    }

    /// An upper bound of the memory it uses at once, in bytes.
    pub const fn footprint(self, quick: bool) -> u64 {
        let mib = match (self, quick) {
            (Workload::Touch4g | Workload::Sparse4g, false) => 4096 + 64,
            (Workload::Redis, false) => 2048,
            (Workload::Transpose | Workload::Random1g, false) => 1024 + 64,
            (Workload::Compete | Workload::Fragmented | Workload::Forks, false) => 512 + 64,
            (Workload::TouchP999, false) => 512 + 64,
            (Workload::Touch256m, _) | (Workload::Failed, false) => 256 + 64,
            _ => 320,
        };
        mib << 20
    }
}

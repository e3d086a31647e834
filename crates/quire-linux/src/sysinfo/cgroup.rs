//! How much memory the control groups of this process leave to it.
//!
//! Both hierarchies are known: version 1 (`memory.limit_in_bytes`) and version
//! 2 (`memory.max`). A limit binds all groups below it, so the group of this
//! process and each group above it count, as far as the mount shows them.

use std::path::{Path, PathBuf};

use quire_core::units::Bytes;

use super::read_number;

/// A number this large stands for "unlimited" in version 1.
const UNLIMITED: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The memory control groups that this process is in, its own first.
#[derive(Clone, Debug)]
pub struct MemoryGroup {
    version: Version,
    dirs: Vec<PathBuf>,
}

/// What a limit leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory that can still be used before the limit is met; the page cache
    /// that the kernel would drop first counts as free.
    pub headroom: Bytes,
    /// The limit.
    pub limit: Bytes,
}

impl MemoryGroup {
    /// The groups of this process; nothing where there is no controller.
    #[must_use]
    pub fn of_self() -> Option<MemoryGroup> {
        let groups = super::read_small("/proc/self/cgroup").ok()?;
        let mounts = super::read_small("/proc/self/mountinfo").ok()?;
        let (version, top, own) = locate(&groups, &mounts)?;
        Some(MemoryGroup::of_dir(version, &top, &own))
    }

    fn of_dir(version: Version, top: &Path, own: &Path) -> MemoryGroup {
        let own = if own.is_dir() { own } else { top };
        let upward = own.ancestors().take_while(|dir| dir.starts_with(top));
        MemoryGroup {
            version,
            dirs: upward.map(Path::to_owned).collect(),
        }
    }

    /// The smallest limit and the directory of its group; `None` where no group
    /// has one.
    #[must_use]
    pub fn limit(&self) -> Option<(Bytes, &Path)> {
        self.dirs
            .iter()
            .filter_map(|dir| Some((limit_of(self.version, dir)?, dir.as_path())))
            .min()
    }

    /// What the tightest limit leaves; `None` where no group has one. Limits
    /// are read again each time, so that a change of them is seen.
    #[must_use]
    pub fn room(&self) -> Option<Room> {
        self.dirs
            .iter()
            .filter_map(|dir| room_of(self.version, dir))
            .min_by_key(|room| room.headroom)
    }
}

fn limit_of(version: Version, dir: &Path) -> Option<Bytes> {
    let name = match version {
        Version::V1 => "memory.limit_in_bytes",
        Version::V2 => "memory.max",
    };
    let limit = read_number(dir.join(name))?;
    (limit < UNLIMITED).then_some(Bytes(limit))
}

fn room_of(version: Version, dir: &Path) -> Option<Room> {
    let limit = limit_of(version, dir)?;
    let name = match version {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    };
    let usage = Bytes(read_number(dir.join(name))?);
    let stat = super::read_small(dir.join("memory.stat")).unwrap_or_default();
    let used = usage.saturating_sub(Bytes(inactive_file(&stat)));
    let headroom = limit.saturating_sub(used);
    Some(Room { headroom, limit })
}

/// Page cache that has not been used for a while. In version 1 the plain name
/// leaves out the groups below, which the usage counts.
fn inactive_file(stat: &str) -> u64 {
    let field = |name: &str| {
        stat.lines()
            .filter_map(|l| l.split_once(' '))
            .find_map(|(key, value)| (key == name).then(|| value.trim().parse().ok())?)
    };
    field("total_inactive_file")
        .or_else(|| field("inactive_file"))
        .unwrap_or(0)
}

/// Finds the memory controller: its version, the directory where it is
/// mounted and the directory of this process.
fn locate(groups: &str, mounts: &str) -> Option<(Version, PathBuf, PathBuf)> {
    let entry = |wanted: fn(&str, &str) -> bool| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(id, controllers).then_some(path)
        })
    };
    let v1 = entry(|_, controllers| controllers.split(',').any(|c| c == "memory"))
        .and_then(|path| Some((Version::V1, mount_of(mounts, Version::V1)?, path)));
    let found = v1.or_else(|| {
        let path = entry(|id, controllers| id == "0" && controllers.is_empty())?;
        Some((Version::V2, mount_of(mounts, Version::V2)?, path))
    });
    let (version, (root, point), path) = found?;
    let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
    let own = point.join(below);
    Some((version, point, own))
}

/// The root and the mount point of a hierarchy, from `mountinfo`.
fn mount_of(mounts: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (file_system, _, options) = (kind.next()?, kind.next()?, kind.next()?);
        let matches = match version {
            Version::V1 => file_system == "cgroup" && options.split(',').any(|o| o == "memory"),
            Version::V2 => file_system == "cgroup2",
        };
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        matches.then(|| (unescape(root), unescape(point)))
    })
}

/// Undoes the octal escapes of `mountinfo`.
fn unescape(text: &str) -> PathBuf {
    let mut out = text.to_owned();
    for (escape, plain) in [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ] {
        out = out.replace(escape, plain);
    }
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const V1_MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_controller_is_found_in_a_mixed_system() {
        let groups = "4:memory:/docker/abc/job\n0::/\n";
        let (version, top, own) = locate(groups, V1_MOUNTS).unwrap();
        assert_eq!(version, Version::V1);
        assert_eq!(top, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(own, Path::new("/sys/fs/cgroup/memory/job"));
    }

    #[test]
    fn the_unified_hierarchy_is_found() {
        let mounts = "41 31 0:38 / /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw\n";
        let (version, _, own) = locate("0::/user.slice/a\n", mounts).unwrap();
        assert_eq!(version, Version::V2);
        assert_eq!(own, Path::new("/sys/fs/my cgroup/user.slice/a"));
    }

    #[test]
    fn the_tightest_group_counts() {
        let top = tempfile::tempdir().unwrap();
        let own = top.path().join("a/b");
        fs::create_dir_all(&own).unwrap();
        let write = |dir: &Path, limit: &str, usage: u64, inactive: u64| {
            fs::write(dir.join("memory.max"), limit).unwrap();
            fs::write(dir.join("memory.current"), format!("{usage}\n")).unwrap();
            let stat = format!("anon 5\ninactive_file {inactive}\n");
            fs::write(dir.join("memory.stat"), stat).unwrap();
        };
        write(&own, "max\n", 1, 0);
        write(&top.path().join("a"), "1000\n", 900, 100);
        write(top.path(), "2000\n", 1950, 0);
        let group = MemoryGroup::of_dir(Version::V2, top.path(), &own);
        let tightest = top.path().join("a");
        assert_eq!(group.limit(), Some((Bytes(1000), tightest.as_path())));
        let room = |headroom, limit| {
            Some(Room {
                headroom: Bytes(headroom),
                limit: Bytes(limit),
            })
        };
        assert_eq!(group.room(), room(50, 2000));
        fs::write(top.path().join("memory.max"), "max\n").unwrap();
        assert_eq!(group.room(), room(200, 1000));
    }

    #[test]
    fn a_limit_that_is_set_later_counts() {
        let top = tempfile::tempdir().unwrap();
        let set = |file: &str, text: &str| fs::write(top.path().join(file), text).unwrap();
        set("memory.limit_in_bytes", "9223372036854771712\n");
        set("memory.usage_in_bytes", "100\n");
        let group = MemoryGroup::of_dir(Version::V1, top.path(), top.path());
        assert_eq!((group.limit(), group.room()), (None, None));
        set("memory.limit_in_bytes", "1000\n");
        assert_eq!(group.room().map(|r| r.headroom), Some(Bytes(900)));
    }
}

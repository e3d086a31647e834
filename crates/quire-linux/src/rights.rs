//! Whose rights a thread has that the C library does not know.
//!
//! For the kernel users and groups are each thread's own. The C library changes those of all threads that it knows; a
//! thread like ours has to follow by itself, so that no thread of a program that gave up the rights of root keeps them.

use crate::lone_thread;
use crate::raw::{Result, syscall};
use crate::sysinfo;

/// The real, the effective and the saved number, of users or of groups.
type Numbers = [u32; 3];

/// Users and groups of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    users: Numbers,
    groups: Numbers,
    further: Vec<u32>,
}

/// Gives the calling thread the users and groups of the first thread of this process. Where that is refused, it gives
/// up its capabilities. Takes no lock.
pub fn follow_first_thread() {
    let status = |of: &str| sysinfo::thread_status(of).and_then(|text| parse(&text));
    let (Some(wanted), Some(own)) = (status("self"), status("thread-self")) else {
        return;
    };
    if wanted == own {
        return;
    }
    // The kernel takes this as a change of the whole process's, which then writes no core and hides its files in /proc.
    let was_dumpable = prctl(libc::PR_GET_DUMPABLE, 0) == Ok(1);
    if set(&wanted).is_err() {
        let _ = lone_thread::leave_capabilities();
    }
    if was_dumpable {
        let _ = prctl(libc::PR_SET_DUMPABLE, 1);
    }
}

fn set(rights: &Rights) -> Result<()> {
    let further = [
        rights.further.len(),
        rights.further.as_ptr() as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads so many numbers. The calls concern the calling thread only.
    unsafe {
        syscall(libc::SYS_setgroups, further)?;
        syscall(libc::SYS_setresgid, arguments(rights.groups))?;
        syscall(libc::SYS_setresuid, arguments(rights.users))?;
    }
    Ok(())
}

fn arguments(numbers: Numbers) -> [usize; 6] {
    let [real, effective, saved] = numbers.map(|number| number as usize);
    [real, effective, saved, 0, 0, 0]
}

fn prctl(what: i32, value: usize) -> Result<usize> {
    // SAFETY: these operations take numbers only.
    unsafe { syscall(libc::SYS_prctl, [what as usize, value, 0, 0, 0, 0]) }
}

fn parse(status: &str) -> Option<Rights> {
    let field = |name: &str| {
        let values = status.lines().find_map(|line| line.strip_prefix(name))?;
        values
            .split_whitespace()
            .map(|number| number.parse().ok())
            .collect::<Option<Vec<u32>>>()
    };
    let three = |name: &str| field(name)?.get(..3)?.try_into().ok();
    Some(Rights {
        users: three("Uid:")?,
        groups: three("Gid:")?,
        further: field("Groups:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        let status = "Name:\tx\nUid:\t0\t1\t2\t3\nGid:\t4\t5\t6\t7\nGroups:\t4 24 \n";
        let rights = Rights {
            users: [0, 1, 2],
            groups: [4, 5, 6],
            further: vec![4, 24],
        };
        assert_eq!(parse(status), Some(rights));
        assert_eq!(parse("Uid:\t0\t1\n"), None);
        assert!(sysinfo::thread_status("thread-self").is_some_and(|text| parse(&text).is_some()));
    }
}

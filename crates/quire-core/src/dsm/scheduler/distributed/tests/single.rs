//! Single messages of kernels.

use crate::dsm::message::{Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages};
use crate::dsm::message::{ServerId, ToKernel};
use crate::dsm::scheduler::distributed::Distributed;
use crate::dsm::scheduler::{Action, Nonsense, Scheduler};

const KERNEL: KernelId = KernelId(7);
const OTHER: KernelId = KernelId(8);
const ALL: Pages = Pages {
    first: PageNumber(0),
    count: 4,
};

fn says(
    server: &mut Distributed<u32>,
    kernel: KernelId,
    message: FromKernel<u32>,
) -> Result<Vec<Action<u32>>, Nonsense> {
    let mut actions = Vec::new();
    server.kernel_says(kernel, message, &mut actions)?;
    Ok(actions)
}

fn asks(access: Access) -> FromKernel<u32> {
    let pages = ALL;
    FromKernel::DataRequest { pages, access }
}

/// A server whose pages have been loaded, and are read by a kernel.
fn read_by(kernel: KernelId) -> Distributed<u32> {
    let mut server = Distributed::primary(ServerId(1), 4);
    let actions = says(&mut server, kernel, asks(Access::Read));
    assert_eq!(actions, Ok(vec![Action::Load(ALL)]));
    server.loaded(ALL, Some(vec![Some(5); 4]), &mut Vec::new());
    server
}

#[test]
fn pages_that_are_free_are_given_in_one_message() {
    let mut server = read_by(KERNEL);
    let before = server.counters().kernels.sent;
    let provided = ToKernel::DataProvided {
        pages: ALL,
        data: vec![Some(5); 4],
        access: Access::Read,
    };
    let actions = says(&mut server, OTHER, asks(Access::Read));
    assert_eq!(actions, Ok(vec![Action::Tell(OTHER, provided)]));
    assert_eq!(server.counters().kernels.sent - before, 1);
}

#[test]
fn several_pages_are_upgraded_in_one_message() {
    let mut server = read_by(KERNEL);
    let allowed = ToKernel::LockRequest {
        pages: ALL,
        lock: Lock::AllowWrite,
    };
    let actions = says(&mut server, KERNEL, FromKernel::DataUnlock { pages: ALL });
    assert_eq!(actions, Ok(vec![Action::Tell(KERNEL, allowed)]));
    let faults = server.counters().local;
    assert_eq!((faults.read, faults.unlock), (4, 4));
}

#[test]
fn what_makes_no_sense_changes_nothing() {
    let mut server = read_by(KERNEL);
    let beyond = Pages {
        first: PageNumber(3),
        count: 2,
    };
    let none = Pages { count: 0, ..ALL };
    let huge = Pages {
        first: PageNumber(u64::MAX),
        count: 2,
    };
    let access = Access::Read;
    for message in [
        FromKernel::DataWrite {
            pages: ALL,
            data: vec![None; 4],
        },
        FromKernel::LockCompleted { pages: ALL },
        FromKernel::DataRequest {
            pages: beyond,
            access,
        },
        FromKernel::DataRequest {
            pages: none,
            access,
        },
        FromKernel::DataRequest {
            pages: huge,
            access,
        },
    ] {
        let before = server.clone();
        assert!(says(&mut server, KERNEL, message).is_err());
        assert_eq!(server, before);
    }
}

#[test]
fn after_terminate_only_late_answers_make_sense() {
    let mut server = read_by(KERNEL);
    assert!(says(&mut server, OTHER, asks(Access::Write)).is_ok());
    let actions = says(&mut server, KERNEL, FromKernel::Terminate).expect("it may");
    assert_eq!(actions.len(), 4, "the other kernel gets the pages");
    let late = FromKernel::LockCompleted { pages: ALL };
    assert_eq!(says(&mut server, KERNEL, late), Ok(Vec::new()));
    assert!(says(&mut server, KERNEL, asks(Access::Read)).is_err());
    server.gone(Client::Kernel(KERNEL), &mut Vec::new());
    assert!(server.ended.is_empty());
}

#[test]
fn a_page_that_cannot_be_loaded_is_told_to_all_who_wait() {
    let mut server: Distributed<u32> = Distributed::primary(ServerId(1), 4);
    assert!(says(&mut server, KERNEL, asks(Access::Read)).is_ok());
    assert!(says(&mut server, OTHER, asks(Access::Write)).is_ok());
    let mut actions = Vec::new();
    server.loaded(Pages::one(PageNumber(1)), None, &mut actions);
    let error = |kernel| {
        let pages = Pages::one(PageNumber(1));
        Action::Tell(kernel, ToKernel::DataError { pages })
    };
    assert_eq!(actions, [error(KERNEL), error(OTHER)]);
}

//! Messages of every kind, made up.

use std::io::IoSliceMut;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quire_core::dsm::message::{
    Access, Client, FromKernel, KernelId, Lock, PageNumber, Pages, ServerId, ToKernel,
};
use quire_core::dsm::scheduler::Action;
use quire_core::dsm::scheduler::trace::Event;
use quire_core::dsm::sync;
use quire_core::dsm::types::{Kind, Place, Report, TypeTag};
use quire_core::units::{Bytes, ObjectOffset, VirtAddr};
use quire_dsm::wire::control::{
    Answer, Failure, FailureKind, Faults, Handle, Hello, Inside, Known, MachineCode, MappingNumber,
    Messages, Name, Object, PageSize, PageState, Reason, Refusal, Request, RequestId, Rights, Role,
    SchedulerKind, Seen, Segment, TypeCode, Watched, Welcome,
};
use quire_dsm::wire::{Contents, Control, Outgoing, Pool};

/// What a message has as bytes.
#[must_use]
pub fn bytes_of(messages: &[Control]) -> Vec<u8> {
    let mut outgoing = Outgoing::new();
    for message in messages {
        outgoing.push(message.clone(), Vec::new()).unwrap();
    }
    let mut bytes = Vec::new();
    outgoing
        .write_to(|pieces, _| {
            pieces
                .iter()
                .for_each(|piece| bytes.extend_from_slice(piece));
            Ok(pieces.iter().map(|piece| piece.len()).sum())
        })
        .unwrap();
    bytes
}

/// Fills pieces of memory with bytes, as far as they go, like a read; how many it were.
pub fn scatter(bytes: &[u8], pieces: &mut [IoSliceMut<'_>]) -> usize {
    let mut taken = 0;
    for piece in pieces {
        let part = piece.len().min(bytes.len() - taken);
        piece[..part].copy_from_slice(&bytes[taken..taken + part]);
        taken += part;
    }
    taken
}

fn name() -> impl Strategy<Value = Name> {
    "[a-zA-Z0-9][a-zA-Z0-9._-]{0,40}(~[0-9a-f]{0,16})?".prop_map(|text| text.parse().unwrap())
}

fn page_size() -> impl Strategy<Value = PageSize> {
    (12_u8..=21).prop_map(|shift| PageSize::try_from(shift).unwrap())
}

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Read), Just(Access::Write)]
}

fn pages() -> impl Strategy<Value = Pages> {
    (0_u64..=(1 << 35) - 8192, 1_u32..=8192).prop_map(|(first, count)| Pages {
        first: PageNumber(first),
        count,
    })
}

/// Pages with contents: some without, all of one size.
fn data(most: usize) -> impl Strategy<Value = Vec<Option<Contents>>> {
    let pattern = vec(option::of(any::<u8>()), 1..=most);
    (pattern, 12_u32..=14).prop_map(|(pattern, shift)| {
        let pool = Pool::new();
        let page = |byte| pool.copy(&vec![byte; 1 << shift]);
        pattern.into_iter().map(|byte| byte.map(page)).collect()
    })
}

fn pages_with_data() -> impl Strategy<Value = (Pages, Vec<Option<Contents>>)> {
    (0_u64..1 << 34, data(20)).prop_map(|(first, data)| {
        let pages = Pages {
            first: PageNumber(first),
            count: data.len() as u32,
        };
        (pages, data)
    })
}

fn from_kernel() -> impl Strategy<Value = FromKernel<Contents>> {
    prop_oneof![
        (pages(), access()).prop_map(|(pages, access)| FromKernel::DataRequest { pages, access }),
        pages().prop_map(|pages| FromKernel::DataUnlock { pages }),
        pages_with_data().prop_map(|(pages, data)| FromKernel::DataWrite { pages, data }),
        pages().prop_map(|pages| FromKernel::LockCompleted { pages }),
        Just(FromKernel::Terminate),
    ]
}

fn to_kernel() -> impl Strategy<Value = ToKernel<Contents>> {
    let lock = prop_oneof![Just(Lock::Flush), Just(Lock::AllowWrite)];
    prop_oneof![
        (pages_with_data(), access()).prop_map(|((pages, data), access)| {
            ToKernel::DataProvided {
                pages,
                data,
                access,
            }
        }),
        (pages(), lock).prop_map(|(pages, lock)| ToKernel::LockRequest { pages, lock }),
        pages().prop_map(|pages| ToKernel::DataError { pages }),
    ]
}

fn segment() -> impl Strategy<Value = Segment> {
    let fields = (any::<u64>(), any::<u64>(), any::<u16>());
    fields.prop_map(|(start, length, tag)| Segment {
        start: Bytes(start),
        length: Bytes(length),
        tag: TypeCode(tag),
    })
}

fn tags() -> impl Strategy<Value = Vec<Segment>> {
    vec(segment(), 0..5)
}

fn object() -> impl Strategy<Value = Object> {
    let scheduler = prop_oneof![
        Just(SchedulerKind::Simple),
        Just(SchedulerKind::Multi),
        Just(SchedulerKind::Distributed),
        Just(SchedulerKind::Usual),
    ];
    let fields = (
        name(),
        any::<u64>(),
        page_size(),
        scheduler,
        any::<u16>(),
        tags(),
    );
    fields.prop_map(|(name, size, page_size, scheduler, machine, tags)| Object {
        name,
        size: Bytes(size),
        page_size,
        scheduler,
        machine: MachineCode(machine),
        tags,
    })
}

fn synchronise() -> impl Strategy<Value = sync::Request> {
    let name = ".{0,20}".prop_map(sync::Name);
    let both = (name.clone(), name.clone());
    let counted = (name.clone(), any::<i64>());
    prop_oneof![
        name.clone().prop_map(sync::Request::Lock),
        name.clone().prop_map(sync::Request::TryLock),
        name.clone().prop_map(sync::Request::Unlock),
        name.clone().prop_map(sync::Request::Mend),
        both.prop_map(|(condition, mutex)| sync::Request::Wait { condition, mutex }),
        (name.clone(), option::of(any::<u32>()))
            .prop_map(|(condition, count)| sync::Request::Signal { condition, count }),
        (name, any::<u32>())
            .prop_map(|(barrier, parties)| sync::Request::Arrive { barrier, parties }),
        counted
            .clone()
            .prop_map(|(counter, by)| sync::Request::Add { counter, by }),
        counted.prop_map(|(counter, value)| sync::Request::AtLeast { counter, value }),
    ]
}

fn synchronised() -> impl Strategy<Value = sync::Answer> {
    prop_oneof![
        Just(sync::Answer::Done),
        Just(sync::Answer::Abandoned),
        Just(sync::Answer::Busy),
        Just(sync::Answer::NotYours),
        Just(sync::Answer::Broken),
        Just(sync::Answer::Full),
        any::<u32>().prop_map(sync::Answer::Parties),
        any::<i64>().prop_map(sync::Answer::Value),
    ]
}

fn handle() -> impl Strategy<Value = Handle> {
    any::<u32>().prop_map(Handle)
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (name(), any::<[bool; 2]>()).prop_map(|(name, [read, write])| Request::Open {
            name,
            rights: Rights { read, write },
        }),
        handle().prop_map(|object| Request::Close { object }),
        object().prop_map(Request::Create),
        name().prop_map(|name| Request::Remove { name }),
        name().prop_map(|name| Request::Begin { name }),
        name().prop_map(|name| Request::Discard { name }),
        object().prop_map(Request::GiveSize),
        (any::<u64>(), handle(), name()).prop_map(|(session, object, name)| Request::Claim {
            session: KernelId(session),
            object,
            name,
        }),
        (handle(), any::<u64>()).prop_map(|(object, missing)| Request::Settle { object, missing }),
        (handle(), pages(), vec((any::<u64>(), any::<bool>()), 0..4)).prop_map(
            |(object, pages, stamps)| Request::Vouch {
                object,
                first: pages.first,
                stamps
            }
        ),
        option::of(name()).prop_map(|after| Request::List { after }),
        (name(), option::of(pages())).prop_map(|(name, pages)| Request::Statistics { name, pages }),
        (name(), option::of(pages())).prop_map(|(name, pages)| Request::Watch { name, pages }),
        (name(), any::<u32>()).prop_map(|(name, most)| Request::Hottest { name, most }),
        (name(), tags()).prop_map(|(name, tags)| Request::Tag { name, tags }),
        (name(), ".{0,20}", any::<[bool; 2]>()).prop_map(|(name, to, [read, write])| {
            Request::Grant {
                name,
                to,
                rights: Rights { read, write },
            }
        }),
        (handle(), synchronise())
            .prop_map(|(object, request)| Request::Synchronise { object, request }),
        handle().prop_map(|object| Request::Sync { object }),
        (handle(), segment()).prop_map(|(object, part)| Request::TagPart { object, part }),
        (name(), any::<[bool; 2]>()).prop_map(|(name, [read, write])| Request::Attach {
            name,
            rights: Rights { read, write },
        }),
        (handle(), any::<[u64; 4]>()).prop_map(|(object, [mapping, start, length, base])| {
            Request::Register {
                object,
                mapping: MappingNumber(mapping),
                start: ObjectOffset(start),
                length: Bytes(length),
                base: VirtAddr(base),
            }
        }),
        (handle(), pages()).prop_map(|(object, pages)| Request::GiveBack { object, pages }),
        (handle(), any::<u64>()).prop_map(|(object, mapping)| Request::Unregister {
            object,
            mapping: MappingNumber(mapping),
        }),
        (handle(), any::<u64>(), pages(), access()).prop_map(|(object, mapping, pages, access)| {
            Request::WillNeed {
                object,
                mapping: MappingNumber(mapping),
                pages,
                access,
            }
        }),
    ]
}

fn faults() -> impl Strategy<Value = Faults> {
    any::<[u64; 3]>().prop_map(|[read, write, unlock]| Faults {
        read,
        write,
        unlock,
    })
}

fn kernels() -> impl Strategy<Value = Vec<Known>> {
    let known = (any::<u64>().prop_map(KernelId), ".{0,20}");
    vec(
        known.prop_map(|(kernel, name)| Known { kernel, name }),
        0..5,
    )
}

fn event() -> impl Strategy<Value = Event> {
    let kernel = any::<u64>().prop_map(KernelId);
    let server = any::<u64>().prop_map(ServerId);
    prop_oneof![
        (kernel.clone(), from_kernel()).prop_map(|(kernel, m)| Event::received(kernel, &m)),
        (kernel, to_kernel()).prop_map(|(kernel, m)| Event::sent(&Action::Tell(kernel, m))),
        server.prop_map(|server| Event::gone(Client::Server(server))),
        (pages(), any::<bool>()).prop_map(|(pages, are_there)| Event::loaded(pages, are_there)),
    ]
}

fn watched() -> impl Strategy<Value = Watched> {
    let seen = (any::<u64>(), event()).prop_map(|(at, event)| Seen { at, event });
    let fields = (vec(seen, 0..5), any::<u64>(), kernels());
    fields.prop_map(|(seen, lost, known)| Watched { seen, lost, known })
}

fn inside() -> impl Strategy<Value = Inside> {
    let counts = any::<[u64; 2]>();
    let pages = vec(page_state(), 0..4);
    let fields = (
        faults(),
        counts,
        kernels(),
        pages,
        report(),
        any::<[u64; 6]>(),
    );
    fields.prop_map(
        |(faults, [touched, open], kernels, pages, report, six)| Inside {
            faults,
            touched,
            open,
            kernels,
            pages,
            report: Box::new(report),
            lost: six[0] / 2,
            messages: Messages {
                from_kernels: six[0],
                completions: six[1],
                to_kernels: six[2],
                from_servers: six[3],
                to_servers: six[4],
                faults_of_servers: six[5],
            },
        },
    )
}

fn report() -> impl Strategy<Value = Report> {
    let kinds = vec((any::<u64>(), 0..Kind::ALL.len()), 0..20);
    kinds.prop_map(|kinds| {
        let mut report = Report::new();
        for (offset, kind) in kinds {
            report.note(Place {
                offset: ObjectOffset(offset),
                tag: TypeTag::Float64,
                kind: Kind::ALL[kind],
            });
        }
        report
    })
}

fn page_state() -> impl Strategy<Value = PageState> {
    let owner = option::of(any::<u64>().prop_map(|n| Client::Kernel(KernelId(n))));
    let fields = (faults(), owner, any::<[u64; 4]>(), ".{0,20}");
    fields.prop_map(
        |(faults, owner, [page, readers, waiting, descheduled], state)| PageState {
            page: PageNumber(page),
            faults,
            owner,
            readers,
            state,
            waiting,
            descheduled,
        },
    )
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Done),
        (handle(), name(), object(), any::<u64>()).prop_map(|(object, exact, info, lost)| {
            Answer::Opened {
                object,
                exact,
                info,
                lost,
            }
        }),
        (handle(), any::<[bool; 2]>(), any::<u64>()).prop_map(|(object, are, received)| {
            Answer::Claimed {
                object,
                is_known: are[0],
                received,
                is_shared: are[1],
            }
        }),
        any::<u64>().prop_map(|lost| Answer::Settled { lost }),
        (vec(object(), 0..4), any::<bool>())
            .prop_map(|(objects, more)| Answer::Listed { objects, more }),
        (
            name(),
            object(),
            ".{0,20}",
            any::<bool>(),
            option::of(inside())
        )
            .prop_map(|(exact, info, owner, is_discarded, inside)| {
                Answer::Statistics {
                    exact,
                    info,
                    owner,
                    is_discarded,
                    inside,
                }
            }),
        watched().prop_map(Answer::Watched),
        name().prop_map(|exact| Answer::Begun { exact }),
        any::<bool>().prop_map(|is_removed| Answer::Sized { is_removed }),
        synchronised().prop_map(Answer::Synchronised),
        (handle(), name(), object(), any::<u64>()).prop_map(|(object, exact, info, lost)| {
            Answer::Attached {
                object,
                exact,
                info,
                lost,
            }
        }),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    let kind = prop_oneof![
        Just(FailureKind::NotFound),
        Just(FailureKind::Exists),
        Just(FailureKind::Denied),
        Just(FailureKind::Invalid),
        Just(FailureKind::Busy),
        Just(FailureKind::Full),
        Just(FailureKind::Unavailable),
        Just(FailureKind::Begun),
    ];
    (kind, ".{0,60}").prop_map(|(kind, text)| Failure { kind, text })
}

fn hello() -> impl Strategy<Value = Hello> {
    let role = prop_oneof![Just(Role::Kernel), Just(Role::Server), Just(Role::Tool)];
    let fields = (name(), role, any::<u16>(), page_size(), any::<u64>());
    fields.prop_map(|(name, role, machine, page_size, features)| Hello {
        name,
        role,
        machine: MachineCode(machine),
        page_size,
        features,
    })
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let beside = proptest::option::of(name());
    let fields = (name(), any::<u64>(), any::<u32>(), any::<u64>(), beside);
    fields.prop_map(|(name, kernel, lease, features, beside)| Welcome {
        name,
        kernel: KernelId(kernel),
        lease,
        features,
        beside,
    })
}

fn refusal() -> impl Strategy<Value = Refusal> {
    let reason = prop_oneof![
        Just(Reason::Version),
        Just(Reason::Identity),
        Just(Reason::Denied),
        Just(Reason::Full),
        Just(Reason::Ending),
        Just(Reason::Nonsense),
    ];
    (reason, ".{0,60}").prop_map(|(reason, text)| Refusal { reason, text })
}

/// A message of any kind.
pub fn message() -> impl Strategy<Value = Control> {
    let id = || any::<u64>().prop_map(RequestId);
    let answer = prop_oneof![
        answer().prop_map(Ok).boxed(),
        failure().prop_map(Err).boxed(),
    ];
    prop_oneof![
        hello().prop_map(Control::Hello),
        welcome().prop_map(Control::Welcome),
        refusal().prop_map(Control::Refusal),
        any::<u64>().prop_map(|clock| Control::Heartbeat { clock }),
        any::<u64>().prop_map(|clock| Control::HeartbeatSeen { clock }),
        (id(), request()).prop_map(|(id, request)| Control::Request { id, request }),
        (id(), answer).prop_map(|(id, answer)| Control::Answer { id, answer }),
        (handle(), from_kernel())
            .prop_map(|(object, message)| Control::FromKernel { object, message }),
        (handle(), any::<u64>(), to_kernel()).prop_map(|(object, stamp, message)| {
            Control::ToKernel {
                object,
                stamp,
                message,
            }
        }),
        (handle(), any::<u64>(), vec(any::<u8>(), 0..300), data(5)).prop_map(
            |(object, from, body, data)| Control::PeerServer {
                object,
                from: ServerId(from),
                body,
                data,
            }
        ),
        ".{0,80}".prop_map(|reason| Control::Goodbye { reason }),
        handle().prop_map(|object| Control::ChildComes { object }),
        handle().prop_map(|object| Control::ChildCame { object }),
        Just(Control::Ending),
    ]
}

//! Messages come out of the wire as they went in, whatever the reads that bring them.

mod wire_support;

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_core::dsm::message::{Access, FromKernel, PageNumber, Pages, ToKernel};
use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::wire::control::{Handle, PageSize};
use quire_dsm::wire::frame::{MAX_CONTROL, MAX_PAGES};
use quire_dsm::wire::{
    Contents, Control, Decoder, Lent, Limits, Loans, Outgoing, Pool, Sink, VERSION, WireError,
};
use wire_support::{bytes_of, message, scatter};

/// Reads bytes in pieces of these sizes, over and over.
fn decode(bytes: &[u8], reads: &[usize], limits: Limits) -> Result<Vec<Control>, WireError> {
    let mut decoder = Decoder::new(limits, Pool::new());
    let mut rest = bytes;
    let mut messages = Vec::new();
    let mut reads = reads.iter().cycle();
    loop {
        while let Some(frame) = decoder.message()? {
            messages.push(frame.message);
        }
        if rest.is_empty() {
            return Ok(messages);
        }
        let most = rest.len().min(*reads.next().unwrap());
        let filled = decoder
            .fill(|pieces| Ok(scatter(&rest[..most], pieces)))
            .unwrap();
        assert!(filled.bytes > 0, "the decoder offers no memory");
        rest = &rest[filled.bytes..];
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is sent is received: every kind, several at once, in reads of any size.
    #[test]
    fn messages_come_as_they_were_sent(
        messages in vec(message(), 1..8),
        reads in vec(1_usize..20_000, 1..6),
    ) {
        let bytes = bytes_of(&messages);
        prop_assert_eq!(decode(&bytes, &reads, Limits::SESSION).unwrap(), messages);
    }

    /// Byte by byte, too.
    #[test]
    fn messages_come_byte_by_byte(message in message()) {
        let bytes = bytes_of(std::slice::from_ref(&message));
        prop_assert_eq!(decode(&bytes, &[1], Limits::SESSION).unwrap(), vec![message]);
    }

    /// A writer that takes any number of bytes gets all, in order.
    #[test]
    fn partial_writes_lose_nothing(
        messages in vec(message(), 1..6),
        writes in vec(1_usize..9000, 1..6),
    ) {
        let mut outgoing = Outgoing::new();
        let (mut bytes, mut writes) = (Vec::new(), writes.into_iter().cycle());
        for message in &messages {
            outgoing.push(message.clone(), Vec::new()).unwrap();
            // One write that takes a part, then the transport is full.
            let mut left = Some(writes.next().unwrap());
            let result = outgoing.write_to(|pieces, _| {
                let most = left.take().ok_or(io::ErrorKind::WouldBlock)?;
                Ok(take(&mut bytes, pieces, most))
            });
            if let Err(error) = result {
                prop_assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            }
        }
        outgoing.write_to(|pieces, _| Ok(take(&mut bytes, pieces, usize::MAX))).unwrap();
        prop_assert!(outgoing.is_empty());
        prop_assert_eq!(bytes, bytes_of(&messages));
    }
}

/// A sink that takes so many bytes each time, and from files at some times only.
struct Takes<'a> {
    bytes: &'a mut Vec<u8>,
    most: usize,
    files: bool,
    /// It takes no more after this.
    left: usize,
}

impl Takes<'_> {
    fn room(&mut self) -> io::Result<usize> {
        self.left = self.left.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
        Ok(self.most)
    }
}

impl Sink for Takes<'_> {
    fn write(
        &mut self,
        from: &[io::IoSlice<'_>],
        _: &[BorrowedFd<'_>],
        _: bool,
    ) -> io::Result<usize> {
        let most = self.room()?;
        Ok(take(self.bytes, from, most))
    }

    fn write_from(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
        length: usize,
    ) -> io::Result<Option<usize>> {
        if !self.files {
            return Ok(None);
        }
        let mut part = vec![0; length.min(self.room()?)];
        let read = rustix::io::pread(file, &mut part, at)?;
        self.bytes.extend_from_slice(&part[..read]);
        Ok(Some(read))
    }
}

/// What happens while messages leave.
#[derive(Clone, Debug)]
enum Meanwhile {
    /// So many writes of so many bytes, and whether files are sent.
    Writes(usize, usize, bool),
    /// A page of the file gets other contents.
    Changes(u64),
}

fn meanwhile() -> impl Strategy<Value = Meanwhile> {
    let writes = (1_usize..4, 1_usize..20_000, any::<bool>());
    prop_oneof![
        writes.prop_map(|(count, most, files)| Meanwhile::Writes(count, most, files)),
        (0..LENT_PAGES).prop_map(Meanwhile::Changes),
    ]
}

/// Pages of a file that are lent.
const LENT_PAGES: u64 = 12;

/// Messages about pages that lie one after the other, as many as these say, of pages that are lent
/// from a file; and the same messages with their contents in memory.
fn lent(file: &Arc<OwnedFd>, loans: &Loans, counts: &[u32]) -> [Vec<Control>; 2] {
    let pool = Pool::new();
    let mut first = 0;
    let mut all = [Vec::new(), Vec::new()];
    for count in counts {
        let pages = Pages {
            first: PageNumber(first),
            count: (*count).min((LENT_PAGES - first) as u32),
        };
        let length = pages.count as usize * 4096;
        let mut bytes = vec![0; length];
        rustix::io::pread(file, &mut bytes, first * 4096).unwrap();
        let lent = loans.lend(file, ObjectOffset(first * 4096), length, &pool);
        first = (first + u64::from(pages.count)) % LENT_PAGES;
        for (contents, messages) in [Contents::from(lent), pool.copy(&bytes)]
            .into_iter()
            .zip(&mut all)
        {
            let starts = (0..length).step_by(4096);
            let data = starts.map(|at| Some(contents.slice(at, 4096))).collect();
            messages.push(Control::FromKernel {
                object: Handle(1),
                message: FromKernel::DataWrite { pages, data },
            });
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// What is lent leaves as it was when it was queued, wherever it is sent from, and whatever
    /// becomes of the file, as long as the file settles before it changes.
    #[test]
    fn what_is_lent_leaves_as_it_was(
        counts in vec(1_u32..6, 1..6),
        events in vec(meanwhile(), 0..20),
        files in any::<bool>(),
    ) {
        let file = rustix::fs::memfd_create(c"lent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for page in 0..LENT_PAGES {
            rustix::io::pwrite(&file, &[page as u8 + 1; 4096], page * 4096).unwrap();
        }
        let (file, loans) = (Arc::new(file), Loans::default());
        let [lent, plain] = lent(&file, &loans, &counts);
        let (mut outgoing, mut bytes) = (Outgoing::new(), Vec::new());
        for message in lent {
            outgoing.push(message, Vec::new()).unwrap();
        }
        for event in events {
            match event {
                Meanwhile::Writes(left, most, files) => {
                    let bytes = &mut bytes;
                    let result = outgoing.write_to_sink(&mut Takes { bytes, most, files, left });
                    let full = io::ErrorKind::WouldBlock;
                    prop_assert!(result.map_or_else(|error| error.kind() == full, |()| true));
                }
                Meanwhile::Changes(page) => {
                    loans.settle(ObjectOffset(page * 4096), Bytes(4096)).unwrap();
                    rustix::io::pwrite(&file, &[0xff; 4096], page * 4096).unwrap();
                }
            }
        }
        let (bytes_taken, most, left) = (&mut bytes, usize::MAX, usize::MAX);
        let mut rest = Takes { bytes: bytes_taken, most, files, left };
        outgoing.write_to_sink(&mut rest).unwrap();
        prop_assert_eq!(bytes, bytes_of(&plain));
    }
}

/// What happens while messages come.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// So many bytes at most come with a read, and whether files can be read to.
    Read(usize, bool),
    /// All of the file gets other contents.
    Changes,
}

fn reading() -> impl Strategy<Value = Reading> {
    prop_oneof![
        9 => (1_usize..60_000, any::<bool>()).prop_map(|(most, files)| Reading::Read(most, files)),
        1 => Just(Reading::Changes),
    ]
}

/// What comes over a link, and a file in which the contents of each message have a place.
struct Coming<'a> {
    rest: &'a [u8],
    file: Arc<OwnedFd>,
    loans: Loans,
    /// Where the next place is.
    next: u64,
    /// What has come with places.
    placed: usize,
}

impl Coming<'_> {
    /// A place for pages of 4 KiB. Some messages get none, and some one that is too long.
    fn place(&mut self, message: &Control) -> Option<Arc<Lent>> {
        let Control::ToKernel { message, .. } = message else {
            return None;
        };
        let pages = message.pages();
        let length = match pages.first.0 % 5 {
            0 => return None,
            1 => pages.count as usize * 4096 + 4096,
            _ => pages.count as usize * 4096,
        };
        let start = ObjectOffset(self.next);
        self.next += length as u64;
        self.placed += 1;
        Some(self.loans.lend(&self.file, start, length, &Pool::new()))
    }

    fn read(&mut self, decoder: &mut Decoder, most: usize, files: bool) -> usize {
        let most = most.min(self.rest.len());
        let rest = self.rest;
        let to_file = decoder.fill_file(|file, at, length| {
            let came = &rest[..most.min(length)];
            files
                .then(|| Ok(rustix::io::pwrite(file, came, at)?))
                .transpose()
        });
        let filled = to_file.unwrap().unwrap_or_else(|| {
            let filled = decoder.fill(|pieces| Ok(scatter(&rest[..most], pieces)));
            filled.unwrap()
        });
        self.rest = &rest[filled.bytes..];
        filled.bytes
    }
}

impl<'a> Coming<'a> {
    fn new(rest: &'a [u8]) -> Coming<'a> {
        let file = rustix::fs::memfd_create(c"placed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4 << 20).unwrap();
        Coming {
            rest,
            file: Arc::new(file),
            loans: Loans::default(),
            next: 0,
            placed: 0,
        }
    }

    /// What was read.
    fn messages(&mut self, decoder: &mut Decoder) -> Vec<Control> {
        let next = || {
            decoder
                .message_with(&mut |message| self.place(message))
                .unwrap()
        };
        std::iter::from_fn(next)
            .map(|frame| frame.message)
            .collect()
    }
}

/// Messages about many pages, or few of them, each with a number of its own; some have a page
/// without contents.
fn provided_pages() -> impl Strategy<Value = Vec<Control>> {
    let one = (any::<u8>(), 0_u64..10, 1_u32..40, any::<bool>());
    vec(one, 1..6).prop_map(|all| {
        let pool = Pool::new();
        let message = |(byte, first, count, is_full): (u8, u64, u32, bool)| {
            let page = |page: u32| {
                let byte = byte.wrapping_add(page as u8);
                (is_full || page != 3).then(|| pool.copy(&[byte; 4096]))
            };
            Control::ToKernel {
                object: Handle(1),
                stamp: 7,
                message: ToKernel::DataProvided {
                    pages: Pages {
                        first: PageNumber(first),
                        count,
                    },
                    data: (0..count).map(page).collect(),
                    access: Access::Write,
                },
            }
        };
        all.into_iter().map(message).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Contents that have a place in a file come as they were sent, wherever they were read to, and
    /// whatever becomes of the file, as long as it settles before it changes.
    #[test]
    fn what_has_a_place_comes_as_it_was_sent(
        messages in provided_pages(),
        readings in vec(reading(), 1..12),
    ) {
        let bytes = bytes_of(&messages);
        let mut coming = Coming::new(&bytes);
        let mut decoder = Decoder::new(Limits::SESSION, Pool::new());
        let mut came = Vec::new();
        let mut readings = readings.iter().chain([&Reading::Read(9000, true)]).cycle();
        loop {
            came.extend(coming.messages(&mut decoder));
            if coming.rest.is_empty() {
                break;
            }
            match *readings.next().unwrap() {
                Reading::Read(most, files) => {
                    let read = coming.read(&mut decoder, most, files);
                    prop_assert!(read > 0, "the decoder offers no memory");
                }
                Reading::Changes => {
                    let all = Bytes(coming.next);
                    coming.loans.settle(ObjectOffset(0), all).unwrap();
                    let other = vec![0xff; coming.next as usize];
                    rustix::io::pwrite(&coming.file, &other, 0).unwrap();
                }
            }
        }
        prop_assert!(came == messages, "{} of {} messages", came.len(), messages.len());
    }
}

/// What has a place goes there, also the part that came with the message's header, and nothing else.
#[test]
fn a_payload_goes_to_its_place() {
    let message = provided(32, 4096);
    let bytes = bytes_of(&[message.clone(), message.clone()]);
    let mut coming = Coming::new(&bytes);
    let mut decoder = Decoder::new(Limits::SESSION, Pool::new());
    let mut came = Vec::new();
    while !coming.rest.is_empty() {
        coming.read(&mut decoder, usize::MAX, true);
        came.extend(coming.messages(&mut decoder));
    }
    assert_eq!(coming.placed, 2);
    let start = |page: u64| ObjectOffset(page * 4096);
    for (number, came) in came.iter().enumerate() {
        let Control::ToKernel {
            message: ToKernel::DataProvided { data, .. },
            ..
        } = came
        else {
            panic!("another message");
        };
        for (page, contents) in data.iter().enumerate() {
            let contents = contents.as_ref().unwrap();
            let at = (number * 32 + page) as u64;
            assert!(contents.lie_at(&coming.file, start(at)));
            assert!(!contents.lie_at(&coming.file, start(at + 1)));
        }
    }
    let mut there = vec![0; 65 * 4096];
    let read = rustix::io::pread(&coming.file, &mut there, 0);
    assert_eq!(read, Ok(there.len()));
    for (page, bytes) in there.chunks(4096).enumerate() {
        let expected = if page < 64 { page as u8 % 32 } else { 0 };
        assert!(bytes.iter().all(|&byte| byte == expected), "page {page}");
    }
    assert_eq!(came, [message.clone(), message]);
}

fn take(bytes: &mut Vec<u8>, pieces: &[io::IoSlice<'_>], most: usize) -> usize {
    let mut taken = 0;
    for piece in pieces {
        let part = piece.len().min(most - taken);
        bytes.write_all(&piece[..part]).unwrap();
        taken += part;
    }
    taken
}

/// A page that a server provides.
fn provided(pages: u32, size: usize) -> Control {
    let pool = Pool::new();
    let data = (0..pages)
        .map(|page| Some(pool.copy(&vec![page as u8; size])))
        .collect();
    Control::ToKernel {
        object: Handle(1),
        stamp: 7,
        message: ToKernel::DataProvided {
            pages: Pages {
                first: PageNumber(9),
                count: pages,
            },
            data,
            access: Access::Read,
        },
    }
}

/// The page comes with the first read, lies at a page boundary, and its memory is the one
/// into which the read went.
#[test]
fn an_expected_page_is_not_copied() {
    let bytes = bytes_of(&[provided(1, 4096)]);
    let mut decoder = Decoder::new(Limits::SESSION, Pool::new());
    let mut address = 0;
    let filled = decoder.fill(|pieces| {
        pieces[0].copy_from_slice(&bytes[..64]);
        pieces[1][..4096].copy_from_slice(&bytes[64..]);
        address = pieces[1].as_ptr() as usize;
        Ok(bytes.len())
    });
    assert_eq!(filled.unwrap().bytes, 64 + 4096);
    let frame = decoder.message().unwrap().unwrap();
    let Control::ToKernel {
        message: ToKernel::DataProvided { data, .. },
        ..
    } = frame.message
    else {
        panic!("another message");
    };
    let page = data[0].as_ref().unwrap();
    assert_eq!(page.as_ptr() as usize, address);
    assert_eq!(address % 4096, 0);
}

#[test]
fn the_largest_message_passes_and_lies_in_one_buffer() {
    let message = provided(16, 2 << 20);
    let bytes = bytes_of(std::slice::from_ref(&message));
    assert_eq!(
        decode(&bytes, &[1 << 20], Limits::SESSION).unwrap(),
        vec![message]
    );
}

#[test]
fn one_bit_says_whether_a_page_has_contents() {
    let pages = |count| Pages {
        first: PageNumber(0),
        count,
    };
    let empty = |count: u32| Control::FromKernel {
        object: Handle(1),
        message: FromKernel::DataWrite {
            pages: pages(count),
            data: vec![None; count as usize],
        },
    };
    let bytes = bytes_of(&[empty(MAX_PAGES)]);
    assert!(
        bytes.len() <= MAX_PAGES as usize / 8 + 64,
        "{} bytes",
        bytes.len()
    );
    assert_eq!(
        decode(&bytes, &[4096], Limits::SESSION).unwrap(),
        vec![empty(MAX_PAGES)]
    );
}

#[test]
fn what_cannot_be_sent_is_not_queued() {
    let mut outgoing = Outgoing::new();
    let too_many = provided(MAX_PAGES + 1, 4096);
    let too_much = provided(17, 2 << 20);
    let uneven = {
        let pool = Pool::new();
        Control::PeerServer {
            object: Handle(0),
            from: quire_core::dsm::message::ServerId(0),
            body: Vec::new(),
            data: vec![Some(pool.copy(&[0; 4096])), Some(pool.copy(&[0; 8192]))],
        }
    };
    let long = Control::Goodbye {
        reason: "x".repeat(MAX_CONTROL as usize),
    };
    let miscounted = Control::FromKernel {
        object: Handle(1),
        message: FromKernel::DataWrite {
            pages: Pages::one(PageNumber(0)),
            data: vec![None; 2],
        },
    };
    let about = |first, count| Control::FromKernel {
        object: Handle(1),
        message: FromKernel::DataUnlock {
            pages: Pages {
                first: PageNumber(first),
                count,
            },
        },
    };
    let (none, many) = (about(0, 0), about(0, MAX_PAGES + 1));
    let (beyond, wrapped) = (about((1 << 35) - 1, 2), about(u64::MAX, 2));
    outgoing.push(about((1 << 35) - 1, 1), Vec::new()).unwrap();
    outgoing = Outgoing::new();
    for message in [
        too_many, too_much, uneven, long, miscounted, none, many, beyond, wrapped,
    ] {
        outgoing.push(message, Vec::new()).unwrap_err();
        assert!(outgoing.is_empty());
    }
    outgoing
        .push(Control::Heartbeat { clock: 1 }, Vec::new())
        .unwrap();
    assert_eq!(outgoing.queued(), 64);
}

#[test]
fn many_small_messages_are_one_piece() {
    let mut outgoing = Outgoing::new();
    for clock in 0..100 {
        outgoing
            .push(Control::Heartbeat { clock }, Vec::new())
            .unwrap();
    }
    let mut writes = Vec::new();
    outgoing
        .write_to(|pieces, _| {
            writes.push(pieces.len());
            Ok(pieces.iter().map(|piece| piece.len()).sum())
        })
        .unwrap();
    assert_eq!(writes, vec![1]);
}

/// What keeps a lease waits for no more than the message of which a part is written.
#[test]
fn what_is_urgent_goes_before_all_that_is_not_begun() {
    let beat = |clock| Control::Heartbeat { clock };
    let told = |clock| Control::HeartbeatSeen { clock };
    for begun in [0, 1, 64, 100, 128, 4096, 4097, 64 + 3 * 4096] {
        let mut outgoing = Outgoing::new();
        let descriptor = || vec![std::fs::File::open("/dev/null").unwrap().into()];
        outgoing.push(told(1), Vec::new()).unwrap();
        outgoing.push(provided(3, 4096), Vec::new()).unwrap();
        outgoing.push(told(2), Vec::new()).unwrap();
        outgoing.push(told(3), descriptor()).unwrap();
        outgoing.push(told(4), Vec::new()).unwrap();
        let all = outgoing.queued();
        let mut bytes = Vec::new();
        let mut with_descriptors = Vec::new();
        let mut write = |outgoing: &mut Outgoing, most: usize| {
            let mut left = most;
            let written = outgoing.write_to(|pieces, descriptors| {
                if !descriptors.is_empty() {
                    with_descriptors.push(bytes.len());
                }
                let mut taken = 0;
                for piece in pieces {
                    let part = piece.len().min(left);
                    bytes.extend_from_slice(&piece[..part]);
                    (taken, left) = (taken + part, left - part);
                }
                match taken {
                    0 => Err(std::io::ErrorKind::WouldBlock.into()),
                    taken => Ok(taken),
                }
            });
            assert_eq!(written.is_ok(), outgoing.is_empty());
        };
        write(&mut outgoing, begun);
        outgoing.push_first(&beat(5)).unwrap();
        outgoing.push_first(&beat(6)).unwrap();
        outgoing.push(told(7), Vec::new()).unwrap();
        assert_eq!(outgoing.queued(), all - begun + 3 * 64);
        write(&mut outgoing, usize::MAX);
        let came = decode(&bytes, &[4096], Limits::SESSION);
        let mut expected = vec![
            told(1),
            provided(3, 4096),
            told(2),
            told(3),
            told(4),
            told(7),
        ];
        let at = match begun {
            0 => 0,
            1..=64 => 1,
            _ => 2,
        };
        expected.splice(at..at, [beat(6), beat(5)]);
        assert_eq!(came.unwrap(), expected, "{begun} bytes were written");
        let third = bytes.len() - 3 * 64;
        assert_eq!(with_descriptors, [third], "{begun} bytes were written");
        assert!(outgoing.is_empty() && outgoing.queued() == 0);
    }
}

/// Each thing that can be wrong has its own words.
#[test]
fn what_is_wrong_is_said() {
    let good = bytes_of(&[Control::Heartbeat { clock: 7 }]);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        decode(&bytes, &[4096], Limits::SESSION)
            .unwrap_err()
            .to_string()
    };
    // A header that is changed on purpose has the right checksum again.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        with(&|bytes| {
            change(bytes);
            let checksum = crc32fast::hash(&bytes[..20]);
            bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
        })
    };
    assert!(with(&|b| b[0] = b'G').contains("maybe the peer is not quire"));
    let versions = format!("speaks version 99 of the protocol, we speak {VERSION}");
    assert!(with(&|b| b[4] = 99).contains(&versions));
    assert!(with(&|b| b[8] ^= 1).contains("checksum of a frame's header"));
    assert!(with(&|b| b[24] ^= 1).contains("checksum of a frame's control part"));
    assert!(with(&|b| b[60] = 1).contains("fill is not zero"));
    assert!(sealed(&|b| b[6] = 1).contains("unknown flags"));
    assert!(sealed(&|b| b[7] = 9).contains("9 descriptors, more than 8"));
    assert!(sealed(&|b| b[11] = 1).contains("control part has 16777"));
    assert!(sealed(&|b| b[15] = 3).contains("more than 33554432"));
    assert!(sealed(&|b| b[13] = 16).contains("nobody asked for"));
    let longer = sealed(&|b| {
        b[8] += 1;
        let end = 24 + b[8] as usize;
        let checksum = crc32fast::hash(&b[24..end]);
        b[16..20].copy_from_slice(&checksum.to_le_bytes());
    });
    assert!(longer.contains("1 bytes after its end"), "{longer}");
    let kind = sealed(&|b| {
        b[25] = 99;
        let end = 24 + b[8] as usize;
        let checksum = crc32fast::hash(&b[24..end]);
        b[16..20].copy_from_slice(&checksum.to_le_bytes());
    });
    assert!(kind.contains("cannot be decoded"), "{kind}");
}

/// A receiver does not believe a sender that it keeps to the numbers of pages.
#[test]
fn pages_that_cannot_be_are_refused() {
    let good = Control::FromKernel {
        object: Handle(1),
        message: FromKernel::LockCompleted {
            pages: Pages {
                first: PageNumber(5),
                count: 6,
            },
        },
    };
    let mut bytes = bytes_of(&[good]);
    let control = 24..24 + bytes[8] as usize;
    let last = control.end - 1;
    assert_eq!(bytes[last], 6);
    for (count, fine) in [(6, true), (127, true), (0, false)] {
        bytes[last] = count;
        let checksum = crc32fast::hash(&bytes[control.clone()]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..20]);
        bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
        let result = decode(&bytes, &[4096], Limits::SESSION);
        assert_eq!(result.is_ok(), fine, "{count}: {result:?}");
    }
}

#[test]
fn before_the_hello_only_small_messages_pass() {
    let page = bytes_of(&[provided(1, 4096)]);
    let error = decode(&page, &[4096], Limits::GREETING).unwrap_err();
    assert_eq!(
        error,
        WireError::PayloadSize {
            length: 4096,
            limit: 0
        }
    );
    let long = bytes_of(&[Control::Goodbye {
        reason: "x".repeat(3000),
    }]);
    let error = decode(&long, &[4096], Limits::GREETING).unwrap_err();
    assert!(
        matches!(error, WireError::ControlSize { limit: 2048, .. }),
        "{error}"
    );
}

#[test]
fn names_and_page_sizes_are_checked() {
    use quire_core::units::Bytes;
    use quire_dsm::wire::control::Name;
    for good in ["a", "matrix", "0", "A.b_c-d", &"x".repeat(200)] {
        assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
    }
    for (text, plain, key) in [
        ("grid", "grid", None),
        ("grid~", "grid", Some("grid")),
        ("grid~8f3a", "grid", Some("grid~8f3a")),
    ] {
        let name: Name = text.parse().unwrap();
        assert_eq!(name.plain().as_str(), plain);
        assert_eq!(name.key().as_ref().map(Name::as_str), key);
        assert_eq!(name.is_plain(), key.is_none());
        let exact = name.key().map(|key| key.exact());
        assert!(exact.is_none_or(|exact| exact == name));
        // All that can be between names that begin like it is none of its keys.
        let keys = name.all_numbered();
        assert!(keys.contains(&name.numbered(1)) && keys.contains(&name.numbered(u64::MAX)));
        for other in [
            "grid", "grid-1", "grid_", "gridz", "grie", "grid.~1", "gri~1",
        ] {
            assert!(!keys.contains(&other.parse().unwrap()), "{other}");
        }
    }
    for bad in [
        "~",
        "~1",
        "grid~g",
        "grid~A",
        "grid~1~",
        "grid~0123456789abcdef0",
        "",
        ".",
        "-a",
        "a/b",
        "a b",
        "ä",
        "a@b",
        "a\n",
        &"x".repeat(201),
    ] {
        assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        assert!(Name::like(bad).as_str().parse::<Name>().is_ok(), "{bad:?}");
    }
    for (text, like) in [
        ("postgres\n", "postgres"),
        ("(sd-pam)", "sd-pam"),
        ("..a b/ä", "ab"),
        ("-", "quire"),
    ] {
        assert_eq!(Name::like(text).as_str(), like);
    }
    for bad in [0, 1, 2048, 4097, 6144, 4 << 20] {
        assert!(PageSize::try_from(Bytes(bad)).is_err(), "{bad}");
    }
    assert_eq!(
        PageSize::try_from(Bytes(2 << 20)).unwrap().bytes(),
        Bytes(2 << 20)
    );
}

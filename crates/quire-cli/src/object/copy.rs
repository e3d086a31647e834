//! `quire object cp`: objects to files, and files to objects. A file may be standard input or
//! output. What is zero is not written where it is so already: to a new object, which has no memory
//! for it then, and to a new file, which has a hole.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, ClientError, Shared};
use quire_dsm::store::is_zero;
use quire_dsm::wire::control::{Failure as Refusal, FailureKind, Name, Object, Rights};

use super::interruption::Interruption;
use super::{failed, find};
use crate::args::dsm::Place;
use crate::failure::{Failure, Outcome, is_bad_path};
use crate::output::Output;
use crate::progress::LateBar;
use crate::run::count;

/// So much is copied at once, in bytes.
const AT_ONCE: usize = 1 << 20;

/// So much is looked at to see whether it is zero, in bytes.
const PIECE: usize = 64 << 10;

/// So often it is looked again whether an object is there, where another one makes and removes it.
const TRIES: u32 = 20;

/// So long it waits between two looks.
const BETWEEN: Duration = Duration::from_millis(50);

/// How the bar looks.
const BAR: &str = "{bar:40} {binary_bytes} of {binary_total_bytes} {eta}";

/// Copies.
pub fn copy(client: &Client, from: &Place, to: &Place, salvage: bool) -> Outcome<()> {
    let mut lost = salvage.then(Lost::default);
    let lost = lost.as_mut();
    match (from, to) {
        (Place::File(file), Place::Object(name)) => put_file(client, file, name),
        (Place::Standard, Place::Object(name)) => put_input(client, name),
        (Place::Object(name), Place::File(file)) => get_file(client, name, file, lost),
        (Place::Object(name), Place::Standard) => get_output(client, name, lost),
        _ => Err(Failure::bad_usage(
            "one of the two is an object, with a colon before its name: `quire object cp FILE :NAME`",
        )),
    }
}

fn refused(file: &Path) -> impl Fn(io::Error) -> Failure + '_ {
    move |error| {
        let text = format!("{}: {error}", file.display());
        match is_bad_path(&error) {
            true => Failure::bad_usage(text),
            false => Failure::system(text),
        }
    }
}

fn put_file(client: &Client, file: &Path, name: &Name) -> Outcome<()> {
    let refused = refused(file);
    let from = File::open(file).map_err(&refused)?;
    let metadata = from.metadata().map_err(&refused)?;
    match metadata.is_file() && metadata.len() > 0 {
        true => put(client, (from, file, Bytes(metadata.len())), name),
        // Pipes, and files of `/proc`, say only at their end how long they are.
        false => put_all(client, (from, file), name),
    }
}

fn put_input(client: &Client, name: &Name) -> Outcome<()> {
    let what = Path::new("standard input");
    put_all(client, (io::stdin().lock(), what), name)
}

/// Copies all that there is of what is called so.
fn put_all(client: &Client, (mut from, what): (impl Read, &Path), name: &Name) -> Outcome<()> {
    let mut all = Vec::new();
    from.read_to_end(&mut all).map_err(refused(what))?;
    let size = Bytes(all.len() as u64);
    put(client, (&*all, what, size), name)
}

/// Copies so much of what is called so to an object, which is made where there is none.
fn put(client: &Client, from: (impl Read, &Path, Bytes), name: &Name) -> Outcome<()> {
    let (_, what, size) = from;
    let signals = Interruption::watch()?;
    if !is_made(client, name, (what, size))? {
        return fill(client, from, (name, false), &signals);
    }
    let filled = fill(client, from, (name, true), &signals);
    filled.map_err(|failure| match client.remove(name.clone()) {
        Ok(()) => failure,
        Err(error) => failure.and(&format!(
            "{name} was made, has only some of it, and cannot be removed: {error}"
        )),
    })
}

/// Sees to it that an object is there that takes so much. Whether it was made; where another one
/// makes it first, that is as good.
fn is_made(client: &Client, name: &Name, (what, size): (&Path, Bytes)) -> Outcome<bool> {
    let mut tries = 0;
    loop {
        tries += 1;
        match find(client, name)? {
            Some(object) if object.size < size => {
                return Err(Failure::bad_usage(format!(
                    "{} has {size}, and {name} only {}",
                    what.display(),
                    object.size
                )));
            }
            Some(_) => return Ok(false),
            None => {}
        }
        match client.create(Object::usual(name.clone(), size)) {
            Ok(()) => return Ok(true),
            Err(ClientError::Refused(Refusal {
                kind: FailureKind::Exists,
                ..
            })) if tries < TRIES => thread::sleep(BETWEEN),
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Copies so much of what is called so to an object that is there; zeros need not be written to
/// one that is new. It is safe then.
fn fill(
    client: &Client,
    from: (impl Read, &Path, Bytes),
    (name, is_new): (&Name, bool),
    signals: &Interruption,
) -> Outcome<()> {
    let shared = open(client, name, true)?;
    let copied = pour(&shared, from, is_new, signals);
    let closed = shared.close();
    copied.and_then(|()| closed.map_err(failed))
}

fn pour(
    shared: &Shared,
    (mut from, what, size): (impl Read, &Path, Bytes),
    is_new: bool,
    signals: &Interruption,
) -> Outcome<()> {
    let refused = refused(what);
    let (mut buffer, mut at, mut bar) = (vec![0; AT_ONCE], 0, LateBar::new(BAR));
    while at < size.0 {
        signals.look()?;
        let most = (size.0 - at).min(AT_ONCE as u64) as usize;
        let count = from.read(&mut buffer[..most]).map_err(&refused)?;
        if count == 0 {
            return Err(Failure::system(format!(
                "{} became shorter meanwhile: only its first {} could be copied",
                what.display(),
                Bytes(at)
            )));
        }
        for piece in buffer[..count].chunks(PIECE) {
            if !(is_new && is_zero(piece)) {
                shared
                    .checked_write_at(ObjectOffset(at), piece)
                    .map_err(failed)?;
            }
            at += piece.len() as u64;
        }
        bar.at(at, size.0);
    }
    Ok(())
}

fn get_file(client: &Client, name: &Name, file: &Path, mut lost: Option<&mut Lost>) -> Outcome<()> {
    let shared = open(client, name, false)?;
    let refused = refused(file);
    let output = Output::make(file).map_err(&refused)?;
    let mut to = output.file();
    let has_holes = to.metadata().map_err(&refused)?.is_file();
    // Who writes to a pipe may wait there for long, and leaves nothing behind.
    let signals = has_holes.then(Interruption::watch).transpose()?;
    let put = |at, piece: &[u8]| match has_holes {
        true if is_zero(piece) => Ok(()),
        true => to.write_all_at(piece, at),
        false => to.write_all(piece),
    };
    get(
        &shared,
        put,
        &refused,
        (signals.as_ref(), lost.as_deref_mut()),
    )?;
    if has_holes {
        to.set_len(shared.size().0).map_err(&refused)?;
    }
    output.finish().map_err(&refused)?;
    told(lost, name)
}

fn get_output(client: &Client, name: &Name, mut lost: Option<&mut Lost>) -> Outcome<()> {
    let shared = open(client, name, false)?;
    let mut to = io::stdout().lock();
    let put = |_, piece: &[u8]| to.write_all(piece);
    get(&shared, put, Failure::from, (None, lost.as_deref_mut()))?;
    to.flush()?;
    told(lost, name)
}

/// Reads all of an object, in order, for a function that puts each piece to its place.
fn get(
    shared: &Shared,
    mut put: impl FnMut(u64, &[u8]) -> io::Result<()>,
    refused: impl Fn(io::Error) -> Failure,
    (signals, mut lost): (Option<&Interruption>, Option<&mut Lost>),
) -> Outcome<()> {
    let (mut buffer, mut at, size) = (vec![0; AT_ONCE], 0, shared.size().0);
    let mut bar = LateBar::new(BAR);
    while at < size {
        signals.map_or(Ok(()), Interruption::look)?;
        let part = &mut buffer[..(size - at).min(AT_ONCE as u64) as usize];
        match (shared.checked_read_at(ObjectOffset(at), part), &mut lost) {
            (Ok(()), _) => {}
            (Err(ClientError::Lost { .. }), Some(lost)) => lost.read(shared, at, part)?,
            (Err(error), _) => return Err(failed(error)),
        }
        for piece in part.chunks(PIECE) {
            put(at, piece).map_err(&refused)?;
            at += piece.len() as u64;
        }
        bar.at(at, size);
    }
    Ok(())
}

/// Pages that could not be had, of which zeros are copied.
#[derive(Default)]
struct Lost {
    ranges: Vec<Range<u64>>,
    pages: u64,
}

impl Lost {
    /// So many ranges are named.
    const NAMED: usize = 16;

    /// Reads page by page what cannot be read at once.
    fn read(&mut self, shared: &Shared, at: u64, into: &mut [u8]) -> Outcome<()> {
        let size = shared.info().page_size.bytes().0;
        let mut done = 0;
        while done < into.len() {
            let from = at + done as u64;
            let to_end = size - from % size;
            let length = (into.len() - done).min(to_end as usize);
            let piece = &mut into[done..done + length];
            match shared.checked_read_at(ObjectOffset(from), piece) {
                Ok(()) => {}
                Err(ClientError::Lost { .. }) => {
                    piece.fill(0);
                    self.add(from / size);
                }
                Err(error) => return Err(failed(error)),
            }
            done += length;
        }
        Ok(())
    }

    fn add(&mut self, page: u64) {
        match self.ranges.last_mut() {
            // A page may be read in several parts.
            Some(last) if last.end == page + 1 => return,
            Some(last) if last.end == page => last.end += 1,
            _ => self.ranges.push(page..page + 1),
        }
        self.pages += 1;
    }
}

/// Which pages were left out, if some were.
fn told(lost: Option<&mut Lost>, name: &Name) -> Outcome<()> {
    let Some(lost) = lost.filter(|lost| lost.pages > 0) else {
        return Ok(());
    };
    let named = lost.ranges.iter().take(Lost::NAMED);
    let named = named.map(|range| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    });
    let named: Vec<String> = named.collect();
    let more = match lost.ranges.len().saturating_sub(Lost::NAMED) {
        0 => String::new(),
        more => format!(" and {more} ranges more"),
    };
    Err(Failure::system(format!(
        "{} of {name} could not be had, and zeros stand in their place: {}{more}; all else was copied",
        count(lost.pages, "page"),
        named.join(", ")
    )))
}

fn open(client: &Client, name: &Name, write: bool) -> Outcome<Shared> {
    let rights = Rights { read: true, write };
    client.open(name.clone(), rights).map_err(failed)
}

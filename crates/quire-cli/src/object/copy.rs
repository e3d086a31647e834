//! `quire object cp`: objects to files, and files to objects.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use quire_core::units::{Bytes, ObjectOffset};
use quire_dsm::client::{Client, Shared};
use quire_dsm::wire::control::{MachineCode, Name, Object, PageSize, Rights, SchedulerKind};

use super::{failed, find};
use crate::args::dsm::Place;
use crate::failure::{Failure, Outcome};

/// So much is copied at once, in bytes.
const AT_ONCE: usize = 1 << 20;

/// Copies.
pub fn copy(client: &Client, from: &Place, to: &Place) -> Outcome<()> {
    match (from, to) {
        (Place::File(file), Place::Object(name)) => put(client, file, name),
        (Place::Object(name), Place::File(file)) => get(client, name, file),
        _ => Err(Failure::bad_usage(
            "one of the two is an object, with a colon before its name: `quire object cp FILE :NAME`",
        )),
    }
}

fn refused(file: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::bad_usage(format!("{}: {error}", file.display()))
}

fn put(client: &Client, file: &Path, name: &Name) -> Outcome<()> {
    let refused = refused(file);
    let mut from = File::open(file).map_err(&refused)?;
    let size = Bytes(from.metadata().map_err(&refused)?.len());
    match find(client, name)? {
        Some(object) if object.size < size => {
            return Err(Failure::bad_usage(format!(
                "{} has {size}, and {name} only {}",
                file.display(),
                object.size
            )));
        }
        Some(_) => {}
        None => client.create(new(name, size)).map_err(failed)?,
    }
    let shared = open(client, name, true)?;
    let mut buffer = vec![0; AT_ONCE];
    let mut at = 0;
    while at < size.0 {
        let count = from.read(&mut buffer).map_err(&refused)?;
        let count = count.min((size.0 - at) as usize);
        if count == 0 {
            break;
        }
        let bytes = &buffer[..count];
        shared
            .checked_write_at(ObjectOffset(at), bytes)
            .map_err(failed)?;
        at += count as u64;
    }
    shared.flush().map_err(failed)
}

fn get(client: &Client, name: &Name, file: &Path) -> Outcome<()> {
    let shared = open(client, name, false)?;
    let refused = refused(file);
    let mut to = File::create(file).map_err(&refused)?;
    let (mut buffer, mut at, size) = (vec![0; AT_ONCE], 0, shared.size().0);
    while at < size {
        let part = &mut buffer[..(size - at).min(AT_ONCE as u64) as usize];
        shared
            .checked_read_at(ObjectOffset(at), part)
            .map_err(failed)?;
        to.write_all(part).map_err(&refused)?;
        at += part.len() as u64;
    }
    Ok(())
}

fn open(client: &Client, name: &Name, write: bool) -> Outcome<Shared> {
    let rights = Rights { read: true, write };
    client.open(name.clone(), rights).map_err(failed)
}

fn new(name: &Name, size: Bytes) -> Object {
    Object {
        name: name.clone(),
        size,
        page_size: PageSize::BASE,
        scheduler: SchedulerKind::Multi,
        machine: MachineCode(0),
        tags: Vec::new(),
    }
}

//! A disk that keeps what was synced, and of the rest whatever it likes: after a crash, any
//! sectors of any unsynced writes, and of each directory's unsynced names the first few. It
//! has a size, and it can fail from a given operation on, or only once.
//!
//! A sync of a file that fails is as on Linux: what was to be written counts as written
//! from then on. Whoever reads it sees it, the next sync says yes, and some of it is not on
//! the disk. A directory's names are written by the next sync that succeeds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard};

use super::disk::Disk;
use crate::random::Numbers;

const SECTOR: usize = 512;
const BLOCK: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Node {
    File(u64),
    Directory(u64),
}

#[derive(Clone, Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
    allocated: BTreeSet<u64>,
}

#[derive(Clone)]
enum Naming {
    Link(String, Node),
    Rename(String, String),
    Unlink(String),
}

#[derive(Clone, Default)]
struct Names {
    now: BTreeMap<String, Node>,
    durable: BTreeMap<String, Node>,
    unsynced: Vec<Naming>,
}

#[derive(Clone, Default)]
struct State {
    files: HashMap<u64, Contents>,
    directories: HashMap<u64, Names>,
    next: u64,
    /// Blocks that there are in all.
    blocks: Option<u64>,
    /// Operations until everything fails.
    left: Option<u64>,
    /// The file whose next sync fails.
    unreliable: Option<String>,
    /// Operations until one fails, and how.
    stumble: Option<(u64, Dice)>,
    /// Operations so far.
    done: u64,
}

/// The disk.
#[derive(Default)]
pub(super) struct Simulated {
    state: Mutex<State>,
}

/// Numbers for the choices of a crash.
#[derive(Clone, Copy)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self, below: u64) -> u64 {
        let mut numbers = Numbers(self.0);
        let number = numbers.next();
        self.0 = numbers.0;
        number % below.max(1)
    }
}

fn apply(names: &mut BTreeMap<String, Node>, naming: &Naming) {
    match naming {
        Naming::Link(name, node) => {
            names.insert(name.clone(), *node);
        }
        Naming::Rename(from, to) => {
            if let Some(node) = names.remove(from) {
                names.insert(to.clone(), node);
            }
        }
        Naming::Unlink(name) => {
            names.remove(name);
        }
    }
}

fn put(bytes: &mut Vec<u8>, at: usize, data: &[u8]) {
    if bytes.len() < at + data.len() {
        bytes.resize(at + data.len(), 0);
    }
    bytes[at..at + data.len()].copy_from_slice(data);
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn missing() -> io::Error {
    ErrorKind::NotFound.into()
}

fn bad_sector() -> io::Error {
    io::Error::other("a sector is gone")
}

impl Contents {
    fn sync(&mut self) {
        for (at, data) in std::mem::take(&mut self.unsynced) {
            put(&mut self.durable, at, &data);
        }
        self.durable.resize(self.now.len(), 0);
    }

    /// A sync fails: some sectors are on the disk, and no later sync writes the others.
    fn fail_to_sync(&mut self, dice: &mut Dice) {
        for (at, data) in std::mem::take(&mut self.unsynced) {
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if dice.next(2) == 0 {
                    put(&mut self.durable, at + index * SECTOR, sector);
                }
            }
        }
    }
}

impl State {
    fn directory(&self, path: &str) -> io::Result<u64> {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.into_iter().try_fold(0, |directory, part| {
            match self
                .directories
                .get(&directory)
                .and_then(|d| d.now.get(part))
            {
                Some(Node::Directory(id)) => Ok(*id),
                _ => Err(missing()),
            }
        })
    }

    fn file(&self, path: &str) -> io::Result<u64> {
        let (directory, name) = split(path);
        let directory = self.directory(directory)?;
        match self
            .directories
            .get(&directory)
            .and_then(|d| d.now.get(name))
        {
            Some(Node::File(id)) => Ok(*id),
            _ => Err(missing()),
        }
    }

    /// Whether the next operation fails.
    fn stumbles(&mut self) -> Option<Dice> {
        let (left, dice) = self.stumble.take()?;
        if left == 0 {
            return Some(dice);
        }
        self.stumble = Some((left - 1, dice));
        None
    }

    /// Nothing fails any more.
    fn be_sound(&mut self) {
        self.left = None;
        self.unreliable = None;
        self.stumble = None;
    }

    fn name(&mut self, directory: u64, naming: Naming) {
        let names = self.directories.entry(directory).or_default();
        apply(&mut names.now, &naming);
        names.unsynced.push(naming);
    }

    fn make(&mut self, path: &str) -> io::Result<u64> {
        let (directory, name) = split(path);
        let directory = self.directory(directory)?;
        self.next += 1;
        let id = self.next;
        self.files.insert(id, Contents::default());
        self.name(directory, Naming::Link(name.to_owned(), Node::File(id)));
        Ok(id)
    }

    /// The files that can be reached by now.
    fn reachable(&self) -> Vec<u64> {
        let (mut found, mut directories) = (Vec::new(), vec![0]);
        while let Some(directory) = directories.pop() {
            let names = self.directories.get(&directory);
            for node in names.into_iter().flat_map(|names| names.now.values()) {
                match node {
                    Node::File(id) => found.push(*id),
                    Node::Directory(id) => directories.push(*id),
                }
            }
        }
        found
    }

    fn used(&self) -> u64 {
        let files = self.reachable();
        files
            .iter()
            .map(|id| self.files[id].allocated.len() as u64)
            .sum()
    }

    /// Gives a range of a file its blocks.
    fn allocate(&mut self, id: u64, offset: u64, length: u64) -> io::Result<()> {
        let wanted: Vec<u64> = (offset / BLOCK..(offset + length).div_ceil(BLOCK))
            .filter(|block| !self.files[&id].allocated.contains(block))
            .collect();
        let over = |blocks| self.used() + wanted.len() as u64 > blocks;
        if !wanted.is_empty() && self.blocks.is_some_and(over) {
            return Err(ErrorKind::StorageFull.into());
        }
        let file = self.files.get_mut(&id).ok_or_else(missing)?;
        file.allocated.extend(wanted);
        Ok(())
    }

    fn write(&mut self, id: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let file = self.files.get_mut(&id).ok_or_else(missing)?;
        put(&mut file.now, offset as usize, data);
        file.unsynced.push((offset as usize, data.to_vec()));
        Ok(())
    }

    /// What is left of a file after a crash.
    fn survive(file: &Contents, dice: &mut Dice) -> Contents {
        let mut bytes = file.durable.clone();
        for (at, data) in &file.unsynced {
            for (index, sector) in data.chunks(SECTOR).enumerate() {
                if dice.next(2) == 0 {
                    put(&mut bytes, at + index * SECTOR, sector);
                }
            }
        }
        let blocks = (bytes.len() as u64).div_ceil(BLOCK);
        let allocated = file.allocated.iter().copied();
        Contents {
            now: bytes.clone(),
            durable: bytes,
            unsynced: Vec::new(),
            allocated: allocated.filter(|block| *block < blocks).collect(),
        }
    }
}

impl Simulated {
    pub(super) fn new() -> Simulated {
        let disk = Simulated::default();
        disk.state().directories.insert(0, Names::default());
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// After so many more operations that change something, everything fails.
    pub(super) fn fail_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// After so many more operations that change something, one fails: a sync as such, and
    /// anything else after it was carried out, or before.
    pub(super) fn stumble_after(&self, operations: u64, seed: u64) {
        self.state().stumble = Some((operations, Dice(seed)));
    }

    /// How many operations have changed something.
    pub(super) fn operations(&self) -> u64 {
        self.state().done
    }

    /// The next sync of a file fails; as on Linux, those after it do not.
    pub(super) fn fail_sync_of(&self, file: &str) {
        self.state().unreliable = Some(file.to_owned());
    }

    /// How many more blocks can be had.
    pub(super) fn set_free(&self, blocks: Option<u64>) {
        let mut state = self.state();
        state.blocks = blocks.map(|blocks| state.used() + blocks);
    }

    pub(super) fn used(&self) -> u64 {
        self.state().used()
    }

    /// What is on the disk after the power came back.
    pub(super) fn crash(&self, seed: u64) -> Simulated {
        let mut dice = Dice(seed);
        let mut state = self.state().clone();
        state.blocks = None;
        state.be_sound();
        for id in 1..=state.next {
            if let Some(file) = state.files.get_mut(&id) {
                *file = State::survive(file, &mut dice);
            }
            if let Some(names) = state.directories.get_mut(&id) {
                Simulated::keep_some(names, &mut dice);
            }
        }
        if let Some(root) = state.directories.get_mut(&0) {
            Simulated::keep_some(root, &mut dice);
        }
        Simulated {
            state: Mutex::new(state),
        }
    }

    fn keep_some(names: &mut Names, dice: &mut Dice) {
        let kept = dice.next(names.unsynced.len() as u64 + 1);
        for naming in names.unsynced.drain(..).take(kept as usize) {
            apply(&mut names.durable, &naming);
        }
        names.now = names.durable.clone();
    }

    /// What a process that is started after another was killed finds: everything.
    pub(super) fn copy(&self) -> Simulated {
        let mut state = self.state().clone();
        state.be_sound();
        Simulated {
            state: Mutex::new(state),
        }
    }

    /// The paths of all files.
    pub(super) fn paths(&self) -> Vec<String> {
        let state = self.state();
        let (mut found, mut directories) = (Vec::new(), vec![(0, String::new())]);
        while let Some((directory, path)) = directories.pop() {
            for (name, node) in &state.directories[&directory].now {
                let path = super::disk::join(&path, name);
                match node {
                    Node::File(_) => found.push(path),
                    Node::Directory(id) => directories.push((*id, path)),
                }
            }
        }
        found.sort();
        found
    }

    /// Changes a file behind the store's back.
    pub(super) fn damage(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let id = state.file(path).unwrap();
        let file = state.files.get_mut(&id).unwrap();
        change(&mut file.now);
        file.durable = file.now.clone();
    }

    /// Takes a file away behind the store's back.
    pub(super) fn lose(&self, path: &str) {
        let mut state = self.state();
        let (directory, name) = split(path);
        let directory = state.directory(directory).unwrap();
        state
            .directories
            .get_mut(&directory)
            .unwrap()
            .now
            .remove(name);
    }

    /// Does something that changes the disk, or fails: the operation at which the disk
    /// fails may have been carried out.
    fn change(&self, operation: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        self.attempt(|state, stumbles| match stumbles {
            None => operation(state),
            Some(dice) if dice.0.is_multiple_of(2) => Err(bad_sector()),
            Some(_) => operation(state).and(Err(bad_sector())),
        })
    }

    /// The same; the operation is told when it is to fail, and how.
    fn attempt(
        &self,
        operation: impl FnOnce(&mut State, Option<Dice>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state();
        state.done += 1;
        match state.left {
            Some(0) => return Err(io::Error::other("crashed")),
            Some(left) => state.left = Some(left - 1),
            None => {}
        }
        let stumbles = state.stumbles();
        let result = operation(&mut state, stumbles);
        if state.left == Some(0) {
            return Err(io::Error::other("crashed"));
        }
        result
    }
}

impl Disk for Simulated {
    fn len(&self, file: &str) -> io::Result<Option<u64>> {
        let state = self.state();
        let id = state.file(file);
        Ok(id.ok().map(|id| state.files[&id].now.len() as u64))
    }

    fn read_at(&self, file: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let state = self.state();
        let bytes = &state.files[&state.file(file)?].now;
        let bytes = bytes.get(offset as usize..).unwrap_or(&[]);
        let length = bytes.len().min(buffer.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn write_at(&self, file: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|state| {
            let id = state.file(file).or_else(|_| state.make(file))?;
            state.allocate(id, offset, data.len() as u64)?;
            state.write(id, offset, data)
        })
    }

    fn create(&self, file: &str) -> io::Result<()> {
        self.change(|state| state.make(file).map(drop))
    }

    fn reserve(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        self.change(|state| {
            let id = state.file(file).or_else(|_| state.make(file))?;
            state.allocate(id, offset, length)?;
            let file = state.files.get_mut(&id).ok_or_else(missing)?;
            let end = (offset + length) as usize;
            let end = end.max(file.now.len());
            file.now.resize(end, 0);
            Ok(())
        })
    }

    fn punch(&self, file: &str, offset: u64, length: u64) -> io::Result<()> {
        self.change(|state| {
            let id = state.file(file)?;
            let file = state.files.get_mut(&id).ok_or_else(missing)?;
            let end = (offset + length).min(file.now.len() as u64);
            for block in offset / BLOCK..end / BLOCK {
                file.allocated.remove(&block);
            }
            let zeros = vec![0; end.saturating_sub(offset) as usize];
            if zeros.is_empty() {
                return Ok(());
            }
            state.write(id, offset, &zeros)
        })
    }

    fn sync(&self, file: &str) -> io::Result<()> {
        self.attempt(|state, stumbles| {
            let id = state.file(file)?;
            let unreliable = state.unreliable.take_if(|it| it == file);
            let fails = stumbles.or(unreliable.map(|_| Dice(1)));
            let file = state.files.get_mut(&id).ok_or_else(missing)?;
            if let Some(mut dice) = fails {
                file.fail_to_sync(&mut dice);
                return Err(bad_sector());
            }
            file.sync();
            Ok(())
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change(|state| {
            let ((directory, from), (_, to)) = (split(from), split(to));
            let directory = state.directory(directory)?;
            if !state.directories[&directory].now.contains_key(from) {
                return Err(missing());
            }
            state.name(directory, Naming::Rename(from.to_owned(), to.to_owned()));
            Ok(())
        })
    }

    fn remove_directory(&self, directory: &str) -> io::Result<()> {
        self.change(|state| {
            let (parent, name) = split(directory);
            let parent = state.directory(parent)?;
            let id = state.directory(directory)?;
            let inside: Vec<_> = state.directories[&id].now.keys().cloned().collect();
            for file in inside {
                state.name(id, Naming::Unlink(file));
            }
            state.name(parent, Naming::Unlink(name.to_owned()));
            Ok(())
        })
    }

    fn make_directory(&self, directory: &str) -> io::Result<()> {
        self.change(|state| {
            let (parent, name) = split(directory);
            let parent = state.directory(parent)?;
            if state.directories[&parent].now.contains_key(name) {
                return Ok(());
            }
            state.next += 1;
            let id = state.next;
            state.directories.insert(id, Names::default());
            state.name(parent, Naming::Link(name.to_owned(), Node::Directory(id)));
            Ok(())
        })
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        let directory = state.directory(directory)?;
        Ok(state.directories[&directory].now.keys().cloned().collect())
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        self.attempt(|state, stumbles| {
            let directory = state.directory(directory)?;
            if stumbles.is_some() {
                return Err(bad_sector());
            }
            let names = state.directories.get_mut(&directory).ok_or_else(missing)?;
            for naming in names.unsynced.drain(..) {
                apply(&mut names.durable, &naming);
            }
            Ok(())
        })
    }
}

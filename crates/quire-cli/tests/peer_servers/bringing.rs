//! What programs had written whose server is killed: they bring it to another one, or to their own when
//! it is started again, and are told what others have been given since.

use super::*;

/// What [`lose`] was told of.
static LOST: AtomicU64 = AtomicU64::new(0);

fn lose(loss: &quire_dsm::client::Loss<'_>) {
    LOST.fetch_add(loss.pages, Ordering::SeqCst);
}

fn set(shared: &Shared, page: usize, value: u64) {
    word(shared, page).store(value, Ordering::SeqCst);
}

fn get(shared: &Shared, page: usize) -> u64 {
    word(shared, page).load(Ordering::SeqCst)
}

/// The program had pages that others had before, that nobody had, that it had given back, and one that
/// somebody waits for when its server is killed.
#[test]
fn what_was_written_at_a_server_that_is_killed_is_brought_to_another() {
    let mut group = Group::of(3);
    let [client, elsewhere] = [group.client_of(&[2, 1]), group.client(0)];
    elsewhere.create(grid(8)).unwrap();
    let [mine, theirs] = [&client, &elsewhere].map(open);
    // The other server has a part in it.
    let third = group.client(1);
    let _third = open(&third);
    for page in [0, 1, 4] {
        set(&theirs, page, 1);
    }
    for page in 0..4 {
        set(&mine, page, 10 + page as u64);
    }
    // Others have had it since.
    set(&mine, 4, 14);
    set(&theirs, 4, 24);
    set(&mine, 3, 13);
    mine.flush().unwrap();
    set(&mine, 2, 12);
    group.kill(2);
    let waits = thread::spawn(move || (get(&theirs, 0), theirs));
    soon("the killed server's program", move || {
        assert_eq!([0, 1, 2, 3].map(|page| get(&mine, page)), [10, 11, 12, 13]);
        assert_eq!(get(&mine, 4), 24);
        let (seen, theirs) = waits.join().unwrap();
        assert_eq!(seen, 10);
        assert_eq!([1, 2, 3].map(|page| get(&theirs, page)), [11, 12, 13]);
        set(&mine, 0, 20);
        assert_eq!(get(&theirs, 0), 20);
    });
    drop((client, elsewhere));
}

/// It comes back when the others have gone on: what somebody has been given since stays as it is.
#[test]
fn what_was_written_at_a_server_that_is_killed_is_brought_when_it_is_back() {
    let mut group = Group::of(3);
    let client = group.client_with(2, |options| {
        options.reconnect = Some(SOON);
        options.on_loss = Some(lose);
    });
    let elsewhere = group.client(0);
    elsewhere.create(grid(8)).unwrap();
    let [mine, theirs] = [&client, &elsewhere].map(open);
    for page in [0, 1] {
        set(&theirs, page, 1);
    }
    for page in 0..4 {
        set(&mine, page, 10 + page as u64);
    }
    group.kill(2);
    let theirs = soon("the others", move || {
        // They are as they were before.
        assert_eq!((get(&theirs, 0), get(&theirs, 2)), (1, 0));
        set(&theirs, 0, 50);
        theirs
    });
    let again = group.serve(2);
    group.servers[2] = again;
    soon("the killed server's program", move || {
        assert_eq!([0, 1, 2, 3].map(|page| get(&mine, page)), [50, 11, 0, 13]);
        assert_eq!([1, 3].map(|page| get(&theirs, page)), [11, 13]);
    });
    assert_eq!(LOST.load(Ordering::SeqCst), 2);
    let shown = Group::quire(&["object", "stat", "grid"], &group.addresses[2]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("lost: 2"), "{text}");
    drop((client, elsewhere));
}

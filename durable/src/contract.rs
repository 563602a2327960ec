//! The promises of every store, as checks that panic if one is broken. They are for tests.

use std::sync::mpsc::channel;
use std::sync::Arc;

use tidemill_env::{Env, Handle};

use crate::Store;

/// Checks the promises of a [`Store`], except those about crashes. The store must be empty; objects
/// are left in it.
///
/// # Panics
/// If a promise is broken.
pub fn store(store: &Arc<dyn Store>) {
    assert_eq!(list(&**store, ""), [], "an empty list");
    assert_eq!(list(&**store, "a/"), []);
    check_objects(&**store);
    check_writers(&**store);
    check_lists(&**store);
    check_names(&**store);
    check_race(store);
}

fn list(store: &dyn Store, prefix: &str) -> Vec<(String, u64)> {
    let objects = store.list(prefix).expect("a list");
    objects.into_iter().map(|object| (object.name, object.len)).collect()
}

fn get(store: &dyn Store, name: &str) -> Option<Vec<u8>> {
    store.get(name).expect("an answer")
}

fn put(store: &dyn Store, name: &str, bytes: &[u8]) -> bool {
    store.put(name, bytes).expect("an answer")
}

fn check_objects(store: &dyn Store) {
    let name = "objects/one";
    assert_eq!(get(store, name), None);
    assert_eq!(store.get_range(name, 0, 1).expect("an answer"), None);
    assert_eq!(store.get_range(name, 0, 0).expect("an answer"), None);
    store.delete(name).expect("nothing to remove is fine");

    assert!(put(store, name, b"0123456789"), "there was none");
    assert_eq!(get(store, name).as_deref(), Some(&b"0123456789"[..]));
    for (from, len, expected) in [
        (0, 10, &b"0123456789"[..]),
        (3, 4, b"3456"),
        (8, 4, b"89"),
        (8, u64::MAX, b"89"),
        (10, 1, b""),
        (99, 9, b""),
        (4, 0, b""),
    ] {
        let range = store.get_range(name, from, len).expect("a range");
        assert_eq!(range.as_deref(), Some(expected), "{len} bytes from {from}");
    }
    assert!(put(store, "objects/empty", b""), "there was none");
    assert_eq!(get(store, "objects/empty").as_deref(), Some(&b""[..]));
    let range = store.get_range("objects/empty", 0, 5).expect("a range");
    assert_eq!(range.as_deref(), Some(&b""[..]));
    let large: Vec<u8> =
        (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert!(put(store, "objects/large", &large), "there was none");
    assert!(get(store, "objects/large").as_ref() == Some(&large), "all bytes of a large object");
    let range = store.get_range("objects/large", 1_000_001, 1_000_000).expect("a range");
    assert!(range.as_deref() == Some(&large[1_000_001..2_000_001]), "a part of a large object");

    assert!(!put(store, name, b"other"), "there is one");
    assert_eq!(get(store, name).as_deref(), Some(&b"0123456789"[..]), "it is not changed");
    store.delete(name).expect("the object is removed");
    assert_eq!(get(store, name), None);
    store.delete(name).expect("a second time is fine");
    assert!(put(store, name, b"again"), "there is none any more");
    assert_eq!(get(store, name).as_deref(), Some(&b"again"[..]));
}

fn check_writers(store: &dyn Store) {
    let name = "written/deep/down";
    let mut writer = store.create(name).expect("a writer");
    writer.write(b"one").expect("bytes are written");
    assert_eq!(get(store, name), None, "nothing can be seen before the end");
    assert_eq!(list(store, "written/"), []);
    writer.write(b", two").expect("bytes are written");
    assert!(writer.finish().expect("an answer"), "there was none");
    assert_eq!(get(store, name).as_deref(), Some(&b"one, two"[..]));

    let mut writer = store.create("written/never").expect("a writer");
    writer.write(b"one").expect("bytes are written");
    drop(writer);
    assert_eq!(list(store, "written/"), [(name.to_owned(), 8)]);

    // Two writers at a time, even of one name, do not mix.
    let mut first = store.create("written/two").expect("a writer");
    let mut second = store.create("written/two").expect("a writer");
    first.write(b"first").expect("bytes are written");
    second.write(b"second").expect("bytes are written");
    assert!(first.finish().expect("an answer"), "there was none");
    assert!(!second.finish().expect("an answer"), "there is one");
    assert_eq!(get(store, "written/two").as_deref(), Some(&b"first"[..]), "it is not changed");

    let empty = store.create("written/empty").expect("a writer");
    assert!(empty.finish().expect("an answer"), "there was none");
    assert_eq!(get(store, "written/empty").as_deref(), Some(&b""[..]));
}

fn check_lists(store: &dyn Store) {
    for name in ["lists/b", "lists/a/z", "lists/a/y", "lists/c", "lists-b/x", "lists/a-b"] {
        assert!(put(store, name, name.as_bytes()), "there was none");
    }
    let names = |prefix| list(store, prefix).into_iter().map(|(name, _)| name);
    let lists: Vec<String> = names("lists/").collect();
    assert_eq!(lists, ["lists/a-b", "lists/a/y", "lists/a/z", "lists/b", "lists/c"]);
    assert_eq!(list(store, "lists/a/"), [("lists/a/y".into(), 9), ("lists/a/z".into(), 9)]);
    assert_eq!(list(store, "list/"), []);
    assert!(names("").any(|name| name == "lists-b/x"));
    assert!(names("").is_sorted(), "sorted by the whole name");
    for bad in ["lists", "lists/a", "/", "../", "a//", ".a/"] {
        assert!(store.list(bad).is_err(), "{bad:?} is no prefix");
    }
}

fn check_names(store: &dyn Store) {
    for bad in ["", "/", "/a", "a/", "a//b", ".a", "..", "a/..", "a/../b", "a b", "ä"] {
        assert!(store.put(bad, b"").is_err(), "{bad:?} is no name");
        assert!(store.create(bad).is_err(), "{bad:?} is no name");
        assert!(store.get(bad).is_err(), "{bad:?} is no name");
        assert!(store.get_range(bad, 0, 1).is_err(), "{bad:?} is no name");
        assert!(store.delete(bad).is_err(), "{bad:?} is no name");
    }
}

/// Of several concurrent puts of a name, one succeeds.
fn check_race(store: &Arc<dyn Store>) {
    let threads = Env::real().threads;
    for round in 0..20 {
        let name = format!("race/{round}");
        let (send, receive) = channel();
        let puts: Vec<Handle> = (0..8u8)
            .map(|each| {
                let (store, name, send) = (store.clone(), name.clone(), send.clone());
                let body = move || {
                    let is_put = put(&*store, &name, &[each; 100]);
                    send.send((each, is_put)).expect("the receiver waits for all");
                };
                threads.spawn("race", Box::new(body)).expect("a thread")
            })
            .collect();
        drop(send);
        let winners: Vec<u8> =
            receive.iter().filter(|(_, is_put)| *is_put).map(|(each, _)| each).collect();
        for thread in puts {
            thread.join().expect("it has an answer");
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(get(&**store, &name), Some(vec![winners[0]; 100]));
    }
}

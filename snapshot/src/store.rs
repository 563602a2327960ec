//! A store of objects: names to bytes, put as a whole, never changed.
//!
//! The trait has only operations that both an object store in the cloud and a directory support: no
//! renames, no appends and no locks. It does not know the content of objects.

use tidemill_core::{Error, Result};

/// Objects by name.
///
/// **Names** are one or more segments joined by `/`. A segment consists of ASCII letters, digits,
/// `.`, `_` and `-`, and does not begin with a dot.
///
/// **An object exists as a whole or not at all**, for every reader and whenever the machine stops.
/// An object whose put has returned survives a crash. A put under a name that is taken replaces the
/// object as a whole; callers should not do that.
///
/// **After an error the result of a change is unknown**: it may have been made or not, and it may
/// still be made until the process ends. So names are not reused after a failure.
///
/// Errors have the kind `Io`, or `Resource` if the store is full. They name the object.
pub trait Store: Send + Sync {
    /// Puts an object.
    ///
    /// # Errors
    /// If the store fails, or is full.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Puts an object if there is none of that name. Otherwise it returns `false` and changes
    /// nothing. Of several callers at the same time one gets `true`.
    ///
    /// # Errors
    /// If the store fails, or is full.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<bool>;

    /// Puts an object piece by piece. It is invisible before [`finish`](ObjectWriter::finish).
    /// Dropping the writer abandons the object.
    ///
    /// # Errors
    /// If the store fails.
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>>;

    /// Returns the bytes of an object; `None` if there is none.
    ///
    /// # Errors
    /// If the store fails.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Returns `len` bytes of an object from the byte `from` on: fewer if it ends before. `None` if
    /// there is no such object.
    ///
    /// # Errors
    /// If the store fails.
    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>>;

    /// Returns all objects whose names begin with `prefix`, sorted by name. A prefix is empty or
    /// ends with `/`.
    ///
    /// # Errors
    /// If the store fails.
    fn list(&self, prefix: &str) -> Result<Vec<Object>>;

    /// Removes an object. A missing one is not an error.
    ///
    /// # Errors
    /// If the store fails.
    fn delete(&self, name: &str) -> Result<()>;
}

/// An object that is being put.
pub trait ObjectWriter: Send {
    /// Takes more bytes.
    ///
    /// # Errors
    /// If the store fails, or is full. The object can't be finished then.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Puts the object.
    ///
    /// # Errors
    /// If the store fails now or has failed before.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The name.
    pub name: String,
    /// The length in bytes.
    pub len: u64,
}

/// Refuses a text that is not a name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if !name.is_empty() && name.split('/').all(is_segment) {
        return Ok(());
    }
    Err(Error::internal(format!("{name:?} is not a name of an object")))
}

/// Whether a text is a valid segment of a name.
pub(crate) fn is_segment(segment: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !segment.is_empty() && !segment.starts_with('.') && segment.bytes().all(plain)
}

/// Checks the promises of a [`Store`], except those about crashes. The store must be empty; objects
/// are left in it.
///
/// # Panics
/// If a promise is broken.
pub fn check(store: &dyn Store) {
    assert_eq!(list(store, ""), [], "an empty list");
    assert_eq!(list(store, "a/"), []);
    check_objects(store);
    check_writers(store);
    check_lists(store);
    for bad in ["", "/a", "a/", "a//b", ".a", "a/..", "a b", "ä"] {
        assert!(store.put(bad, b"").is_err(), "{bad:?} is no name");
        assert!(store.create(bad).is_err(), "{bad:?} is no name");
    }
}

fn list(store: &dyn Store, prefix: &str) -> Vec<(String, u64)> {
    let objects = store.list(prefix).expect("a list");
    objects.into_iter().map(|object| (object.name, object.len)).collect()
}

fn get(store: &dyn Store, name: &str) -> Option<Vec<u8>> {
    store.get(name).expect("an answer")
}

fn check_objects(store: &dyn Store) {
    let name = "objects/one";
    assert_eq!(get(store, name), None);
    assert_eq!(store.get_range(name, 0, 1).expect("an answer"), None);
    store.delete(name).expect("nothing to remove is fine");

    store.put(name, b"0123456789").expect("the object is put");
    assert_eq!(get(store, name).as_deref(), Some(&b"0123456789"[..]));
    for (from, len, expected) in [
        (0, 10, &b"0123456789"[..]),
        (3, 4, b"3456"),
        (8, 4, b"89"),
        (10, 1, b""),
        (99, 9, b""),
        (4, 0, b""),
    ] {
        let range = store.get_range(name, from, len).expect("a range");
        assert_eq!(range.as_deref(), Some(expected), "{len} bytes from {from}");
    }
    store.put("objects/empty", b"").expect("the object is put");
    assert_eq!(get(store, "objects/empty").as_deref(), Some(&b""[..]));

    assert!(!store.put_if_absent(name, b"other").expect("an answer"), "there is one");
    assert_eq!(get(store, name).as_deref(), Some(&b"0123456789"[..]), "it is not changed");
    let other = "objects/other";
    assert!(store.put_if_absent(other, b"other").expect("an answer"), "there was none");
    assert_eq!(get(store, other).as_deref(), Some(&b"other"[..]));
    store.put(other, b"whole").expect("the object is put");
    assert_eq!(get(store, other).as_deref(), Some(&b"whole"[..]), "replaced as a whole");

    store.delete(other).expect("the object is removed");
    assert_eq!(get(store, other), None);
    assert!(store.put_if_absent(other, b"again").expect("an answer"), "there is none any more");
}

fn check_writers(store: &dyn Store) {
    let name = "written/deep/down";
    let mut writer = store.create(name).expect("a writer");
    writer.write(b"one").expect("bytes are written");
    assert_eq!(get(store, name), None, "nothing can be seen before the end");
    assert_eq!(list(store, "written/"), []);
    writer.write(b", two").expect("bytes are written");
    writer.finish().expect("the object is put");
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
    first.finish().expect("the object is put");
    assert_eq!(get(store, "written/two").as_deref(), Some(&b"first"[..]));
    second.finish().expect("the object is put");
    assert_eq!(get(store, "written/two").as_deref(), Some(&b"second"[..]));

    let empty = store.create("written/empty").expect("a writer");
    empty.finish().expect("the object is put");
    assert_eq!(get(store, "written/empty").as_deref(), Some(&b""[..]));
}

fn check_lists(store: &dyn Store) {
    for name in ["lists/b", "lists/a/z", "lists/a/y", "lists/c", "lists-b/x", "lists/a-b"] {
        store.put(name, name.as_bytes()).expect("the object is put");
    }
    let names = |prefix| list(store, prefix).into_iter().map(|(name, _)| name);
    let lists: Vec<String> = names("lists/").collect();
    assert_eq!(lists, ["lists/a-b", "lists/a/y", "lists/a/z", "lists/b", "lists/c"]);
    assert_eq!(names("lists/a/").collect::<Vec<_>>(), ["lists/a/y", "lists/a/z"]);
    assert_eq!(list(store, "lists/a/"), [("lists/a/y".into(), 9), ("lists/a/z".into(), 9)]);
    assert_eq!(list(store, "list/"), []);
    assert!(names("").any(|name| name == "lists-b/x"));
    assert!(names("").is_sorted(), "sorted by the whole name");
}

//! The shared storage of the processes of a cluster: logs, which keep records in order, and a store
//! of objects.
//!
//! Both are traits whose calls return at once. The answer comes through a callback. An
//! implementation calls it on its own threads, so a callback must be short and must not block.
//!
//! This crate must not know the meaning of records, their encoding, or the callers.

mod dir;
mod split_log;
mod trouble;

pub use dir::DirStore;
pub use split_log::SplitLog;
pub use tidemill_cluster::Records;
pub use trouble::Trouble;

use std::sync::Arc;

use tidemill_cluster::{Record, Refused, Topic};
use tidemill_core::Error;

/// A callback that is called once, from any thread.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;

/// A callback that is called once for each of several records, by its place among them, from any
/// thread.
pub type ThenEach = Arc<dyn Fn(usize, Result<u64, Refused>) + Send + Sync>;

/// Logs that all processes append to and read.
pub trait Log: Send + Sync {
    /// Appends a record durably, unless a later generation has begun in the topic. That is the case
    /// if a [`Record::Generation`] with a higher number is before it. If the record itself begins a
    /// generation, the same number is enough. Does not block.
    ///
    /// An append of outputs may succeed although it does not count for readers, because a later
    /// generation has begun before it in the topic. A generation begins in the cuts first. Appends
    /// to one topic are in the log in the order of the calls. If an append of a generation gets
    /// [`Refused::Unknown`], no later append of that generation is in the log without it.
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    );

    /// Appends several records to a topic, in their order. The callback gets the place of each
    /// among them.
    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        for (nth, record) in records.into_iter().enumerate() {
            let then = then.clone();
            self.append(topic, generation, record, Box::new(move |result| then(nth, result)));
        }
    }

    /// Reads from an offset. With a limit, it reads approximately that many records, where the
    /// requests in a record count separately. It answers as soon as there is a record, or without
    /// any after `wait_us` microseconds. Without a limit, it reads all that was there at the time
    /// of the call. Reading from [`u64::MAX`] finds only the end. The answer `None` means that the
    /// records could not be read now, and comes after a moment.
    ///
    /// Deleted cuts and outputs are left out when reading from 0. Otherwise missing records can't
    /// be read.
    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    );

    /// Allows records below an offset to be deleted, because they are not read again.
    fn trim(&self, topic: Topic, below: u64);

    /// Returns why nothing can be appended or read any more, if that is so. Then the process must
    /// end.
    fn failed(&self) -> Option<Error> {
        None
    }

    /// Returns the current trouble as text, while the log retries.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// Objects by name, stored as a whole and never changed.
///
/// Names are one or more segments joined by `/`. A segment consists of ASCII letters, digits, `.`,
/// `_` and `-`, and does not begin with a dot. Calls with other names fail.
pub trait Store: Send + Sync {
    /// Stores an object unless there is one of this name. `false` means that it is not stored, or
    /// that this is unknown.
    fn put(&self, name: String, bytes: Vec<u8>, then: Then<bool>);

    /// Reads an object. `None` means that it could not be read now. Only names that were put are
    /// requested.
    fn get(&self, name: String, then: Then<Option<Vec<u8>>>);

    /// Deletes an object, if it is there. `false` means that the outcome is unknown.
    fn delete(&self, name: String, then: Then<bool>);

    /// Lists the names with a prefix, sorted. `None` means that they could not be read now.
    fn list(&self, prefix: String, then: Then<Option<Vec<String>>>);

    /// Returns the current trouble as text, while the store retries.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// Whether a text is a valid name of an object.
pub fn is_name(name: &str) -> bool {
    let is_segment = |segment: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !segment.is_empty() && !segment.starts_with('.') && segment.bytes().all(fits)
    };
    name.split('/').all(is_segment)
}

/// The guarantees of every store, as checks that panic if one is broken. They are for tests, and
/// need an empty store.
pub mod contract {
    use std::sync::mpsc::channel;
    use std::sync::Arc;

    use crate::{Store, Then};

    /// Returns the answer of a call.
    fn ask<T: Send + 'static>(call: impl FnOnce(Then<T>)) -> T {
        let (send, receive) = channel();
        call(Box::new(move |answer| {
            let _ = send.send(answer);
        }));
        receive.recv().expect("an answer")
    }

    /// Checks the guarantees of [`Store`].
    ///
    /// # Panics
    /// If a guarantee is broken.
    pub fn store(store: &Arc<dyn Store>) {
        let put = |name: &str, bytes: &[u8]| ask(|then| store.put(name.into(), bytes.into(), then));
        let get = |name: &str| ask(|then| store.get(name.into(), then));
        let delete = |name: &str| ask(|then| store.delete(name.into(), then));
        let list = |prefix: &str| ask(|then| store.list(prefix.into(), then));

        assert_eq!(list(""), Some(vec![]), "nothing yet");
        assert!(put("b/x", b"one"), "a first object");
        assert!(!put("b/x", b"two"), "names are put once");
        assert_eq!(get("b/x"), Some(b"one".to_vec()));
        assert!(put("b/y", b""), "an empty object");
        assert_eq!(get("b/y"), Some(vec![]));
        let large: Vec<u8> =
            (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(put("a-b", &large));
        assert!(put("a/b", b"below"));
        assert_eq!(get("a-b"), Some(large));
        let all = ["a-b", "a/b", "b/x", "b/y"].map(String::from).to_vec();
        assert_eq!(list(""), Some(all), "sorted by name");
        assert_eq!(list("b/"), Some(vec!["b/x".into(), "b/y".into()]));
        assert_eq!(list("b/y"), Some(vec!["b/y".into()]), "a prefix ends anywhere");
        assert_eq!(list("a"), Some(vec!["a-b".into(), "a/b".into()]));
        assert_eq!(list("c/"), Some(vec![]));
        assert!(delete("b/x"));
        assert!(delete("b/x"), "a second time is fine");
        assert_eq!(get("b/x"), None);
        assert_eq!(list("b/"), Some(vec!["b/y".into()]));
        for wrong in ["", "/", "a//b", "/a", "a/", "..", "a/../b", ".hidden", "a b", "ä"] {
            assert!(!put(wrong, b"x"), "{wrong:?} is no name");
            assert_eq!(get(wrong), None);
            assert!(!delete(wrong));
        }

        // Of several concurrent puts, only one succeeds.
        for round in 0..20 {
            let name = format!("race/{round}");
            let (send, receive) = channel();
            for each in 0..8u8 {
                let send = send.clone();
                let then = Box::new(move |is_put| {
                    // The receiver waits for all of them, so it still exists.
                    let _ = send.send((each, is_put));
                });
                store.put(name.clone(), vec![each; 100], then);
            }
            drop(send);
            let winners: Vec<u8> =
                receive.iter().filter(|(_, is_put)| *is_put).map(|(each, _)| each).collect();
            assert_eq!(winners.len(), 1, "{winners:?}");
            assert_eq!(get(&name), Some(vec![winners[0]; 100]));
        }
    }
}

//! What the processes of a cluster share: logs, in which what has happened is in order, and a store of
//! objects.
//!
//! Both are traits of calls that return at once; the answer comes through a function that is handed over.
//! Whoever implements them runs threads of its own, and gives its answers there: what is handed over must
//! be short and must not block.
//!
//! This crate must not know what a record means, how it is written, or who asks.

mod apart;
mod dir;
mod trouble;

pub use apart::Apart;
pub use dir::DirStore;
pub use tidemill_cluster::Records;
pub use trouble::Trouble;

use std::sync::Arc;

use tidemill_cluster::{Record, Refused, Topic};
use tidemill_core::Error;

/// Told once, from any thread.
pub type Then<T> = Box<dyn FnOnce(T) + Send>;

/// Told once for each of several, by its place among them, from any thread.
pub type ThenEach = Arc<dyn Fn(usize, Result<u64, Refused>) + Send + Sync>;

/// Logs that all processes append to and read.
pub trait Log: Send + Sync {
    /// Appends durably, unless a later generation has begun in the topic: a [`Record::Generation`] with a
    /// higher number is before it, or with the same one, if it is such a record itself. Does not block. Of
    /// outputs the answer may be an offset although they do not count for who reads, because a later
    /// generation has begun before them: whoever begins one does so in the cuts first.
    /// Appends to one topic are in the log in the order of the calls. When one of a generation is
    /// answered [`Refused::Unknown`], no later one of that generation is in the log without it.
    fn append(
        &self,
        topic: Topic,
        generation: u64,
        record: Record,
        then: Then<Result<u64, Refused>>,
    );

    /// Appends several records to a topic, in their order, and tells of each by its place among them.
    fn append_all(&self, topic: Topic, generation: u64, records: Vec<Record>, then: ThenEach) {
        for (nth, record) in records.into_iter().enumerate() {
            let then = then.clone();
            self.append(topic, generation, record, Box::new(move |result| then(nth, result)));
        }
    }

    /// Reads from an offset on. With a limit: about so many at most, where many requests in one record count as
    /// many, as soon as there is one, or none after `wait_us`. Without: all that there was when it was asked; from [`u64::MAX`] on that is nothing, and it
    /// is found where the end is. `None`: could not be read now, which takes a moment.
    ///
    /// Of cuts and outputs those that have been deleted are left out where it reads from 0 on; elsewhere what
    /// is missing can't be read.
    fn read(
        &self,
        topic: Topic,
        from: u64,
        limit: Option<usize>,
        wait_us: u64,
        then: Then<Option<Records>>,
    );

    /// Records below are not read again.
    fn trim(&self, topic: Topic, below: u64);

    /// Why nothing can be appended or read any more, if that is so: then the process has to end.
    fn failed(&self) -> Option<Error> {
        None
    }

    /// What is wrong now, in words for people, while it is tried again.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// Objects by name, put as a whole and never changed.
///
/// Names are one or more segments joined by `/`; a segment is made of ASCII letters, digits, `.`, `_` and
/// `-`, and does not begin with a dot. Other names are answered as failures.
pub trait Store: Send + Sync {
    /// Puts an object unless there is one of this name. `false`: it is not stored, or nobody knows.
    fn put(&self, name: String, bytes: Vec<u8>, then: Then<bool>);

    /// Gets an object. `None`: could not be read now. Names are never asked for that were not put.
    fn get(&self, name: String, then: Then<Option<Vec<u8>>>);

    /// Deletes an object; one that is not there is fine. `false`: nobody knows.
    fn delete(&self, name: String, then: Then<bool>);

    /// The names that begin so, sorted. `None`: could not be read now.
    fn list(&self, prefix: String, then: Then<Option<Vec<String>>>);

    /// What is wrong now, in words for people, while it is tried again.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// Whether something is a name of an object.
pub fn is_name(name: &str) -> bool {
    let is_segment = |segment: &str| {
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !segment.is_empty() && !segment.starts_with('.') && segment.bytes().all(fits)
    };
    name.split('/').all(is_segment)
}

/// What every store promises, as checks that panic where a promise is broken. For tests: the store must be
/// empty.
pub mod contract {
    use std::sync::mpsc::channel;
    use std::sync::Arc;

    use crate::{Store, Then};

    /// What an answer is, when it has come.
    fn ask<T: Send + 'static>(call: impl FnOnce(Then<T>)) -> T {
        let (send, receive) = channel();
        call(Box::new(move |answer| {
            let _ = send.send(answer);
        }));
        receive.recv().expect("an answer")
    }

    /// Checks what [`Store`] promises.
    ///
    /// # Panics
    /// Where a promise is broken.
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

        // Of several at the same time one puts.
        for round in 0..20 {
            let name = format!("race/{round}");
            let (send, receive) = channel();
            for each in 0..8u8 {
                let send = send.clone();
                let then = Box::new(move |is_put| {
                    // Whoever waits for all of them has not gone.
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

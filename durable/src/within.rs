//! A part of a store, by a prefix of its names.

use std::sync::Arc;

use tidemill_core::Result;

use crate::{Object, ObjectWriter, Store};

/// The objects of another store whose names begin with a prefix, by the rest of their names.
pub struct Within {
    store: Arc<dyn Store>,
    /// The prefix, with a slash at its end.
    prefix: String,
}

impl Within {
    /// Creates the part with the names below one name.
    pub fn new(store: Arc<dyn Store>, name: &str) -> Within {
        Within { store, prefix: format!("{name}/") }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Store for Within {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        self.store.put(&self.name(name), bytes)
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.store.create(&self.name(name))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.store.get(&self.name(name))
    }

    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>> {
        self.store.get_range(&self.name(name), from, len)
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        let mut found = self.store.list(&self.name(prefix))?;
        for object in &mut found {
            object.name.drain(..self.prefix.len());
        }
        Ok(found)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.store.delete(&self.name(name))
    }

    fn trouble(&self) -> Option<String> {
        self.store.trouble()
    }
}

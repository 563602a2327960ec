//! Objects in memory.

use std::collections::btree_map::Entry;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidemill_core::Result;

use crate::store::{check_name, name_of_prefix, Object, ObjectWriter, Store};

/// A store in memory, for data that need not last. Clones share the objects.
#[derive(Clone, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<BTreeMap<String, Arc<[u8]>>>>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn find(&self, name: &str) -> Result<Option<Arc<[u8]>>> {
        check_name(name)?;
        Ok(self.objects.lock().get(name).cloned())
    }
}

impl Store for MemoryStore {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        check_name(name)?;
        match self.objects.lock().entry(name.to_owned()) {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(entry) => {
                entry.insert(bytes.into());
                Ok(true)
            }
        }
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        check_name(name)?;
        let writer = MemoryWriter { store: self.clone(), name: name.to_owned(), bytes: Vec::new() };
        Ok(Box::new(writer))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.find(name)?.map(|bytes| bytes.to_vec()))
    }

    fn get_range(&self, name: &str, from: u64, len: u64) -> Result<Option<Vec<u8>>> {
        Ok(self.find(name)?.map(|bytes| {
            let from = bytes.len().min(usize::try_from(from).unwrap_or(usize::MAX));
            let rest = &bytes[from..];
            rest[..rest.len().min(usize::try_from(len).unwrap_or(usize::MAX))].to_vec()
        }))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Object>> {
        name_of_prefix(prefix)?;
        let objects = self.objects.lock();
        let found = objects.range(prefix.to_owned()..);
        let found = found.take_while(|(name, _)| name.starts_with(prefix));
        Ok(found
            .map(|(name, bytes)| Object { name: name.clone(), len: bytes.len() as u64 })
            .collect())
    }

    fn delete(&self, name: &str) -> Result<()> {
        check_name(name)?;
        self.objects.lock().remove(name);
        Ok(())
    }
}

struct MemoryWriter {
    store: MemoryStore,
    name: String,
    bytes: Vec<u8>,
}

impl ObjectWriter for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<bool> {
        self.store.put(&self.name, &self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_the_contract() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        crate::contract::store(&store);
        let other = format!("{}/z", "a");
        let within: Arc<dyn Store> = Arc::new(crate::Within::new(store.clone(), "within"));
        assert!(store.put(&other, b"beside").unwrap());
        crate::contract::store(&within);
    }
}

//! Values by key, found by hash, and iterated in key order where needed.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::OnceLock;

use foldhash::fast::FixedState;
use tidemill_core::Key;

/// Values by key. Most are only looked up, and a hash does this in a third of the time. The order
/// of the keys is built at its first use, and maintained from then on.
#[derive(Clone, Debug)]
pub(crate) struct Keyed<V> {
    values: HashMap<Key, V, FixedState>,
    order: OnceLock<BTreeSet<Key>>,
}

impl<V> Default for Keyed<V> {
    fn default() -> Keyed<V> {
        Keyed { values: HashMap::default(), order: OnceLock::new() }
    }
}

impl<V> Keyed<V> {
    pub fn get(&self, key: &Key) -> Option<&V> {
        self.values.get(key)
    }

    pub fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        self.values.get_mut(key)
    }

    /// Returns the value of a key, and inserts a default if there is none.
    pub fn entry(&mut self, key: Key) -> &mut V
    where
        V: Default,
    {
        if self.order.get().is_some() && !self.values.contains_key(&key) {
            self.ordered(&key);
        }
        self.values.entry(key).or_default()
    }

    pub fn remove(&mut self, key: &Key) {
        if self.values.remove(key).is_some() {
            if let Some(order) = self.order.get_mut() {
                order.remove(key);
            }
        }
    }

    /// Removes and returns all values, in no order.
    pub fn take(&mut self) -> impl Iterator<Item = (Key, V)> {
        std::mem::take(self).values.into_iter()
    }

    /// Returns the values from one key up to but without another, in key order.
    pub fn range<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl DoubleEndedIterator<Item = (&'a Key, &'a V)> + 'a {
        let order = self.order.get_or_init(|| self.values.keys().cloned().collect());
        // A `BTreeSet` panics on a range that ends before it begins.
        let to = to.max(from);
        let keys = order.range::<Key, _>((Bound::Included(from), Bound::Excluded(to)));
        keys.map(|key| (key, &self.values[key]))
    }

    fn ordered(&mut self, key: &Key) {
        if let Some(order) = self.order.get_mut() {
            order.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tidemill_core::Value;

    use super::*;

    fn key(n: u8) -> Key {
        Key::of(&[Value::Int(n.into())])
    }

    proptest! {
        #[test]
        fn it_is_a_map_in_order(steps in prop::collection::vec((0u8..4, 0u8..20, 0u8..20), 0..60)) {
            let (mut keyed, mut map) = (Keyed::<u8>::default(), BTreeMap::new());
            for (what, a, b) in steps {
                match what {
                    0 => {
                        *keyed.entry(key(a)) = b;
                        map.insert(key(a), b);
                    }
                    1 => {
                        keyed.remove(&key(a));
                        map.remove(&key(a));
                    }
                    2 => {
                        *keyed.entry(key(a)) += b;
                        *map.entry(key(a)).or_default() += b;
                    }
                    _ => {
                        let (from, to) = (key(a.min(b)), key(a.max(b)));
                        let range = (Bound::Included(&from), Bound::Excluded(&to));
                        prop_assert!(keyed.range(&from, &to).eq(map.range::<Key, _>(range)));
                        let (keyed, map) = (keyed.range(&from, &to), map.range::<Key, _>(range));
                        prop_assert!(keyed.rev().eq(map.rev()));
                    }
                }
                prop_assert_eq!(keyed.get(&key(a)), map.get(&key(a)));
                prop_assert_eq!(keyed.values.iter().collect::<BTreeMap<_, _>>(), map.iter().collect());
            }
        }
    }
}

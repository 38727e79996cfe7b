//! The result of a list request: a snapshot, whose compressed objects are decompressed one block at a time.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::block::{BlockRows, ObjectBlock};
use super::cold_objects::BlockBits;
use super::{ObjectKey, StoredObject};

/// Objects in the order of their keys, as a snapshot.
#[derive(Debug, Clone, Default)]
pub struct ObjectList {
    pub revision: u64,
    /// In order.
    pub(super) warm: Vec<Arc<StoredObject>>,
    /// In order, with the bits of the objects at that time.
    pub(super) cold: Vec<(Arc<ObjectBlock>, BlockBits)>,
    /// The selected part of `cold`.
    pub(super) scope: ListScope,
}

/// Blocks may extend beyond the requested range.
#[derive(Debug, Clone, Default)]
pub(super) struct ListScope {
    pub(super) resource: Option<Arc<str>>,
    pub(super) namespace: Option<Arc<str>>,
    /// ... but for these.
    pub(super) excluded: BTreeSet<ObjectKey>,
}

/// The objects of a [`ObjectList`].
#[derive(Debug, Clone)]
pub struct ObjectListIter {
    warm: Peekable<vec::IntoIter<Arc<StoredObject>>>,
    cold: Peekable<ColdObjectIter>,
}

#[derive(Debug, Clone)]
struct ColdObjectIter {
    blocks: vec::IntoIter<(Arc<ObjectBlock>, BlockBits)>,
    rows: BlockRows,
    /// The bits of the remaining rows, the next in the lowest bit.
    present: BlockBits,
    within: ListScope,
    last: Option<ObjectKey>,
}

impl ObjectList {
    /// All at once: for kinds with few objects.
    #[must_use]
    pub fn items(self) -> Vec<Arc<StoredObject>> {
        self.into_iter().collect()
    }

    /// The objects; can be called again.
    #[must_use]
    pub fn iter(&self) -> ObjectListIter {
        self.clone().into_iter()
    }
}

impl IntoIterator for &ObjectList {
    type Item = Arc<StoredObject>;
    type IntoIter = ObjectListIter;

    fn into_iter(self) -> ObjectListIter {
        self.iter()
    }
}

impl IntoIterator for ObjectList {
    type Item = Arc<StoredObject>;
    type IntoIter = ObjectListIter;

    fn into_iter(self) -> ObjectListIter {
        let (blocks, within) = (self.cold.into_iter(), self.scope);
        let cold = ColdObjectIter { blocks, rows: BlockRows::default(), present: 0, within, last: None };
        ObjectListIter { warm: self.warm.into_iter().peekable(), cold: cold.peekable() }
    }
}

impl Iterator for ObjectListIter {
    type Item = Arc<StoredObject>;

    fn next(&mut self) -> Option<Arc<StoredObject>> {
        let Some(cold) = self.cold.peek() else { return self.warm.next() };
        match self.warm.next_if(|warm| warm.key < cold.key) {
            Some(warm) => Some(warm),
            None => self.cold.next(),
        }
    }
}

impl ListScope {
    /// The smallest key of the range.
    pub(super) fn first(&self) -> ObjectKey {
        let word = |word: &Option<Arc<str>>| word.clone().unwrap_or_else(|| "".into());
        ObjectKey { resource: word(&self.resource), namespace: word(&self.namespace), name: "".into() }
    }

    /// Whether a block with this first key may overlap the range, around [`Within::first`] or after it.
    pub(super) fn may_contain(&self, begins: &ObjectKey) -> bool {
        let behind = (self.resource.as_deref().unwrap_or(""), self.namespace.as_deref());
        let at = (&*begins.resource, self.namespace.as_ref().map(|_| &*begins.namespace));
        at <= behind
    }

    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        self.resource.as_ref().is_none_or(|resource| *resource == key.resource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && !self.excluded.contains(key)
    }
}

impl Iterator for ColdObjectIter {
    type Item = Arc<StoredObject>;

    fn next(&mut self) -> Option<Arc<StoredObject>> {
        loop {
            for row in self.rows.by_ref() {
                let is_there = self.present & 1 != 0;
                self.present >>= 1;
                if !is_there {
                    continue;
                }
                let object = row.to_object(self.last.as_ref());
                self.last = Some(object.key.clone());
                if self.within.contains(&object.key) {
                    return Some(object);
                }
            }
            let (block, there) = self.blocks.next()?;
            (self.rows, self.present) = (block.rows(), there);
        }
    }
}

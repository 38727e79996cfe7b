//! What a list request saw: a moment, of which the sleepers are unfolded one block at a time.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::block::{Block, Rows};
use super::cold::Bits;
use super::{Key, Stored};

/// Objects in the order of their keys, as of one moment, whatever is written later.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    pub revision: u64,
    /// In order.
    pub(super) warm: Vec<Arc<Stored>>,
    /// In order, with the bits of those that were there.
    pub(super) cold: Vec<(Arc<Block>, Bits)>,
    /// What of `cold` is meant.
    pub(super) within: Within,
}

/// Blocks may reach over the ends of what is asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Within {
    pub(super) resource: Option<Arc<str>>,
    pub(super) namespace: Option<Arc<str>>,
    /// ... but for these.
    pub(super) without: BTreeSet<Key>,
}

/// The objects of a [`Listing`].
#[derive(Debug, Clone)]
pub struct Items {
    warm: Peekable<vec::IntoIter<Arc<Stored>>>,
    cold: Peekable<Sleepers>,
}

#[derive(Debug, Clone)]
struct Sleepers {
    blocks: vec::IntoIter<(Arc<Block>, Bits)>,
    rows: Rows,
    /// Of the rows that are still to come, the next in the lowest bit.
    there: Bits,
    within: Within,
    last: Option<Key>,
}

impl Listing {
    /// All at once: for kinds of which there are few.
    #[must_use]
    pub fn items(self) -> Vec<Arc<Stored>> {
        self.into_iter().collect()
    }

    /// The objects; may be asked for again.
    #[must_use]
    pub fn iter(&self) -> Items {
        self.clone().into_iter()
    }
}

impl IntoIterator for &Listing {
    type Item = Arc<Stored>;
    type IntoIter = Items;

    fn into_iter(self) -> Items {
        self.iter()
    }
}

impl IntoIterator for Listing {
    type Item = Arc<Stored>;
    type IntoIter = Items;

    fn into_iter(self) -> Items {
        let (blocks, within) = (self.cold.into_iter(), self.within);
        let cold = Sleepers { blocks, rows: Rows::default(), there: 0, within, last: None };
        Items { warm: self.warm.into_iter().peekable(), cold: cold.peekable() }
    }
}

impl Iterator for Items {
    type Item = Arc<Stored>;

    fn next(&mut self) -> Option<Arc<Stored>> {
        let Some(cold) = self.cold.peek() else { return self.warm.next() };
        match self.warm.next_if(|warm| warm.key < cold.key) {
            Some(warm) => Some(warm),
            None => self.cold.next(),
        }
    }
}

impl Within {
    /// The key that comes before all of it.
    pub(super) fn first(&self) -> Key {
        let word = |word: &Option<Arc<str>>| word.clone().unwrap_or_else(|| "".into());
        Key { resource: word(&self.resource), namespace: word(&self.namespace), name: "".into() }
    }

    /// Whether a block that begins with this key, behind [`Within::first`] or around it, may reach into it.
    pub(super) fn may_have(&self, begins: &Key) -> bool {
        let behind = (self.resource.as_deref().unwrap_or(""), self.namespace.as_deref());
        let at = (&*begins.resource, self.namespace.as_ref().map(|_| &*begins.namespace));
        at <= behind
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.resource.as_ref().is_none_or(|resource| *resource == key.resource)
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && !self.without.contains(key)
    }
}

impl Iterator for Sleepers {
    type Item = Arc<Stored>;

    fn next(&mut self) -> Option<Arc<Stored>> {
        loop {
            for row in self.rows.by_ref() {
                let is_there = self.there & 1 != 0;
                self.there >>= 1;
                if !is_there {
                    continue;
                }
                let object = row.stored(self.last.as_ref());
                self.last = Some(object.key.clone());
                if self.within.has(&object.key) {
                    return Some(object);
                }
            }
            let (block, there) = self.blocks.next()?;
            (self.rows, self.there) = (block.rows(), there);
        }
    }
}

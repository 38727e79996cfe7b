//! What a cache holds: objects open or packed; and where it finds what our own store has anyway.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use dataplane::heap;
use kube::Resource;
use serde::Serialize;

use super::source::Home;
use super::{Key, joined, stored_key};
use crate::packed::{Samples, Text};
use crate::store::{self, Reader, Stored};

/// Stands between words. No name holds it, and it comes before all that names hold, so that keys are in the order of their words.
pub(super) const SEAM: &str = "\0";

/// What some objects of a namespace are found by, beside their names.
pub(super) type Words<K> = fn(&K) -> Vec<String>;

/// Objects of one kind that stay open, at 4 KiB each: twice as many as are in work at once.
pub(super) const OPEN_MAX: usize = 64;

pub(super) type Open<K> = fn(&[u8]) -> serde_json::Result<K>;

#[derive(Debug)]
pub(super) struct Kept<K> {
    /// By namespace and name. What has a `home` is here while it is open.
    pub(super) objects: BTreeMap<Key, Slot<K>>,
    words: Option<Words<K>>,
    /// Word, namespace and name: a look at one object must not go through all the others.
    pub(super) names: BTreeSet<Key>,
    pub(super) open: Open<K>,
    packer: Option<Packer<K>>,
    /// Where sleepers are that our own store has.
    pub(super) home: Option<Home>,
    /// The version of our own store that this is, if it comes from there.
    pub(super) reached: Option<Reader>,
}

#[derive(Debug)]
pub(super) enum Slot<K> {
    Open(Arc<K>),
    Packed(Text),
}

/// What a slot holds, to be opened when nobody waits for the cache.
pub(super) enum Sight<K> {
    Open(Arc<K>),
    Stored(Arc<Stored>),
    Text(Bytes),
}

/// How objects are packed that nobody asks for.
#[derive(Debug)]
pub(super) struct Packer<K> {
    /// `None`: stays open.
    pack: fn(&K, &Samples<()>) -> Option<Text>,
    samples: Samples<()>,
    /// Who was opened, the oldest first. Who was packed or deleted since is passed over.
    opened: VecDeque<Key>,
}

/// How a slot is made of what a store has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Maker<K> {
    words: Option<Words<K>>,
    open: Open<K>,
    stays_open: bool,
}

impl<K: Resource + Serialize> Default for Packer<K> {
    fn default() -> Self {
        let pack = |object: &K, samples: &Samples<()>| {
            serde_json::to_vec(object).ok().map(|json| samples.pack(&(), &[], &json))
        };
        Self { pack, samples: Samples::default(), opened: VecDeque::new() }
    }
}

impl<K> Slot<K> {
    pub(super) fn sight(&self) -> Sight<K> {
        match self {
            Self::Open(object) => Sight::Open(Arc::clone(object)),
            Self::Packed(text) => Sight::Text(text.bytes(&[])),
        }
    }
}

impl<K> Sight<K> {
    pub(super) fn open(self, open: Open<K>) -> Option<Arc<K>> {
        match self {
            Self::Open(object) => Some(object),
            Self::Stored(stored) => read(&stored, open),
            Self::Text(json) => open(&json).ok().map(Arc::new), // it was written by what reads it
        }
    }
}

/// An object that cannot be read is as good as none: admission lets none in, but an earlier version's may have.
pub(super) fn read<K>(stored: &Stored, open: Open<K>) -> Option<Arc<K>> {
    let opened = open(&stored.json()).inspect_err(|why| {
        let store::Key { resource, namespace, name } = &stored.key;
        tracing::error!(
            %resource, %namespace, %name, %why,
            "an object is passed over because it does not read as one of its kind; replace or delete it"
        );
    });
    opened.ok().map(Arc::new)
}

impl<K> Maker<K> {
    /// Whether it takes reading an object to make its slot.
    pub(super) fn reads(&self) -> bool {
        self.stays_open || self.words.is_some()
    }

    /// An object's key, the words that it is found by, and its slot if it stays open.
    pub(super) fn make(&self, stored: &Stored) -> Option<(Key, Vec<String>, Option<Slot<K>>)> {
        let object = read(stored, self.open)?;
        let words = self.words.map(|words| words(&object)).unwrap_or_default();
        Some((stored_key(stored), words, self.stays_open.then_some(Slot::Open(object))))
    }
}

impl<K> Kept<K> {
    pub(super) fn new(words: Option<Words<K>>, open: Open<K>, packer: Option<Packer<K>>) -> Self {
        let (objects, names) = (BTreeMap::new(), BTreeSet::new());
        Self { objects, words, names, open, packer, home: None, reached: None }
    }

    pub(super) fn maker(&self) -> Maker<K> {
        Maker { words: self.words, open: self.open, stays_open: self.packer.is_none() }
    }

    /// `home` is where the objects come from.
    pub(super) fn fill(
        &mut self,
        home: &Home,
        objects: Vec<(Key, Slot<K>)>,
        names: Vec<Key>,
        reached: Reader,
    ) {
        self.home = self.packer.is_some().then(|| home.clone());
        self.objects = objects.into_iter().collect();
        self.names = names.into_iter().collect();
        self.reached = Some(reached);
    }

    /// Forgets what is open, and what all are found by for `names`.
    pub(super) fn begin_again(&mut self, names: Vec<Key>) {
        self.objects.clear();
        self.names = names.into_iter().collect();
    }

    /// What follows `first` in the names that begin with it.
    pub(super) fn found(&self, first: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(first), Bound::Unbounded);
        self.names.range::<str, _>(from).map_while(move |key| key.strip_prefix(first))
    }

    /// Somebody works with it: it stays open for a while.
    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<K>> {
        if let Some(Slot::Open(object)) = self.objects.get(key) {
            return Some(Arc::clone(object));
        }
        let object = self.look(key)?;
        self.put(key.clone(), Arc::clone(&object));
        Some(object)
    }

    /// It is as it is afterwards.
    pub(super) fn look(&self, key: &str) -> Option<Arc<K>> {
        self.sight(key)?.open(self.open)
    }

    pub(super) fn sight(&self, key: &str) -> Option<Sight<K>> {
        if let Some(slot) = self.objects.get(key) {
            return Some(slot.sight());
        }
        let (namespace, name) = key.split_once(SEAM)?;
        self.home.as_ref()?.get(namespace, name).map(Sight::Stored)
    }

    /// Keeps an object open, and packs who was so for the longest time.
    fn put(&mut self, key: Key, object: Arc<K>) {
        let before = self.objects.insert(key.clone(), Slot::Open(object));
        if let Some(packer) = &mut self.packer
            && !matches!(before, Some(Slot::Open(..)))
        {
            packer.opened.push_back(key);
        }
        self.close(OPEN_MAX);
    }

    /// Until no more than so many are open.
    pub(super) fn close(&mut self, open_max: usize) {
        let Some(packer) = &mut self.packer else { return };
        while packer.opened.len() > open_max {
            let Some(key) = packer.opened.pop_front() else { break };
            if self.home.is_some() {
                self.objects.remove(&key);
                continue;
            }
            let Some(slot) = self.objects.get_mut(&key) else { continue };
            let Slot::Open(object) = slot else { continue };
            if let Some(packed) = (packer.pack)(object, &packer.samples) {
                *slot = Slot::Packed(packed);
            }
        }
    }

    /// Takes in an object in the place of what is known of it here; answers that.
    pub(super) fn insert(&mut self, key: Key, object: Arc<K>) -> Option<Arc<K>> {
        let before = self.objects.get(&key).and_then(|slot| slot.sight().open(self.open));
        self.change(key, before.as_ref(), object);
        before
    }

    /// Takes in an object in the place of `before`.
    pub(super) fn change(&mut self, key: Key, before: Option<&Arc<K>>, object: Arc<K>) {
        if let Some(before) = before {
            self.unlist(&key, before);
        }
        let words = self.words_of(&object);
        {
            let _stays = heap::stays();
            self.names.extend(words.iter().map(|word| joined([word, &key])));
        }
        self.put(key, object);
    }

    /// Drops what is known of an object here; answers that.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<K>> {
        let before = self.objects.remove(key)?.sight().open(self.open)?;
        self.unlist(key, &before);
        Some(before)
    }

    /// Drops an object that was this one.
    pub(super) fn drop_it(&mut self, key: &Key, before: &K) {
        self.objects.remove(key);
        self.unlist(key, before);
    }

    fn unlist(&mut self, key: &Key, object: &K) {
        for word in self.words_of(object) {
            self.names.remove(&joined([&word, key]));
        }
    }

    fn words_of(&self, object: &K) -> Vec<String> {
        self.words.map(|words| words(object)).unwrap_or_default()
    }
}

//! The content of a cache: decoded or compressed objects, or references to our own store.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use contract::allocator;
use kube::Resource;
use serde::Serialize;

use super::source::BackingStore;
use super::{CacheKey, join_key, stored_key};
use apiserver::store::{self, ChangeReader, StoredObject};
use support::compressed::{CompressedText, DictionaryCache};

/// Stands between words. No name holds it, and it comes before all that names hold, so that keys are in the order of their words.
pub(super) const KEY_SEPARATOR: &str = "\0";

/// The index of some objects of a namespace, besides their names.
pub(super) type IndexFn<K> = fn(&K) -> Vec<String>;

/// Objects of one kind that stay open, at 4 KiB each: twice as many as are in work at once.
pub(super) const DECODED_MAX: usize = 64;

pub(super) type DecodeFn<K> = fn(&[u8]) -> serde_json::Result<K>;

#[derive(Debug)]
pub(super) struct CacheState<K> {
    /// Objects by namespace and name. One with a `home` is here while it is decoded.
    pub(super) slots: BTreeMap<CacheKey, CacheSlot<K>>,
    index_fn: Option<IndexFn<K>>,
    /// Word, namespace and name: a look at one object must not go through all the others.
    pub(super) index: BTreeSet<CacheKey>,
    pub(super) decode: DecodeFn<K>,
    compressor: Option<ObjectCompressor<K>>,
    /// Where the objects are that our own store has.
    pub(super) backing_store: Option<BackingStore>,
    /// The version of our own store that this is, if it comes from there.
    pub(super) change_reader: Option<ChangeReader>,
}

#[derive(Debug)]
pub(super) enum CacheSlot<K> {
    Decoded(Arc<K>),
    Compressed(CompressedText),
}

/// The content of a slot, to be decoded after the cache is unlocked.
pub(super) enum CachedObject<K> {
    Decoded(Arc<K>),
    Stored(Arc<StoredObject>),
    Text(Bytes),
}

/// How objects that are not in use are compressed.
#[derive(Debug)]
pub(super) struct ObjectCompressor<K> {
    /// `None`: stays open.
    compress: fn(&K, &DictionaryCache<()>) -> Option<CompressedText>,
    dictionaries: DictionaryCache<()>,
    /// The decoded objects, the oldest first. Those that were compressed or deleted since are skipped.
    decoded_order: VecDeque<CacheKey>,
}

/// How a slot is made of what a store has.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotBuilder<K> {
    index_fn: Option<IndexFn<K>>,
    decode: DecodeFn<K>,
    stays_decoded: bool,
}

impl<K: Resource + Serialize> Default for ObjectCompressor<K> {
    fn default() -> Self {
        let pack = |object: &K, samples: &DictionaryCache<()>| {
            serde_json::to_vec(object).ok().map(|json| samples.compress(&(), &[], &json))
        };
        Self { compress: pack, dictionaries: DictionaryCache::default(), decoded_order: VecDeque::new() }
    }
}

impl<K> CacheSlot<K> {
    pub(super) fn snapshot(&self) -> CachedObject<K> {
        match self {
            Self::Decoded(object) => CachedObject::Decoded(Arc::clone(object)),
            Self::Compressed(text) => CachedObject::Text(text.bytes(&[])),
        }
    }
}

impl<K> CachedObject<K> {
    pub(super) fn decode(self, open: DecodeFn<K>) -> Option<Arc<K>> {
        match self {
            Self::Decoded(object) => Some(object),
            Self::Stored(stored) => decode_stored(&stored, open),
            Self::Text(json) => open(&json).ok().map(Arc::new), // it was written by what reads it
        }
    }
}

/// An invalid object counts as missing: admission lets none in, but an earlier version's may have.
pub(super) fn decode_stored<K>(stored: &StoredObject, open: DecodeFn<K>) -> Option<Arc<K>> {
    let opened = open(&stored.json()).inspect_err(|why| {
        let store::ObjectKey { resource, namespace, name } = &stored.key;
        tracing::error!(
            %resource, %namespace, %name, %why,
            "an object is passed over because it does not read as one of its kind; replace or delete it"
        );
    });
    opened.ok().map(Arc::new)
}

impl<K> SlotBuilder<K> {
    /// Whether it takes reading an object to make its slot.
    pub(super) fn needs_decode(&self) -> bool {
        self.stays_decoded || self.index_fn.is_some()
    }

    /// An object's key, the words that it is found by, and its slot if it stays open.
    pub(super) fn build(&self, stored: &StoredObject) -> Option<(CacheKey, Vec<String>, Option<CacheSlot<K>>)> {
        let object = decode_stored(stored, self.decode)?;
        let words = self.index_fn.map(|words| words(&object)).unwrap_or_default();
        Some((stored_key(stored), words, self.stays_decoded.then_some(CacheSlot::Decoded(object))))
    }
}

impl<K> CacheState<K> {
    pub(super) fn new(words: Option<IndexFn<K>>, open: DecodeFn<K>, compressor_: Option<ObjectCompressor<K>>) -> Self {
        let (objects, names) = (BTreeMap::new(), BTreeSet::new());
        Self {
            slots: objects,
            index_fn: words,
            index: names,
            decode: open,
            compressor: compressor_,
            backing_store: None,
            change_reader: None,
        }
    }

    pub(super) fn slot_builder(&self) -> SlotBuilder<K> {
        SlotBuilder { index_fn: self.index_fn, decode: self.decode, stays_decoded: self.compressor.is_none() }
    }

    /// `home` is where the objects come from.
    pub(super) fn fill(
        &mut self,
        home: &BackingStore,
        objects: Vec<(CacheKey, CacheSlot<K>)>,
        names: Vec<CacheKey>,
        reached: ChangeReader,
    ) {
        self.backing_store = self.compressor.is_some().then(|| home.clone());
        self.slots = objects.into_iter().collect();
        self.index = names.into_iter().collect();
        self.change_reader = Some(reached);
    }

    /// Forgets what is open, and what all are found by for `names`.
    pub(super) fn reset(&mut self, names: Vec<CacheKey>) {
        self.slots.clear();
        self.index = names.into_iter().collect();
    }

    /// The objects whose names begin with the prefix, after `first`.
    pub(super) fn index_entries(&self, first: &str) -> impl Iterator<Item = &str> {
        let from = (Bound::Included(first), Bound::Unbounded);
        self.index.range::<str, _>(from).map_while(move |key| key.strip_prefix(first))
    }

    /// It is in use: it stays decoded for a while.
    pub(super) fn get(&mut self, key: &CacheKey) -> Option<Arc<K>> {
        if let Some(CacheSlot::Decoded(object)) = self.slots.get(key) {
            return Some(Arc::clone(object));
        }
        let object = self.peek(key)?;
        self.insert_decoded(key.clone(), Arc::clone(&object));
        Some(object)
    }

    /// It is as it is afterwards.
    pub(super) fn peek(&self, key: &str) -> Option<Arc<K>> {
        self.snapshot(key)?.decode(self.decode)
    }

    pub(super) fn snapshot(&self, key: &str) -> Option<CachedObject<K>> {
        if let Some(slot) = self.slots.get(key) {
            return Some(slot.snapshot());
        }
        let (namespace, name) = key.split_once(KEY_SEPARATOR)?;
        self.backing_store.as_ref()?.get(namespace, name).map(CachedObject::Stored)
    }

    /// Keeps an object decoded, and compresses the one that was decoded for the longest time.
    fn insert_decoded(&mut self, key: CacheKey, object: Arc<K>) {
        let before = self.slots.insert(key.clone(), CacheSlot::Decoded(object));
        if let Some(compressor_) = &mut self.compressor
            && !matches!(before, Some(CacheSlot::Decoded(..)))
        {
            compressor_.decoded_order.push_back(key);
        }
        self.compress_down_to(DECODED_MAX);
    }

    /// Until no more than so many are open.
    pub(super) fn compress_down_to(&mut self, open_max: usize) {
        let Some(compressor_) = &mut self.compressor else { return };
        while compressor_.decoded_order.len() > open_max {
            let Some(key) = compressor_.decoded_order.pop_front() else { break };
            if self.backing_store.is_some() {
                self.slots.remove(&key);
                continue;
            }
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            let CacheSlot::Decoded(object) = slot else { continue };
            if let Some(packed) = (compressor_.compress)(object, &compressor_.dictionaries) {
                *slot = CacheSlot::Compressed(packed);
            }
        }
    }

    /// Takes in an object in the place of what is known of it here; answers that.
    pub(super) fn insert(&mut self, key: CacheKey, object: Arc<K>) -> Option<Arc<K>> {
        let before = self.slots.get(&key).and_then(|slot| slot.snapshot().decode(self.decode));
        self.replace(key, before.as_ref(), object);
        before
    }

    /// Takes in an object in the place of `before`.
    pub(super) fn replace(&mut self, key: CacheKey, before: Option<&Arc<K>>, object: Arc<K>) {
        if let Some(before) = before {
            self.unindex(&key, before);
        }
        let words = self.index_keys(&object);
        {
            let _stays = allocator::long_lived();
            self.index.extend(words.iter().map(|word| join_key([word, &key])));
        }
        self.insert_decoded(key, object);
    }

    /// Drops what is known of an object here; answers that.
    pub(super) fn remove(&mut self, key: &CacheKey) -> Option<Arc<K>> {
        let before = self.slots.remove(key)?.snapshot().decode(self.decode)?;
        self.unindex(key, &before);
        Some(before)
    }

    /// Drops an object that was this one.
    pub(super) fn remove_known(&mut self, key: &CacheKey, before: &K) {
        self.slots.remove(key);
        self.unindex(key, before);
    }

    fn unindex(&mut self, key: &CacheKey, object: &K) {
        for word in self.index_keys(object) {
            self.index.remove(&join_key([&word, key]));
        }
    }

    fn index_keys(&self, object: &K) -> Vec<String> {
        self.index_fn.map(|words| words(object)).unwrap_or_default()
    }
}

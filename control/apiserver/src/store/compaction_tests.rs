//! A compacting store compared with one that does not compact.

use std::collections::BTreeMap;
use std::hash::RandomState;
use std::sync::{Arc, RwLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::block::{BLOCK_OBJECTS_MAX, BlockCompressor};
use super::compaction::{compact_history, compact_objects};
use super::compaction_runs::runs;
use super::stored_object::SharedStrings;
use super::uid_index::WarmUidEntries;
use super::{ChangeEvent, MemoryIndex, ObjectHead, ObjectKey, ObjectList, StoredObject, read};

const KINDS: [&str; 3] = ["/a", "/b", "c.dev/a"];
const NAMESPACES: [&str; 2] = ["one", "two"];

/// Both, with the same said to them.
struct CompactionPair {
    compacting: RwLock<MemoryIndex>,
    plain: RwLock<MemoryIndex>,
    common: SharedStrings,
    revision: u64,
    folder: BlockCompressor,
}

fn key(number: usize) -> ObjectKey {
    let (kind, home) = (KINDS[number % 3], NAMESPACES[number / 3 % 2]);
    ObjectKey { resource: kind.into(), namespace: home.into(), name: format!("x{:04}", number / 6).into() }
}

impl CompactionPair {
    fn new() -> Self {
        let memory = || RwLock::new(MemoryIndex::new(0, Vec::new(), WarmUidEntries::default(), RandomState::new()));
        Self {
            compacting: memory(),
            plain: memory(),
            common: SharedStrings::default(),
            revision: 0,
            folder: BlockCompressor::new(),
        }
    }

    fn write(&mut self, number: usize, deleted: bool) {
        self.revision += 1;
        let (key, revision) = (key(number), self.revision);
        let value = json!({ "metadata": {
            "name": &*key.name, "namespace": &*key.namespace, "resourceVersion": revision.to_string(),
            "uid": format!("uid of {number}"), "ownerReferences": [{ "uid": format!("uid of {}", number / 7) }] },
            "status": "as long as it is the same in all of them ".repeat(9) });
        for memory in [&self.compacting, &self.plain] {
            let before = read(memory).get(&key);
            if deleted && before.is_none() {
                continue;
            }
            let json = value.to_string();
            let before = before.map(|before| before.compress(&self.common));
            let object = StoredObject::compressed(
                key.clone(),
                revision,
                ObjectHead::from_object(&value),
                json.as_bytes(),
                &self.common,
                before.as_deref(),
            );
            memory.write().unwrap().apply(ChangeEvent { before, object: Arc::new(object), deleted });
        }
    }

    fn compact(&mut self, settled: u64) {
        compact_history(&self.compacting, settled, &mut self.folder);
        compact_objects(&self.compacting, settled, 1, &mut self.folder);
    }

    /// Folds, and these are written between the look at what there is and the change.
    fn compact_concurrently(&mut self, written: &[(usize, bool)]) {
        let runs = runs(&read(&self.compacting), self.revision);
        let folded: Vec<_> = runs.into_iter().map(|run| run.compact(&mut self.folder)).collect();
        for (number, deleted) in written {
            self.write(*number, *deleted);
        }
        for folded in folded {
            let gone = self.compacting.write().unwrap().install(folded);
            drop(gone);
        }
    }

    fn check(&self, numbers: usize) {
        let (folding, plain) = (read(&self.compacting), read(&self.plain));
        let said = |listing: ObjectList| -> Vec<(ObjectKey, u64, Value)> {
            listing.into_iter().map(|one| (one.key.clone(), one.resource_version, one.value())).collect()
        };
        assert_eq!(said(folding.all()), said(plain.all()));
        for kind in KINDS.map(Arc::from) {
            for home in [None, Some(NAMESPACES[0]), Some(NAMESPACES[1]), Some("none")] {
                assert_eq!(said(folding.list(&kind, home)), said(plain.list(&kind, home)));
                assert_eq!(folding.count(&kind, home), plain.count(&kind, home));
                for back in [0, 1, self.revision / 2, self.revision] {
                    let at = self.revision.saturating_sub(back);
                    let past = |memory: &MemoryIndex| memory.list_at(&kind, home, at).map(said).ok();
                    assert_eq!(past(&folding), past(&plain));
                    let changes = |memory: &MemoryIndex| {
                        let (events, reached) = memory.changes(Some(&kind), home, at, 70).ok()?;
                        let json = |one: &Arc<StoredObject>| (one.key.clone(), one.resource_version, one.json());
                        let words =
                            |event: &ChangeEvent| (event.before.as_ref().map(json), json(&event.object), event.deleted);
                        Some((events.iter().map(words).collect::<Vec<_>>(), reached))
                    };
                    assert_eq!(changes(&folding), changes(&plain));
                }
            }
        }
        for number in 0..numbers {
            let version = |one: Option<Arc<StoredObject>>| one.map(|one| (one.resource_version, one.json()));
            assert_eq!(version(folding.get(&key(number))), version(plain.get(&key(number))));
            let uid = format!("uid of {number}");
            assert_eq!(version(folding.by_uid(&uid)), version(plain.by_uid(&uid)));
            let children = |memory: &MemoryIndex| -> BTreeMap<ObjectKey, u64> {
                memory.dependents(&uid).map(|one| (one.key.clone(), one.resource_version)).collect()
            };
            assert_eq!(children(&folding), children(&plain));
        }
        for home in NAMESPACES {
            let names = |memory: &MemoryIndex| -> Vec<ObjectKey> {
                memory.in_namespace(home).map(|one| one.key.clone()).collect()
            };
            assert_eq!(names(&folding), names(&plain));
        }
    }
}

#[derive(Debug, Clone)]
enum CompactionTestStep {
    Write(Vec<(usize, bool)>),
    /// Changes among the newest so many stay.
    Compact(u64),
    CompactConcurrently(Vec<(usize, bool)>),
    /// All but so many changes of the history.
    Forget(usize),
}

const NUMBERS: usize = 400;

fn steps() -> impl Strategy<Value = Vec<CompactionTestStep>> {
    let some = || prop::collection::vec((0..NUMBERS, prop::bool::weighted(0.2)), 0..80);
    let all = (0..NUMBERS, 0..NUMBERS).prop_map(|(from, to)| (from.min(to)..to).map(|n| (n, false)).collect());
    let step = prop_oneof![
        some().prop_map(CompactionTestStep::Write),
        all.prop_map(CompactionTestStep::Write),
        (0..100u64).prop_map(CompactionTestStep::Compact),
        Just(CompactionTestStep::Compact(0)),
        some().prop_map(CompactionTestStep::CompactConcurrently),
        (0..200usize).prop_map(CompactionTestStep::Forget),
    ];
    prop::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn what_is_folded_is_found_like_what_is_not(steps in steps()) {
        let mut pair = CompactionPair::new();
        for step in steps {
            match step {
                CompactionTestStep::Write(some) => some.into_iter().for_each(|(number, deleted)| pair.write(number, deleted)),
                CompactionTestStep::Compact(kept) => pair.compact(pair.revision.saturating_sub(kept)),
                CompactionTestStep::CompactConcurrently(some) => pair.compact_concurrently(&some),
                CompactionTestStep::Forget(kept) => {
                    // Chunks are dropped whole, so that the one has a little more than the other.
                    let revision = pair.revision;
                    pair.compacting.write().unwrap().trim_history(revision, kept);
                    let oldest = read(&pair.compacting).changes(None, None, 0, 0).err().map_or(0, |why| why.oldest);
                    pair.plain.write().unwrap().trim_history(oldest, 0);
                }
            }
        }
        pair.check(NUMBERS);
    }
}

#[test]
fn sleepers_take_a_bit_each_and_what_wakes_leaves() {
    let mut pair = CompactionPair::new();
    (0..NUMBERS).for_each(|number| pair.write(number, false));
    pair.compact(pair.revision);
    let (warm, blocks) = counts(&pair);
    assert_eq!(warm, 0);
    assert!(blocks <= NUMBERS / BLOCK_OBJECTS_MAX + KINDS.len());
    pair.write(3, false);
    pair.write(9, true);
    assert_eq!(counts(&pair), (1, blocks));
    // One that is written comes back to its neighbours; all others are left alone.
    pair.compact(pair.revision);
    assert_eq!(counts(&pair), (0, blocks));
    (0..NUMBERS).for_each(|number| pair.write(number, true));
    assert_eq!(counts(&pair), (0, 0));
    pair.check(NUMBERS);
}

#[test]
fn blocks_of_which_little_is_left_become_one() {
    let mut pair = CompactionPair::new();
    (0..NUMBERS).for_each(|number| pair.write(number, false));
    pair.compact(pair.revision);
    let (_, before) = counts(&pair);
    (0..NUMBERS).filter(|number| number / 6 % 4 > 0).for_each(|number| pair.write(number, true));
    pair.write(NUMBERS, false);
    pair.compact(pair.revision);
    let (_, after) = counts(&pair);
    assert!(after <= before / 2, "{before} {after}");
    pair.check(NUMBERS + 1);
}

/// Objects that are warm, and blocks.
fn counts(pair: &CompactionPair) -> (usize, usize) {
    let memory = read(&pair.compacting);
    (memory.warm.len(), memory.cold.blocks_from(&ObjectKey::lowest()).count())
}

#[test]
fn a_few_objects_and_kinds_that_all_requests_ask_for_stay_as_they_are() {
    let mut pair = CompactionPair::new();
    (0..30).for_each(|number| pair.write(number, false));
    pair.compact(pair.revision);
    assert_eq!(counts(&pair), (30, 0));
}

#[test]
fn a_listing_stays_as_it_was() {
    let mut pair = CompactionPair::new();
    (0..NUMBERS).for_each(|number| pair.write(number, false));
    pair.compact(pair.revision);
    let listing = read(&pair.compacting).all();
    let before: Vec<_> = listing.iter().map(|one| one.resource_version).collect();
    (0..NUMBERS).for_each(|number| pair.write(number, number % 3 == 0));
    pair.compact(pair.revision);
    assert_eq!(listing.into_iter().map(|one| one.resource_version).collect::<Vec<_>>(), before);
}

//! Chooses what is compacted together: neighbors, in the order of their keys.
//!
//! Blocks must not overlap, so a block with a changed object between its first and last is compacted again with
//! it; so are blocks with few live objects, and a block next to a few objects that are too few for a block.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use contract::allocator;

use super::block::{BLOCK_OBJECT_BYTES_MAX, BLOCK_OBJECTS_MAX, BlockCompressor, ObjectBlock};
use super::cold_objects::{ColdBlock, place, set_bits};
use super::uid_index::uid;
use super::{MemoryIndex, ObjectKey, StoredObject};

/// The minimum number of objects in a block; fewer without compressed neighbors stay as they are.
const BLOCK_OBJECTS_MIN: usize = BLOCK_OBJECTS_MAX / 2;

/// Objects that are swapped in at once, except those of one block more: all requests wait meanwhile, 2 ms.
const RUN_OBJECTS_MAX: usize = 512;

/// Kinds that requests of every kind read; and Secrets, whose text must be gone when they are deleted.
const NEVER_COMPACTED: [&str; 4] = ["/namespaces", "/configmaps", "/serviceaccounts", "/secrets"];
const NEVER_COMPACTED_GROUPS: [&str; 2] = ["rbac.authorization.k8s.io/", "apiextensions.k8s.io/"];

/// Neighbors to be compacted together.
#[derive(Debug)]
pub(super) struct CompactionRun {
    warm: Vec<Arc<StoredObject>>,
    blocks: Vec<(u32, ColdBlock)>,
    /// The number of objects in both.
    count: usize,
}

/// The result of a run.
pub(super) struct CompactedRun {
    blocks: Vec<(Vec<CompactedObject>, ObjectBlock)>,
    /// The blocks that it replaces.
    old: Vec<u32>,
}

struct CompactedObject {
    object: Arc<StoredObject>,
    /// The block and the position of the object; or else it was not compressed.
    old_position: Option<(u32, usize)>,
}

/// Whether it may be compacted.
pub(super) fn is_ready(object: &StoredObject, settled: u64) -> bool {
    let resource = &*object.key.resource;
    object.resource_version <= settled
        && object.json_bytes() <= BLOCK_OBJECT_BYTES_MAX
        && !NEVER_COMPACTED.contains(&resource)
        && !NEVER_COMPACTED_GROUPS.iter().any(|group| resource.starts_with(group))
}

/// The objects to compact that were last written by `settled`.
pub(super) fn runs(memory: &MemoryIndex, settled: u64) -> Vec<CompactionRun> {
    let ready = memory.warm.iter().filter(|one| is_ready(&one.0, settled));
    let folds = memory.cold.blocks_from(&ObjectKey::lowest());
    let warm = ready.map(|one| CompactionRun { warm: vec![Arc::clone(&one.0)], blocks: Vec::new(), count: 1 });
    let folds = folds.map(|(number, fold)| {
        let count = fold.present.count_ones() as usize;
        CompactionRun { warm: Vec::new(), blocks: vec![(number, fold.clone())], count }
    });
    let mut pieces: Vec<CompactionRun> = folds.chain(warm).collect();
    pieces.sort_by(|one, other| one.first().cmp(other.first())); // a block comes before what is in its place
    let mut runs: Vec<CompactionRun> = Vec::new();
    for piece in pieces {
        match runs.last_mut().filter(|last| last.overlaps(&piece)) {
            Some(last) => last.append(piece),
            None => runs.push(piece),
        }
    }
    runs.retain(CompactionRun::is_worthwhile);
    runs
}

impl CompactionRun {
    fn first(&self) -> &ObjectKey {
        let warm = self.warm.first().map(|object| &object.key);
        let fold = self.blocks.first().map(|(_, fold)| &fold.first);
        warm.into_iter().chain(fold).min().expect("a run is of something")
    }

    /// Whether the next piece belongs to it.
    fn overlaps(&self, next: &Self) -> bool {
        let begins = next.first();
        if self.blocks.last().is_some_and(|(_, fold)| *begins <= fold.last) {
            return true;
        }
        let is_short = |run: &Self| run.count < BLOCK_OBJECTS_MIN;
        let fits = match (self.is_due(), next.is_due()) {
            (true, true) => true,
            (true, false) => is_short(self),
            (false, true) => is_short(next),
            (false, false) => false,
        };
        fits && self.count < RUN_OBJECTS_MAX && self.first().resource == begins.resource
    }

    fn append(&mut self, next: Self) {
        self.warm.extend(next.warm);
        self.blocks.extend(next.blocks);
        self.count += next.count;
    }

    fn is_due(&self) -> bool {
        !self.warm.is_empty() || self.count < BLOCK_OBJECTS_MIN * self.blocks.len()
    }

    fn is_worthwhile(&self) -> bool {
        match (self.warm.len(), self.blocks.len()) {
            (0, folds) => folds > 1,
            (_, 0) => self.count >= BLOCK_OBJECTS_MIN,
            _ => true,
        }
    }

    /// Compresses them. The store continues meanwhile.
    pub(super) fn compact(self, folder: &mut BlockCompressor) -> CompactedRun {
        let mut members: Vec<CompactedObject> =
            self.warm.into_iter().map(|object| CompactedObject { object, old_position: None }).collect();
        let mut old = Vec::new();
        for (number, fold) in self.blocks {
            old.push(number);
            let mut rows: Vec<_> = fold.block.rows().map(Some).collect();
            members.extend(set_bits(fold.present).filter_map(|place| {
                let object = rows.get_mut(place)?.take()?.to_object(Some(&fold.first));
                Some(CompactedObject { object, old_position: Some((number, place)) })
            }));
        }
        members.sort_by(|one, other| one.object.key.cmp(&other.object.key));
        let mut blocks = Vec::new();
        let mut left = members.len().div_ceil(BLOCK_OBJECTS_MAX);
        while left > 0 {
            let rest = members.split_off(members.len().div_ceil(left));
            let objects: Vec<_> = members.iter().map(|member| Arc::clone(&member.object)).collect();
            blocks.push((std::mem::replace(&mut members, rest), folder.compress(&objects)));
            left -= 1;
        }
        CompactedRun { blocks, old }
    }
}

impl CompactedRun {
    /// The number of objects in it.
    pub(super) fn count(&self) -> usize {
        self.blocks.iter().map(|(members, _)| members.len()).sum()
    }
}

impl MemoryIndex {
    /// Replaces the sources of blocks by the blocks, except objects that were written or deleted since. Returns the replaced
    /// data.
    pub(super) fn install(&mut self, folded: CompactedRun) -> impl Sized + use<> {
        let _stays = allocator::long_lived();
        let (mut gone, mut folds) = (Vec::new(), Vec::new());
        for (members, block) in folded.blocks {
            let mut there = 0;
            for (at, member) in members.iter().enumerate() {
                let is_there = match member.old_position {
                    None => self.warm.get(&member.object.key).is_some_and(|one| Arc::ptr_eq(&one.0, &member.object)),
                    Some((number, at)) => self.cold.block(number).is_some_and(|fold| fold.present & (1 << at) != 0),
                };
                if is_there {
                    there |= 1 << at;
                    self.remove_warm(&member.object);
                }
            }
            if let (Some(first), Some(last)) = (members.first(), members.last())
                && there != 0
            {
                let (first, last) = (first.object.key.deep_clone(), last.object.key.deep_clone());
                folds.push((ColdBlock { first, last, block: Arc::new(block), present: there }, gone.len()));
            }
            gone.push(members);
        }
        let old: Vec<Option<ColdBlock>> = folded.old.into_iter().map(|number| self.cold.remove_block(number)).collect();
        let (mut uids, mut owners) = (Vec::new(), Vec::new());
        for (fold, members) in folds {
            let there = fold.present;
            let number = self.cold.insert_block(fold);
            for at in set_bits(there) {
                let object = &gone[members][at].object;
                uids.extend(uid(object).map(|uid| place(self.hasher.hash_one(uid), number, at)));
                owners.extend(object.head.owners().map(|uid| place(self.hasher.hash_one(uid), number, at)));
            }
        }
        self.cold.index(uids, owners);
        (gone, old)
    }
}

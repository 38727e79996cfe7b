//! Objects that were not used lately: compressed into blocks of neighbors, in the order of their keys.
//!
//! For each object this holds only a bit that says whether it is still in its block, and for its uid and each of its owners
//! eight bytes that lead to its position.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::block::{BLOCK_OBJECTS_MAX, ObjectBlock};
use super::{ObjectKey, StoredObject};

#[derive(Debug, Default)]
pub(super) struct ColdObjects {
    /// Blocks by number.
    blocks: Vec<Option<ColdBlock>>,
    /// Numbers that may be reused.
    free_numbers: Vec<u32>,
    /// Numbers of removed blocks that still have positions.
    removed_numbers: Vec<u32>,
    /// Numbers by the first key. Blocks do not overlap.
    by_first: BTreeMap<ObjectKey, u32>,
    pub(super) uids: ColdUidIndex,
    pub(super) owners: ColdUidIndex,
}

/// One block.
#[derive(Debug, Clone)]
pub(super) struct ColdBlock {
    pub(super) first: ObjectKey,
    pub(super) last: ObjectKey,
    pub(super) block: Arc<ObjectBlock>,
    /// A bit for each of its objects that is still there: the others were written or deleted since.
    pub(super) present: BlockBits,
}

/// Entries by position in the block.
pub(super) type BlockBits = u32;

const _: () = assert!(BLOCK_OBJECTS_MAX == BlockBits::BITS as usize, "an object is a bit");

/// Half the sum of a uid, and the object's position: number of the block times [`BLOCK_OBJECTS_MAX`], plus the index in it. Sorted.
/// Removed blocks leave theirs until another is added.
#[derive(Debug, Default)]
pub(super) struct ColdUidIndex(Vec<ColdUidEntry>);

pub(super) type ColdUidEntry = (u32, u32);

impl ColdBlock {
    /// Its objects of this kind and namespace.
    pub(super) fn count(&self, resource: &str, namespace: Option<&str>) -> usize {
        let rows = self.block.rows().enumerate();
        rows.filter(|(at, row)| self.present & (1 << at) != 0 && row.is_of(resource, namespace)).count()
    }
}

/// The indexes of the set bits.
pub(super) fn set_bits(bits: BlockBits) -> impl Iterator<Item = usize> {
    (0..BLOCK_OBJECTS_MAX).filter(move |place| bits & (1 << place) != 0)
}

impl ColdObjects {
    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<StoredObject>> {
        let fold = self.block(self.block_around(key)?)?;
        let (place, row) = fold.block.rows().enumerate().find(|(_, row)| row.is_key(key))?;
        (fold.present & (1 << place) != 0).then(|| row.to_object(Some(key)))
    }

    /// Removes an object from its block.
    pub(super) fn remove(&mut self, key: &ObjectKey) {
        let Some(number) = self.block_around(key) else { return };
        let Some(fold) = self.blocks[number as usize].as_mut() else { return };
        let Some(place) = fold.block.rows().position(|row| row.is_key(key)) else { return };
        fold.present &= !(1 << place);
        if fold.present == 0 {
            self.remove_block(number);
        }
    }

    /// The number of the block whose key range contains `key`.
    pub(super) fn block_around(&self, key: &ObjectKey) -> Option<u32> {
        let (_, number) = self.by_first.range::<ObjectKey, _>(..=key).next_back()?;
        self.block(*number).filter(|fold| *key <= fold.last).map(|_| *number)
    }

    pub(super) fn block(&self, number: u32) -> Option<&ColdBlock> {
        self.blocks.get(number as usize)?.as_ref()
    }

    /// The objects at the positions of this sum, including those of another uid with the same half.
    pub(super) fn find<'a>(
        &'a self,
        places: &'a ColdUidIndex,
        sum: u64,
    ) -> impl Iterator<Item = Arc<StoredObject>> + 'a {
        places.entries_for(sum).filter_map(|(number, place)| {
            let fold = self.block(number)?;
            (fold.present & (1 << place) != 0).then(|| fold.block.nth(place))?
        })
    }

    /// Blocks that may hold objects with keys from `first` on, in order, with their numbers.
    pub(super) fn blocks_from<'a>(&'a self, first: &ObjectKey) -> impl Iterator<Item = (u32, &'a ColdBlock)> + use<'a> {
        let around = self.block_around(first).filter(|number| self.block(*number).is_some_and(|f| f.first < *first));
        let numbers = around.into_iter().chain(self.by_first.range::<ObjectKey, _>(first..).map(|(_, number)| *number));
        numbers.filter_map(|number| Some((number, self.block(number)?)))
    }

    /// Removes a block with everything in it.
    pub(super) fn remove_block(&mut self, number: u32) -> Option<ColdBlock> {
        let fold = self.blocks.get_mut(number as usize)?.take()?;
        self.by_first.remove(&fold.first);
        self.removed_numbers.push(number);
        Some(fold)
    }

    /// Inserts a block between the others; returns its number. Its positions must be added once all blocks are inserted.
    pub(super) fn insert_block(&mut self, fold: ColdBlock) -> u32 {
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            u32::try_from(self.blocks.len() - 1).expect("objects are fewer than that many blocks")
        });
        self.by_first.insert(fold.first.clone(), number);
        self.blocks[number as usize] = Some(fold);
        number
    }

    /// Adds positions of inserted blocks, and drops those of removed ones.
    pub(super) fn index(&mut self, uids: Vec<ColdUidEntry>, owners: Vec<ColdUidEntry>) {
        let folds = &self.blocks;
        let is_there = |(number, place): (u32, usize)| {
            let fold = folds.get(number as usize).and_then(Option::as_ref);
            fold.is_some_and(|fold| fold.present & (1 << place) != 0)
        };
        self.uids.add(uids, is_there);
        self.owners.add(owners, is_there);
        self.free_numbers.append(&mut self.removed_numbers);
    }
}

impl ColdUidIndex {
    fn entries_for(&self, sum: u64) -> impl Iterator<Item = (u32, usize)> {
        let half = truncate(sum);
        let first = self.0.partition_point(|(known, _)| *known < half);
        self.0[first..].iter().take_while(move |(known, _)| *known == half).map(|(_, at)| split_position(*at))
    }

    /// `more` are positions of new blocks.
    fn add(&mut self, more: Vec<ColdUidEntry>, is_there: impl Fn((u32, usize)) -> bool) {
        self.0.retain(|(_, at)| is_there(split_position(*at)));
        self.0.reserve_exact(more.len());
        self.0.extend(more);
        self.0.sort_unstable();
        self.0.shrink_to_fit();
    }
}

/// The position of an object with a uid of this sum.
pub(super) fn place(sum: u64, number: u32, place: usize) -> ColdUidEntry {
    let at = number as usize * BLOCK_OBJECTS_MAX + place;
    (truncate(sum), u32::try_from(at).expect("objects are fewer than that"))
}

fn truncate(sum: u64) -> u32 {
    (sum >> 32) as u32
}

fn split_position(at: u32) -> (u32, usize) {
    let at = at as usize;
    ((at / BLOCK_OBJECTS_MAX) as u32, at % BLOCK_OBJECTS_MAX)
}

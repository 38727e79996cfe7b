//! Objects that sleep: folded into blocks of neighbours, in the order of their keys.
//!
//! Of an object nothing is held here but a bit that says whether it is still in its block, and of its uid and of each of its owners
//! eight bytes that lead to its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::block::{BLOCK_OBJECTS_MAX, Block};
use super::{Key, Stored};

#[derive(Debug, Default)]
pub(super) struct Cold {
    /// By number.
    folds: Vec<Option<Fold>>,
    /// Numbers that may be given out again.
    free: Vec<u32>,
    /// Numbers of blocks that are gone, of which there still are places.
    left: Vec<u32>,
    /// Numbers by the first key. No block reaches into another.
    by_first: BTreeMap<Key, u32>,
    pub(super) uids: Places,
    pub(super) owners: Places,
}

/// One block.
#[derive(Debug, Clone)]
pub(super) struct Fold {
    pub(super) first: Key,
    pub(super) last: Key,
    pub(super) block: Arc<Block>,
    /// A bit for each of its objects that is still there: the others were written or deleted since.
    pub(super) there: Bits,
}

/// By place in the block.
pub(super) type Bits = u32;

const _: () = assert!(BLOCK_OBJECTS_MAX == Bits::BITS as usize, "an object is a bit");

/// Half the sum of a uid, and where the object is: number of the block times [`BLOCK_OBJECTS_MAX`], plus the place in it. In order.
/// Blocks that are gone leave theirs behind until another is added.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<Place>);

pub(super) type Place = (u32, u32);

impl Fold {
    /// Its objects of this kind and namespace.
    pub(super) fn count(&self, resource: &str, namespace: Option<&str>) -> usize {
        let rows = self.block.rows().enumerate();
        rows.filter(|(at, row)| self.there & (1 << at) != 0 && row.is_of(resource, namespace)).count()
    }
}

/// The bits of the places that are set.
pub(super) fn places(bits: Bits) -> impl Iterator<Item = usize> {
    (0..BLOCK_OBJECTS_MAX).filter(move |place| bits & (1 << place) != 0)
}

impl Cold {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        let fold = self.fold(self.around(key)?)?;
        let (place, row) = fold.block.rows().enumerate().find(|(_, row)| row.has(key))?;
        (fold.there & (1 << place) != 0).then(|| row.stored(Some(key)))
    }

    /// Takes an object out of its block.
    pub(super) fn remove(&mut self, key: &Key) {
        let Some(number) = self.around(key) else { return };
        let Some(fold) = self.folds[number as usize].as_mut() else { return };
        let Some(place) = fold.block.rows().position(|row| row.has(key)) else { return };
        fold.there &= !(1 << place);
        if fold.there == 0 {
            self.take(number);
        }
    }

    /// The number of the block whose keys reach from before `key` to behind it.
    pub(super) fn around(&self, key: &Key) -> Option<u32> {
        let (_, number) = self.by_first.range::<Key, _>(..=key).next_back()?;
        self.fold(*number).filter(|fold| *key <= fold.last).map(|_| *number)
    }

    pub(super) fn fold(&self, number: u32) -> Option<&Fold> {
        self.folds.get(number as usize)?.as_ref()
    }

    /// The objects at the places of this sum, those of another uid with the same half included.
    pub(super) fn find<'a>(&'a self, places: &'a Places, sum: u64) -> impl Iterator<Item = Arc<Stored>> + 'a {
        places.of(sum).filter_map(|(number, place)| {
            let fold = self.fold(number)?;
            (fold.there & (1 << place) != 0).then(|| fold.block.nth(place))?
        })
    }

    /// Blocks that may hold objects with keys from `first` on, in order, with their numbers.
    pub(super) fn folds_from<'a>(&'a self, first: &Key) -> impl Iterator<Item = (u32, &'a Fold)> + use<'a> {
        let around = self.around(first).filter(|number| self.fold(*number).is_some_and(|f| f.first < *first));
        let numbers =
            around.into_iter().chain(self.by_first.range::<Key, _>(first..).map(|(_, number)| *number));
        numbers.filter_map(|number| Some((number, self.fold(number)?)))
    }

    /// Takes a block out, with all that is in it.
    pub(super) fn take(&mut self, number: u32) -> Option<Fold> {
        let fold = self.folds.get_mut(number as usize)?.take()?;
        self.by_first.remove(&fold.first);
        self.left.push(number);
        Some(fold)
    }

    /// Puts a block in between the others; its number. Its places are to be added once all blocks are in.
    pub(super) fn put(&mut self, fold: Fold) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.folds.push(None);
            u32::try_from(self.folds.len() - 1).expect("objects are fewer than that many blocks")
        });
        self.by_first.insert(fold.first.clone(), number);
        self.folds[number as usize] = Some(fold);
        number
    }

    /// Adds places of blocks that were put in, and forgets those of which nothing is there.
    pub(super) fn place(&mut self, uids: Vec<Place>, owners: Vec<Place>) {
        let folds = &self.folds;
        let is_there = |(number, place): (u32, usize)| {
            let fold = folds.get(number as usize).and_then(Option::as_ref);
            fold.is_some_and(|fold| fold.there & (1 << place) != 0)
        };
        self.uids.add(uids, is_there);
        self.owners.add(owners, is_there);
        self.free.append(&mut self.left);
    }
}

impl Places {
    fn of(&self, sum: u64) -> impl Iterator<Item = (u32, usize)> {
        let half = half(sum);
        let first = self.0.partition_point(|(known, _)| *known < half);
        self.0[first..].iter().take_while(move |(known, _)| *known == half).map(|(_, at)| split(*at))
    }

    /// `more` are of blocks that were not there before.
    fn add(&mut self, more: Vec<Place>, is_there: impl Fn((u32, usize)) -> bool) {
        self.0.retain(|(_, at)| is_there(split(*at)));
        self.0.reserve_exact(more.len());
        self.0.extend(more);
        self.0.sort_unstable();
        self.0.shrink_to_fit();
    }
}

/// The place of an object with a uid of this sum.
pub(super) fn place(sum: u64, number: u32, place: usize) -> Place {
    let at = number as usize * BLOCK_OBJECTS_MAX + place;
    (half(sum), u32::try_from(at).expect("objects are fewer than that"))
}

fn half(sum: u64) -> u32 {
    (sum >> 32) as u32
}

fn split(at: u32) -> (u32, usize) {
    let at = at as usize;
    ((at / BLOCK_OBJECTS_MAX) as u32, at % BLOCK_OBJECTS_MAX)
}

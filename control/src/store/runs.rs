//! What is folded together: neighbours, in the order of their keys.
//!
//! Blocks must not reach into each other, so a block with an object between its first and last that is to be folded is folded anew with
//! it; so are blocks of which little is left, and one beside a few objects that are not worth a block.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use dataplane::heap;

use super::block::{BLOCK_OBJECTS_MAX, Block, Folder, SHARING_BYTES_MAX};
use super::cold::{Fold, place, places};
use super::sums::uid;
use super::{Key, Memory, Stored};

/// Objects of a block at least; what is fewer, and has no neighbours that sleep, stays as it is.
const BLOCK_OBJECTS_MIN: usize = BLOCK_OBJECTS_MAX / 2;

/// Objects that are put in their place at once, but for those of one block more: everybody waits meanwhile, 2 ms.
const RUN_OBJECTS: usize = 512;

/// Kinds of which requests ask all the time, about whatever they are; and Secrets, which are to be gone when they are deleted.
const NEVER_FOLDED: [&str; 4] = ["/namespaces", "/configmaps", "/serviceaccounts", "/secrets"];
const NEVER_FOLDED_GROUPS: [&str; 2] = ["rbac.authorization.k8s.io/", "apiextensions.k8s.io/"];

/// Neighbours that are to be folded together.
#[derive(Debug)]
pub(super) struct Run {
    warm: Vec<Arc<Stored>>,
    folds: Vec<(u32, Fold)>,
    /// Objects in both.
    count: usize,
}

/// A run as it is to be.
pub(super) struct Folded {
    blocks: Vec<(Vec<Member>, Block)>,
    /// The blocks that these stand for.
    old: Vec<u32>,
}

struct Member {
    object: Arc<Stored>,
    /// The block that it was in and its place there; or else it was warm.
    was: Option<(u32, usize)>,
}

/// Whether it may be folded.
pub(super) fn is_ready(object: &Stored, settled: u64) -> bool {
    let resource = &*object.key.resource;
    object.resource_version <= settled
        && object.json_bytes() <= SHARING_BYTES_MAX
        && !NEVER_FOLDED.contains(&resource)
        && !NEVER_FOLDED_GROUPS.iter().any(|group| resource.starts_with(group))
}

/// What there is to fold of what was last written by `settled`.
pub(super) fn runs(memory: &Memory, settled: u64) -> Vec<Run> {
    let ready = memory.warm.iter().filter(|one| is_ready(&one.0, settled));
    let folds = memory.cold.folds_from(&Key::lowest());
    let warm = ready.map(|one| Run { warm: vec![Arc::clone(&one.0)], folds: Vec::new(), count: 1 });
    let folds = folds.map(|(number, fold)| {
        let count = fold.there.count_ones() as usize;
        Run { warm: Vec::new(), folds: vec![(number, fold.clone())], count }
    });
    let mut pieces: Vec<Run> = folds.chain(warm).collect();
    pieces.sort_by(|one, other| one.first().cmp(other.first())); // a block comes before what is in its place
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        match runs.last_mut().filter(|last| last.takes_in(&piece)) {
            Some(last) => last.append(piece),
            None => runs.push(piece),
        }
    }
    runs.retain(Run::is_worth_it);
    runs
}

impl Run {
    fn first(&self) -> &Key {
        let warm = self.warm.first().map(|object| &object.key);
        let fold = self.folds.first().map(|(_, fold)| &fold.first);
        warm.into_iter().chain(fold).min().expect("a run is of something")
    }

    /// Whether what comes next belongs to it.
    fn takes_in(&self, next: &Self) -> bool {
        let begins = next.first();
        if self.folds.last().is_some_and(|(_, fold)| *begins <= fold.last) {
            return true;
        }
        let is_short = |run: &Self| run.count < BLOCK_OBJECTS_MIN;
        let fits = match (self.is_due(), next.is_due()) {
            (true, true) => true,
            (true, false) => is_short(self),
            (false, true) => is_short(next),
            (false, false) => false,
        };
        fits && self.count < RUN_OBJECTS && self.first().resource == begins.resource
    }

    fn append(&mut self, next: Self) {
        self.warm.extend(next.warm);
        self.folds.extend(next.folds);
        self.count += next.count;
    }

    fn is_due(&self) -> bool {
        !self.warm.is_empty() || self.count < BLOCK_OBJECTS_MIN * self.folds.len()
    }

    fn is_worth_it(&self) -> bool {
        match (self.warm.len(), self.folds.len()) {
            (0, folds) => folds > 1,
            (_, 0) => self.count >= BLOCK_OBJECTS_MIN,
            _ => true,
        }
    }

    /// Compresses them. The store goes on meanwhile.
    pub(super) fn fold(self, folder: &mut Folder) -> Folded {
        let mut members: Vec<Member> =
            self.warm.into_iter().map(|object| Member { object, was: None }).collect();
        let mut old = Vec::new();
        for (number, fold) in self.folds {
            old.push(number);
            let mut rows: Vec<_> = fold.block.rows().map(Some).collect();
            members.extend(places(fold.there).filter_map(|place| {
                let object = rows.get_mut(place)?.take()?.stored(Some(&fold.first));
                Some(Member { object, was: Some((number, place)) })
            }));
        }
        members.sort_by(|one, other| one.object.key.cmp(&other.object.key));
        let mut blocks = Vec::new();
        let mut left = members.len().div_ceil(BLOCK_OBJECTS_MAX);
        while left > 0 {
            let rest = members.split_off(members.len().div_ceil(left));
            let objects: Vec<_> = members.iter().map(|member| Arc::clone(&member.object)).collect();
            blocks.push((std::mem::replace(&mut members, rest), folder.fold(&objects)));
            left -= 1;
        }
        Folded { blocks, old }
    }
}

impl Folded {
    /// Objects in it.
    pub(super) fn count(&self) -> usize {
        self.blocks.iter().map(|(members, _)| members.len()).sum()
    }
}

impl Memory {
    /// Puts blocks in the place of what they were made of, but for what was written or deleted since. Answers what is not needed any
    /// more.
    pub(super) fn put(&mut self, folded: Folded) -> impl Sized + use<> {
        let _stays = heap::stays();
        let (mut gone, mut folds) = (Vec::new(), Vec::new());
        for (members, block) in folded.blocks {
            let mut there = 0;
            for (at, member) in members.iter().enumerate() {
                let is_there = match member.was {
                    None => self
                        .warm
                        .get(&member.object.key)
                        .is_some_and(|one| Arc::ptr_eq(&one.0, &member.object)),
                    Some((number, at)) => {
                        self.cold.fold(number).is_some_and(|fold| fold.there & (1 << at) != 0)
                    }
                };
                if is_there {
                    there |= 1 << at;
                    self.cool(&member.object);
                }
            }
            if let (Some(first), Some(last)) = (members.first(), members.last())
                && there != 0
            {
                let (first, last) = (first.object.key.anew(), last.object.key.anew());
                folds.push((Fold { first, last, block: Arc::new(block), there }, gone.len()));
            }
            gone.push(members);
        }
        let old: Vec<Option<Fold>> = folded.old.into_iter().map(|number| self.cold.take(number)).collect();
        let (mut uids, mut owners) = (Vec::new(), Vec::new());
        for (fold, members) in folds {
            let there = fold.there;
            let number = self.cold.put(fold);
            for at in places(there) {
                let object = &gone[members][at].object;
                uids.extend(uid(object).map(|uid| place(self.sums.hash_one(uid), number, at)));
                owners.extend(object.head.owners().map(|uid| place(self.sums.hash_one(uid), number, at)));
            }
        }
        self.cold.place(uids, owners);
        (gone, old)
    }
}

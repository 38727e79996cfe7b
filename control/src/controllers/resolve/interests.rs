//! Who wants to know what becomes of which object.

use std::collections::{HashMap, HashSet};

use crate::controllers::queue::Item;

/// An object that somebody refers to, whether it or its kind is there or not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Referent {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Debug, Default)]
pub(super) struct Interests {
    by_referent: HashMap<Referent, HashSet<Item>>,
    by_item: HashMap<Item, HashSet<Referent>>,
}

impl Interests {
    pub(super) fn add(&mut self, item: &Item, referent: Referent) {
        self.by_item.entry(item.clone()).or_default().insert(referent.clone());
        self.by_referent.entry(referent).or_default().insert(item.clone());
    }

    pub(super) fn forget(&mut self, item: &Item) {
        for referent in self.by_item.remove(item).into_iter().flatten() {
            if let Some(items) = self.by_referent.get_mut(&referent) {
                items.remove(item);
                if items.is_empty() {
                    self.by_referent.remove(&referent);
                }
            }
        }
    }

    pub(super) fn of(&self, referent: &Referent) -> Vec<Item> {
        self.by_referent.get(referent).into_iter().flatten().cloned().collect()
    }

    pub(super) fn of_kind(&self, group: &str, kind: &str) -> Vec<Item> {
        let same = |referent: &Referent| referent.group == group && referent.kind == kind;
        self.by_referent.iter().filter(|(r, _)| same(r)).flat_map(|(_, items)| items).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::queue::Kind;

    #[test]
    fn a_forgotten_interest_is_told_no_more() {
        let mut interests = Interests::default();
        let item = Item::new(Kind::Trigger, "ns", "t");
        let referent =
            Referent { group: String::new(), kind: "X".into(), namespace: "ns".into(), name: "x".into() };
        interests.add(&item, referent.clone());
        assert_eq!(interests.of(&referent), std::slice::from_ref(&item));
        assert_eq!(interests.of_kind("", "X"), std::slice::from_ref(&item));
        interests.forget(&item);
        assert!(interests.of(&referent).is_empty());
        assert!(interests.by_referent.is_empty() && interests.by_item.is_empty());
    }
}

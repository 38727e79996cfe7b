//! Dead letters: events that a subscriber gave up, and that were not redelivered successfully since.
//!
//! Only an original event is a dead letter. Its newest copy determines its state: if the copy was given up
//! too the dead letter is still open, if it was delivered the dead letter is closed, and while it is in
//! flight no other copy is needed.
//!
//! A dead letter is found in delivery log entries, its copies among the events, their outcomes in entries
//! again. So the logs are read in pages of dead letters, three times for each: the memory does not grow
//! with the number of events given up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;
use axum::body::Bytes;
use dataplane::broker::delivery_log::{DeliveryLogEntry, DeliveryOutcome};
use dataplane::record::{EventPosition, EventRecord, is_addressed};

use super::{each_event, each_note};

/// Dead letters in a page: some 200 bytes each.
const PAGE_DEAD_LETTERS_MAX: usize = 100_000;

/// An event, and the durable name of its subscriber: two may give up the same one.
pub(super) type DeadLetterKey = (EventPosition, Rc<str>);

/// Open dead letters.
pub(super) type DeadLetters = BTreeMap<DeadLetterKey, DeadLetter>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeadLetter {
    pub(super) what: DeliveryOutcome,
    pub(super) at_ms: u64,
}

/// Which dead letters to list.
pub(super) struct DeadLetterQuery<'a> {
    /// `None`: of all subscribers.
    pub(super) subscriber: Option<&'a str>,
    /// Later ones are left for the next redrive, which would otherwise never end.
    pub(super) until_ms: u64,
}

/// Calls `take` with all open dead letters, page by page, in the order of their positions.
pub(super) fn each_page(
    logs: &[PathBuf],
    query: &DeadLetterQuery<'_>,
    mut take: impl FnMut(DeadLetters) -> Result<()>,
) -> Result<()> {
    let mut page = DeadLetterPage::new(PAGE_DEAD_LETTERS_MAX, None);
    loop {
        each_note(logs, |position, note| page.add(query, position, &note))?;
        let beyond = page.beyond.take();
        take(page.open(logs)?)?;
        match beyond {
            Some(beyond) => page = DeadLetterPage::new(PAGE_DEAD_LETTERS_MAX, Some(beyond)),
            None => return Ok(()),
        }
    }
}

/// The outcome of a delivery, if this entry is a final one.
fn end(note: &DeliveryLogEntry<'_>) -> Option<DeadLetterState> {
    match note.what {
        DeliveryOutcome::DeadLettered | DeliveryOutcome::Dropped => {
            Some(DeadLetterState::Open(DeadLetter { what: note.what, at_ms: note.at_ms }))
        }
        DeliveryOutcome::Replied if (200..300).contains(&note.status) => Some(DeadLetterState::Delivered),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy)]
enum DeadLetterState {
    Delivered,
    Open(DeadLetter),
}

/// A page of dead letters from a position on.
struct DeadLetterPage {
    limit: usize,
    from: Option<DeadLetterKey>,
    dead_letters: DeadLetters,
    /// The first that did not fit. Nothing from it on is in the page, even when there is space again.
    beyond: Option<DeadLetterKey>,
    /// Names of subscribers, each once.
    names: BTreeSet<Rc<str>>,
}

impl DeadLetterPage {
    fn new(page_max: usize, from: Option<DeadLetterKey>) -> Self {
        Self { limit: page_max, from, dead_letters: DeadLetters::new(), beyond: None, names: BTreeSet::new() }
    }

    /// Entries come in order of time, so that the last outcome of an event counts: one that was
    /// dead-lettered may have been sent again after a crash.
    fn add(&mut self, query: &DeadLetterQuery<'_>, position: EventPosition, note: &DeliveryLogEntry<'_>) {
        let Some(end) = end(note).filter(|_| query.subscriber.is_none_or(|name| name == note.subscriber)) else {
            return;
        };
        match end {
            DeadLetterState::Delivered => {
                if let Some(name) = self.names.get(note.subscriber) {
                    self.dead_letters.remove(&(position, Rc::clone(name)));
                }
            }
            DeadLetterState::Open(how) if how.at_ms <= query.until_ms => {
                let due = (position, self.name(note.subscriber));
                self.insert(due, how);
            }
            DeadLetterState::Open(_) => {}
        }
    }

    fn name(&mut self, name: &str) -> Rc<str> {
        if let Some(known) = self.names.get(name) {
            return Rc::clone(known);
        }
        let name = Rc::<str>::from(name);
        self.names.insert(Rc::clone(&name));
        name
    }

    fn insert(&mut self, due: DeadLetterKey, how: DeadLetter) {
        let is_before = self.from.as_ref().is_some_and(|from| due < *from);
        let is_beyond = self.beyond.as_ref().is_some_and(|beyond| due >= *beyond);
        if is_before || is_beyond {
            return;
        }
        self.dead_letters.insert(due, how);
        if self.dead_letters.len() > self.limit {
            self.beyond = self.dead_letters.pop_last().map(|(due, _)| due);
        }
    }

    /// Keeps those that were not redelivered successfully.
    fn open(mut self, logs: &[PathBuf]) -> Result<DeadLetters> {
        if self.dead_letters.is_empty() {
            return Ok(self.dead_letters);
        }
        let mut copies = RedriveCopies::default();
        let no_subscriber = Rc::<str>::from("");
        each_event(logs, |position, _, at_ms, payload| {
            let from = (position, Rc::clone(&no_subscriber));
            let is_original = self.dead_letters.range(from..).next().is_some_and(|(due, _)| due.0 == position);
            if (is_original || is_addressed(payload))
                && let Ok(record) = EventRecord::decode(Bytes::copy_from_slice(payload))
            {
                copies.note(&self, (position, at_ms), &record);
            }
            Ok(())
        })?;
        self.dead_letters.retain(|due, _| copies.texts.contains_key(&due.0));
        let ends = self.ends_of(&copies, logs)?;
        self.dead_letters.retain(|due, how| match copies.newest_of(due, *how).map(|copy| ends.get(&copy)) {
            None => true,
            Some(Some(DeadLetterState::Open(again))) => {
                *how = *again;
                true
            }
            Some(_) => false,
        });
        Ok(self.dead_letters)
    }

    /// The outcomes of the newest copies, as far as they have one.
    fn ends_of(&self, copies: &RedriveCopies, logs: &[PathBuf]) -> Result<HashMap<DeadLetterKey, DeadLetterState>> {
        let newest: HashSet<DeadLetterKey> =
            self.dead_letters.iter().filter_map(|(due, how)| copies.newest_of(due, *how)).collect();
        let mut ends = HashMap::new();
        if newest.is_empty() {
            return Ok(ends);
        }
        each_note(logs, |position, note| {
            let (Some(end), Some(name)) = (end(&note), self.names.get(note.subscriber)) else { return };
            let due = (position, Rc::clone(name));
            if newest.contains(&due) {
                ends.insert(due, end);
            }
        })?;
        Ok(ends)
    }
}

/// What the events say about dead letters.
#[derive(Default)]
struct RedriveCopies {
    /// Dead letters whose event still exists and is no copy itself: each with a hash of what identifies its
    /// event for its sender.
    texts: BTreeMap<EventPosition, u64>,
    /// The newest copy of each dead letter, with its time.
    newest: HashMap<DeadLetterKey, (u64, EventPosition)>,
    /// Copies without an original, by the hash of what identifies the event for its sender, and by their
    /// subscriber. Those that do not fit count as not sent.
    unnamed: HashMap<(u64, Rc<str>), (u64, EventPosition)>,
}

impl RedriveCopies {
    fn note(&mut self, page: &DeadLetterPage, (position, at_ms): (EventPosition, u64), record: &EventRecord) {
        if !record.is_addressed {
            self.texts.insert(position, text_of(record));
            return;
        }
        let addressee = record.addressee();
        let Some(name) = addressee.and_then(|name| page.names.get(&*name)) else { return };
        let made = (at_ms, position);
        let newest = match record.original() {
            Some(original) => {
                let due = (original, Rc::clone(name));
                if !page.dead_letters.contains_key(&due) {
                    return;
                }
                self.newest.entry(due).or_insert(made)
            }
            None if self.unnamed.len() >= PAGE_DEAD_LETTERS_MAX => return,
            None => self.unnamed.entry((text_of(record), Rc::clone(name))).or_insert(made),
        };
        *newest = made.max(*newest);
    }

    /// A copy without an original can only belong to a dead letter that was given up before it.
    fn newest_of(&self, key: &DeadLetterKey, how: DeadLetter) -> Option<DeadLetterKey> {
        let (position, name) = key;
        let text = self.texts.get(position)?;
        let unnamed = self.unnamed.get(&(*text, Rc::clone(name))).filter(|(at_ms, _)| *at_ms >= how.at_ms);
        let (_, copy) = self.newest.get(key).max(unnamed)?;
        Some((*copy, Rc::clone(name)))
    }
}

/// Hash of `id` and `source`, which identify an event for its sender.
fn text_of(record: &EventRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.attribute("id"), record.attribute("source")).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const QUERY: DeadLetterQuery<'_> = DeadLetterQuery { subscriber: None, until_ms: 100 };

    fn note(what: DeliveryOutcome, subscriber: &str, status: u16, at_ms: u64) -> DeliveryLogEntry<'_> {
        let position = wal::LogPosition::new(0);
        DeliveryLogEntry { what, subscriber, position, at_ms, status, attempt: 0, took: Duration::ZERO }
    }

    fn positions(page: &DeadLetterPage) -> Vec<(u64, &str)> {
        page.dead_letters.keys().map(|((_, position), name)| (*position, &**name)).collect()
    }

    /// In all cases the next page begins with the first dead letter that did not fit into this one.
    #[test]
    fn pages_continue_without_gap() {
        let mut page = DeadLetterPage::new(3, None);
        for position in [5, 1, 9, 7] {
            page.add(&QUERY, (0, position), &note(DeliveryOutcome::Dropped, "s", 0, 1));
        }
        assert_eq!(
            (positions(&page), page.beyond.clone()),
            (vec![(1, "s"), (5, "s"), (7, "s")], Some(((0, 9), "s".into())))
        );
        page.add(&QUERY, (0, 5), &note(DeliveryOutcome::Replied, "s", 202, 2));
        page.add(&QUERY, (0, 11), &note(DeliveryOutcome::Dropped, "s", 0, 3));
        assert_eq!(positions(&page), [(1, "s"), (7, "s")]);

        let mut next = DeadLetterPage::new(3, page.beyond);
        for position in [1, 7, 9, 11] {
            next.add(&QUERY, (0, position), &note(DeliveryOutcome::Dropped, "s", 0, 1));
        }
        assert_eq!((positions(&next), next.beyond.clone()), (vec![(9, "s"), (11, "s")], None));
    }

    #[test]
    fn last_outcome_counts_per_subscriber() {
        let mut page = DeadLetterPage::new(9, None);
        for (what, subscriber, status, at_ms) in [
            (DeliveryOutcome::Replied, "a", 503, 1),
            (DeliveryOutcome::DeadLettered, "a", 0, 2),
            (DeliveryOutcome::Dropped, "b", 0, 2),
            (DeliveryOutcome::Replied, "a", 200, 3),
            (DeliveryOutcome::Dropped, "late", 0, 101),
        ] {
            page.add(&QUERY, (1, 1), &note(what, subscriber, status, at_ms));
        }
        assert_eq!(positions(&page), [(1, "b")]);
        let one = DeadLetterQuery { subscriber: Some("c"), ..QUERY };
        page.add(&one, (1, 2), &note(DeliveryOutcome::Dropped, "b", 0, 3));
        assert_eq!(positions(&page), [(1, "b")]);
    }
}

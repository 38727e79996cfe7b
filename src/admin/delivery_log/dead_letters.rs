//! Letters: events that a subscriber gave up, and that nobody has sent to it since with more luck.
//!
//! Only an event that came in by itself is a letter. A copy that was sent of it stands for it: if the newest was given up too
//! the letter is as open as before, if it was delivered there is none, and while it is under way nobody needs another.
//!
//! A letter is found in notes, its copies among the events, what became of those in notes again. So the logs are read in
//! pages of letters, three times for each: what is kept in memory does not grow with what was given up.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;
use axum::body::Bytes;
use dataplane::events::delivery_log::{DeliveryLogEntry, DeliveryOutcome};
use dataplane::events::record::{EventPosition, EventRecord, is_addressed};

use super::{each_event, each_note};

/// Letters that are looked at together: some 200 bytes each.
const PAGE_DEAD_LETTERS_MAX: usize = 100_000;

/// An event, and the durable name of who was to get it: two may give up the same one.
pub(super) type DeadLetterKey = (EventPosition, Rc<str>);

/// Open letters.
pub(super) type DeadLetters = BTreeMap<DeadLetterKey, DeadLetter>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeadLetter {
    pub(super) what: DeliveryOutcome,
    pub(super) at_ms: u64,
}

/// Which letters are wanted.
pub(super) struct DeadLetterQuery<'a> {
    /// `None`: everybody's.
    pub(super) subscriber: Option<&'a str>,
    /// What was given up later is left for the next time, or sending again would not end.
    pub(super) until_ms: u64,
}

/// Calls `take` with all open letters, page by page, in the order of their places.
pub(super) fn each_page(
    logs: &[PathBuf],
    wish: &DeadLetterQuery<'_>,
    mut take: impl FnMut(DeadLetters) -> Result<()>,
) -> Result<()> {
    let mut page = DeadLetterPage::new(PAGE_DEAD_LETTERS_MAX, None);
    loop {
        each_note(logs, |place, note| page.add(wish, place, &note))?;
        let beyond = page.beyond.take();
        take(page.open(logs)?)?;
        match beyond {
            Some(beyond) => page = DeadLetterPage::new(PAGE_DEAD_LETTERS_MAX, Some(beyond)),
            None => return Ok(()),
        }
    }
}

/// How a delivery ended, if it did with this note.
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

/// The first so many letters from a place on.
struct DeadLetterPage {
    limit: usize,
    from: Option<DeadLetterKey>,
    dead_letters: DeadLetters,
    /// The first that had no room. Nothing from it on is in the page, also when there is room again.
    beyond: Option<DeadLetterKey>,
    /// Of subscribers, each once.
    names: BTreeSet<Rc<str>>,
}

impl DeadLetterPage {
    fn new(letters_max: usize, from: Option<DeadLetterKey>) -> Self {
        Self { limit: letters_max, from, dead_letters: DeadLetters::new(), beyond: None, names: BTreeSet::new() }
    }

    /// Notes come in the order of time, so that the last end of an event counts: one that was dead-lettered may have
    /// been sent again after a crash.
    fn add(&mut self, wish: &DeadLetterQuery<'_>, place: EventPosition, note: &DeliveryLogEntry<'_>) {
        let Some(end) = end(note).filter(|_| wish.subscriber.is_none_or(|name| name == note.subscriber)) else {
            return;
        };
        match end {
            DeadLetterState::Delivered => {
                if let Some(name) = self.names.get(note.subscriber) {
                    self.dead_letters.remove(&(place, Rc::clone(name)));
                }
            }
            DeadLetterState::Open(how) if how.at_ms <= wish.until_ms => {
                let due = (place, self.name(note.subscriber));
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

    /// Leaves what nobody has sent since with more luck.
    fn open(mut self, logs: &[PathBuf]) -> Result<DeadLetters> {
        if self.dead_letters.is_empty() {
            return Ok(self.dead_letters);
        }
        let mut copies = RedriveCopies::default();
        let nobody = Rc::<str>::from("");
        each_event(logs, |place, _, at_ms, payload| {
            let from = (place, Rc::clone(&nobody));
            let is_letter = self.dead_letters.range(from..).next().is_some_and(|(due, _)| due.0 == place);
            if (is_letter || is_addressed(payload))
                && let Ok(record) = EventRecord::decode(Bytes::copy_from_slice(payload))
            {
                copies.note(&self, (place, at_ms), &record);
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

    /// How the newest copies of letters ended, as far as they have.
    fn ends_of(&self, copies: &RedriveCopies, logs: &[PathBuf]) -> Result<HashMap<DeadLetterKey, DeadLetterState>> {
        let newest: HashSet<DeadLetterKey> =
            self.dead_letters.iter().filter_map(|(due, how)| copies.newest_of(due, *how)).collect();
        let mut ends = HashMap::new();
        if newest.is_empty() {
            return Ok(ends);
        }
        each_note(logs, |place, note| {
            let (Some(end), Some(name)) = (end(&note), self.names.get(note.subscriber)) else { return };
            let due = (place, Rc::clone(name));
            if newest.contains(&due) {
                ends.insert(due, end);
            }
        })?;
        Ok(ends)
    }
}

/// What the events say of letters.
#[derive(Default)]
struct RedriveCopies {
    /// Letters that are still there, and are no copies themselves: each with what names its event for its sender.
    texts: BTreeMap<EventPosition, u64>,
    /// The newest copy of each letter, with its time.
    newest: HashMap<DeadLetterKey, (u64, EventPosition)>,
    /// Copies that do not say of what they are, by what names the event for its sender, and by whom they are for. Those that
    /// have no room count as not sent.
    unnamed: HashMap<(u64, Rc<str>), (u64, EventPosition)>,
}

impl RedriveCopies {
    fn note(&mut self, page: &DeadLetterPage, (place, at_ms): (EventPosition, u64), record: &EventRecord) {
        if !record.is_addressed {
            self.texts.insert(place, text_of(record));
            return;
        }
        let addressee = record.addressee();
        let Some(name) = addressee.and_then(|name| page.names.get(&*name)) else { return };
        let made = (at_ms, place);
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

    /// A copy that does not say of what it is can only be one of a letter that was given up before.
    fn newest_of(&self, letter: &DeadLetterKey, how: DeadLetter) -> Option<DeadLetterKey> {
        let (place, name) = letter;
        let text = self.texts.get(place)?;
        let unnamed = self.unnamed.get(&(*text, Rc::clone(name))).filter(|(at_ms, _)| *at_ms >= how.at_ms);
        let (_, copy) = self.newest.get(letter).max(unnamed)?;
        Some((*copy, Rc::clone(name)))
    }
}

/// `id` and `source`, by which an event is known to its sender.
fn text_of(record: &EventRecord) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.attribute("id"), record.attribute("source")).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WISH: DeadLetterQuery<'_> = DeadLetterQuery { subscriber: None, until_ms: 100 };

    fn note(what: DeliveryOutcome, subscriber: &str, status: u16, at_ms: u64) -> DeliveryLogEntry<'_> {
        let position = wal::LogPosition::new(0);
        DeliveryLogEntry { what, subscriber, position, at_ms, status, attempt: 0, took: Duration::ZERO }
    }

    fn places(page: &DeadLetterPage) -> Vec<(u64, &str)> {
        page.dead_letters.keys().map(|((_, position), name)| (*position, &**name)).collect()
    }

    /// Whatever goes and comes, the next page begins with the first letter that this one has no room for.
    #[test]
    fn pages_meet_without_a_gap() {
        let mut page = DeadLetterPage::new(3, None);
        for position in [5, 1, 9, 7] {
            page.add(&WISH, (0, position), &note(DeliveryOutcome::Dropped, "s", 0, 1));
        }
        assert_eq!(
            (places(&page), page.beyond.clone()),
            (vec![(1, "s"), (5, "s"), (7, "s")], Some(((0, 9), "s".into())))
        );
        page.add(&WISH, (0, 5), &note(DeliveryOutcome::Replied, "s", 202, 2));
        page.add(&WISH, (0, 11), &note(DeliveryOutcome::Dropped, "s", 0, 3));
        assert_eq!(places(&page), [(1, "s"), (7, "s")]);

        let mut next = DeadLetterPage::new(3, page.beyond);
        for position in [1, 7, 9, 11] {
            next.add(&WISH, (0, position), &note(DeliveryOutcome::Dropped, "s", 0, 1));
        }
        assert_eq!((places(&next), next.beyond.clone()), (vec![(9, "s"), (11, "s")], None));
    }

    #[test]
    fn the_last_end_of_an_event_counts_for_each_subscriber_by_itself() {
        let mut page = DeadLetterPage::new(9, None);
        for (what, subscriber, status, at_ms) in [
            (DeliveryOutcome::Replied, "a", 503, 1),
            (DeliveryOutcome::DeadLettered, "a", 0, 2),
            (DeliveryOutcome::Dropped, "b", 0, 2),
            (DeliveryOutcome::Replied, "a", 200, 3),
            (DeliveryOutcome::Dropped, "late", 0, 101),
        ] {
            page.add(&WISH, (1, 1), &note(what, subscriber, status, at_ms));
        }
        assert_eq!(places(&page), [(1, "b")]);
        let one = DeadLetterQuery { subscriber: Some("c"), ..WISH };
        page.add(&one, (1, 2), &note(DeliveryOutcome::Dropped, "b", 0, 3));
        assert_eq!(places(&page), [(1, "b")]);
    }
}

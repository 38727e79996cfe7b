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
use dataplane::events::journal::{Note, What};
use dataplane::events::record::{Place, Record, is_addressed};

use super::{each_event, each_note};

/// Letters that are looked at together: some 200 bytes each.
const PAGE_LETTERS_MAX: usize = 100_000;

/// An event, and the durable name of who was to get it: two may give up the same one.
pub(super) type Due = (Place, Rc<str>);

/// Open letters.
pub(super) type Letters = BTreeMap<Due, GivenUp>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GivenUp {
    pub(super) what: What,
    pub(super) at_ms: u64,
}

/// Which letters are wanted.
pub(super) struct Wish<'a> {
    /// `None`: everybody's.
    pub(super) subscriber: Option<&'a str>,
    /// What was given up later is left for the next time, or sending again would not end.
    pub(super) until_ms: u64,
}

/// Calls `take` with all open letters, page by page, in the order of their places.
pub(super) fn each_page(
    logs: &[PathBuf],
    wish: &Wish<'_>,
    mut take: impl FnMut(Letters) -> Result<()>,
) -> Result<()> {
    let mut page = Page::new(PAGE_LETTERS_MAX, None);
    loop {
        each_note(logs, |place, note| page.hear(wish, place, &note))?;
        let beyond = page.beyond.take();
        take(page.open(logs)?)?;
        match beyond {
            Some(beyond) => page = Page::new(PAGE_LETTERS_MAX, Some(beyond)),
            None => return Ok(()),
        }
    }
}

/// How a delivery ended, if it did with this note.
fn end(note: &Note<'_>) -> Option<End> {
    match note.what {
        What::DeadLettered | What::Dropped => {
            Some(End::GivenUp(GivenUp { what: note.what, at_ms: note.at_ms }))
        }
        What::Asked if (200..300).contains(&note.status) => Some(End::Delivered),
        _ => None,
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    Delivered,
    GivenUp(GivenUp),
}

/// The first so many letters from a place on.
struct Page {
    letters_max: usize,
    from: Option<Due>,
    letters: Letters,
    /// The first that had no room. Nothing from it on is in the page, also when there is room again.
    beyond: Option<Due>,
    /// Of subscribers, each once.
    names: BTreeSet<Rc<str>>,
}

impl Page {
    fn new(letters_max: usize, from: Option<Due>) -> Self {
        Self { letters_max, from, letters: Letters::new(), beyond: None, names: BTreeSet::new() }
    }

    /// Notes come in the order of time, so that the last end of an event counts: one that was dead-lettered may have
    /// been sent again after a crash.
    fn hear(&mut self, wish: &Wish<'_>, place: Place, note: &Note<'_>) {
        let Some(end) = end(note).filter(|_| wish.subscriber.is_none_or(|name| name == note.subscriber))
        else {
            return;
        };
        match end {
            End::Delivered => {
                if let Some(name) = self.names.get(note.subscriber) {
                    self.letters.remove(&(place, Rc::clone(name)));
                }
            }
            End::GivenUp(how) if how.at_ms <= wish.until_ms => {
                let due = (place, self.name(note.subscriber));
                self.add(due, how);
            }
            End::GivenUp(_) => {}
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

    fn add(&mut self, due: Due, how: GivenUp) {
        let is_before = self.from.as_ref().is_some_and(|from| due < *from);
        let is_beyond = self.beyond.as_ref().is_some_and(|beyond| due >= *beyond);
        if is_before || is_beyond {
            return;
        }
        self.letters.insert(due, how);
        if self.letters.len() > self.letters_max {
            self.beyond = self.letters.pop_last().map(|(due, _)| due);
        }
    }

    /// Leaves what nobody has sent since with more luck.
    fn open(mut self, logs: &[PathBuf]) -> Result<Letters> {
        if self.letters.is_empty() {
            return Ok(self.letters);
        }
        let mut copies = Copies::default();
        let nobody = Rc::<str>::from("");
        each_event(logs, |place, _, at_ms, payload| {
            let from = (place, Rc::clone(&nobody));
            let is_letter = self.letters.range(from..).next().is_some_and(|(due, _)| due.0 == place);
            if (is_letter || is_addressed(payload))
                && let Ok(record) = Record::decode(Bytes::copy_from_slice(payload))
            {
                copies.note(&self, (place, at_ms), &record);
            }
            Ok(())
        })?;
        self.letters.retain(|due, _| copies.texts.contains_key(&due.0));
        let ends = self.ends_of(&copies, logs)?;
        self.letters.retain(|due, how| match copies.newest_of(due, *how).map(|copy| ends.get(&copy)) {
            None => true,
            Some(Some(End::GivenUp(again))) => {
                *how = *again;
                true
            }
            Some(_) => false,
        });
        Ok(self.letters)
    }

    /// How the newest copies of letters ended, as far as they have.
    fn ends_of(&self, copies: &Copies, logs: &[PathBuf]) -> Result<HashMap<Due, End>> {
        let newest: HashSet<Due> =
            self.letters.iter().filter_map(|(due, how)| copies.newest_of(due, *how)).collect();
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
struct Copies {
    /// Letters that are still there, and are no copies themselves: each with what names its event for its sender.
    texts: BTreeMap<Place, u64>,
    /// The newest copy of each letter, with its time.
    newest: HashMap<Due, (u64, Place)>,
    /// Copies that do not say of what they are, by what names the event for its sender, and by whom they are for. Those that
    /// have no room count as not sent.
    unnamed: HashMap<(u64, Rc<str>), (u64, Place)>,
}

impl Copies {
    fn note(&mut self, page: &Page, (place, at_ms): (Place, u64), record: &Record) {
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
                if !page.letters.contains_key(&due) {
                    return;
                }
                self.newest.entry(due).or_insert(made)
            }
            None if self.unnamed.len() >= PAGE_LETTERS_MAX => return,
            None => self.unnamed.entry((text_of(record), Rc::clone(name))).or_insert(made),
        };
        *newest = made.max(*newest);
    }

    /// A copy that does not say of what it is can only be one of a letter that was given up before.
    fn newest_of(&self, letter: &Due, how: GivenUp) -> Option<Due> {
        let (place, name) = letter;
        let text = self.texts.get(place)?;
        let unnamed = self.unnamed.get(&(*text, Rc::clone(name))).filter(|(at_ms, _)| *at_ms >= how.at_ms);
        let (_, copy) = self.newest.get(letter).max(unnamed)?;
        Some((*copy, Rc::clone(name)))
    }
}

/// `id` and `source`, by which an event is known to its sender.
fn text_of(record: &Record) -> u64 {
    let mut hasher = DefaultHasher::new();
    (record.attribute("id"), record.attribute("source")).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WISH: Wish<'_> = Wish { subscriber: None, until_ms: 100 };

    fn note(what: What, subscriber: &str, status: u16, at_ms: u64) -> Note<'_> {
        let position = wal::Position::new(0);
        Note { what, subscriber, position, at_ms, status, attempt: 0, took: Duration::ZERO }
    }

    fn places(page: &Page) -> Vec<(u64, &str)> {
        page.letters.keys().map(|((_, position), name)| (*position, &**name)).collect()
    }

    /// Whatever goes and comes, the next page begins with the first letter that this one has no room for.
    #[test]
    fn pages_meet_without_a_gap() {
        let mut page = Page::new(3, None);
        for position in [5, 1, 9, 7] {
            page.hear(&WISH, (0, position), &note(What::Dropped, "s", 0, 1));
        }
        assert_eq!(
            (places(&page), page.beyond.clone()),
            (vec![(1, "s"), (5, "s"), (7, "s")], Some(((0, 9), "s".into())))
        );
        page.hear(&WISH, (0, 5), &note(What::Asked, "s", 202, 2));
        page.hear(&WISH, (0, 11), &note(What::Dropped, "s", 0, 3));
        assert_eq!(places(&page), [(1, "s"), (7, "s")]);

        let mut next = Page::new(3, page.beyond);
        for position in [1, 7, 9, 11] {
            next.hear(&WISH, (0, position), &note(What::Dropped, "s", 0, 1));
        }
        assert_eq!((places(&next), next.beyond.clone()), (vec![(9, "s"), (11, "s")], None));
    }

    #[test]
    fn the_last_end_of_an_event_counts_for_each_subscriber_by_itself() {
        let mut page = Page::new(9, None);
        for (what, subscriber, status, at_ms) in [
            (What::Asked, "a", 503, 1),
            (What::DeadLettered, "a", 0, 2),
            (What::Dropped, "b", 0, 2),
            (What::Asked, "a", 200, 3),
            (What::Dropped, "late", 0, 101),
        ] {
            page.hear(&WISH, (1, 1), &note(what, subscriber, status, at_ms));
        }
        assert_eq!(places(&page), [(1, "b")]);
        let one = Wish { subscriber: Some("c"), ..WISH };
        page.hear(&one, (1, 2), &note(What::Dropped, "b", 0, 3));
        assert_eq!(places(&page), [(1, "b")]);
    }
}

//! The delivery log: the outcome of each delivery attempt, as records of the write-ahead log itself.
//!
//! Entries are collected in a page and appended to a stream of their own when the page is full or
//! [`DELIVERY_LOG_INTERVAL`](super::limits::DELIVERY_LOG_INTERVAL) old, or when cursors are written alone. No
//! task waits for them, other flushes include them, and a kill loses the last page. That an event was given up
//! is recorded only here, so its page is in the log no later than the cursor that marks the event done. No
//! subscriber reads the stream, so it retains no segment: history reaches back as far as the log's files do.
//!
//! ```text
//! 0  version   u8   1
//! 1  names     u16  count, little endian like all numbers here
//! 3  base      u64  ms since 1970
//! 11 names     each: length u16, UTF-8: subscribers, by their durable names
//!    entries   each 23 bytes: what u8, subscriber u16, status u16, attempt u16, position u64,
//!              ms after base u32, latency in µs u32
//! ```

use std::cell::{Cell, RefCell};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ring::Notify;
use wal::LogPosition;

use super::limits::DELIVERY_LOG_PAGE_BYTES;

/// Name of the stream in the log. No object's stream can have it: their names contain slashes.
pub const STREAM: &str = "journal";
const VERSION: u8 = 1;
const FIXED_BYTES: usize = 11;
const NOTE_BYTES: usize = 23;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeliveryOutcome {
    /// A request to the subscriber ended.
    Replied = 0,
    /// A request to the reply's target ended.
    ReplySent = 1,
    /// A reply was stored in the log.
    ReplyStored = 2,
    /// A request to the dead letter sink ended.
    DeadLetterSent = 3,
    DeadLettered = 4,
    Dropped = 5,
    /// Retention dropped what the subscriber had not read before this position: one entry for all of it.
    Expired = 6,
    /// The subscriber or the whole stream was deleted with undelivered events: one entry for all of them,
    /// by a name for [`abandoned_subscriber`], since the table contains neither any more.
    Abandoned = 7,
}

impl DeliveryOutcome {
    const ALL: [Self; 8] = [
        Self::Replied,
        Self::ReplySent,
        Self::ReplyStored,
        Self::DeadLetterSent,
        Self::DeadLettered,
        Self::Dropped,
        Self::Expired,
        Self::Abandoned,
    ];

    /// Whether the event was given up: without this entry it would be taken for delivered.
    const fn is_given_up(self) -> bool {
        matches!(self, Self::DeadLettered | Self::Dropped | Self::Expired)
    }

    /// Name for users and programs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Replied => "attempt",
            Self::ReplySent => "reply sent",
            Self::ReplyStored => "reply stored",
            Self::DeadLetterSent => "dead letter sent",
            Self::DeadLettered => "dead-lettered",
            Self::Dropped => "dropped",
            Self::Expired => "dropped by retention",
            Self::Abandoned => "not delivered: the subscriber was deleted",
        }
    }
}

/// One entry of the delivery log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryLogEntry<'a> {
    pub what: DeliveryOutcome,
    pub subscriber: &'a str,
    /// The position of the event in this log; for [`DeliveryOutcome::Expired`], the first one that was
    /// kept; for [`DeliveryOutcome::Abandoned`], the first one after the deletion (0 in entries of earlier
    /// versions).
    pub position: LogPosition,
    pub at_ms: u64,
    /// Below 100 there was no response, and [`contract::post_error::PostError::reason`] says why; 0 also where
    /// no request was made.
    pub status: u16,
    /// Starts at 0.
    pub attempt: u16,
    pub took: Duration,
}

impl<'a> DeliveryLogEntry<'a> {
    /// The entry of a deleted subscriber, by its [`abandoned_name`]; `end` is where its events ended.
    pub(super) fn abandoned(name: &'a str, end: LogPosition) -> Self {
        DeliveryLogEntry {
            what: DeliveryOutcome::Abandoned,
            subscriber: name,
            position: end,
            at_ms: 0, // set by the delivery log
            status: 0,
            attempt: 0,
            took: Duration::ZERO,
        }
    }
}

/// A stream and one of its subscribers, by their names in the log, which contain no spaces.
pub(super) fn abandoned_name(stream: &str, subscriber: &str) -> String {
    format!("{stream} {subscriber}")
}

/// Stream and subscriber, by their names in the log, of an entry of [`DeliveryOutcome::Abandoned`].
#[must_use]
pub fn abandoned_subscriber(name: &str) -> Option<(&str, &str)> {
    name.split_once(' ')
}

#[derive(Debug, Default)]
struct DeliveryLogPage {
    base_ms: u64,
    names: Vec<Box<str>>,
    by_name: HashMap<Box<str>, u16, RandomState>,
    notes: Vec<u8>,
}

impl DeliveryLogPage {
    fn add(&mut self, note: &DeliveryLogEntry<'_>) {
        if self.notes.is_empty() {
            self.base_ms = note.at_ms;
        }
        let subscriber = match self.by_name.get(note.subscriber) {
            Some(known) => *known,
            None => {
                let number = u16::try_from(self.names.len()).expect("a page holds fewer notes than that");
                self.names.push(note.subscriber.into());
                self.by_name.insert(note.subscriber.into(), number);
                number
            }
        };
        let after = u32::try_from(note.at_ms.saturating_sub(self.base_ms)).unwrap_or(u32::MAX);
        let took = u32::try_from(note.took.as_micros()).unwrap_or(u32::MAX);
        self.notes.push(note.what as u8);
        self.notes.extend(subscriber.to_le_bytes());
        self.notes.extend(note.status.to_le_bytes());
        self.notes.extend(note.attempt.to_le_bytes());
        self.notes.extend(note.position.get().to_le_bytes());
        self.notes.extend(after.to_le_bytes());
        self.notes.extend(took.to_le_bytes());
    }

    /// The page as a record; empties the page.
    fn take(&mut self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(u16::try_from(self.names.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(self.base_ms.to_le_bytes());
        for name in self.names.drain(..) {
            out.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend(name.as_bytes());
        }
        out.append(&mut self.notes);
        self.by_name.clear();
        out
    }
}

/// Calls `note` for each entry of a record. A damaged record, or one of another kind, has none.
pub fn read(record: &[u8], mut note: impl FnMut(DeliveryLogEntry<'_>)) {
    let _ = try_read(record, &mut note);
}

fn try_read(record: &[u8], note: &mut impl FnMut(DeliveryLogEntry<'_>)) -> Option<()> {
    let (fixed, mut rest) = record.split_first_chunk::<FIXED_BYTES>()?;
    let [version, n0, n1, base @ ..] = *fixed;
    if version != VERSION {
        return None;
    }
    let base_ms = u64::from_le_bytes(base);
    let mut names = Vec::new();
    for _ in 0..u16::from_le_bytes([n0, n1]) {
        let (length, tail) = rest.split_first_chunk::<2>()?;
        let (name, tail) = tail.split_at_checked(u16::from_le_bytes(*length).into())?;
        names.push(std::str::from_utf8(name).ok()?);
        rest = tail;
    }
    for bytes in rest.chunks_exact(NOTE_BYTES) {
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        note(DeliveryLogEntry {
            what: *DeliveryOutcome::ALL.get(usize::from(bytes[0]))?,
            subscriber: names.get(usize::from(short(1)))?,
            status: short(3),
            attempt: short(5),
            position: LogPosition::new(u64::from(long(7)) | u64::from(long(11)) << 32),
            at_ms: base_ms.saturating_add(long(15).into()),
            took: Duration::from_micros(long(19).into()),
        });
    }
    Some(())
}

/// The entries of one log that are not appended yet.
#[derive(Default)]
pub struct PendingEntries {
    page: RefCell<DeliveryLogPage>,
    /// The page has entries that must be written before cursors.
    is_awaited: Cell<bool>,
    /// Notified when a page begins.
    begun: Notify,
}

impl PendingEntries {
    /// Adds an entry; returns whether the page is full.
    pub(super) fn add(&self, note: &DeliveryLogEntry<'_>) -> bool {
        let mut page = self.page.borrow_mut();
        if page.notes.is_empty() {
            self.begun.ring();
        }
        page.add(note);
        if note.what.is_given_up() {
            self.is_awaited.set(true);
        }
        page.notes.len() >= DELIVERY_LOG_PAGE_BYTES
    }

    /// The page as a record, if it has entries; empties the page.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut page = self.page.borrow_mut();
        if page.notes.is_empty() {
            return None;
        }
        self.is_awaited.set(false);
        Some(page.take())
    }

    /// The same, if it has entries that must be written before cursors.
    pub(super) fn take_awaited(&self) -> Option<Vec<u8>> {
        if self.is_awaited.get() { self.take() } else { None }
    }

    /// Resolves once there is an entry.
    pub(super) async fn begun(&self) {
        let seen = self.begun.count();
        if self.page.borrow().notes.is_empty() {
            self.begun.after(seen).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn page_round_trip_keeps_entries() {
        let note = |subscriber, n: u16| DeliveryLogEntry {
            what: DeliveryOutcome::ALL[usize::from(n) % DeliveryOutcome::ALL.len()],
            subscriber,
            position: LogPosition::new(u64::from(n) << 40),
            at_ms: 1_000_000 + u64::from(n),
            status: 200 + n,
            attempt: n,
            took: Duration::from_micros(u64::from(n) * 7),
        };
        let notes: Vec<_> = (0..40).map(|n| note(["a", "b", "c"][usize::from(n) % 3], n)).collect();
        let mut page = DeliveryLogPage::default();
        for _ in 0..2 {
            notes.iter().for_each(|note| page.add(note));
            let (record, mut found) = (page.take(), 0);
            read(&record, |note| {
                assert_eq!(note, notes[found]);
                found += 1;
            });
            assert_eq!(found, notes.len());
            assert!(page.notes.is_empty() && page.names.is_empty());
        }
    }

    proptest! {
        #[test]
        fn delivery_log_reader_never_panics(bytes: Vec<u8>) {
            read(&bytes, |_| {});
            read(&[&[VERSION, 1, 0][..], &bytes].concat(), |_| {});
        }
    }
}

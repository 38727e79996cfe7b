//! Deleted subscribers in a trace: their entries, and what was abandoned with them.

use std::collections::BTreeMap;

use dataplane::broker::delivery_log::{self, DeliveryLogEntry};
use dataplane::record::EventPosition;
use dataplane::table::EventStream;
use serde_json::{Value, json};

use super::{ShownEntry, line};

/// A subscriber that was deleted, together with its undelivered events.
pub(super) struct DeletedSubscriber {
    core: usize,
    pub(super) stream: String,
    subscriber: String,
    at_ms: u64,
    /// Later events came after it was deleted; `None` where an earlier version did not record it.
    end: Option<u64>,
    line: Value,
}

/// Where and when an event came in, and its subscriber, if it is for one only.
pub(super) struct EventArrival<'a> {
    pub(super) position: EventPosition,
    pub(super) stream: &'a str,
    pub(super) at_ms: u64,
    pub(super) addressee: Option<&'a str>,
}

impl DeletedSubscriber {
    pub(super) fn read(core: usize, note: &DeliveryLogEntry<'_>) -> Option<Self> {
        let (stream, subscriber) = delivery_log::abandoned_subscriber(note.subscriber)?;
        let (stream, subscriber) = (stream.to_owned(), subscriber.to_owned());
        let end = Some(note.position.get()).filter(|end| *end > 0);
        Some(Self { core, stream, subscriber, at_ms: note.at_ms, end, line: line(note) })
    }

    fn covers(&self, event: &EventArrival<'_>) -> bool {
        let (core, position) = event.position;
        (self.core, &*self.stream) == (core, event.stream)
            && event.at_ms <= self.at_ms
            && self.end.is_none_or(|end| position < end)
            && event.addressee.is_none_or(|only| only == self.subscriber)
    }
}

#[derive(Default)]
struct DeletedRow<'a> {
    lines: Vec<&'a Value>,
    ended: Option<&'static str>,
}

/// One row for each subscriber that is not in `stream`, if that still exists.
pub(super) fn rows(
    stream: Option<&EventStream>,
    event: &EventArrival<'_>,
    notes: &[ShownEntry],
    left: &[DeletedSubscriber],
) -> Vec<Value> {
    let is_gone = |name: &str| stream.is_none_or(|stream| stream.subscribers.iter().all(|one| *one.name != *name));
    let mut rows = BTreeMap::<&str, DeletedRow<'_>>::new();
    for (name, line, end) in notes.iter().filter(|(name, ..)| is_gone(name)) {
        let row = rows.entry(name).or_default();
        row.lines.push(line);
        row.ended = end.or(row.ended);
    }
    for one in left.iter().filter(|one| one.covers(event) && is_gone(&one.subscriber)) {
        let row = rows.entry(&one.subscriber).or_default();
        if row.ended.is_none() {
            row.lines.push(&one.line);
        }
    }
    rows.into_iter()
        .map(|(name, DeletedRow { lines, ended })| {
            json!({ "subscriber": name, "outcome": ended.unwrap_or("gone"), "notes": lines })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deleted subscriber has outcomes for some events, and abandoned the rest of those that came before.
    #[test]
    fn deleted_subscriber_is_reported() {
        let event =
            |core, at_ms, addressee| EventArrival { position: (core, 50), stream: "broker/ns/b/1", at_ms, addressee };
        let one = |name: &str| {
            let (stream, line) = ("broker/ns/b/1".to_owned(), json!("left"));
            DeletedSubscriber { core: 0, stream, subscriber: name.into(), at_ms: 1000, end: None, line }
        };
        let notes = [
            ("had".to_owned(), json!("failed"), None),
            ("had".to_owned(), json!("taken"), Some("delivered")),
            ("lost".to_owned(), json!("failed"), None),
        ];
        let left = [one("had"), one("lost"), one("never")];
        let row = |name, verdict, notes| json!({ "subscriber": name, "outcome": verdict, "notes": notes });
        let had = || row("had", "delivered", json!(["failed", "taken"]));
        let never = || row("never", "gone", json!(["left"]));
        assert_eq!(
            rows(None, &event(0, 1000, None), &notes, &left),
            [had(), row("lost", "gone", json!(["failed", "left"])), never()]
        );
        let without = [had(), row("lost", "gone", json!(["failed"]))];
        assert_eq!(rows(None, &event(0, 1001, None), &notes, &left), without, "it came later");
        assert_eq!(rows(None, &event(1, 1000, None), &notes, &left), without, "another core's");
        let ended = |end| DeletedSubscriber { end: Some(end), ..one("never") };
        assert_eq!(rows(None, &event(0, 1000, None), &[], &[ended(50)]), [] as [Value; 0], "it came after the end");
        assert_eq!(rows(None, &event(0, 1000, None), &[], &[ended(51)]), [never()]);
        let replay = event(0, 1000, Some("never"));
        assert_eq!(rows(None, &replay, &[], &left), [never()], "a replay for one of them");
    }
}

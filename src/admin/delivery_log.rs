//! The delivery log on the admin listener: the outcomes of events, read from the files of the log by a
//! thread that may block, and replays.
//!
//! The files are read while the cores write them, and history reaches back as far as they do.

mod active_redrives;
mod cursors;
mod dead_letters;
mod deleted_subscribers;
mod replay;
mod subscriber_ref;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dataplane::broker::delivery_log::{self, DeliveryOutcome};
use dataplane::filter::matches;
use dataplane::filter::steps::Steps;
use dataplane::post_error::PostError;
use dataplane::record::{EventPosition, EventRecord};
use dataplane::table::{RoutingTable, Subscriber};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminServer;
pub(crate) use active_redrives::ActiveRedrives;
use cursors::{CursorSnapshot, CursorSnapshots, NOTED_AFTER};
use dead_letters::{DeadLetterKey, DeadLetterQuery};
use deleted_subscribers::{DeletedSubscriber, EventArrival};
pub(super) use replay::replay;

/// Default number of events in a trace.
const EVENTS_DEFAULT: usize = 100;
/// Maximum number of events in one response, the newest: it is built in memory.
const EVENTS_MAX: usize = 10_000;
/// Bytes of an event's data that a trace shows: a person reads no more, and a response has many events.
const DATA_SHOWN_MAX: usize = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceQuery {
    id: Option<String>,
    source: Option<String>,
    /// A time, or an age (`10m`).
    since: Option<String>,
    /// `NAMESPACE/NAME`, optionally prefixed by `trigger/` or `subscription/`.
    trigger: Option<String>,
    limit: Option<usize>,
    /// Show the events' data too.
    #[serde(default)]
    data: bool,
}

struct TraceResult {
    stream: Box<str>,
    at_ms: u64,
    record: EventRecord,
}

pub(super) async fn trace(State(admin): State<Arc<AdminServer>>, Query(wanted): Query<TraceQuery>) -> Response {
    answer(tokio::task::spawn_blocking(move || trace_of(&admin, &wanted)).await)
}

pub(super) async fn dead_letters(State(admin): State<Arc<AdminServer>>, Query(wanted): Query<TraceQuery>) -> Response {
    answer(tokio::task::spawn_blocking(move || list_dead_letters(&admin, &wanted)).await)
}

fn answer(outcome: Result<Result<Value>, tokio::task::JoinError>) -> Response {
    match outcome {
        Ok(Ok(value)) => Json(value).into_response(),
        Ok(Err(why)) => (StatusCode::BAD_REQUEST, format!("{why:#}\n")).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the reading thread panicked\n").into_response(),
    }
}

/// An age like `10m`, or a time (RFC 3339), in milliseconds since 1970.
fn time(text: &str) -> Result<u64> {
    let at = match text.parse::<SignedDuration>() {
        Ok(ago) => Timestamp::now() - ago.abs(),
        Err(_) => text
            .parse::<Timestamp>()
            .with_context(|| format!("{text:?} is not a time: use 10m, or 2026-01-02T03:04:05Z"))?,
    };
    Ok(u64::try_from(at.as_millisecond()).unwrap_or(0))
}

fn shown(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| at_ms.to_string(), |at| format!("{at:.3}"))
}

/// Calls back for every event of the logs, in no order across them; a compacted one may come twice. Returns
/// the contents of each log.
fn each_event(
    folders: &[PathBuf],
    mut look: impl FnMut(EventPosition, &str, u64, &[u8]) -> std::io::Result<()>,
) -> Result<Vec<wal::LogInspection>> {
    let read = folders.iter().enumerate().map(|(nth, folder)| {
        let mut show = |entry: &wal::InspectedRecord<'_>| match (entry.stream, entry.kind) {
            (Some(stream), "event" | "moved") if stream != delivery_log::STREAM => {
                look((nth, entry.position.get()), stream, entry.at_ms, entry.payload)
            }
            _ => Ok(()),
        };
        wal::dump(folder, &mut |_, _| {}, &mut show).with_context(|| format!("{}", folder.display()))
    });
    read.collect()
}

/// Calls back for every delivery log entry. Returns the contents of each log.
fn each_note(
    folders: &[PathBuf],
    mut look: impl FnMut(EventPosition, delivery_log::DeliveryLogEntry<'_>),
) -> Result<Vec<wal::LogInspection>> {
    let read = folders.iter().enumerate().map(|(nth, folder)| {
        let mut show = |entry: &wal::InspectedRecord<'_>| {
            if entry.stream == Some(delivery_log::STREAM) && entry.kind == "event" {
                delivery_log::read(entry.payload, |note| look((nth, note.position.get()), note));
            }
            Ok(())
        };
        wal::dump(folder, &mut |_, _| {}, &mut show).with_context(|| format!("{}", folder.display()))
    });
    read.collect()
}

/// Runs on a thread that may block.
fn trace_of(admin: &AdminServer, wanted: &TraceQuery) -> Result<Value> {
    let since = wanted.since.as_deref().map(time).transpose()?.unwrap_or(0);
    let limit = wanted.limit.unwrap_or(EVENTS_DEFAULT).min(EVENTS_MAX);
    let is = |record: &EventRecord, name: &str, value: &Option<String>| {
        value.as_deref().is_none_or(|value| record.attribute(name) == Some(value))
    };
    let (mut found, began) = (BTreeMap::<EventPosition, TraceResult>::new(), Instant::now());
    // Each core's log has positions of its own, so the oldest event is determined by time.
    let mut by_age = BTreeSet::<(u64, EventPosition)>::new();
    let before = each_event(&admin.logs, |position, stream, at_ms, payload| {
        let Ok(record) = EventRecord::decode(Bytes::copy_from_slice(payload)) else { return Ok(()) };
        if at_ms >= since && is(&record, "id", &wanted.id) && is(&record, "source", &wanted.source) {
            found.insert(position, TraceResult { stream: stream.into(), at_ms, record });
            by_age.insert((at_ms, position));
            if by_age.len() > limit
                && let Some((_, oldest)) = by_age.pop_first()
            {
                found.remove(&oldest);
            }
        }
        Ok(())
    })?;
    let mut notes = BTreeMap::<EventPosition, Vec<ShownEntry>>::new();
    let streams: BTreeSet<&str> = found.values().map(|event| &*event.stream).collect();
    let mut entries = RangeEntries::default();
    #[expect(clippy::disallowed_methods, reason = "this thread may wait")]
    std::thread::sleep(NOTED_AFTER.saturating_sub(began.elapsed()));
    let after = each_note(&admin.logs, |position, note| {
        if note.what == DeliveryOutcome::Expired {
            if found.range((position.0, 0)..position).next().is_none() {
                return; // none of the requested ones
            }
            entries.expired.push(ExpiredEvents {
                core: position.0,
                kept: position.1,
                subscriber: note.subscriber.to_owned(),
                line: line(&note),
            });
        } else if note.what == DeliveryOutcome::Abandoned {
            let left = DeletedSubscriber::read(position.0, &note).filter(|left| streams.contains(&*left.stream));
            entries.left.extend(left);
        } else if found.contains_key(&position) {
            notes.entry(position).or_default().push((note.subscriber.to_owned(), line(&note), end(&note)));
        }
    })?;
    let table = admin.tables.load();
    let known = TraceContextData {
        looks: CursorSnapshots { before: CursorSnapshot::of(before), after: CursorSnapshot::of(after) },
        entries,
    };
    let events: Vec<_> = found
        .iter()
        .map(|(position, event)| {
            let notes = notes.get(position).map_or(&[][..], Vec::as_slice);
            let mut row = trace_row(&table, *position, event, notes, &known);
            if wanted.data {
                row["data"] = data(&event.record).into();
            }
            row
        })
        .collect();
    Ok(json!({ "events": events }))
}

/// The unread events that retention dropped for a subscriber: everything of the core's log before a
/// position.
struct ExpiredEvents {
    core: usize,
    kept: u64,
    subscriber: String,
    line: Value,
}

impl ExpiredEvents {
    fn covers(&self, position: EventPosition, subscriber: &str) -> bool {
        self.core == position.0 && position.1 < self.kept && self.subscriber == subscriber
    }
}

/// Entries that each describe many events.
#[derive(Default)]
struct RangeEntries {
    expired: Vec<ExpiredEvents>,
    left: Vec<DeletedSubscriber>,
}

impl RangeEntries {
    fn expired(&self, position: EventPosition, subscriber: &str) -> Option<&ExpiredEvents> {
        self.expired.iter().find(|one| one.covers(position, subscriber))
    }
}

/// What is known besides the entries of single events.
struct TraceContextData {
    looks: CursorSnapshots,
    entries: RangeEntries,
}

fn line(note: &delivery_log::DeliveryLogEntry<'_>) -> Value {
    let mut line = json!({ "time": shown(note.at_ms), "event": note.what.as_str() });
    if matches!(note.what, DeliveryOutcome::Replied | DeliveryOutcome::ReplySent | DeliveryOutcome::DeadLetterSent) {
        line["attempt"] = (u32::from(note.attempt) + 1).into();
        let unanswered = PostError::reason(note.status);
        line["status"] = unanswered.map_or(note.status, |_| 0).into();
        if let Some(why) = unanswered {
            line["error"] = why.into();
        }
        line["latency_ms"] = (note.took.as_secs_f64() * 1000.0).into();
    }
    line
}

/// The outcome, if this entry is a final one.
fn end(note: &delivery_log::DeliveryLogEntry<'_>) -> Option<&'static str> {
    match note.what {
        DeliveryOutcome::DeadLettered => Some("dead-lettered"),
        DeliveryOutcome::Dropped => Some("dropped"),
        DeliveryOutcome::Replied if (200..300).contains(&note.status) => Some("delivered"),
        _ => None,
    }
}

/// The beginning of an event's data, as far as it is text.
fn data(record: &EventRecord) -> String {
    let data = record.data_bytes();
    let shown = String::from_utf8_lossy(&data[..data.len().min(DATA_SHOWN_MAX)]);
    match data.len().checked_sub(DATA_SHOWN_MAX) {
        Some(more @ 1..) => format!("{shown}… and {more} bytes more"),
        _ => shown.into_owned(),
    }
}

/// An entry of a subscriber in its displayed form, and the outcome of the event by it.
type ShownEntry = (String, Value, Option<&'static str>);

/// One event and its outcome for each subscriber.
fn trace_row(
    table: &RoutingTable,
    position: EventPosition,
    event: &TraceResult,
    notes: &[ShownEntry],
    known: &TraceContextData,
) -> Value {
    let stream = table.streams.iter().find(|(_, stream)| stream.name == event.stream);
    let seen = match stream {
        Some((_, stream)) if stream.guards_loops => event.record.clone().arrived_at(event.at_ms),
        _ => event.record.clone(),
    };
    let of = |one: &Subscriber| -> Vec<&ShownEntry> {
        notes.iter().filter(|(subscriber, ..)| **subscriber == *one.name).collect()
    };
    let addressee = event.record.addressee();
    let mut subscribers = Vec::new();
    for subscriber in stream.iter().flat_map(|(_, stream)| &stream.subscribers) {
        if addressee.as_ref().is_some_and(|only| **only != *subscriber.name) {
            continue; // a replay for another subscriber
        }
        let notes = of(subscriber);
        let mut lines: Vec<_> = notes.iter().map(|(_, line, _)| line.clone()).collect();
        let is_wanted = || addressee.is_some() || matches(&subscriber.filter, &seen, &Steps::default());
        let verdict = verdict(position, event, &subscriber.name, &notes, known, is_wanted);
        if let ("dropped", Some(expired)) = (verdict, known.entries.expired(position, &subscriber.name))
            && notes.iter().all(|(.., end)| end.is_none())
        {
            lines.push(expired.line.clone());
        }
        subscribers.push(json!({ "subscriber": subscriber.label, "outcome": verdict, "notes": lines }));
    }
    let arrival = EventArrival { position, stream: &event.stream, at_ms: event.at_ms, addressee: addressee.as_deref() };
    subscribers.extend(deleted_subscribers::rows(
        stream.map(|(_, stream)| &**stream),
        &arrival,
        notes,
        &known.entries.left,
    ));
    let attributes: serde_json::Map<_, _> = event
        .record
        .attributes()
        .map(|attribute| (attribute.name.into_owned(), Value::String(attribute.value.into_owned())))
        .collect();
    json!({
        "stream": stream.map_or(&*event.stream, |(path, _)| &**path),
        "core": position.0, "position": position.1, "accepted": shown(event.at_ms),
        "replay": event.record.is_addressed, "attributes": attributes, "subscribers": subscribers,
    })
}

/// The state of the event for one subscriber. The cursor says whether it is done, the entries how.
fn verdict(
    position: EventPosition,
    event: &TraceResult,
    subscriber: &str,
    notes: &[&ShownEntry],
    known: &TraceContextData,
    is_wanted: impl Fn() -> bool,
) -> &'static str {
    let looks = &known.looks;
    let ended = notes.iter().rev().find_map(|(.., end)| *end); // a reply that fails is retried after a 200
    match ended {
        Some("delivered") if looks.is_open(position, &event.stream, subscriber) => "pending",
        Some(end) => end,
        None if notes.is_empty() && !is_wanted() => "filtered",
        None if known.entries.expired(position, subscriber).is_some() => "dropped",
        // It came before the subscriber did, or the filter of that time did not match it.
        None if notes.is_empty() && looks.is_delivered(position, &event.stream, subscriber) => "passed over",
        None => "pending",
    }
}

/// The open dead letters, the newest of them at the end.
fn list_dead_letters(admin: &AdminServer, wanted: &TraceQuery) -> Result<Value> {
    let table = admin.tables.load();
    let of = wanted.trigger.as_deref().map(|name| subscriber_ref::named(&table, name)).transpose()?;
    let since = wanted.since.as_deref().map(time).transpose()?.unwrap_or(0);
    let shown_max = wanted.limit.unwrap_or(EVENTS_MAX).min(EVENTS_MAX);
    let query =
        DeadLetterQuery { subscriber: of.as_ref().map(|reference| &*reference.subscriber.name), until_ms: u64::MAX };
    let (mut newest, mut left_out) = (BTreeMap::<(u64, DeadLetterKey), DeliveryOutcome>::new(), 0);
    dead_letters::each_page(&admin.logs, &query, |open| {
        for (due, how) in open.into_iter().filter(|(_, how)| how.at_ms >= since) {
            newest.insert((how.at_ms, due), how.what);
            if newest.len() > shown_max {
                newest.pop_first();
                left_out += 1;
            }
        }
        Ok(())
    })?;
    let positions: BTreeSet<EventPosition> = newest.keys().map(|(_, (position, _))| *position).collect();
    let mut events = BTreeMap::new();
    each_event(&admin.logs, |position, stream, _, payload| {
        if positions.contains(&position)
            && let Ok(record) = EventRecord::decode(Bytes::copy_from_slice(payload))
        {
            events.insert(position, (Box::<str>::from(stream), record));
        }
        Ok(())
    })?;
    let rows: Vec<_> = newest
        .iter()
        .filter_map(|((at_ms, due), what)| {
            let (stream, record) = events.get(&due.0)?;
            Some(dead_letter_row(&table, (due, *at_ms, *what), stream, record))
        })
        .collect();
    Ok(json!({ "deadLetters": rows, "omitted": left_out }))
}

fn dead_letter_row(
    table: &RoutingTable,
    given_up: (&DeadLetterKey, u64, DeliveryOutcome),
    stream: &str,
    record: &EventRecord,
) -> Value {
    let ((position, name), at_ms, what) = given_up;
    let known = subscriber_ref::all(table).find(|reference| *reference.subscriber.name == **name);
    let (kind, label) =
        known.as_ref().map_or(("", &**name), |reference| (reference.kind(), &*reference.subscriber.label));
    let attribute = |name: &str| record.attribute(name).unwrap_or_default();
    json!({
        "time": shown(at_ms), "kind": kind, "subscriber": label, "event": what.as_str(), "stream": stream,
        "core": position.0, "position": position.1,
        "id": attribute("id"), "source": attribute("source"), "type": attribute("type"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_date_or_age() {
        assert_eq!(time("1970-01-01T00:00:01Z").unwrap(), 1000);
        let then = i64::try_from(time("10m").unwrap()).unwrap();
        let ago = Timestamp::now().as_millisecond() - then; // computed later, so never less
        assert!((600_000..660_000).contains(&ago), "{ago}");
        assert!(time("yesterday").unwrap_err().to_string().contains("yesterday"));
    }
}

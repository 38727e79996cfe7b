//! Replays: copies of events in the log, for one subscriber alone, appended to the same stream. From there
//! they are events like all others: durable, retried, counted, dead-lettered.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dataplane::filter::matches;
use dataplane::filter::steps::Steps;
use dataplane::record::{EventPosition, EventRecord, addressed};
use dataplane::table::{RoutingTable, Subscriber};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::{AdminServer, ORPHANED};
use super::dead_letters::{self, DeadLetterQuery};
use super::{each_event, subscriber_ref, time};

/// Copies that were read and not yet appended.
const IN_FLIGHT_MAX: usize = 64;
/// Interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// Attempts to append to a full core; RETRY_AFTER is the interval.
const ATTEMPTS_MAX: u32 = 100;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Why a second redrive is rejected.
const IN_PROGRESS: &str =
    "a redrive of this subscriber is already in progress: wait until it ends, or stop it and start again\n";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayRequest {
    /// `NAMESPACE/NAME`, optionally prefixed by `trigger/` or `subscription/`.
    trigger: String,
    /// A time, an age, `earliest`, `CORE:POSITION`, or `dead-letters`.
    from: String,
    #[serde(default)]
    dry_run: bool,
    /// Events a second; 0 = unlimited.
    #[serde(default)]
    rate: u32,
}

/// Where to begin.
#[derive(Debug, PartialEq, Eq)]
enum ReplayStart {
    Time(u64),
    /// In this core's log: other logs have positions of their own.
    Position(EventPosition),
    DeadLetters,
}

impl ReplayStart {
    /// `logs`: the number of logs.
    fn read(text: &str, logs: usize) -> Result<Self> {
        match text {
            "dead-letters" => return Ok(Self::DeadLetters),
            "earliest" => return Ok(Self::Time(0)),
            _ => {}
        }
        if let Ok(position) = text.parse() {
            if logs > 1 {
                bail!(
                    "a position is one log's, and there are {logs}: write CORE:POSITION, as a trace shows it, like 0:{text}"
                );
            }
            return Ok(Self::Position((0, position)));
        }
        let pair = text.split_once(':').map(|(core, position)| (core.parse(), position.parse()));
        if let Some((Ok(core), Ok(position))) = pair {
            if core >= logs {
                bail!("core {core} has no log: their numbers are 0 to {}", logs.saturating_sub(1));
            }
            return Ok(Self::Position((core, position)));
        }
        let since = time(text).context("--from takes earliest, dead-letters, a time or CORE:POSITION")?;
        Ok(Self::Time(since))
    }

    fn takes(&self, position: EventPosition, at_ms: u64) -> bool {
        match self {
            Self::Time(since) => at_ms >= *since,
            Self::Position((core, first)) => position.0 == *core && position.1 >= *first,
            Self::DeadLetters => false, // one by one
        }
    }
}

/// Responds with progress as lines of JSON, and a result at the end. A client that disconnects ends it.
pub(crate) async fn replay(State(admin): State<Arc<AdminServer>>, Query(order): Query<ReplayRequest>) -> Response {
    if admin.health.orphaned.load(Relaxed) {
        return ORPHANED.into_response();
    }
    let table = admin.tables.load();
    let (path, stream, reader) = match subscriber_ref::named(&table, &order.trigger) {
        Ok(target) => (target.path.to_owned(), Arc::clone(target.stream), Arc::clone(target.subscriber)),
        Err(why) => return (StatusCode::NOT_FOUND, format!("{why}\n")).into_response(),
    };
    let from = match ReplayStart::read(&order.from, admin.logs.len()) {
        Ok(from) => from,
        Err(why) => return (StatusCode::BAD_REQUEST, format!("{why:#}\n")).into_response(),
    };
    let turn = match &from {
        ReplayStart::DeadLetters if !order.dry_run => match admin.redrives.acquire(&reader.name) {
            None => return (StatusCode::CONFLICT, IN_PROGRESS).into_response(),
            turn => turn,
        },
        _ => None,
    };
    let (copies, hear) = mpsc::channel(IN_FLIGHT_MAX);
    let (say, lines) = mpsc::channel::<String>(IN_FLIGHT_MAX);
    let (reading, name, addressee) = (Arc::clone(&admin), stream.name.clone(), reader.name.clone());
    let arrives = stream.guards_loops;
    let reader_thread = tokio::task::spawn_blocking(move || {
        let copier = EventCopier { logs: &reading.logs, stream: &name, arrives, reader: &reader, copies };
        match from {
            ReplayStart::DeadLetters => copier.dead_letters(),
            from => copier.history(&from),
        }
    });
    tokio::spawn(async move {
        let to = ReplayTarget { path: &path, stream: &stream.name, subscriber: &addressee };
        let report = append(&admin, &order, &to, hear, &say).await;
        drop(turn); // its copies are recorded, and are no dead letters any more
        let last = match (report, reader_thread.await) {
            (Some(report), Ok(Ok(()))) => report,
            (None, _) => return, // the client has disconnected
            (_, Ok(Err(why))) => json!({ "error": format!("{why:#}") }),
            (_, Err(_)) => json!({ "error": "the reading thread panicked" }),
        };
        drop(say.send(format!("{last}\n")).await);
    });
    let lines = futures_util::stream::unfold(lines, |mut lines| async {
        lines.recv().await.map(|line| (Ok::<_, Infallible>(line), lines))
    });
    Body::from_stream(lines).into_response()
}

/// Reads events and makes copies of them.
struct EventCopier<'a> {
    logs: &'a [PathBuf],
    stream: &'a str,
    /// At a broker, whose subscribers' filters see the time of arrival.
    arrives: bool,
    reader: &'a Subscriber,
    copies: mpsc::Sender<Vec<u8>>,
}

impl EventCopier<'_> {
    /// Copies all dead letters that are open now, however many.
    fn dead_letters(&self) -> Result<()> {
        let query = DeadLetterQuery { subscriber: Some(&self.reader.name), until_ms: time("0s")? };
        dead_letters::each_page(self.logs, &query, |open| {
            let mut open: BTreeSet<EventPosition> = open.into_keys().map(|(position, _)| position).collect();
            if open.is_empty() {
                return Ok(());
            }
            each_event(self.logs, |position, stream, _, payload| match open.remove(&position) {
                true if *stream == *self.stream => self.copy(position, payload, |_| true),
                _ => Ok(()),
            })?;
            Ok(())
        })
    }

    /// Copies all events from a start on that match the subscriber's filter. Copies are for one subscriber,
    /// and not part of the history.
    fn history(&self, from: &ReplayStart) -> Result<()> {
        let mut seen = BTreeSet::new();
        each_event(self.logs, |position, stream, at_ms, payload| {
            if *stream != *self.stream || !from.takes(position, at_ms) || !seen.insert(position) {
                return Ok(());
            }
            let seen = |record: &EventRecord| match record.clone() {
                record if self.arrives => record.arrived_at(at_ms),
                record => record,
            };
            let is_wanted = |record: &EventRecord| {
                !record.is_addressed && matches(&self.reader.filter, &seen(record), &Steps::default())
            };
            self.copy(position, payload, is_wanted)
        })?;
        Ok(())
    }

    fn copy(
        &self,
        position: EventPosition,
        payload: &[u8],
        is_wanted: impl Fn(&EventRecord) -> bool,
    ) -> io::Result<()> {
        let record = EventRecord::decode(Bytes::copy_from_slice(payload)).ok().filter(is_wanted);
        let Some(record) = record else { return Ok(()) };
        let sent = self.copies.blocking_send(addressed(&record, &self.reader.name, position));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into()) // the receiver is gone
    }
}

/// Appends copies as they come; returns the final report, or `None` if the client has disconnected.
async fn append(
    admin: &AdminServer,
    order: &ReplayRequest,
    to: &ReplayTarget<'_>,
    mut hear: mpsc::Receiver<Vec<u8>>,
    say: &mpsc::Sender<String>,
) -> Option<Value> {
    let (began, mut reported_at, mut sent) = (Instant::now(), Instant::now(), 0_u64);
    let tell = |sent: u64, done: bool| json!({ "sent": sent, "dryRun": order.dry_run, "done": done });
    while let Some(copy) = hear.recv().await {
        if !order.dry_run {
            if let Err(why) = take_in(admin, to, copy).await {
                return Some(json!({ "error": format!("{why:#}"), "sent": sent }));
            }
            if order.rate > 0 {
                let due = began + Duration::from_secs_f64((sent + 1) as f64 / f64::from(order.rate));
                tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
            }
        }
        sent += 1;
        if reported_at.elapsed() >= PROGRESS_EVERY {
            reported_at = Instant::now();
            say.send(format!("{}\n", tell(sent, false))).await.ok()?;
        }
    }
    Some(tell(sent, true))
}

/// The subscriber that copies are for.
struct ReplayTarget<'a> {
    path: &'a str,
    stream: &'a str,
    /// Its durable name.
    subscriber: &'a str,
}

impl ReplayTarget<'_> {
    /// Without this check a copy for a missing subscriber would be appended, and never delivered.
    fn is_there(&self, table: &RoutingTable) -> bool {
        let stream = table.streams.get(self.path);
        stream.is_some_and(|stream| stream.subscribers.iter().any(|one| *one.name == *self.subscriber))
    }
}

async fn take_in(admin: &AdminServer, to: &ReplayTarget<'_>, copy: Vec<u8>) -> Result<()> {
    if !to.is_there(&admin.tables.load()) {
        bail!("the subscriber was deleted meanwhile, or is no longer Ready");
    }
    for _ in 0..ATTEMPTS_MAX {
        let answer = admin.senders.copy(to.stream, to.path, copy.clone()).await;
        match answer.status {
            202 => return Ok(()),
            503 => tokio::time::sleep(RETRY_AFTER).await, // full for now
            status => bail!("a copy was rejected: {status} {}", String::from_utf8_lossy(&answer.body).trim()),
        }
    }
    bail!("the log has no space for copies")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_names_log_when_there_are_several() {
        assert_eq!(ReplayStart::read("1:77", 2).unwrap(), ReplayStart::Position((1, 77)));
        assert_eq!(ReplayStart::read("77", 1).unwrap(), ReplayStart::Position((0, 77)));
        assert_eq!(ReplayStart::read("earliest", 2).unwrap(), ReplayStart::Time(0));
        assert_eq!(ReplayStart::read("1970-01-01T00:00:01Z", 2).unwrap(), ReplayStart::Time(1000));
        for (text, logs, why) in
            [("77", 2, "0:77"), ("2:77", 2, "0 to 1"), ("1:x", 2, "CORE:POSITION"), ("soon", 1, "dead-letters")]
        {
            let refused = format!("{:#}", ReplayStart::read(text, logs).unwrap_err());
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let from = ReplayStart::Position((1, 77));
        assert!(from.takes((1, 77), 0) && !from.takes((1, 76), 9) && !from.takes((0, 78), 9));
    }
}

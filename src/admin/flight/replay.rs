//! Events sent to a subscriber once more: copies of what is in the log, for this one alone, appended to the
//! same stream. From there they are events like all others: durable, tried again, counted, dead-lettered.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dataplane::events::filter::wants;
use dataplane::events::record::{Record, addressed};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::Admin;
use super::{Place, each_event, given_up, subscriber, time};

/// Copies that were read and not yet appended.
const AHEAD_MAX: usize = 64;
/// Between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// How often a core that is full is asked again, and how long apart.
const ATTEMPTS_MAX: u32 = 100;
const AGAIN_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize)]
pub(crate) struct Order {
    /// `NAMESPACE/NAME`
    trigger: String,
    /// A time, how long ago, a position, or `dead-letters`.
    from: String,
    #[serde(default)]
    dry_run: bool,
    /// Events a second; 0 = as fast as they are taken.
    #[serde(default)]
    rate: u32,
}

/// Where to begin.
enum From {
    Time(u64),
    Position(u64),
    DeadLetters(BTreeSet<Place>),
}

impl From {
    fn takes(&self, place: Place, at_ms: u64) -> bool {
        match self {
            Self::Time(since) => at_ms >= *since,
            Self::Position(first) => place.1 >= *first,
            Self::DeadLetters(places) => places.contains(&place),
        }
    }
}

/// Answers with a line of JSON now and then, and one at the end. Who hangs up ends it.
pub(crate) async fn replay(State(admin): State<Arc<Admin>>, Query(order): Query<Order>) -> Response {
    let table = admin.tables.load();
    let Some((path, stream, reader)) = subscriber(&table, &order.trigger) else {
        let why = format!("there is no subscriber {}: is it Ready?\n", order.trigger);
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    let (path, stream, reader) = (path.to_owned(), Arc::clone(stream), Arc::clone(reader));
    let (copies, hear) = mpsc::channel(AHEAD_MAX);
    let (say, lines) = mpsc::channel::<String>(AHEAD_MAX);
    let (reading, from, name) = (Arc::clone(&admin), order.from.clone(), stream.name.clone());
    let reader_thread = tokio::task::spawn_blocking(move || {
        let from = begin(&reading, &from, &reader.name)?;
        let mut seen = BTreeSet::new();
        let is_letter = matches!(from, From::DeadLetters(_));
        each_event(&reading.logs, |place, stream, at_ms, payload| {
            if *stream != *name || !from.takes(place, at_ms) || !seen.insert(place) {
                return Ok(());
            }
            let Ok(record) = Record::decode(Bytes::copy_from_slice(payload)) else { return Ok(()) };
            // Copies are for one subscriber; only their failure is a reason to make another.
            let is_wanted = is_letter || (!record.is_addressed && wants(&reader.filter, &record));
            if is_wanted && copies.blocking_send(addressed(&record, &reader.name)).is_err() {
                return Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe)); // nobody listens any more
            }
            Ok(())
        })
    });
    tokio::spawn(async move {
        let told = append(&admin, &order, &path, &stream.name, hear, &say).await;
        let last = match (told, reader_thread.await) {
            (Some(told), Ok(Ok(()))) => told,
            (None, _) => return, // the asker has gone
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

fn begin(admin: &Admin, from: &str, subscriber: &str) -> Result<From> {
    if from == "dead-letters" {
        return Ok(From::DeadLetters(given_up(admin, Some(subscriber), 0)?.into_keys().collect()));
    }
    if from == "earliest" {
        return Ok(From::Position(0));
    }
    match from.parse() {
        Ok(position) => Ok(From::Position(position)),
        Err(_) => {
            Ok(From::Time(time(from).context("--from takes earliest, dead-letters, a time or a position")?))
        }
    }
}

/// Appends copies as they come; what there is to tell at the end, or `None` if nobody listens.
async fn append(
    admin: &Admin,
    order: &Order,
    path: &str,
    stream: &str,
    mut hear: mpsc::Receiver<Vec<u8>>,
    say: &mpsc::Sender<String>,
) -> Option<Value> {
    let (began, mut told_at, mut sent) = (Instant::now(), Instant::now(), 0_u64);
    let tell = |sent: u64, done: bool| json!({ "sent": sent, "dryRun": order.dry_run, "done": done });
    while let Some(copy) = hear.recv().await {
        if !order.dry_run {
            if let Err(why) = take_in(admin, stream, path, copy).await {
                return Some(json!({ "error": format!("{why:#}"), "sent": sent }));
            }
            if order.rate > 0 {
                let due = began + Duration::from_secs_f64((sent + 1) as f64 / f64::from(order.rate));
                tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
            }
        }
        sent += 1;
        if told_at.elapsed() >= PROGRESS_EVERY {
            told_at = Instant::now();
            say.send(format!("{}\n", tell(sent, false))).await.ok()?;
        }
    }
    Some(tell(sent, true))
}

async fn take_in(admin: &Admin, stream: &str, path: &str, copy: Vec<u8>) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let answer = admin.ways.copy(stream, path, copy.clone()).await;
        match answer.status {
            202 => return Ok(()),
            503 => tokio::time::sleep(AGAIN_AFTER).await, // full for now
            status => bail!("a copy was refused: {status} {}", String::from_utf8_lossy(&answer.body).trim()),
        }
    }
    bail!("the log has no room for copies")
}

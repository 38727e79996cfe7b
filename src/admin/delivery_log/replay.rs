//! Replays: events of the log are sent again, to their subscriber ([`append`]) or to another destination ([`send`]).

mod append;
mod destination;
mod progress;
mod selection;
mod send;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::Result;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dataplane::record::addressed;
use dataplane::table::{EventStream, Subscriber};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::super::{AdminServer, ORPHANED};
use super::{shown, subscriber_ref};
use append::SubscriberCopies;
use destination::{OpenDestination, ReplayDestination};
use progress::ReplayProgress;
use selection::{EventReader, ReplayRange, ReplayStart, SelectedEvent};
use send::RequestEncoder;

/// Events that were read and not yet sent.
const IN_FLIGHT_MAX: usize = 64;
/// Events that a dry run lists: a person reads no more, and all are counted.
const LISTED_MAX: u64 = 1000;

/// Why a second redrive is rejected.
const IN_PROGRESS: &str =
    "a redrive of this subscriber is already in progress: wait until it ends, or stop it and start again\n";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayQuery {
    /// `NAMESPACE/NAME`, optionally prefixed by `trigger/` or `subscription/`.
    trigger: String,
    /// A time, an age, `earliest`, `CORE:POSITION`, or `dead-letters`.
    from: String,
    /// Only events that were accepted before this time or age.
    to_time: Option<String>,
    /// `revision/NAME` or a URL, instead of the subscriber.
    to: Option<String>,
    #[serde(default)]
    dry_run: bool,
    /// A dry run lists the events, not only their number.
    #[serde(default)]
    list: bool,
    /// Events a second; 0 = unlimited.
    #[serde(default)]
    rate: u32,
}

/// What reports call an event.
#[derive(Debug)]
struct EventSummary {
    at_ms: u64,
    id: String,
    source: String,
    kind: String,
}

impl EventSummary {
    fn of(selected: &SelectedEvent) -> Self {
        let attribute = |name: &str| selected.record.attribute(name).unwrap_or_default().to_owned();
        Self { at_ms: selected.at_ms, id: attribute("id"), source: attribute("source"), kind: attribute("type") }
    }

    fn to_json(&self) -> Value {
        json!({ "accepted": shown(self.at_ms), "id": self.id, "source": self.source, "type": self.kind })
    }
}

/// The subscriber whose events are sent, and which of them.
struct ReplayPlan {
    stream: Arc<EventStream>,
    subscriber: Arc<Subscriber>,
    range: ReplayRange,
}

impl ReplayPlan {
    /// Reads the events on a thread that may block; `make` runs there too.
    fn read<T: Send + 'static>(
        self: &Arc<Self>,
        admin: &Arc<AdminServer>,
        make: impl Fn(SelectedEvent) -> T + Send + 'static,
    ) -> (JoinHandle<Result<()>>, mpsc::Receiver<T>) {
        let (events, received) = mpsc::channel(IN_FLIGHT_MAX);
        let (plan, admin) = (Arc::clone(self), Arc::clone(admin));
        let thread = tokio::task::spawn_blocking(move || {
            let reader = EventReader {
                logs: &admin.logs,
                stream: &plan.stream.name,
                arrives: plan.stream.guards_loops,
                subscriber: &plan.subscriber,
                range: &plan.range,
                make,
                events,
            };
            reader.read()
        });
        (thread, received)
    }
}

/// Responds with progress as lines of JSON, and a result at the end. A client that disconnects ends it.
pub(crate) async fn replay(State(admin): State<Arc<AdminServer>>, Query(order): Query<ReplayQuery>) -> Response {
    if admin.health.orphaned.load(Relaxed) {
        return ORPHANED.into_response();
    }
    let table = admin.tables.load();
    let (path, plan) = match subscriber_ref::named(&table, &order.trigger) {
        Err(why) => return (StatusCode::NOT_FOUND, format!("{why}\n")).into_response(),
        Ok(found) => match ReplayRange::read(&order.from, order.to_time.as_deref(), admin.logs.len()) {
            Err(why) => return bad_request(&why),
            Ok(range) => {
                let (stream, subscriber) = (Arc::clone(found.stream), Arc::clone(found.subscriber));
                (found.path.to_owned(), Arc::new(ReplayPlan { stream, subscriber, range }))
            }
        },
    };
    let destination = match &order.to {
        None => None,
        Some(to) => match open(&admin, to, &plan.subscriber).await {
            Ok(destination) => Some(destination),
            Err(why) => return bad_request(&why),
        },
    };
    let turn = match plan.range.start {
        ReplayStart::DeadLetters if !order.dry_run && destination.is_none() => {
            match admin.redrives.acquire(&plan.subscriber.name) {
                None => return (StatusCode::CONFLICT, IN_PROGRESS).into_response(),
                turn => turn,
            }
        }
        _ => None,
    };
    let (say, lines) = mpsc::channel::<String>(IN_FLIGHT_MAX);
    tokio::spawn(async move {
        let mut progress = ReplayProgress::new(order.dry_run, order.rate, &say);
        let report = match destination {
            _ if order.dry_run => {
                let report = count(&admin, &plan, order.list, &mut progress).await;
                close(destination).await;
                report
            }
            Some(destination) => send_elsewhere(&admin, &plan, destination, &mut progress).await,
            None => append_copies(&admin, &plan, path, &mut progress).await,
        };
        drop(turn); // its copies are recorded, and are no dead letters any more
        let Some(report) = report else { return }; // the client has disconnected
        drop(say.send(format!("{}\n", report.unwrap_or_else(|why| json!({ "error": format!("{why:#}") })))).await);
    });
    let lines = futures_util::stream::unfold(lines, |mut lines| async {
        lines.recv().await.map(|line| (Ok::<_, Infallible>(line), lines))
    });
    Body::from_stream(lines).into_response()
}

fn bad_request(why: &anyhow::Error) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why:#}\n")).into_response()
}

async fn open(admin: &AdminServer, to: &str, subscriber: &Subscriber) -> Result<OpenDestination> {
    let namespace = namespace(subscriber);
    ReplayDestination::read(to, namespace)?.open(&admin.publisher, namespace, &subscriber.target.path).await
}

async fn close(destination: Option<OpenDestination>) {
    if let Some(destination) = destination {
        destination.close().await;
    }
}

/// The namespace in `NAMESPACE/NAME`.
fn namespace(subscriber: &Subscriber) -> &str {
    subscriber.label.split('/').next().unwrap_or_default()
}

/// The final report, or why there is none; `None` if the client has disconnected.
type ReplayReport = Option<Result<Value>>;

/// A dry run.
async fn count(
    admin: &Arc<AdminServer>,
    plan: &Arc<ReplayPlan>,
    lists: bool,
    progress: &mut ReplayProgress<'_>,
) -> ReplayReport {
    let (thread, mut events) = plan.read(admin, |selected| EventSummary::of(&selected));
    while let Some(event) = events.recv().await {
        if lists && progress.sent < LISTED_MAX {
            progress.say(&json!({ "event": event.to_json() })).await?;
        }
        progress.sent += 1;
        progress.report_if_due().await?;
    }
    Some(ended(thread).await.map(|()| progress.to_json(true)))
}

async fn append_copies(
    admin: &Arc<AdminServer>,
    plan: &Arc<ReplayPlan>,
    path: String,
    progress: &mut ReplayProgress<'_>,
) -> ReplayReport {
    let subscriber = plan.subscriber.name.clone();
    let to = SubscriberCopies { path, stream: plan.stream.name.clone(), subscriber: subscriber.clone() };
    let (thread, mut copies) =
        plan.read(admin, move |selected| addressed(&selected.record, &subscriber, selected.position));
    let mut pace = progress.pace();
    while let Some(copy) = copies.recv().await {
        pace.wait().await;
        if let Err(why) = to.append(admin, copy).await {
            return Some(Ok(json!({ "error": format!("{why:#}"), "sent": progress.sent })));
        }
        progress.sent += 1;
        progress.report_if_due().await?;
    }
    Some(ended(thread).await.map(|()| progress.to_json(true)))
}

async fn send_elsewhere(
    admin: &Arc<AdminServer>,
    plan: &Arc<ReplayPlan>,
    destination: OpenDestination,
    progress: &mut ReplayProgress<'_>,
) -> ReplayReport {
    let encoder = Arc::new(RequestEncoder {
        subscriber: Arc::clone(&plan.subscriber),
        target: destination.target.clone(),
        namespace: namespace(&plan.subscriber).to_owned(),
        arrives: plan.stream.guards_loops,
    });
    let encoding = Arc::clone(&encoder);
    let (thread, requests) = plan.read(admin, move |selected| encoding.encode(&selected));
    let summary = send::send_all(&encoder, &admin.senders, requests, progress).await;
    destination.close().await;
    let (summary, ended) = (summary?, ended(thread).await);
    Some(ended.map(|()| {
        let mut report = progress.to_json(true);
        summary.write_to(&mut report);
        report
    }))
}

async fn ended(thread: JoinHandle<Result<()>>) -> Result<()> {
    thread.await.unwrap_or_else(|_| Err(anyhow::anyhow!("the reading thread panicked")))
}

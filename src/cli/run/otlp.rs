//! Sends spans to a collector by OTLP over HTTP, as JSON, from a thread of its own.
//!
//! Requests never wait for it: cores put spans into a bounded queue ([`dataplane::spans`]); those that find
//! it full are dropped and counted, as are batches that the collector rejects.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use dataplane::spans::{SpanQueue, TraceSpan};
use serde_json::{Value, json};

use crate::admin::{Health, SpanCounters};
use crate::config::RunConfig;

/// Spans of one request to the collector: some 400 KiB.
const BATCH_MAX: usize = 512;
/// Poll interval of the queue.
const SEND_EVERY: Duration = Duration::from_millis(500);
/// One request to the collector may take this long.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// Maximum attempts to send a batch; the first retry interval doubles each time.
const ATTEMPTS_MAX: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Starts the exporter, if spans are configured: returns the queue for the cores, and the thread.
pub(super) fn start(config: &RunConfig, health: &Health) -> Result<Option<(SpanQueue, OtlpExporter)>> {
    let Some(url) = &config.otlp else { return Ok(None) };
    let queue = SpanQueue::default();
    let exporter = OtlpExporter::start(url, queue.clone(), Arc::clone(&health.spans))?;
    Ok(Some((queue, exporter)))
}

/// The running thread.
pub(super) struct OtlpExporter {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl OtlpExporter {
    /// Sends what comes into `queue` to `url`.
    fn start(url: &str, queue: SpanQueue, tally: Arc<SpanCounters>) -> Result<Self> {
        let (stop, stopped) = sync_channel(1);
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_MAX)).http_status_as_error(true).build();
        let work = OtlpWorker { agent: config.into(), url: url.to_owned(), queue, tally, stopped, is_logged: false };
        let thread = std::thread::Builder::new().name("otlp".to_owned()).spawn(|| work.run());
        Ok(Self { stop, thread: thread.context("no thread for spans")? })
    }

    /// Sends the rest, once, and ends; it gives up at the first rejected batch.
    pub(super) fn finish(self) {
        let _ = self.stop.try_send(()); // it was stopped before, or has ended
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread that sends spans panicked");
        }
    }
}

struct OtlpWorker {
    agent: ureq::Agent,
    url: String,
    queue: SpanQueue,
    tally: Arc<SpanCounters>,
    stopped: Receiver<()>,
    /// The rejection by the collector was logged.
    is_logged: bool,
}

impl OtlpWorker {
    fn run(mut self) {
        let mut wait = SEND_EVERY;
        loop {
            let stops = !matches!(self.stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
            let batch: Vec<TraceSpan> = std::iter::from_fn(|| self.queue.take()).take(BATCH_MAX).collect();
            wait = if batch.len() == BATCH_MAX { Duration::ZERO } else { SEND_EVERY };
            let taken = batch.is_empty() || self.send(&batch, if stops { 1 } else { ATTEMPTS_MAX });
            // A collector that does not respond must not delay the end for each remaining batch.
            let stops = stops || !matches!(self.stopped.try_recv(), Err(TryRecvError::Empty));
            if stops && (!taken || self.queue.is_empty()) {
                self.tally.failed.fetch_add(self.queue.len() as u64, Relaxed);
                return;
            }
        }
    }

    /// Whether the collector accepted them.
    fn send(&mut self, batch: &[TraceSpan], attempts_max: u32) -> bool {
        let count = batch.len() as u64;
        let body = document(batch).to_string();
        let mut rest = RETRY_AFTER;
        for attempt in 1..=attempts_max {
            let sent = self.agent.post(&self.url).header("content-type", "application/json").send(&body);
            match sent {
                Ok(_) => {
                    self.tally.sent.fetch_add(count, Relaxed);
                    if std::mem::take(&mut self.is_logged) {
                        tracing::info!(url = self.url, "the collector accepts spans again");
                    }
                    return true;
                }
                Err(why) if attempt == attempts_max || !is_retryable(&why) => {
                    if !std::mem::replace(&mut self.is_logged, true) {
                        tracing::warn!(url = self.url, %why, "the collector rejects spans; they are dropped. Does it accept OTLP over HTTP, in JSON, there?");
                    }
                    break;
                }
                // A stop ends the wait.
                Err(_) if !matches!(self.stopped.recv_timeout(rest), Err(RecvTimeoutError::Timeout)) => break,
                Err(_) => rest *= 2,
            }
        }
        self.tally.failed.fetch_add(count, Relaxed);
        false
    }
}

/// Whether a retry may succeed: by the protocol, any other rejection is permanent.
const fn is_retryable(why: &ureq::Error) -> bool {
    match why {
        ureq::Error::StatusCode(status) => matches!(status, 429 | 502 | 503 | 504),
        _ => true,
    }
}

/// `ExportTraceServiceRequest` in JSON: ids in hex, 64-bit numbers as strings.
fn document(batch: &[TraceSpan]) -> Value {
    let spans: Vec<Value> = batch.iter().map(span).collect();
    let resource =
        [text("service.name", "sluicegate".to_owned()), text("service.version", env!("CARGO_PKG_VERSION").to_owned())];
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "sluicegate.proxy" }, "spans": spans }],
    }] })
}

fn span(span: &TraceSpan) -> Value {
    /// `SPAN_KIND_SERVER`
    const SERVER: u8 = 2;
    /// `STATUS_CODE_ERROR`; a client error does not count.
    const ERROR: u8 = 2;
    let ended = span.ended.duration_since(UNIX_EPOCH).unwrap_or_default();
    let began = ended.saturating_sub(span.duration);
    let is_error = span.status == 0 || span.status >= 500;
    let method = span.method.to_text();
    let mut all = json!({
        "traceId": hex(&span.context.trace),
        "spanId": hex(&span.context.id.to_be_bytes()),
        "name": if method.is_empty() { "HTTP" } else { method.as_str() },
        "kind": SERVER,
        "startTimeUnixNano": began.as_nanos().to_string(),
        "endTimeUnixNano": ended.as_nanos().to_string(),
        "attributes": attributes(span),
        "status": if is_error { json!({ "code": ERROR }) } else { json!({}) },
    });
    if span.context.parent != 0 {
        all["parentSpanId"] = hex(&span.context.parent.to_be_bytes()).into();
    }
    all
}

/// Named by OpenTelemetry's conventions; our own begin with `sluicegate.`.
fn attributes(span: &TraceSpan) -> Vec<Value> {
    let path = span.path.to_text();
    let (path, query) = path.split_once('?').unwrap_or((&path, ""));
    let number = |name: &str, value: u128| json!({ "key": name, "value": { "intValue": value.to_string() } });
    let version = span.protocol.trim_start_matches("HTTP/");
    let mut all = vec![
        text("http.request.method", span.method.to_text()),
        text("server.address", span.host.to_text()),
        text("url.path", path.to_owned()),
        text("network.protocol.version", version.to_owned()),
        text("client.address", span.client.to_string()),
    ];
    if !query.is_empty() {
        all.push(text("url.query", query.to_owned()));
    }
    if span.status != 0 {
        all.push(number("http.response.status_code", span.status.into()));
    }
    if let Some(backend) = &span.backend {
        all.push(text("sluicegate.backend", backend.key.to_string()));
    }
    if let Some(instance) = span.instance {
        all.push(text("sluicegate.instance", instance.to_string()));
    }
    if let Some(waited) = span.waited {
        all.push(number("sluicegate.wait_us", waited.as_micros()));
    }
    if let Some(reason) = span.reason {
        all.push(text("error.type", reason.to_owned()));
    }
    all
}

fn text(name: &str, value: String) -> Value {
    json!({ "key": name, "value": { "stringValue": value } })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}

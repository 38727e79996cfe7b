//! The record of one request: for its backend's histogram, the access log and traces.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use codec::http::RequestView;
use contract::request_histograms::{OutcomeKey, RequestPhase, RouteTag};
use contract::spans::{InlineText, TraceContext, TraceSpan};
use contract::table::{Backend, Endpoint, EndpointAddress};
use protocol::http::headers::{fresh_trace_id, incoming_trace_id};
use protocol::http::trace;
use ring::Tick;

use super::cold_start_timing::ColdStartTiming;
use super::{LocalReply, Permit, Proxy};
use crate::access_log::request_log::RequestLogEntry;
use crate::access_log::{AccessLog, AccessLogEntry};

/// Kept by its connection and reset for each request, so that recording costs no allocation.
#[derive(Default)]
pub(super) struct RequestRecord {
    started: Tick,
    acquired: Option<Tick>,
    /// When the final response head arrived.
    pub(super) answered: Option<Tick>,
    /// For a request that waited for an instance. Boxed in an `Rc`, because few requests wait and every connection
    /// reserves memory for it.
    pub(super) timing: Option<Rc<ColdStartTiming>>,
    backend: Option<Arc<Backend>>,
    /// The tag under which it is counted.
    tag: RouteTag,
    instance: Option<EndpointAddress>,
    /// Made with the first request that is to be read of; most connections have room for none.
    notes: Option<Box<RequestNotes>>,
    /// For its line in the request log, if there is to be one.
    log_entry: Option<Box<RequestLogEntry>>,
}

/// The fields of a request in access log lines and spans.
#[derive(Default)]
struct RequestNotes {
    /// Method, host and path behind each other; empty if no log or span needs them.
    text: Vec<u8>,
    method_end: usize,
    host_end: usize,
    trace: Option<[u8; 32]>,
    /// Its position in its trace, if spans are collected.
    context: Option<TraceContext>,
}

impl RequestNotes {
    fn clear(&mut self) {
        let text = std::mem::take(&mut self.text);
        *self = Self { text, ..Self::default() };
        self.text.clear();
    }

    fn take(&mut self, request: RequestView<'_>) {
        self.text.extend_from_slice(request.method().as_bytes());
        self.method_end = self.text.len();
        self.text.extend_from_slice(request.authority().as_bytes());
        self.host_end = self.text.len();
        self.text.extend_from_slice(request.root().as_bytes());
        self.text.extend_from_slice(request.path().as_bytes());
        self.trace = incoming_trace_id(request);
    }

    fn parts(&self) -> [&[u8]; 3] {
        let (front, path) = self.text.split_at(self.host_end);
        let (method, host) = front.split_at(self.method_end);
        [method, host, path]
    }
}

/// How it ended, as the connection sees it.
pub(super) struct RequestEnd {
    pub(super) client: SocketAddr,
    pub(super) protocol: &'static str,
    /// 0: the response was cut.
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) reason: Option<&'static str>,
}

impl RequestRecord {
    /// A request begins. `None` when it could not be parsed.
    pub(super) fn start(&mut self, proxy: &Proxy, request: Option<RequestView<'_>>) {
        self.started = proxy.ring.now();
        (self.acquired, self.answered, self.backend, self.instance) = (None, None, None, None);
        (self.timing, self.tag) = (None, RouteTag::Off);
        self.notes.as_mut().into_iter().for_each(|notes| notes.clear());
        let log = proxy.request_log.borrow().clone().filter(|_| proxy.access.get().is_some());
        match request.zip(log) {
            // One allocation per HTTP/1 connection, and only if the request log is on.
            Some((request, log)) => self.log_entry.get_or_insert_default().start(log, request),
            None => self.log_entry = None,
        }
        let is_read = self.log_entry.is_some()
            || proxy.access.get().is_some_and(AccessLog::logs_everything)
            || proxy.spans.get().is_some();
        let Some(request) = request.filter(|_| is_read) else { return };
        let notes = self.notes.get_or_insert_default(); // one allocation for a connection of HTTP/1
        notes.take(request);
        if proxy.spans.get().is_some() {
            notes.context = trace::passed(request, proxy.rng.borrow_mut().u64(1..));
        }
    }

    /// Sets the backend and the tag that it is routed to.
    pub(super) fn set_backend(&mut self, backend: &Arc<Backend>, tag: RouteTag) {
        self.tag = tag;
        if let Some(log_entry) = &mut self.log_entry {
            log_entry.set_backend(backend);
        }
    }

    pub(super) fn acquired(&mut self, permit: &Permit, now: Tick) {
        if let Some(log_entry) = &mut self.log_entry {
            log_entry.set_backend(permit.backend()); // its route may have changed while it waited
        }
        self.acquired = Some(now);
        self.timing = ColdStartTiming::of(permit, self.started, now).map(Rc::new);
        self.backend = Some(Arc::clone(permit.backend()));
        self.add_bytes(&permit.endpoint);
    }

    /// Sets the instance that has the request: the first, or the one that it was retried on.
    pub(super) fn add_bytes(&mut self, endpoint: &Arc<Endpoint>) {
        if let Some(log_entry) = &mut self.log_entry {
            log_entry.set_instance(endpoint);
        }
        self.instance = Some(endpoint.address);
    }

    /// The head as written for the instance. It has a new trace id if the client sent none, and this request's span if
    /// spans are on.
    pub(super) fn written(&mut self, proxy: &Proxy, head: &mut [u8]) {
        let Some(notes) = &mut self.notes else { return };
        if proxy.spans.get().is_some() {
            notes.context = trace::enter(head, notes.context);
        }
        if !notes.text.is_empty() && notes.trace.is_none() {
            notes.trace = fresh_trace_id(head);
        }
    }

    pub(super) fn end(&mut self, proxy: &Proxy, end: &RequestEnd) {
        let duration = proxy.ring.now() - self.started;
        if end.status != 101 {
            self.count(end.status, duration);
        }
        if let Some((timing, answered)) = self.timing.as_ref().zip(self.answered) {
            timing.note(&proxy.counters.cold, answered);
            let backend = self.backend.as_ref().map_or("", |backend| &*backend.key);
            if let Some(one) = timing.cold_start(backend, answered, proxy.ring.now()) {
                proxy.counters.recent_cold_starts.record(one);
            }
        }
        self.record(proxy, end, duration);
        let log_entry = self.log_entry.as_ref().filter(|log_entry| log_entry.is_enabled());
        let Some(log) = proxy.access.get().filter(|log| log.logs_everything() || log_entry.is_some()) else {
            return;
        };
        let waited = self.acquired.map(|acquired| acquired - self.started);
        let [method, host, path] = self.parts();
        let line = AccessLogEntry {
            at: SystemTime::now(),
            client: end.client,
            protocol: end.protocol,
            method,
            host,
            path,
            status: end.status,
            received: None,
            bytes: end.bytes,
            duration,
            waited,
            upstream: self.answered.zip(self.acquired).map(|(answered, acquired)| answered - acquired),
            backend: self.backend.as_ref().map(|backend| &*backend.key),
            instance: self.instance,
            trace: self.notes.as_ref().and_then(|notes| notes.trace.as_ref()).map(<[u8; 32]>::as_slice),
            reason: end.reason,
        };
        log.put(&line);
        if let Some(log_entry) = log_entry {
            log.add(|buffer| log_entry.write(buffer, &line));
        }
    }

    /// Counts it in its backend's histograms. A request that waited counts its whole time for the client's view, and
    /// the time without the wait for the upstream's view.
    fn count(&mut self, status: u16, whole: Duration) {
        let (Some(backend), Some(acquired)) = (&self.backend, self.acquired) else { return };
        let answers = &backend.load.answers;
        let mut key = OutcomeKey { status, phase: RequestPhase::Direct, tag: std::mem::take(&mut self.tag) };
        if self.timing.is_none() {
            return answers.note(&key, whole);
        }
        for (phase, took) in
            [(RequestPhase::Whole, whole), (RequestPhase::Upstream, whole.saturating_sub(acquired - self.started))]
        {
            key.phase = phase;
            answers.note(&key, took);
        }
    }

    /// Method, host and path; empty if no log or span needs them.
    fn parts(&self) -> [&[u8]; 3] {
        self.notes.as_ref().map_or([&[]; 3], |notes| notes.parts())
    }

    /// Queues a span for the collector.
    fn record(&self, proxy: &Proxy, end: &RequestEnd, duration: Duration) {
        let wanted = self.notes.as_ref().and_then(|notes| notes.context).filter(|context| context.sampled);
        let Some((queue, context)) = proxy.spans.get().zip(wanted) else { return };
        let [method, host, path] = self.parts();
        let is_taken = queue.push(TraceSpan {
            context,
            ended: SystemTime::now(),
            duration,
            waited: self.acquired.map(|acquired| acquired - self.started),
            method: InlineText::new(method),
            host: InlineText::new(host),
            path: InlineText::new(path),
            protocol: end.protocol,
            client: end.client.ip(),
            status: end.status,
            backend: self.backend.clone(),
            instance: self.instance,
            reason: end.reason,
        });
        if !is_taken {
            proxy.counters.spans_dropped.fetch_add(1, Relaxed);
        }
    }
}

impl RequestEnd {
    /// The reason's name, for the log.
    pub(super) fn reason(local_reply: &LocalReply) -> Option<&'static str> {
        LocalReply::REASONS.get(local_reply.index()).copied()
    }
}

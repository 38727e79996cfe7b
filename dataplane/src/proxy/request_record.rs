//! What one request came to: for its backend's histogram, and for the access log.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use ring::Tick;

use super::cold_start_timing::ColdStartTiming;
use super::{LocalReply, Permit, Proxy};
use crate::access_log::request_log::RequestLogEntry;
use crate::access_log::{AccessLog, AccessLogEntry};
use crate::http::codec::RequestView;
use crate::http::headers::{fresh_trace_id, incoming_trace_id};
use crate::http::trace;
use crate::request_histograms::{OutcomeKey, RequestPhase, RouteTag};
use crate::spans::{InlineText, TraceContext, TraceSpan};
use crate::table::{Backend, Endpoint, EndpointAddress};

/// Kept by its connection and filled again for each request, so that noting costs no allocation.
#[derive(Default)]
pub(super) struct RequestRecord {
    started: Tick,
    placed: Option<Tick>,
    /// The head of the final answer came.
    pub(super) answered: Option<Tick>,
    /// For one that waited for an instance. On the heap, because few did and every connection has room for it.
    pub(super) timing: Option<Rc<ColdStartTiming>>,
    backend: Option<Arc<Backend>>,
    /// Under which tag it is counted.
    tag: RouteTag,
    instance: Option<EndpointAddress>,
    /// Made with the first request that is to be read of; most connections have room for none.
    notes: Option<Box<RequestNotes>>,
    /// For its line in the request log, if there is to be one.
    held: Option<Box<RequestLogEntry>>,
}

/// What lines of the access log and spans tell of a request.
#[derive(Default)]
struct RequestNotes {
    /// Method, host and path behind each other; empty when nobody reads them.
    text: Vec<u8>,
    method_end: usize,
    host_end: usize,
    trace: Option<[u8; 32]>,
    /// Where it stands in its trace, if spans are collected.
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

/// How it ended, as far as the connection knows.
pub(super) struct RequestEnd {
    pub(super) client: SocketAddr,
    pub(super) protocol: &'static str,
    /// 0: it was cut.
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) reason: Option<&'static str>,
}

impl RequestRecord {
    /// A request begins; `None` when it cannot be read.
    pub(super) fn start(&mut self, proxy: &Proxy, request: Option<RequestView<'_>>) {
        self.started = proxy.ring.now();
        (self.placed, self.answered, self.backend, self.instance) = (None, None, None, None);
        (self.timing, self.tag) = (None, RouteTag::Off);
        self.notes.as_mut().into_iter().for_each(|notes| notes.clear());
        let log = proxy.request_log.borrow().clone().filter(|_| proxy.access.get().is_some());
        match request.zip(log) {
            // One allocation for a connection of HTTP/1, and only if the operator wants lines.
            Some((request, log)) => self.held.get_or_insert_default().start(log, request),
            None => self.held = None,
        }
        let is_read = self.held.is_some()
            || proxy.access.get().is_some_and(AccessLog::logs_everything)
            || proxy.spans.get().is_some();
        let Some(request) = request.filter(|_| is_read) else { return };
        let notes = self.notes.get_or_insert_default(); // one allocation for a connection of HTTP/1
        notes.take(request);
        if proxy.spans.get().is_some() {
            notes.context = trace::passed(request, proxy.rng.borrow_mut().u64(1..));
        }
    }

    /// It is to go there, and comes by this tag.
    pub(super) fn aim(&mut self, backend: &Arc<Backend>, tag: RouteTag) {
        self.tag = tag;
        if let Some(held) = &mut self.held {
            held.aim(backend);
        }
    }

    pub(super) fn placed(&mut self, place: &Permit, now: Tick) {
        if let Some(held) = &mut self.held {
            held.aim(place.backend()); // its route may have come to lead elsewhere while it waited
        }
        self.placed = Some(now);
        self.timing = ColdStartTiming::of(place, self.started, now).map(Rc::new);
        self.backend = Some(Arc::clone(place.backend()));
        self.add_bytes(&place.endpoint);
    }

    /// That instance has it, be it the first or one that it was sent to after another had ended.
    pub(super) fn add_bytes(&mut self, endpoint: &Arc<Endpoint>) {
        if let Some(held) = &mut self.held {
            held.set_placed(endpoint);
        }
        self.instance = Some(endpoint.address);
    }

    /// The head as the instance gets it: it has a trace of ours, if none came, and our span, if there is one.
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
        }
        self.record(proxy, end, duration);
        let held = self.held.as_ref().filter(|held| held.is_enabled());
        let Some(log) = proxy.access.get().filter(|log| log.logs_everything() || held.is_some()) else {
            return;
        };
        let waited = self.placed.map(|placed| placed - self.started);
        let [method, host, path] = self.parts();
        let line = AccessLogEntry {
            at: SystemTime::now(),
            client: end.client,
            protocol: end.protocol,
            method,
            host,
            path,
            status: end.status,
            bytes: end.bytes,
            duration,
            waited,
            upstream: self.answered.zip(self.placed).map(|(answered, placed)| answered - placed),
            backend: self.backend.as_ref().map(|backend| &*backend.key),
            instance: self.instance,
            trace: self.notes.as_ref().and_then(|notes| notes.trace.as_ref()).map(<[u8; 32]>::as_slice),
            reason: end.reason,
        };
        log.put(&line);
        if let Some(held) = held {
            log.add(|buffer| held.write(buffer, &line));
        }
    }

    /// Counts it with its backend's answers. One that waited shows its wait to those who look from outside, and not
    /// to those who ask how long instances take.
    fn count(&mut self, status: u16, whole: Duration) {
        let (Some(backend), Some(placed)) = (&self.backend, self.placed) else { return };
        let answers = &backend.load.answers;
        let mut key = OutcomeKey { status, stretch: RequestPhase::Straight, tag: std::mem::take(&mut self.tag) };
        if self.timing.is_none() {
            return answers.note(&key, whole);
        }
        for (stretch, took) in
            [(RequestPhase::Whole, whole), (RequestPhase::Upstream, whole.saturating_sub(placed - self.started))]
        {
            key.stretch = stretch;
            answers.note(&key, took);
        }
    }

    /// Method, host and path; empty when nobody reads them.
    fn parts(&self) -> [&[u8]; 3] {
        self.notes.as_ref().map_or([&[]; 3], |notes| notes.parts())
    }

    /// Leaves a span for whoever collects them.
    fn record(&self, proxy: &Proxy, end: &RequestEnd, duration: Duration) {
        let wanted = self.notes.as_ref().and_then(|notes| notes.context).filter(|context| context.sampled);
        let Some((queue, context)) = proxy.spans.get().zip(wanted) else { return };
        let [method, host, path] = self.parts();
        let is_taken = queue.push(TraceSpan {
            context,
            ended: SystemTime::now(),
            duration,
            waited: self.placed.map(|placed| placed - self.started),
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
    pub(super) fn reason(refusal: &LocalReply) -> Option<&'static str> {
        LocalReply::REASONS.get(refusal.index()).copied()
    }
}

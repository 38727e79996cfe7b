//! What one request came to: for its backend's histogram, and for the access log.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use ring::Tick;

use super::{Place, Proxy, Refusal};
use crate::access::Line;
use crate::http::codec::RequestView;
use crate::http::headers::{fresh_trace_id, passed_trace_id};
use crate::table::Backend;

/// Kept by its connection and filled again for each request, so that noting costs no allocation.
#[derive(Default)]
pub(super) struct Note {
    started: Tick,
    placed: Option<Tick>,
    /// The head of the final answer came.
    pub(super) answered: Option<Tick>,
    backend: Option<Arc<Backend>>,
    instance: Option<SocketAddr>,
    /// Method, host and path behind each other; empty when nobody reads them.
    text: Vec<u8>,
    method_end: usize,
    host_end: usize,
    trace: Option<[u8; 32]>,
}

/// How it ended, as far as the connection knows.
pub(super) struct End {
    pub(super) client: IpAddr,
    pub(super) protocol: &'static str,
    /// 0: it was cut.
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) reason: Option<&'static str>,
}

impl Note {
    /// A request begins; `None` when it cannot be read.
    pub(super) fn begin(&mut self, proxy: &Proxy, request: Option<RequestView<'_>>) {
        self.started = proxy.ring.now();
        (self.placed, self.answered, self.backend, self.instance) = (None, None, None, None);
        self.text.clear();
        (self.method_end, self.host_end, self.trace) = (0, 0, None);
        let Some(request) = request.filter(|_| proxy.access.get().is_some()) else { return };
        self.text.extend_from_slice(request.method().as_bytes());
        self.method_end = self.text.len();
        self.text.extend_from_slice(request.authority().as_bytes());
        self.host_end = self.text.len();
        self.text.extend_from_slice(request.path().as_bytes());
        self.trace = passed_trace_id(request);
    }

    pub(super) fn placed(&mut self, place: &Place, now: Tick) {
        self.placed = Some(now);
        self.backend = Some(Arc::clone(place.backend()));
        self.instance = Some(place.endpoint.address);
    }

    /// The head as the instance gets it: it has a trace of ours, if none came.
    pub(super) fn written(&mut self, head: &[u8]) {
        if !self.text.is_empty() && self.trace.is_none() {
            self.trace = fresh_trace_id(head);
        }
    }

    pub(super) fn end(&mut self, proxy: &Proxy, end: &End) {
        let duration = proxy.ring.now() - self.started;
        if let Some(backend) = &self.backend
            && end.status != 101
        {
            backend.load.answered(end.status, duration);
        }
        let Some(log) = proxy.access.get() else { return };
        let waited = self.placed.map(|placed| placed - self.started);
        log.put(&Line {
            at: SystemTime::now(),
            client: end.client,
            protocol: end.protocol,
            method: &self.text[..self.method_end],
            host: &self.text[self.method_end..self.host_end],
            path: &self.text[self.host_end..],
            status: end.status,
            bytes: end.bytes,
            duration,
            waited,
            upstream: self.answered.zip(self.placed).map(|(answered, placed)| answered - placed),
            backend: self.backend.as_ref().map(|backend| &*backend.key),
            instance: self.instance,
            trace: self.trace.as_ref().map(<[u8; 32]>::as_slice),
            reason: end.reason,
        });
    }
}

impl End {
    /// The reason's name, for the log.
    pub(super) fn reason(refusal: &Refusal) -> Option<&'static str> {
        Refusal::REASONS.get(refusal.index()).copied()
    }
}

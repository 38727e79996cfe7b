//! Copies of requests for a version under comparison.
//!
//! The copy is recorded while the request passes and sent after the client has its response, so it costs the request
//! nothing but memory. Copies are bounded in size and number and never retried. The response to a copy is read and
//! dropped; only the comparison of its status is kept.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use contract::counters::MIRROR_SKIP_REASONS;
use contract::load::MirrorComparison;
use contract::table::{Backend, MirrorPolicy, MirrorSet, RouteFilters};

use super::{Proxy, SelectedEndpoint};

/// Larger bodies are not copied. Most API requests fit, and all copies of a core fit into 4 MiB.
pub const COPY_BYTES_MAX: usize = 64 * 1024;
/// Copies in flight on one core, including those that wait for an instance to start.
pub const COPIES_MAX: usize = 64;
/// How long a copy waits for its response.
pub const COPY_TIMEOUT: Duration = Duration::from_secs(30);
/// Tells the instance that another version answers the request.
const MARK: &[u8] = b"Sluicegate-Mirrored: true\r\n\r\n";

/// Why no copy was sent, in the order of [`contract::counters::CoreCounters::mirrors_skipped`].
pub const SKIPPED: [&str; MIRROR_SKIP_REASONS] = ["body_too_large", "concurrency_limit", "request_failed"];
const TOO_LARGE: usize = 0;
const TOO_MANY: usize = 1;
const FAILED: usize = 2;

/// The bytes of a request, recorded while it passes.
pub(super) struct MirrorBuffer {
    proxy: Rc<Proxy>,
    /// Those of its share, and which of their mirrors get a copy.
    filters: Arc<RouteFilters>,
    mirrors: MirrorSet,
    /// As written for the instance.
    head: Bytes,
    /// Framed as it is sent. `None` once it is too large.
    body: Option<BytesMut>,
}

impl MirrorBuffer {
    /// `wire` holds the whole head (`head_bytes` of them) and the body bytes that arrived with it. Returns `None` for a request
    /// that is not copied. Boxed, because every request has room for one.
    pub(super) fn start(
        proxy: &Rc<Proxy>,
        selected: &SelectedEndpoint,
        wire: &Bytes,
        head_bytes: usize,
    ) -> Option<Box<Self>> {
        let filters = selected.filters.as_ref().filter(|_| !selected.mirrors.is_empty())?;
        let (filters, mirrors) = (Arc::clone(filters), selected.mirrors);
        let (head, body) = (wire.slice(..head_bytes), Some(BytesMut::new()));
        let mut recording = Box::new(Self { proxy: Rc::clone(proxy), filters, mirrors, head, body });
        recording.add(&wire[head_bytes..]);
        Some(recording)
    }

    /// More bytes of the body were sent.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(body) = self.body.take_if(|body| body.len() + bytes.len() > COPY_BYTES_MAX) {
            drop(body);
        } else if let Some(body) = &mut self.body {
            body.extend_from_slice(bytes);
        }
    }

    /// The request is over: `status` is that of its response, or `None`. Returns the copies to send.
    pub(super) fn end(self, status: Option<u16>) -> Vec<MirroredRequest> {
        let Self { proxy, filters, mirrors, head, body } = self;
        let (head, body) = (marked(&head), body.map(BytesMut::freeze));
        let copy = |index: usize| {
            let status = status.ok_or(FAILED)?;
            let body = body.clone().ok_or(TOO_LARGE)?;
            let permit = MirrorPermit::take(&proxy).ok_or(TOO_MANY)?;
            Ok(MirroredRequest { permit, filters: Arc::clone(&filters), index, head: head.clone(), body, status })
        };
        let count_skipped = |why: usize| proxy.counters.mirrors_skipped[why].fetch_add(1, Relaxed);
        mirrors.iter().filter_map(|index| copy(index).map_err(count_skipped).ok()).collect()
    }
}

/// One of [`COPIES_MAX`].
struct MirrorPermit(Rc<Proxy>);

impl MirrorPermit {
    fn take(proxy: &Rc<Proxy>) -> Option<Self> {
        let under_way = proxy.mirrored.get();
        (under_way < COPIES_MAX).then(|| {
            proxy.mirrored.set(under_way + 1);
            Self(Rc::clone(proxy))
        })
    }
}

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        let count: &Cell<usize> = &self.0.mirrored;
        count.set(count.get() - 1);
    }
}

/// A copy that is to be sent.
pub(super) struct MirroredRequest {
    permit: MirrorPermit,
    filters: Arc<RouteFilters>,
    /// Of the mirror among those of the filters.
    index: usize,
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// The status of the client's response.
    status: u16,
}

impl MirroredRequest {
    pub(super) fn proxy(&self) -> &Rc<Proxy> {
        &self.permit.0
    }

    pub(super) fn mirror(&self) -> Option<&MirrorPolicy> {
        self.filters.mirrors.get(self.index)
    }

    /// Compares the status of the copy's response with that of the client's. `backend`: the copy's, if it was routed.
    pub(super) fn compare(&self, backend: Option<&Backend>, status: Option<u16>) {
        let Some(backend) = backend else {
            self.proxy().counters.mirrors_skipped[FAILED].fetch_add(1, Relaxed);
            return;
        };
        backend.load.compared(match status {
            Some(status) if status == self.status => MirrorComparison::Same,
            Some(_) => MirrorComparison::Different,
            None => MirrorComparison::Unanswered,
        });
    }
}

/// The head with the marker field appended.
fn marked(head: &[u8]) -> Bytes {
    let before = head.strip_suffix(b"\r\n").unwrap_or(head);
    [before, MARK].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_head_has_the_marker_field() {
        let marked = marked(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(marked, "GET / HTTP/1.1\r\nHost: a\r\nSluicegate-Mirrored: true\r\n\r\n");
    }
}

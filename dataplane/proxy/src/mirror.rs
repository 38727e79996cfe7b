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
use contract::table::{Backend, MirrorPolicy};

use super::Proxy;

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
    mirror: Arc<MirrorPolicy>,
    /// As written for the instance.
    head: Bytes,
    /// Framed as it is sent. `None` once it is too large.
    body: Option<BytesMut>,
}

impl MirrorBuffer {
    /// `wire` holds the whole head (`head_bytes` of them) and the body bytes that arrived with it. Returns `None`
    /// without a mirror policy.
    pub(super) fn start(
        proxy: &Rc<Proxy>,
        mirror: Option<&Arc<MirrorPolicy>>,
        wire: &Bytes,
        head_bytes: usize,
    ) -> Option<Self> {
        let mirror = Arc::clone(mirror?);
        let head = wire.slice(..head_bytes);
        let mut recording = Self { proxy: Rc::clone(proxy), mirror, head, body: Some(BytesMut::new()) };
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

    /// The request is over: `status` is that of its response, or `None`. Returns the copy to send, if there is to be one.
    pub(super) fn end(self, status: Option<u16>) -> Option<MirroredRequest> {
        let skip = |why: usize| {
            self.proxy.counters.mirrors_skipped[why].fetch_add(1, Relaxed);
            None
        };
        let Some(status) = status else { return skip(FAILED) };
        let Some(body) = self.body else { return skip(TOO_LARGE) };
        let Some(permit) = MirrorPermit::take(&self.proxy) else { return skip(TOO_MANY) };
        Some(MirroredRequest { permit, mirror: self.mirror, head: marked(&self.head), body: body.freeze(), status })
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
    pub(super) mirror: Arc<MirrorPolicy>,
    pub(super) head: Bytes,
    pub(super) body: Bytes,
    /// The status of the client's response.
    status: u16,
}

impl MirroredRequest {
    pub(super) fn proxy(&self) -> &Rc<Proxy> {
        &self.permit.0
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

//! A client that is a recording: its request is all there, and its answer is dropped.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};

use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseDeadlines, ResponseWriter, StreamProgress,
    StreamRequest, carry,
};
use crate::h2::trailers;
use crate::http::codec::{BodyDecoder, BodyEvent, BodyFraming, RequestHead};
use crate::proxy::mirror::MirrorBuffer;
use crate::proxy::{AcquireRequest, Proxy};
use crate::table::{Backend, RouteRequest};

/// Sends a whole request where `host` leads; the status of its answer, once that is over. `body` is framed as the
/// head says. `backend` becomes whoever it goes to.
pub(in crate::proxy) async fn replay(
    proxy: &Rc<Proxy>,
    host: &str,
    (head, written): (&RequestHead, &Bytes),
    body: Bytes,
    backend: &mut Option<Arc<Backend>>,
) -> Option<u16> {
    let started = proxy.ring.now();
    let ask = RouteRequest::ours(host, head.view(written).path());
    let choice = proxy.route(&ask).ok()?;
    *backend = Some(Arc::clone(&choice.backend));
    let mut wish = AcquireRequest { route_request: ask, bytes: written.len() + body.len(), tried: Vec::new() };
    let (place, link) = proxy.reach(choice, &mut wish, started).await.ok()?;
    let course = StreamProgress::new(&proxy.limits);
    course.placed(&proxy.limits, place.backend());
    let job = StreamRequest {
        proxy,
        peer: None,
        head,
        written: written.clone(),
        original_host: None, // it goes nowhere else
        wants_trailers: false,
        deadlines: ResponseDeadlines::new(started, &place.backend().timeouts),
        progress: &course,
        backend: place.backend().key.clone(),
        scheme: place.backend().scheme(),
        timing: None, // nobody is told
    };
    job.progress.request_read.set(head.framing == BodyFraming::Empty);
    let mut body = RecordedBody { bytes: body, reader: BodyDecoder::new(head.framing) };
    match carry(&job, place, link, &mut body, &mut DiscardWriter).await {
        AttemptOutcome::Done { status, .. } => Some(status),
        AttemptOutcome::Refused(_)
        | AttemptOutcome::Cut
        | AttemptOutcome::Stale
        | AttemptOutcome::Unread
        | AttemptOutcome::Unasked
        | AttemptOutcome::Switched => None,
    }
}

struct RecordedBody {
    bytes: Bytes,
    reader: BodyDecoder,
}

impl RequestBody for RecordedBody {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        match self.reader.next(&self.bytes).map_err(BodyFault::Malformed)? {
            BodyEvent::Data { skip, take } => {
                self.bytes.advance(skip);
                Ok(BodyPart::Data(self.bytes.split_to(take)))
            }
            BodyEvent::End { .. } => Ok(BodyPart::End(trailers::from_lines(self.reader.trailers()))),
            BodyEvent::NeedBytes => Err(BodyFault::Gone),
        }
    }

    fn forwarded(&mut self, _bytes: usize) {}

    async fn watch(&mut self) {
        pending().await
    }
}

/// Takes an answer as fast as it comes.
struct DiscardWriter;

impl ResponseWriter for DiscardWriter {
    async fn interim(&mut self, _answer: Response<()>) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn head(&mut self, _answer: Response<()>, _ends: bool) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn data(&mut self, _bytes: Bytes, _ends: bool) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn end(&mut self, _trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        Ok(())
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// A body that is recorded while it passes, if anybody wants that.
pub(super) struct TeeBody<'a, B> {
    pub(super) body: &'a mut B,
    pub(super) mirror_buffer: Option<MirrorBuffer>,
    pub(super) chunked: bool,
}

impl<B: RequestBody> RequestBody for TeeBody<'_, B> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        let part = self.body.next().await?;
        let Some(tape) = &mut self.mirror_buffer else { return Ok(part) };
        match &part {
            BodyPart::Data(bytes) if self.chunked && !bytes.is_empty() => {
                tape.add(format!("{:x}\r\n", bytes.len()).as_bytes()); // only for what is copied anyway
                tape.add(bytes);
                tape.add(b"\r\n");
            }
            BodyPart::Data(bytes) => tape.add(bytes),
            BodyPart::End(_) if self.chunked => tape.add(b"0\r\n\r\n"),
            BodyPart::End(_) => {}
        }
        Ok(part)
    }

    fn forwarded(&mut self, bytes: usize) {
        self.body.forwarded(bytes);
    }

    async fn watch(&mut self) {
        self.body.watch().await;
    }
}

impl<B> TeeBody<'_, B> {
    /// The request is over.
    pub(super) fn end(self, job: &StreamRequest<'_>, ended: &AttemptOutcome) {
        let Some(tape) = self.mirror_buffer else { return };
        tape.end(match ended {
            AttemptOutcome::Done { status, .. } if job.progress.request_read.get() => Some(*status),
            _ => None,
        });
    }
}

//! A recorded request as the client: the request is complete, and its response is dropped or collected.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};
use codec::http::{BodyDecoder, BodyEvent, BodyFraming, Parsed, RequestHead, parse_request};
use contract::table::{Backend, BackendShare, FilterDestination, RouteRequest};
use protocol::h2::trailers;
use protocol::http::buffers::by;

use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseWriter, StreamProgress, StreamRequest, carry,
};
use crate::connect::{reach, reach_now};
use crate::mirror::{COPY_TIMEOUT, MirrorBuffer, MirroredRequest};
use crate::{AcquireRequest, Proxy, SelectedEndpoint};

/// The request is over: `status` is that of its response, or `None`. Sends its copies; does not block.
pub(crate) fn mirror(buffer: MirrorBuffer, status: Option<u16>) {
    for copy in buffer.end(status) {
        let ring = copy.proxy().ring.clone();
        ring.spawn(async move { send_copy(&copy).await });
    }
}

async fn send_copy(copy: &MirroredRequest) {
    let proxy = copy.proxy();
    let mut head = RequestHead::rewritten();
    // cannot fail: the proxy wrote this head
    let Parsed::Head { .. } = parse_request(&copy.head, &mut head) else { return };
    let Some(mirror) = copy.mirror() else { return };
    let mut backend = None;
    let request = RecordedRequest { head: &head, written: &copy.head, body: copy.body.clone() };
    let mut discard = DiscardWriter;
    let answer = replay(proxy, &mirror.destination, request, &mut discard, &mut backend);
    let due = proxy.ring.now() + COPY_TIMEOUT;
    let ended = by(&proxy.ring, Some(due), answer).await;
    let status = match ended {
        Ok(AttemptOutcome::Done { status, .. }) => Some(status),
        _ => None,
    };
    copy.compare(backend.as_deref(), status);
}

/// A request that is complete.
pub(super) struct RecordedRequest<'a> {
    pub(super) head: &'a RequestHead,
    /// The head's bytes.
    pub(super) written: &'a Bytes,
    /// Framed as the head says.
    pub(super) body: Bytes,
}

/// Sends a recorded request to `destination`, and its response to `reply`. `backend` is set to the chosen backend.
pub(super) async fn replay(
    proxy: &Rc<Proxy>,
    destination: &FilterDestination,
    RecordedRequest { head, written, body }: RecordedRequest<'_>,
    reply: &mut impl ResponseWriter,
    backend: &mut Option<Arc<Backend>>,
) -> AttemptOutcome {
    let started = proxy.ring.now();
    let reached = match destination {
        FilterDestination::Host(host) => {
            let route_request = RouteRequest::internal(host, head.view(written).path());
            match proxy.route(&route_request) {
                Ok(choice) => {
                    *backend = Some(Arc::clone(&choice.backend));
                    let bytes = written.len() + body.len();
                    let mut acquire_request = AcquireRequest { route_request, bytes, tried: Vec::new() };
                    reach(proxy, choice, &mut acquire_request, started).await
                }
                Err(local_reply) => Err(local_reply),
            }
        }
        FilterDestination::Backend(given) => {
            let choice = SelectedEndpoint::from(&BackendShare::new(1, Arc::clone(given)));
            *backend = Some(Arc::clone(given));
            reach_now(proxy, choice, started).await
        }
    };
    let (permit, link) = match reached {
        Ok(both) => both,
        Err(local_reply) => return AttemptOutcome::Refused(local_reply),
    };
    let progress = StreamProgress::new(&proxy.limits);
    progress.acquired(&proxy.limits, &permit);
    let job = StreamRequest {
        proxy,
        peer: None,
        head,
        written: written.clone(),
        original: None, // it is not retried elsewhere
        wants_trailers: false,
        deadlines: permit.deadlines(started),
        progress: &progress,
        selected: permit.selected.clone(),
        scheme: permit.backend().scheme(),
        timing: None, // there is no client
    };
    job.progress.request_read.set(head.framing == BodyFraming::Empty);
    let mut body = RecordedBody { bytes: body, reader: BodyDecoder::new(head.framing) };
    carry(&job, permit, link, &mut body, reply).await
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

/// Accepts a response as fast as it arrives.
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

/// A body that is recorded while it passes, if the request is mirrored.
pub(super) struct TeeBody<'a, B> {
    pub(super) body: &'a mut B,
    pub(super) mirror_buffer: Option<Box<MirrorBuffer>>,
    pub(super) chunked: bool,
}

impl<B: RequestBody> RequestBody for TeeBody<'_, B> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        let part = self.body.next().await?;
        let Some(mirror_buffer) = &mut self.mirror_buffer else { return Ok(part) };
        match &part {
            BodyPart::Data(bytes) if self.chunked && !bytes.is_empty() => {
                mirror_buffer.add(format!("{:x}\r\n", bytes.len()).as_bytes()); // only for mirrored requests
                mirror_buffer.add(bytes);
                mirror_buffer.add(b"\r\n");
            }
            BodyPart::Data(bytes) => mirror_buffer.add(bytes),
            BodyPart::End(_) if self.chunked => mirror_buffer.add(b"0\r\n\r\n"),
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
        let Some(mirror_buffer) = self.mirror_buffer else { return };
        mirror(
            *mirror_buffer,
            match ended {
                AttemptOutcome::Done { status, .. } if job.progress.request_read.get() => Some(*status),
                _ => None,
            },
        );
    }
}

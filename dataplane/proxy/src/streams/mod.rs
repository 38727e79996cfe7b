//! Requests with HTTP/2 at one or both ends.
//!
//! A request is read as a [`RequestBody`] and answered through a [`ResponseWriter`]. `from_http1` and `from_http2` are
//! the two kinds of client, `over_http1` and `over_http2` the two kinds of instance. [`carry`] connects them. HTTP/1 at
//! both ends has a shorter path ([`super::exchange`]).

mod authorization;
mod collected_response;
mod compressed_response;
mod expect_continue;
mod from_http1;
mod from_http2;
mod http2_response;
mod limited_body;
mod over_http1;
mod over_http2;
mod replay;
mod server;
mod stream_context;
mod websocket;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::Bytes;

pub(super) use authorization::authorize;
use compressed_response::CompressedResponse;
pub(super) use from_http1::exchange;
use limited_body::LimitedBody;
pub(super) use replay::mirror;
pub(super) use server::serve;

use codec::http::{BodyFraming, MalformedHttp, RequestHead, RequestView};
use contract::client_address::{ClientAddress, ClientScheme};
use contract::table::{ContentCoding, Endpoint, Protocol, RequestTimeouts};
use protocol::h2::{ErrorCode, StreamFailure, heads};
use protocol::http::limits::HttpLimits;
use protocol::http::pool::PoolKey;
use ring::Tick;

use super::activity::{IdleTimeouts, StreamActivity};
use super::cold_start_timing::ColdStartTiming;
use super::deadlines::{RequestSent, ResponseDeadlines};
use super::disconnect_watcher::SilenceTimer;
use super::outcome::AttemptOutcome;
use super::passive_health::counted_endpoint;
use super::request_record::RequestRecord;
use super::retry::{self, ReplayableRequest, RetryBudget, RetryDecision};
use super::route_filters::{OriginalTarget, change_response};
use super::select::select_both;
use super::upstream::UpstreamLink;
use super::{LocalReply, Permit, Proxy, SelectedEndpoint};

/// The next part of a request body.
enum BodyPart {
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Why a body breaks off.
enum BodyFault {
    Gone,
    Stalled,
    Malformed(MalformedHttp),
    /// It has more bytes than the route allows.
    TooLarge(u64),
}

/// The client is gone.
struct ClientGone;

/// A client's request after its head.
trait RequestBody {
    async fn next(&mut self) -> Result<BodyPart, BodyFault>;

    /// `bytes` were forwarded; the client may send as many more.
    fn forwarded(&mut self, bytes: usize);

    /// After the end: resolves only when the client is gone.
    async fn watch(&mut self);
}

/// The response direction to a client. Each step waits until the client can accept its bytes.
trait ResponseWriter {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone>;
    async fn head(&mut self, answer: Response<()>, ends: bool) -> Result<(), ClientGone>;
    /// Sends what the client accepts at once, without a copy for later; the number of bytes. The rest is for
    /// [`ResponseWriter::data`].
    fn data_now(&mut self, _bytes: &[u8], _ends: bool) -> Result<usize, ClientGone> {
        Ok(0)
    }

    /// `ends`: these are the last bytes, which saves the frame of [`ResponseWriter::end`].
    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), ClientGone>;
    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone>;

    /// Ends a response whose deadline has passed, if its protocol can express that. Any other is cut, so that its
    /// client does not take a part for the whole.
    async fn end_late(&mut self) -> Result<(), ClientGone>;

    /// Ready when the client has cancelled its request.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// What the two directions of a request share.
struct StreamProgress {
    activity: StreamActivity,
    /// A part of the request body was read, even if only its end.
    body_started: Cell<bool>,
    /// The client was sent its `100 Continue`.
    continue_sent: Cell<bool>,
    /// The request body was read to its end.
    request_read: Cell<bool>,
    /// All of it was sent.
    sent: Cell<bool>,
    /// The HTTP/2 error that ended the last attempt, if there was one.
    fault: Cell<Option<UpstreamStreamError>>,
    /// The instance that has the request, if it is not the first any more.
    last_progress: RefCell<Option<Arc<Endpoint>>>,
    /// Towards an HTTP/1 client; an HTTP/2 client resets its stream when it goes.
    silence: SilenceTimer,
}

/// How an HTTP/2 instance failed a request.
#[derive(Clone, Copy)]
enum UpstreamStreamError {
    Reset(ErrorCode),
    /// It violated the protocol, on this stream or for its whole connection.
    ProtocolViolation(ErrorCode),
}

impl UpstreamStreamError {
    fn of(failure: StreamFailure) -> Option<Self> {
        match failure {
            StreamFailure::Reset(code) => Some(Self::Reset(code)),
            StreamFailure::Violation(code) | StreamFailure::ConnectionViolation(code) => {
                Some(Self::ProtocolViolation(code))
            }
            StreamFailure::GoAway | StreamFailure::ConnectionClosed => None,
        }
    }
}

impl StreamProgress {
    /// For a request that has no backend yet.
    fn new(limits: &HttpLimits) -> Self {
        Self {
            activity: StreamActivity::new(IdleTimeouts::of(limits, &RequestTimeouts::NONE)),
            body_started: Cell::default(),
            continue_sent: Cell::default(),
            request_read: Cell::default(),
            sent: Cell::default(),
            fault: Cell::default(),
            last_progress: RefCell::default(),
            silence: SilenceTimer::default(),
        }
    }

    /// Called once the request has its backend.
    fn acquired(&self, limits: &HttpLimits, permit: &Permit) {
        self.activity.set_timeouts(IdleTimeouts::of(limits, permit.selected.timeouts()));
    }

    /// Copies the results to the request's record.
    fn record_to(&self, note: &mut RequestRecord) {
        note.answered = self.activity.answered();
        if let Some(endpoint) = self.last_progress.take() {
            note.add_bytes(&endpoint);
        }
    }
}

/// One request in flight, shared by both directions.
struct StreamRequest<'a> {
    proxy: &'a Rc<Proxy>,
    /// The client. `None` for a mirrored request.
    peer: Option<&'a ClientAddress>,
    head: &'a RequestHead,
    /// The head as written for the instance.
    written: Bytes,
    original: Option<Box<OriginalTarget>>,
    wants_trailers: bool,
    /// How the instance is reached.
    scheme: ClientScheme,
    deadlines: ResponseDeadlines,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<ColdStartTiming>>,
    progress: &'a StreamProgress,
    selected: SelectedEndpoint,
}

impl StreamRequest<'_> {
    fn has_body(&self) -> bool {
        self.head.framing != BodyFraming::Empty
    }

    /// When the rest of the response head has to be there, of which bytes arrived at `received`.
    fn head_due(&self, received: Option<Tick>) -> Option<Tick> {
        let progress = self.progress;
        let sent = if progress.sent.get() { RequestSent::At(progress.activity.last()) } else { RequestSent::No };
        self.deadlines.head(received, sent, self.proxy.ring.now())
    }

    /// The final response head arrived.
    fn answered(&self, mut answer: Response<()>) -> Response<()> {
        let now = self.proxy.ring.now();
        self.progress.activity.answer_begins(now);
        if let Some(changes) = self.selected.response_changes() {
            change_response(&mut answer, changes);
        }
        if let Some(timing) = &self.timing {
            timing.add(&mut answer, now);
        }
        answer
    }

    /// The reply for a request without a response.
    fn failed(&self) -> AttemptOutcome {
        let backend = self.selected.backend.key.clone();
        AttemptOutcome::Refused(match self.progress.fault.get() {
            None => LocalReply::UpstreamClosed(backend),
            Some(UpstreamStreamError::Reset(code)) => LocalReply::UpstreamReset(backend, code),
            Some(UpstreamStreamError::ProtocolViolation(code)) => LocalReply::UpstreamProtocolError(backend, code),
        })
    }

    fn malformed(&self, why: MalformedHttp) -> AttemptOutcome {
        AttemptOutcome::Refused(LocalReply::UpstreamMalformed(self.selected.backend.key.clone(), why))
    }

    /// How a broken body ends the request.
    fn broken(&self, fault: BodyFault) -> AttemptOutcome {
        match fault {
            _ if self.progress.activity.answered().is_some() => AttemptOutcome::Cut,
            BodyFault::Gone => AttemptOutcome::Cut,
            BodyFault::Stalled => AttemptOutcome::Refused(LocalReply::RequestBodyTimeout),
            BodyFault::Malformed(why) => AttemptOutcome::Refused(LocalReply::Malformed(why)),
            BodyFault::TooLarge(most) => AttemptOutcome::Refused(LocalReply::BodyTooLarge(most)),
        }
    }
}

/// The choice for a request whose client is authenticated, and that the authorization service permits, if its rule asks for that.
async fn authenticated(
    proxy: &Rc<Proxy>,
    mut choice: SelectedEndpoint,
    (request, peer): (RequestView<'_>, &ClientAddress),
    reply: &mut impl ResponseWriter,
) -> Result<SelectedEndpoint, AttemptOutcome> {
    if let Some(pending) = proxy.authenticate(&mut choice, request).map_err(AttemptOutcome::Refused)? {
        // Boxed: few requests wait for a password, and each would reserve memory for that.
        let verified = Box::pin(proxy.finish_authentication(&mut choice, pending));
        match unless_gone(reply, verified).await {
            Ok(verified) => verified.map_err(AttemptOutcome::Refused)?,
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
        }
    }
    if choice.needs_authorization() {
        let authorized = Box::pin(authorize(proxy, &mut choice, request, peer));
        match unless_gone(reply, authorized).await {
            Ok(authorized) => authorized.map_err(AttemptOutcome::Refused)?,
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
        }
    }
    Ok(choice)
}

/// Why a response, or the sending of a request, breaks off.
enum StreamAbort {
    Instance,
    /// Its deadline has passed.
    Late,
    Client,
}

impl From<ClientGone> for StreamAbort {
    fn from(_: ClientGone) -> Self {
        Self::Client
    }
}

/// Carries a request that has its permit and connection, with the filters of its route that see bodies. `coding` is the one
/// that the client accepts.
async fn carry_filtered(
    job: &StreamRequest<'_>,
    permit: Permit,
    link: UpstreamLink,
    body: &mut impl RequestBody,
    (reply, coding): (&mut impl ResponseWriter, Option<ContentCoding>),
) -> AttemptOutcome {
    let filters = job.selected.filters.as_deref();
    let body_bytes_max = filters.and_then(|filters| filters.body_bytes_max);
    let compresses = filters.is_some_and(|filters| filters.compression.is_some());
    if body_bytes_max.is_none() && !compresses {
        return carry(job, permit, link, body, reply).await;
    }
    // Boxed: the future of each request would have room for a second one.
    let body = &mut LimitedBody::new(body, body_bytes_max);
    if compresses {
        let reply = &mut CompressedResponse::new(reply, job.proxy, coding);
        Box::pin(carry(job, permit, link, body, reply)).await
    } else {
        Box::pin(carry(job, permit, link, body, reply)).await
    }
}

/// Carries a request that has its permit and connection. A connection that turns out to be closed before any byte of a
/// response is replaced if the request is idempotent, or if no instance processed it and its body is still complete.
async fn carry(
    job: &StreamRequest<'_>,
    mut permit: Permit,
    mut link: UpstreamLink,
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let repeatable = !job.has_body() && job.head.method.is_idempotent();
    let mut budget = RetryBudget::new(repeatable);
    loop {
        let attempt = match &mut link {
            UpstreamLink::Http1(upstream) => over_http1::attempt(job, upstream, body, reply).await,
            UpstreamLink::Http2(stream_permit) => over_http2::attempt(job, stream_permit, body, reply).await,
        };
        job.proxy.observe(counted_endpoint(&permit), &attempt, job.progress.sent.get());
        let attempt = match budget.decide(attempt, job.progress.body_started.get()) {
            RetryDecision::Ended(attempt) => attempt,
            RetryDecision::Retry { is_alive } => {
                // Boxed: few requests are retried, and each would reserve memory for the wait.
                match Box::pin(retry_upstream(job, permit, (link.protocol(), is_alive), body, reply)).await {
                    Ok(both) => {
                        (permit, link) = both;
                        job.progress.last_progress.replace(Some(Arc::clone(&permit.endpoint)));
                    }
                    Err(ended) => return ended,
                }
                continue;
            }
            RetryDecision::Exhausted => return job.failed(),
        };
        match attempt {
            AttemptOutcome::Done { status, close } => {
                if let UpstreamLink::Http1(upstream) = link
                    && job.progress.sent.get()
                    && permit.backend().proxy_protocol.is_none()
                    && upstream.is_reusable()
                {
                    job.proxy.client.put_back(PoolKey::Endpoint(permit.endpoint.id), upstream);
                }
                return AttemptOutcome::Done { status, close };
            }
            ended => return ended,
        }
    }
}

/// Retries the request on another connection. A client that is gone meanwhile ends it at once.
async fn retry_upstream(
    job: &StreamRequest<'_>,
    permit: Permit,
    (protocol, is_alive): (Protocol, bool),
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> Result<(Permit, UpstreamLink), AttemptOutcome> {
    let replayable = ReplayableRequest {
        protocol,
        is_alive,
        written: &job.written,
        original: job.original.as_deref(),
        peer: job.peer,
        due: job.deadlines.first_byte,
    };
    let reached =
        async { retry::retry_upstream(job.proxy, permit, &replayable).await.map_err(AttemptOutcome::Refused) };
    let broken = async {
        body.watch().await;
        Err(AttemptOutcome::Cut)
    };
    unless_gone(reply, select_both(reached, broken)).await.unwrap_or(Err(AttemptOutcome::Cut))
}

/// Whether the response body ended in a way that a client can take for its end.
async fn is_ended(reply: &mut impl ResponseWriter, body: Result<(), StreamAbort>) -> bool {
    match body {
        Ok(()) => true,
        Err(StreamAbort::Late) => reply.end_late().await.is_ok(),
        Err(StreamAbort::Instance | StreamAbort::Client) => false,
    }
}

/// Runs `future`, unless the client is gone first.
fn unless_gone<R: ResponseWriter, F: Future>(reply: &mut R, future: F) -> UnlessGone<'_, R, F> {
    UnlessGone { reply, future }
}

pin_project_lite::pin_project! {
    /// See [`unless_gone`]. A named type for the same reason as [`ring::Timeout`].
    struct UnlessGone<'a, R, F> {
        reply: &'a mut R,
        #[pin]
        future: F,
    }
}

impl<R: ResponseWriter, F: Future> Future for UnlessGone<'_, R, F> {
    type Output = Result<F::Output, ClientGone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.reply.poll_gone(cx) {
            Poll::Ready(()) => Poll::Ready(Err(ClientGone)),
            Poll::Pending => this.future.poll(cx).map(Ok),
        }
    }
}

//! Requests of which one end or both speak HTTP/2.
//!
//! A request comes as a [`Body`] and is answered through a [`Reply`]; `from_http1` and `from_http2` are
//! the two kinds of client, `over_http1` and `over_http2` the two kinds of instance. [`carry`] brings
//! them together. HTTP/1 at both ends has a shorter way of its own ([`super::exchange`]).

mod expect_continue;
mod from_http1;
mod from_http2;
mod over_http1;
mod over_http2;
pub(super) mod replay;
mod response_buffer;
mod server;
mod websocket;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::h2::Reason;
use ::http::{HeaderMap, Response};
use bytes::Bytes;

pub(super) use from_http1::exchange;
pub(super) use server::serve;

use super::activity::{IdleTimeouts, StreamActivity};
use super::cold_start_timing::ColdStartTiming;
use super::disconnect_watcher::SilenceTimer;
use super::exchange::{AttemptOutcome, ResponseDeadlines, is_reusable};
use super::request_record::RequestRecord;
use super::retry::ReplayableRequest;
use super::select::select_both;
use super::upstream::UpstreamLink;
use super::{LocalReply, Permit, Proxy};
use crate::h2::heads;
use crate::h2::limits::TRIES_MAX;
use crate::http::codec::{BodyFraming, MalformedHttp, RequestHead};
use crate::http::headers::{ClientAddress, ClientScheme};
use crate::http::limits::{HttpLimits, SENDS_MAX};
use crate::http::pool::PoolKey;
use crate::table::{Backend, Endpoint, Protocol, RequestTimeouts};

/// What a request's body brings next.
enum BodyPart {
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Why a body breaks off.
enum BodyFault {
    Gone,
    Stalled,
    Malformed(MalformedHttp),
}

/// The client is gone.
struct ClientGone;

/// A client's request after its head.
trait RequestBody {
    async fn next(&mut self) -> Result<BodyPart, BodyFault>;

    /// So many bytes have gone on; the client may send as many more.
    fn forwarded(&mut self, bytes: usize);

    /// After the end: resolves only when the client is gone.
    async fn watch(&mut self);
}

/// The way back to a client. Each step waits until there is room for what it sends.
trait ResponseWriter {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone>;
    async fn head(&mut self, answer: Response<()>, ends: bool) -> Result<(), ClientGone>;
    /// `ends` when the answer is over with them: one frame less than [`Reply::end`].
    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), ClientGone>;
    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone>;

    /// Ends a response whose time is up, if its protocol has words for that. Any other is cut, so that its client does not take
    /// a part for the whole.
    async fn end_late(&mut self) -> Result<(), ClientGone>;

    /// Ready when the client has taken its request back.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// What the two directions of a request know of each other.
struct StreamProgress {
    activity: StreamActivity,
    /// Something of the request's body was read, were it its end.
    body_started: Cell<bool>,
    /// The client that waits for a word has it.
    continue_sent: Cell<bool>,
    /// The request's body was read to its end.
    request_read: Cell<bool>,
    /// ... and all of it was sent.
    sent: Cell<bool>,
    /// What ended the last attempt in HTTP/2, if that had a word for it.
    fault: Cell<Option<UpstreamStreamError>>,
    /// The instance that has it, if that is not the first any more.
    last_progress: RefCell<Option<Arc<Endpoint>>>,
    /// Towards a client of HTTP/1; one of HTTP/2 takes its request back when it goes.
    silence: SilenceTimer,
}

/// How an instance of HTTP/2 failed a request.
#[derive(Clone, Copy)]
enum UpstreamStreamError {
    Reset(Reason),
    /// It broke the rules, on this stream or for its whole connection: h2 could not take what it said.
    Broke(Reason),
}

impl UpstreamStreamError {
    fn of(why: &::h2::Error) -> Option<Self> {
        let reason = why.reason()?;
        match why.is_remote() {
            true => why.is_reset().then_some(Self::Reset(reason)), // a goodbye is one for the connection
            false => why.is_library().then_some(Self::Broke(reason)),
        }
    }
}

impl StreamProgress {
    /// Of a request that has no backend yet.
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

    /// The request has got its backend.
    fn placed(&self, limits: &HttpLimits, backend: &Backend) {
        self.activity.set_timeouts(IdleTimeouts::of(limits, &backend.timeouts));
    }

    /// What is to be known of it when it is over.
    fn tell(&self, note: &mut RequestRecord) {
        note.answered = self.activity.answered();
        if let Some(endpoint) = self.last_progress.take() {
            note.add_bytes(&endpoint);
        }
    }
}

/// One request on its way, for both directions to read.
struct StreamRequest<'a> {
    proxy: &'a Rc<Proxy>,
    /// The client; none of a recording.
    peer: Option<&'a ClientAddress>,
    head: &'a RequestHead,
    /// The head as an instance gets it.
    written: Bytes,
    /// As [`meant`](super::exchange::meant) has it.
    original_host: Option<Box<str>>,
    wants_trailers: bool,
    /// How the instance is reached.
    scheme: ClientScheme,
    deadlines: ResponseDeadlines,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<ColdStartTiming>>,
    progress: &'a StreamProgress,
    backend: Box<str>,
}

impl StreamRequest<'_> {
    fn has_body(&self) -> bool {
        self.head.framing != BodyFraming::Empty
    }

    /// The final answer's head came.
    fn answered(&self, mut answer: Response<()>) -> Response<()> {
        let now = self.proxy.ring.now();
        self.progress.activity.answer_begins(now);
        if let Some(timing) = &self.timing {
            timing.add(&mut answer, now);
        }
        answer
    }

    /// Nothing can be done about a request without an answer.
    fn failed(&self) -> AttemptOutcome {
        let backend = self.backend.clone();
        AttemptOutcome::Refused(match self.progress.fault.get() {
            None => LocalReply::UpstreamClosed(backend),
            Some(UpstreamStreamError::Reset(reason)) => LocalReply::UpstreamReset(backend, reason),
            Some(UpstreamStreamError::Broke(reason)) => LocalReply::UpstreamProtocolError(backend, reason),
        })
    }

    fn malformed(&self, why: MalformedHttp) -> AttemptOutcome {
        AttemptOutcome::Refused(LocalReply::UpstreamMalformed(self.backend.clone(), why))
    }

    /// What a broken body means for the request.
    fn broken(&self, fault: BodyFault) -> AttemptOutcome {
        match fault {
            _ if self.progress.activity.answered().is_some() => AttemptOutcome::Cut,
            BodyFault::Gone => AttemptOutcome::Cut,
            BodyFault::Stalled => AttemptOutcome::Refused(LocalReply::RequestBodyTimeout),
            BodyFault::Malformed(why) => AttemptOutcome::Refused(LocalReply::Malformed(why)),
        }
    }
}

/// Why an answer, or the sending of a request, breaks off.
enum StreamAbort {
    Instance,
    /// Its time was up.
    Late,
    Client,
}

impl From<ClientGone> for StreamAbort {
    fn from(_: ClientGone) -> Self {
        Self::Client
    }
}

/// Carries a request that has its place and its way. A connection that turns out to be closed before any byte of an
/// answer is replaced, if the request may be asked twice; or if nobody was asked and nothing of its body is gone.
async fn carry(
    job: &StreamRequest<'_>,
    mut place: Permit,
    mut link: UpstreamLink,
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let repeatable = !job.has_body() && job.head.method.is_idempotent();
    let mut tries = 0;
    loop {
        tries += 1;
        let attempt = match &mut link {
            UpstreamLink::Http1(upstream) => over_http1::attempt(job, upstream, body, reply).await,
            UpstreamLink::Http2(turn) => over_http2::attempt(job, turn, body, reply).await,
        };
        let may_repeat = match attempt {
            AttemptOutcome::Stale | AttemptOutcome::Unread => repeatable && tries < SENDS_MAX,
            AttemptOutcome::Unasked => !job.progress.body_started.get() && tries < TRIES_MAX,
            _ => false,
        };
        match attempt {
            AttemptOutcome::Stale | AttemptOutcome::Unread | AttemptOutcome::Unasked if may_repeat => {
                let is_there = !matches!(attempt, AttemptOutcome::Unread);
                // Boxed: few requests go a second time, and each would have room for the wait.
                match Box::pin(retry_upstream(job, place, (link.protocol(), is_there), body, reply)).await {
                    Ok(both) => {
                        (place, link) = both;
                        job.progress.last_progress.replace(Some(Arc::clone(&place.endpoint)));
                    }
                    Err(ended) => return ended,
                }
            }
            AttemptOutcome::Stale | AttemptOutcome::Unread | AttemptOutcome::Unasked => return job.failed(),
            AttemptOutcome::Done { status, close } => {
                if let UpstreamLink::Http1(upstream) = link
                    && job.progress.sent.get()
                    && is_reusable(&upstream)
                {
                    job.proxy.client.put_back(PoolKey::Endpoint(place.endpoint.id), upstream);
                }
                return AttemptOutcome::Done { status, close };
            }
            ended => return ended,
        }
    }
}

/// Another way for the request; a client that is gone meanwhile leaves at once.
async fn retry_upstream(
    job: &StreamRequest<'_>,
    place: Permit,
    (protocol, is_there): (Protocol, bool),
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> Result<(Permit, UpstreamLink), AttemptOutcome> {
    let again = ReplayableRequest {
        protocol,
        is_there,
        written: &job.written,
        original_host: job.original_host.as_deref(),
        peer: job.peer,
        due: job.deadlines.first_byte,
    };
    let reached = async { job.proxy.retry_upstream(place, &again).await.map_err(AttemptOutcome::Refused) };
    let broken = async {
        body.watch().await;
        Err(AttemptOutcome::Cut)
    };
    unless_gone(reply, select_both(reached, broken)).await.unwrap_or(Err(AttemptOutcome::Cut))
}

/// Whether an answer's body has come to an end that a client may take for one.
async fn is_ended(reply: &mut impl ResponseWriter, body: Result<(), StreamAbort>) -> bool {
    match body {
        Ok(()) => true,
        Err(StreamAbort::Late) => reply.end_late().await.is_ok(),
        Err(StreamAbort::Instance | StreamAbort::Client) => false,
    }
}

/// `future`, unless the client is gone first.
fn unless_gone<R: ResponseWriter, F: Future>(reply: &mut R, future: F) -> UnlessGone<'_, R, F> {
    UnlessGone { reply, future }
}

pin_project_lite::pin_project! {
    /// See [`unless_gone`]. A type of its own for the reason that [`ring::Within`] is one.
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

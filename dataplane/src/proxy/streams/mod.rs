//! Requests of which one end or both speak HTTP/2.
//!
//! A request comes as a [`Body`] and is answered through a [`Reply`]; `from_http1` and `from_http2` are
//! the two kinds of client, `over_http1` and `over_http2` the two kinds of instance. [`carry`] brings
//! them together. HTTP/1 at both ends has a shorter way of its own ([`super::exchange`]).

mod ahead;
mod expectation;
mod from_http1;
mod from_http2;
mod over_http1;
mod over_http2;
pub(super) mod replay;
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

use super::activity::{Activity, IdleTimeouts};
use super::afresh::Again;
use super::beside::beside;
use super::exchange::{Attempt, Due, is_reusable};
use super::link::Link;
use super::note::Note;
use super::timing::Timing;
use super::watch::Silence;
use super::{Place, Proxy, Refusal};
use crate::h2::heads;
use crate::h2::limits::TRIES_MAX;
use crate::http::codec::{Framing, Malformed, RequestHead};
use crate::http::headers::{Peer, Scheme};
use crate::http::limits::{HttpLimits, SENDS_MAX};
use crate::http::pool::PoolKey;
use crate::table::{Backend, Endpoint, Protocol, Timeouts};

/// What a request's body brings next.
enum Part {
    Data(Bytes),
    End(Option<HeaderMap>),
}

/// Why a body breaks off.
enum Fault {
    Gone,
    Stalled,
    Malformed(Malformed),
}

/// The client is gone.
struct Gone;

/// A client's request after its head.
trait Body {
    async fn next(&mut self) -> Result<Part, Fault>;

    /// So many bytes have gone on; the client may send as many more.
    fn passed_on(&mut self, bytes: usize);

    /// After the end: resolves only when the client is gone.
    async fn watch(&mut self);
}

/// The way back to a client. Each step waits until there is room for what it sends.
trait Reply {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), Gone>;
    async fn head(&mut self, answer: Response<()>, ends: bool) -> Result<(), Gone>;
    /// `ends` when the answer is over with them: one frame less than [`Reply::end`].
    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), Gone>;
    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone>;

    /// Ends a response whose time is up, if its protocol has words for that. Any other is cut, so that its client does not take
    /// a part for the whole.
    async fn end_late(&mut self) -> Result<(), Gone>;

    /// Ready when the client has taken its request back.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// What the two directions of a request know of each other.
struct Course {
    activity: Activity,
    /// Something of the request's body was read, were it its end.
    body_begun: Cell<bool>,
    /// The client that waits for a word has it.
    told_to_continue: Cell<bool>,
    /// The request's body was read to its end.
    request_read: Cell<bool>,
    /// ... and all of it was sent.
    sent: Cell<bool>,
    /// What ended the last attempt in HTTP/2, if that had a word for it.
    fault: Cell<Option<StreamFault>>,
    /// The instance that has it, if that is not the first any more.
    moved_to: RefCell<Option<Arc<Endpoint>>>,
    /// Towards a client of HTTP/1; one of HTTP/2 takes its request back when it goes.
    silence: Silence,
}

/// How an instance of HTTP/2 failed a request.
#[derive(Clone, Copy)]
enum StreamFault {
    Reset(Reason),
    /// It broke the rules, on this stream or for its whole connection: h2 could not take what it said.
    Broke(Reason),
}

impl StreamFault {
    fn of(why: &::h2::Error) -> Option<Self> {
        let reason = why.reason()?;
        match why.is_remote() {
            true => why.is_reset().then_some(Self::Reset(reason)), // a goodbye is one for the connection
            false => why.is_library().then_some(Self::Broke(reason)),
        }
    }
}

impl Course {
    /// Of a request that has no backend yet.
    fn new(limits: &HttpLimits) -> Self {
        Self {
            activity: Activity::new(IdleTimeouts::of(limits, &Timeouts::NONE)),
            body_begun: Cell::default(),
            told_to_continue: Cell::default(),
            request_read: Cell::default(),
            sent: Cell::default(),
            fault: Cell::default(),
            moved_to: RefCell::default(),
            silence: Silence::default(),
        }
    }

    /// The request has got its backend.
    fn placed(&self, limits: &HttpLimits, backend: &Backend) {
        self.activity.set_timeouts(IdleTimeouts::of(limits, &backend.timeouts));
    }

    /// What is to be known of it when it is over.
    fn tell(&self, note: &mut Note) {
        note.answered = self.activity.answered();
        if let Some(endpoint) = self.moved_to.take() {
            note.moved(&endpoint);
        }
    }
}

/// One request on its way, for both directions to read.
struct Job<'a> {
    proxy: &'a Rc<Proxy>,
    /// The client; none of a recording.
    peer: Option<&'a Peer>,
    head: &'a RequestHead,
    /// The head as an instance gets it.
    written: Bytes,
    /// As [`meant`](super::exchange::meant) has it.
    meant: Option<Box<str>>,
    wants_trailers: bool,
    /// How the instance is reached.
    scheme: Scheme,
    due: Due,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<Timing>>,
    course: &'a Course,
    backend: Box<str>,
}

impl Job<'_> {
    fn has_body(&self) -> bool {
        self.head.framing != Framing::Empty
    }

    /// The final answer's head came.
    fn answered(&self, mut answer: Response<()>) -> Response<()> {
        let now = self.proxy.ring.now();
        self.course.activity.answer_begins(now);
        if let Some(timing) = &self.timing {
            timing.add(&mut answer, now);
        }
        answer
    }

    /// Nothing can be done about a request without an answer.
    fn failed(&self) -> Attempt {
        let backend = self.backend.clone();
        Attempt::Refused(match self.course.fault.get() {
            None => Refusal::InstanceFailed(backend),
            Some(StreamFault::Reset(reason)) => Refusal::InstanceReset(backend, reason),
            Some(StreamFault::Broke(reason)) => Refusal::InstanceBroke(backend, reason),
        })
    }

    fn malformed(&self, why: Malformed) -> Attempt {
        Attempt::Refused(Refusal::InstanceMalformed(self.backend.clone(), why))
    }

    /// What a broken body means for the request.
    fn broken(&self, fault: Fault) -> Attempt {
        match fault {
            _ if self.course.activity.answered().is_some() => Attempt::Cut,
            Fault::Gone => Attempt::Cut,
            Fault::Stalled => Attempt::Refused(Refusal::BodyStalled),
            Fault::Malformed(why) => Attempt::Refused(Refusal::Malformed(why)),
        }
    }
}

/// Why an answer, or the sending of a request, breaks off.
enum Stop {
    Instance,
    /// Its time was up.
    Late,
    Client,
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Self::Client
    }
}

/// Carries a request that has its place and its way. A connection that turns out to be closed before any byte of an
/// answer is replaced, if the request may be asked twice; or if nobody was asked and nothing of its body is gone.
async fn carry(
    job: &Job<'_>,
    mut place: Place,
    mut link: Link,
    body: &mut impl Body,
    reply: &mut impl Reply,
) -> Attempt {
    let repeatable = !job.has_body() && job.head.method.is_idempotent();
    let mut tries = 0;
    loop {
        tries += 1;
        let attempt = match &mut link {
            Link::Http1(upstream) => over_http1::attempt(job, upstream, body, reply).await,
            Link::Http2(turn) => over_http2::attempt(job, turn, body, reply).await,
        };
        let may_repeat = match attempt {
            Attempt::Stale | Attempt::Unread => repeatable && tries < SENDS_MAX,
            Attempt::Unasked => !job.course.body_begun.get() && tries < TRIES_MAX,
            _ => false,
        };
        match attempt {
            Attempt::Stale | Attempt::Unread | Attempt::Unasked if may_repeat => {
                let is_there = !matches!(attempt, Attempt::Unread);
                // Boxed: few requests go a second time, and each would have room for the wait.
                match Box::pin(afresh(job, place, (link.protocol(), is_there), body, reply)).await {
                    Ok(both) => {
                        (place, link) = both;
                        job.course.moved_to.replace(Some(Arc::clone(&place.endpoint)));
                    }
                    Err(ended) => return ended,
                }
            }
            Attempt::Stale | Attempt::Unread | Attempt::Unasked => return job.failed(),
            Attempt::Done { status, close } => {
                if let Link::Http1(upstream) = link
                    && job.course.sent.get()
                    && is_reusable(&upstream)
                {
                    job.proxy.client.keep(PoolKey::Endpoint(place.endpoint.id), upstream);
                }
                return Attempt::Done { status, close };
            }
            ended => return ended,
        }
    }
}

/// Another way for the request; a client that is gone meanwhile leaves at once.
async fn afresh(
    job: &Job<'_>,
    place: Place,
    (protocol, is_there): (Protocol, bool),
    body: &mut impl Body,
    reply: &mut impl Reply,
) -> Result<(Place, Link), Attempt> {
    let again = Again {
        protocol,
        is_there,
        written: &job.written,
        meant: job.meant.as_deref(),
        peer: job.peer,
        due: job.due.first_byte,
    };
    let reached = async { job.proxy.afresh(place, &again).await.map_err(Attempt::Refused) };
    let broken = async {
        body.watch().await;
        Err(Attempt::Cut)
    };
    unless_gone(reply, beside(reached, broken)).await.unwrap_or(Err(Attempt::Cut))
}

/// Whether an answer's body has come to an end that a client may take for one.
async fn is_ended(reply: &mut impl Reply, body: Result<(), Stop>) -> bool {
    match body {
        Ok(()) => true,
        Err(Stop::Late) => reply.end_late().await.is_ok(),
        Err(Stop::Instance | Stop::Client) => false,
    }
}

/// `future`, unless the client is gone first.
fn unless_gone<R: Reply, F: Future>(reply: &mut R, future: F) -> UnlessGone<'_, R, F> {
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

impl<R: Reply, F: Future> Future for UnlessGone<'_, R, F> {
    type Output = Result<F::Output, Gone>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.reply.poll_gone(cx) {
            Poll::Ready(()) => Poll::Ready(Err(Gone)),
            Poll::Pending => this.future.poll(cx).map(Ok),
        }
    }
}

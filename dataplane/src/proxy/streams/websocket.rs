//! A WebSocket that is one stream of HTTP/2 (RFC 8441), to an instance that speaks it over HTTP/1 (RFC 6455).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use ::h2::ext::Protocol;
use ::h2::server::SendResponse;
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{StatusCode, request};
use bytes::{Bytes, BytesMut};
use ring::Chunk;

use super::from_http2::{Outgoing, hear_out};
use super::server::Shared;
use super::{Attempt, Due, Gone, Job, Reply, heads, over_http1, unless_gone};
use crate::h2::heads::Translated;
use crate::http::codec::{Name, has_token, parse_response};
use crate::http::headers::put_request;
use crate::http::limits::{INTERIM_MAX, SENDS_MAX};
use crate::http::pool::Upstream;
use crate::http::wire::{HeadFault, Inflow, by};
use crate::proxy::afresh::Again;
use crate::proxy::exchange::meant;
use crate::proxy::link::Link;
use crate::proxy::note::{End, Note};
use crate::proxy::tunnel::{Course, between};
use crate::proxy::{Place, Refusal, Wish};
use crate::table::{self, Ask};
use crate::tls::Pipe;

/// Whether a request asks for one: an extended CONNECT.
pub(super) fn is_asked(parts: &request::Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    parts.method == ::http::Method::CONNECT
        && protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket"))
}

/// Serves one such stream to its end.
pub(super) async fn stream(
    shared: Rc<Shared>,
    parts: request::Parts,
    mut incoming: RecvStream,
    respond: SendResponse<Bytes>,
) {
    let proxy = &shared.proxy;
    let course = super::Course::new(&proxy.limits);
    let mut reply = Outgoing::new(respond, proxy, &course);
    let mut note = Note::default();
    let key: [u8; 16] = proxy.rng.borrow_mut().u128(..).to_be_bytes();
    let translated = heads::websocket_from_client(&parts, key);
    drop(parts);
    note.begin(proxy, translated.as_ref().ok().map(|request| request.head.view(&request.bytes)));
    let opened = match translated {
        Ok(request) => open(&shared, &request, &mut reply, &mut note).await,
        Err(why) => Err(Attempt::Refused(Refusal::Malformed(why))),
    };
    let client = shared.peer.canonical();
    let mut ended = |status, bytes, reason| {
        proxy.counters.answered(status);
        note.end(proxy, &End { client, protocol: "HTTP/2", status, bytes, reason });
    };
    match opened {
        Ok(Opened { mut place, upstream, due }) => {
            place.becomes_tunnel();
            // A seat of its own: that of the connection wakes only the connection.
            let (Some(to), Some(seat)) = (reply.stream.take(), proxy.roster.enter(usize::MAX)) else {
                return;
            };
            let pipe = StreamPipe { from: RefCell::new(incoming), to: RefCell::new(to) };
            let key = proxy.rng.borrow_mut().u32(..).to_be_bytes();
            let course = Course { ring: &proxy.ring, limits: &proxy.limits, seat: &seat, key, due };
            let bytes = between(&course, &pipe, &mut Inflow::default(), upstream).await;
            drop(place);
            ended(101, bytes, None);
        }
        Err(Attempt::Done { status, .. }) => {
            ended(status, reply.bytes, None);
            hear_out(proxy, &mut incoming).await;
        }
        Err(Attempt::Refused(refusal)) => {
            proxy.counters.refused[refusal.index()].fetch_add(1, Relaxed);
            let _ = reply.refuse(&refusal.answer(), false).await; // the client may be gone
            ended(refusal.status(), reply.bytes, End::reason(&refusal));
            hear_out(proxy, &mut incoming).await;
            reply.reset(Reason::NO_ERROR);
        }
        Err(Attempt::Cut | Attempt::Stale | Attempt::Unread | Attempt::Unasked | Attempt::Switched) => {
            ended(0, reply.bytes, None);
            reply.reset(Reason::INTERNAL_ERROR);
        }
    }
}

struct Opened {
    /// Held for as long as the WebSocket lives.
    place: Place,
    upstream: Box<Upstream>,
    due: Due,
}

/// Up to the instance's 101, which its client is told as a 200.
async fn open(
    shared: &Shared,
    request: &Translated,
    reply: &mut Outgoing<'_>,
    note: &mut Note,
) -> Result<Opened, Attempt> {
    let proxy = &shared.proxy;
    let started = proxy.ring.now();
    let view = request.head.view(&request.bytes);
    if let Some(misdirected) = shared.misdirected(view.authority()) {
        return Err(Attempt::Refused(misdirected));
    }
    let ask = Ask::client(view, &shared.peer);
    let choice = proxy.route_noted(&ask, note).map_err(Attempt::Refused)?;
    let mut wish = Wish { ask, bytes: request.bytes.len(), tried: Vec::new() };
    let (mut place, link) = match unless_gone(reply, proxy.reach(choice, &mut wish, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(refusal)) => return Err(Attempt::Refused(refusal)),
        Err(Gone) => return Err(Attempt::Cut),
    };
    let Link::Http1(mut upstream) = link else { return Err(Attempt::Refused(Refusal::Upgrade)) };
    note.placed(&place, proxy.ring.now());
    let mut written = BytesMut::new();
    put_request(&mut written, view, &shared.peer, place.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    reply.course.placed(&proxy.limits, place.backend());
    let job = Job {
        proxy,
        peer: Some(&shared.peer),
        head: &request.head,
        written: written.freeze(),
        meant: meant(place.edits(), view),
        wants_trailers: false,
        scheme: place.backend().scheme(),
        due: Due::new(started, &place.backend().timeouts),
        timing: note.timing.clone().filter(|_| proxy.tells_timing.get()),
        course: reply.course,
        backend: place.backend().key.clone(),
    };
    reply.due = job.due.total;
    let mut sends = 1;
    let opened = loop {
        match shake_hands(&job, &mut upstream, reply).await {
            Err(Attempt::Stale | Attempt::Unread) if sends == SENDS_MAX => break Err(job.failed()),
            Err(ended @ (Attempt::Stale | Attempt::Unread)) => {
                sends += 1;
                (place, upstream) = afresh(&job, place, matches!(ended, Attempt::Stale), reply).await?;
                job.course.moved_to.replace(Some(Arc::clone(&place.endpoint)));
            }
            other => break other,
        }
    };
    job.course.tell(note);
    opened.map(|()| Opened { due: job.due, place, upstream })
}

/// Another way for a handshake that its instance did not read: it is a GET, so it may be asked for again.
async fn afresh(
    job: &Job<'_>,
    place: Place,
    is_there: bool,
    reply: &mut Outgoing<'_>,
) -> Result<(Place, Box<Upstream>), Attempt> {
    let again = Again {
        protocol: table::Protocol::Http1,
        is_there,
        written: &job.written,
        meant: job.meant.as_deref(),
        peer: job.peer,
        due: job.due.first_byte,
    };
    match unless_gone(reply, job.proxy.afresh(place, &again)).await {
        Ok(Ok((place, Link::Http1(upstream)))) => Ok((place, upstream)),
        Ok(Ok(_)) => Err(Attempt::Refused(Refusal::Upgrade)),
        Ok(Err(refusal)) => Err(Attempt::Refused(refusal)),
        Err(Gone) => Err(Attempt::Cut),
    }
}

/// Asks the instance for its 101 and tells the client; else its answer, if it may be passed on.
async fn shake_hands(
    job: &Job<'_>,
    upstream: &mut Upstream,
    reply: &mut Outgoing<'_>,
) -> Result<(), Attempt> {
    let ring = &job.proxy.ring;
    let send = upstream.stream.send(job.written.clone().into());
    match job.course.activity.send(ring, None, send).await {
        Ok(Ok(()) | Err(_)) => {} // one that takes nothing may have said why; if not, reading tells
        Err(_) => return Err(Attempt::Refused(Refusal::TimedOut)),
    }
    let bytes = final_head(job, upstream, reply).await?;
    let answer = upstream.head.view(&bytes);
    match upstream.head.status {
        101 if answer.values(Name::Upgrade).any(|value| has_token(value, "websocket")) => {}
        // A success that did not switch would tell the client that the tunnel is there (RFC 8441 5).
        100..300 => return Err(job.failed()),
        _ => return Err(over_http1::pass_on(job, upstream, bytes, reply).await),
    }
    let mut told = job.answered(heads::from_instance(answer).map_err(|why| job.malformed(why))?);
    drop(bytes); // the receive buffer goes back
    *told.status_mut() = StatusCode::OK;
    told.headers_mut().remove("sec-websocket-accept"); // proves a handshake that its client did not make
    reply.head(told, false).await.map_err(|Gone| Attempt::Cut)
}

/// The answer that is no interim one; those are passed on.
async fn final_head(
    job: &Job<'_>,
    upstream: &mut Upstream,
    reply: &mut Outgoing<'_>,
) -> Result<Chunk, Attempt> {
    let (received_before, ring) = (upstream.inflow.bytes, &job.proxy.ring);
    // Interim responses and the beginning of a head are traffic of the instance.
    let received = Cell::new(None);
    let mut interim = 0;
    while interim <= INTERIM_MAX {
        let Upstream { stream, inflow, head, reused, .. } = upstream;
        let parse = |bytes: &[u8]| parse_response(bytes, job.head.method, head);
        let parsed = inflow.head_noting(stream, parse, || received.set(Some(ring.now())));
        let bytes = match unless_gone(reply, by(ring, job.due.head(received.get()), parsed)).await {
            Err(Gone) => return Err(Attempt::Cut),
            Ok(Err(_)) if job.due.head(received.get()).is_some_and(|due| ring.now() < due) => continue,
            Ok(Err(_)) => return Err(Attempt::Refused(Refusal::TimedOut)),
            Ok(Ok(Err(HeadFault::Malformed(why)))) => return Err(job.malformed(why)),
            Ok(Ok(Err(_))) if *reused && inflow.bytes == received_before => return Err(Attempt::Stale),
            Ok(Ok(Err(why))) if why.is_reset() && inflow.bytes == received_before => {
                return Err(Attempt::Unread);
            }
            Ok(Ok(Err(_))) => return Err(job.failed()),
            Ok(Ok(Ok(bytes))) => bytes,
        };
        if !upstream.head.is_interim() {
            return Ok(bytes);
        }
        received.set(Some(ring.now()));
        interim += 1;
        let answer = heads::from_instance(upstream.head.view(&bytes)).map_err(|why| job.malformed(why))?;
        reply.interim(answer).await.map_err(|Gone| Attempt::Cut)?;
    }
    Err(job.failed())
}

/// The stream as what a tunnel carries bytes from and to.
struct StreamPipe {
    from: RefCell<RecvStream>,
    to: RefCell<SendStream<Bytes>>,
}

impl Pipe for StreamPipe {
    async fn recv(&self) -> io::Result<Chunk> {
        loop {
            let arrived = poll_fn(|cx| self.from.borrow_mut().poll_data(cx)).await;
            let Some(arrived) = arrived else { return Ok(Chunk::empty()) };
            let bytes = arrived.map_err(io::Error::other)?;
            // Taken at once: the tunnel reads no more before it has passed this on.
            let released = self.from.borrow_mut().flow_control().release_capacity(bytes.len());
            released.map_err(io::Error::other)?;
            if !bytes.is_empty() {
                return Ok(Chunk::from(bytes));
            }
        }
    }

    async fn send(&self, bytes: Chunk) -> io::Result<()> {
        let mut left = Bytes::copy_from_slice(&bytes); // the ring's receive buffers are few, and h2 may hold this for long
        drop(bytes);
        while !left.is_empty() {
            self.to.borrow_mut().reserve_capacity(left.len());
            let room = poll_fn(|cx| {
                let to = &mut *self.to.borrow_mut();
                match to.capacity() {
                    0 => to.poll_capacity(cx).map(|room| room.and_then(Result::ok)),
                    room => Poll::Ready(Some(room)),
                }
            });
            let room = room.await.ok_or(io::ErrorKind::BrokenPipe)?;
            let piece = left.split_to(room.min(left.len()));
            if !piece.is_empty() {
                self.to.borrow_mut().send_data(piece, false).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    async fn shutdown_write(&self) -> io::Result<()> {
        self.to.borrow_mut().send_data(Bytes::new(), true).map_err(io::Error::other)
    }
}

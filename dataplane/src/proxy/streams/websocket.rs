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

use super::from_http2::{Http2ResponseWriter, drain_body};
use super::server::StreamContext;
use super::{
    AttemptOutcome, ClientGone, ResponseDeadlines, ResponseWriter, StreamRequest, heads, over_http1, unless_gone,
};
use crate::h2::heads::TranslatedRequest;
use crate::http::buffers::{HeadReadError, ReadBuffer, by};
use crate::http::codec::{FieldName, has_token, parse_response};
use crate::http::headers::put_request;
use crate::http::limits::{INTERIM_MAX, SENDS_MAX};
use crate::http::pool::UpstreamConnection;
use crate::proxy::exchange::original_host;
use crate::proxy::request_record::{RequestEnd, RequestRecord};
use crate::proxy::retry::ReplayableRequest;
use crate::proxy::tunnel::{TunnelContext, between};
use crate::proxy::upstream::UpstreamLink;
use crate::proxy::{AcquireRequest, LocalReply, Permit};
use crate::table::{self, RouteRequest};
use crate::tls::ByteStream;

/// Whether a request asks for one: an extended CONNECT.
pub(super) fn is_requested(parts: &request::Parts) -> bool {
    let protocol = parts.extensions.get::<Protocol>();
    parts.method == ::http::Method::CONNECT
        && protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case("websocket"))
}

/// Serves one such stream to its end.
pub(super) async fn stream(
    shared: Rc<StreamContext>,
    parts: request::Parts,
    mut incoming: RecvStream,
    respond: SendResponse<Bytes>,
) {
    let proxy = &shared.proxy;
    let course = super::StreamProgress::new(&proxy.limits);
    let mut reply = Http2ResponseWriter::new(respond, proxy, &course);
    let mut note = RequestRecord::default();
    let key: [u8; 16] = proxy.rng.borrow_mut().u128(..).to_be_bytes();
    let translated = heads::websocket_from_client(&parts, key);
    drop(parts);
    note.start(proxy, translated.as_ref().ok().map(|request| request.head.view(&request.bytes)));
    let opened = match translated {
        Ok(request) => open(&shared, &request, &mut reply, &mut note).await,
        Err(why) => Err(AttemptOutcome::Refused(LocalReply::Malformed(why))),
    };
    let client = shared.peer.canonical();
    let mut ended = |status, bytes, reason| {
        proxy.counters.answered(status);
        note.end(proxy, &RequestEnd { client, protocol: "HTTP/2", status, bytes, reason });
    };
    match opened {
        Ok(WebSocketUpgrade { permit: mut place, upstream, deadlines: due }) => {
            place.becomes_tunnel();
            // A seat of its own: that of the connection wakes only the connection.
            let (Some(to), Some(seat)) = (reply.stream.take(), proxy.tracker.enter(usize::MAX)) else {
                return;
            };
            let pipe = StreamPipe { from: RefCell::new(incoming), to: RefCell::new(to) };
            let key = Some(proxy.rng.borrow_mut().u32(..).to_be_bytes());
            let course = TunnelContext { ring: &proxy.ring, limits: &proxy.limits, guard: &seat, key, deadlines: due };
            let bytes = between(&course, &pipe, &mut ReadBuffer::default(), upstream).await;
            drop(place);
            ended(101, bytes, None);
        }
        Err(AttemptOutcome::Done { status, .. }) => {
            ended(status, reply.bytes, None);
            drain_body(proxy, &mut incoming).await;
        }
        Err(AttemptOutcome::Refused(refusal)) => {
            proxy.counters.refused[refusal.index()].fetch_add(1, Relaxed);
            let _ = reply.refuse(&refusal.answer(), false).await; // the client may be gone
            ended(refusal.status(), reply.bytes, RequestEnd::reason(&refusal));
            drain_body(proxy, &mut incoming).await;
            reply.reset(Reason::NO_ERROR);
        }
        Err(
            AttemptOutcome::Cut
            | AttemptOutcome::Stale
            | AttemptOutcome::Unread
            | AttemptOutcome::Unasked
            | AttemptOutcome::Switched,
        ) => {
            ended(0, reply.bytes, None);
            reply.reset(Reason::INTERNAL_ERROR);
        }
    }
}

struct WebSocketUpgrade {
    /// Held for as long as the WebSocket lives.
    permit: Permit,
    upstream: Box<UpstreamConnection>,
    deadlines: ResponseDeadlines,
}

/// Up to the instance's 101, which its client is told as a 200.
async fn open(
    shared: &StreamContext,
    request: &TranslatedRequest,
    reply: &mut Http2ResponseWriter<'_>,
    note: &mut RequestRecord,
) -> Result<WebSocketUpgrade, AttemptOutcome> {
    let proxy = &shared.proxy;
    let started = proxy.ring.now();
    let view = request.head.view(&request.bytes);
    if let Some(misdirected) = shared.misdirected(view.authority()) {
        return Err(AttemptOutcome::Refused(misdirected));
    }
    let ask = RouteRequest::client(view, &shared.peer);
    let choice = proxy.route_noted(&ask, note).map_err(AttemptOutcome::Refused)?;
    let mut wish = AcquireRequest { route_request: ask, bytes: request.bytes.len(), tried: Vec::new() };
    let (mut place, link) = match unless_gone(reply, proxy.reach(choice, &mut wish, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(refusal)) => return Err(AttemptOutcome::Refused(refusal)),
        Err(ClientGone) => return Err(AttemptOutcome::Cut),
    };
    let UpstreamLink::Http1(mut upstream) = link else {
        return Err(AttemptOutcome::Refused(LocalReply::UpgradeUnsupported));
    };
    note.placed(&place, proxy.ring.now());
    let mut written = BytesMut::new();
    put_request(&mut written, view, &shared.peer, place.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    reply.course.placed(&proxy.limits, place.backend());
    let job = StreamRequest {
        proxy,
        peer: Some(&shared.peer),
        head: &request.head,
        written: written.freeze(),
        original_host: original_host(place.edits(), view),
        wants_trailers: false,
        scheme: place.backend().scheme(),
        deadlines: ResponseDeadlines::new(started, &place.backend().timeouts),
        timing: note.timing.clone().filter(|_| proxy.server_timing.get()),
        progress: reply.course,
        backend: place.backend().key.clone(),
    };
    reply.deadlines = job.deadlines.total;
    let mut sends = 1;
    let opened = loop {
        match handshake(&job, &mut upstream, reply).await {
            Err(AttemptOutcome::Stale | AttemptOutcome::Unread) if sends == SENDS_MAX => {
                break Err(job.failed());
            }
            Err(ended @ (AttemptOutcome::Stale | AttemptOutcome::Unread)) => {
                sends += 1;
                (place, upstream) = retry_upstream(&job, place, matches!(ended, AttemptOutcome::Stale), reply).await?;
                job.progress.last_progress.replace(Some(Arc::clone(&place.endpoint)));
            }
            other => break other,
        }
    };
    job.progress.tell(note);
    opened.map(|()| WebSocketUpgrade { deadlines: job.deadlines, permit: place, upstream })
}

/// Another way for a handshake that its instance did not read: it is a GET, so it may be asked for again.
async fn retry_upstream(
    job: &StreamRequest<'_>,
    place: Permit,
    is_there: bool,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<(Permit, Box<UpstreamConnection>), AttemptOutcome> {
    let again = ReplayableRequest {
        protocol: table::Protocol::Http1,
        is_there,
        written: &job.written,
        original_host: job.original_host.as_deref(),
        peer: job.peer,
        due: job.deadlines.first_byte,
    };
    match unless_gone(reply, job.proxy.retry_upstream(place, &again)).await {
        Ok(Ok((place, UpstreamLink::Http1(upstream)))) => Ok((place, upstream)),
        Ok(Ok(_)) => Err(AttemptOutcome::Refused(LocalReply::UpgradeUnsupported)),
        Ok(Err(refusal)) => Err(AttemptOutcome::Refused(refusal)),
        Err(ClientGone) => Err(AttemptOutcome::Cut),
    }
}

/// Asks the instance for its 101 and tells the client; else its answer, if it may be passed on.
async fn handshake(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<(), AttemptOutcome> {
    let ring = &job.proxy.ring;
    let send = upstream.stream.send(job.written.clone().into());
    match job.progress.activity.send(ring, None, send).await {
        Ok(Ok(()) | Err(_)) => {} // one that takes nothing may have said why; if not, reading tells
        Err(_) => return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout)),
    }
    let bytes = final_head(job, upstream, reply).await?;
    let answer = upstream.head.view(&bytes);
    match upstream.head.status {
        101 if answer.values(FieldName::Upgrade).any(|value| has_token(value, "websocket")) => {}
        // A success that did not switch would tell the client that the tunnel is there (RFC 8441 5).
        100..300 => return Err(job.failed()),
        _ => return Err(over_http1::forward(job, upstream, bytes, reply).await),
    }
    let mut told = job.answered(heads::from_instance(answer).map_err(|why| job.malformed(why))?);
    drop(bytes); // the receive buffer goes back
    *told.status_mut() = StatusCode::OK;
    told.headers_mut().remove("sec-websocket-accept"); // proves a handshake that its client did not make
    reply.head(told, false).await.map_err(|ClientGone| AttemptOutcome::Cut)
}

/// The answer that is no interim one; those are passed on.
async fn final_head(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<Chunk, AttemptOutcome> {
    let (received_before, ring) = (upstream.read_buffer.bytes, &job.proxy.ring);
    // Interim responses and the beginning of a head are traffic of the instance.
    let received = Cell::new(None);
    let mut interim = 0;
    while interim <= INTERIM_MAX {
        let UpstreamConnection { stream, read_buffer: inflow, head, reused, .. } = upstream;
        let parse = |bytes: &[u8]| parse_response(bytes, job.head.method, head);
        let parsed = inflow.head_noting(stream, parse, || received.set(Some(ring.now())));
        let bytes = match unless_gone(reply, by(ring, job.deadlines.head(received.get()), parsed)).await {
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
            Ok(Err(_)) if job.deadlines.head(received.get()).is_some_and(|due| ring.now() < due) => continue,
            Ok(Err(_)) => return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout)),
            Ok(Ok(Err(HeadReadError::Malformed(why)))) => return Err(job.malformed(why)),
            Ok(Ok(Err(_))) if *reused && inflow.bytes == received_before => {
                return Err(AttemptOutcome::Stale);
            }
            Ok(Ok(Err(why))) if why.is_reset() && inflow.bytes == received_before => {
                return Err(AttemptOutcome::Unread);
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
        reply.interim(answer).await.map_err(|ClientGone| AttemptOutcome::Cut)?;
    }
    Err(job.failed())
}

/// The stream as what a tunnel carries bytes from and to.
struct StreamPipe {
    from: RefCell<RecvStream>,
    to: RefCell<SendStream<Bytes>>,
}

impl ByteStream for StreamPipe {
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

//! A WebSocket that is one stream of HTTP/2 (RFC 8441), to an instance that speaks it over HTTP/1 (RFC 6455).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

use ::h2::ext::Protocol;
use ::h2::server::SendResponse;
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{Response, StatusCode, request};
use bytes::{Bytes, BytesMut};
use ring::Chunk;

use super::from_http2::{Outgoing, hear_out};
use super::server::Shared;
use super::{Attempt, Due, Gone, Reply, heads, unless_gone};
use crate::h2::heads::Translated;
use crate::http::codec::{Name, has_token, parse_response};
use crate::http::headers::put_request;
use crate::http::limits::INTERIM_MAX;
use crate::http::pool::Upstream;
use crate::http::wire::{Inflow, by};
use crate::proxy::link::Link;
use crate::proxy::note::{End, Note};
use crate::proxy::tunnel::{Course, between};
use crate::proxy::{Place, Refusal, Wish};
use crate::table::Ask;
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
    let mut reply = Outgoing::new(respond, proxy);
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
        Ok(Opened { place, upstream, due }) => {
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
        Err(Attempt::Cut | Attempt::Stale | Attempt::Switched) => {
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
    reply: &mut Outgoing,
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
    let (place, link) = match unless_gone(reply, proxy.reach(choice, &mut wish, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(refusal)) => return Err(Attempt::Refused(refusal)),
        Err(Gone) => return Err(Attempt::Cut),
    };
    let Link::Http1(mut upstream) = link else { return Err(Attempt::Refused(Refusal::Upgrade)) };
    note.placed(&place, proxy.ring.now());
    let mut written = BytesMut::new();
    put_request(&mut written, view, &shared.peer, place.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    let due = Due::new(started, &place.backend().timeouts);
    let failed = || Attempt::Refused(Refusal::InstanceFailed(place.backend().key.clone()));
    let stall = proxy.ring.now() + proxy.limits.stall_max;
    match by(&proxy.ring, Some(stall), upstream.stream.send(written.freeze().into())).await {
        Ok(Ok(())) => {}
        Ok(Err(_)) => return Err(failed()),
        Err(_) => return Err(Attempt::Refused(Refusal::TimedOut)),
    }
    let head = final_head(shared, request, reply, &mut upstream, &due, failed).await?;
    note.answered = Some(proxy.ring.now());
    let answer = upstream.head.view(&head);
    let switched = upstream.head.status == 101
        && answer.values(Name::Upgrade).any(|value| has_token(value, "websocket"));
    if !switched && upstream.head.status == 101 {
        return Err(failed());
    }
    let mut told = heads::from_instance(answer).map_err(|_| failed())?;
    if let Some(timing) = note.timing.as_ref().filter(|_| proxy.tells_timing.get()) {
        timing.add(&mut told, proxy.ring.now());
    }
    drop(head); // the receive buffer goes back
    if switched {
        *told.status_mut() = StatusCode::OK;
        told.headers_mut().remove("sec-websocket-accept"); // proves a handshake that its client did not make
    } else {
        told.headers_mut().remove(::http::header::CONTENT_LENGTH); // a body that stays here
    }
    reply.head(told, !switched).await.map_err(|Gone| Attempt::Cut)?;
    if switched {
        Ok(Opened { place, upstream, due })
    } else {
        Err(Attempt::Done { status: upstream.head.status, close: false })
    }
}

/// The answer that is no interim one; those are passed on.
async fn final_head(
    shared: &Shared,
    request: &Translated,
    reply: &mut Outgoing,
    upstream: &mut Upstream,
    due: &Due,
    failed: impl Fn() -> Attempt,
) -> Result<Chunk, Attempt> {
    let ring = &shared.proxy.ring;
    for _ in 0..=INTERIM_MAX {
        let Upstream { stream, inflow, head, .. } = upstream;
        let parsed = inflow.head(stream, |bytes| parse_response(bytes, request.head.method, head));
        let bytes = match unless_gone(reply, by(ring, due.first_byte, parsed)).await {
            Err(Gone) => return Err(Attempt::Cut),
            Ok(Err(_)) => return Err(Attempt::Refused(Refusal::TimedOut)),
            Ok(Ok(Err(_))) => return Err(failed()),
            Ok(Ok(Ok(bytes))) => bytes,
        };
        if !upstream.head.is_interim() {
            return Ok(bytes);
        }
        let interim: Response<()> = heads::from_instance(upstream.head.view(&bytes)).map_err(|_| failed())?;
        reply.interim(interim).await.map_err(|Gone| Attempt::Cut)?;
    }
    Err(failed())
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

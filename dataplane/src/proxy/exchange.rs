//! One request: a place in an instance, the request to it, its answer back.
//!
//! Both directions stream side by side in one task. The warm small request is one receive and one send
//! on each side: its head, with what came of its body, is written once and sent; the answer's head and
//! a small body leave together.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ring::{Chunk, Ring, Tick};

use super::activity::{Activity, IdleTimeouts};
use super::afresh::Again;
use super::answering::Answering;
use super::beside::beside;
use super::connection::Connection;
use super::link::{Distrust, Link};
use super::mirror::Recording;
use super::sending::{Progress, Sending};
use super::timing::Timing;
use super::tunnel::tunnel;
use super::watch::{gone, watch};
use super::{Choice, Place, Proxy, Refusal, Wish, streams};
use crate::http::codec::{BodyReader, Framing, RequestView};
use crate::http::headers::put_request;
use crate::http::limits::SENDS_MAX;
use crate::http::pool::{PoolKey, Upstream};
use crate::http::relay::{self, Step};
use crate::http::server::Downstream;
use crate::http::wire::earlier;
use crate::inquiry::State;
use crate::table::{Ask, Edits, Protocol, Timeouts};

/// How an exchange ended, as its client's connection must know it.
pub(super) enum Ending {
    Answered {
        status: u16,
        /// The client was told that the connection ends.
        close: bool,
        /// The request's body was read to its end.
        request_read: bool,
    },
    /// Nothing was answered, so this can be.
    Refused(Refusal),
    /// It became a WebSocket, which has ended.
    Tunnelled,
    /// The answer broke off, or the client is gone: all that is left is to close.
    Cut,
}

/// How one attempt ended, as the exchange must know it.
pub(super) enum Attempt {
    Done {
        status: u16,
        close: bool,
    },
    Refused(Refusal),
    /// The instance has switched to the WebSocket that the client asked for.
    Switched,
    Cut,
    /// A kept connection was closed before any byte of an answer: the instance was about to close it.
    Stale,
    /// The instance ended before it had read the request: its kernel reset the connection, which it does for bytes that nobody took.
    Unread,
    /// The instance has done nothing about the request: by its own word, or because nothing was sent.
    Unasked,
}

/// The moments at which a limit on the answer's time is reached.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) total: Option<Tick>,
    pub(super) first_byte: Option<Tick>,
    idle: Option<Duration>,
}

impl Due {
    pub(super) fn new(started: Tick, timeouts: &Timeouts) -> Self {
        let limit = |wait: Duration| (!wait.is_zero()).then_some(wait);
        let total = limit(timeouts.total).map(|wait| started + wait);
        let start = limit(timeouts.response_start).map(|wait| started + wait);
        let idle = limit(timeouts.idle);
        let first_byte = earlier(total, earlier(start, idle.map(|wait| started + wait)));
        Self { total, first_byte, idle }
    }

    /// Whether the whole answer's time is up: what comes in this moment cannot be sent any more.
    pub(super) fn is_over(&self, ring: &Ring) -> bool {
        self.total.is_some_and(|total| ring.now() >= total)
    }

    /// For the rest of a response's head, of which bytes came `last` then, be they of an interim response.
    pub(super) fn head(&self, last: Option<Tick>) -> Option<Tick> {
        last.map_or(self.first_byte, |last| self.after(last))
    }

    /// For the next byte of an answer that has begun.
    pub(super) fn next_byte(&self, ring: &Ring) -> Option<Tick> {
        self.after(ring.now())
    }

    /// For the next byte after one at `last`.
    pub(super) fn after(&self, last: Tick) -> Option<Tick> {
        earlier(self.total, self.idle.map(|wait| last + wait))
    }
}

/// Carries one request. `head` are the bytes of `connection.client.head`.
pub(super) async fn exchange(connection: &mut Connection, mut head: Chunk) -> Ending {
    let proxy = Rc::clone(&connection.proxy);
    let started = proxy.ring.now();
    let view = connection.client.head.view(&head);
    let choice = match proxy.route_noted(&Ask::client(view, &connection.peer), &mut connection.note) {
        Ok(choice) => choice,
        Err(refusal) => return Ending::Refused(refusal),
    };
    let reached = connect(connection, &mut head, choice, started).await;
    if let Ok((place, _)) = &reached {
        connection.note.placed(place, proxy.ring.now());
        connection.open.sheet.turn(State::Serving);
    }
    let (place, mut upstream) = match reached {
        Ok((place, Link::Http1(upstream))) => (place, upstream),
        Ok(_) if connection.client.head.wants_websocket => return Ending::Refused(Refusal::Upgrade),
        // Boxed, as is a tunnel: an idle connection need not have room for them.
        Ok((place, other)) => {
            return Box::pin(streams::exchange(connection, head, place, other, started)).await;
        }
        Err(ending) => return ending,
    };

    let meant = meant(place.edits(), connection.client.head.view(&head));
    let mut body = BodyReader::new(connection.client.head.framing);
    let (wire, head_bytes) = match write_request(connection, &head, place.edits(), &mut body) {
        Ok(written) => written,
        Err(refusal) => return Ending::Refused(refusal),
    };
    drop(head); // the receive buffer goes back before the wait for the answer
    connection.client.inflow.detach();

    let repeatable = body.is_done() && connection.client.head.method.is_idempotent();
    let timing = connection.note.timing.clone().filter(|_| proxy.tells_timing.get());
    let mut request = Request::new(&proxy, place, (wire, head_bytes), body, started);
    (request.timing, request.meant) = (timing, meant);
    let mut sends = 0;
    loop {
        let ended = attempt(connection, &mut upstream, &mut request).await;
        connection.note.answered = request.progress.activity.answered();
        match ended {
            Attempt::Done { status, close } => {
                let request_read = request.progress.is_request_read();
                if let Some(tape) = request.tape.take() {
                    tape.end(request.progress.is_sent().then_some(status));
                }
                if request.progress.is_sent() && is_reusable(&upstream) {
                    proxy.client.keep(request.key, upstream);
                }
                return Ending::Answered { status, close, request_read };
            }
            Attempt::Stale | Attempt::Unread => {
                sends += 1;
                let (is_there, may) = (matches!(ended, Attempt::Stale), repeatable && sends < SENDS_MAX);
                match Box::pin(request.afresh(connection, is_there, may)).await {
                    Ok(fresh) => upstream = fresh,
                    Err(ending) => return ending,
                }
            }
            Attempt::Refused(refusal) => return Ending::Refused(refusal),
            Attempt::Switched => {
                connection.open.sheet.turn(State::Tunnel);
                request.place.iter_mut().for_each(Place::becomes_tunnel);
                Box::pin(tunnel(connection, upstream, request.due)).await;
                return Ending::Tunnelled;
            }
            Attempt::Cut | Attempt::Unasked => return Ending::Cut, // only HTTP/2 has a word for the latter
        }
    }
}

/// A request that has its place and is on its way.
struct Request {
    /// The head as the instance gets it, with what of the body was here. Kept until the end, because it
    /// may have to be sent again.
    wire: Bytes,
    /// As [`meant`] has it.
    meant: Option<Box<str>>,
    /// The rest of the body.
    body: BodyReader,
    progress: Progress,
    due: Due,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<Timing>>,
    place: Option<Place>,
    /// Where its connection is kept.
    key: PoolKey,
    /// For a copy; dropped unless the request is answered.
    tape: Option<Recording>,
}

impl Request {
    /// `wire` begins with so many bytes of head.
    fn new(
        proxy: &Rc<Proxy>,
        place: Place,
        (wire, head_bytes): (Bytes, usize),
        body: BodyReader,
        started: Tick,
    ) -> Self {
        let activity = Activity::new(IdleTimeouts::of(&proxy.limits, &place.backend().timeouts));
        Self {
            tape: Recording::begin(proxy, place.choice.bond.mirror.as_ref(), &wire, head_bytes),
            progress: Progress::new(&body, wire.len() > head_bytes, activity),
            due: Due::new(started, &place.backend().timeouts),
            timing: None,
            meant: None,
            key: PoolKey::Endpoint(place.endpoint.id),
            place: Some(place),
            wire,
            body,
        }
    }

    /// A new connection, after its instance had closed the last one before any byte of an answer; if the request may be sent again. A
    /// client that is gone meanwhile leaves at once.
    async fn afresh(
        &mut self,
        connection: &mut Connection,
        is_there: bool,
        repeatable: bool,
    ) -> Result<Box<Upstream>, Ending> {
        let Some(place) = self.place.take() else {
            return Err(Ending::Refused(Refusal::InstanceFailed(Box::default())));
        };
        let backend = place.backend().key.clone();
        if !repeatable {
            return Err(Ending::Refused(Refusal::InstanceFailed(backend)));
        }
        let Connection { proxy, client, peer, note, .. } = connection;
        let again = Again {
            protocol: Protocol::Http1,
            is_there,
            written: &self.wire,
            meant: self.meant.as_deref(),
            peer: Some(peer),
            due: self.due.first_byte,
        };
        let reached = async { proxy.afresh(place, &again).await.map_err(Ending::Refused) };
        let (silence, most) = (&self.progress.silence, client.limits.half_closed_silence_max);
        let broken = async {
            watch(&client.ring, &client.stream, &mut client.inflow, silence, most).await;
            Err(Ending::Cut)
        };
        match beside(reached, broken).await? {
            (place, Link::Http1(upstream)) => {
                note.moved(&place.endpoint);
                self.key = PoolKey::Endpoint(place.endpoint.id);
                self.place = Some(place);
                Ok(upstream)
            }
            (_, Link::Http2(_)) => Err(Ending::Refused(Refusal::Unreachable(backend))), // not what was asked for
        }
    }
}

/// A place and a connection to its instance. An instance that refuses is reported, and another tried.
async fn connect(
    connection: &mut Connection,
    head: &mut Chunk,
    mut choice: Choice,
    started: Tick,
) -> Result<(Place, Link), Ending> {
    let proxy = Rc::clone(&connection.proxy);
    let (mut tried, mut distrust) = (Vec::new(), Distrust::default());
    loop {
        let place = match proxy.try_place(&choice, &tried) {
            Some(place) => place,
            None => {
                connection.open.sheet.turn(State::Waiting);
                // Boxed: a request with a place need not have room for the wait.
                match Box::pin(wait(connection, head, choice, &mut tried)).await {
                    Ok(place) => place,
                    Err(Ending::Refused(why)) => return Err(Ending::Refused(distrust.explain(&proxy, why))),
                    Err(ending) => return Err(ending),
                }
            }
        };
        let due = Due::new(started, &place.backend().timeouts).first_byte;
        match proxy.link(&place, connection.client.head.wants_websocket, due).await {
            Ok(link) => return Ok((place, link)),
            Err(_) if due.is_some_and(|due| proxy.ring.now() >= due) => {
                return Err(Ending::Refused(Refusal::TimedOut));
            }
            Err(why) => {
                distrust.note(&why);
                tried.push(place.endpoint.id);
                proxy.refused_by(&place);
                choice = place.choice.clone();
            }
        }
    }
}

/// Waits for a place; a client that is gone meanwhile leaves the room at once. One that only says that it will
/// send no more looks the same from here, and is taken for gone: most that do it are, and a seat is scarce.
async fn wait(
    connection: &mut Connection,
    head: &mut Chunk,
    choice: Choice,
    tried: &mut Vec<u64>,
) -> Result<Place, Ending> {
    // The ring's receive buffers are few and not for waiting in.
    *head = Chunk::from(head.to_vec());
    let Connection { proxy, client, peer, .. } = connection;
    client.inflow.detach();
    let ask = Ask::client(client.head.view(head), peer);
    let mut wish = Wish { ask, bytes: head.len() + client.inflow.held.len(), tried: std::mem::take(tried) };

    let placed = async { proxy.place(choice, &mut wish).await.map_err(Ending::Refused) };
    let broken = async {
        gone(&client.stream, &mut client.inflow).await;
        Err(Ending::Cut)
    };
    let outcome = beside(placed, broken).await;
    *tried = wish.tried;
    outcome
}

/// The host that a client meant, where its instance is told another one: what is written does not say it any more.
pub(super) fn meant(edits: Option<&Edits>, request: RequestView<'_>) -> Option<Box<str>> {
    edits.and_then(Edits::host).map(|_| request.authority().into()) // one allocation for mapped domains
}

/// The request as its instance gets it, with what of its body is here; and how much of it is the head.
fn write_request(
    connection: &mut Connection,
    head: &[u8],
    edits: Option<&Edits>,
    body: &mut BodyReader,
) -> Result<(Bytes, usize), Refusal> {
    let Connection { proxy, client, peer, outgoing, note, .. } = connection;
    let chunked = client.head.framing == Framing::Chunked;
    outgoing.clear();
    put_request(outgoing, client.head.view(head), peer, edits, &mut proxy.rng.borrow_mut());
    note.written(proxy, outgoing);
    let head_bytes = outgoing.len();
    while !body.is_done() && !client.inflow.held.is_empty() {
        let step = relay::step(&mut client.inflow, body, chunked, outgoing).map_err(Refusal::Malformed)?;
        match step {
            // At most one received chunk is held: it may as well be copied.
            Step::Send(piece) => {
                outgoing.extend_from_slice(&piece);
                relay::after_send(chunked, outgoing);
            }
            Step::NeedBytes | Step::Done => {}
        }
    }
    Ok((outgoing.split().freeze(), head_bytes))
}

/// Sends the request and reads the answer, side by side.
async fn attempt(connection: &mut Connection, upstream: &mut Upstream, request: &mut Request) -> Attempt {
    let Downstream { ring, stream: client, inflow, outflow, head, seat, limits } = &mut connection.client;
    let Request { wire, body, progress, due, timing, place, key: _, tape, meant: _ } = request;
    let mut sending = Sending {
        ring,
        limits,
        client,
        inflow,
        body,
        chunked: head.framing == Framing::Chunked,
        up: &upstream.stream,
        out: &mut upstream.outflow,
        progress,
        tape,
    };
    let mut answering = Answering {
        ring,
        limits,
        request: head,
        seat,
        client,
        out: outflow,
        up: &upstream.stream,
        inflow: &mut upstream.inflow,
        head: &mut upstream.head,
        reused: upstream.reused,
        progress,
        due,
        timing: timing.as_deref(),
        place,
    };
    // Pinned where they are made: each is 600 bytes, and moved they would be copied twice.
    let (answered, sent) = (pin!(answering.run()), pin!(sending.run(wire.clone())));
    beside(answered, sent).await
}

/// Bytes after the answer's end are none that we asked for.
pub(super) fn is_reusable(upstream: &Upstream) -> bool {
    upstream.head.keep_alive && upstream.inflow.is_between() && !upstream.inflow.ended
}

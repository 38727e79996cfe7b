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

use super::activity::{IdleTimeouts, StreamActivity};
use super::cold_start_timing::ColdStartTiming;
use super::connection::ProxyConnection;
use super::disconnect_watcher::{gone, watch};
use super::mirror::MirrorBuffer;
use super::request_stream::{ExchangeProgress, RequestStream};
use super::response_stream::ResponseStream;
use super::retry::ReplayableRequest;
use super::select::select_both;
use super::tunnel::tunnel;
use super::upstream::{TlsFailures, UpstreamLink};
use super::{AcquireRequest, LocalReply, Permit, Proxy, SelectedEndpoint, streams};
use crate::connection_query::ConnectionState;
use crate::http::buffers::earlier;
use crate::http::codec::{BodyDecoder, BodyFraming, RequestView};
use crate::http::headers::put_request;
use crate::http::limits::SENDS_MAX;
use crate::http::pool::{PoolKey, UpstreamConnection};
use crate::http::relay::{self, RelayStep};
use crate::http::server::ClientConnection;
use crate::table::{HeaderEdits, Protocol, RequestTimeouts, RouteRequest};

/// How an exchange ended, as its client's connection must know it.
pub(super) enum ExchangeOutcome {
    Answered {
        status: u16,
        /// The client was told that the connection ends.
        close: bool,
        /// The request's body was read to its end.
        request_read: bool,
    },
    /// Nothing was answered, so this can be.
    Refused(LocalReply),
    /// It became a tunnel, which has ended.
    Tunnelled,
    /// The answer broke off, or the client is gone: all that is left is to close.
    Cut,
}

/// How one attempt ended, as the exchange must know it.
pub(super) enum AttemptOutcome {
    Done {
        status: u16,
        close: bool,
    },
    Refused(LocalReply),
    /// The instance has switched to the protocol that the client asked for.
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
pub(super) struct ResponseDeadlines {
    pub(super) total: Option<Tick>,
    pub(super) first_byte: Option<Tick>,
    idle: Option<Duration>,
}

impl ResponseDeadlines {
    pub(super) fn new(started: Tick, timeouts: &RequestTimeouts) -> Self {
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
pub(super) async fn exchange(connection: &mut ProxyConnection, mut head: Chunk) -> ExchangeOutcome {
    let proxy = Rc::clone(&connection.proxy);
    let started = proxy.ring.now();
    let view = connection.client.head.view(&head);
    let choice = match proxy.route_noted(&RouteRequest::client(view, &connection.peer), &mut connection.note) {
        Ok(choice) => choice,
        Err(refusal) => return ExchangeOutcome::Refused(refusal),
    };
    let reached = connect(connection, &mut head, choice, started).await;
    if let Ok((place, _)) = &reached {
        connection.note.placed(place, proxy.ring.now());
        connection.open.stats.set_state(ConnectionState::Serving);
    }
    let (place, mut upstream) = match reached {
        Ok((place, UpstreamLink::Http1(upstream))) => (place, upstream),
        Ok(_) if connection.client.head.is_upgrade() => {
            return ExchangeOutcome::Refused(LocalReply::UpgradeUnsupported);
        }
        // Boxed, as is a tunnel: an idle connection need not have room for them.
        Ok((place, other)) => {
            return Box::pin(streams::exchange(connection, head, place, other, started)).await;
        }
        Err(ending) => return ending,
    };

    let meant = original_host(place.edits(), connection.client.head.view(&head));
    let mut body = BodyDecoder::new(connection.client.head.framing);
    let (wire, head_bytes) = match write_request(connection, &head, place.edits(), &mut body) {
        Ok(written) => written,
        Err(refusal) => return ExchangeOutcome::Refused(refusal),
    };
    drop(head); // the receive buffer goes back before the wait for the answer
    connection.client.read_buffer.detach();
    let repeatable = body.is_done() && connection.client.head.method.is_idempotent();
    let timing = connection.note.timing.clone().filter(|_| proxy.server_timing.get());
    let mut request = AdmittedRequest::new(&proxy, place, (wire, head_bytes), body, started);
    (request.timing, request.original_host) = (timing, meant);
    let mut sends = 0;
    loop {
        let ended = attempt(connection, &mut upstream, &mut request).await;
        connection.note.answered = request.progress.activity.answered();
        match ended {
            AttemptOutcome::Done { status, close } => {
                if let Some(tape) = request.mirror_buffer.take() {
                    tape.end(request.progress.is_sent().then_some(status));
                }
                if request.progress.is_sent() && is_reusable(&upstream) {
                    proxy.client.put_back(request.key, upstream);
                }
                return ExchangeOutcome::Answered { status, close, request_read: request.progress.is_request_read() };
            }
            AttemptOutcome::Stale | AttemptOutcome::Unread => {
                sends += 1;
                let (is_there, may) = (matches!(ended, AttemptOutcome::Stale), repeatable && sends < SENDS_MAX);
                match Box::pin(request.replayable(connection, is_there, may)).await {
                    Ok(fresh) => upstream = fresh,
                    Err(ending) => return ending,
                }
            }
            AttemptOutcome::Refused(refusal) => return ExchangeOutcome::Refused(refusal),
            AttemptOutcome::Switched => {
                connection.open.stats.set_state(ConnectionState::Tunnel);
                request.permit.iter_mut().for_each(Permit::becomes_tunnel);
                Box::pin(tunnel(connection, upstream, request.deadlines)).await;
                return ExchangeOutcome::Tunnelled;
            }
            AttemptOutcome::Cut | AttemptOutcome::Unasked => return ExchangeOutcome::Cut, // only HTTP/2 has a word for the latter
        }
    }
}

/// A request that has its place and is on its way.
struct AdmittedRequest {
    /// The head as the instance gets it, with what of the body was here. Kept until the end, because it
    /// may have to be sent again.
    wire: Bytes,
    /// As [`meant`] has it.
    original_host: Option<Box<str>>,
    /// The rest of the body.
    body: BodyDecoder,
    progress: ExchangeProgress,
    deadlines: ResponseDeadlines,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<ColdStartTiming>>,
    permit: Option<Permit>,
    /// Where its connection is kept.
    key: PoolKey,
    /// For a copy; dropped unless the request is answered.
    mirror_buffer: Option<MirrorBuffer>,
}

impl AdmittedRequest {
    /// `wire` begins with so many bytes of head.
    fn new(
        proxy: &Rc<Proxy>,
        place: Permit,
        (wire, head_bytes): (Bytes, usize),
        body: BodyDecoder,
        started: Tick,
    ) -> Self {
        let activity = StreamActivity::new(IdleTimeouts::of(&proxy.limits, &place.backend().timeouts));
        Self {
            mirror_buffer: MirrorBuffer::start(proxy, place.selected.affinity.mirror.as_ref(), &wire, head_bytes),
            progress: ExchangeProgress::new(&body, wire.len() > head_bytes, activity),
            deadlines: ResponseDeadlines::new(started, &place.backend().timeouts),
            timing: None,
            original_host: None,
            key: PoolKey::Endpoint(place.endpoint.id),
            permit: Some(place),
            wire,
            body,
        }
    }

    /// A new connection, after its instance had closed the last one before any byte of an answer; if the request may be sent again. A
    /// client that is gone meanwhile leaves at once.
    async fn replayable(
        &mut self,
        connection: &mut ProxyConnection,
        is_there: bool,
        repeatable: bool,
    ) -> Result<Box<UpstreamConnection>, ExchangeOutcome> {
        let Some(place) = self.permit.take() else {
            return Err(ExchangeOutcome::Refused(LocalReply::UpstreamClosed(Box::default())));
        };
        let backend = place.backend().key.clone();
        if !repeatable {
            return Err(ExchangeOutcome::Refused(LocalReply::UpstreamClosed(backend)));
        }
        let ProxyConnection { proxy, client, peer, note, .. } = connection;
        let again = ReplayableRequest {
            protocol: Protocol::Http1,
            is_there,
            written: &self.wire,
            original_host: self.original_host.as_deref(),
            peer: Some(peer),
            due: self.deadlines.first_byte,
        };
        let reached = async { proxy.retry_upstream(place, &again).await.map_err(ExchangeOutcome::Refused) };
        let (silence, most) = (&self.progress.silence, client.limits.half_closed_silence_max);
        let broken = async {
            watch(&client.ring, &client.stream, &mut client.read_buffer, silence, most).await;
            Err(ExchangeOutcome::Cut)
        };
        match select_both(reached, broken).await? {
            (place, UpstreamLink::Http1(upstream)) => {
                note.add_bytes(&place.endpoint);
                self.key = PoolKey::Endpoint(place.endpoint.id);
                self.permit = Some(place);
                Ok(upstream)
            }
            (_, UpstreamLink::Http2(_)) => Err(ExchangeOutcome::Refused(LocalReply::UpstreamConnectFailure(backend))), // not what was asked for
        }
    }
}

/// A place and a connection to its instance. An instance that refuses is reported, and another tried.
async fn connect(
    connection: &mut ProxyConnection,
    head: &mut Chunk,
    mut choice: SelectedEndpoint,
    started: Tick,
) -> Result<(Permit, UpstreamLink), ExchangeOutcome> {
    let proxy = Rc::clone(&connection.proxy);
    let (mut tried, mut distrust) = (Vec::new(), TlsFailures::default());
    loop {
        let place = match proxy.try_acquire(&choice, &tried) {
            Some(place) => place,
            None => {
                connection.open.stats.set_state(ConnectionState::Waiting);
                // Boxed: a request with a place need not have room for the wait.
                match Box::pin(wait(connection, head, choice, &mut tried)).await {
                    Ok(place) => place,
                    Err(ExchangeOutcome::Refused(why)) => {
                        return Err(ExchangeOutcome::Refused(distrust.explain(&proxy, why)));
                    }
                    Err(ending) => return Err(ending),
                }
            }
        };
        let due = ResponseDeadlines::new(started, &place.backend().timeouts).first_byte;
        match proxy.link(&place, connection.client.head.is_upgrade(), due).await {
            Ok(link) => return Ok((place, link)),
            Err(_) if due.is_some_and(|due| proxy.ring.now() >= due) => {
                return Err(ExchangeOutcome::Refused(LocalReply::ResponseTimeout));
            }
            Err(why) => {
                distrust.note(&why);
                tried.push(place.endpoint.id);
                proxy.refused_by(&place);
                choice = place.selected.clone();
            }
        }
    }
}

/// Waits for a place; a client that is gone meanwhile leaves the room at once. One that only says that it will
/// send no more looks the same from here, and is taken for gone: most that do it are, and a seat is scarce.
async fn wait(
    connection: &mut ProxyConnection,
    head: &mut Chunk,
    choice: SelectedEndpoint,
    tried: &mut Vec<u64>,
) -> Result<Permit, ExchangeOutcome> {
    // The ring's receive buffers are few and not for waiting in.
    *head = Chunk::from(head.to_vec());
    let ProxyConnection { proxy, client, peer, .. } = connection;
    client.read_buffer.detach();
    let ask = RouteRequest::client(client.head.view(head), peer);
    let mut wish = AcquireRequest {
        route_request: ask,
        bytes: head.len() + client.read_buffer.unread.len(),
        tried: std::mem::take(tried),
    };

    let placed = async { proxy.acquire(choice, &mut wish).await.map_err(ExchangeOutcome::Refused) };
    let broken = async {
        gone(&client.stream, &mut client.read_buffer).await;
        Err(ExchangeOutcome::Cut)
    };
    let outcome = select_both(placed, broken).await;
    *tried = wish.tried;
    outcome
}

/// The host that a client meant, where its instance is told another one: what is written does not say it any more.
pub(super) fn original_host(edits: Option<&HeaderEdits>, request: RequestView<'_>) -> Option<Box<str>> {
    edits.and_then(HeaderEdits::host).map(|_| request.authority().into()) // one allocation for mapped domains
}

/// The request as its instance gets it, with what of its body is here; and how much of it is the head.
fn write_request(
    connection: &mut ProxyConnection,
    head: &[u8],
    edits: Option<&HeaderEdits>,
    body: &mut BodyDecoder,
) -> Result<(Bytes, usize), LocalReply> {
    let ProxyConnection { proxy, client, peer, outgoing, note, .. } = connection;
    let chunked = client.head.framing == BodyFraming::Chunked;
    outgoing.clear();
    put_request(outgoing, client.head.view(head), peer, edits, &mut proxy.rng.borrow_mut());
    note.written(proxy, outgoing);
    let head_bytes = outgoing.len();
    while !body.is_done() && !client.read_buffer.unread.is_empty() {
        let step = relay::step(&mut client.read_buffer, body, chunked, outgoing).map_err(LocalReply::Malformed)?;
        match step {
            // At most one received chunk is held: it may as well be copied.
            RelayStep::Send(piece) => {
                outgoing.extend_from_slice(&piece);
                relay::after_send(chunked, outgoing);
            }
            RelayStep::NeedBytes | RelayStep::Done => {}
        }
    }
    Ok((outgoing.split().freeze(), head_bytes))
}

/// Sends the request and reads the answer, side by side.
async fn attempt(
    connection: &mut ProxyConnection,
    upstream: &mut UpstreamConnection,
    request: &mut AdmittedRequest,
) -> AttemptOutcome {
    let ClientConnection {
        ring,
        stream: client,
        read_buffer: inflow,
        write_buffer: outflow,
        head,
        guard: seat,
        limits,
    } = &mut connection.client;
    let AdmittedRequest {
        wire,
        body,
        progress,
        deadlines: due,
        timing,
        permit: place,
        key: _,
        mirror_buffer: tape,
        original_host: _,
    } = request;
    let mut sending = RequestStream {
        ring,
        limits,
        client,
        read_buffer: inflow,
        body,
        chunked: head.framing == BodyFraming::Chunked,
        up: &upstream.stream,
        out: &mut upstream.write_buffer,
        progress,
        mirror_buffer: tape,
    };
    let mut answering = ResponseStream {
        ring,
        limits,
        request: head,
        guard: seat,
        client,
        out: outflow,
        up: &upstream.stream,
        read_buffer: &mut upstream.read_buffer,
        head: &mut upstream.head,
        reused: upstream.reused,
        progress,
        deadlines: due,
        timing: timing.as_deref(),
        permit: place,
    };
    // Pinned where they are made: each is 600 bytes, and moved they would be copied twice.
    let (answered, sent) = (pin!(answering.run()), pin!(sending.run(wire.clone())));
    select_both(answered, sent).await
}

/// Bytes after the answer's end are none that we asked for.
pub(super) fn is_reusable(upstream: &UpstreamConnection) -> bool {
    upstream.head.keep_alive && upstream.read_buffer.is_between() && !upstream.read_buffer.ended
}

//! One request: acquires a permit for an instance, sends the request and returns the response.
//!
//! Both directions stream concurrently in one task. A small request on a warm connection is one receive and one send on
//! each side: its head and the body bytes that came with it are written once and sent; the response head and a small
//! body are sent together.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use codec::http::{BodyDecoder, BodyFraming};
use contract::client_address::ClientAddress;
use contract::connection_query::ConnectionState;
use contract::table::{Endpoint, HeaderEdits, Protocol, RouteRequest};
use protocol::http::headers::put_request;
use protocol::http::pool::{PoolKey, UpstreamConnection};
use protocol::http::relay::{self, RelayStep};
use protocol::http::server::ClientConnection;
use ring::{Chunk, Tick};

use super::activity::{IdleTimeouts, StreamActivity};
use super::authentication::PendingAuthentication;
use super::cold_start_timing::ColdStartTiming;
use super::connect::{AcquireError, ConnectRequest, connect};
use super::deadlines::ResponseDeadlines;
use super::disconnect_watcher::{gone, watch};
use super::exchange_progress::ExchangeProgress;
use super::mirror::MirrorBuffer;
use super::outcome::{AttemptOutcome, ExchangeOutcome};
use super::passive_health::counted_endpoint;
use super::proxy_connection::ProxyConnection;
use super::request_stream::RequestStream;
use super::response_stream::ResponseStream;
use super::retry::{ReplayableRequest, RetryBudget, RetryDecision, retry_upstream};
use super::route_filters::OriginalTarget;
use super::select::select_both;
use super::tunnel::tunnel;
use super::upstream::{ConnectPlan, UpstreamLink};
use super::{AcquireRequest, LocalReply, Permit, Proxy, SelectedEndpoint, streams};

/// Carries one request. `head` holds the bytes of `connection.client.head`.
pub(super) async fn exchange(connection: &mut ProxyConnection, mut head: Chunk) -> ExchangeOutcome {
    let proxy = Rc::clone(&connection.proxy);
    let started = proxy.ring.now();
    let choice = match choose(&proxy, connection, &mut head).await {
        Ok(choice) => choice,
        Err(ending) => return ending,
    };
    // A temporary: a variable would take its bytes in every idle connection.
    let reached =
        connect(&proxy, choice, &mut ClientConnect { connection, head: &mut head, tried: Vec::new(), started }).await;
    if let Ok((permit, _)) = &reached {
        connection.note.acquired(permit, proxy.ring.now());
        connection.open.stats.set_state(ConnectionState::Serving);
    }
    let (permit, mut upstream) = match reached {
        Ok((permit, UpstreamLink::Http1(upstream))) if !reads_bodies(connection, &permit) => (permit, upstream),
        Ok(_) if connection.client.head.is_upgrade() => {
            return ExchangeOutcome::Refused(LocalReply::UpgradeUnsupported);
        }
        // Boxed, as is a tunnel: an idle connection should not reserve memory for them.
        Ok((permit, other)) => {
            return Box::pin(streams::exchange(connection, head, permit, other, started)).await;
        }
        Err(ending) => return ending,
    };

    let original = OriginalTarget::of(permit.edits(), connection.client.head.view(&head));
    let mut body = BodyDecoder::new(connection.client.head.framing);
    let (wire, head_bytes) = match write_request(connection, &head, permit.edits(), &mut body) {
        Ok(written) => written,
        Err(local_reply) => return ExchangeOutcome::Refused(local_reply),
    };
    drop(head); // the receive buffer is released before the wait for the response
    connection.client.read_buffer.detach();
    let mut budget = RetryBudget::new(body.is_done() && connection.client.head.method.is_idempotent());
    let mut request = AdmittedRequest::new(&proxy, permit, (wire, head_bytes), body, started);
    request.timing = connection.note.timing.clone().filter(|_| proxy.server_timing.get());
    request.original = original;
    loop {
        let ended = attempt(connection, &mut upstream, &mut request).await;
        proxy.observe(request.counted.as_ref(), &ended, request.progress.is_sent());
        connection.note.answered = request.progress.activity.answered();
        let ended = match budget.decide(ended, true) {
            RetryDecision::Ended(ended) => ended,
            RetryDecision::Exhausted => return ExchangeOutcome::Refused(request.closed()),
            RetryDecision::Retry { is_alive } => match Box::pin(request.replayable(connection, is_alive)).await {
                Ok(fresh) => {
                    upstream = fresh;
                    continue;
                }
                Err(ending) => return ending,
            },
        };
        match ended {
            AttemptOutcome::Done { status, close } => return request.done(&proxy, upstream, status, close),
            AttemptOutcome::Refused(local_reply) => return ExchangeOutcome::Refused(local_reply),
            AttemptOutcome::Switched => {
                connection.open.stats.set_state(ConnectionState::Tunnel);
                request.permit.iter_mut().for_each(Permit::becomes_tunnel);
                Box::pin(tunnel(connection, upstream, request.deadlines)).await;
                return ExchangeOutcome::Tunnelled;
            }
            // The others are never an end.
            AttemptOutcome::Cut | AttemptOutcome::Stale | AttemptOutcome::Unread | AttemptOutcome::Unprocessed => {
                return ExchangeOutcome::Cut;
            }
        }
    }
}

/// Whether the request takes the longer path, on which filters see the bodies.
fn reads_bodies(connection: &ProxyConnection, permit: &Permit) -> bool {
    let head = &connection.client.head;
    permit.selected.reads_bodies(head.framing) && !head.is_upgrade()
}

/// A request that has its permit and is being sent.
struct AdmittedRequest {
    /// The head as written for the instance, with the body bytes that arrived with it. Kept until the end, because the
    /// request may have to be sent again.
    wire: Bytes,
    original: Option<Box<OriginalTarget>>,
    /// The rest of the body.
    body: BodyDecoder,
    progress: ExchangeProgress,
    deadlines: ResponseDeadlines,
    /// For the client, if it waited for an instance.
    timing: Option<Rc<ColdStartTiming>>,
    permit: Option<Permit>,
    /// The endpoint of its connection: the key in the pool.
    endpoint_id: u64,
    /// The connection may carry other requests.
    may_pool: bool,
    /// See [`counted_endpoint`]. The permit is released before the outcome is known.
    counted: Option<Arc<Endpoint>>,
    /// Bytes for the mirrored request; dropped unless the request is answered.
    mirror_buffer: Option<Box<MirrorBuffer>>,
}

impl AdmittedRequest {
    /// The first `head_bytes` of `wire` are the head.
    fn new(
        proxy: &Rc<Proxy>,
        permit: Permit,
        (wire, head_bytes): (Bytes, usize),
        body: BodyDecoder,
        started: Tick,
    ) -> Self {
        let activity = StreamActivity::new(IdleTimeouts::of(&proxy.limits, permit.selected.timeouts()));
        Self {
            mirror_buffer: MirrorBuffer::start(proxy, &permit.selected, &wire, head_bytes),
            progress: ExchangeProgress::new(&body, wire.len() > head_bytes, activity),
            deadlines: permit.deadlines(started),
            timing: None,
            original: None,
            endpoint_id: permit.endpoint.id,
            may_pool: permit.backend().proxy_protocol.is_none(),
            counted: counted_endpoint(&permit).cloned(),
            permit: Some(permit),
            wire,
            body,
        }
    }

    /// The response is complete: sends the mirrored request, and pools the connection.
    fn done(&mut self, proxy: &Proxy, upstream: Box<UpstreamConnection>, status: u16, close: bool) -> ExchangeOutcome {
        let is_sent = self.progress.is_sent();
        if let Some(mirror_buffer) = self.mirror_buffer.take() {
            streams::mirror(*mirror_buffer, is_sent.then_some(status));
        }
        if is_sent && self.may_pool && upstream.is_reusable() {
            proxy.client.put_back(PoolKey::Endpoint(self.endpoint_id), upstream);
        }
        ExchangeOutcome::Answered { status, close, request_read: self.progress.is_request_read() }
    }

    /// The reply for a request that got no response and may not be sent again.
    fn closed(&self) -> LocalReply {
        LocalReply::UpstreamClosed(self.permit.as_ref().map(|permit| permit.backend().key.clone()).unwrap_or_default())
    }

    /// Opens a new connection after the instance closed the last one before any byte of a response. A client that
    /// disconnects meanwhile ends the attempt at once.
    async fn replayable(
        &mut self,
        connection: &mut ProxyConnection,
        is_alive: bool,
    ) -> Result<Box<UpstreamConnection>, ExchangeOutcome> {
        let Some(permit) = self.permit.take() else { return Err(ExchangeOutcome::Refused(self.closed())) };
        let backend = permit.backend().key.clone();
        let ProxyConnection { proxy, client, peer, note, .. } = connection;
        let replayable = ReplayableRequest {
            protocol: Protocol::Http1,
            is_alive,
            written: &self.wire,
            original: self.original.as_deref(),
            peer: Some(peer),
            due: self.deadlines.first_byte,
        };
        let reached = async { retry_upstream(proxy, permit, &replayable).await.map_err(ExchangeOutcome::Refused) };
        let (silence, most) = (&self.progress.silence, client.limits.half_closed_silence_max);
        let disconnected = async {
            watch(&client.ring, &client.stream, &mut client.read_buffer, silence, most).await;
            Err(ExchangeOutcome::Cut)
        };
        match select_both(reached, disconnected).await? {
            (permit, UpstreamLink::Http1(upstream)) => {
                note.add_bytes(&permit.endpoint);
                self.endpoint_id = permit.endpoint.id;
                self.counted = counted_endpoint(&permit).cloned();
                self.permit = Some(permit);
                Ok(upstream)
            }
            // not the protocol that was asked for
            (_, UpstreamLink::Http2(_)) => Err(ExchangeOutcome::Refused(LocalReply::UpstreamConnectFailure(backend))),
        }
    }
}

/// A client's request that is to be connected to an instance.
struct ClientConnect<'a> {
    connection: &'a mut ProxyConnection,
    head: &'a mut Chunk,
    tried: Vec<u64>,
    started: Tick,
}

impl ConnectRequest for ClientConnect<'_> {
    type Error = ExchangeOutcome;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<ExchangeOutcome>> {
        if let Some(permit) = self.connection.proxy.try_acquire(&choice, &self.tried) {
            return Ok(permit);
        }
        self.connection.open.stats.set_state(ConnectionState::Waiting);
        // Boxed: a request that gets its permit at once should not reserve memory for the wait.
        match Box::pin(wait(self.connection, self.head, choice, &mut self.tried)).await {
            Ok(permit) => Ok(permit),
            Err(ExchangeOutcome::Refused(why)) => Err(AcquireError::Rejected(why)),
            Err(ending) => Err(AcquireError::Ended(ending)),
        }
    }

    fn plan(&mut self, permit: &Permit) -> ConnectPlan {
        ConnectPlan::for_client(permit, self.connection.client.head.is_upgrade(), self.started)
    }

    fn peer(&self) -> Option<&ClientAddress> {
        Some(&self.connection.peer)
    }

    fn tried(&mut self) -> &mut Vec<u64> {
        &mut self.tried
    }

    fn rejected(&self, local_reply: LocalReply) -> ExchangeOutcome {
        ExchangeOutcome::Refused(local_reply)
    }
}

/// Chooses the backend, authenticates the client and asks the authorization service, if the rule wants that.
async fn choose(
    proxy: &Rc<Proxy>,
    connection: &mut ProxyConnection,
    head: &mut Chunk,
) -> Result<SelectedEndpoint, ExchangeOutcome> {
    let view = connection.client.head.view(head);
    let routed = proxy.route_noted(&RouteRequest::client(view, &connection.peer), &mut connection.note);
    let mut choice = routed.map_err(ExchangeOutcome::Refused)?;
    if let Some(pending) = proxy.authenticate(&mut choice, view).map_err(ExchangeOutcome::Refused)? {
        // Boxed, as is a wait for a permit.
        Box::pin(verify_password(connection, head, &mut choice, pending)).await?;
    }
    if choice.needs_authorization() {
        Box::pin(wait_for_authorization(connection, head, &mut choice)).await?;
    }
    Ok(choice)
}

/// Asks the authorization service, unless the client disconnects meanwhile.
async fn wait_for_authorization(
    connection: &mut ProxyConnection,
    head: &mut Chunk,
    choice: &mut SelectedEndpoint,
) -> Result<(), ExchangeOutcome> {
    connection.open.stats.set_state(ConnectionState::Waiting);
    // The ring has few receive buffers, so a waiting request must not hold one.
    *head = Chunk::from(head.to_vec());
    let ProxyConnection { proxy, client, peer, .. } = connection;
    client.read_buffer.detach();
    let view = client.head.view(head);
    let authorized = async { streams::authorize(proxy, choice, view, peer).await.map_err(ExchangeOutcome::Refused) };
    let disconnected = async {
        gone(&client.stream, &mut client.read_buffer).await;
        Err(ExchangeOutcome::Cut)
    };
    select_both(authorized, disconnected).await
}

/// Waits for the verification of a password, unless the client disconnects meanwhile.
async fn verify_password(
    connection: &mut ProxyConnection,
    head: &mut Chunk,
    choice: &mut SelectedEndpoint,
    pending: PendingAuthentication,
) -> Result<(), ExchangeOutcome> {
    // The ring has few receive buffers, so a waiting request must not hold one.
    *head = Chunk::from(head.to_vec());
    let ProxyConnection { proxy, client, .. } = connection;
    client.read_buffer.detach();
    let verified = async { proxy.finish_authentication(choice, pending).await.map_err(ExchangeOutcome::Refused) };
    let disconnected = async {
        gone(&client.stream, &mut client.read_buffer).await;
        Err(ExchangeOutcome::Cut)
    };
    select_both(verified, disconnected).await
}

/// Waits for a permit. A client that disconnects meanwhile leaves the queue at once. A half-closed connection looks the
/// same here and counts as disconnected: most clients that close their side are gone, and queue capacity is scarce.
async fn wait(
    connection: &mut ProxyConnection,
    head: &mut Chunk,
    choice: SelectedEndpoint,
    tried: &mut Vec<u64>,
) -> Result<Permit, ExchangeOutcome> {
    // The ring has few receive buffers, so a waiting request must not hold one.
    *head = Chunk::from(head.to_vec());
    let ProxyConnection { proxy, client, peer, .. } = connection;
    client.read_buffer.detach();
    let route_request = RouteRequest::client(client.head.view(head), peer);
    let mut acquire_request = AcquireRequest {
        route_request,
        bytes: head.len() + client.read_buffer.unread.len(),
        tried: std::mem::take(tried),
    };

    let acquired = async { proxy.acquire(choice, &mut acquire_request).await.map_err(ExchangeOutcome::Refused) };
    let disconnected = async {
        gone(&client.stream, &mut client.read_buffer).await;
        Err(ExchangeOutcome::Cut)
    };
    let outcome = select_both(acquired, disconnected).await;
    *tried = acquire_request.tried;
    outcome
}

/// Writes the request for the instance, with the body bytes that are here. Returns it and the length of its head.
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
            // At most one received chunk is buffered, so a copy is cheap.
            RelayStep::Send(piece) => {
                outgoing.extend_from_slice(&piece);
                relay::after_send(chunked, outgoing);
            }
            RelayStep::NeedBytes | RelayStep::Done => {}
        }
    }
    Ok((outgoing.split().freeze(), head_bytes))
}

/// Sends the request and reads the response concurrently.
async fn attempt(
    connection: &mut ProxyConnection,
    upstream: &mut UpstreamConnection,
    request: &mut AdmittedRequest,
) -> AttemptOutcome {
    let ClientConnection { ring, stream: client, read_buffer, write_buffer, head, guard, limits } =
        &mut connection.client;
    let AdmittedRequest {
        wire,
        body,
        progress,
        deadlines: due,
        timing,
        permit,
        endpoint_id: _,
        may_pool: _,
        counted: _,
        mirror_buffer,
        original: _,
    } = request;
    let mut request_stream = RequestStream {
        ring,
        limits,
        client,
        read_buffer,
        body,
        chunked: head.framing == BodyFraming::Chunked,
        up: &upstream.stream,
        out: &mut upstream.write_buffer,
        progress,
        mirror_buffer,
    };
    let mut response_stream = ResponseStream {
        ring,
        limits,
        request: head,
        guard,
        client,
        out: write_buffer,
        up: &upstream.stream,
        read_buffer: &mut upstream.read_buffer,
        head: &mut upstream.head,
        reused: upstream.reused,
        progress,
        deadlines: due,
        timing: timing.as_deref(),
        permit,
    };
    // Pinned where they are made: each is 600 bytes, and a move would copy it twice.
    let (answered, sent) = (pin!(response_stream.run()), pin!(request_stream.run(wire.clone())));
    select_both(answered, sent).await
}

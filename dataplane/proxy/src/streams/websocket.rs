//! A WebSocket as one HTTP/2 stream (RFC 8441), to an instance that speaks it over HTTP/1 (RFC 6455).

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ::http::StatusCode;
use bytes::{Bytes, BytesMut};
use codec::http::{FieldName, MalformedHttp, has_token, parse_response};
use contract::table::{self, RouteRequest};
use protocol::h2::heads::TranslatedRequest;
use protocol::h2::stream::Http2Stream;
use protocol::h2::{ErrorCode, MessagePart, StreamGone};
use protocol::http::buffers::{HeadReadError, ReadBuffer, by};
use protocol::http::headers::put_request;
use protocol::http::limits::INTERIM_MAX;
use protocol::http::pool::UpstreamConnection;
use protocol::tls::ByteStream;
use ring::Chunk;

use super::http2_response::{Http2ResponseWriter, drain_body};
use super::stream_context::{StreamContext, StreamGuards};
use super::{
    AttemptOutcome, ClientGone, ResponseDeadlines, ResponseWriter, StreamRequest, authenticated, heads, over_http1,
    unless_gone,
};
use crate::connect::reach;
use crate::passive_health::counted_endpoint;
use crate::request_record::{RequestEnd, RequestRecord};
use crate::retry::{self, ReplayableRequest, RetryBudget, RetryDecision};
use crate::route_filters::OriginalTarget;
use crate::tunnel::{TunnelContext, between};
use crate::upstream::UpstreamLink;
use crate::{AcquireRequest, LocalReply, Permit};

/// Serves one such stream to its end.
pub(super) async fn stream(
    shared: Rc<StreamContext>,
    translated: Result<TranslatedRequest, MalformedHttp>,
    stream: Http2Stream,
    _guards: StreamGuards,
) {
    let proxy = &shared.proxy;
    let progress = super::StreamProgress::new(&proxy.limits);
    let mut reply = Http2ResponseWriter::new(&stream, proxy, &progress);
    let mut note = RequestRecord::default();
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
        Ok(WebSocketUpgrade { mut permit, upstream, deadlines: due }) => {
            permit.becomes_tunnel();
            // A guard of its own: that of the connection wakes only the connection.
            let Some(guard) = proxy.tracker.enter(usize::MAX) else { return };
            let pipe = StreamPipe { stream: &stream };
            let key = Some(proxy.rng.borrow_mut().u32(..).to_be_bytes());
            let progress =
                TunnelContext { ring: &proxy.ring, limits: &proxy.limits, guard: &guard, key, deadlines: due };
            let bytes = between(&progress, &pipe, &mut ReadBuffer::default(), upstream).await;
            drop(permit);
            ended(101, bytes, None);
        }
        Err(AttemptOutcome::Done { status, .. }) => {
            ended(status, reply.bytes, None);
            drain_body(proxy, &stream).await;
        }
        Err(AttemptOutcome::Refused(local_reply)) => {
            proxy.counters.refused[local_reply.index()].fetch_add(1, Relaxed);
            let answer = proxy.local_response(&local_reply, &shared.peer);
            let _ = reply.refuse(&answer, false).await; // the client may be gone
            ended(local_reply.status(), reply.bytes, RequestEnd::reason(&local_reply));
            drain_body(proxy, &stream).await;
        }
        Err(
            AttemptOutcome::Cut
            | AttemptOutcome::Stale
            | AttemptOutcome::Unread
            | AttemptOutcome::Unprocessed
            | AttemptOutcome::Switched,
        ) => {
            ended(0, reply.bytes, None);
            stream.reset(ErrorCode::InternalError);
        }
    }
}

struct WebSocketUpgrade {
    /// Held for as long as the WebSocket lives.
    permit: Permit,
    upstream: Box<UpstreamConnection>,
    deadlines: ResponseDeadlines,
}

/// Connects up to the instance's 101, which the client gets as a 200.
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
    let route_request = RouteRequest::client(view, &shared.peer);
    let choice = proxy.route_noted(&route_request, note).map_err(AttemptOutcome::Refused)?;
    let choice = authenticated(proxy, choice, (view, &shared.peer), reply).await?;
    let mut acquire_request = AcquireRequest { route_request, bytes: request.bytes.len(), tried: Vec::new() };
    let (mut permit, link) = match unless_gone(reply, reach(proxy, choice, &mut acquire_request, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(local_reply)) => return Err(AttemptOutcome::Refused(local_reply)),
        Err(ClientGone) => return Err(AttemptOutcome::Cut),
    };
    let UpstreamLink::Http1(mut upstream) = link else {
        return Err(AttemptOutcome::Refused(LocalReply::UpgradeUnsupported));
    };
    note.acquired(&permit, proxy.ring.now());
    let mut written = BytesMut::new();
    put_request(&mut written, view, &shared.peer, permit.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    reply.progress.acquired(&proxy.limits, &permit);
    let job = StreamRequest {
        proxy,
        peer: Some(&shared.peer),
        head: &request.head,
        written: written.freeze(),
        original: OriginalTarget::of(permit.edits(), view),
        wants_trailers: false,
        scheme: permit.backend().scheme(),
        deadlines: permit.deadlines(started),
        timing: note.timing.clone().filter(|_| proxy.server_timing.get()),
        progress: reply.progress,
        selected: permit.selected.clone(),
    };
    reply.deadlines = job.deadlines.total;
    let mut budget = RetryBudget::new(true); // a GET without a body
    let opened = loop {
        let outcome = handshake(&job, &mut upstream, reply).await;
        proxy.observe(counted_endpoint(&permit), &outcome, job.progress.sent.get());
        match budget.decide(outcome, true) {
            RetryDecision::Ended(AttemptOutcome::Switched) => break Ok(()),
            RetryDecision::Ended(failed) => break Err(failed),
            RetryDecision::Exhausted => break Err(job.failed()),
            RetryDecision::Retry { is_alive } => {
                (permit, upstream) = retry_upstream(&job, permit, is_alive, reply).await?;
                job.progress.last_progress.replace(Some(Arc::clone(&permit.endpoint)));
            }
        }
    };
    job.progress.record_to(note);
    opened.map(|()| WebSocketUpgrade { deadlines: job.deadlines, permit, upstream })
}

/// Retries a handshake that its instance did not read. It is a GET, so it may be sent again.
async fn retry_upstream(
    job: &StreamRequest<'_>,
    permit: Permit,
    is_alive: bool,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<(Permit, Box<UpstreamConnection>), AttemptOutcome> {
    let replayable = ReplayableRequest {
        protocol: table::Protocol::Http1,
        is_alive,
        written: &job.written,
        original: job.original.as_deref(),
        peer: job.peer,
        due: job.deadlines.first_byte,
    };
    match unless_gone(reply, retry::retry_upstream(job.proxy, permit, &replayable)).await {
        Ok(Ok((permit, UpstreamLink::Http1(upstream)))) => Ok((permit, upstream)),
        Ok(Ok(_)) => Err(AttemptOutcome::Refused(LocalReply::UpgradeUnsupported)),
        Ok(Err(local_reply)) => Err(AttemptOutcome::Refused(local_reply)),
        Err(ClientGone) => Err(AttemptOutcome::Cut),
    }
}

/// Sends the handshake to the instance and forwards its 101 as a 200, or else its response, if that may be forwarded.
async fn handshake(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    reply: &mut Http2ResponseWriter<'_>,
) -> AttemptOutcome {
    match switch(job, upstream, reply).await {
        Ok(()) => AttemptOutcome::Switched,
        Err(ended) => ended,
    }
}

async fn switch(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<(), AttemptOutcome> {
    let ring = &job.proxy.ring;
    let send = upstream.stream.send(job.written.clone().into());
    match job.progress.activity.send(ring, None, send).await {
        Ok(Ok(()) | Err(_)) => {} // an instance that accepts no bytes may have responded; reading shows it
        Err(_) => return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout)),
    }
    job.progress.sent.set(true);
    let bytes = final_head(job, upstream, reply).await?;
    let answer = upstream.head.view(&bytes);
    match upstream.head.status {
        101 if answer.values(FieldName::Upgrade).any(|value| has_token(value, "websocket")) => {}
        // A success that did not switch would tell the client that the tunnel is open (RFC 8441 5).
        100..300 => return Err(job.malformed(MalformedHttp::HandshakeWithoutSwitch)),
        _ => return Err(over_http1::forward(job, upstream, bytes, reply).await),
    }
    let mut forwarded = job.answered(heads::from_instance(answer).map_err(|why| job.malformed(why))?);
    drop(bytes); // the receive buffer is released
    *forwarded.status_mut() = StatusCode::OK;
    forwarded.headers_mut().remove("sec-websocket-accept"); // proves a handshake that this client did not make
    reply.head(forwarded, false).await.map_err(|ClientGone| AttemptOutcome::Cut)
}

/// Reads the head of the final response; interim responses are forwarded.
async fn final_head(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    reply: &mut Http2ResponseWriter<'_>,
) -> Result<Chunk, AttemptOutcome> {
    let (received_before, ring) = (upstream.read_buffer.bytes, &job.proxy.ring);
    // Interim responses and partial heads count as bytes from the instance.
    let received = Cell::new(None);
    let mut interim = 0;
    while interim <= INTERIM_MAX {
        let UpstreamConnection { stream, read_buffer, head, reused, .. } = upstream;
        let parse = |bytes: &[u8]| parse_response(bytes, job.head.method, head);
        let parsed = read_buffer.head_noting(stream, parse, || received.set(Some(ring.now())));
        let bytes = match unless_gone(reply, by(ring, job.head_due(received.get()), parsed)).await {
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
            Ok(Err(_)) if job.head_due(received.get()).is_some_and(|due| ring.now() < due) => continue,
            Ok(Err(_)) => return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout)),
            Ok(Ok(Err(HeadReadError::Malformed(why)))) => return Err(job.malformed(why)),
            Ok(Ok(Err(_))) if *reused && read_buffer.bytes == received_before => {
                return Err(AttemptOutcome::Stale);
            }
            Ok(Ok(Err(why))) if why.is_reset() && read_buffer.bytes == received_before => {
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
    Err(job.malformed(MalformedHttp::TooManyInterim))
}

/// The stream as the client end of a tunnel.
struct StreamPipe<'a> {
    stream: &'a Http2Stream,
}

impl ByteStream for StreamPipe<'_> {
    async fn recv(&self) -> io::Result<Chunk> {
        loop {
            match poll_fn(|cx| self.stream.poll_body(cx)).await {
                Ok(MessagePart::Data(bytes)) if bytes.is_empty() => {}
                Ok(MessagePart::Data(bytes)) => {
                    // Released at once: the tunnel reads no more before it has forwarded this.
                    self.stream.release(bytes.len());
                    return Ok(Chunk::from(bytes));
                }
                Ok(MessagePart::End(_) | MessagePart::MalformedTrailers) => return Ok(Chunk::empty()),
                Err(StreamGone) => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }

    async fn send(&self, bytes: Chunk) -> io::Result<()> {
        let mut left = Bytes::copy_from_slice(&bytes); // the ring has few receive buffers, and this may take long
        drop(bytes);
        if left.is_empty() {
            return Ok(());
        }
        poll_fn(|cx| self.stream.poll_send(cx, &mut left, false)).await.map_err(io::Error::other)
    }

    fn acknowledge(&self) {} // HTTP/2 acknowledges by WINDOW_UPDATE

    async fn shutdown_write(&self) -> io::Result<()> {
        poll_fn(|cx| self.stream.poll_send(cx, &mut Bytes::new(), true)).await.map_err(io::Error::other)
    }
}

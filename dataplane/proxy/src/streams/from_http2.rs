//! A client that speaks HTTP/2: each of its streams is one request and is routed by itself (SRV-REQ-03).

use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use codec::http::{BodyFraming, MalformedHttp};
use contract::table::RouteRequest;
use protocol::h2::heads::TranslatedRequest;
use protocol::h2::stream::Http2Stream;
use protocol::h2::{ErrorCode, FieldBlock, MessagePart, StreamGone, trailers};
use protocol::http::headers::put_request;
use ring::Tick;

use super::http2_response::{Http2ResponseWriter, drain_body};
use super::replay::TeeBody;
use super::stream_context::{StreamContext, StreamGuards};
use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseWriter, StreamProgress, StreamRequest,
    authenticated, carry_filtered, heads, unless_gone,
};
use crate::compression::negotiated;
use crate::connect::reach;
use crate::mirror::MirrorBuffer;
use crate::request_record::{RequestEnd, RequestRecord};
use crate::route_filters::OriginalTarget;
use crate::{AcquireRequest, LocalReply, Proxy};

/// Room for the fields that the proxy adds to a head. More are possible, and take another allocation.
const ADDED_FIELD_BYTES: usize = 512;

/// The head of a request, as it is known before its task begins.
pub(super) struct Http2Request {
    pub(super) translated: Result<TranslatedRequest, MalformedHttp>,
    is_head: bool,
    is_grpc: bool,
    pub(super) is_websocket: bool,
}

impl Http2Request {
    /// Translates a head. `ends`: no body follows.
    pub(super) fn of(proxy: &Proxy, fields: &FieldBlock, ends: bool) -> Self {
        let is_websocket = heads::is_websocket(fields);
        let translated = if is_websocket {
            heads::websocket_from_client(fields, proxy.rng.borrow_mut().u128(..).to_be_bytes())
        } else if fields.len() > proxy.limits.head.fields() {
            Err(MalformedHttp::TooManyFields)
        } else {
            heads::from_client(fields, ends)
        };
        Self { translated, is_head: fields.method() == b"HEAD", is_grpc: heads::is_grpc(fields), is_websocket }
    }
}

/// Serves one stream to its end. It is no WebSocket.
pub(super) async fn stream(
    shared: Rc<StreamContext>,
    request: Http2Request,
    stream: Http2Stream,
    _guards: StreamGuards,
) {
    let proxy = &shared.proxy;
    let started = proxy.ring.now();
    let Http2Request { translated, is_head, is_grpc, .. } = request;
    let progress = StreamProgress::new(&proxy.limits);
    let mut body = Http2RequestBody { stream: &stream, proxy, progress: &progress, malformed: false };
    let mut reply = Http2ResponseWriter::new(&stream, proxy, &progress);

    let mut note = RequestRecord::default();
    note.start(proxy, translated.as_ref().ok().map(|request| request.head.view(&request.bytes)));
    let attempt = match translated.map_err(LocalReply::Malformed).and_then(possible) {
        Ok(request) => exchange(&shared, request, started, &mut body, &mut reply, &mut note).await,
        Err(local_reply) => AttemptOutcome::Refused(local_reply),
    };
    let client = shared.peer.canonical();
    let mut ended = |status, bytes, reason| {
        proxy.counters.answered(status);
        note.end(proxy, &RequestEnd { client, protocol: "HTTP/2", status, bytes, reason });
    };
    match attempt {
        AttemptOutcome::Done { status, .. } => {
            ended(status, reply.bytes, None);
            drain_body(proxy, &stream).await; // the rest of the request is not wanted
        }
        AttemptOutcome::Refused(local_reply) => {
            proxy.counters.refused[local_reply.index()].fetch_add(1, Relaxed);
            let answered = match is_grpc {
                true => reply.head(proxy.local_grpc_response(&local_reply, &shared.peer), true).await,
                false => reply.refuse(&proxy.local_response(&local_reply, &shared.peer), is_head).await,
            };
            ended(local_reply.status(), reply.bytes, RequestEnd::reason(&local_reply));
            if answered.is_ok() {
                drain_body(proxy, &stream).await;
            }
        }
        AttemptOutcome::Cut
        | AttemptOutcome::Stale
        | AttemptOutcome::Unread
        | AttemptOutcome::Unprocessed
        | AttemptOutcome::Switched => {
            ended(0, reply.bytes, None);
            // RFC 9113 8.1.1, where a response has begun already.
            stream.reset(if body.malformed { ErrorCode::ProtocolError } else { ErrorCode::InternalError });
        }
    }
}

fn possible(request: TranslatedRequest) -> Result<TranslatedRequest, LocalReply> {
    match LocalReply::of(&request.head) {
        Some(local_reply) => Err(local_reply),
        None => Ok(request),
    }
}

async fn exchange(
    shared: &StreamContext,
    request: TranslatedRequest,
    started: Tick,
    body: &mut Http2RequestBody<'_>,
    reply: &mut Http2ResponseWriter<'_>,
    note: &mut RequestRecord,
) -> AttemptOutcome {
    let proxy = &shared.proxy;
    let view = request.head.view(&request.bytes);
    if let Some(misdirected) = shared.misdirected(view.authority()) {
        return AttemptOutcome::Refused(misdirected);
    }
    let route_request = RouteRequest::client(view, &shared.peer);
    let choice = match proxy.route_noted(&route_request, note) {
        Ok(choice) => choice,
        Err(local_reply) => return AttemptOutcome::Refused(local_reply),
    };
    let choice = match authenticated(proxy, choice, (view, &shared.peer), reply).await {
        Ok(choice) => choice,
        Err(ended) => return ended,
    };
    let mut acquire_request = AcquireRequest { route_request, bytes: request.bytes.len(), tried: Vec::new() };
    let (permit, link) = match unless_gone(reply, reach(proxy, choice, &mut acquire_request, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(local_reply)) => return AttemptOutcome::Refused(local_reply),
        Err(ClientGone) => return AttemptOutcome::Cut,
    };

    note.acquired(&permit, proxy.ring.now());
    let mut written = BytesMut::with_capacity(request.bytes.len() + ADDED_FIELD_BYTES);
    put_request(&mut written, view, &shared.peer, permit.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    let progress = reply.progress;
    progress.acquired(&proxy.limits, &permit);
    let job = StreamRequest {
        proxy,
        peer: Some(&shared.peer),
        head: &request.head,
        written: written.freeze(),
        original: OriginalTarget::of(permit.edits(), view),
        wants_trailers: request.wants_trailers,
        scheme: permit.backend().scheme(),
        deadlines: permit.deadlines(started),
        timing: note.timing.clone().filter(|_| proxy.server_timing.get()),
        progress,
        selected: permit.selected.clone(),
    };
    job.progress.request_read.set(request.head.framing == BodyFraming::Empty);
    reply.deadlines = job.deadlines.total;
    reply.cookie = permit.selected.affinity.cookie;
    let mirror_buffer = MirrorBuffer::start(proxy, &permit.selected, &job.written, job.written.len());
    let mut body = TeeBody { body, mirror_buffer, chunked: request.head.framing == BodyFraming::Chunked };
    let coding = negotiated(&job.selected, view);
    let ended = carry_filtered(&job, permit, link, &mut body, (reply, coding)).await;
    body.end(&job, &ended);
    job.progress.record_to(note);
    ended
}

/// The request body.
struct Http2RequestBody<'a> {
    stream: &'a Http2Stream,
    proxy: &'a Proxy,
    progress: &'a StreamProgress,
    /// The end of the request body is malformed.
    malformed: bool,
}

impl RequestBody for Http2RequestBody<'_> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        let next = poll_fn(|cx| self.stream.poll_body(cx));
        let part = match self.progress.activity.body(&self.proxy.ring, next).await {
            Ok(Ok(MessagePart::Data(bytes))) => Ok(BodyPart::Data(bytes)),
            Ok(Ok(MessagePart::End(fields))) if fields.iter().flatten().any(|(_, value)| heads::is_padded(value)) => {
                Err(BodyFault::Malformed(MalformedHttp::FieldValue))
            }
            Ok(Ok(MessagePart::End(fields))) => Ok(BodyPart::End(fields.and_then(trailers::forwardable))),
            Ok(Ok(MessagePart::MalformedTrailers)) => Err(BodyFault::Malformed(MalformedHttp::Trailer)),
            Ok(Err(StreamGone)) => Err(BodyFault::Gone),
            Err(_) => Err(BodyFault::Stalled),
        };
        self.malformed |= matches!(part, Err(BodyFault::Malformed(_)));
        part
    }

    fn forwarded(&mut self, bytes: usize) {
        self.stream.release(bytes);
    }

    async fn watch(&mut self) {
        pending().await // the response writer notices it
    }
}

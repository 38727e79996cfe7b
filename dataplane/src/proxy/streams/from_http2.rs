//! A client that speaks HTTP/2: each of its streams is one request and is routed by itself (SRV-REQ-03).

use std::future::pending;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use ::h2::server::SendResponse;
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use ring::Tick;

use super::over_http2::capacity;
use super::replay::TeeBody;
use super::server::StreamContext;
use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseDeadlines, ResponseWriter, StreamProgress,
    StreamRequest, carry, heads, unless_gone, websocket,
};
use crate::h2::grpc;
use crate::h2::heads::TranslatedRequest;
use crate::h2::io::IoState;
use crate::h2::trailers;
use crate::http::buffers::by;
use crate::http::date;
use crate::http::headers::put_request;
use crate::proxy::exchange::original_host;
use crate::proxy::mirror::MirrorBuffer;
use crate::proxy::request_record::{RequestEnd, RequestRecord};
use crate::proxy::{AcquireRequest, LocalReply, Proxy};
use codec::http::LocalResponse;
use codec::http::{BodyFraming, MalformedHttp};
use contract::table::{AffinityCookie, RouteRequest};

/// Serves one stream to its end.
pub(super) async fn stream(shared: Rc<StreamContext>, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let proxy = &shared.proxy;
    let started = proxy.ring.now();
    let (parts, incoming) = request.into_parts();
    if websocket::is_requested(&parts) {
        return websocket::stream(Rc::clone(&shared), parts, incoming, respond).await;
    }
    let ends = incoming.is_end_stream();
    let is_head = parts.method == ::http::Method::HEAD;
    let is_grpc = grpc::is_grpc(&parts);
    let progress = StreamProgress::new(&proxy.limits);
    let mut body =
        Http2RequestBody { stream: incoming, proxy, progress: &progress, io_state: &shared.io_state, malformed: false };
    let mut reply = Http2ResponseWriter::new(respond, proxy, &progress);

    let translated = match parts.headers.len() > proxy.limits.head.fields() {
        true => Err(MalformedHttp::TooManyFields),
        false => heads::from_client(&parts, ends),
    };
    drop(parts);
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
            if !body.stream.is_end_stream() {
                drain_body(proxy, &mut body.stream).await;
                reply.reset(Reason::NO_ERROR); // the rest of the request is not wanted
            }
        }
        AttemptOutcome::Refused(local_reply) => {
            proxy.counters.refused[local_reply.index()].fetch_add(1, Relaxed);
            let answered = match is_grpc {
                true => reply.head(grpc::grpc_response(local_reply.status(), &local_reply.to_string()), true).await,
                false => reply.refuse(&local_reply.answer(), is_head).await,
            };
            ended(local_reply.status(), reply.bytes, RequestEnd::reason(&local_reply));
            if answered.is_ok() && !body.stream.is_end_stream() {
                drain_body(proxy, &mut body.stream).await;
                reply.reset(Reason::NO_ERROR);
            }
        }
        AttemptOutcome::Cut
        | AttemptOutcome::Stale
        | AttemptOutcome::Unread
        | AttemptOutcome::Unprocessed
        | AttemptOutcome::Switched => {
            ended(0, reply.bytes, None);
            // RFC 9113 8.1.1, where a response has begun already.
            reply.reset(if body.malformed { Reason::PROTOCOL_ERROR } else { Reason::INTERNAL_ERROR });
        }
    }
}

/// Reads the rest of a request, within the limits of a lingering connection: a reset drops what h2 has not sent yet, so
/// an immediate reset would lose the response.
pub(super) async fn drain_body(proxy: &Proxy, stream: &mut RecvStream) {
    proxy.ring.yield_now().await; // lets the connection's task write
    let rest = async {
        let mut left = proxy.limits.linger_bytes_max;
        while let Some(Ok(bytes)) = stream.data().await {
            let _ = stream.flow_control().release_capacity(bytes.len()); // fails when the stream is gone
            match left.checked_sub(bytes.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = by(&proxy.ring, Some(proxy.ring.now() + proxy.limits.linger_max), rest).await; // a timeout ends it as well
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
    let mut acquire_request = AcquireRequest { route_request, bytes: request.bytes.len(), tried: Vec::new() };
    let (permit, link) = match unless_gone(reply, proxy.reach(choice, &mut acquire_request, started)).await {
        Ok(Ok(both)) => both,
        Ok(Err(local_reply)) => return AttemptOutcome::Refused(local_reply),
        Err(ClientGone) => return AttemptOutcome::Cut,
    };

    note.acquired(&permit, proxy.ring.now());
    let mut written = BytesMut::new();
    put_request(&mut written, view, &shared.peer, permit.edits(), &mut proxy.rng.borrow_mut());
    note.written(proxy, &mut written);
    let progress = reply.progress;
    progress.acquired(&proxy.limits, permit.backend());
    let job = StreamRequest {
        proxy,
        peer: Some(&shared.peer),
        head: &request.head,
        written: written.freeze(),
        original_host: original_host(permit.edits(), view),
        wants_trailers: request.wants_trailers,
        scheme: permit.backend().scheme(),
        deadlines: ResponseDeadlines::new(started, &permit.backend().timeouts),
        timing: note.timing.clone().filter(|_| proxy.server_timing.get()),
        progress,
        backend: permit.backend().key.clone(),
    };
    job.progress.request_read.set(request.head.framing == BodyFraming::Empty);
    reply.deadlines = job.deadlines.total;
    reply.cookie = permit.selected.affinity.cookie;
    let mirror_buffer =
        MirrorBuffer::start(proxy, permit.selected.affinity.mirror.as_ref(), &job.written, job.written.len());
    let mut body = TeeBody { body, mirror_buffer, chunked: request.head.framing == BodyFraming::Chunked };
    let ended = carry(&job, permit, link, &mut body, reply).await;
    body.end(&job, &ended);
    job.progress.record_to(note);
    ended
}

/// The request body.
struct Http2RequestBody<'a> {
    stream: RecvStream,
    proxy: &'a Proxy,
    progress: &'a StreamProgress,
    io_state: &'a IoState,
    /// The end of the request body is malformed.
    malformed: bool,
}

impl RequestBody for Http2RequestBody<'_> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        let next = async {
            match self.stream.data().await {
                Some(Ok(bytes)) => Ok(BodyPart::Data(bytes)),
                Some(Err(_)) => Err(BodyFault::Gone),
                None => {
                    let fields = self.stream.trailers().await.map_err(|_| BodyFault::Gone)?;
                    if self.io_state.has_malformed_trailers(self.stream.stream_id().as_u32()) {
                        return Err(BodyFault::Malformed(MalformedHttp::Trailer));
                    }
                    if fields.iter().flatten().any(|(_, value)| heads::is_padded(value)) {
                        return Err(BodyFault::Malformed(MalformedHttp::FieldValue));
                    }
                    Ok(BodyPart::End(fields.and_then(trailers::forwardable)))
                }
            }
        };
        let part = self.progress.activity.body(&self.proxy.ring, next).await.unwrap_or(Err(BodyFault::Stalled));
        self.malformed |= matches!(part, Err(BodyFault::Malformed(_)));
        part
    }

    fn forwarded(&mut self, bytes: usize) {
        // Fails only when the stream is gone, which the next call reports.
        let _ = self.stream.flow_control().release_capacity(bytes);
    }

    async fn watch(&mut self) {
        pending().await // the response writer notices it
    }
}

/// The response direction.
pub(super) struct Http2ResponseWriter<'a> {
    respond: SendResponse<Bytes>,
    /// Set once the response head was sent.
    pub(super) stream: Option<SendStream<Bytes>>,
    proxy: &'a Proxy,
    pub(super) progress: &'a StreamProgress,
    /// When sending to the client times out.
    pub(super) deadlines: Option<Tick>,
    /// The affinity cookie for the client.
    cookie: Option<AffinityCookie>,
    /// The response is gRPC, whose status says more than a reset.
    is_grpc: bool,
    /// Of bodies.
    pub(super) bytes: u64,
}

impl ResponseWriter for Http2ResponseWriter<'_> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone> {
        self.respond.send_informational(answer).map_err(|_| ClientGone)
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), ClientGone> {
        if let Some(cookie) = self.cookie.take().and_then(|cookie| HeaderValue::from_bytes(&cookie.value()).ok()) {
            answer.headers_mut().append(::http::header::SET_COOKIE, cookie);
        }
        date::add(answer.headers_mut(), self.proxy.ring.now());
        let headers = answer.headers();
        self.is_grpc = grpc::is_named(headers) && !headers.contains_key(::http::header::CONTENT_LENGTH);
        self.stream = Some(self.respond.send_response(answer, ends).map_err(|_| ClientGone)?);
        Ok(())
    }

    async fn data(&mut self, mut bytes: Bytes, ends: bool) -> Result<(), ClientGone> {
        let stream = self.stream.as_mut().ok_or(ClientGone)?;
        if bytes.is_empty() && ends {
            return stream.send_data(bytes, true).map_err(|_| ClientGone);
        }
        while !bytes.is_empty() {
            let available = capacity(stream, bytes.len());
            let available = self.progress.activity.send(&self.proxy.ring, self.deadlines, available).await;
            let available = available.map_err(|_| ClientGone)?.ok_or(ClientGone)?;
            let piece = bytes.split_to(available.min(bytes.len()));
            self.bytes += piece.len() as u64;
            stream.send_data(piece, ends && bytes.is_empty()).map_err(|_| ClientGone)?;
        }
        Ok(())
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        let stream = self.stream.as_mut().ok_or(ClientGone)?;
        match trailers {
            Some(fields) => stream.send_trailers(fields),
            None => stream.send_data(Bytes::new(), true),
        }
        .map_err(|_| ClientGone)
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        match self.is_grpc {
            true => self.end(Some(grpc::status(504, "request timeout"))).await,
            false => Err(ClientGone),
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.stream {
            Some(stream) => stream.poll_reset(cx).map(|_| ()),
            None => self.respond.poll_reset(cx).map(|_| ()),
        }
    }
}

impl<'a> Http2ResponseWriter<'a> {
    pub(super) fn new(respond: SendResponse<Bytes>, proxy: &'a Proxy, progress: &'a StreamProgress) -> Self {
        Self { respond, stream: None, proxy, progress, deadlines: None, cookie: None, is_grpc: false, bytes: 0 }
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        match &mut self.stream {
            Some(stream) => stream.send_reset(reason),
            None => self.respond.send_reset(reason),
        }
    }

    /// Sends a complete local reply.
    pub(super) async fn refuse(&mut self, answer: &LocalResponse, is_head: bool) -> Result<(), ClientGone> {
        let mut head = Response::new(());
        *head.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| ClientGone)?;
        for (name, value) in &answer.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
                head.headers_mut().append(name, value);
            }
        }
        head.headers_mut().insert(::http::header::CONTENT_LENGTH, answer.body.len().into());
        let ends = is_head || answer.body.is_empty();
        self.head(head, ends).await?;
        if !ends {
            self.data(answer.body.clone(), true).await?;
        }
        Ok(())
    }
}

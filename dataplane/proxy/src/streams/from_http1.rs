//! A client that speaks HTTP/1 with an instance that speaks HTTP/2.

use std::rc::Rc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Bytes, BytesMut};
use codec::http::{BodyDecoder, BodyEvent, BodyFraming, HttpVersion, Method, RequestHead, put_chunk_line};
use contract::table::AffinityCookie;
use protocol::h2::trailers;
use protocol::http::buffers::{ReadBuffer, WriteBuffer};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::http::date;
use protocol::http::headers::{ResponseContext, SwitchedProtocol, put_request};
use protocol::http::limits::HttpLimits;
use protocol::http::server::ClientConnection;
use protocol::tls::{ByteStream, Transport};
use ring::{Chunk, Ring, Tick};

use super::replay::TeeBody;
use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseWriter, StreamProgress, StreamRequest,
    carry_filtered, heads,
};
use crate::compression::negotiated;
use crate::disconnect_watcher::watch;
use crate::mirror::MirrorBuffer;
use crate::outcome::ExchangeOutcome;
use crate::proxy_connection::ProxyConnection;
use crate::route_filters::OriginalTarget;
use crate::session_affinity::put_cookie;
use crate::upstream::UpstreamLink;
use crate::{Permit, Proxy};

/// Carries one request that has its permit. `head` holds the bytes of `connection.client.head`.
pub(crate) async fn exchange(
    connection: &mut ProxyConnection,
    head: Chunk,
    permit: Permit,
    link: UpstreamLink,
    started: Tick,
) -> ExchangeOutcome {
    let ProxyConnection { proxy, client, peer, outgoing, note, .. } = connection;
    let proxy: &Rc<Proxy> = proxy;
    outgoing.clear();
    put_request(outgoing, client.head.view(&head), peer, permit.edits(), &mut proxy.rng.borrow_mut());
    let original = OriginalTarget::of(permit.edits(), client.head.view(&head));
    let coding = negotiated(&permit.selected, client.head.view(&head));
    drop(head); // the receive buffer is released
    note.written(proxy, outgoing);
    client.read_buffer.detach();

    let ClientConnection { ring, stream, read_buffer, write_buffer, head, guard, limits } = client;
    let head: &RequestHead = head;
    let reader = BodyDecoder::new(head.framing);
    let progress = StreamProgress::new(limits);
    progress.acquired(limits, &permit);
    let job = StreamRequest {
        proxy,
        peer: Some(peer),
        head,
        written: outgoing.split().freeze(),
        original,
        wants_trailers: head.version == HttpVersion::Http11,
        scheme: permit.backend().scheme(),
        deadlines: permit.deadlines(started),
        timing: note.timing.clone().filter(|_| proxy.server_timing.get()),
        progress: &progress,
        selected: permit.selected.clone(),
    };
    job.progress.request_read.set(reader.is_done());
    let mirror_buffer = MirrorBuffer::start(proxy, &permit.selected, &job.written, job.written.len());
    let mut body = Http1RequestBody { ring, limits, stream, read_buffer, reader, progress: &progress };
    let mut body = TeeBody { body: &mut body, mirror_buffer, chunked: head.framing == BodyFraming::Chunked };
    let mut reply = Http1ResponseWriter {
        ring,
        stream,
        out: write_buffer,
        head,
        guard,
        progress: &progress,
        deadlines: job.deadlines.total,
        chunked: false,
        until_close: false,
        bodiless: false,
        close: false,
        left: None,
        cookie: permit.selected.affinity.cookie,
    };
    let ended = carry_filtered(&job, permit, link, &mut body, (&mut reply, coding)).await;
    body.end(&job, &ended);
    job.progress.record_to(note);
    match ended {
        AttemptOutcome::Done { status, .. } => {
            ExchangeOutcome::Answered { status, close: reply.close, request_read: job.progress.request_read.get() }
        }
        AttemptOutcome::Refused(local_reply) => ExchangeOutcome::Refused(local_reply),
        AttemptOutcome::Cut
        | AttemptOutcome::Stale
        | AttemptOutcome::Unread
        | AttemptOutcome::Unprocessed
        | AttemptOutcome::Switched => ExchangeOutcome::Cut,
    }
}

struct Http1RequestBody<'a> {
    ring: &'a Ring,
    limits: &'a HttpLimits,
    stream: &'a Transport,
    read_buffer: &'a mut ReadBuffer,
    reader: BodyDecoder,
    progress: &'a StreamProgress,
}

impl RequestBody for Http1RequestBody<'_> {
    async fn next(&mut self) -> Result<BodyPart, BodyFault> {
        loop {
            match self.reader.next(&self.read_buffer.unread).map_err(BodyFault::Malformed)? {
                BodyEvent::Data { skip, take } => {
                    self.read_buffer.unread.advance(skip);
                    let bytes = Bytes::copy_from_slice(&self.read_buffer.unread[..take]);
                    self.read_buffer.unread.advance(take);
                    return Ok(BodyPart::Data(bytes));
                }
                BodyEvent::End { skip } => {
                    self.read_buffer.unread.advance(skip);
                    return Ok(BodyPart::End(trailers::from_lines(self.reader.trailers())));
                }
                BodyEvent::NeedBytes => {
                    self.read_buffer.unread = Chunk::empty();
                    let fill = self.read_buffer.fill_rest(self.stream);
                    match self.progress.activity.body(self.ring, fill).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false) | Err(_)) => return Err(BodyFault::Gone),
                        Err(_) => return Err(BodyFault::Stalled),
                    }
                }
            }
        }
    }

    fn forwarded(&mut self, _bytes: usize) {} // backpressure: the client is not read

    async fn watch(&mut self) {
        let (silence, most) = (&self.progress.silence, self.limits.half_closed_silence_max);
        watch(self.ring, self.stream, self.read_buffer, silence, most).await;
    }
}

struct Http1ResponseWriter<'a> {
    ring: &'a Ring,
    stream: &'a Transport,
    out: &'a mut WriteBuffer,
    head: &'a RequestHead,
    guard: &'a ConnectionGuard,
    progress: &'a StreamProgress,
    deadlines: Option<Tick>,
    chunked: bool,
    /// The end of the connection is the end of the body.
    until_close: bool,
    /// The response has no body, whatever the instance sends.
    bodiless: bool,
    /// The response announced that the connection closes.
    close: bool,
    /// Bytes that the response head announced and that are not sent yet.
    left: Option<u64>,
    /// The affinity cookie for the client.
    cookie: Option<AffinityCookie>,
}

impl ResponseWriter for Http1ResponseWriter<'_> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone> {
        if self.head.version == HttpVersion::Http10 {
            return Ok(()); // HTTP/1.0 has no interim responses
        }
        heads::put_answer(&mut self.out.buffer, &answer, ResponseContext::INTERIM);
        self.flush().await
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), ClientGone> {
        let status = answer.status().as_u16();
        self.bodiless = self.head.method == Method::Head || matches!(status, 204 | 304);
        let length = answer.headers().get(::http::header::CONTENT_LENGTH);
        let has_length = length.is_some();
        if !self.bodiless {
            self.left = length.and_then(|length| length.to_str().ok()?.parse().ok());
            if has_length && self.left.is_none() {
                return Err(ClientGone); // not a number: the client could not find the end of the response
            }
        }
        if ends && !has_length && !self.bodiless {
            answer.headers_mut().insert(::http::header::CONTENT_LENGTH, 0.into());
        }
        let modern = self.head.version == HttpVersion::Http11;
        let unbounded = !ends && !has_length && !self.bodiless;
        self.chunked = unbounded && modern;
        self.until_close = unbounded && !modern;
        if self.until_close {
            self.stream.set_reset_on_close(true).map_err(|_| ClientGone)?;
        }
        self.close =
            !self.head.keep_alive || self.guard.is_draining() || !self.progress.request_read.get() || self.until_close;
        let date = Some(date::at(self.ring.now()));
        let (chunked, close) = (self.chunked, self.close);
        let client =
            ResponseContext { chunked, close, keep_alive: !modern && !close, upgrade: SwitchedProtocol::None, date };
        heads::put_answer(&mut self.out.buffer, &answer, client);
        put_cookie(&mut self.out.buffer, self.cookie);
        self.flush().await
    }

    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), ClientGone> {
        if !self.bodiless && !bytes.is_empty() {
            self.put(bytes).await?;
        }
        if ends { self.end(None).await } else { Ok(()) }
    }

    async fn end(&mut self, fields: Option<HeaderMap>) -> Result<(), ClientGone> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(ClientGone);
        }
        if self.chunked {
            trailers::put_end(&mut self.out.buffer, fields.as_ref());
        }
        self.flush().await?;
        if self.until_close {
            self.stream.set_reset_on_close(false).map_err(|_| ClientGone)?;
        }
        Ok(())
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        Err(ClientGone)
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending // the request body watches the connection
    }
}

impl Http1ResponseWriter<'_> {
    async fn put(&mut self, bytes: Bytes) -> Result<(), ClientGone> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(bytes.len() as u64).ok_or(ClientGone)?;
        }
        if !self.chunked {
            return self.send(Chunk::from(bytes)).await;
        }
        let out: &mut BytesMut = &mut self.out.buffer;
        put_chunk_line(out, bytes.len());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(b"\r\n");
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), ClientGone> {
        if self.out.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.out.buffer.split().freeze();
        self.send(Chunk::from(bytes)).await
    }

    async fn send(&mut self, bytes: Chunk) -> Result<(), ClientGone> {
        self.out.bytes += bytes.len() as u64;
        self.progress.silence.end();
        let sent = self.progress.activity.send(self.ring, self.deadlines, self.stream.send(bytes)).await;
        self.progress.silence.start(self.ring.now());
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ClientGone),
        }
    }
}

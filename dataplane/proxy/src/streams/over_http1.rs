//! An instance that speaks HTTP/1: the request is written as text, its response parsed from text.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;

use bytes::{Bytes, BytesMut};
use codec::http::{BodyDecoder, BodyEvent, BodyFraming, MalformedHttp, ResponseHead, parse_response, put_chunk_line};
use protocol::h2::trailers;
use protocol::http::buffers::{HeadReadError, ReadBuffer, by, earlier};
use protocol::http::limits::INTERIM_MAX;
use protocol::http::pool::UpstreamConnection;
use protocol::tls::{ByteStream, Transport};
use ring::Chunk;

use super::expect_continue::ExpectContinue;
use super::{
    AttemptOutcome, BodyFault, BodyPart, RequestBody, ResponseWriter, StreamAbort, StreamRequest, heads, is_ended,
    unless_gone,
};
use crate::LocalReply;
use crate::select::select_both;

/// Sends the request and forwards its response concurrently.
pub(super) async fn attempt(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let UpstreamConnection { stream, read_buffer, write_buffer, head, reused } = upstream;
    let response_stream = Http1UpstreamResponse { job, up: stream, read_buffer, head, reused: *reused, reply };
    let request_stream = async {
        match send(job, stream, &mut write_buffer.buffer, body).await {
            Ok(()) => {
                job.progress.sent.set(true);
                body.watch().await;
                AttemptOutcome::Cut
            }
            Err(Http1UpstreamError::Instance) => pending().await, // it may have responded anyway
            Err(Http1UpstreamError::TimedOut) if job.progress.activity.answered().is_some() => AttemptOutcome::Cut,
            Err(Http1UpstreamError::TimedOut) => AttemptOutcome::Refused(LocalReply::ResponseTimeout),
            Err(Http1UpstreamError::Body(fault)) => job.broken(fault),
        }
    };
    select_both(response_stream.run(), request_stream).await
}

/// Forwards a response whose head has arrived, for a request that was sent elsewhere.
pub(super) async fn forward(
    job: &StreamRequest<'_>,
    upstream: &mut UpstreamConnection,
    bytes: Chunk,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let UpstreamConnection { stream, read_buffer, head, reused, .. } = upstream;
    Http1UpstreamResponse { job, up: stream, read_buffer, head, reused: *reused, reply }.forward(bytes).await
}

enum Http1UpstreamError {
    Instance,
    TimedOut,
    Body(BodyFault),
}

async fn send(
    job: &StreamRequest<'_>,
    up: &Transport,
    out: &mut BytesMut,
    body: &mut impl RequestBody,
) -> Result<(), Http1UpstreamError> {
    in_time(job, up.send(job.written.clone().into())).await?;
    let chunked = job.head.framing == BodyFraming::Chunked;
    // The announced length: one byte more would be the start of another request.
    let mut left = match job.head.framing {
        BodyFraming::Length(length) => length,
        _ => u64::MAX,
    };
    while job.has_body() {
        let part = body.next().await.map_err(Http1UpstreamError::Body)?;
        job.progress.body_started.set(true);
        match part {
            BodyPart::Data(bytes) => {
                let size = bytes.len();
                left = left
                    .checked_sub(size as u64)
                    .ok_or(Http1UpstreamError::Body(BodyFault::Malformed(MalformedHttp::LengthInvalid)))?;
                if chunked && size > 0 {
                    put_chunk_line(out, size);
                    out.extend_from_slice(&bytes);
                    out.extend_from_slice(b"\r\n");
                    in_time(job, up.send(out.split().freeze().into())).await?;
                } else {
                    in_time(job, up.send(bytes.into())).await?;
                }
                body.forwarded(size);
            }
            BodyPart::End(fields) => {
                if !chunked && left > 0 {
                    return Err(Http1UpstreamError::Body(BodyFault::Malformed(MalformedHttp::LengthInvalid)));
                }
                if chunked {
                    trailers::put_end(out, fields.as_ref());
                    in_time(job, up.send(out.split().freeze().into())).await?;
                }
                break;
            }
        }
    }
    job.progress.request_read.set(true);
    Ok(())
}

async fn in_time(
    job: &StreamRequest<'_>,
    send: impl Future<Output = io::Result<()>>,
) -> Result<(), Http1UpstreamError> {
    match job.progress.activity.send(&job.proxy.ring, None, send).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Http1UpstreamError::Instance),
        Err(_) => Err(Http1UpstreamError::TimedOut),
    }
}

struct Http1UpstreamResponse<'a, R> {
    job: &'a StreamRequest<'a>,
    up: &'a Transport,
    read_buffer: &'a mut ReadBuffer,
    head: &'a mut ResponseHead,
    reused: bool,
    reply: &'a mut R,
}

impl<R: ResponseWriter> Http1UpstreamResponse<'_, R> {
    async fn run(mut self) -> AttemptOutcome {
        match self.final_head().await {
            Ok(bytes) => self.forward(bytes).await,
            Err(attempt) => attempt,
        }
    }

    async fn forward(mut self, bytes: Chunk) -> AttemptOutcome {
        let answer = match heads::from_instance(self.head.view(&bytes)) {
            Ok(answer) => answer,
            Err(why) => return self.job.malformed(why),
        };
        drop(bytes); // the receive buffer is released

        let reader = BodyDecoder::of_response(self.head.framing);
        let answer = self.job.answered(answer);
        let ends = reader.is_done();
        if self.reply.head(answer, ends).await.is_err() {
            return AttemptOutcome::Cut;
        }
        if !ends {
            let body = self.body(reader).await;
            // Bytes that the instance still sends after the deadline are discarded.
            self.read_buffer.ended |= matches!(body, Err(StreamAbort::Late));
            if !is_ended(self.reply, body).await {
                return AttemptOutcome::Cut;
            }
        }
        AttemptOutcome::Done { status: self.head.status, close: false }
    }

    /// Reads the head of the final response; interim responses are forwarded.
    async fn final_head(&mut self) -> Result<Chunk, AttemptOutcome> {
        let ring = &self.job.proxy.ring;
        let received_before = self.read_buffer.bytes;
        // Interim responses and partial heads count as bytes from the instance.
        let received = Cell::new(None);
        let expectation = ExpectContinue::of(self.job);
        let mut interim = 0;
        loop {
            let at = earlier(self.job.head_due(received.get()), expectation.due());
            let (asked, head) = (self.job.head.method, &mut *self.head);
            let parse = |bytes: &[u8]| parse_response(bytes, asked, head);
            let parsed = self.read_buffer.head_noting(self.up, parse, || received.set(Some(ring.now())));
            let bytes = match unless_gone(self.reply, by(ring, at, parsed)).await {
                Err(_) => return Err(AttemptOutcome::Cut),
                Ok(Ok(Ok(bytes))) => bytes,
                Ok(Ok(Err(HeadReadError::Malformed(why)))) => return Err(self.job.malformed(why)),
                Ok(Ok(Err(_))) if self.reused && self.read_buffer.bytes == received_before => {
                    return Err(AttemptOutcome::Stale);
                }
                Ok(Ok(Err(why))) if why.is_reset() && self.read_buffer.bytes == received_before => {
                    return Err(AttemptOutcome::Unread);
                }
                Ok(Ok(Err(_))) => return Err(self.job.failed()),
                Ok(Err(_)) if self.job.head_due(received.get()).is_some_and(|due| ring.now() >= due) => {
                    return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout));
                }
                Ok(Err(_)) if !expectation.is_due() => continue, // a part of the head came
                Ok(Err(_)) => {
                    expectation.send(self.reply).await.map_err(|_| AttemptOutcome::Cut)?;
                    continue;
                }
            };
            if !self.head.is_interim() {
                // The proxy never asks for another protocol here.
                return if self.head.status == 101 {
                    Err(self.job.malformed(MalformedHttp::SwitchNotRequested))
                } else {
                    Ok(bytes)
                };
            }
            received.set(Some(ring.now()));
            interim += 1;
            if interim > INTERIM_MAX {
                return Err(self.job.malformed(MalformedHttp::TooManyInterim));
            }
            if expectation.observe(self.head.status) {
                let answer = heads::from_instance(self.head.view(&bytes)).map_err(|why| self.job.malformed(why))?;
                drop(bytes);
                self.reply.interim(answer).await.map_err(|_| AttemptOutcome::Cut)?;
            }
        }
    }

    async fn body(&mut self, mut reader: BodyDecoder) -> Result<(), StreamAbort> {
        loop {
            match reader.next(&self.read_buffer.unread).map_err(|_| StreamAbort::Instance)? {
                BodyEvent::Data { skip, take } => {
                    self.read_buffer.unread.advance(skip);
                    let ends = reader.is_done(); // a length that is reached; chunks may have trailers
                    let sent = self.reply.data_now(&self.read_buffer.unread[..take], ends)?;
                    // Copied: the ring has few receive buffers, and the client may accept the rest late.
                    let rest = Bytes::copy_from_slice(&self.read_buffer.unread[sent..take]);
                    self.read_buffer.unread.advance(take);
                    if sent < take || take == 0 {
                        self.reply.data(rest, ends).await?;
                    }
                    if ends {
                        return Ok(());
                    }
                }
                BodyEvent::End { skip } => {
                    self.read_buffer.unread.advance(skip);
                    return Ok(self.reply.end(trailers::from_lines(reader.trailers())).await?);
                }
                BodyEvent::NeedBytes => {
                    self.read_buffer.unread = Chunk::empty();
                    let due = self.job.deadlines.next_byte(&self.job.proxy.ring);
                    let filled = by(&self.job.proxy.ring, due, self.read_buffer.fill_rest(self.up));
                    let filled = unless_gone(self.reply, filled).await?;
                    let (activity, now) = (&self.job.progress.activity, self.job.proxy.ring.now());
                    if filled.is_err() && self.job.deadlines.is_active(activity.last(), now) {
                        continue; // the request still moves
                    }
                    activity.received(now);
                    match filled {
                        Ok(Ok(_)) if self.job.deadlines.is_over(&self.job.proxy.ring) => {
                            return Err(StreamAbort::Late);
                        }
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) if reader.may_close() => return Ok(self.reply.end(None).await?),
                        Ok(Ok(false) | Err(_)) => return Err(StreamAbort::Instance),
                        Err(_) => return Err(StreamAbort::Late),
                    }
                }
            }
        }
    }
}

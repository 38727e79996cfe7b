//! An instance that speaks HTTP/2: a stream on a connection that requests share.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ::h2::client::{ResponseFuture, SendRequest};
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{Response, StatusCode};
use bytes::Bytes;
use codec::http::{MalformedHttp, Method};
use protocol::h2::client::Http2StreamPermit;
use protocol::h2::io::IoState;
use protocol::h2::trailers;
use protocol::http::buffers::{by, earlier};
use protocol::http::limits::INTERIM_MAX;

use super::expect_continue::ExpectContinue;
use super::response_buffer::BufferedResponseBody;
use super::{
    AttemptOutcome, BodyFault, BodyPart, ClientGone, RequestBody, ResponseWriter, StreamAbort, StreamRequest,
    UpstreamStreamError, heads, is_ended, unless_gone,
};
use crate::LocalReply;
use crate::select::select_both;

/// Sends the request and forwards its response concurrently.
pub(super) async fn attempt(
    job: &StreamRequest<'_>,
    stream_permit: &mut Http2StreamPermit,
    body: &mut impl RequestBody,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let request = match heads::for_instance(&job.written, job.wants_trailers, job.scheme) {
        Ok(request) => request,
        Err(why) => return AttemptOutcome::Refused(LocalReply::Malformed(why)),
    };
    let ready = poll_fn(|cx| stream_permit.sender.poll_ready(cx));
    match unless_gone(reply, by(&job.proxy.ring, job.deadlines.first_byte, ready)).await {
        Err(ClientGone) => return AttemptOutcome::Cut,
        Ok(Err(_)) => return AttemptOutcome::Refused(LocalReply::ResponseTimeout),
        Ok(Ok(Err(_))) => return AttemptOutcome::Unprocessed,
        Ok(Ok(Ok(()))) => {}
    }
    let Ok((response, stream)) = stream_permit.sender.send_request(request, !job.has_body()) else {
        return AttemptOutcome::Unprocessed;
    };

    let io_state = stream_permit.io_state();
    let request_stream = async {
        match send(job, &mut stream_permit.sender, stream, body).await {
            Ok(()) => {
                job.progress.sent.set(true);
                body.watch().await;
                AttemptOutcome::Cut
            }
            Err(Http2UpstreamError::Instance) => pending().await, // it may have responded anyway
            Err(Http2UpstreamError::TimedOut) if job.progress.activity.answered().is_some() => AttemptOutcome::Cut,
            Err(Http2UpstreamError::TimedOut) => AttemptOutcome::Refused(LocalReply::ResponseTimeout),
            Err(Http2UpstreamError::Body(fault)) => job.broken(fault),
        }
    };
    match select_both(answer(job, response, &io_state, reply), request_stream).await {
        AttemptOutcome::Stale => {
            stream_permit.give_up();
            if stream_permit.reused { AttemptOutcome::Stale } else { job.failed() }
        }
        AttemptOutcome::Refused(LocalReply::ResponseTimeout) => {
            stream_permit.give_up(); // the connection may be dead without a close, and only the next request would notice
            AttemptOutcome::Refused(LocalReply::ResponseTimeout)
        }
        ended => ended,
    }
}

/// Waits until the stream was sent; `false` when it never will be. After GOAWAY h2 does not report pending streams any
/// more, but only streams that were sent get capacity.
async fn has_left(sender: &mut SendRequest<Bytes>, stream: &mut SendStream<Bytes>) -> bool {
    poll_fn(|cx| sender.poll_ready(cx)).await.is_ok() || capacity(stream, 1).await.is_some()
}

enum Http2UpstreamError {
    Instance,
    TimedOut,
    Body(BodyFault),
}

async fn send(
    job: &StreamRequest<'_>,
    sender: &mut SendRequest<Bytes>,
    mut stream: SendStream<Bytes>,
    body: &mut impl RequestBody,
) -> Result<(), Http2UpstreamError> {
    if job.has_body() {
        // The body is not read before the instance accepts its stream: the request may have to go elsewhere.
        match job.progress.activity.send(&job.proxy.ring, None, has_left(sender, &mut stream)).await {
            Ok(true) => {}
            Ok(false) => return Err(Http2UpstreamError::Instance),
            Err(_) => return Err(Http2UpstreamError::TimedOut),
        }
    }
    while job.has_body() {
        let part = body.next().await.map_err(Http2UpstreamError::Body)?;
        job.progress.body_started.set(true);
        match part {
            BodyPart::Data(mut bytes) => {
                let size = bytes.len();
                while !bytes.is_empty() {
                    let available = capacity(&mut stream, bytes.len());
                    let available = match job.progress.activity.send(&job.proxy.ring, None, available).await {
                        Ok(Some(available)) => available,
                        Ok(None) => return Err(Http2UpstreamError::Instance),
                        Err(_) => return Err(Http2UpstreamError::TimedOut),
                    };
                    let piece = bytes.split_to(available.min(bytes.len()));
                    stream.send_data(piece, false).map_err(|_| Http2UpstreamError::Instance)?;
                }
                body.forwarded(size);
            }
            BodyPart::End(fields) => {
                let ended = match fields {
                    Some(fields) => stream.send_trailers(fields),
                    None => stream.send_data(Bytes::new(), true),
                };
                ended.map_err(|_| Http2UpstreamError::Instance)?;
                break;
            }
        }
    }
    job.progress.request_read.set(true);
    Ok(())
}

/// Waits for capacity for at least one of `wanted` bytes; `None` when the stream has ended.
async fn capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Option<usize> {
    stream.reserve_capacity(wanted);
    poll_fn(|cx| {
        let available = stream.capacity();
        if available > 0 {
            return Poll::Ready(Some(available));
        }
        match stream.poll_capacity(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(0))) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(available))) => Poll::Ready(Some(available)),
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(None),
        }
    })
    .await
}

enum Http2ResponseEvent {
    Interim(Response<()>),
    Final(Response<RecvStream>),
    Failed(::h2::Error),
}

async fn arrived(response: &mut ResponseFuture) -> Http2ResponseEvent {
    poll_fn(|cx| {
        match response.poll_informational(cx) {
            Poll::Ready(Some(Ok(interim))) => return Poll::Ready(Http2ResponseEvent::Interim(interim)),
            Poll::Ready(Some(Err(why))) => return Poll::Ready(Http2ResponseEvent::Failed(why)),
            Poll::Ready(None) | Poll::Pending => {}
        }
        Pin::new(&mut *response).poll(cx).map(|answer| match answer {
            Ok(answer) => Http2ResponseEvent::Final(answer),
            Err(why) => Http2ResponseEvent::Failed(why),
        })
    })
    .await
}

async fn answer(
    job: &StreamRequest<'_>,
    mut response: ResponseFuture,
    io_state: &IoState,
    reply: &mut impl ResponseWriter,
) -> AttemptOutcome {
    let answer = match final_head(job, &mut response, reply).await {
        Ok(answer) => answer,
        Err(attempt) => return attempt,
    };
    let (parts, mut body) = answer.into_parts();
    let status = parts.status.as_u16();
    // Content after a head that allows none is ignored (RFC 9110 15.3.5): its stream is dropped.
    let ends = body.is_end_stream() || job.head.method == Method::Head || matches!(status, 204 | 304);
    let answer = match heads::from_h2_instance(parts) {
        Ok(answer) => job.answered(answer),
        Err(why) => return job.malformed(why),
    };
    if reply.head(answer, ends).await.is_err() {
        return AttemptOutcome::Cut;
    }
    if !ends {
        let passed = forward(job, &mut body, io_state, reply).await;
        if !is_ended(reply, passed).await {
            return AttemptOutcome::Cut;
        }
    }
    AttemptOutcome::Done { status, close: false }
}

/// Reads the head of the final response; interim responses are forwarded.
async fn final_head(
    job: &StreamRequest<'_>,
    response: &mut ResponseFuture,
    reply: &mut impl ResponseWriter,
) -> Result<Response<RecvStream>, AttemptOutcome> {
    let (ring, expectation) = (&job.proxy.ring, ExpectContinue::of(job));
    // Interim responses count as bytes from the instance.
    let mut received = None;
    let mut interim = 0;
    loop {
        let at = earlier(job.head_due(received), expectation.due());
        let answer = match unless_gone(reply, by(ring, at, arrived(response))).await {
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
            Ok(Err(_)) if job.head_due(received).is_some_and(|due| ring.now() >= due) => {
                return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout));
            }
            Ok(Err(_)) if !expectation.is_due() => continue, // the request is still on its way
            Ok(Err(_)) => {
                expectation.send(reply).await.map_err(|ClientGone| AttemptOutcome::Cut)?;
                continue;
            }
            Ok(Ok(Http2ResponseEvent::Final(answer))) => return Ok(answer),
            Ok(Ok(Http2ResponseEvent::Failed(why))) => {
                job.progress.fault.set(UpstreamStreamError::of(&why));
                return Err(if is_unprocessed(&why) && interim == 0 {
                    AttemptOutcome::Unprocessed
                } else if why.is_io() || why.is_go_away() {
                    AttemptOutcome::Stale
                } else {
                    job.failed()
                });
            }
            Ok(Ok(Http2ResponseEvent::Interim(answer))) => answer,
        };
        received = Some(ring.now());
        interim += 1;
        // HTTP/2 has no 101 (RFC 9113 8.6), and an HTTP/1 client would take the bytes after it for another protocol.
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(job.malformed(MalformedHttp::SwitchNotRequested));
        }
        if interim > INTERIM_MAX {
            return Err(job.malformed(MalformedHttp::TooManyInterim));
        }
        if expectation.observe(answer.status().as_u16()) {
            let answer = heads::from_h2_instance(answer.into_parts().0).map_err(|why| job.malformed(why))?;
            reply.interim(answer).await.map_err(|ClientGone| AttemptOutcome::Cut)?;
        }
    }
}

/// The instance did not process the request: it refused the stream (RFC 9113 8.7), or the stream is beyond the last one
/// that its GOAWAY serves (6.8), because h2 reports GOAWAY to no other stream.
fn is_unprocessed(why: &::h2::Error) -> bool {
    why.is_remote() && (why.is_go_away() || why.reason() == Some(Reason::REFUSED_STREAM))
}

async fn forward(
    job: &StreamRequest<'_>,
    body: &mut RecvStream,
    io_state: &IoState,
    reply: &mut impl ResponseWriter,
) -> Result<(), StreamAbort> {
    let mut buffered = BufferedResponseBody::new(body);
    loop {
        let due = job.deadlines.next_byte(&job.proxy.ring);
        let arrived = unless_gone(reply, by(&job.proxy.ring, due, buffered.next())).await?;
        let (activity, now) = (&job.progress.activity, job.proxy.ring.now());
        if arrived.is_err() && job.deadlines.is_active(activity.last(), now) {
            continue; // the request still moves
        }
        activity.received(now);
        match arrived {
            Ok(Some(Ok(_))) if job.deadlines.is_over(&job.proxy.ring) => return Err(StreamAbort::Late),
            Ok(Some(Ok(bytes))) => {
                let size = bytes.len();
                let ends = buffered.is_over();
                buffered.while_buffering(reply.data(bytes, ends)).await?;
                // Releases flow-control capacity only now.
                buffered.forwarded(size).map_err(|_| StreamAbort::Instance)?;
                if ends {
                    return Ok(());
                }
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(StreamAbort::Instance),
            Err(_) => return Err(StreamAbort::Late),
        }
    }
    let due = job.deadlines.next_byte(&job.proxy.ring);
    match by(&job.proxy.ring, due, body.trailers()).await {
        // Malformed (RFC 9113 8.1): what came of the response must not look whole.
        Ok(Ok(_)) if io_state.has_malformed_trailers(body.stream_id().as_u32()) => Err(StreamAbort::Instance),
        Ok(Ok(Some(fields))) if fields.values().any(heads::is_padded) => Err(StreamAbort::Instance),
        Ok(Ok(fields)) => Ok(reply.end(fields.and_then(trailers::forwardable)).await?),
        Ok(Err(_)) => Err(StreamAbort::Instance),
        Err(_) => Err(StreamAbort::Late),
    }
}

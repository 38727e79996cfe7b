//! An instance that speaks HTTP/2: a stream on a connection that requests share.

use std::future::{pending, poll_fn};
use std::task::Poll;

use ::http::{Response, StatusCode};
use bytes::Bytes;
use codec::http::{MalformedHttp, Method};
use protocol::h2::client::Http2StreamPermit;
use protocol::h2::heads::InstanceRequest;
use protocol::h2::instance_stream::InstanceStream;
use protocol::h2::{MessagePart, ReceivedHead, StreamFailure, StreamGone, trailers};
use protocol::http::buffers::{by, earlier};
use protocol::http::limits::INTERIM_MAX;

use super::expect_continue::ExpectContinue;
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
    let request = match InstanceRequest::read(job.written.clone(), job.wants_trailers, job.scheme) {
        Ok(request) => request,
        Err(why) => return AttemptOutcome::Refused(LocalReply::Malformed(why)),
    };
    // The body is not read before the instance allows the stream: the request may have to go elsewhere.
    let opened = stream_permit.send_request(&request, !job.has_body());
    let opened = job.progress.activity.send(&job.proxy.ring, job.deadlines.first_byte, opened);
    let stream = match unless_gone(reply, opened).await {
        Err(ClientGone) => return AttemptOutcome::Cut,
        Ok(Err(_)) => return AttemptOutcome::Refused(LocalReply::ResponseTimeout),
        Ok(Ok(Err(StreamGone))) => return AttemptOutcome::Unprocessed,
        Ok(Ok(Ok(stream))) => stream,
    };
    drop(request);

    let request_stream = async {
        match send(job, &stream, body).await {
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
    match select_both(answer(job, &stream, reply), request_stream).await {
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

enum Http2UpstreamError {
    Instance,
    TimedOut,
    Body(BodyFault),
}

impl From<StreamGone> for Http2UpstreamError {
    fn from(_: StreamGone) -> Self {
        Self::Instance
    }
}

async fn send(
    job: &StreamRequest<'_>,
    stream: &InstanceStream,
    body: &mut impl RequestBody,
) -> Result<(), Http2UpstreamError> {
    while job.has_body() {
        let part = body.next().await.map_err(Http2UpstreamError::Body)?;
        job.progress.body_started.set(true);
        match part {
            BodyPart::Data(bytes) => {
                let size = bytes.len();
                send_data(job, stream, bytes, false).await?;
                body.forwarded(size);
            }
            BodyPart::End(fields) => {
                match fields {
                    Some(fields) => stream.send_trailers(&fields)?,
                    None => send_data(job, stream, Bytes::new(), true).await?,
                }
                break;
            }
        }
    }
    job.progress.request_read.set(true);
    Ok(())
}

/// Sends all of `bytes`. Each part that the instance accepts counts as activity.
async fn send_data(
    job: &StreamRequest<'_>,
    stream: &InstanceStream,
    mut bytes: Bytes,
    ends: bool,
) -> Result<(), Http2UpstreamError> {
    loop {
        let before = bytes.len();
        let sent = poll_fn(|cx| match stream.poll_send(cx, &mut bytes, ends) {
            Poll::Pending if bytes.len() < before => Poll::Ready(Ok(false)),
            polled => polled.map_ok(|()| true),
        });
        match job.progress.activity.send(&job.proxy.ring, None, sent).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => {}
            Ok(Err(StreamGone)) => return Err(Http2UpstreamError::Instance),
            Err(_) => return Err(Http2UpstreamError::TimedOut),
        }
    }
}

async fn answer(job: &StreamRequest<'_>, stream: &InstanceStream, reply: &mut impl ResponseWriter) -> AttemptOutcome {
    let answer = match final_head(job, stream, reply).await {
        Ok(answer) => job.answered(answer),
        Err(attempt) => return attempt,
    };
    let status = answer.status().as_u16();
    // Content after a head that allows none is ignored (RFC 9110 15.3.5): its stream is dropped.
    let ends = stream.is_body_complete() || job.head.method == Method::Head || matches!(status, 204 | 304);
    if reply.head(answer, ends).await.is_err() {
        return AttemptOutcome::Cut;
    }
    if !ends {
        let passed = forward(job, stream, reply).await;
        if !is_ended(reply, passed).await {
            return AttemptOutcome::Cut;
        }
    }
    AttemptOutcome::Done { status, close: false }
}

/// Reads the head of the final response; interim responses are forwarded.
async fn final_head(
    job: &StreamRequest<'_>,
    stream: &InstanceStream,
    reply: &mut impl ResponseWriter,
) -> Result<Response<()>, AttemptOutcome> {
    let (ring, expectation) = (&job.proxy.ring, ExpectContinue::of(job));
    // Interim responses count as bytes from the instance.
    let mut received = None;
    let mut interim = 0;
    loop {
        let at = earlier(job.head_due(received), expectation.due());
        let arrived = poll_fn(|cx| stream.poll_head(cx));
        let answer = match unless_gone(reply, by(ring, at, arrived)).await {
            Err(ClientGone) => return Err(AttemptOutcome::Cut),
            Ok(Err(_)) if job.head_due(received).is_some_and(|due| ring.now() >= due) => {
                return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout));
            }
            Ok(Err(_)) if !expectation.is_due() => continue, // the request is still on its way
            Ok(Err(_)) => {
                expectation.send(reply).await.map_err(|ClientGone| AttemptOutcome::Cut)?;
                continue;
            }
            Ok(Ok(Ok(ReceivedHead::Final(answer)))) => return answer.map_err(|why| job.malformed(why)),
            Ok(Ok(Ok(ReceivedHead::Interim(answer)))) => answer.map_err(|why| job.malformed(why))?,
            Ok(Ok(Err(failure))) => return Err(failed(job, failure, interim)),
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
            reply.interim(answer).await.map_err(|ClientGone| AttemptOutcome::Cut)?;
        }
    }
}

/// The stream has ended without a response, after some interim ones.
fn failed(job: &StreamRequest<'_>, failure: StreamFailure, interim: u8) -> AttemptOutcome {
    job.progress.fault.set(UpstreamStreamError::of(failure));
    match failure {
        _ if failure.is_unprocessed() && interim == 0 => AttemptOutcome::Unprocessed,
        StreamFailure::GoAway | StreamFailure::ConnectionViolation(_) | StreamFailure::ConnectionClosed => {
            AttemptOutcome::Stale
        }
        StreamFailure::Reset(_) | StreamFailure::Violation(_) => job.failed(),
    }
}

async fn forward(
    job: &StreamRequest<'_>,
    stream: &InstanceStream,
    reply: &mut impl ResponseWriter,
) -> Result<(), StreamAbort> {
    loop {
        let due = job.deadlines.next_byte(&job.proxy.ring);
        let arrived = by(&job.proxy.ring, due, poll_fn(|cx| stream.poll_body(cx)));
        let arrived = unless_gone(reply, arrived).await?;
        let (activity, now) = (&job.progress.activity, job.proxy.ring.now());
        if arrived.is_err() && job.deadlines.is_active(activity.last(), now) {
            continue; // the request still moves
        }
        activity.received(now);
        match arrived {
            Ok(Ok(MessagePart::Data(_))) if job.deadlines.is_over(&job.proxy.ring) => return Err(StreamAbort::Late),
            Ok(Ok(MessagePart::Data(bytes))) => {
                let (size, ends) = (bytes.len(), stream.is_body_complete());
                reply.data(bytes, ends).await?;
                if ends {
                    return Ok(());
                }
                stream.release(size); // only now: the client is as slow as the instance may be fast
            }
            Ok(Ok(MessagePart::End(Some(fields)))) if fields.values().any(heads::is_padded) => {
                return Err(StreamAbort::Instance);
            }
            Ok(Ok(MessagePart::End(fields))) => return Ok(reply.end(fields.and_then(trailers::forwardable)).await?),
            // Malformed (RFC 9113 8.1): what came of the response must not look whole.
            Ok(Ok(MessagePart::MalformedTrailers) | Err(_)) => return Err(StreamAbort::Instance),
            Err(_) => return Err(StreamAbort::Late),
        }
    }
}

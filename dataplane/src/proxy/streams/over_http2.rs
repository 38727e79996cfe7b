//! An instance that speaks HTTP/2: a stream on a connection that other requests share.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use ::h2::client::{ResponseFuture, SendRequest};
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{Response, StatusCode};
use bytes::Bytes;

use super::ahead::Ahead;
use super::expectation::Expectation;
use super::{Attempt, Body, Fault, Gone, Job, Part, Reply, Stop, StreamFault, heads, is_ended, unless_gone};
use crate::h2::client::Turn;
use crate::h2::trailers;
use crate::http::codec::Method;
use crate::http::limits::INTERIM_MAX;
use crate::http::wire::{by, earlier};
use crate::proxy::Refusal;
use crate::proxy::beside::beside;

/// Sends the request and passes its answer on, side by side.
pub(super) async fn attempt(
    job: &Job<'_>,
    turn: &mut Turn,
    body: &mut impl Body,
    reply: &mut impl Reply,
) -> Attempt {
    let request = match heads::for_instance(&job.written, job.wants_trailers, job.scheme) {
        Ok(request) => request,
        Err(why) => return Attempt::Refused(Refusal::Malformed(why)),
    };
    let ready = poll_fn(|cx| turn.sender.poll_ready(cx));
    match unless_gone(reply, by(&job.proxy.ring, job.due.first_byte, ready)).await {
        Err(Gone) => return Attempt::Cut,
        Ok(Err(_)) => return Attempt::Refused(Refusal::TimedOut),
        Ok(Ok(Err(_))) => return Attempt::Unasked,
        Ok(Ok(Ok(()))) => {}
    }
    let Ok((response, stream)) = turn.sender.send_request(request, !job.has_body()) else {
        return Attempt::Unasked;
    };

    let sending = async {
        match send(job, &mut turn.sender, stream, body).await {
            Ok(()) => {
                job.course.sent.set(true);
                body.watch().await;
                Attempt::Cut
            }
            Err(Broken::Instance) => pending().await, // it may have answered all the same
            Err(Broken::TimedOut) if job.course.activity.answered().is_some() => Attempt::Cut,
            Err(Broken::TimedOut) => Attempt::Refused(Refusal::TimedOut),
            Err(Broken::Body(fault)) => job.broken(fault),
        }
    };
    match beside(answer(job, response, reply), sending).await {
        Attempt::Stale => {
            turn.give_up();
            if turn.reused { Attempt::Stale } else { job.failed() }
        }
        Attempt::Refused(Refusal::TimedOut) => {
            turn.give_up(); // its other end may be gone without a word, and nobody would notice before the next
            Attempt::Refused(Refusal::TimedOut)
        }
        ended => ended,
    }
}

/// Waits until the stream has left; `false` when it never will. A connection that has said GOAWAY does not tell of its
/// streams any more; but only those that have left get capacity.
async fn has_left(sender: &mut SendRequest<Bytes>, stream: &mut SendStream<Bytes>) -> bool {
    poll_fn(|cx| sender.poll_ready(cx)).await.is_ok() || capacity(stream, 1).await.is_some()
}

enum Broken {
    Instance,
    TimedOut,
    Body(Fault),
}

async fn send(
    job: &Job<'_>,
    sender: &mut SendRequest<Bytes>,
    mut stream: SendStream<Bytes>,
    body: &mut impl Body,
) -> Result<(), Broken> {
    if job.has_body() {
        // Nothing of it is touched before the instance has room for its stream: it may have to be asked elsewhere.
        match job.course.activity.send(&job.proxy.ring, None, has_left(sender, &mut stream)).await {
            Ok(true) => {}
            Ok(false) => return Err(Broken::Instance),
            Err(_) => return Err(Broken::TimedOut),
        }
    }
    while job.has_body() {
        let part = body.next().await.map_err(Broken::Body)?;
        job.course.body_begun.set(true);
        match part {
            Part::Data(mut bytes) => {
                let size = bytes.len();
                while !bytes.is_empty() {
                    let room = capacity(&mut stream, bytes.len());
                    let room = match job.course.activity.send(&job.proxy.ring, None, room).await {
                        Ok(Some(room)) => room,
                        Ok(None) => return Err(Broken::Instance),
                        Err(_) => return Err(Broken::TimedOut),
                    };
                    let piece = bytes.split_to(room.min(bytes.len()));
                    stream.send_data(piece, false).map_err(|_| Broken::Instance)?;
                }
                body.passed_on(size);
            }
            Part::End(fields) => {
                let ended = match fields {
                    Some(fields) => stream.send_trailers(fields),
                    None => stream.send_data(Bytes::new(), true),
                };
                ended.map_err(|_| Broken::Instance)?;
                break;
            }
        }
    }
    job.course.request_read.set(true);
    Ok(())
}

/// Waits for room for at least one of `wanted` bytes; `None` when the stream has ended.
pub(super) async fn capacity(stream: &mut SendStream<Bytes>, wanted: usize) -> Option<usize> {
    stream.reserve_capacity(wanted);
    poll_fn(|cx| {
        let room = stream.capacity();
        if room > 0 {
            return Poll::Ready(Some(room));
        }
        match stream.poll_capacity(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(0))) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(room))) => Poll::Ready(Some(room)),
            Poll::Ready(Some(Err(_)) | None) => Poll::Ready(None),
        }
    })
    .await
}

enum Arrived {
    Interim(Response<()>),
    Final(Response<RecvStream>),
    Failed(::h2::Error),
}

async fn arrived(response: &mut ResponseFuture) -> Arrived {
    poll_fn(|cx| {
        match response.poll_informational(cx) {
            Poll::Ready(Some(Ok(interim))) => return Poll::Ready(Arrived::Interim(interim)),
            Poll::Ready(Some(Err(why))) => return Poll::Ready(Arrived::Failed(why)),
            Poll::Ready(None) | Poll::Pending => {}
        }
        Pin::new(&mut *response).poll(cx).map(|answer| match answer {
            Ok(answer) => Arrived::Final(answer),
            Err(why) => Arrived::Failed(why),
        })
    })
    .await
}

async fn answer(job: &Job<'_>, mut response: ResponseFuture, reply: &mut impl Reply) -> Attempt {
    let answer = match final_head(job, &mut response, reply).await {
        Ok(answer) => answer,
        Err(attempt) => return attempt,
    };
    let (parts, mut body) = answer.into_parts();
    let status = parts.status.as_u16();
    // What stands behind a head without content is nobody's (RFC 9110 15.3.5): its stream is dropped.
    let ends = body.is_end_stream() || job.head.method == Method::Head || matches!(status, 204 | 304);
    let answer = match heads::from_h2_instance(parts) {
        Ok(answer) => job.answered(answer),
        Err(why) => return job.malformed(why),
    };
    if reply.head(answer, ends).await.is_err() {
        return Attempt::Cut;
    }
    if !ends {
        let passed = pass_on(job, &mut body, reply).await;
        if !is_ended(reply, passed).await {
            return Attempt::Cut;
        }
    }
    Attempt::Done { status, close: false }
}

/// The final answer's head; interim ones are passed on.
async fn final_head(
    job: &Job<'_>,
    response: &mut ResponseFuture,
    reply: &mut impl Reply,
) -> Result<Response<RecvStream>, Attempt> {
    let (ring, expectation) = (&job.proxy.ring, Expectation::of(job));
    // Interim responses are traffic of the instance.
    let mut received = None;
    let mut interim = 0;
    loop {
        let at = earlier(job.due.head(received), expectation.due());
        let answer = match unless_gone(reply, by(ring, at, arrived(response))).await {
            Err(Gone) => return Err(Attempt::Cut),
            Ok(Err(_)) if job.due.head(received).is_some_and(|due| ring.now() >= due) => {
                return Err(Attempt::Refused(Refusal::TimedOut));
            }
            Ok(Err(_)) => {
                expectation.say(reply).await.map_err(|Gone| Attempt::Cut)?;
                continue;
            }
            Ok(Ok(Arrived::Final(answer))) => return Ok(answer),
            Ok(Ok(Arrived::Failed(why))) => {
                job.course.fault.set(StreamFault::of(&why));
                return Err(if is_unasked(&why) && interim == 0 {
                    Attempt::Unasked
                } else if why.is_io() || why.is_go_away() {
                    Attempt::Stale
                } else {
                    job.failed()
                });
            }
            Ok(Ok(Arrived::Interim(answer))) => answer,
        };
        received = Some(ring.now());
        interim += 1;
        // HTTP/2 has no 101 (RFC 9113 8.6), and a client of HTTP/1 would take what follows for another protocol.
        if interim > INTERIM_MAX || answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(job.failed());
        }
        if expectation.hear(answer.status().as_u16()) {
            let answer = heads::from_h2_instance(answer.into_parts().0).map_err(|why| job.malformed(why))?;
            reply.interim(answer).await.map_err(|Gone| Attempt::Cut)?;
        }
    }
}

/// The instance did nothing about the request: it refused the stream (RFC 9113 8.7), or said GOAWAY and that the stream
/// is beyond the last it serves (6.8), for h2 tells no other stream of it.
fn is_unasked(why: &::h2::Error) -> bool {
    why.is_remote() && (why.is_go_away() || why.reason() == Some(Reason::REFUSED_STREAM))
}

async fn pass_on(job: &Job<'_>, body: &mut RecvStream, reply: &mut impl Reply) -> Result<(), Stop> {
    let mut ahead = Ahead::new(body);
    loop {
        let due = job.due.next_byte(&job.proxy.ring);
        let arrived = unless_gone(reply, by(&job.proxy.ring, due, ahead.next())).await?;
        job.course.activity.received(job.proxy.ring.now());
        match arrived {
            Ok(Some(Ok(_))) if job.due.is_over(&job.proxy.ring) => return Err(Stop::Late),
            Ok(Some(Ok(bytes))) => {
                let size = bytes.len();
                let ends = ahead.is_over();
                ahead.beside(reply.data(bytes, ends)).await?;
                // The instance may send as much again only now.
                ahead.passed_on(size).map_err(|_| Stop::Instance)?;
                if ends {
                    return Ok(());
                }
            }
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(Stop::Instance),
            Err(_) => return Err(Stop::Late),
        }
    }
    let due = job.due.next_byte(&job.proxy.ring);
    match by(&job.proxy.ring, due, body.trailers()).await {
        Ok(Ok(Some(fields))) if fields.values().any(heads::is_padded) => Err(Stop::Instance),
        Ok(Ok(fields)) => Ok(reply.end(fields.and_then(trailers::passed)).await?),
        Ok(Err(_)) => Err(Stop::Instance),
        Err(_) => Err(Stop::Late),
    }
}

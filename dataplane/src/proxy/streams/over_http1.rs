//! An instance that speaks HTTP/1: the request written as text, its answer read from text.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;

use bytes::{Bytes, BytesMut};
use ring::Chunk;

use super::expectation::Expectation;
use super::{Attempt, Body, Fault, Job, Part, Reply, Stop, heads, is_ended, unless_gone};
use crate::h2::trailers;
use crate::http::codec::{
    BodyReader, Framing, Malformed, Piece, ResponseHead, parse_response, put_chunk_line,
};
use crate::http::limits::INTERIM_MAX;
use crate::http::pool::Upstream;
use crate::http::wire::{HeadFault, Inflow, by, earlier};
use crate::proxy::Refusal;
use crate::proxy::beside::beside;
use crate::tls::{Pipe, Wire};

/// Sends the request and passes its answer on, side by side.
pub(super) async fn attempt(
    job: &Job<'_>,
    upstream: &mut Upstream,
    body: &mut impl Body,
    reply: &mut impl Reply,
) -> Attempt {
    let Upstream { stream, inflow, outflow, head, reused } = upstream;
    let answering = Answering { job, up: stream, inflow, head, reused: *reused, reply };
    let sending = async {
        match send(job, stream, &mut outflow.buffer, body).await {
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
    beside(answering.run(), sending).await
}

/// Passes on an answer whose head has come, to a request that was sent by somebody else.
pub(super) async fn pass_on(
    job: &Job<'_>,
    upstream: &mut Upstream,
    bytes: Chunk,
    reply: &mut impl Reply,
) -> Attempt {
    let Upstream { stream, inflow, head, reused, .. } = upstream;
    Answering { job, up: stream, inflow, head, reused: *reused, reply }.pass_on(bytes).await
}

enum Broken {
    Instance,
    TimedOut,
    Body(Fault),
}

async fn send(job: &Job<'_>, up: &Wire, out: &mut BytesMut, body: &mut impl Body) -> Result<(), Broken> {
    in_time(job, up.send(job.written.clone().into())).await?;
    let chunked = job.head.framing == Framing::Chunked;
    // What the head promised: one byte more would be the start of another request.
    let mut left = match job.head.framing {
        Framing::Length(length) => length,
        _ => u64::MAX,
    };
    while job.has_body() {
        let part = body.next().await.map_err(Broken::Body)?;
        job.course.body_begun.set(true);
        match part {
            Part::Data(bytes) => {
                let size = bytes.len();
                left = left
                    .checked_sub(size as u64)
                    .ok_or(Broken::Body(Fault::Malformed(Malformed::LengthInvalid)))?;
                if chunked && size > 0 {
                    put_chunk_line(out, size);
                    out.extend_from_slice(&bytes);
                    out.extend_from_slice(b"\r\n");
                    in_time(job, up.send(out.split().freeze().into())).await?;
                } else {
                    in_time(job, up.send(bytes.into())).await?;
                }
                body.passed_on(size);
            }
            Part::End(fields) => {
                if !chunked && left > 0 {
                    return Err(Broken::Body(Fault::Malformed(Malformed::LengthInvalid)));
                }
                if chunked {
                    trailers::put_end(out, fields.as_ref());
                    in_time(job, up.send(out.split().freeze().into())).await?;
                }
                break;
            }
        }
    }
    job.course.request_read.set(true);
    Ok(())
}

async fn in_time(job: &Job<'_>, send: impl Future<Output = io::Result<()>>) -> Result<(), Broken> {
    match job.course.activity.send(&job.proxy.ring, None, send).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Broken::Instance),
        Err(_) => Err(Broken::TimedOut),
    }
}

struct Answering<'a, R> {
    job: &'a Job<'a>,
    up: &'a Wire,
    inflow: &'a mut Inflow,
    head: &'a mut ResponseHead,
    reused: bool,
    reply: &'a mut R,
}

impl<R: Reply> Answering<'_, R> {
    async fn run(mut self) -> Attempt {
        match self.final_head().await {
            Ok(bytes) => self.pass_on(bytes).await,
            Err(attempt) => attempt,
        }
    }

    async fn pass_on(mut self, bytes: Chunk) -> Attempt {
        let answer = match heads::from_instance(self.head.view(&bytes)) {
            Ok(answer) => answer,
            Err(why) => return self.job.malformed(why),
        };
        drop(bytes); // the receive buffer goes back

        let reader = BodyReader::of_response(self.head.framing);
        let answer = self.job.answered(answer);
        let ends = reader.is_done();
        if self.reply.head(answer, ends).await.is_err() {
            return Attempt::Cut;
        }
        if !ends {
            let body = self.body(reader).await;
            // What the instance may still say of a late answer is for nobody.
            self.inflow.ended |= matches!(body, Err(Stop::Late));
            if !is_ended(self.reply, body).await {
                return Attempt::Cut;
            }
        }
        Attempt::Done { status: self.head.status, close: false }
    }

    /// The final answer's head; interim ones are passed on.
    async fn final_head(&mut self) -> Result<Chunk, Attempt> {
        let ring = &self.job.proxy.ring;
        let (received_before, due) = (self.inflow.bytes, self.job.due);
        // Interim responses and the beginning of a head are traffic of the instance.
        let received = Cell::new(None);
        let expectation = Expectation::of(self.job);
        let mut interim = 0;
        loop {
            let at = earlier(due.head(received.get()), expectation.due());
            let (asked, head) = (self.job.head.method, &mut *self.head);
            let parse = |bytes: &[u8]| parse_response(bytes, asked, head);
            let parsed = self.inflow.head_noting(self.up, parse, || received.set(Some(ring.now())));
            let bytes = match unless_gone(self.reply, by(ring, at, parsed)).await {
                Err(_) => return Err(Attempt::Cut),
                Ok(Ok(Ok(bytes))) => bytes,
                Ok(Ok(Err(HeadFault::Malformed(why)))) => return Err(self.job.malformed(why)),
                Ok(Ok(Err(_))) if self.reused && self.inflow.bytes == received_before => {
                    return Err(Attempt::Stale);
                }
                Ok(Ok(Err(why))) if why.is_reset() && self.inflow.bytes == received_before => {
                    return Err(Attempt::Unread);
                }
                Ok(Ok(Err(_))) => return Err(self.job.failed()),
                Ok(Err(_)) if due.head(received.get()).is_some_and(|due| ring.now() >= due) => {
                    return Err(Attempt::Refused(Refusal::TimedOut));
                }
                Ok(Err(_)) if !expectation.is_due() => continue, // a part of the head came
                Ok(Err(_)) => {
                    expectation.say(self.reply).await.map_err(|_| Attempt::Cut)?;
                    continue;
                }
            };
            if !self.head.is_interim() {
                // We never ask for another protocol.
                return if self.head.status == 101 { Err(self.job.failed()) } else { Ok(bytes) };
            }
            received.set(Some(ring.now()));
            interim += 1;
            if interim > INTERIM_MAX {
                return Err(self.job.failed());
            }
            if expectation.hear(self.head.status) {
                let answer =
                    heads::from_instance(self.head.view(&bytes)).map_err(|why| self.job.malformed(why))?;
                drop(bytes);
                self.reply.interim(answer).await.map_err(|_| Attempt::Cut)?;
            }
        }
    }

    async fn body(&mut self, mut reader: BodyReader) -> Result<(), Stop> {
        loop {
            match reader.next(&self.inflow.held).map_err(|_| Stop::Instance)? {
                Piece::Data { skip, take } => {
                    self.inflow.held.advance(skip);
                    // Copied: the ring's receive buffers are few, and h2 may hold this for long.
                    let bytes = Bytes::copy_from_slice(&self.inflow.held[..take]);
                    self.inflow.held.advance(take);
                    let ends = reader.is_done(); // a length that is reached; chunks may have trailers
                    self.reply.data(bytes, ends).await?;
                    if ends {
                        return Ok(());
                    }
                }
                Piece::End { skip } => {
                    self.inflow.held.advance(skip);
                    return Ok(self.reply.end(trailers::from_lines(reader.trailers())).await?);
                }
                Piece::NeedBytes => {
                    self.inflow.held = Chunk::empty();
                    let due = self.job.due.next_byte(&self.job.proxy.ring);
                    let filled = by(&self.job.proxy.ring, due, self.inflow.fill(self.up));
                    let filled = unless_gone(self.reply, filled).await?;
                    self.job.course.activity.received(self.job.proxy.ring.now());
                    match filled {
                        Ok(Ok(_)) if self.job.due.is_over(&self.job.proxy.ring) => return Err(Stop::Late),
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) if reader.may_close() => return Ok(self.reply.end(None).await?),
                        Ok(Ok(false) | Err(_)) => return Err(Stop::Instance),
                        Err(_) => return Err(Stop::Late),
                    }
                }
            }
        }
    }
}

//! A client that speaks HTTP/1 and an instance that does not.

use std::rc::Rc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Bytes, BytesMut};
use ring::{Chunk, Ring, Tick};

use super::replay::Taped;
use super::{Attempt, Body, Course, Due, Fault, Gone, Job, Part, Reply, carry, heads};
use crate::h2::trailers;
use crate::http::codec::{BodyReader, Framing, Method, Piece, RequestHead, Version, put_chunk_line};
use crate::http::date;
use crate::http::headers::{ForClient, put_request};
use crate::http::limits::HttpLimits;
use crate::http::roster::Seat;
use crate::http::server::Downstream;
use crate::http::wire::{Inflow, Outflow};
use crate::proxy::bond::put_cookie;
use crate::proxy::connection::Connection;
use crate::proxy::exchange::{Ending, meant};
use crate::proxy::link::Link;
use crate::proxy::mirror::Recording;
use crate::proxy::watch::watch;
use crate::proxy::{Place, Proxy};
use crate::table::Cookie;
use crate::tls::{Pipe, Wire};

/// Carries one request that has its place. `head` are the bytes of `connection.client.head`.
pub(in crate::proxy) async fn exchange(
    connection: &mut Connection,
    head: Chunk,
    place: Place,
    link: Link,
    started: Tick,
) -> Ending {
    let Connection { proxy, client, peer, outgoing, note, .. } = connection;
    let proxy: &Rc<Proxy> = proxy;
    outgoing.clear();
    put_request(outgoing, client.head.view(&head), peer, place.edits(), &mut proxy.rng.borrow_mut());
    let meant = meant(place.edits(), client.head.view(&head));
    drop(head); // the receive buffer goes back
    note.written(proxy, outgoing);
    client.inflow.detach();

    let Downstream { ring, stream, inflow, outflow, head, seat, limits } = client;
    let head: &RequestHead = head;
    let reader = BodyReader::new(head.framing);
    let course = Course::new(limits);
    course.placed(limits, place.backend());
    let job = Job {
        proxy,
        peer: Some(peer),
        head,
        written: outgoing.split().freeze(),
        meant,
        wants_trailers: head.version == Version::Http11,
        scheme: place.backend().scheme(),
        due: Due::new(started, &place.backend().timeouts),
        timing: note.timing.clone().filter(|_| proxy.tells_timing.get()),
        course: &course,
        backend: place.backend().key.clone(),
    };
    job.course.request_read.set(reader.is_done());
    let tape = Recording::begin(proxy, place.choice.bond.mirror.as_ref(), &job.written, job.written.len());
    let mut body = Incoming { ring, limits, stream, inflow, reader, course: &course };
    let mut body = Taped { body: &mut body, tape, chunked: head.framing == Framing::Chunked };
    let mut reply = Outgoing {
        ring,
        stream,
        out: outflow,
        head,
        seat,
        course: &course,
        due: job.due.total,
        chunked: false,
        until_close: false,
        bodiless: false,
        close: false,
        left: None,
        cookie: place.choice.bond.cookie,
    };
    let ended = carry(&job, place, link, &mut body, &mut reply).await;
    body.end(&job, &ended);
    job.course.tell(note);
    match ended {
        Attempt::Done { status, .. } => {
            Ending::Answered { status, close: reply.close, request_read: job.course.request_read.get() }
        }
        Attempt::Refused(refusal) => Ending::Refused(refusal),
        Attempt::Cut | Attempt::Stale | Attempt::Unread | Attempt::Unasked | Attempt::Switched => Ending::Cut,
    }
}

struct Incoming<'a> {
    ring: &'a Ring,
    limits: &'a HttpLimits,
    stream: &'a Wire,
    inflow: &'a mut Inflow,
    reader: BodyReader,
    course: &'a Course,
}

impl Body for Incoming<'_> {
    async fn next(&mut self) -> Result<Part, Fault> {
        loop {
            match self.reader.next(&self.inflow.held).map_err(Fault::Malformed)? {
                Piece::Data { skip, take } => {
                    self.inflow.held.advance(skip);
                    let bytes = Bytes::copy_from_slice(&self.inflow.held[..take]);
                    self.inflow.held.advance(take);
                    return Ok(Part::Data(bytes));
                }
                Piece::End { skip } => {
                    self.inflow.held.advance(skip);
                    return Ok(Part::End(trailers::from_lines(self.reader.trailers())));
                }
                Piece::NeedBytes => {
                    self.inflow.held = Chunk::empty();
                    let fill = self.inflow.fill(self.stream);
                    match self.course.activity.body(self.ring, fill).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false) | Err(_)) => return Err(Fault::Gone),
                        Err(_) => return Err(Fault::Stalled),
                    }
                }
            }
        }
    }

    fn passed_on(&mut self, _bytes: usize) {} // not reading is what holds the client back

    async fn watch(&mut self) {
        let (silence, most) = (&self.course.silence, self.limits.half_closed_silence_max);
        watch(self.ring, self.stream, self.inflow, silence, most).await;
    }
}

struct Outgoing<'a> {
    ring: &'a Ring,
    stream: &'a Wire,
    out: &'a mut Outflow,
    head: &'a RequestHead,
    seat: &'a Seat,
    course: &'a Course,
    due: Option<Tick>,
    chunked: bool,
    /// The end of the connection is the end of the body.
    until_close: bool,
    /// The answer has no body, whatever comes.
    bodiless: bool,
    /// The client was told that the connection ends.
    close: bool,
    /// Bytes that the answer's head has promised and that have not left.
    left: Option<u64>,
    /// The client is to get it with its answer.
    cookie: Option<Cookie>,
}

impl Reply for Outgoing<'_> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), Gone> {
        if self.head.version == Version::Http10 {
            return Ok(()); // has no interim answers
        }
        heads::put_answer(&mut self.out.buffer, &answer, ForClient::INTERIM);
        self.flush().await
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), Gone> {
        let status = answer.status().as_u16();
        self.bodiless = self.head.method == Method::Head || matches!(status, 204 | 304);
        let length = answer.headers().get(::http::header::CONTENT_LENGTH);
        let has_length = length.is_some();
        if !self.bodiless {
            self.left = length.and_then(|length| length.to_str().ok()?.parse().ok());
            if has_length && self.left.is_none() {
                return Err(Gone); // no number: the client could not find the answer's end
            }
        }
        if ends && !has_length && !self.bodiless {
            answer.headers_mut().insert(::http::header::CONTENT_LENGTH, 0.into());
        }
        let modern = self.head.version == Version::Http11;
        let unbounded = !ends && !has_length && !self.bodiless;
        self.chunked = unbounded && modern;
        self.until_close = unbounded && !modern;
        if self.until_close {
            self.stream.set_reset_on_close(true).map_err(|_| Gone)?;
        }
        self.close = !self.head.keep_alive
            || self.seat.is_draining()
            || !self.course.request_read.get()
            || self.until_close;
        let date = Some(date::at(self.ring.now()));
        let (chunked, close) = (self.chunked, self.close);
        let client = ForClient { chunked, close, keep_alive: !modern && !close, websocket: false, date };
        heads::put_answer(&mut self.out.buffer, &answer, client);
        put_cookie(&mut self.out.buffer, self.cookie);
        self.flush().await
    }

    async fn data(&mut self, bytes: Bytes, ends: bool) -> Result<(), Gone> {
        if !self.bodiless && !bytes.is_empty() {
            self.put(bytes).await?;
        }
        if ends { self.end(None).await } else { Ok(()) }
    }

    async fn end(&mut self, fields: Option<HeaderMap>) -> Result<(), Gone> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(Gone);
        }
        if self.chunked {
            trailers::put_end(&mut self.out.buffer, fields.as_ref());
        }
        self.flush().await?;
        if self.until_close {
            self.stream.set_reset_on_close(false).map_err(|_| Gone)?;
        }
        Ok(())
    }

    async fn end_late(&mut self) -> Result<(), Gone> {
        Err(Gone)
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending // the body's side watches the connection
    }
}

impl Outgoing<'_> {
    async fn put(&mut self, bytes: Bytes) -> Result<(), Gone> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(bytes.len() as u64).ok_or(Gone)?;
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

    async fn flush(&mut self) -> Result<(), Gone> {
        if self.out.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.out.buffer.split().freeze();
        self.send(Chunk::from(bytes)).await
    }

    async fn send(&mut self, bytes: Chunk) -> Result<(), Gone> {
        self.out.bytes += bytes.len() as u64;
        self.course.silence.end();
        let sent = self.course.activity.send(self.ring, self.due, self.stream.send(bytes)).await;
        self.course.silence.begin(self.ring.now());
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

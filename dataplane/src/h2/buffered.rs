//! A whole HTTP/2 server for small messages: what [`crate::http::server::serve_buffered`] is for HTTP/1.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use ::h2::server::{Builder, Connection, SendResponse};
use ::h2::{Reason, RecvStream};
use ::http::{Method, Request, Response};
use bytes::{Bytes, BytesMut};
use ring::{Chunk, Ring, Tick};

use super::heads::from_client;
use super::io::{Facts, Io};
use super::limits;
use super::meter::Meter;
use crate::http::answer::Answer;
use crate::http::codec::RequestView;
use crate::http::limits::HttpLimits;
use crate::http::roster::Seat;
use crate::http::server::PREFACE;
use crate::http::wire::by;
use crate::tls::Wire;

/// What a client that holds too much at a time is told to wait, in seconds.
const RETRY_AFTER_S: &str = "1";

/// What the streams of one connection share.
struct Room {
    ring: Ring,
    limits: HttpLimits,
    body_bytes_max: usize,
    /// Kept until the last stream is done.
    seat: Seat,
    open: Cell<usize>,
    /// Bytes of bodies that have come and are not answered.
    held: Cell<usize>,
    idle_since: Cell<Tick>,
}

/// What happens to a connection next.
enum Event {
    Stream(Box<(Request<RecvStream>, SendResponse<Bytes>)>),
    Flood,
    Drain,
    /// Nothing for as long as was to be waited.
    Quiet,
    End,
}

/// A client's connection whose first bytes, in `held`, say that it speaks HTTP/2.
pub struct Opened {
    pub ring: Ring,
    pub limits: HttpLimits,
    pub stream: Wire,
    pub held: Chunk,
    pub seat: Seat,
}

/// Serves one connection: every request with its whole body to `handler`, many at a time, until the client goes.
/// Bodies beyond `body_bytes_max` get 413, those that stop coming 408.
pub async fn serve_buffered<H>(opened: Opened, body_bytes_max: usize, handler: Rc<H>)
where
    H: AsyncFn(RequestView<'_>, Bytes) -> Answer + 'static,
{
    let Opened { ring, limits, stream, held, seat } = opened;
    let meter = Meter::new(PREFACE.len(), ring.now());
    let io = Io::new(&ring, stream, held, Some(meter), limits.stall_max);
    let (facts, due) = (io.facts(), ring.now() + limits.head_max);
    let Ok(Ok(mut connection)) = by(&ring, Some(due), builder().handshake::<_, Bytes>(io)).await else {
        return;
    };
    let idle_since = Cell::new(ring.now());
    let (open, held) = (Cell::new(0), Cell::new(0));
    let room = Rc::new(Room { ring, limits, body_bytes_max, seat, open, held, idle_since });
    let mut leaving = false;
    loop {
        let event = next(&mut connection, &room.seat, &facts, leaving);
        match by(&room.ring, Some(room.next_look(leaving)), event).await.unwrap_or(Event::Quiet) {
            Event::Stream(both) => {
                let guest = Guest::enter(&room);
                let handler = Rc::clone(&handler);
                room.ring.spawn(async move { guest.exchange(*both, &*handler).await });
            }
            Event::Flood => {
                connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                let ended = poll_fn(|cx| connection.poll_closed(cx));
                let _ = by(&room.ring, Some(room.ring.now() + room.limits.linger_max), ended).await;
                return;
            }
            Event::Quiet if room.open.get() > 0 => {}
            Event::Quiet if leaving => return, // the client does not care
            Event::Quiet | Event::Drain => {
                leaving = true;
                room.idle_since.set(room.ring.now());
                connection.graceful_shutdown();
            }
            Event::End => return,
        }
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(limits::STREAMS_MAX)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(limits::HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(limits::RESET_BEFORE_ACCEPT_MAX)
        .max_local_error_reset_streams(Some(limits::RESET_BY_US_MAX))
        .max_send_buffer_size(limits::SEND_BYTES_MAX);
    builder
}

async fn next(connection: &mut Connection<Io, Bytes>, seat: &Seat, facts: &Facts, leaving: bool) -> Event {
    poll_fn(|cx| {
        let accepted = connection.poll_accept(cx);
        if facts.flood.get().is_some() {
            return Poll::Ready(Event::Flood);
        }
        match accepted {
            Poll::Ready(Some(Ok(both))) => return Poll::Ready(Event::Stream(Box::new(both))),
            Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(Event::End),
            Poll::Pending => {}
        }
        if leaving { Poll::Pending } else { seat.poll_closing(cx).map(|()| Event::Drain) }
    })
    .await
}

impl Room {
    /// When a connection without an event is worth a look.
    fn next_look(&self, leaving: bool) -> Tick {
        let wait = if leaving { self.limits.linger_max } else { self.limits.idle_max };
        if self.open.get() == 0 { self.idle_since.get() + wait } else { self.ring.now() + wait }
    }
}

/// One stream, however it ends.
struct Guest {
    room: Rc<Room>,
    /// Bytes of its body that have come.
    held: Cell<usize>,
}

impl Guest {
    fn enter(room: &Rc<Room>) -> Self {
        room.open.set(room.open.get() + 1);
        Self { room: Rc::clone(room), held: Cell::new(0) }
    }

    async fn exchange<H>(&self, both: (Request<RecvStream>, SendResponse<Bytes>), handler: &H)
    where
        H: AsyncFn(RequestView<'_>, Bytes) -> Answer,
    {
        let (request, respond) = both;
        let (parts, body) = request.into_parts();
        let answer = match from_client(&parts, body.is_end_stream()) {
            Err(why) => Answer::text(why.status(), why.sentence()),
            Ok(translated) if translated.head.expects_more => {
                Answer::text(417, "the only expectation known is 100-continue")
            }
            Ok(translated) => match self.whole(body).await {
                Ok(bytes) => handler(translated.head.view(&translated.bytes), bytes).await,
                Err(Some(refusal)) => refusal,
                Err(None) => return, // the client took it back
            },
        };
        put(respond, answer, parts.method == Method::HEAD);
    }

    /// The body; or what its sender is told, if there is somebody to be told.
    async fn whole(&self, mut body: RecvStream) -> Result<Bytes, Option<Answer>> {
        let Room { ring, limits, body_bytes_max, held, .. } = &*self.room;
        let mut bytes = BytesMut::new();
        loop {
            let piece = match by(ring, Some(ring.now() + limits.stall_max), body.data()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) => return Ok(bytes.freeze()),
                Ok(Some(Err(_))) => return Err(None),
                Err(_) => return Err(Some(Answer::text(408, "request timeout: the body stopped coming"))),
            };
            if bytes.len() + piece.len() > *body_bytes_max {
                let sentence = format!("the body is larger than {body_bytes_max} bytes");
                return Err(Some(Answer::text(413, sentence)));
            }
            if held.get() + piece.len() > limits::BUFFERED_BYTES_MAX {
                let sentence = "too much at a time on this connection: wait for answers";
                return Err(Some(Answer::text(503, sentence).with("Retry-After", RETRY_AFTER_S)));
            }
            held.set(held.get() + piece.len());
            self.held.set(self.held.get() + piece.len());
            let _ = body.flow_control().release_capacity(piece.len()); // an error: the connection is gone
            if bytes.is_empty() && body.is_end_stream() {
                return Ok(piece); // the usual event: one frame, no copy
            }
            bytes.extend_from_slice(&piece);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let room = &self.room;
        room.open.set(room.open.get() - 1);
        room.held.set(room.held.get() - self.held.get());
        room.idle_since.set(room.ring.now());
    }
}

/// A client that has gone hears nothing.
fn put(mut respond: SendResponse<Bytes>, answer: Answer, to_head: bool) {
    let mut response = Response::builder().status(answer.status).header("content-length", answer.body.len());
    for (name, value) in &answer.headers {
        response = response.header(&**name, &**value);
    }
    let Ok(response) = response.body(()) else { return }; // our own headers are well formed
    let ends = to_head || answer.body.is_empty();
    if let Ok(mut stream) = respond.send_response(response, ends)
        && !ends
    {
        let _ = stream.send_data(answer.body, true);
    }
}

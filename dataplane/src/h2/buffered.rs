//! A whole HTTP/2 server for small messages: what [`crate::http::server::serve_buffered`] is for HTTP/1.

use std::cell::Cell;
use std::rc::Rc;

use ::h2::RecvStream;
use ::h2::server::SendResponse;
use ::http::{Method, Request, Response};
use bytes::{Bytes, BytesMut};
use ring::{Ring, Tick};

use super::heads::from_client;
use super::io::Facts;
use super::limits;
use super::server::{self, Opened};
use crate::http::answer::Answer;
use crate::http::bodies::{Bodies, Held};
use crate::http::codec::{Malformed, RequestView};
use crate::http::date;
use crate::http::limits::HttpLimits;
use crate::http::wire::by;

/// What a client that holds too much at a time is told to wait, in seconds.
const RETRY_AFTER_S: &str = "1";

/// What the streams of one connection share.
struct Room {
    ring: Ring,
    limits: HttpLimits,
    bodies: Bodies,
    facts: Rc<Facts>,
    /// Finishes answers that are given in the handler's place.
    refusal: fn(Answer) -> Answer,
    /// Bytes of bodies that have come and are not answered.
    held: Cell<usize>,
}

/// Serves one connection: every request with its whole body to `handler`, many at a time, until the client goes.
/// Bodies for which there is no room get 413 or 503, those that stop coming 408. `refusal` finishes answers that are given in
/// the handler's place.
pub async fn serve_buffered<H>(opened: Opened, bodies: &Bodies, refusal: fn(Answer) -> Answer, handler: Rc<H>)
where
    H: AsyncFn(RequestView<'_>, Bytes) -> Answer + 'static,
{
    let (ring, limits) = (opened.ring.clone(), opened.limits);
    let (bodies, facts) = (bodies.clone(), Rc::clone(&opened.facts));
    let room = Rc::new(Room { ring, limits, bodies, facts, refusal, held: Cell::new(0) });
    server::serve(opened, false, |request, respond| {
        let (guest, handler) = (Guest { room: Rc::clone(&room), held: Cell::new(0) }, Rc::clone(&handler));
        async move { guest.exchange(request, respond, &*handler).await }
    })
    .await;
}

/// One stream, however it ends.
struct Guest {
    room: Rc<Room>,
    /// Bytes of its body that have come.
    held: Cell<usize>,
}

impl Guest {
    async fn exchange<H>(&self, request: Request<RecvStream>, respond: SendResponse<Bytes>, handler: &H)
    where
        H: AsyncFn(RequestView<'_>, Bytes) -> Answer,
    {
        let (parts, body) = request.into_parts();
        let refusal = self.room.refusal;
        let answer = match from_client(&parts, body.is_end_stream()) {
            Err(why) => refusal(Answer::text(why.status(), why.sentence())),
            Ok(translated) if translated.head.expects_more => {
                refusal(Answer::text(417, "the only expectation known is 100-continue"))
            }
            Ok(translated) => match self.whole(body).await {
                Ok((bytes, _room)) => handler(translated.head.view(&translated.bytes), bytes).await,
                Err(Some(answer)) => refusal(answer),
                Err(None) => return, // the client took it back
            },
        };
        put(respond, answer, parts.method == Method::HEAD, self.room.ring.now());
    }

    /// The body; or what its sender is told, if there is somebody to be told.
    async fn whole(&self, mut body: RecvStream) -> Result<(Bytes, Held), Option<Answer>> {
        let Room { ring, limits, bodies, facts, held, .. } = &*self.room;
        let mut room = bodies.enter();
        let mut bytes = BytesMut::new();
        loop {
            let piece = match by(ring, Some(ring.now() + limits.stall_max), body.data()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) if facts.has_malformed_trailers(body.stream_id().as_u32()) => {
                    let why = Malformed::Trailer;
                    return Err(Some(Answer::text(why.status(), why.sentence())));
                }
                Ok(None) => return Ok((bytes.freeze(), room)),
                Ok(Some(Err(_))) => return Err(None),
                Err(_) => return Err(Some(Answer::text(408, "request timeout: the body stopped coming"))),
            };
            room.grow(piece.len()).map_err(|why| Some(why.answer()))?;
            if held.get() + piece.len() > limits::BUFFERED_BYTES_MAX {
                let sentence = "too much at a time on this connection: wait for answers";
                return Err(Some(Answer::text(503, sentence).with("Retry-After", RETRY_AFTER_S)));
            }
            held.set(held.get() + piece.len());
            self.held.set(self.held.get() + piece.len());
            let _ = body.flow_control().release_capacity(piece.len()); // an error: the connection is gone
            if bytes.is_empty() && body.is_end_stream() {
                return Ok((piece, room)); // the usual event: one frame, no copy
            }
            bytes.extend_from_slice(&piece);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.room.held.set(self.room.held.get() - self.held.get());
    }
}

/// A client that has gone hears nothing.
fn put(mut respond: SendResponse<Bytes>, answer: Answer, to_head: bool, now: Tick) {
    let mut response = Response::builder().status(answer.status).header("content-length", answer.body.len());
    for (name, value) in &answer.headers {
        response = response.header(&**name, &**value);
    }
    let Ok(mut response) = response.body(()) else { return }; // our own headers are well formed
    date::add(response.headers_mut(), now);
    let ends = to_head || answer.body.is_empty();
    if let Ok(mut stream) = respond.send_response(response, ends)
        && !ends
    {
        let _ = stream.send_data(answer.body, true);
    }
}

//! A buffered HTTP/2 server for small messages: the counterpart of [`crate::http::server::serve_buffered`] for HTTP/1.

use std::cell::Cell;
use std::rc::Rc;

use ::h2::RecvStream;
use ::h2::server::SendResponse;
use ::http::{Method, Request, Response};
use bytes::{Bytes, BytesMut};
use codec::http::LocalResponse;
use codec::http::{MalformedHttp, RequestView};
use ring::{Ring, Tick};

use super::heads::from_client;
use super::io::IoState;
use super::limits;
use super::server::{self, DetectedHttp2};
use crate::http::body_budget::{BodyBudget, BodyReservation};
use crate::http::buffers::by;
use crate::http::date;
use crate::http::limits::HttpLimits;

/// Seconds in `Retry-After` for a client with too many buffered bytes.
const RETRY_AFTER_S: &str = "1";

/// The state that the streams of one connection share.
struct BufferedConnection {
    ring: Ring,
    limits: HttpLimits,
    bodies: BodyBudget,
    io_state: Rc<IoState>,
    /// Finishes responses that are sent in place of the handler's.
    refuse: fn(LocalResponse) -> LocalResponse,
    /// Body bytes that were received and are not answered.
    held_bytes: Cell<usize>,
}

/// Serves one connection until its client goes: passes every request with its whole body to `handler`, many
/// concurrently. Bodies beyond the limits get 413 or 503, and bodies that stall get 408. `refusal` finishes responses
/// that are sent in place of the handler's. `reject` may answer a request with a body by its head.
pub async fn serve_buffered<R, H>(
    opened: DetectedHttp2,
    bodies: &BodyBudget,
    refusal: fn(LocalResponse) -> LocalResponse,
    reject: Rc<R>,
    handler: Rc<H>,
) where
    R: Fn(RequestView<'_>) -> Option<LocalResponse> + 'static,
    H: AsyncFn(RequestView<'_>, Bytes) -> LocalResponse + 'static,
{
    let (ring, limits) = (opened.ring.clone(), opened.limits);
    let (bodies, io_state) = (bodies.clone(), Rc::clone(&opened.io_state));
    let connection =
        Rc::new(BufferedConnection { ring, limits, bodies, io_state, refuse: refusal, held_bytes: Cell::new(0) });
    server::serve(opened, false, |request, respond| {
        let (stream, handler) =
            (BufferedStream { connection: Rc::clone(&connection), held_bytes: Cell::new(0) }, Rc::clone(&handler));
        let reject = Rc::clone(&reject);
        async move { stream.exchange(request, respond, &*reject, &*handler).await }
    })
    .await;
}

/// One stream.
struct BufferedStream {
    connection: Rc<BufferedConnection>,
    /// Body bytes that were received.
    held_bytes: Cell<usize>,
}

impl BufferedStream {
    async fn exchange<R, H>(&self, request: Request<RecvStream>, respond: SendResponse<Bytes>, reject: &R, handler: &H)
    where
        R: Fn(RequestView<'_>) -> Option<LocalResponse>,
        H: AsyncFn(RequestView<'_>, Bytes) -> LocalResponse,
    {
        let (parts, body) = request.into_parts();
        let refusal = self.connection.refuse;
        let answer = match from_client(&parts, body.is_end_stream()) {
            Err(why) => refusal(LocalResponse::text(why.status(), why.sentence())),
            Ok(translated) if translated.head.expects_more => {
                refusal(LocalResponse::text(417, "the only supported expectation is 100-continue"))
            }
            Ok(translated) => {
                let view = translated.head.view(&translated.bytes);
                let rejected = if body.is_end_stream() { None } else { reject(view) };
                match rejected {
                    Some(answer) => refusal(answer),
                    None => match self.whole(body).await {
                        Ok((bytes, _reservation)) => handler(view, bytes).await,
                        Err(Some(answer)) => refusal(answer),
                        Err(None) => return, // the client cancelled it
                    },
                }
            }
        };
        put(respond, answer, parts.method == Method::HEAD, self.connection.ring.now());
    }

    /// Reads the body, or returns the response for its sender. `None` if the client is gone.
    async fn whole(&self, mut body: RecvStream) -> Result<(Bytes, BodyReservation), Option<LocalResponse>> {
        let BufferedConnection { ring, limits, bodies, io_state, held_bytes: connection_bytes, .. } = &*self.connection;
        let mut reservation = bodies.enter();
        let mut bytes = BytesMut::new();
        loop {
            let piece = match by(ring, Some(ring.now() + limits.stall_max), body.data()).await {
                Ok(Some(Ok(piece))) => piece,
                Ok(None) if io_state.has_malformed_trailers(body.stream_id().as_u32()) => {
                    let why = MalformedHttp::Trailer;
                    return Err(Some(LocalResponse::text(why.status(), why.sentence())));
                }
                Ok(None) => return Ok((bytes.freeze(), reservation)),
                Ok(Some(Err(_))) => return Err(None),
                Err(_) => {
                    return Err(Some(LocalResponse::text(408, "request timeout: the request body stopped")));
                }
            };
            reservation.grow(piece.len()).map_err(|why| Some(why.answer()))?;
            if connection_bytes.get() + piece.len() > limits::BUFFERED_BYTES_MAX {
                let sentence = "too many request bytes in flight on this connection: wait for responses";
                return Err(Some(LocalResponse::text(503, sentence).with("Retry-After", RETRY_AFTER_S)));
            }
            connection_bytes.set(connection_bytes.get() + piece.len());
            self.held_bytes.set(self.held_bytes.get() + piece.len());
            let _ = body.flow_control().release_capacity(piece.len()); // an error: the connection is gone
            if bytes.is_empty() && body.is_end_stream() {
                return Ok((piece, reservation)); // the usual event is one frame: no copy
            }
            bytes.extend_from_slice(&piece);
        }
    }
}

impl Drop for BufferedStream {
    fn drop(&mut self) {
        self.connection.held_bytes.set(self.connection.held_bytes.get() - self.held_bytes.get());
    }
}

/// Errors are ignored: the client is gone.
fn put(mut respond: SendResponse<Bytes>, answer: LocalResponse, to_head: bool, now: Tick) {
    let mut response = Response::builder().status(answer.status).header("content-length", answer.body.len());
    for (name, value) in &answer.headers {
        response = response.header(&**name, &**value);
    }
    let Ok(mut response) = response.body(()) else { return }; // our own headers are well-formed
    date::add(response.headers_mut(), now);
    let ends = to_head || answer.body.is_empty();
    if let Ok(mut stream) = respond.send_response(response, ends)
        && !ends
    {
        let _ = stream.send_data(answer.body, true);
    }
}

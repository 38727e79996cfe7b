//! A buffered HTTP/2 server for small messages: the counterpart of [`crate::http::server::serve_buffered`] for HTTP/1.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

use ::http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use bytes::{Bytes, BytesMut};
use codec::http::LocalResponse;
use codec::http::{BodyFraming, MalformedHttp, RequestView};
use http2::StreamGone;
use ring::Ring;

use super::heads::{TranslatedRequest, from_client};
use super::limits;
use super::server::{self, DetectedHttp2, OpenStreamGuard, OpenedStream};
use super::shared_streams::MessagePart;
use super::stream::Http2Stream;
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
    let tasks = ring.clone();
    let bodies = bodies.clone();
    let connection = Rc::new(BufferedConnection { ring, limits, bodies, refuse: refusal, held_bytes: Cell::new(0) });
    server::serve(opened, false, |OpenedStream { head, ends, stream, open }| {
        let buffered = BufferedStream { connection: Rc::clone(&connection), stream, held_bytes: Cell::new(0), open };
        let (request, is_head) = (from_client(head, ends), head.method() == b"HEAD");
        let (reject, handler) = (Rc::clone(&reject), Rc::clone(&handler));
        tasks.spawn_recycled(async move { buffered.exchange(request, is_head, &*reject, &*handler).await });
    })
    .await;
}

/// One stream.
struct BufferedStream {
    connection: Rc<BufferedConnection>,
    stream: Http2Stream,
    /// Body bytes that were received.
    held_bytes: Cell<usize>,
    #[expect(dead_code, reason = "held until the end of the request")]
    open: OpenStreamGuard,
}

impl BufferedStream {
    async fn exchange<R, H>(
        &self,
        request: Result<TranslatedRequest, MalformedHttp>,
        is_head: bool,
        reject: &R,
        handler: &H,
    ) where
        R: Fn(RequestView<'_>) -> Option<LocalResponse>,
        H: AsyncFn(RequestView<'_>, Bytes) -> LocalResponse,
    {
        let refusal = self.connection.refuse;
        let answer = match request {
            Err(why) => refusal(LocalResponse::text(why.status(), why.sentence())),
            Ok(translated) if translated.head.expects_more => {
                refusal(LocalResponse::text(417, "the only supported expectation is 100-continue"))
            }
            Ok(translated) => {
                let view = translated.head.view(&translated.bytes);
                let has_body = translated.head.framing != BodyFraming::Empty;
                let rejected = if has_body { reject(view) } else { None };
                match rejected {
                    Some(answer) => refusal(answer),
                    None => match self.whole().await {
                        Ok((bytes, _reservation)) => handler(view, bytes).await,
                        Err(Some(answer)) => refusal(answer),
                        Err(None) => return, // the client cancelled it
                    },
                }
            }
        };
        self.put(answer, is_head).await;
    }

    /// Reads the body, or returns the response for its sender. `None` if the client is gone.
    async fn whole(&self) -> Result<(Bytes, BodyReservation), Option<LocalResponse>> {
        let BufferedConnection { ring, limits, bodies, held_bytes: connection_bytes, .. } = &*self.connection;
        let mut reservation = bodies.enter();
        let mut bytes = BytesMut::new();
        loop {
            let part = poll_fn(|cx| self.stream.poll_body(cx));
            let piece = match by(ring, Some(ring.now() + limits.stall_max), part).await {
                Ok(Ok(MessagePart::Data(piece))) => piece,
                Ok(Ok(MessagePart::MalformedTrailers)) => {
                    let why = MalformedHttp::Trailer;
                    return Err(Some(LocalResponse::text(why.status(), why.sentence())));
                }
                Ok(Ok(MessagePart::End(_))) => return Ok((bytes.freeze(), reservation)),
                Ok(Err(StreamGone)) => return Err(None),
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
            self.stream.release(piece.len());
            if bytes.is_empty() && self.stream.is_body_complete() {
                return Ok((piece, reservation)); // the usual event is one frame: no copy
            }
            bytes.extend_from_slice(&piece);
        }
    }

    /// Sends a response. A client that accepts no bytes for too long loses it.
    async fn put(&self, answer: LocalResponse, is_head: bool) {
        let BufferedConnection { ring, limits, .. } = &*self.connection;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, answer.body.len().into());
        for (name, value) in &answer.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
                headers.append(name, value);
            }
        }
        date::add(&mut headers, ring.now());
        let wait = limits.stream_idle_timeout;
        let due = (!wait.is_zero()).then(|| ring.now() + wait);
        let sent = async {
            poll_fn(|cx| self.stream.poll_capacity(cx)).await?;
            let (mut body, ends) = (answer.body, is_head);
            let ends = ends || body.is_empty();
            self.stream.send_head(answer.status, &headers, ends)?;
            if ends { Ok(()) } else { poll_fn(|cx| self.stream.poll_send(cx, &mut body, true)).await }
        };
        // An error: the client is gone, or reads nothing. Its stream is reset.
        let _: Result<Result<(), StreamGone>, _> = by(ring, due, sent).await;
    }
}

impl Drop for BufferedStream {
    fn drop(&mut self) {
        self.connection.held_bytes.set(self.connection.held_bytes.get() - self.held_bytes.get());
    }
}

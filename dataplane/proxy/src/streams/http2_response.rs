//! The response to a client that speaks HTTP/2, on its stream.

use std::future::poll_fn;
use std::task::{Context, Poll};

use ::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use codec::http::LocalResponse;
use contract::table::AffinityCookie;
use protocol::h2::stream::Http2Stream;
use protocol::h2::{MessagePart, StreamGone, grpc};
use protocol::http::buffers::by;
use protocol::http::date;
use ring::Tick;

use super::{ClientGone, ResponseWriter, StreamProgress};
use crate::Proxy;

/// The response direction.
pub(super) struct Http2ResponseWriter<'a> {
    stream: &'a Http2Stream,
    proxy: &'a Proxy,
    pub(super) progress: &'a StreamProgress,
    /// When sending to the client times out.
    pub(super) deadlines: Option<Tick>,
    /// The affinity cookie for the client.
    pub(super) cookie: Option<AffinityCookie>,
    /// The response is gRPC, whose status says more than a reset.
    is_grpc: bool,
    /// Of bodies.
    pub(super) bytes: u64,
}

impl From<StreamGone> for ClientGone {
    fn from(_: StreamGone) -> Self {
        Self
    }
}

impl ResponseWriter for Http2ResponseWriter<'_> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone> {
        self.send_head(&answer, false).await
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), ClientGone> {
        if let Some(cookie) = self.cookie.take().and_then(|cookie| HeaderValue::from_bytes(&cookie.value()).ok()) {
            answer.headers_mut().append(::http::header::SET_COOKIE, cookie);
        }
        date::add(answer.headers_mut(), self.proxy.ring.now());
        let headers = answer.headers();
        self.is_grpc = grpc::is_named(headers) && !headers.contains_key(::http::header::CONTENT_LENGTH);
        self.send_head(&answer, ends).await
    }

    fn data_now(&mut self, bytes: &[u8], ends: bool) -> Result<usize, ClientGone> {
        let sent = self.stream.send_now(bytes, ends)?;
        if sent > 0 {
            self.progress.activity.received(self.proxy.ring.now());
            self.bytes += sent as u64;
        }
        Ok(sent)
    }

    async fn data(&mut self, mut bytes: Bytes, ends: bool) -> Result<(), ClientGone> {
        while !bytes.is_empty() || ends {
            let before = bytes.len();
            // Each part that the client accepts counts as activity.
            let sent = poll_fn(|cx| match self.stream.poll_send(cx, &mut bytes, ends) {
                Poll::Pending if bytes.len() < before => Poll::Ready(Ok(false)),
                polled => polled.map_ok(|()| true),
            });
            let sent = self.progress.activity.send(&self.proxy.ring, self.deadlines, sent).await;
            let is_whole = sent.map_err(|_| ClientGone)??;
            self.bytes += (before - bytes.len()) as u64;
            if is_whole {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        match trailers {
            Some(fields) => Ok(self.stream.send_trailers(&fields)?),
            None => self.data(Bytes::new(), true).await,
        }
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        match self.is_grpc {
            true => self.end(Some(grpc::status(504, "request timeout"))).await,
            false => Err(ClientGone),
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_gone(cx)
    }
}

impl<'a> Http2ResponseWriter<'a> {
    pub(super) fn new(stream: &'a Http2Stream, proxy: &'a Proxy, progress: &'a StreamProgress) -> Self {
        Self { stream, proxy, progress, deadlines: None, cookie: None, is_grpc: false, bytes: 0 }
    }

    /// Sends a head as soon as the connection has sent enough of what was written before.
    async fn send_head(&mut self, answer: &Response<()>, ends: bool) -> Result<(), ClientGone> {
        let capacity = poll_fn(|cx| self.stream.poll_capacity(cx));
        self.progress.activity.send(&self.proxy.ring, self.deadlines, capacity).await.map_err(|_| ClientGone)??;
        Ok(self.stream.send_head(answer.status().as_u16(), answer.headers(), ends)?)
    }

    /// Sends a complete local reply.
    pub(super) async fn refuse(&mut self, answer: &LocalResponse, is_head: bool) -> Result<(), ClientGone> {
        let mut head = Response::new(());
        *head.status_mut() = StatusCode::from_u16(answer.status).map_err(|_| ClientGone)?;
        for (name, value) in &answer.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) {
                head.headers_mut().append(name, value);
            }
        }
        head.headers_mut().insert(::http::header::CONTENT_LENGTH, answer.body.len().into());
        let ends = is_head || answer.body.is_empty();
        self.head(head, ends).await?;
        if !ends {
            self.data(answer.body.clone(), true).await?;
        }
        Ok(())
    }
}

/// Reads the rest of a request that was answered, within the limits of a lingering connection: many clients take a
/// reset for a failure while they send, although the answer precedes it. The reset follows when the stream is dropped.
pub(super) async fn drain_body(proxy: &Proxy, stream: &Http2Stream) {
    let rest = async {
        let mut left = proxy.limits.linger_bytes_max;
        while let Ok(MessagePart::Data(bytes)) = poll_fn(|cx| stream.poll_body(cx)).await {
            stream.release(bytes.len());
            match left.checked_sub(bytes.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = by(&proxy.ring, Some(proxy.ring.now() + proxy.limits.linger_max), rest).await; // a timeout ends it as well
}

//! The response to a client that speaks HTTP/2, on its stream.

use std::task::{Context, Poll};

use ::h2::server::SendResponse;
use ::h2::{Reason, RecvStream, SendStream};
use ::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use codec::http::LocalResponse;
use contract::table::AffinityCookie;
use protocol::h2::grpc;
use protocol::http::buffers::by;
use protocol::http::date;
use ring::Tick;

use super::over_http2::capacity;
use super::{ClientGone, ResponseWriter, StreamProgress};
use crate::Proxy;

/// The response direction.
pub(super) struct Http2ResponseWriter<'a> {
    respond: SendResponse<Bytes>,
    /// Set once the response head was sent.
    pub(super) stream: Option<SendStream<Bytes>>,
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

impl ResponseWriter for Http2ResponseWriter<'_> {
    async fn interim(&mut self, answer: Response<()>) -> Result<(), ClientGone> {
        self.respond.send_informational(answer).map_err(|_| ClientGone)
    }

    async fn head(&mut self, mut answer: Response<()>, ends: bool) -> Result<(), ClientGone> {
        if let Some(cookie) = self.cookie.take().and_then(|cookie| HeaderValue::from_bytes(&cookie.value()).ok()) {
            answer.headers_mut().append(::http::header::SET_COOKIE, cookie);
        }
        date::add(answer.headers_mut(), self.proxy.ring.now());
        let headers = answer.headers();
        self.is_grpc = grpc::is_named(headers) && !headers.contains_key(::http::header::CONTENT_LENGTH);
        self.stream = Some(self.respond.send_response(answer, ends).map_err(|_| ClientGone)?);
        Ok(())
    }

    async fn data(&mut self, mut bytes: Bytes, ends: bool) -> Result<(), ClientGone> {
        let stream = self.stream.as_mut().ok_or(ClientGone)?;
        if bytes.is_empty() && ends {
            return stream.send_data(bytes, true).map_err(|_| ClientGone);
        }
        while !bytes.is_empty() {
            let available = capacity(stream, bytes.len());
            let available = self.progress.activity.send(&self.proxy.ring, self.deadlines, available).await;
            let available = available.map_err(|_| ClientGone)?.ok_or(ClientGone)?;
            let piece = bytes.split_to(available.min(bytes.len()));
            self.bytes += piece.len() as u64;
            stream.send_data(piece, ends && bytes.is_empty()).map_err(|_| ClientGone)?;
        }
        Ok(())
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        let stream = self.stream.as_mut().ok_or(ClientGone)?;
        match trailers {
            Some(fields) => stream.send_trailers(fields),
            None => stream.send_data(Bytes::new(), true),
        }
        .map_err(|_| ClientGone)
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        match self.is_grpc {
            true => self.end(Some(grpc::status(504, "request timeout"))).await,
            false => Err(ClientGone),
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.stream {
            Some(stream) => stream.poll_reset(cx).map(|_| ()),
            None => self.respond.poll_reset(cx).map(|_| ()),
        }
    }
}

impl<'a> Http2ResponseWriter<'a> {
    pub(super) fn new(respond: SendResponse<Bytes>, proxy: &'a Proxy, progress: &'a StreamProgress) -> Self {
        Self { respond, stream: None, proxy, progress, deadlines: None, cookie: None, is_grpc: false, bytes: 0 }
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        match &mut self.stream {
            Some(stream) => stream.send_reset(reason),
            None => self.respond.send_reset(reason),
        }
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

/// Reads the rest of a request, within the limits of a lingering connection: a reset drops what h2 has not sent yet, so
/// an immediate reset would lose the response.
pub(super) async fn drain_body(proxy: &Proxy, stream: &mut RecvStream) {
    proxy.ring.yield_now().await; // lets the connection's task write
    let rest = async {
        let mut left = proxy.limits.linger_bytes_max;
        while let Some(Ok(bytes)) = stream.data().await {
            let _ = stream.flow_control().release_capacity(bytes.len()); // fails when the stream is gone
            match left.checked_sub(bytes.len()) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = by(&proxy.ring, Some(proxy.ring.now() + proxy.limits.linger_max), rest).await; // a timeout ends it as well
}

//! A request of the proxy itself whose response is collected: to an authorization service.

use std::rc::Rc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Bytes, BytesMut};
use codec::http::{Parsed, RequestHead, parse_request};
use contract::table::FilterDestination;

use super::replay::{RecordedRequest, replay};
use super::{AttemptOutcome, ClientGone, ResponseWriter};
use crate::{LocalReply, Proxy};

/// A response with a body of limited size.
pub(crate) struct CollectedResponse {
    pub(crate) head: Response<()>,
    /// `None`: it is larger than the limit.
    pub(crate) body: Option<Bytes>,
}

/// Sends a request without a body, `written` by the proxy, and collects its response. `None`: the response broke off.
///
/// # Errors
///
/// There is no response, for this reason.
pub(crate) async fn ask(
    proxy: &Rc<Proxy>,
    destination: &FilterDestination,
    written: &Bytes,
    body_bytes_max: usize,
) -> Result<Option<CollectedResponse>, LocalReply> {
    let mut head = RequestHead::rewritten();
    match parse_request(written, &mut head) {
        Parsed::Head { .. } => {}
        Parsed::Malformed(why) => return Err(LocalReply::Malformed(why)),
        Parsed::NeedBytes => return Ok(None), // cannot happen: the proxy wrote a whole head
    }
    let request = RecordedRequest { head: &head, written, body: Bytes::new() };
    let mut collector = ResponseCollector { head: None, body: Some(BytesMut::new()), body_bytes_max };
    let ended = replay(proxy, destination, request, &mut collector, &mut None).await;
    let is_too_large = collector.body.is_none();
    match ended {
        AttemptOutcome::Refused(local_reply) => Err(local_reply),
        AttemptOutcome::Done { .. } => Ok(collector.response()),
        _ if is_too_large => Ok(collector.response()),
        _ => Ok(None),
    }
}

struct ResponseCollector {
    head: Option<Response<()>>,
    body: Option<BytesMut>,
    body_bytes_max: usize,
}

impl ResponseCollector {
    fn response(self) -> Option<CollectedResponse> {
        Some(CollectedResponse { head: self.head?, body: self.body.map(BytesMut::freeze) })
    }
}

impl ResponseWriter for ResponseCollector {
    async fn interim(&mut self, _answer: Response<()>) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn head(&mut self, answer: Response<()>, _ends: bool) -> Result<(), ClientGone> {
        self.head = Some(answer);
        Ok(())
    }

    /// Ends the exchange at the limit.
    async fn data(&mut self, bytes: Bytes, _ends: bool) -> Result<(), ClientGone> {
        let most = self.body_bytes_max;
        self.body.take_if(|body| body.len() + bytes.len() > most);
        let Some(body) = &mut self.body else { return Err(ClientGone) };
        body.extend_from_slice(&bytes);
        Ok(())
    }

    async fn end(&mut self, _trailers: Option<HeaderMap>) -> Result<(), ClientGone> {
        Ok(())
    }

    async fn end_late(&mut self) -> Result<(), ClientGone> {
        Err(ClientGone)
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

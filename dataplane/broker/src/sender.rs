//! Sends requests to subscribers over HTTP/1.1: to our own instances through the proxy's pending queue, to
//! all others by address, with TLS if their URL requires it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use codec::encode::EncodedEvent;
use codec::http::LocalResponse;
use codec::http::Method;
use codec::stored_request::StoredMethod;
use contract::access_token::{AccessToken, PresentedToken};
use contract::client_address::ClientAddress;
use contract::post_error::PostError;
use contract::request_histograms::OutcomeKey;
use contract::service_names::{ResolvedAddress, ServiceName};
use contract::table::{DeliveryTarget, HeaderEdits, NO_PORT, Protocol, RouteRequest, RoutingTable};
use contract::target_policy::TargetRefused;
use protocol::http::buffers::by;
use protocol::http::client::{self, ExchangeError, UpstreamAddress};
use protocol::http::pool::PoolKey;
use proxy::{
    AcquireError, AcquireRequest, ConnectPlan, ConnectRequest, LocalReply, Permit, Proxy, SelectedEndpoint,
    UpstreamLink, connect,
};
use ring::Tick;

use super::delivery::{EventSender, claims_reply};
use super::dns::DnsResolver;
use super::limits::{
    ANSWER_BYTES_MAX, JOINED_BODY_BYTES_MAX, REFUSED_TOKEN_AGE_MIN, TOKEN_CHECK_INTERVAL, TOKEN_RENEWAL_MAX,
};

/// The receiver does not accept the token.
const UNAUTHORIZED: u16 = 401;

/// Sends over the core's own client.
#[derive(Clone)]
pub struct HttpSender {
    pub proxy: Rc<Proxy>,
    pub resolver: Rc<DnsResolver>,
}

impl EventSender for HttpSender {
    async fn send(
        &self,
        target: &DeliveryTarget,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        if target.port == NO_PORT {
            let what = "begins neither with http:// nor with https://, or its port is not in 1 to 65535";
            return Err(PostError::Transport(format!("{} {what}", target.url).into()));
        }
        let Some(token) = self.token(target, timeout).await? else {
            return self.send(target, request, DELIVERY, None, timeout).await;
        };
        let is_renewed = target.access_token.as_ref().filter(|pass| !pass.is_login());
        let Some(pass) = is_renewed else {
            return self.send(target, request, DELIVERY, Some(&token.value), timeout).await;
        };
        // The token may expire in flight: the request is kept for a second attempt with a new token, which
        // is made once.
        let outcome = self.send(target, request.clone(), DELIVERY, Some(&token.value), timeout).await;
        if !matches!(&outcome, Ok(answer) if answer.status == UNAUTHORIZED) {
            return outcome;
        }
        match self.newer_token(pass, &token).await {
            Some(newer) => Box::pin(self.send(target, request, DELIVERY, Some(&newer.value), timeout)).await,
            None => outcome,
        }
    }

    async fn send_stored(
        &self,
        target: &DeliveryTarget,
        method: StoredMethod,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        let form = RequestForm { method: method.as_str(), keeps_fields: true };
        self.send(target, request, form, None, timeout).await
    }

    fn capacity(&self, target: &DeliveryTarget) -> usize {
        let ask = RouteRequest::internal(&target.host, &target.path);
        self.proxy.with_table(|table| table.hosts.find(&target.host).map_or(0, |route| route.capacity(&ask)))
    }
}

const POST: &str = "POST";
const GET: &str = "GET";

/// The form of a request: that of a delivery, or of a client's request that is passed on.
#[derive(Debug, Clone, Copy)]
struct RequestForm {
    method: &'static str,
    /// See [`client::BufferedRequest::keeps_fields`].
    keeps_fields: bool,
}

const DELIVERY: RequestForm = RequestForm { method: POST, keeps_fields: false };

impl HttpSender {
    /// Passes a client's request on, and returns the response with all its fields.
    pub(super) async fn forward(
        &self,
        target: &DeliveryTarget,
        method: Method,
        request: EncodedEvent,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        self.send(
            target,
            request,
            RequestForm { method: if method == Method::Get { GET } else { POST }, keeps_fields: true },
            None,
            timeout,
        )
        .await
    }

    async fn send(
        &self,
        target: &DeliveryTarget,
        request: EncodedEvent,
        form: RequestForm,
        shown: Option<&str>,
        timeout: Duration,
    ) -> Result<LocalResponse, PostError> {
        let sent = message(self.proxy.buffers.take(self.proxy.ring.now()), target, &request, form, (shown, None));
        // A core Service has a host here and endpoints by port, and a delivery names the port.
        let is_routed = |table: &RoutingTable| {
            table.hosts.find(&target.host).is_some()
                && !matches!(table.names.get(&target.host), Some(ServiceName::Endpoints(_)))
        };
        let outcome = if self.proxy.with_table(is_routed) {
            self.to_instance(target, (&request, form, shown), &sent, timeout).await?
        } else {
            drop(request); // it is copied into the message, and its memory is reused for the next one
            let due = Some(self.proxy.ring.now() + timeout);
            let address = by(&self.proxy.ring, due, self.address(target)).await;
            let address = address.map_err(|_| PostError::Timeout(timeout))?;
            let address = address.map_err(|why| PostError::Unresolved { host: target.host.clone(), why })?;
            // At each delivery: a pooled connection was opened for another path.
            let checked = self.proxy.targets.check_delivery(address, &target.path);
            checked.map_err(|refused| PostError::Refused(self.proxy.targets.count(refused).to_string().into()))?;
            let to =
                UpstreamAddress { unrestricted: true, ..UpstreamAddress::external(address, target.tls.as_deref()) };
            self.proxy.client.exchange(to, &sent, ANSWER_BYTES_MAX, due).await
        };
        if let Ok(buffer) = sent.head.try_into_mut() {
            self.proxy.buffers.give(buffer, self.proxy.ring.now()); // larger than what the allocator caches
        }
        match outcome {
            Ok(answer) => Ok(answer),
            // Its status determines what happens to the event, even if the body is cut; only a reply needs
            // the body.
            Err(ExchangeError::TooLarge { answer, .. }) if !claims_reply(&answer) => Ok(*answer),
            Err(ExchangeError::TimedOut) => Err(PostError::Timeout(timeout)),
            Err(ExchangeError::Refused(refused)) => Err(PostError::Refused(refused.to_string().into())),
            Err(ExchangeError::Untrusted { why, .. }) => {
                Err(PostError::Untrusted { host: target.host.clone(), why: why.to_string().into() })
            }
            Err(why @ ExchangeError::Unreachable { .. }) => Err(PostError::Unreachable(why.to_string().into())),
            Err(other) => Err(PostError::Transport(other.to_string().into())),
        }
    }

    /// The token for a target with authentication. Control renews it long before it expires, so a delivery
    /// waits for it only at a start.
    async fn token(
        &self,
        target: &DeliveryTarget,
        timeout: Duration,
    ) -> Result<Option<Arc<PresentedToken>>, PostError> {
        let Some(pass) = &target.access_token else { return Ok(None) };
        let due = self.proxy.ring.now() + timeout;
        loop {
            if let Some(shown) = pass.token() {
                return Ok(Some(shown));
            }
            if self.proxy.ring.now() >= due {
                return Err(PostError::Transport("no token was issued for this target yet".into()));
            }
            self.proxy.ring.sleep(TOKEN_CHECK_INTERVAL).await;
        }
    }

    /// A token that a receiver has not rejected yet. Requests a new one unless the rejected one is new
    /// itself: then another would be rejected as well.
    async fn newer_token(&self, pass: &AccessToken, refused: &Arc<PresentedToken>) -> Option<Arc<PresentedToken>> {
        let newer = || pass.token().filter(|shown| !Arc::ptr_eq(shown, refused));
        if newer().is_none() {
            if refused.since.elapsed() < REFUSED_TOKEN_AGE_MIN {
                return None;
            }
            pass.refuse();
        }
        let due = self.proxy.ring.now() + TOKEN_RENEWAL_MAX;
        loop {
            let newer = newer();
            if newer.is_some() || self.proxy.ring.now() >= due {
                return newer;
            }
            self.proxy.ring.sleep(TOKEN_CHECK_INTERVAL).await;
        }
    }

    /// The address of an external host: from the table, or else from DNS.
    async fn address(&self, target: &DeliveryTarget) -> Result<SocketAddr, Box<str>> {
        let named = self
            .proxy
            .with_table(|table| table.names.find(&target.host, target.port, |count| fastrand::usize(..count)));
        match named {
            Some(ResolvedAddress::At(address)) => Ok(address),
            Some(ResolvedAddress::Alias(host)) => self.resolver.resolve(&host, target.port).await,
            Some(ResolvedAddress::Unresolved) => {
                Err(format!("the Service has no ready endpoint for port {}", target.port).into())
            }
            None => self.resolver.resolve(&target.host, target.port).await,
        }
    }

    /// Sends to a host of ours: to an instance with capacity, which is started if there is none. One that
    /// refuses the connection is reported, and another is tried.
    async fn to_instance(
        &self,
        target: &DeliveryTarget,
        (request, form, token): (&EncodedEvent, RequestForm, Option<&str>),
        sent: &client::BufferedRequest,
        timeout: Duration,
    ) -> Result<Result<LocalResponse, ExchangeError>, PostError> {
        let ask = RouteRequest::internal(&target.host, &target.path);
        let choice = self.proxy.route(&ask).map_err(refused)?;
        let bytes = sent.head.len() + sent.body.len();
        let acquire_request = AcquireRequest { route_request: ask, bytes, tried: Vec::new() };
        let began = self.proxy.ring.now();
        let mut connecting = DeliveryConnect { sender: self, target, acquire_request, timeout, due: None, began };
        let (permit, link) = connect(&self.proxy, choice, &mut connecting).await?;
        let UpstreamLink::Http1(upstream) = link else {
            return Err(PostError::Transport("the connection to the instance is not HTTP/1.1".into()));
        };
        let edited = permit.edits().map(|edits| message(BytesMut::new(), target, request, form, (token, Some(edits))));
        let (key, sent) = (PoolKey::Endpoint(permit.endpoint.id), edited.as_ref().unwrap_or(sent));
        let outcome = self.proxy.client.exchange_over(upstream, key, sent, ANSWER_BYTES_MAX, connecting.due).await;
        connecting.note(&permit, outcome.as_ref().map_or(0, |answer| answer.status));
        Ok(outcome)
    }
}

/// A delivery that is to be connected to an instance, always over HTTP/1.1.
struct DeliveryConnect<'a> {
    sender: &'a HttpSender,
    target: &'a DeliveryTarget,
    acquire_request: AcquireRequest<'a>,
    timeout: Duration,
    /// Counts from the first permit. `None` until then.
    due: Option<Tick>,
    /// When the last permit was acquired.
    began: Tick,
}

impl DeliveryConnect<'_> {
    /// The wait for a permit among running instances does not count as the subscriber's time: it lasts as
    /// long as the route allows a request. For the first instance to start it lasts as long as the
    /// subscriber's timeout.
    async fn first_permit(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<PostError>> {
        let proxy = &self.sender.proxy;
        if let Some(permit) = proxy.try_acquire(&choice, &[]) {
            return Ok(permit);
        }
        let mut waiting = Box::pin(proxy.acquire(choice, &mut self.acquire_request)); // rare, and large
        loop {
            match proxy.ring.timeout(self.timeout, waiting.as_mut()).await {
                Ok(permit) => return permit.map_err(AcquireError::Rejected),
                Err(_) if self.sender.capacity(self.target) > 0 => {} // busy, and not absent
                Err(_) => return Err(AcquireError::Ended(PostError::Timeout(self.timeout))),
            }
        }
    }

    /// Counts the attempt for the instance's backend. No response counts as status 0.
    fn note(&self, permit: &Permit, status: u16) {
        let tag = permit.selected.tag(&self.acquire_request.route_request);
        let key = OutcomeKey { tag, ..OutcomeKey::of(status) };
        permit.backend().load.answers.note(&key, self.sender.proxy.ring.now() - self.began);
    }
}

impl ConnectRequest for DeliveryConnect<'_> {
    type Error = PostError;

    async fn acquire(&mut self, choice: SelectedEndpoint) -> Result<Permit, AcquireError<PostError>> {
        let Some(due) = self.due else {
            let permit = self.first_permit(choice).await?;
            self.due = Some(self.sender.proxy.ring.now() + self.timeout);
            return Ok(permit);
        };
        let proxy = &self.sender.proxy;
        let another = by(&proxy.ring, Some(due), Box::pin(proxy.acquire(choice, &mut self.acquire_request))).await;
        let another = another.map_err(|_| AcquireError::Ended(PostError::Timeout(self.timeout)))?;
        another.map_err(AcquireError::Rejected)
    }

    fn plan(&mut self, _: &Permit) -> ConnectPlan {
        self.began = self.sender.proxy.ring.now();
        ConnectPlan { protocol: Protocol::Http1, reuses: true, due: self.due }
    }

    fn peer(&self) -> Option<&ClientAddress> {
        None
    }

    fn tried(&mut self) -> &mut Vec<u64> {
        &mut self.acquire_request.tried
    }

    fn rejected(&self, local_reply: LocalReply) -> PostError {
        refused(local_reply)
    }

    fn timed_out(&self, permit: &Permit) -> PostError {
        self.note(permit, 0);
        PostError::Timeout(self.timeout)
    }

    fn target_refused(&self, permit: &Permit, refused: &TargetRefused) -> Option<PostError> {
        self.note(permit, 0);
        Some(PostError::Refused(refused.to_string().into()))
    }
}

fn refused(why: LocalReply) -> PostError {
    PostError::Transport(why.to_string().into())
}

/// Size of the request line, Host and Content-Length for most targets, in bytes.
const FIRST_LINES_BYTES: usize = 256;

/// Encodes the request into `out` in wire format; a small body directly after its head, where it is kept
/// until the response.
fn message(
    mut out: BytesMut,
    target: &DeliveryTarget,
    request: &EncodedEvent,
    form: RequestForm,
    (token, edits): (Option<&str>, Option<&HeaderEdits>),
) -> client::BufferedRequest {
    let head_bytes = FIRST_LINES_BYTES + request.fields.len() + token.map_or(0, str::len);
    let is_small = request.body.len() <= JOINED_BODY_BYTES_MAX;
    let (behind, apart) = if is_small { (&*request.body, Bytes::new()) } else { (&[][..], request.body.clone()) };
    out.reserve(head_bytes + behind.len());
    out.put_slice(form.method.as_bytes());
    out.put_slice(b" ");
    let path = if target.path.is_empty() { "/" } else { &*target.path };
    match edits.and_then(HeaderEdits::path) {
        None => out.put_slice(path.as_bytes()),
        Some(rewrite) => rewrite.parts(path).iter().for_each(|part| out.put_slice(part.as_bytes())),
    }
    out.put_slice(b" HTTP/1.1\r\nHost: ");
    out.put_slice(edits.and_then(HeaderEdits::host).unwrap_or(&target.authority).as_bytes());
    out.put_slice(b"\r\nContent-Length: ");
    out.put_slice(itoa::Buffer::new().format(request.body.len()).as_bytes());
    out.put_slice(b"\r\n");
    out.put_slice(&request.fields);
    if let Some(token) = token {
        for part in ["Authorization: ", token, "\r\n"] {
            out.put_slice(part.as_bytes());
        }
    }
    for (name, value) in edits.into_iter().flat_map(HeaderEdits::headers) {
        for part in [name, ": ", value, "\r\n"] {
            out.put_slice(part.as_bytes());
        }
    }
    out.put_slice(b"\r\n");
    out.put_slice(behind);
    // It tells whether a response has a body, which it has to all of these.
    let method = if form.method == GET { Method::Get } else { Method::Post };
    client::BufferedRequest { head: out.freeze(), body: apart, method, keeps_fields: form.keeps_fields }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::target;

    /// EV-RTE-09: head and data are the same bytes in both layouts.
    #[test]
    fn small_body_follows_head_and_large_one_is_separate() {
        for (length, behind) in [(0, 0), (JOINED_BODY_BYTES_MAX, JOINED_BODY_BYTES_MAX), (5000, 0)] {
            let body: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let request = EncodedEvent { fields: b"ce-id: 1\r\n".to_vec(), body: body.clone().into() };
            let sent = message(BytesMut::new(), &target("http://s/"), &request, DELIVERY, (Some("Bearer token"), None));
            let head = format!(
                "POST / HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\nce-id: 1\r\n\
                 Authorization: Bearer token\r\n\r\n"
            );
            assert_eq!((sent.head.len(), sent.body.len()), (head.len() + behind, length - behind));
            assert_eq!([sent.head, sent.body].concat(), [head.as_bytes(), &body].concat());
        }
    }
}

//! Connections to instances, pooled or new, and whole exchanges for small messages.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use codec::http::LocalResponse;
use codec::http::{BodyDecoder, BodyEvent, MalformedHttp, Method, parse_response};
use contract::target_policy::{TargetPolicy, TargetRefused};
use ring::{Chunk, EndpointAddress, Ring, Tick};

use super::buffers::{HeadReadError, WriteBuffer, by, earlier};
use super::limits::{HttpLimits, INTERIM_MAX};
use super::pool::{ConnectionPool, PoolKey, UpstreamConnection};
use crate::tls::{TlsClientConfig, Transport};

/// Opens and pools connections for one core.
#[derive(Clone)]
pub struct UpstreamClient {
    ring: Ring,
    pool: Rc<ConnectionPool>,
    limits: HttpLimits,
    targets: Arc<TargetPolicy>,
}

/// The target of a request.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamAddress<'a> {
    pub address: EndpointAddress,
    pub key: PoolKey,
    /// Set for TLS: how the target is verified.
    pub tls: Option<&'a TlsClientConfig>,
    /// Skips the target policy: see [`contract::table::InstanceStart::unrestricted`].
    pub unrestricted: bool,
    pub opening: OpeningOptions<'a>,
}

/// How a connection is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpeningOptions<'a> {
    /// Replaces `connect_max`.
    pub timeout: Option<Duration>,
    /// The first bytes of the connection, before TLS: a PROXY protocol header.
    pub preamble: &'a [u8],
}

impl<'a> UpstreamAddress<'a> {
    /// An external address; with `trust` over TLS.
    #[must_use]
    pub fn external(address: SocketAddr, trust: Option<&'a TlsClientConfig>) -> Self {
        let key = match trust {
            None => PoolKey::Address(address),
            Some(trust) => PoolKey::Trusted(address, trust.id()),
        };
        Self { address: address.into(), key, tls: trust, unrestricted: false, opening: OpeningOptions::default() }
    }
}

impl From<SocketAddr> for UpstreamAddress<'_> {
    /// An external address, without TLS.
    fn from(address: SocketAddr) -> Self {
        Self::external(address, None)
    }
}

/// A request that is sent whole.
#[derive(Debug, Clone)]
pub struct BufferedRequest {
    /// From the request line to the empty line, with the body's length. A small body may follow it in the same bytes,
    /// which saves a copy.
    pub head: Bytes,
    /// A body that does not follow the head in `head`.
    pub body: Bytes,
    pub method: Method,
    /// All fields of the response are kept, and not only those that matter for a delivery.
    pub keeps_fields: bool,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("no connection to {to}: {why}")]
    Unreachable { to: EndpointAddress, why: io::Error },
    #[error(transparent)]
    Refused(#[from] TargetRefused),
    #[error("TLS verification of {to} failed: {why}")]
    Untrusted { to: EndpointAddress, why: io::Error },
    #[error("no response before the deadline")]
    TimedOut,
    #[error("the connection closed before the response was complete")]
    Failed,
    #[error("the response is not valid HTTP/1.1: {}", .0.sentence())]
    Malformed(MalformedHttp),
    /// The response, with its body up to the limit: nearly always that is enough.
    #[error("the response body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize, answer: Box<LocalResponse> },
}

impl UpstreamClient {
    #[must_use]
    pub fn new(ring: &Ring, limits: &HttpLimits, targets: Arc<TargetPolicy>) -> Self {
        Self { ring: ring.clone(), pool: Rc::new(ConnectionPool::new(limits)), limits: *limits, targets }
    }

    #[must_use]
    pub fn pool(&self) -> &ConnectionPool {
        &self.pool
    }

    /// An idle connection, if there is one.
    #[must_use]
    pub fn pooled(&self, key: PoolKey) -> Option<Box<UpstreamConnection>> {
        self.pool.take(key, self.ring.now())
    }

    /// A new connection, including the TLS handshake, within `connect_max` and before `due`. `InvalidData`: TLS
    /// verification failed. The target policy is checked here, with the address that is connected to; pooled
    /// connections were checked when they were opened.
    pub async fn open(&self, to: UpstreamAddress<'_>, due: Option<Tick>) -> io::Result<Box<UpstreamConnection>> {
        let UpstreamAddress { address: to, tls: trust, unrestricted, opening, .. } = to;
        if !unrestricted {
            self.targets.admit_connect(to)?;
        }
        let at = earlier(due, Some(self.ring.now() + opening.timeout.unwrap_or(self.limits.connect_max)));
        match by(&self.ring, at, Transport::connect(&self.ring, to, trust, opening.preamble)).await {
            Ok(wire) => {
                let mut upstream = UpstreamConnection::new(wire?);
                upstream.head.limits = self.limits.head;
                Ok(upstream)
            }
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Pools an idle connection.
    pub fn put_back(&self, key: PoolKey, upstream: Box<UpstreamConnection>) {
        self.pool.put(key, upstream, self.ring.now());
    }

    /// Sends `request` and reads the whole response: all headers of a 200, and `Retry-After` of others. Interim
    /// responses are skipped; 101 ends the exchange like a final one, without a body.
    ///
    /// The request is sent once, whatever happens: a pooled connection that ends after the request was written may have
    /// been closing anyway, or its peer may have acted on the request and crashed, and the client cannot tell the two
    /// apart (RFC 9110, 9.2.2). [`ConnectionPool::take`] skips connections whose close was already received; one whose
    /// close is still in flight costs an attempt. That is rare, because this side closes first (`pool_idle_max`).
    pub async fn exchange(
        &self,
        to: impl Into<UpstreamAddress<'_>>,
        request: &BufferedRequest,
        body_bytes_max: usize,
        due: Option<Tick>,
    ) -> Result<LocalResponse, ExchangeError> {
        let to = to.into();
        let key = to.key;
        let upstream = match self.pooled(key) {
            Some(kept) => kept,
            None => self.reach(to, due).await?,
        };
        self.exchange_over(upstream, key, request, body_bytes_max, due).await
    }

    /// The same over a connection that is open. It is pooled under `key` afterwards.
    pub async fn exchange_over(
        &self,
        mut upstream: Box<UpstreamConnection>,
        key: PoolKey,
        request: &BufferedRequest,
        body_bytes_max: usize,
        due: Option<Tick>,
    ) -> Result<LocalResponse, ExchangeError> {
        let answer = by(&self.ring, due, send_and_receive(&mut upstream, request, body_bytes_max)).await;
        let answer = answer.map_err(|_| ExchangeError::TimedOut)??;
        if upstream.head.keep_alive && answer.status != 101 && upstream.read_buffer.unread.is_empty() {
            self.put_back(key, upstream);
        }
        Ok(answer)
    }

    async fn reach(
        &self,
        to: UpstreamAddress<'_>,
        due: Option<Tick>,
    ) -> Result<Box<UpstreamConnection>, ExchangeError> {
        let opened = self.open(to, due).await;
        let refused = opened.as_ref().err().and_then(TargetRefused::of).copied();
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let UpstreamAddress { address: to, tls: trust, .. } = to;
        match opened {
            Ok(upstream) => Ok(upstream),
            Err(_) if due.is_some_and(|due| self.ring.now() >= due) => Err(ExchangeError::TimedOut),
            Err(why) if trust.is_some() && why.kind() == io::ErrorKind::InvalidData => {
                Err(ExchangeError::Untrusted { to, why })
            }
            Err(why) => Err(ExchangeError::Unreachable { to, why }),
        }
    }
}

async fn send_and_receive(
    upstream: &mut UpstreamConnection,
    request: &BufferedRequest,
    body_bytes_max: usize,
) -> Result<LocalResponse, ExchangeError> {
    let UpstreamConnection { stream, read_buffer, write_buffer, head, .. } = upstream;
    // A peer that responds early may stop reading; its response counts, so a failed send is ignored.
    let _ = send(stream, write_buffer, request).await;

    let mut interim = 0;
    let bytes = loop {
        let bytes = read_buffer.head(stream, |bytes| parse_response(bytes, request.method, head)).await;
        match bytes {
            Ok(bytes) if !head.is_interim() => break bytes,
            Ok(_) if interim == INTERIM_MAX => {
                return Err(ExchangeError::Malformed(MalformedHttp::TooManyInterim));
            }
            Ok(_) => interim += 1,
            Err(HeadReadError::Malformed(why)) => return Err(ExchangeError::Malformed(why)),
            Err(HeadReadError::Ended | HeadReadError::Truncated | HeadReadError::Broken(_)) => {
                return Err(ExchangeError::Failed);
            }
        }
    };
    let view = head.view(&bytes);
    // Two allocations for each: only a 200 can be a reply, and of other statuses only one field matters.
    let keeps_all = head.status == 200 || request.keeps_fields;
    let is_kept = |name: &str| keeps_all || name.eq_ignore_ascii_case("retry-after");
    let fields = view.fields().filter(|(name, _)| is_kept(name));
    let headers = fields.map(|(name, value)| (name.into(), Bytes::copy_from_slice(value))).collect();
    let mut answer = LocalResponse { status: head.status, headers, body: Bytes::new() };
    drop(bytes);

    let mut reader = BodyDecoder::of_response(head.framing);
    let mut body = BytesMut::new();
    loop {
        match reader.next(&read_buffer.unread).map_err(ExchangeError::Malformed)? {
            BodyEvent::Data { take, .. } if body.len() + take > body_bytes_max => {
                answer.body = body.freeze();
                return Err(ExchangeError::TooLarge { bytes_max: body_bytes_max, answer: Box::new(answer) });
            }
            BodyEvent::Data { skip, take } => {
                read_buffer.unread.advance(skip);
                body.extend_from_slice(&read_buffer.unread[..take]);
                read_buffer.unread.advance(take);
            }
            BodyEvent::End { skip } => {
                read_buffer.unread.advance(skip);
                break;
            }
            BodyEvent::NeedBytes => {
                read_buffer.unread = Chunk::empty();
                if !read_buffer.fill_rest(stream).await.map_err(|_| ExchangeError::Failed)? {
                    if reader.may_close() {
                        break;
                    }
                    return Err(ExchangeError::Failed);
                }
            }
        }
    }
    answer.body = body.freeze();
    Ok(answer)
}

async fn send(stream: &Transport, write_buffer: &mut WriteBuffer, request: &BufferedRequest) -> io::Result<()> {
    if request.body.is_empty() {
        // The response shows what happened to a small request: it is sent while the client waits for that.
        let Err(head) = stream.send_detached(Chunk::from(request.head.clone())) else { return Ok(()) };
        return write_buffer.send_whole(stream, head).await;
    }
    write_buffer.buffer.extend_from_slice(&request.head);
    write_buffer.put(stream, Chunk::from(request.body.clone())).await?;
    write_buffer.flush(stream).await
}

//! A client's connection to the proxy. Requests are answered one after the other, in order.

use std::mem;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use codec::http::{BodyFraming, HttpVersion};
use codec::proxy_protocol::ProxiedClient;
use contract::client_address::{ClientAddress, ClientScheme, ListenerConnection};
use contract::connection_query::ConnectionState;
use contract::listener_sockets::ListenerId;
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::http::server::{ClientConnection, ClientProtocol, RequestReadError};
use protocol::tls::Transport;
use ring::Chunk;

use super::connection_stats::RegisteredConnection;
use super::exchange::exchange;
use super::outcome::ExchangeOutcome;
use super::proxy_connection::ProxyConnection;
use super::request_record::{RequestEnd, RequestRecord};
use super::{LocalReply, Proxy, streams};

/// The protocol's name in logs and debug pages.
const HTTP1: &str = "HTTP/1.1";

/// A connection from its listener.
pub struct AcceptedStream {
    stream: Transport,
    /// The client's address and the one that it connected to, if a trusted proxy named them.
    proxied: Option<(SocketAddr, SocketAddr)>,
    /// Bytes of the client that were read already.
    arrived: Chunk,
    /// The listener that accepted it, if that was opened at run time.
    listener: Option<ListenerId>,
}

impl AcceptedStream {
    /// A connection of which nothing was read.
    #[must_use]
    pub fn new(stream: impl Into<Transport>) -> Self {
        Self { stream: stream.into(), proxied: None, arrived: Chunk::empty(), listener: None }
    }

    /// A connection that began with a PROXY protocol header.
    #[must_use]
    pub fn proxied(stream: impl Into<Transport>, client: ProxiedClient, arrived: Chunk) -> Self {
        let proxied = match client {
            ProxiedClient::Address { source, destination } => Some((source, destination)),
            ProxiedClient::Local => None,
        };
        Self { stream: stream.into(), proxied, arrived, listener: None }
    }

    /// The same, accepted by a listener that was opened at run time.
    #[must_use]
    pub fn accepted_by(self, listener: ListenerId) -> Self {
        Self { listener: Some(listener), ..self }
    }
}

/// What happens to the connection after a request.
enum NextRequest {
    Request,
    Close,
    /// Close with a reset, so that the client sees that the response is incomplete.
    Cut,
    /// Close, but the client may still be sending.
    Linger,
}

/// Serves one connection until its client closes it, or the core stops.
pub fn serve(proxy: Rc<Proxy>, stream: impl Into<Transport>, guard: ConnectionGuard) -> impl Future<Output = ()> {
    serve_from(proxy, AcceptedStream::new(stream), guard, (false, None))
}

/// The same for a connection from the cluster-local listener. It reaches every route, and hosts without a dot resolve
/// in `domain`.
pub fn serve_cluster_local(
    proxy: Rc<Proxy>,
    stream: impl Into<Transport>,
    guard: ConnectionGuard,
    domain: Option<Arc<str>>,
) -> impl Future<Output = ()> {
    serve_from(proxy, AcceptedStream::new(stream), guard, (true, domain))
}

/// The same for a connection whose first bytes were read.
pub fn serve_accepted(proxy: Rc<Proxy>, stream: AcceptedStream, guard: ConnectionGuard) -> impl Future<Output = ()> {
    serve_from(proxy, stream, guard, (false, None))
}

/// Not an `async fn`: that would keep its arguments next to the connection that is made of them.
fn serve_from(
    proxy: Rc<Proxy>,
    stream: AcceptedStream,
    guard: ConnectionGuard,
    cluster_local: (bool, Option<Arc<str>>),
) -> impl Future<Output = ()> {
    let mut connection = ProxyConnection::open(proxy, stream, guard, cluster_local);
    async move {
        let Some(opened) = &mut connection else { return }; // it was closed already
        if opened.by_http1().await {
            return;
        }
        if let Some(ProxyConnection { proxy, client, peer, open, .. }) = connection {
            let ClientConnection { stream, read_buffer, guard, .. } = client;
            // Boxed: a connection of HTTP/1 should not reserve memory for it.
            Box::pin(streams::serve(proxy, stream, read_buffer.unread, guard, (peer, open))).await;
        }
    }
}

impl ProxyConnection {
    fn open(
        proxy: Rc<Proxy>,
        accepted: AcceptedStream,
        guard: ConnectionGuard,
        (cluster_local, domain): (bool, Option<Arc<str>>),
    ) -> Option<Self> {
        let AcceptedStream { stream, proxied, arrived, listener: opened } = accepted;
        let address = match proxied {
            Some((source, _)) => source,
            None => stream.peer_addr().ok()?,
        };
        let gateway = proxy.with_table(|table| Arc::clone(&table.gateway));
        let local = match proxied {
            Some((_, destination)) => Some(destination),
            None if gateway.sends_proxy_protocol => stream.local_addr().ok(),
            None => None, // saves a system call
        };
        let opened = opened.map(|id| ListenerConnection { id, server_name: stream.server_name() });
        let (scheme, listener) = match (stream.is_tls(), cluster_local) {
            (true, false) if opened.is_some() => (ClientScheme::Https, "gateway-https"),
            (false, false) if opened.is_some() => (ClientScheme::Http, "gateway-http"),
            (true, true) => (ClientScheme::Https, "cluster-local-https"),
            (true, false) => (ClientScheme::Https, "https"),
            (false, true) => (ClientScheme::Http, "cluster-local"),
            (false, false) => (ClientScheme::Http, "http"),
        };
        let peer = ClientAddress::new(address, scheme).cluster_local(cluster_local).in_domain(domain);
        let mut client = ClientConnection::new(&proxy.ring, stream, guard, &proxy.limits);
        client.read_buffer.unread = arrived;
        Some(Self {
            open: RegisteredConnection::count(&proxy, address, listener),
            client,
            proxy,
            peer: peer.trusting(&gateway.trusted_proxies).connected_to(local).accepted_by(opened),
            outgoing: BytesMut::new(),
            note: RequestRecord::default(),
        })
    }

    /// Serves the connection to its end. Returns `false` when the client speaks HTTP/2, before anything else is read.
    async fn by_http1(&mut self) -> bool {
        let next = match self.client.opening().await {
            Ok(ClientProtocol::Http2) => return false,
            Ok(ClientProtocol::Http1) => {
                self.open.stats.set_protocol(HTTP1);
                self.requests().await
            }
            Err(RequestReadError::Stalled) => {
                self.refuse_unread(&LocalReply::RequestHeaderTimeout, 0).await;
                NextRequest::Linger
            }
            Err(_) => NextRequest::Close,
        };
        match next {
            NextRequest::Request | NextRequest::Cut => {}
            NextRequest::Close => self.client.close().await,
            NextRequest::Linger => self.client.linger().await,
        }
        true
    }

    /// Serves requests until there is no next one, and returns how to end the connection.
    async fn requests(&mut self) -> NextRequest {
        loop {
            let before = (self.client.read_buffer.bytes, self.client.write_buffer.bytes);
            let next = match self.client.next_head().await {
                Ok(head) => {
                    self.take_buffers();
                    let next = self.request(head, before.1).await;
                    self.give_buffers();
                    next
                }
                Err(RequestReadError::ClientGone) => NextRequest::Close,
                Err(RequestReadError::Stalled) => self.refuse_unread(&LocalReply::RequestHeaderTimeout, before.1).await,
                Err(RequestReadError::Malformed(why)) => {
                    self.refuse_unread(&LocalReply::Malformed(why), before.1).await
                }
            };
            let carried = (self.client.read_buffer.bytes - before.0, self.client.write_buffer.bytes - before.1);
            self.proxy.counters.carried(carried.0, carried.1);
            self.open.stats.carried(self.client.read_buffer.bytes, self.client.write_buffer.bytes);
            let state =
                if matches!(next, NextRequest::Request) { ConnectionState::Idle } else { ConnectionState::Closing };
            self.open.stats.start(state, self.proxy.ring.now());
            if !matches!(next, NextRequest::Request) {
                return next;
            }
        }
    }

    /// Connections have buffers only during a request (see [`protocol::http::buffer_cache`]).
    fn take_buffers(&mut self) {
        let now = self.proxy.ring.now();
        self.outgoing = self.proxy.buffers.take(now);
        self.client.write_buffer.buffer = self.proxy.buffers.take(now);
    }

    fn give_buffers(&mut self) {
        for buffer in [&mut self.outgoing, &mut self.client.write_buffer.buffer] {
            self.proxy.buffers.give(mem::take(buffer), self.proxy.ring.now());
        }
    }

    async fn request(&mut self, head: Chunk, sent_before: u64) -> NextRequest {
        self.note.start(&self.proxy, Some(self.client.head.view(&head)));
        self.client.head.admit_upgrade(&head, self.client.limits.upgrade_protocols);
        self.open.stats.start(ConnectionState::Routing, self.proxy.ring.now());
        if let Some(local_reply) = LocalReply::of(&self.client.head) {
            return self.refuse(&local_reply, sent_before).await;
        }
        match exchange(self, head).await {
            ExchangeOutcome::Answered { status, close, request_read } => {
                self.ended(status, sent_before, None);
                match (close, request_read) {
                    (_, false) => NextRequest::Linger,
                    (true, true) if !self.client.read_buffer.unread.is_empty() => NextRequest::Linger,
                    (true, true) => NextRequest::Close,
                    (false, true) => NextRequest::Request,
                }
            }
            ExchangeOutcome::Refused(local_reply) => self.refuse(&local_reply, sent_before).await,
            ExchangeOutcome::Tunnelled => {
                self.ended(101, sent_before, None);
                NextRequest::Close
            }
            ExchangeOutcome::Cut => {
                self.ended(0, sent_before, None);
                NextRequest::Cut
            }
        }
    }

    /// Counts and records a request that was answered.
    fn ended(&mut self, status: u16, sent_before: u64, reason: Option<&'static str>) {
        self.proxy.counters.answered(status);
        let client = self.peer.canonical();
        let bytes = self.client.write_buffer.bytes - sent_before;
        let protocol = match self.client.head.version {
            HttpVersion::Http10 => "HTTP/1.0",
            HttpVersion::Http11 => HTTP1,
        };
        self.note.end(&self.proxy, &RequestEnd { client, protocol, status, bytes, reason });
    }

    /// Rejects bytes that could not be parsed as a request.
    async fn refuse_unread(&mut self, local_reply: &LocalReply, sent_before: u64) -> NextRequest {
        self.note.start(&self.proxy, None);
        self.refuse(local_reply, sent_before).await
    }

    async fn refuse(&mut self, local_reply: &LocalReply, sent_before: u64) -> NextRequest {
        self.proxy.counters.refused[local_reply.index()].fetch_add(1, Relaxed);
        let head = &self.client.head;
        // An unread body is before the next request.
        let close = local_reply.ends_connection()
            || head.framing != BodyFraming::Empty
            || !head.keep_alive
            || self.client.guard.is_draining();
        self.client.write_buffer.buffer.clear();
        let answer = self.proxy.local_response(local_reply, &self.peer);
        let answered = self.client.answer(&answer, close).await;
        self.ended(local_reply.status(), sent_before, RequestEnd::reason(local_reply));
        match answered {
            Err(_) => NextRequest::Cut,
            Ok(()) if close => NextRequest::Linger,
            Ok(()) => NextRequest::Request,
        }
    }
}

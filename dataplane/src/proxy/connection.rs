//! A client's connection to the proxy: requests are answered one after the other, in their order.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use ring::Chunk;

use super::exchange::{Ending, exchange};
use super::{Proxy, Refusal, streams};
use crate::counters::CoreCounters;
use crate::http::codec::{Framing, Method};
use crate::http::headers::{Peer, Scheme};
use crate::http::roster::Seat;
use crate::http::server::{Downstream, NoRequest, Spoken};
use crate::tls::Wire;

/// A client's connection, with the buffers that it keeps from request to request.
pub(super) struct Connection {
    pub(super) proxy: Rc<Proxy>,
    pub(super) client: Downstream,
    pub(super) peer: Peer,
    /// The head that an instance gets, with the part of the body that came along.
    pub(super) outgoing: BytesMut,
}

/// What becomes of the connection after a request.
enum Next {
    Request,
    Close,
    /// Close, and let the client see that it was cut.
    Cut,
    /// Close, but the client may still be sending.
    Linger,
}

/// Serves one connection until its client goes, or the core stops.
pub async fn serve(proxy: Rc<Proxy>, stream: impl Into<Wire>, seat: Seat) {
    serve_from(proxy, stream.into(), seat, false).await;
}

/// The same for a connection that came by the private listener: it reaches every route.
pub async fn serve_inside(proxy: Rc<Proxy>, stream: impl Into<Wire>, seat: Seat) {
    serve_from(proxy, stream.into(), seat, true).await;
}

async fn serve_from(proxy: Rc<Proxy>, stream: Wire, seat: Seat, inside: bool) {
    let Ok(address) = stream.peer_addr() else { return }; // it is gone already
    let _open = Open::count(&proxy);
    let peer = Peer::new(address, if stream.is_tls() { Scheme::Https } else { Scheme::Http });
    let peer = peer.inside(inside);
    let client = Downstream::new(&proxy.ring, stream, seat, &proxy.limits);
    let mut client = client;
    match client.opening().await {
        Ok(Spoken::Http1) => {}
        Ok(Spoken::Http2) => {
            let Downstream { stream, inflow, seat, .. } = client;
            return streams::serve(proxy, stream, inflow.held, seat, peer).await;
        }
        Err(_) => return client.close().await,
    }
    let connection = Connection { proxy, client, peer, outgoing: BytesMut::new() };
    connection.requests().await;
}

/// An open connection in the counters, however it ends.
struct Open {
    counters: Arc<CoreCounters>,
}

impl Open {
    fn count(proxy: &Proxy) -> Self {
        let counters = Arc::clone(&proxy.counters);
        counters.connections_taken.fetch_add(1, Relaxed);
        counters.connections_open.fetch_add(1, Relaxed);
        Self { counters }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.counters.connections_open.fetch_sub(1, Relaxed);
    }
}

impl Connection {
    async fn requests(mut self) {
        loop {
            let before = (self.client.inflow.bytes, self.client.outflow.bytes);
            let next = match self.client.next_head().await {
                Ok(head) => self.request(head).await,
                Err(NoRequest::Gone) => Next::Close,
                Err(NoRequest::Stalled) => self.refuse(&Refusal::HeadStalled).await,
                Err(NoRequest::Malformed(why)) => self.refuse(&Refusal::Malformed(why)).await,
            };
            let counters = &self.proxy.counters;
            counters.bytes_received.fetch_add(self.client.inflow.bytes - before.0, Relaxed);
            counters.bytes_sent.fetch_add(self.client.outflow.bytes - before.1, Relaxed);
            match next {
                Next::Request => {}
                Next::Close => return self.client.close().await,
                Next::Cut => return,
                Next::Linger => return self.client.linger().await,
            }
        }
    }

    async fn request(&mut self, head: Chunk) -> Next {
        if let Some(refusal) = self.out_of_question() {
            return self.refuse(&refusal).await;
        }
        match exchange(self, head).await {
            Ending::Answered { status, close, request_read } => {
                self.proxy.counters.answered(status);
                match (close, request_read) {
                    (_, false) => Next::Linger,
                    (true, true) if !self.client.inflow.held.is_empty() => Next::Linger,
                    (true, true) => Next::Close,
                    (false, true) => Next::Request,
                }
            }
            Ending::Refused(refusal) => self.refuse(&refusal).await,
            Ending::Tunnelled => {
                self.proxy.counters.answered(101);
                Next::Close
            }
            Ending::Cut => {
                self.proxy.counters.answered(0);
                Next::Cut
            }
        }
    }

    /// What we do not do, whatever the route says.
    fn out_of_question(&self) -> Option<Refusal> {
        let head = &self.client.head;
        if head.method == Method::Connect {
            Some(Refusal::Connect)
        } else if head.expects_more {
            Some(Refusal::Expectation)
        } else {
            None
        }
    }

    async fn refuse(&mut self, refusal: &Refusal) -> Next {
        let counters = &self.proxy.counters;
        counters.refused[refusal.index()].fetch_add(1, Relaxed);
        counters.answered(refusal.status());
        let head = &self.client.head;
        // A body that nobody will read stands before the next request.
        let close = refusal.ends_connection()
            || head.framing != Framing::Empty
            || !head.keep_alive
            || self.client.seat.is_draining();
        self.client.outflow.buffer.clear();
        match self.client.answer(&refusal.answer(), close).await {
            Err(_) => Next::Cut,
            Ok(()) if close => Next::Linger,
            Ok(()) => Next::Request,
        }
    }
}

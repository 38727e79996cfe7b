//! A client's connection to the proxy: requests are answered one after the other, in their order.

use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use ring::Chunk;

use super::exchange::{Ending, exchange};
use super::note::{End, Note};
use super::sheet::Open;
use super::{Proxy, Refusal, streams};
use crate::http::codec::{Framing, Version};
use crate::http::headers::{Peer, Scheme};
use crate::http::roster::Seat;
use crate::http::server::{Downstream, NoRequest, Spoken};
use crate::inquiry::State;
use crate::tls::Wire;

/// As logs and debug pages name it.
const HTTP1: &str = "HTTP/1.1";

/// A client's connection, with the buffers that it keeps from request to request.
pub(super) struct Connection {
    pub(super) proxy: Rc<Proxy>,
    pub(super) client: Downstream,
    pub(super) peer: Peer,
    /// The head that an instance gets, with the part of the body that came along.
    pub(super) outgoing: BytesMut,
    pub(super) note: Note,
    /// What is counted and shown of it.
    pub(super) open: Open,
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
pub fn serve(proxy: Rc<Proxy>, stream: impl Into<Wire>, seat: Seat) -> impl Future<Output = ()> {
    serve_from(proxy, stream.into(), seat, (false, None))
}

/// The same for a connection that came by the private listener: it reaches every route, and by a host without a dot
/// those in `domain`.
pub fn serve_inside(
    proxy: Rc<Proxy>,
    stream: impl Into<Wire>,
    seat: Seat,
    domain: Option<Arc<str>>,
) -> impl Future<Output = ()> {
    serve_from(proxy, stream.into(), seat, (true, domain))
}

/// Not an `async fn`, which would keep its arguments beside what is made of them.
fn serve_from(
    proxy: Rc<Proxy>,
    stream: Wire,
    seat: Seat,
    inside: (bool, Option<Arc<str>>),
) -> impl Future<Output = ()> {
    let mut connection = Connection::open(proxy, stream, seat, inside);
    async move {
        let Some(opened) = &mut connection else { return }; // it was gone already
        if opened.by_http1().await {
            return;
        }
        if let Some(Connection { proxy, client, peer, open, .. }) = connection {
            let Downstream { stream, inflow, seat, .. } = client;
            // Boxed: a connection of HTTP/1 need not have room for it.
            Box::pin(streams::serve(proxy, stream, inflow.held, seat, (peer, open))).await;
        }
    }
}

impl Connection {
    fn open(
        proxy: Rc<Proxy>,
        stream: Wire,
        seat: Seat,
        (inside, domain): (bool, Option<Arc<str>>),
    ) -> Option<Self> {
        let address = stream.peer_addr().ok()?;
        let (scheme, listener) = match (stream.is_tls(), inside) {
            (true, true) => (Scheme::Https, "private-https"),
            (true, false) => (Scheme::Https, "https"),
            (false, true) => (Scheme::Http, "private"),
            (false, false) => (Scheme::Http, "http"),
        };
        Some(Self {
            open: Open::count(&proxy, address, listener),
            client: Downstream::new(&proxy.ring, stream, seat, &proxy.limits),
            proxy,
            peer: Peer::new(address, scheme).inside(inside).within(domain),
            outgoing: BytesMut::new(),
            note: Note::default(),
        })
    }

    /// Serves the connection to its end; `false` when its client speaks HTTP/2: nothing but that is known then.
    async fn by_http1(&mut self) -> bool {
        let next = match self.client.opening().await {
            Ok(Spoken::Http2) => return false,
            Ok(Spoken::Http1) => {
                self.open.sheet.speaks(HTTP1);
                self.requests().await
            }
            Err(NoRequest::Stalled) => {
                self.refuse_unread(&Refusal::HeadStalled, 0).await;
                Next::Linger
            }
            Err(_) => Next::Close,
        };
        match next {
            Next::Request | Next::Cut => {}
            Next::Close => self.client.close().await,
            Next::Linger => self.client.linger().await,
        }
        true
    }

    /// Takes requests until there is no next one, and says how the connection is to end.
    async fn requests(&mut self) -> Next {
        loop {
            let before = (self.client.inflow.bytes, self.client.outflow.bytes);
            let next = match self.client.next_head().await {
                Ok(head) => {
                    self.take_buffers();
                    let next = self.request(head, before.1).await;
                    self.give_buffers();
                    next
                }
                Err(NoRequest::Gone) => Next::Close,
                Err(NoRequest::Stalled) => self.refuse_unread(&Refusal::HeadStalled, before.1).await,
                Err(NoRequest::Malformed(why)) => {
                    self.refuse_unread(&Refusal::Malformed(why), before.1).await
                }
            };
            let carried = (self.client.inflow.bytes - before.0, self.client.outflow.bytes - before.1);
            self.proxy.counters.carried(carried.0, carried.1);
            self.open.sheet.carried(self.client.inflow.bytes, self.client.outflow.bytes);
            let state = if matches!(next, Next::Request) { State::Idle } else { State::Closing };
            self.open.sheet.begin(state, self.proxy.ring.now());
            if !matches!(next, Next::Request) {
                return next;
            }
        }
    }

    /// Between requests a connection has no buffers (see [`crate::http::spare`]).
    fn take_buffers(&mut self) {
        let now = self.proxy.ring.now();
        self.outgoing = self.proxy.spare.take(now);
        self.client.outflow.buffer = self.proxy.spare.take(now);
    }

    fn give_buffers(&mut self) {
        for buffer in [&mut self.outgoing, &mut self.client.outflow.buffer] {
            self.proxy.spare.give(mem::take(buffer), self.proxy.ring.now());
        }
    }

    async fn request(&mut self, head: Chunk, sent_before: u64) -> Next {
        self.note.begin(&self.proxy, Some(self.client.head.view(&head)));
        self.open.sheet.begin(State::Routing, self.proxy.ring.now());
        if let Some(refusal) = Refusal::of(&self.client.head) {
            return self.refuse(&refusal, sent_before).await;
        }
        match exchange(self, head).await {
            Ending::Answered { status, close, request_read } => {
                self.ended(status, sent_before, None);
                match (close, request_read) {
                    (_, false) => Next::Linger,
                    (true, true) if !self.client.inflow.held.is_empty() => Next::Linger,
                    (true, true) => Next::Close,
                    (false, true) => Next::Request,
                }
            }
            Ending::Refused(refusal) => self.refuse(&refusal, sent_before).await,
            Ending::Tunnelled => {
                self.ended(101, sent_before, None);
                Next::Close
            }
            Ending::Cut => {
                self.ended(0, sent_before, None);
                Next::Cut
            }
        }
    }

    /// Counts and notes a request that has had its answer.
    fn ended(&mut self, status: u16, sent_before: u64, reason: Option<&'static str>) {
        self.proxy.counters.answered(status);
        let client = self.peer.canonical();
        let bytes = self.client.outflow.bytes - sent_before;
        let protocol = match self.client.head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => HTTP1,
        };
        self.note.end(&self.proxy, &End { client, protocol, status, bytes, reason });
    }

    /// Refuses what could not be read as a request.
    async fn refuse_unread(&mut self, refusal: &Refusal, sent_before: u64) -> Next {
        self.note.begin(&self.proxy, None);
        self.refuse(refusal, sent_before).await
    }

    async fn refuse(&mut self, refusal: &Refusal, sent_before: u64) -> Next {
        self.proxy.counters.refused[refusal.index()].fetch_add(1, Relaxed);
        let head = &self.client.head;
        // A body that nobody will read stands before the next request.
        let close = refusal.ends_connection()
            || head.framing != Framing::Empty
            || !head.keep_alive
            || self.client.seat.is_draining();
        self.client.outflow.buffer.clear();
        let answered = self.client.answer(&refusal.answer(), close).await;
        self.ended(refusal.status(), sent_before, End::reason(refusal));
        match answered {
            Err(_) => Next::Cut,
            Ok(()) if close => Next::Linger,
            Ok(()) => Next::Request,
        }
    }
}

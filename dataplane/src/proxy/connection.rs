//! A client's connection to the proxy: requests are answered one after the other, in their order.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use ring::Chunk;

use super::exchange::{Ending, exchange};
use super::note::{End, Note};
use super::sheet::{Open, Sheet};
use super::{Proxy, Refusal, streams};
use crate::http::codec::{Framing, Method};
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
    /// What is shown of it.
    pub(super) sheet: Rc<Sheet>,
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
    serve_from(proxy, stream.into(), seat, (false, None)).await;
}

/// The same for a connection that came by the private listener: it reaches every route, and by a host without a dot
/// those in `domain`.
pub async fn serve_inside(proxy: Rc<Proxy>, stream: impl Into<Wire>, seat: Seat, domain: Option<Arc<str>>) {
    serve_from(proxy, stream.into(), seat, (true, domain)).await;
}

async fn serve_from(proxy: Rc<Proxy>, stream: Wire, seat: Seat, (inside, domain): (bool, Option<Arc<str>>)) {
    let Ok(address) = stream.peer_addr() else { return }; // it is gone already
    let (scheme, listener) = match (stream.is_tls(), inside) {
        (true, _) => (Scheme::Https, "https"),
        (false, true) => (Scheme::Http, "private"),
        (false, false) => (Scheme::Http, "http"),
    };
    let open = Open::count(&proxy, address, listener);
    let sheet = Rc::clone(&open.sheet);
    let peer = Peer::new(address, scheme).inside(inside).within(domain);
    let mut client = Downstream::new(&proxy.ring, stream, seat, &proxy.limits);
    let connection = |proxy, client, peer| Connection {
        proxy,
        client,
        peer,
        outgoing: BytesMut::new(),
        note: Note::default(),
        sheet: Rc::clone(&open.sheet),
    };
    match client.opening().await {
        Ok(Spoken::Http1) => {}
        Ok(Spoken::Http2) => {
            let Downstream { stream, inflow, seat, .. } = client;
            return streams::serve(proxy, stream, inflow.held, seat, (peer, sheet)).await;
        }
        Err(NoRequest::Stalled) => {
            let mut connection = connection(proxy, client, peer);
            connection.note.begin(&connection.proxy, None);
            connection.refuse(&Refusal::HeadStalled, 0).await;
            return connection.client.linger().await;
        }
        Err(_) => return client.close().await,
    }
    sheet.speaks(HTTP1);
    connection(proxy, client, peer).requests().await;
}

impl Connection {
    async fn requests(mut self) {
        loop {
            let before = (self.client.inflow.bytes, self.client.outflow.bytes);
            let next = match self.client.next_head().await {
                Ok(head) => self.request(head, before.1).await,
                Err(NoRequest::Gone) => Next::Close,
                Err(NoRequest::Stalled) => self.refuse_unread(&Refusal::HeadStalled, before.1).await,
                Err(NoRequest::Malformed(why)) => {
                    self.refuse_unread(&Refusal::Malformed(why), before.1).await
                }
            };
            let counters = &self.proxy.counters;
            counters.bytes_received.fetch_add(self.client.inflow.bytes - before.0, Relaxed);
            counters.bytes_sent.fetch_add(self.client.outflow.bytes - before.1, Relaxed);
            self.sheet.carried(self.client.inflow.bytes, self.client.outflow.bytes);
            let state = if matches!(next, Next::Request) { State::Idle } else { State::Closing };
            self.sheet.begin(state, self.proxy.ring.now());
            match next {
                Next::Request => {}
                Next::Close => return self.client.close().await,
                Next::Cut => return,
                Next::Linger => return self.client.linger().await,
            }
        }
    }

    async fn request(&mut self, head: Chunk, sent_before: u64) -> Next {
        self.note.begin(&self.proxy, Some(self.client.head.view(&head)));
        self.sheet.begin(State::Routing, self.proxy.ring.now());
        if let Some(refusal) = self.out_of_question() {
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

    /// Counts and notes a request that has had its answer.
    fn ended(&mut self, status: u16, sent_before: u64, reason: Option<&'static str>) {
        self.proxy.counters.answered(status);
        let client = self.peer.address.ip().to_canonical();
        let bytes = self.client.outflow.bytes - sent_before;
        self.note.end(&self.proxy, &End { client, protocol: HTTP1, status, bytes, reason });
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

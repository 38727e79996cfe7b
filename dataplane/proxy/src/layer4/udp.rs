//! Relays datagrams: those of one client address are a session with one endpoint of the backend.
//!
//! Replies leave from the socket of the listener, so the client sees the address that it sent to. The table of sessions is bounded;
//! when it is full, datagrams of new clients are dropped, because a flood of forged senders must not end the sessions of others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use contract::client_address::{ClientAddress, ClientScheme};
use contract::relay_counters::{DatagramDrop, RelayOutcome};
use contract::relay_gauge::RelayGauge;
use contract::table::{EndpointAddress, Route};
use protocol::http::buffers::by;
use protocol::http::connection_tracker::{ConnectionGuard, ConnectionTracker};
use ring::{Notify, RingDatagram, Tick};

use super::connect;
use super::limits::{DATAGRAM_BYTES_MAX, UDP_BURST_MAX, UDP_SESSION_IDLE_MAX, UDP_SESSIONS_MAX};
use crate::access_log::AccessLogEntry;
use crate::{Permit, Proxy};

/// Pause after a receive that failed: an error that stays must not keep the core busy.
const RECEIVE_RETRY: Duration = Duration::from_millis(20);

/// The route of a listener, as the table has it now.
pub type UdpRouteFn = Box<dyn Fn() -> Option<Arc<Route>>>;

/// One listener on one core.
struct UdpListener {
    proxy: Rc<Proxy>,
    socket: RingDatagram,
    tracker: Rc<ConnectionTracker>,
    route: UdpRouteFn,
    sessions: RefCell<HashMap<SocketAddr, Rc<UdpSession>>>,
    /// For all receives: none waits while it uses it.
    buffer: RefCell<Box<[u8]>>,
}

struct UdpSession {
    client: SocketAddr,
    upstream: RingDatagram,
    permit: Permit,
    idle: Duration,
    started: Tick,
    last: Cell<Tick>,
    from_client: Cell<u64>,
    to_client: Cell<u64>,
    /// Notified when the endpoint has refused a datagram: that error is reported once, and a send has taken it.
    refused: Notify,
}

/// Relays the datagrams of a listener until `tracker` drains.
pub async fn serve_datagrams(
    proxy: Rc<Proxy>,
    socket: RingDatagram,
    tracker: Rc<ConnectionTracker>,
    route: UdpRouteFn,
) {
    let Some(guard) = tracker.enter(usize::MAX) else { return };
    let buffer = RefCell::new(vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice());
    let listener = Rc::new(UdpListener { proxy, socket, tracker, route, sessions: RefCell::default(), buffer });
    loop {
        for _ in 0..UDP_BURST_MAX {
            match listener.receive() {
                Ok(()) => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(why) => {
                    tracing::debug!(%why, "cannot receive a datagram");
                    listener.proxy.ring.sleep(RECEIVE_RETRY).await;
                    break;
                }
            }
        }
        listener.proxy.ring.yield_now().await;
        if !readable_before_drain(&listener.socket, &guard).await {
            return;
        }
    }
}

/// `false`: the listener drains.
async fn readable_before_drain(socket: &RingDatagram, guard: &ConnectionGuard) -> bool {
    let mut readable = pin!(socket.readable());
    poll_fn(|cx| match guard.poll_draining(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => readable.as_mut().poll(cx).map(|_| true),
    })
    .await
}

impl UdpListener {
    /// Receives a datagram of a client, and sends it on.
    fn receive(self: &Rc<Self>) -> io::Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        let (count, client) = self.socket.try_recv_from(&mut buffer)?;
        let counters = &self.proxy.counters.relays;
        counters.datagrams_received.fetch_add(1, Relaxed);
        counters.bytes_received.fetch_add(count as u64, Relaxed);
        if let Err(reason) = self.forward(client, &buffer[..count]) {
            counters.dropped(reason);
        }
        Ok(())
    }

    fn forward(self: &Rc<Self>, client: SocketAddr, datagram: &[u8]) -> Result<(), DatagramDrop> {
        let known = self.sessions.borrow().get(&client).map(Rc::clone);
        if let Some(session) = known {
            match session.send(datagram, self.proxy.ring.now()) {
                // Its endpoint is gone; another one may be there.
                Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
                    self.remove(&session);
                    session.refused.ring();
                }
                outcome => return outcome.map_err(|_| DatagramDrop::SendFailure),
            }
        }
        let session = self.open(client)?;
        session.send(datagram, self.proxy.ring.now()).map_err(|_| DatagramDrop::SendFailure)
    }

    /// A session of a new client.
    fn open(self: &Rc<Self>, client: SocketAddr) -> Result<Rc<UdpSession>, DatagramDrop> {
        if self.sessions.borrow().len() >= UDP_SESSIONS_MAX {
            return Err(DatagramDrop::SessionLimit);
        }
        let guard = self.tracker.enter(self.proxy.limits.connections_max).ok_or(DatagramDrop::SessionLimit)?;
        let route = (self.route)().ok_or(DatagramDrop::NoRoute)?;
        let address = ClientAddress::new(client, ClientScheme::Http);
        let choice = connect::choose(&self.proxy, &route, &address).map_err(|outcome| match outcome {
            RelayOutcome::ClientDenied => DatagramDrop::ClientDenied,
            _ => DatagramDrop::NoHealthyUpstream,
        })?;
        let permit = self.proxy.try_acquire(&choice, &[]).ok_or(DatagramDrop::NoHealthyUpstream)?;
        let upstream = self.connect(&permit).map_err(|why| {
            tracing::debug!(backend = %choice.backend.key, %why, "no socket for a UDP session");
            DatagramDrop::NoHealthyUpstream
        })?;
        choice.backend.load.requests.fetch_add(1, Relaxed);
        let idle = choice.backend.timeouts.stream_idle.get().filter(|idle| !idle.is_zero());
        let now = self.proxy.ring.now();
        let session = Rc::new(UdpSession {
            client,
            upstream,
            permit,
            idle: idle.unwrap_or(UDP_SESSION_IDLE_MAX),
            started: now,
            last: Cell::new(now),
            from_client: Cell::new(0),
            to_client: Cell::new(0),
            refused: Notify::default(),
        });
        self.sessions.borrow_mut().insert(client, Rc::clone(&session));
        self.proxy.counters.relays.sessions.fetch_add(1, Relaxed);
        let held = (guard, RelayGauge::session(&self.proxy.counters));
        self.proxy.ring.spawn(run_session(Rc::clone(self), Rc::clone(&session), held));
        Ok(session)
    }

    /// A socket of the session's own: replies are told apart by it.
    fn connect(&self, permit: &Permit) -> io::Result<RingDatagram> {
        let EndpointAddress::Ip(address) = permit.endpoint.address else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        if !permit.endpoint.is_unrestricted() {
            self.proxy.targets.admit_connect(permit.endpoint.address)?;
        }
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(address)?;
        RingDatagram::from_std(&self.proxy.ring, socket)
    }

    /// Sends replies that are here to the client.
    ///
    /// # Errors
    ///
    /// `WouldBlock`: there are no more.
    fn reply(&self, session: &UdpSession) -> io::Result<()> {
        let mut buffer = self.buffer.borrow_mut();
        let (count, _) = session.upstream.try_recv_from(&mut buffer)?;
        session.last.set(self.proxy.ring.now());
        let counters = &self.proxy.counters.relays;
        match self.socket.try_send_to(&buffer[..count], session.client) {
            Ok(()) => {
                session.to_client.set(session.to_client.get() + count as u64);
                counters.datagrams_sent.fetch_add(1, Relaxed);
                counters.bytes_sent.fetch_add(count as u64, Relaxed);
            }
            Err(_) => counters.dropped(DatagramDrop::SendFailure),
        }
        Ok(())
    }

    fn remove(&self, session: &Rc<UdpSession>) {
        let mut sessions = self.sessions.borrow_mut();
        if sessions.get(&session.client).is_some_and(|known| Rc::ptr_eq(known, session)) {
            sessions.remove(&session.client);
        }
    }

    fn log(&self, session: &UdpSession) {
        let Some(log) = self.proxy.access.get().filter(|log| log.logs_everything()) else { return };
        log.put(&AccessLogEntry {
            at: SystemTime::now(),
            client: session.client,
            protocol: "UDP",
            method: b"",
            host: b"",
            path: b"",
            status: 0,
            received: Some(session.from_client.get()),
            bytes: session.to_client.get(),
            duration: session.last.get() - session.started,
            waited: None,
            upstream: None,
            backend: Some(&session.permit.backend().key),
            instance: Some(session.permit.endpoint.address),
            trace: None,
            reason: None,
        });
    }
}

impl UdpSession {
    fn send(&self, datagram: &[u8], now: Tick) -> io::Result<()> {
        self.upstream.try_send(datagram)?;
        self.last.set(now);
        self.from_client.set(self.from_client.get() + datagram.len() as u64);
        Ok(())
    }

    /// `false`: the listener drains, or the endpoint refuses datagrams.
    async fn has_replies(&self, guard: &ConnectionGuard) -> bool {
        let mut refused = pin!(self.refused.after(0));
        let mut readable = pin!(readable_before_drain(&self.upstream, guard));
        poll_fn(|cx| match refused.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(false),
            Poll::Pending => readable.as_mut().poll(cx),
        })
        .await
    }
}

/// Sends replies until nothing passes for too long, the endpoint refuses datagrams, or the listener drains.
async fn run_session(listener: Rc<UdpListener>, session: Rc<UdpSession>, (guard, open): (ConnectionGuard, RelayGauge)) {
    let ring = &listener.proxy.ring;
    'session: loop {
        for _ in 0..UDP_BURST_MAX {
            match listener.reply(&session) {
                Ok(()) => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => break 'session,
            }
        }
        ring.yield_now().await;
        let due = session.last.get() + session.idle;
        match by(ring, Some(due), session.has_replies(&guard)).await {
            Ok(true) => {}
            Err(_) if session.last.get() + session.idle > ring.now() => {} // the client has sent meanwhile
            Ok(false) | Err(_) => break,
        }
    }
    listener.remove(&session);
    drop(open);
    listener.log(&session);
}

//! Listeners that the table opens and closes while the core runs: a core follows the table at each wake-up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use contract::listener_sockets::{ListenerId, ListenerProtocol, ListenerSocket, ListenerSockets};
use contract::table::{Route, TableListener, TableListeners};
use contract::table_publisher::TablePublisher;
use protocol::http::buffers::by;
use protocol::http::connection_tracker::{ConnectionTracker, CutSignal};
use protocol::tls::{TlsAcceptor, TlsLimits, TlsServerConfig, TlsVersionMin};
use proxy::layer4::{RelayClient, relay_connection, serve_datagrams};
use proxy::{AcceptedStream, Proxy, serve_accepted};
use ring::{Ring, RingDatagram, RingListener};

use super::{ConnectionHandler, StopSignal, accept_loop, relayed_tls};

/// Opens the listeners of the current table. What this returns follows the table, and is to be called at each wake-up.
pub(super) fn follow_table(
    proxy: &Rc<Proxy>,
    (core, tables): (usize, Arc<TablePublisher>),
    stop: &Arc<StopSignal>,
    (tls, drain_max): ((TlsLimits, TlsVersionMin), Duration),
) -> Box<dyn Fn()> {
    let (proxy, stop) = (Rc::clone(proxy), Arc::clone(stop));
    let listeners = RunTimeListeners { proxy, core, tables, stop, tls, drain_max, state: RefCell::default() };
    listeners.on_wake();
    Box::new(move || listeners.on_wake())
}

/// The run-time listeners of one core.
struct RunTimeListeners {
    proxy: Rc<Proxy>,
    /// The index of the core, and so of its sockets.
    core: usize,
    tables: Arc<TablePublisher>,
    stop: Arc<StopSignal>,
    tls: (TlsLimits, TlsVersionMin),
    /// Connections of a closed listener may take this long, then they are cut.
    drain_max: Duration,
    state: RefCell<RunTimeState>,
}

#[derive(Default)]
struct RunTimeState {
    /// Those of the last table that was compared.
    seen: TableListeners,
    open: BTreeMap<ListenerId, OpenListener>,
}

struct OpenListener {
    sockets: Arc<ListenerSockets>,
    tracker: Rc<ConnectionTracker>,
}

impl RunTimeListeners {
    /// Opens and closes what the current table has more or less than the last one.
    fn on_wake(&self) {
        let state = &mut *self.state.borrow_mut();
        let changed = self
            .proxy
            .with_table(|table| (!Arc::ptr_eq(&table.listeners, &state.seen)).then(|| Arc::clone(&table.listeners)));
        let Some(listeners) = changed else { return };
        let sockets_of = |id: &ListenerId| listeners.get(id).and_then(|listener| listener.sockets.as_ref());
        let closed = state
            .open
            .extract_if(.., |id, open| sockets_of(id).is_none_or(|sockets| !Arc::ptr_eq(sockets, &open.sockets)));
        for (_, listener) in closed {
            self.proxy.ring.spawn(close(self.proxy.ring.clone(), listener, self.drain_max));
        }
        for (id, listener) in listeners.iter() {
            let Some(sockets) = listener.sockets.as_ref().filter(|_| !state.open.contains_key(id)) else { continue };
            // Without a socket it has failed before, and the failure is reported.
            let Some(socket) = sockets.take(self.core) else { continue };
            match self.open(sockets, socket) {
                Ok(tracker) => {
                    state.open.insert(*id, OpenListener { sockets: Arc::clone(sockets), tracker });
                    sockets.mark_accepting();
                }
                Err(why) => {
                    tracing::error!(listener = %sockets.spec, %why, "this core cannot serve a listener");
                    sockets.mark_failed(&why.to_string());
                }
            }
        }
        state.seen = listeners;
    }

    fn open(&self, sockets: &ListenerSockets, socket: ListenerSocket) -> io::Result<Rc<ConnectionTracker>> {
        let serve = match sockets.spec.protocol {
            ListenerProtocol::Http => self.serve_plain(sockets.id),
            ListenerProtocol::Https => self.serve_tls(sockets)?,
            ListenerProtocol::Tcp => self.relay_tcp(sockets.id),
            ListenerProtocol::Udp => return self.open_datagrams(sockets.id, socket),
        };
        let ListenerSocket::Stream(listener) = socket else { return Err(io::ErrorKind::InvalidInput.into()) };
        let listener = RingListener::from_std(&self.proxy.ring, listener)?;
        let tracker = ConnectionTracker::child_of(&self.proxy.tracker);
        let (proxy, stop) = (Rc::clone(&self.proxy), Arc::clone(&self.stop));
        self.proxy.ring.spawn(accept_loop(proxy, stop, Rc::clone(&tracker), listener, serve));
        Ok(tracker)
    }

    fn serve_plain(&self, id: ListenerId) -> ConnectionHandler {
        let proxy = Rc::clone(&self.proxy);
        Box::new(move |stream, guard| {
            let (proxy, cut) = (Rc::clone(&proxy), guard.cut_signal());
            Box::pin(until_cut(cut, async move {
                serve_accepted(proxy, AcceptedStream::new(stream).accepted_by(id), guard).await;
            }))
        })
    }

    fn relay_tcp(&self, id: ListenerId) -> ConnectionHandler {
        let proxy = Rc::clone(&self.proxy);
        Box::new(move |stream, guard| {
            let (proxy, cut) = (Rc::clone(&proxy), guard.cut_signal());
            Box::pin(until_cut(cut, async move {
                let route = any_route(&proxy, id);
                relay_connection(proxy, RelayClient::tcp(stream), route, guard).await;
            }))
        })
    }

    fn open_datagrams(&self, id: ListenerId, socket: ListenerSocket) -> io::Result<Rc<ConnectionTracker>> {
        let ListenerSocket::Datagram(socket) = socket else { return Err(io::ErrorKind::InvalidInput.into()) };
        let socket = RingDatagram::from_std(&self.proxy.ring, socket)?;
        let tracker = ConnectionTracker::child_of(&self.proxy.tracker);
        let (proxy, own) = (Rc::clone(&self.proxy), Rc::clone(&self.proxy));
        let route = Box::new(move || any_route(&own, id));
        self.proxy.ring.spawn(serve_datagrams(proxy, socket, Rc::clone(&tracker), route));
        Ok(tracker)
    }

    fn serve_tls(&self, sockets: &ListenerSockets) -> io::Result<ConnectionHandler> {
        let (limits, oldest) = self.tls;
        let config = TlsServerConfig::of_listener(&self.tables, sockets, oldest).map_err(io::Error::other)?;
        let acceptor = TlsAcceptor::new(&self.proxy.ring, config, limits, Arc::clone(&self.proxy.counters));
        let (proxy, acceptor, id) = (Rc::clone(&self.proxy), Rc::new(acceptor), sockets.id);
        Ok(Box::new(move |stream, guard| {
            let (proxy, acceptor, cut) = (Rc::clone(&proxy), Rc::clone(&acceptor), guard.cut_signal());
            Box::pin(until_cut(cut, async move {
                if proxy.with_table(|table| table.listener(id).is_some_and(TableListener::relays_tls)) {
                    return relayed_tls::serve(proxy, acceptor, (stream, id), guard).await;
                }
                if let Some(stream) = acceptor.open(stream).await {
                    serve_accepted(proxy, AcceptedStream::new(stream).accepted_by(id), guard).await;
                }
            }))
        }))
    }
}

/// The route of a listener for TCP or UDP.
fn any_route(proxy: &Proxy, id: ListenerId) -> Option<Arc<Route>> {
    proxy.with_table(|table| table.listener(id)?.any_route().map(Arc::clone))
}

/// Refuses new connections, and ends the open ones as a shutdown does.
async fn close(ring: Ring, listener: OpenListener, drain_max: Duration) {
    let OpenListener { sockets, tracker } = listener;
    tracker.drain();
    let empty = poll_fn(|cx| tracker.poll_empty(cx));
    if by(&ring, Some(ring.now() + drain_max), empty).await.is_err() {
        let open = tracker.open();
        tracing::warn!(listener = %sockets.spec, open, "drain timeout reached, closing open connections of a closed listener");
        tracker.cut();
    }
}

/// Serves a connection until it ends or its tracker cuts it.
async fn until_cut(cut: CutSignal, connection: impl Future<Output = ()>) {
    let mut connection = pin!(connection);
    poll_fn(|cx| match connection.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => cut.poll(cx),
    })
    .await;
}

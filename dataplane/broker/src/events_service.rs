//! What a core uses of its broker: the connections of senders, and the steps of a stop.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use protocol::http::connection_tracker::ConnectionGuard;
use protocol::tls::Transport;
use proxy::Proxy;

/// A future of this thread.
pub type LocalBoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Serves events on a core: made on the core's thread, once the ring runs.
pub trait EventsService {
    /// Serves one connection of the events listener until it ends. `guard` registers it in the core's connection
    /// tracker and tells it when the core stops.
    fn connection(self: Rc<Self>, stream: Transport, guard: ConnectionGuard) -> LocalBoxFuture<'static>;

    /// The core was woken: there may be a new table.
    fn on_wake(&self);

    /// The core stops: resolves once nothing is in flight. Limited by `drain_max`.
    fn drain(self: Rc<Self>) -> LocalBoxFuture<'static>;

    /// After [`EventsService::drain`]: releases the logs to another process.
    fn release(self: Rc<Self>) -> LocalBoxFuture<'static>;
}

/// Makes the events service of a core from its proxy, whose ring, client and pending queue it shares.
pub type EventsServiceFactory = Box<dyn FnOnce(&Rc<Proxy>) -> io::Result<Rc<dyn EventsService>> + Send>;

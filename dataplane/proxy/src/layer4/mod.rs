//! Layer 4: connections and datagrams that are relayed to a backend without a look at what they carry.
//!
//! A connection of TCP is relayed as it comes. One of TLS is relayed by the server name that the client asks for: unread
//! (passthrough), or after TLS has ended here. Of UDP, datagrams of one client are a session with one endpoint.

mod connect;
mod limits;
mod relay;
mod udp;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use codec::client_hello::ServerName;
use contract::client_address::{ClientAddress, ClientScheme};
use contract::relay_counters::RelayOutcome;
use contract::relay_gauge::RelayGauge;
use contract::table::{Backend, EndpointAddress, Route};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::tls::{Transport, refuse_server_name};
use ring::{Chunk, Tick};

use crate::Proxy;
use crate::access_log::AccessLogEntry;
use connect::RelayUpstream;
use limits::RELAY_IDLE_MAX;
use relay::{RelayEnd, RelayedBytes};
pub use udp::{UdpRouteFn, serve_datagrams};

const TLS: &str = "TLS";

/// A client's connection that is relayed.
pub struct RelayClient {
    stream: Transport,
    /// Bytes of the client that were read already. In memory of their own: they wait for the backend.
    arrived: Chunk,
    protocol: &'static str,
    server_name: Option<ServerName>,
}

impl RelayClient {
    #[must_use]
    pub fn tcp(stream: impl Into<Transport>) -> Self {
        Self { stream: stream.into(), arrived: Chunk::empty(), protocol: "TCP", server_name: None }
    }

    /// A connection of TLS: unread, with what has arrived of it, or with TLS ended.
    #[must_use]
    pub fn tls(stream: impl Into<Transport>, arrived: Chunk, server_name: Option<ServerName>) -> Self {
        Self { stream: stream.into(), arrived, protocol: TLS, server_name }
    }
}

/// What is logged of a connection.
struct RelayRecord {
    started: Tick,
    upstream: Option<Duration>,
    backend: Option<Arc<Backend>>,
    endpoint: Option<EndpointAddress>,
    bytes: RelayedBytes,
}

/// Relays a connection to a backend of `route` until both sides have finished, or nothing passes for too long.
pub async fn relay_connection(
    proxy: Rc<Proxy>,
    client: RelayClient,
    route: Option<Arc<Route>>,
    guard: ConnectionGuard,
) {
    let Ok(address) = client.stream.peer_addr() else { return };
    let local = client.stream.local_addr().ok();
    let scheme = if client.stream.is_tls() { ClientScheme::Https } else { ClientScheme::Http };
    let address = ClientAddress::new(address, scheme).connected_to(local);
    let counters = Arc::clone(&proxy.counters);
    let open = RelayGauge::connection(&counters);
    let mut record = RelayRecord {
        started: proxy.ring.now(),
        upstream: None,
        backend: None,
        endpoint: None,
        bytes: RelayedBytes::default(),
    };
    let RelayClient { stream, arrived, protocol, server_name } = client;
    let outcome = match route {
        Some(route) => run(&proxy, (&stream, arrived), &address, &route, &mut record).await,
        None => refuse(&proxy, &stream, protocol).await,
    };
    // A client of TLS has an alert, which a reset could overtake.
    let is_told = outcome == RelayOutcome::NoRoute && protocol == TLS;
    let is_clean = is_told || matches!(outcome, RelayOutcome::Completed | RelayOutcome::IdleTimeout);
    if !is_clean && stream.set_reset_on_close(true).is_err() {
        tracing::debug!("a connection that was not relayed to its end is closed without a reset");
    }
    drop(open);
    counters.relays.ended(outcome);
    counters.relays.bytes_received.fetch_add(record.bytes.from_client, Relaxed);
    counters.relays.bytes_sent.fetch_add(record.bytes.to_client, Relaxed);
    log(&proxy, &address, protocol, server_name, &record, outcome);
    drop((stream, guard));
}

/// Ends a connection without a route.
async fn refuse(proxy: &Proxy, client: &Transport, protocol: &'static str) -> RelayOutcome {
    if let (Transport::Plain(stream), TLS) = (client, protocol) {
        refuse_server_name(&proxy.ring, stream).await;
    }
    RelayOutcome::NoRoute
}

async fn run(
    proxy: &Rc<Proxy>,
    (client, arrived): (&Transport, Chunk),
    address: &ClientAddress,
    route: &Route,
    record: &mut RelayRecord,
) -> RelayOutcome {
    let choice = match connect::choose(proxy, route, address) {
        Ok(choice) => choice,
        Err(outcome) => return outcome,
    };
    choice.backend.load.requests.fetch_add(1, Relaxed);
    record.backend = Some(Arc::clone(&choice.backend));
    let idle = choice.backend.timeouts.stream_idle.get().filter(|idle| !idle.is_zero()).unwrap_or(RELAY_IDLE_MAX);
    client.suspend(); // what it sends meanwhile must not take receive buffers
    // Boxed: the future of a connect is many times as large as that of a relay, which lives much longer.
    let RelayUpstream { permit, stream } = match Box::pin(connect::reach(proxy, choice, address)).await {
        Ok(upstream) => upstream,
        Err(outcome) => return outcome,
    };
    record.upstream = Some(proxy.ring.now() - record.started);
    record.endpoint = Some(permit.endpoint.address);
    let (bytes, end) = relay::relay(&proxy.ring, (client, arrived), &stream, idle).await;
    record.bytes = bytes;
    match end {
        RelayEnd::Completed => RelayOutcome::Completed,
        RelayEnd::Idle => RelayOutcome::IdleTimeout,
        RelayEnd::ClientBroken => {
            // Otherwise the server would take what it got for all.
            let _ = stream.set_reset_on_close(true);
            RelayOutcome::Reset
        }
        RelayEnd::UpstreamBroken => RelayOutcome::Reset,
    }
}

fn log(
    proxy: &Proxy,
    client: &ClientAddress,
    protocol: &'static str,
    server_name: Option<ServerName>,
    record: &RelayRecord,
    outcome: RelayOutcome,
) {
    let Some(log) = proxy.access.get().filter(|log| log.logs_everything()) else { return };
    log.put(&AccessLogEntry {
        at: SystemTime::now(),
        client: client.address,
        protocol,
        method: b"",
        host: server_name.as_ref().map_or(b"", |name| name.as_str().as_bytes()),
        path: b"",
        status: 0,
        received: Some(record.bytes.from_client),
        bytes: record.bytes.to_client,
        duration: proxy.ring.now() - record.started,
        waited: None,
        upstream: record.upstream,
        backend: record.backend.as_ref().map(|backend| &*backend.key),
        instance: record.endpoint,
        trace: None,
        reason: (outcome != RelayOutcome::Completed).then(|| outcome.name()),
    });
}

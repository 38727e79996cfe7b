//! Code that several targets share: a core of the proxy on a simulated machine, with a client and an instance.

pub mod instance;

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sluicegate_dataplane::core::{CoreConfig, CoreLimits, StopSignal, run_on};
use sluicegate_dataplane::table_publisher::TablePublisher;
use sluicegate_dataplane::signal::SignalQueue;
use sluicegate_dataplane::table::{Protocol, Route, RoutingTable};
use sluicegate_ring::sim::{FaultProfile, Simulation};
use sluicegate_ring::{RingListener, RingOptions, Ring, RingStream};

/// How a client begins that speaks HTTP/2 by prior knowledge.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Small pieces, and nothing breaks.
pub fn pieces() -> FaultProfile {
    FaultProfile {
        segment_bytes_max: 7,
        latency: Duration::from_micros(10)..=Duration::from_micros(300),
        ..FaultProfile::calm()
    }
}

/// One core's life: a client says `client`, an instance that is spoken to by `protocol` does what `serve` does. Returns
/// what the client got.
///
/// # Panics
/// If a connection or a request outlives the core.
pub fn night(
    client: &[u8],
    protocol: Protocol,
    fault_profile: FaultProfile,
    serve: impl AsyncFnOnce(Ring, RingListener) + 'static,
) -> Vec<u8> {
    let options = RingOptions { chunk_bytes: 4096, chunks: 64, ..RingOptions::default() };
    let simulation = Simulation::with_options(7, fault_profile, options);
    let ring = simulation.ring();

    // Of a real listener a simulated machine takes the address only.
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let http = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let upstream = RingListener::from_std(&ring, taken).expect("a simulated listener");
    let tables = TablePublisher::new(table(upstream.local_addr().expect("it listens"), protocol));
    let stop = Arc::new(StopSignal::default());
    let at = http.local_addr().expect("it listens");
    let config = CoreConfig {
        queries: None,
        index: 0,
        events: None,
        events_tls: None,
        make_events: None,
        tables: Arc::clone(&tables),
        signals: SignalQueue::new(|| {}),
        stop: Arc::clone(&stop),
        counters: Arc::default(),
        limits: CoreLimits::default(),
        seed: 1,
        http,
        https: None,
        private: None,
        private_https: None,
        cluster_local: None,
        up: Box::new(|| {}),
    };
    let counters = Arc::clone(&config.counters);

    let side = ring.clone();
    ring.spawn(async move { serve(side, upstream).await });
    let (bytes, side, answer) = (client.to_vec(), ring.clone(), Rc::new(RefCell::new(Vec::new())));
    let output = Rc::clone(&answer);
    ring.spawn(async move {
        *output.borrow_mut() = talk(&side, at, bytes).await;
        stop.signal(&tables);
    });
    run_on(&ring, config).expect("a simulated machine runs");
    ring.shutdown();
    assert_eq!(counters.connections_open.load(Relaxed), 0, "a connection outlived its core");
    drop(simulation);
    answer.take()
}

fn table(to: SocketAddr, protocol: Protocol) -> RoutingTable {
    let mut route = Route::to_addresses("*", &[to]);
    for split in &mut route.splits {
        Arc::get_mut(&mut split.backend).expect("it is new").protocol = protocol;
    }
    RoutingTable { any_host: Some(Arc::new(route)), ..RoutingTable::default() }
}

/// Sends all, and reads until we are done with the connection or the client has waited long enough.
async fn talk(ring: &Ring, to: SocketAddr, bytes: Vec<u8>) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(stream) = RingStream::connect(ring, to).await else { return answer };
    let spoken = async {
        let _ = stream.send(bytes).await; // we may refuse before it has all left
        while let Ok(chunk) = stream.recv().await {
            if chunk.is_empty() {
                break;
            }
            answer.extend_from_slice(&chunk);
        }
    };
    let _ = ring.timeout(Duration::from_secs(600), spoken).await;
    answer
}

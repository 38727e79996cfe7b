//! A client's HTTP/2 connection to the proxy.

use std::rc::Rc;
use std::sync::Arc;

use ring::Chunk;

use super::from_http2;
use crate::h2::io::IoState;
use crate::h2::server::{self, DetectedHttp2};
use crate::http::connection_tracker::ConnectionGuard;
use crate::proxy::connection_stats::{ConnectionStats, RegisteredConnection};
use crate::proxy::{LocalReply, Proxy};
use crate::tls::Transport;
use contract::client_address::ClientAddress;
use contract::table::host_name;

/// The state that the streams of one connection share.
pub(super) struct StreamContext {
    pub(super) proxy: Rc<Proxy>,
    pub(super) peer: ClientAddress,
    /// The connection's entry in debug queries.
    pub(super) stats: Rc<ConnectionStats>,
    /// The byte counts and trailers of its frames.
    pub(super) io_state: Rc<IoState>,
    /// The server name (SNI) that the client asked for.
    server_name: Option<Box<str>>,
}

/// Serves one connection until its client goes, or the core stops. `held` begins with the preface.
pub(in crate::proxy) async fn serve(
    proxy: Rc<Proxy>,
    stream: Transport,
    held: Chunk,
    guard: ConnectionGuard,
    (peer, open): (ClientAddress, RegisteredConnection),
) {
    let io_state = Rc::<IoState>::default();
    let stats = Rc::clone(&open.stats);
    stats.count_frames(&io_state, proxy.ring.now());
    let server_name = stream.server_name();
    let shared =
        Rc::new(StreamContext { proxy: Rc::clone(&proxy), peer, stats, io_state: Rc::clone(&io_state), server_name });
    let (ring, limits, counters) = (proxy.ring.clone(), *proxy.limits, Arc::clone(&proxy.counters));
    let opened = DetectedHttp2 { ring, limits, counters, stream, held, guard, io_state: Rc::clone(&io_state) };
    let served = server::serve(opened, true, |request, respond| {
        let shown = shared.stats.stream(&shared.proxy);
        let stream = from_http2::stream(Rc::clone(&shared), request, respond);
        async move {
            stream.await;
            drop(shown);
        }
    });
    served.await;
    proxy.counters.carried(io_state.received.get(), io_state.sent.get());
    drop(open); // counted as open until here
}

impl StreamContext {
    /// A client may send requests for several hosts on one connection only if its certificate covers all of them (RFC
    /// 9113 9.1.1). Otherwise a 421 tells it to open another connection (RFC 9110 15.5.20).
    pub(super) fn misdirected(&self, authority: &str) -> Option<LocalReply> {
        let name = self.server_name.as_deref()?;
        let host = host_name(authority);
        let cluster_local = self.peer.is_cluster_local();
        let covered = self.proxy.with_table(|table| table.covers(name, host, cluster_local));
        (!covered).then(|| LocalReply::MisdirectedRequest(host.chars().take(255).collect::<String>().into()))
    }
}

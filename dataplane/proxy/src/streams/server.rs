//! A client's HTTP/2 connection to the proxy.

use std::rc::Rc;
use std::sync::Arc;

use contract::client_address::ClientAddress;
use protocol::h2::io::IoState;
use protocol::h2::server::{self, DetectedHttp2, OpenedStream};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::tls::Transport;
use ring::Chunk;

use super::from_http2::{self, Http2Request};
use super::stream_context::StreamContext;
use super::websocket;
use crate::Proxy;
use crate::connection_stats::RegisteredConnection;

/// Serves one connection until its client goes, or the core stops. `held` begins with the preface.
pub(crate) async fn serve(
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
    let shared = Rc::new(StreamContext { proxy: Rc::clone(&proxy), peer, stats, server_name });
    let (ring, limits, counters) = (proxy.ring.clone(), *proxy.limits, Arc::clone(&proxy.counters));
    let opened = DetectedHttp2 { ring, limits, counters, stream, held, guard, io_state: Rc::clone(&io_state) };
    let served = server::serve(opened, true, |OpenedStream { head, ends, stream, open }| {
        let guards = (open, shared.stats.stream(&shared.proxy));
        let request = Http2Request::of(&shared.proxy, head, ends);
        let (ring, shared) = (&shared.proxy.ring, Rc::clone(&shared));
        if request.is_websocket {
            ring.spawn(websocket::stream(shared, request.translated, stream, guards));
        } else {
            ring.spawn_recycled(from_http2::stream(shared, request, stream, guards));
        }
    });
    served.await;
    proxy.counters.carried(io_state.received.get(), io_state.sent.get());
    drop(open); // counted as open until here
}

//! A client's HTTP/2 connection to the proxy.

use std::rc::Rc;
use std::sync::Arc;

use ring::Chunk;

use super::from_http2;
use crate::h2::io::IoState;
use crate::h2::server::{self, DetectedHttp2};
use crate::http::connection_tracker::ConnectionGuard;
use crate::http::headers::ClientAddress;
use crate::proxy::connection_stats::{ConnectionStats, RegisteredConnection};
use crate::proxy::{LocalReply, Proxy};
use crate::table::host_name;
use crate::tls::Transport;

/// What the streams of one connection share.
pub(super) struct StreamContext {
    pub(super) proxy: Rc<Proxy>,
    pub(super) peer: ClientAddress,
    /// What is shown of the connection.
    pub(super) stats: Rc<ConnectionStats>,
    /// What is known of its frames.
    pub(super) facts: Rc<IoState>,
    /// What the client asked for by TLS.
    server_name: Option<Box<str>>,
}

/// Serves one connection until its client goes, or the core stops. `held` begins with the preface.
pub(in crate::proxy) async fn serve(
    proxy: Rc<Proxy>,
    stream: Transport,
    held: Chunk,
    seat: ConnectionGuard,
    (peer, open): (ClientAddress, RegisteredConnection),
) {
    let facts = Rc::<IoState>::default();
    let sheet = Rc::clone(&open.stats);
    sheet.count_frames(&facts, proxy.ring.now());
    let server_name = stream.server_name();
    let shared =
        Rc::new(StreamContext { proxy: Rc::clone(&proxy), peer, stats: sheet, facts: Rc::clone(&facts), server_name });
    let (ring, limits, counters) = (proxy.ring.clone(), *proxy.limits, Arc::clone(&proxy.counters));
    let opened = DetectedHttp2 { ring, limits, counters, stream, held, guard: seat, facts: Rc::clone(&facts) };
    let served = server::serve(opened, true, |request, respond| {
        let shown = shared.stats.stream(&shared.proxy);
        let stream = from_http2::stream(Rc::clone(&shared), request, respond);
        async move {
            stream.await;
            drop(shown);
        }
    });
    served.await;
    proxy.counters.carried(facts.received.get(), facts.sent.get());
    drop(open); // it was open until here
}

impl StreamContext {
    /// A client may put requests for several hosts on one connection only if its certificate is for all of them
    /// (RFC 9113 9.1.1): otherwise it is told to open another (RFC 9110 15.5.20).
    pub(super) fn misdirected(&self, authority: &str) -> Option<LocalReply> {
        let name = self.server_name.as_deref()?;
        let host = host_name(authority);
        let inside = self.peer.is_inside();
        let covered = self.proxy.with_table(|table| table.covers(name, host, inside));
        (!covered).then(|| LocalReply::MisdirectedRequest(host.chars().take(255).collect::<String>().into()))
    }
}

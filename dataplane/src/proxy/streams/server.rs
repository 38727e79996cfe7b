//! A client's HTTP/2 connection to the proxy.

use std::rc::Rc;
use std::sync::Arc;

use ring::Chunk;

use super::from_http2;
use crate::h2::io::Facts;
use crate::h2::server::{self, Opened};
use crate::http::headers::Peer;
use crate::http::roster::Seat;
use crate::proxy::sheet::{Open, Sheet};
use crate::proxy::{Proxy, Refusal};
use crate::table::host_name;
use crate::tls::Wire;

/// What the streams of one connection share.
pub(super) struct Shared {
    pub(super) proxy: Rc<Proxy>,
    pub(super) peer: Peer,
    /// What is shown of the connection.
    pub(super) sheet: Rc<Sheet>,
    /// What is known of its frames.
    pub(super) facts: Rc<Facts>,
    /// What the client asked for by TLS.
    server_name: Option<Box<str>>,
}

/// Serves one connection until its client goes, or the core stops. `held` begins with the preface.
pub(in crate::proxy) async fn serve(
    proxy: Rc<Proxy>,
    stream: Wire,
    held: Chunk,
    seat: Seat,
    (peer, open): (Peer, Open),
) {
    let facts = Rc::<Facts>::default();
    let sheet = Rc::clone(&open.sheet);
    sheet.count_frames(&facts, proxy.ring.now());
    let server_name = stream.server_name();
    let shared =
        Rc::new(Shared { proxy: Rc::clone(&proxy), peer, sheet, facts: Rc::clone(&facts), server_name });
    let (ring, limits, counters) = (proxy.ring.clone(), *proxy.limits, Arc::clone(&proxy.counters));
    let opened = Opened { ring, limits, counters, stream, held, seat, facts: Rc::clone(&facts) };
    let served = server::serve(opened, true, |request, respond| {
        let shown = shared.sheet.stream(&shared.proxy);
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

impl Shared {
    /// A client may put requests for several hosts on one connection only if its certificate is for all of them
    /// (RFC 9113 9.1.1): otherwise it is told to open another (RFC 9110 15.5.20).
    pub(super) fn misdirected(&self, authority: &str) -> Option<Refusal> {
        let name = self.server_name.as_deref()?;
        let host = host_name(authority);
        let inside = self.peer.is_inside();
        let covered = self.proxy.with_table(|table| table.covers(name, host, inside));
        (!covered).then(|| Refusal::Misdirected(host.chars().take(255).collect::<String>().into()))
    }
}

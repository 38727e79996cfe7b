//! The state that the streams of one HTTP/2 connection share.

use std::rc::Rc;

use contract::client_address::ClientAddress;
use contract::table::host_name;
use protocol::h2::server::OpenStreamGuard;

use crate::connection_stats::{ConnectionStats, OpenStreamCount};
use crate::{LocalReply, Proxy};

/// What a stream holds until its end: it counts as open, for its connection and in debug queries.
pub(super) type StreamGuards = (OpenStreamGuard, OpenStreamCount);

/// The state that the streams of one connection share.
pub(super) struct StreamContext {
    pub(super) proxy: Rc<Proxy>,
    pub(super) peer: ClientAddress,
    /// The connection's entry in debug queries.
    pub(super) stats: Rc<ConnectionStats>,
    /// The server name (SNI) that the client asked for.
    pub(super) server_name: Option<Box<str>>,
}

impl StreamContext {
    /// A client may send requests for several hosts on one connection only if its certificate covers all of them (RFC
    /// 9113 9.1.1). Otherwise a 421 tells it to open another connection (RFC 9110 15.5.20).
    pub(super) fn misdirected(&self, authority: &str) -> Option<LocalReply> {
        if self.peer.listener().is_some() {
            return None; // such a listener decides by its hostnames, for every version of HTTP
        }
        let name = self.server_name.as_deref()?;
        let host = host_name(authority);
        let cluster_local = self.peer.is_cluster_local();
        let covered = self.proxy.with_table(|table| table.covers(name, host, cluster_local));
        (!covered).then(|| LocalReply::MisdirectedRequest(host.chars().take(255).collect::<String>().into()))
    }
}

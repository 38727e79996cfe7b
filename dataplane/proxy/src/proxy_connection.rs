//! The state of a client's connection, for whatever serves a request of it.

use std::rc::Rc;

use bytes::BytesMut;
use contract::client_address::ClientAddress;
use protocol::http::server::ClientConnection;

use super::Proxy;
use super::connection_stats::RegisteredConnection;
use super::request_record::RequestRecord;

/// A client's connection, with the buffers that it keeps from request to request.
pub(super) struct ProxyConnection {
    pub(super) proxy: Rc<Proxy>,
    pub(super) client: ClientConnection,
    pub(super) peer: ClientAddress,
    /// The request head for the instance, with the part of the body that arrived with it.
    pub(super) outgoing: BytesMut,
    pub(super) note: RequestRecord,
    /// Its counters and its entry in the connection list.
    pub(super) open: RegisteredConnection,
}

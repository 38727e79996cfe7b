//! Connections of a TLS listener where some are relayed: the server name decides who makes the handshake.

use std::rc::Rc;

use codec::client_hello::ServerName;
use contract::listener_sockets::ListenerId;
use contract::table::{TlsRelayMode, TlsTarget};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::tls::{HandshakeOutcome, NamedHello, TlsAcceptor};
use proxy::layer4::{RelayClient, relay_connection};
use proxy::{AcceptedStream, Proxy, serve_accepted};
use ring::{Chunk, RingStream};

/// Serves or relays a connection of the listener `id`.
pub(super) async fn serve(
    proxy: Rc<Proxy>,
    acceptor: Rc<TlsAcceptor>,
    (stream, id): (RingStream, ListenerId),
    guard: ConnectionGuard,
) {
    let Some(hello) = acceptor.read_server_name(&stream, Chunk::empty()).await else { return };
    let NamedHello { server_name, arrived, is_tls } = hello;
    let name = server_name.as_ref().map(ServerName::as_str);
    let target = proxy.with_table(|table| match table.listener(id) {
        Some(listener) if is_tls => listener.tls_target(name),
        _ => TlsTarget::Http, // what is not TLS is answered there
    });
    match target {
        TlsTarget::Http => {
            if let Some(stream) = acceptor.open_after(stream, arrived).await {
                serve_accepted(proxy, AcceptedStream::new(stream).accepted_by(id), guard).await;
            }
        }
        TlsTarget::Relay(_, None) => {
            acceptor.count(HandshakeOutcome::Refused);
            relay_connection(proxy, RelayClient::tls(stream, Chunk::empty(), server_name), None, guard).await;
        }
        TlsTarget::Relay(TlsRelayMode::Passthrough, route) => {
            acceptor.count(HandshakeOutcome::Forwarded);
            relay_connection(proxy, RelayClient::tls(stream, arrived, server_name), route, guard).await;
        }
        TlsTarget::Relay(TlsRelayMode::Terminate, route) => {
            if let Some(stream) = acceptor.open_relayed(stream, arrived).await {
                relay_connection(proxy, RelayClient::tls(stream, Chunk::empty(), server_name), route, guard).await;
            }
        }
    }
}

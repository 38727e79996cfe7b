//! Listeners where trusted proxies begin each connection with a PROXY protocol header. Other peers are served as elsewhere: a
//! header of theirs could name any client.

use std::cell::Cell;
use std::rc::Rc;

use codec::proxy_protocol::{self, ParsedProxyHeader, ProxiedClient};
use protocol::http::buffers::by;
use protocol::tls::TlsAcceptor;
use proxy::{AcceptedStream, Proxy, serve_accepted};
use ring::{Chunk, RingStream, Tick};

use super::{ACCEPT_LOG_INTERVAL, ConnectionHandler};

/// Serves connections without TLS.
pub(super) fn serve_plain(proxy: &Rc<Proxy>) -> ConnectionHandler {
    let (proxy, logged) = (Rc::clone(proxy), Rc::<Cell<Option<Tick>>>::default());
    Box::new(move |stream, guard| {
        let (proxy, logged) = (Rc::clone(&proxy), Rc::clone(&logged));
        Box::pin(async move {
            let Some((client, arrived)) = read(&proxy, &stream, &logged).await else { return };
            serve_accepted(proxy, AcceptedStream::proxied(stream, client, arrived), guard).await;
        })
    })
}

/// Serves connections with TLS, which begins after the header.
pub(super) fn serve_tls(proxy: &Rc<Proxy>, acceptor: Rc<TlsAcceptor>) -> ConnectionHandler {
    let (proxy, logged) = (Rc::clone(proxy), Rc::<Cell<Option<Tick>>>::default());
    Box::new(move |stream, guard| {
        let (proxy, acceptor, logged) = (Rc::clone(&proxy), Rc::clone(&acceptor), Rc::clone(&logged));
        Box::pin(async move {
            let Some((client, arrived)) = read(&proxy, &stream, &logged).await else { return };
            let Some(stream) = acceptor.open_after(stream, arrived).await else { return };
            serve_accepted(proxy, AcceptedStream::proxied(stream, client, Chunk::empty()), guard).await;
        })
    })
}

/// The header of a trusted proxy, and the bytes after it that have arrived. `None`: the connection is to be closed.
async fn read(proxy: &Proxy, stream: &RingStream, logged: &Cell<Option<Tick>>) -> Option<(ProxiedClient, Chunk)> {
    let peer = stream.peer_addr().ok()?;
    if !proxy.with_table(|table| table.gateway.trusted_proxies.contains(peer.ip())) {
        return Some((ProxiedClient::Local, Chunk::empty()));
    }
    let due = proxy.ring.now() + proxy.limits.head_max;
    let mut received = Vec::new(); // a header is rarely in more than one piece
    loop {
        let chunk = by(&proxy.ring, Some(due), stream.recv()).await.ok()?.ok()?;
        if chunk.is_empty() {
            return None;
        }
        received.extend_from_slice(&chunk);
        match proxy_protocol::parse(&received) {
            ParsedProxyHeader::Header { bytes, client } => {
                received.drain(..bytes);
                return Some((client, Chunk::from(received)));
            }
            ParsedProxyHeader::NeedBytes => {}
            ParsedProxyHeader::Malformed(why) => {
                let now = proxy.ring.now();
                if logged.get().is_none_or(|last| now - last >= ACCEPT_LOG_INTERVAL) {
                    logged.set(Some(now));
                    tracing::warn!(%peer, why, "connection of a trusted proxy closed; --proxy-protocol requires a header");
                }
                return None;
            }
        }
    }
}

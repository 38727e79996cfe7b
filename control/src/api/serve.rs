//! The connections of a listener of the API: how many, and how long one may take to say what it wants.
//!
//! When the listener ends, requests under way still end, and who waits for a next one is let go.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::serve::Listener;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use super::identity::Peer;

/// Connections at a time of one listener; further ones wait in the kernel. Twice the watches that one user may
/// have, and room for others.
pub const CONNECTIONS_MAX: u32 = 8_192;
/// How long a connection may take for the head of a request, the pause before it included. client-go lets go of
/// a quiet connection after 90 s, so it is the client who ends it, and no request meets a closing door.
pub const HEAD_MAX: Duration = Duration::from_secs(120);
/// Bytes of a request's head, and of what is read ahead of it. kubectl's largest selectors are some KiB.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves `until` then, and ends with the last request.
pub async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    peer: impl Fn(&L::Io, &L::Addr) -> Peer,
    until: impl Future<Output = ()>,
) {
    let mut until = pin!(until);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let (leave, leaving) = watch::channel(false);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX);
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, (stream, address)) = tokio::select! {
            next = next => next,
            () = &mut until => break,
        };
        let (who, router) = (ConnectInfo(peer(&stream, &address)), router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(who.clone());
            router.clone().oneshot(request)
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let mut leaving = leaving.clone();
        tokio::spawn(async move {
            let _place = place;
            let mut connection = pin!(connection);
            // How it ends is the client's business: its mistake, or it went away.
            tokio::select! {
                _ = &mut connection => return,
                _ = leaving.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    drop(listener);
    leave.send_replace(true);
    let _ = places.acquire_many(CONNECTIONS_MAX).await; // all places are free: the last one ended
}

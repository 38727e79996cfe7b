//! Connections of an API listener: their limit, and the timeouts of each.
//!
//! When the listener stops, requests in progress finish, and idle connections are closed.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::ConnectInfo;
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use http::{HeaderValue, Request, header};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{Semaphore, watch};
use tower::ServiceExt as _;

use crate::cross_origin::CrossOriginProtection;

use super::authentication::PeerIdentity;
use super::body::BODY_BYTES_MAX;
use super::errors::StatusError;

/// Connections of one listener at a time; further ones wait in the kernel's backlog. Twice the number of watches that
/// one user may have, plus spare connections for other users.
pub const CONNECTIONS_MAX: u32 = 8_192;
/// Time limit for the head of a request, including the idle time before it. client-go closes an idle connection after
/// 90 s, so the client closes it first, and no request meets a connection that the server is closing.
pub const REQUEST_HEADER_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for draining the rest of a body that no handler reads, for example of a rejected request. Then the
/// connection is closed.
pub const BODY_DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a request's head, and of what is read ahead of it. kubectl's largest selectors are some KiB.
pub const REQUEST_HEADER_BYTES_MAX: usize = 64 * 1024;

/// An eighth of the files that this process may open, where that is less: logs and instances need some too.
fn connections_max() -> u32 {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u32::try_from(allowed / 8).unwrap_or(u32::MAX).min(CONNECTIONS_MAX)
}

/// Serves `until` then, and ends with the last request. What `protection` rejects is answered by the router anyway, so that
/// the audit log has it.
pub async fn serve<L: Listener>(
    listener: L,
    router: Router,
    protection: CrossOriginProtection,
    peer: impl Fn(&L::Io, &L::Addr) -> PeerIdentity,
    until: impl Future<Output = ()>,
) {
    serve_at_most(connections_max(), listener, router, protection, peer, until).await;
}

/// The same with `connections_max` connections at a time, or fewer where the process may open few files.
pub async fn serve_at_most<L: Listener>(
    connections_max: u32,
    mut listener: L,
    router: Router,
    protection: CrossOriginProtection,
    peer: impl Fn(&L::Io, &L::Addr) -> PeerIdentity,
    until: impl Future<Output = ()>,
) {
    let mut until = pin!(until);
    let protection = Arc::new(protection);
    let connections_max = connections_max.min(self::connections_max());
    let places = Arc::new(Semaphore::new(connections_max as usize));
    let (leave, leaving) = watch::channel(false);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_HEADER_TIMEOUT).max_buf_size(REQUEST_HEADER_BYTES_MAX);
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
        let protection = Arc::clone(&protection);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(who.clone());
            request.extensions_mut().insert(Arc::clone(&protection));
            handle(router.clone(), request)
        });
        let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut leaving = leaving.clone();
        tokio::spawn(async move {
            let _place = place;
            let mut connection = pin!(connection);
            // An error here is the client's: a malformed request, or a closed connection.
            tokio::select! {
                _ = &mut connection => return,
                _ = leaving.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    drop(listener);
    leave.send_replace(true);
    let _ = places.acquire_many(connections_max).await; // all places are free: the last one ended
}

async fn handle(router: Router, request: Request<Incoming>) -> Result<Response, Infallible> {
    // What is read ahead may hold a head of twice its limit.
    if header_bytes(&request) > REQUEST_HEADER_BYTES_MAX {
        return Ok(StatusError::head_too_large(REQUEST_HEADER_BYTES_MAX).into_response());
    }
    // A client that sent `Expect` does not send its body after a rejection.
    let sends_unasked = !request.headers().contains_key(header::EXPECT);
    let (head, incoming) = request.into_parts();
    let rest = DrainableBody(Arc::new(Mutex::new(incoming)));
    let mut response = router.oneshot(Request::from_parts(head, Body::new(rest.clone()))).await?;
    let is_read = rest.is_end_stream()
        || sends_unasked && tokio::time::timeout(BODY_DRAIN_TIMEOUT, rest.drain(BODY_BYTES_MAX)).await.unwrap_or(false);
    if !is_read {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// A request's body, or the part of it that the handler did not read. The rest is drained, because closing a
/// connection with unread bytes may discard the response, and the client's next request.
#[derive(Clone)]
struct DrainableBody(Arc<Mutex<Incoming>>);

impl DrainableBody {
    fn lock(&self) -> MutexGuard<'_, Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads to the end; `false`: the body does not end, or exceeds this many bytes.
    async fn drain(mut self, bytes_max: usize) -> bool {
        let mut bytes = 0;
        while bytes <= bytes_max {
            match poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await {
                None => return true,
                Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(_)) => return false,
            }
        }
        false
    }
}

impl HttpBody for DrainableBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}

/// The approximate size of a request's head on the wire.
fn header_bytes<B>(request: &Request<B>) -> usize {
    let line = request.method().as_str().len() + request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + fields.sum::<usize>()
}

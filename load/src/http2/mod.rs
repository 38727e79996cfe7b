//! Clients that speak HTTP/2 and gRPC: connections with several requests each.

mod io;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{Reason, RecvStream};
use http::HeaderMap;
use ring::Notify;

use crate::deadline::RequestDeadline;
use crate::error::{FailureKind, RequestFailure};
use crate::limits::{HTTP2_HEADER_LIST_BYTES_MAX, HTTP2_SEND_BYTES_MAX, HTTP2_WINDOW_BYTES, RECONNECT_WAIT};
use crate::response::CompleteResponse;
use crate::stream::LoadStream;
use crate::worker::{ActiveClient, Worker};

use io::ClientIo;

/// Streams opened before the server's own limit is known.
const FIRST_STREAMS_MAX: usize = 100;
/// Overhead of small DATA frames that h2 buffers before their task reads them: many small responses may come at once.
const SMALL_DATA_BYTES_MAX: usize = 1 << 20;
/// Attempts to open a stream for a request that the server has not seen: the connection may be closing.
const ATTEMPTS_MAX: usize = 3;

/// A connection that several clients share. The first that needs it opens it again.
pub(crate) struct SharedConnection {
    worker: Rc<Worker>,
    sender: RefCell<Option<SendRequest<Bytes>>>,
    /// Counts the connections, so that a late error does not close the next one.
    generation: Cell<u64>,
    is_connecting: Cell<bool>,
    changed: Notify,
}

impl SharedConnection {
    pub(crate) async fn open(worker: &Rc<Worker>) -> Result<Rc<Self>, RequestFailure> {
        let made = Self::closed(worker);
        made.connect().await?;
        Ok(made)
    }

    /// One that connects for its first request.
    pub(crate) fn closed(worker: &Rc<Worker>) -> Rc<Self> {
        Rc::new(Self {
            worker: Rc::clone(worker),
            sender: RefCell::default(),
            generation: Cell::new(0),
            is_connecting: Cell::new(false),
            changed: Notify::default(),
        })
    }

    async fn connect(&self) -> Result<(), RequestFailure> {
        let (worker, checked) = (&self.worker, &self.worker.checked);
        let stream = LoadStream::connect(&worker.ring, &checked.target, checked.tls.as_ref(), Some(b"h2")).await?;
        let streams = checked.spec.streams;
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_window_size(HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(HTTP2_WINDOW_BYTES * streams as u32)
            .max_header_list_size(HTTP2_HEADER_LIST_BYTES_MAX)
            .initial_max_send_streams(streams.min(FIRST_STREAMS_MAX))
            .max_concurrent_reset_streams(streams)
            .data_frame_budget(SMALL_DATA_BYTES_MAX)
            .max_send_buffer_size(HTTP2_SEND_BYTES_MAX);
        let made = builder.handshake::<_, Bytes>(ClientIo::new(worker, stream)).await;
        let (sender, connection) = made.map_err(|why| failure(&why))?;
        worker.ring.spawn(async move {
            drop(connection.await); // its error reaches the streams
        });
        self.sender.replace(Some(sender));
        Ok(())
    }

    /// A handle of the open connection, and its number.
    async fn sender(&self) -> Result<(SendRequest<Bytes>, u64), RequestFailure> {
        loop {
            if let Some(sender) = &*self.sender.borrow() {
                return Ok((sender.clone(), self.generation.get()));
            }
            if !self.is_connecting.replace(true) {
                let guard = ConnectingGuard(self);
                let connected = self.connect().await;
                drop(guard);
                connected?;
            } else {
                self.changed.after(self.changed.count()).await;
            }
        }
    }

    /// The connection takes no more requests.
    fn close(&self, generation: u64) {
        if self.generation.get() == generation {
            self.generation.set(generation + 1);
            self.sender.take();
        }
    }
}

/// Lets the next client connect, also when this one is dropped.
struct ConnectingGuard<'a>(&'a SharedConnection);

impl Drop for ConnectingGuard<'_> {
    fn drop(&mut self) {
        self.0.is_connecting.set(false);
        self.0.changed.ring();
    }
}

/// One stream after the other on a shared connection.
pub(crate) struct Http2StreamClient {
    worker: Rc<Worker>,
    connection: Rc<SharedConnection>,
    deadline: Rc<RequestDeadline>,
    _active: ActiveClient,
}

impl Http2StreamClient {
    pub(crate) fn new(worker: &Rc<Worker>, connection: &Rc<SharedConnection>) -> Self {
        Self {
            worker: Rc::clone(worker),
            connection: Rc::clone(connection),
            deadline: worker.deadline(),
            _active: worker.client(),
        }
    }

    /// Sends requests until the test ends.
    pub(crate) async fn run(self) {
        while let Some(request) = self.worker.next().await {
            let answered = self.deadline.within(self.worker.timeout_at(), self.exchange()).await;
            match answered.unwrap_or_else(|_| Err(RequestFailure::timeout())) {
                Ok(response) => self.worker.record(request, &response),
                Err(failure) => {
                    self.worker.record_failure(request, &failure);
                    if matches!(failure.kind, FailureKind::Connect | FailureKind::Tls) {
                        self.worker.ring.sleep(RECONNECT_WAIT).await;
                    }
                }
            }
        }
    }

    /// Sends a request, again if the server says that it has not processed it.
    async fn exchange(&self) -> Result<CompleteResponse, RequestFailure> {
        let mut attempts = 1;
        loop {
            let (sender, generation) = self.connection.sender().await?;
            match self.attempt(sender).await {
                Ok(response) => return Ok(response),
                Err(AttemptError { why, is_unprocessed, ends_connection }) => {
                    if ends_connection {
                        self.connection.close(generation);
                    }
                    if !is_unprocessed || attempts == ATTEMPTS_MAX {
                        return Err(failure(&why));
                    }
                }
            }
            attempts += 1;
        }
    }

    async fn attempt(&self, sender: SendRequest<Bytes>) -> Result<CompleteResponse, AttemptError> {
        let template = &self.worker.checked.request;
        let mut sender = sender.ready().await.map_err(AttemptError::unprocessed)?;
        let head = template.http2(&mut self.worker.event_ids.borrow_mut());
        let body = template.body.clone();
        let (response, mut stream) = sender.send_request(head, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let (head, body) = response.await?.into_parts();
        let trailers = drain(body).await?;
        let grpc_status = trailers.as_ref().and_then(grpc_status).or_else(|| grpc_status(&head.headers));
        Ok(CompleteResponse { status: head.status.as_u16(), bytes: 0, keep_alive: true, grpc_status })
    }
}

/// Reads a body to its end, and drops it.
async fn drain(mut body: RecvStream) -> Result<Option<HeaderMap>, h2::Error> {
    if body.is_end_stream() {
        return Ok(None);
    }
    while let Some(piece) = body.data().await {
        body.flow_control().release_capacity(piece?.len())?;
    }
    body.trailers().await
}

/// The status of gRPC; one that is not a number counts as UNKNOWN.
fn grpc_status(fields: &HeaderMap) -> Option<u16> {
    const UNKNOWN: u16 = 2;
    let value = fields.get("grpc-status")?;
    Some(value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(UNKNOWN))
}

struct AttemptError {
    why: h2::Error,
    /// The server has not seen the request, or says so.
    is_unprocessed: bool,
    ends_connection: bool,
}

impl AttemptError {
    /// The stream was not opened.
    fn unprocessed(why: h2::Error) -> Self {
        Self { why, is_unprocessed: true, ends_connection: true }
    }
}

impl From<h2::Error> for AttemptError {
    fn from(why: h2::Error) -> Self {
        let reason = why.reason();
        let is_orderly_end = why.is_go_away() && reason == Some(Reason::NO_ERROR);
        let is_unprocessed = why.is_remote() && (is_orderly_end || reason == Some(Reason::REFUSED_STREAM));
        let ends_connection = why.is_io() || why.is_go_away();
        Self { why, is_unprocessed, ends_connection }
    }
}

fn failure(why: &h2::Error) -> RequestFailure {
    if why.is_io() {
        return RequestFailure::new(FailureKind::Closed, format!("the connection broke: {why}"));
    }
    RequestFailure::new(FailureKind::Http2, why)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn grpc_status_is_a_number_or_unknown() {
        for (text, status) in [("0", Some(0)), ("14", Some(14)), ("x", Some(2)), ("99999999", Some(2))] {
            let fields =
                HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static(text))]);
            assert_eq!(grpc_status(&fields), status, "{text}");
        }
        assert_eq!(grpc_status(&HeaderMap::new()), None);
    }
}

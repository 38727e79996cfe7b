//! Serves HTTP: incoming events and health checks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::binding::Headers;
use crate::error::Error;
use crate::event::Event;
use crate::intake::{DeliveryResult, Intake};
use crate::limits::{BODY_BYTES_MAX, BODY_TIMEOUT, CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, RESPONSE_TIME};

#[derive(Debug)]
pub struct Request {
    pub method: http::Method,
    pub path: String,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    /// Further fields. A content type among them replaces `content_type`.
    pub headers: Headers,
    pub body: Bytes,
    pub retry_after: Option<Duration>,
}

impl Response {
    pub fn new(status: u16, body: impl Into<Bytes>) -> Response {
        let content_type = "text/plain; charset=utf-8";
        Response { status, content_type, headers: Headers::new(), body: body.into(), retry_after: None }
    }

    /// An event in structured mode.
    pub fn event(event: &Event) -> Response {
        Response { content_type: "application/cloudevents+json", ..Response::new(200, crate::to_json(event)) }
    }

    fn into_http(self) -> http::Response<Full<Bytes>> {
        let mut builder = http::Response::builder().status(self.status);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            builder = builder.header("content-type", self.content_type);
        }
        for (name, value) in self.headers {
            builder = builder.header(name, value);
        }
        if let Some(pause) = self.retry_after {
            builder = builder.header("retry-after", pause.as_secs().max(1));
        }
        builder.body(Full::new(self.body)).unwrap_or_default()
    }
}

pub type Handler = Rc<dyn Fn(Request) -> LocalBoxFuture<'static, Response>>;

/// Accepts connections until the future is dropped. Then each open connection closes after the response it owes, so that a
/// client with a kept-alive connection reaches the next listener.
pub async fn serve(listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>, handler: Handler) {
    let acceptor = tls.map(tokio_rustls::TlsAcceptor::from);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (_open, closed) = watch::channel(());
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let handler = Rc::clone(&handler);
        let (acceptor, closed) = (acceptor.clone(), closed.clone());
        tokio::task::spawn_local(async move {
            let _permit = permit;
            match acceptor {
                None => connection(stream, handler, closed).await,
                Some(acceptor) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, handler, closed).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake timed out"),
                },
            }
        });
    }
}

async fn connection<I>(stream: I, handler: Handler, mut closed: watch::Receiver<()>)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let handler = Rc::clone(&handler);
        async move {
            let (head, body) = request.into_parts();
            let body = match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, BODY_BYTES_MAX).collect()).await {
                Ok(Ok(body)) => body,
                Ok(Err(_)) => {
                    let text = format!("request body is over the limit of {BODY_BYTES_MAX} bytes");
                    return Ok::<_, std::convert::Infallible>(Response::new(413, text).into_http());
                }
                Err(_) => {
                    let text = format!("request body did not arrive within {BODY_TIMEOUT:?}");
                    return Ok(Response::new(408, text).into_http());
                }
            };
            let path = head.uri.path().to_owned();
            let request = Request { method: head.method, path, headers: head.headers, body: body.to_bytes() };
            Ok(handler(request).await.into_http())
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut served = std::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        _ = closed.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Events of one request.
struct Submission {
    events: Vec<Event>,
    answer: oneshot::Sender<Response>,
}

/// The handler's end: gives events and gets the response.
#[derive(Clone)]
pub struct Submitter(mpsc::Sender<Submission>);

/// The receiver's end.
pub struct Submissions(mpsc::Receiver<Submission>);

pub fn submissions() -> (Submitter, Submissions) {
    // Each connection has at most one request.
    let (sender, receiver) = mpsc::channel(CONNECTIONS_MAX);
    (Submitter(sender), Submissions(receiver))
}

impl Submitter {
    pub async fn submit(&self, events: Vec<Event>) -> Response {
        if events.is_empty() {
            return Response::new(202, "");
        }
        let unavailable =
            |text: &'static str| Response { retry_after: Some(Duration::from_secs(1)), ..Response::new(503, text) };
        let (answer, answered) = oneshot::channel();
        if self.0.try_send(Submission { events, answer }).is_err() {
            return unavailable("too many requests are waiting");
        }
        answered.await.unwrap_or_else(|_| unavailable("the adapter stops"))
    }
}

/// Acknowledges one event of a request; the last one answers it.
pub struct PendingResponse(Rc<Answering>);

struct Answering {
    remaining: Cell<usize>,
    failure: RefCell<Option<DeliveryResult>>,
    answer: RefCell<Option<oneshot::Sender<Response>>>,
}

impl PendingResponse {
    pub fn settle(self, outcome: DeliveryResult) {
        let state = self.0;
        if outcome != DeliveryResult::Accepted {
            state.failure.borrow_mut().get_or_insert(outcome);
        }
        state.remaining.set(state.remaining.get().saturating_sub(1));
        if state.remaining.get() > 0 {
            return;
        }
        let response = match state.failure.take() {
            None | Some(DeliveryResult::Accepted) => Response::new(202, ""),
            Some(DeliveryResult::Rejected { status, message }) => Response::new(status.unwrap_or(400), message),
            Some(DeliveryResult::Released { status, message, retry_after }) => {
                let retry_after = retry_after.or(status.is_none().then_some(Duration::from_secs(1)));
                Response { retry_after, ..Response::new(status.unwrap_or(503), message) }
            }
        };
        if let Some(answer) = state.answer.take() {
            // An error means that the client is gone.
            let _ = answer.send(response);
        }
    }
}

impl Submissions {
    /// Answers 503 to requests that wait while the sender has no connection, so that their clients retry elsewhere or later.
    pub(crate) fn refuse_waiting(&mut self, reason: &str) {
        while let Ok(submission) = self.0.try_recv() {
            let response =
                Response { retry_after: Some(Duration::from_secs(1)), ..Response::new(503, reason.to_owned()) };
            // An error means that the client is gone.
            let _ = submission.answer.send(response);
        }
    }

    /// Passes requests on until the adapter stops and all are answered.
    pub async fn relay(&mut self, intake: &mut Intake<PendingResponse>) -> Result<(), Error> {
        let mut requests: u64 = 0;
        let mut stop = intake.stop();
        intake.ready();
        while !intake.finished() {
            let (open, stopping) = (intake.has_room(), intake.stopping());
            tokio::select! {
                biased;
                (answer, outcome) = intake.settled() => answer.settle(outcome),
                Some(submission) = self.0.recv(), if open => {
                    if submission.answer.is_closed() {
                        // The client is gone and got no 2xx, so it sends the request again.
                        continue;
                    }
                    requests += 1;
                    // Events of one request stay in order; requests are independent of each other.
                    let key = requests.to_string();
                    let state = Rc::new(Answering {
                        remaining: Cell::new(submission.events.len()),
                        failure: RefCell::default(),
                        answer: RefCell::new(Some(submission.answer)),
                    });
                    for event in submission.events {
                        intake.push(event, Some(&key), PendingResponse(Rc::clone(&state)));
                    }
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        // The tasks of the connections write the last responses.
        tokio::time::sleep(RESPONSE_TIME).await;
        Ok(())
    }
}

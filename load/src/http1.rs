//! A client that speaks HTTP/1.1: one connection, one request at a time.

use std::rc::Rc;

use ring::Chunk;

use crate::deadline::RequestDeadline;
use crate::error::{FailureKind, RequestFailure};
use crate::limits::RECONNECT_WAIT;
use crate::response::{CompleteResponse, ResponseDecoder};
use crate::stream::LoadStream;
use crate::worker::{ActiveClient, DueRequest, Worker};

pub(crate) struct Http1Client {
    worker: Rc<Worker>,
    deadline: Rc<RequestDeadline>,
    stream: Option<LoadStream>,
    decoder: ResponseDecoder,
    _active: ActiveClient,
}

impl Http1Client {
    pub(crate) async fn connect(worker: &Worker) -> Result<LoadStream, RequestFailure> {
        // A server without ALPN speaks HTTP/1.1 too.
        LoadStream::connect(&worker.ring, &worker.checked.target, worker.checked.tls.as_ref(), None).await
    }

    /// `stream` is a connection that is open already.
    pub(crate) fn new(worker: &Rc<Worker>, stream: Option<LoadStream>) -> Self {
        Self {
            worker: Rc::clone(worker),
            deadline: worker.deadline(),
            stream,
            decoder: ResponseDecoder::new(worker.checked.request.codec_method()),
            _active: worker.client(),
        }
    }

    /// Sends requests until the test ends.
    pub(crate) async fn run(mut self) {
        let (worker, deadline) = (Rc::clone(&self.worker), Rc::clone(&self.deadline));
        while let Some(request) = worker.next().await {
            let answered = deadline.within(worker.timeout_at(), self.exchange(request)).await;
            match answered.unwrap_or_else(|_| Err(RequestFailure::timeout())) {
                Ok(response) => {
                    if !response.keep_alive {
                        self.stream = None;
                    }
                    worker.record(request, &response);
                }
                Err(failure) => {
                    self.stream = None;
                    worker.record_failure(request, &failure);
                    if matches!(failure.kind, FailureKind::Connect | FailureKind::Tls) {
                        worker.ring.sleep(RECONNECT_WAIT).await;
                    }
                }
            }
        }
    }

    async fn exchange(&mut self, request: DueRequest) -> Result<CompleteResponse, RequestFailure> {
        // A server may close a connection that is idle. Between two requests of a closed loop none is.
        if request.has_waited && self.stream.as_ref().is_some_and(|stream| !stream.is_idle()) {
            self.stream = None;
        }
        let stream = match &self.stream {
            Some(stream) => stream,
            None => {
                self.decoder = ResponseDecoder::new(self.worker.checked.request.codec_method());
                self.stream.insert(Self::connect(&self.worker).await?)
            }
        };
        let message = self.worker.checked.request.http1(&mut self.worker.event_ids.borrow_mut());
        // A server that responds early may stop reading; its response counts.
        let sent = stream.send(Chunk::from(message)).await;
        loop {
            let received = stream.recv().await.map_err(|why| match &sent {
                Err(why) => RequestFailure::io(FailureKind::Send, why),
                Ok(()) => {
                    RequestFailure::new(FailureKind::Closed, format!("the connection broke before the response: {why}"))
                }
            })?;
            let response = if received.is_empty() {
                Some(self.decoder.close().ok_or_else(|| {
                    RequestFailure::new(
                        FailureKind::Closed,
                        "the server closed the connection before the response was complete",
                    )
                })?)
            } else {
                self.decoder.push(&received).map_err(RequestFailure::malformed)?
            };
            if let Some(response) = response {
                return Ok(response);
            }
        }
    }
}

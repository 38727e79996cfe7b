//! A client that is a recording: its request is all there, and its answer is dropped.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};

use super::{Attempt, Body, Course, Due, Fault, Gone, Job, Part, Reply, carry};
use crate::h2::trailers;
use crate::http::codec::{BodyReader, Framing, Piece, RequestHead};
use crate::proxy::mirror::Recording;
use crate::proxy::{Proxy, Wish};
use crate::table::{Ask, Backend};

/// Sends a whole request where `host` leads; the status of its answer, once that is over. `body` is framed as the
/// head says. `backend` becomes whoever it goes to.
pub(in crate::proxy) async fn replay(
    proxy: &Rc<Proxy>,
    host: &str,
    (head, written): (&RequestHead, &Bytes),
    body: Bytes,
    backend: &mut Option<Arc<Backend>>,
) -> Option<u16> {
    let started = proxy.ring.now();
    let ask = Ask::ours(host, head.view(written).path());
    let choice = proxy.route(&ask).ok()?;
    *backend = Some(Arc::clone(&choice.backend));
    let mut wish = Wish { ask, bytes: written.len() + body.len(), tried: Vec::new() };
    let (place, link) = proxy.reach(choice, &mut wish, started).await.ok()?;
    let course = Course::new(&proxy.limits);
    course.placed(&proxy.limits, place.backend());
    let job = Job {
        proxy,
        peer: None,
        head,
        written: written.clone(),
        meant: None, // it goes nowhere else
        wants_trailers: false,
        due: Due::new(started, &place.backend().timeouts),
        course: &course,
        backend: place.backend().key.clone(),
        scheme: place.backend().scheme(),
        timing: None, // nobody is told
    };
    job.course.request_read.set(head.framing == Framing::Empty);
    let mut body = Recorded { bytes: body, reader: BodyReader::new(head.framing) };
    match carry(&job, place, link, &mut body, &mut Nobody).await {
        Attempt::Done { status, .. } => Some(status),
        Attempt::Refused(_)
        | Attempt::Cut
        | Attempt::Stale
        | Attempt::Unread
        | Attempt::Unasked
        | Attempt::Switched => None,
    }
}

struct Recorded {
    bytes: Bytes,
    reader: BodyReader,
}

impl Body for Recorded {
    async fn next(&mut self) -> Result<Part, Fault> {
        match self.reader.next(&self.bytes).map_err(Fault::Malformed)? {
            Piece::Data { skip, take } => {
                self.bytes.advance(skip);
                Ok(Part::Data(self.bytes.split_to(take)))
            }
            Piece::End { .. } => Ok(Part::End(trailers::from_lines(self.reader.trailers()))),
            Piece::NeedBytes => Err(Fault::Gone),
        }
    }

    fn passed_on(&mut self, _bytes: usize) {}

    async fn watch(&mut self) {
        pending().await
    }
}

/// Takes an answer as fast as it comes.
struct Nobody;

impl Reply for Nobody {
    async fn interim(&mut self, _answer: Response<()>) -> Result<(), Gone> {
        Ok(())
    }

    async fn head(&mut self, _answer: Response<()>, _ends: bool) -> Result<(), Gone> {
        Ok(())
    }

    async fn data(&mut self, _bytes: Bytes, _ends: bool) -> Result<(), Gone> {
        Ok(())
    }

    async fn end(&mut self, _trailers: Option<HeaderMap>) -> Result<(), Gone> {
        Ok(())
    }

    async fn end_late(&mut self) -> Result<(), Gone> {
        Ok(())
    }

    fn poll_gone(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// A body that is recorded while it passes, if anybody wants that.
pub(super) struct Taped<'a, B> {
    pub(super) body: &'a mut B,
    pub(super) tape: Option<Recording>,
    pub(super) chunked: bool,
}

impl<B: Body> Body for Taped<'_, B> {
    async fn next(&mut self) -> Result<Part, Fault> {
        let part = self.body.next().await?;
        let Some(tape) = &mut self.tape else { return Ok(part) };
        match &part {
            Part::Data(bytes) if self.chunked && !bytes.is_empty() => {
                tape.add(format!("{:x}\r\n", bytes.len()).as_bytes()); // only for what is copied anyway
                tape.add(bytes);
                tape.add(b"\r\n");
            }
            Part::Data(bytes) => tape.add(bytes),
            Part::End(_) if self.chunked => tape.add(b"0\r\n\r\n"),
            Part::End(_) => {}
        }
        Ok(part)
    }

    fn passed_on(&mut self, bytes: usize) {
        self.body.passed_on(bytes);
    }

    async fn watch(&mut self) {
        self.body.watch().await;
    }
}

impl<B> Taped<'_, B> {
    /// The request is over.
    pub(super) fn end(self, job: &Job<'_>, ended: &Attempt) {
        let Some(tape) = self.tape else { return };
        tape.end(match ended {
            Attempt::Done { status, .. } if job.course.request_read.get() => Some(*status),
            _ => None,
        });
    }
}

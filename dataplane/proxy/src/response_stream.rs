//! The response direction: from the instance to the client.

use std::cell::Cell;
use std::io;

use bytes::BufMut;
use codec::http::{
    BodyDecoder, BodyFraming, FieldName, HttpVersion, MalformedHttp, RequestHead, ResponseHead, UpgradeRequest,
    has_token, parse_response,
};
use protocol::http::buffers::{HeadReadError, ReadBuffer, WriteBuffer, by, earlier};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::http::date;
use protocol::http::headers::{ResponseContext, SwitchedProtocol, put_changed_response, put_response};
use protocol::http::limits::{HttpLimits, INTERIM_MAX};
use protocol::http::relay::{self, RelayStep};
use protocol::tls::{ByteStream, Transport};
use ring::{Chunk, Ring, Tick};

use super::cold_start_timing::ColdStartTiming;
use super::deadlines::ResponseDeadlines;
use super::exchange_progress::ExchangeProgress;
use super::outcome::AttemptOutcome;
use super::session_affinity::put_cookie;
use super::{LocalReply, Permit};

/// One attempt to get a response.
pub(super) struct ResponseStream<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) request: &'a RequestHead,
    pub(super) guard: &'a ConnectionGuard,
    pub(super) client: &'a Transport,
    pub(super) out: &'a mut WriteBuffer,
    pub(super) up: &'a Transport,
    pub(super) read_buffer: &'a mut ReadBuffer,
    pub(super) head: &'a mut ResponseHead,
    /// The connection has carried a request before.
    pub(super) reused: bool,
    pub(super) progress: &'a ExchangeProgress,
    pub(super) deadlines: &'a ResponseDeadlines,
    pub(super) timing: Option<&'a ColdStartTiming>,
    /// Released as soon as the instance is done, which is before a slow client is.
    pub(super) permit: &'a mut Option<Permit>,
}

impl ResponseStream<'_> {
    pub(super) async fn run(&mut self) -> AttemptOutcome {
        let head = match self.final_head().await {
            Ok(_) if self.deadlines.is_over(self.ring) => {
                return AttemptOutcome::Refused(LocalReply::ResponseTimeout);
            }
            Ok(head) => head,
            Err(attempt) => return attempt,
        };
        if self.head.status == 101 {
            let upgrade = match self.request.upgrade {
                UpgradeRequest::Admitted { .. } => SwitchedProtocol::Other,
                _ => SwitchedProtocol::WebSocket,
            };
            let client = ResponseContext { upgrade, ..ResponseContext::INTERIM };
            self.put_head(&head, client);
            self.put_cookie();
            self.add_server_timing();
            drop(head);
            self.progress.activity.answer_begins(self.ring.now());
            return if self.flush().await.is_ok() { AttemptOutcome::Switched } else { AttemptOutcome::Cut };
        }
        self.progress.activity.answer_begins(self.ring.now());

        let sent_before = self.out.bytes;
        let modern = self.request.version == HttpVersion::Http11;
        let chunked = modern && matches!(self.head.framing, BodyFraming::Chunked | BodyFraming::UntilClose);
        let unbounded = !chunked && matches!(self.head.framing, BodyFraming::Chunked | BodyFraming::UntilClose);
        let close =
            unbounded || !self.request.keep_alive || self.guard.is_draining() || !self.progress.is_request_read();
        if unbounded && self.client.set_reset_on_close(true).is_err() {
            return AttemptOutcome::Cut; // the client is gone
        }
        let date = Some(date::at(self.ring.now()));
        let client =
            ResponseContext { chunked, close, keep_alive: !modern && !close, upgrade: SwitchedProtocol::None, date };
        self.put_head(&head, client);
        self.put_cookie();
        self.add_server_timing();
        drop(head); // the receive buffer is released

        match self.body(chunked).await {
            Ok(()) => {}
            // No byte was sent yet, so a complete local reply still can be.
            Err(abort @ (ResponseAbort::Instance | ResponseAbort::Malformed(_))) if self.out.bytes == sent_before => {
                if unbounded {
                    let _ = self.client.set_reset_on_close(false); // an error: the client is gone
                }
                return match abort {
                    ResponseAbort::Malformed(why) => self.malformed(why),
                    _ => self.failed(),
                };
            }
            Err(_) => return AttemptOutcome::Cut,
        }
        if self.progress.is_sent() {
            *self.permit = None;
        }
        if self.end(close).await.is_err() {
            return AttemptOutcome::Cut;
        }
        if unbounded && self.client.set_reset_on_close(false).is_err() {
            return AttemptOutcome::Cut;
        }
        AttemptOutcome::Done { status: self.head.status, close }
    }

    /// Sends the last bytes. Few of them are still unsent while the connection continues to its next request. The next
    /// read also shows if the client is gone, and closing the connection waits for detached sends.
    async fn end(&mut self, close: bool) -> io::Result<()> {
        if close || self.out.buffer.is_empty() {
            return self.flush().await;
        }
        let bytes = self.out.buffer.split().freeze();
        let count = bytes.len() as u64;
        match self.client.send_detached(bytes.into()) {
            Ok(()) => self.out.bytes += count,
            Err(bytes) => self.send(bytes).await?,
        }
        Ok(())
    }

    fn add_server_timing(&mut self) {
        if let Some(timing) = self.timing {
            timing.put(&mut self.out.buffer, self.ring.now());
        }
    }

    /// Reads the head of the final response; interim responses are forwarded.
    async fn final_head(&mut self) -> Result<Chunk, AttemptOutcome> {
        let received_before = self.read_buffer.bytes;
        // Interim responses and partial heads count as bytes from the instance.
        let received = Cell::new(None);
        let mut interim = 0;
        let mut continue_sent = !self.request.expects_continue;
        let continue_at = self.ring.now() + self.limits.continue_after;
        loop {
            let waits_for_us = !continue_sent && !self.progress.is_body_started();
            let at = earlier(self.head_due(received.get()), waits_for_us.then_some(continue_at));
            let (asked, head) = (self.request.method, &mut *self.head);
            let parse = |bytes: &[u8]| parse_response(bytes, asked, head);
            let parsed = self.read_buffer.head_noting(self.up, parse, || received.set(Some(self.ring.now())));
            let bytes = match by(self.ring, at, parsed).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(HeadReadError::Malformed(why))) => {
                    return Err(self.malformed(why));
                }
                Ok(Err(_)) if self.reused && self.read_buffer.bytes == received_before => {
                    return Err(AttemptOutcome::Stale);
                }
                Ok(Err(why)) if why.is_reset() && self.read_buffer.bytes == received_before => {
                    return Err(AttemptOutcome::Unread);
                }
                Ok(Err(_)) => return Err(self.failed()),
                Err(_) if self.head_due(received.get()).is_some_and(|due| self.ring.now() >= due) => {
                    return Err(AttemptOutcome::Refused(LocalReply::ResponseTimeout));
                }
                Err(_) if !waits_for_us || self.ring.now() < continue_at => continue, // a part of the head came
                Err(_) => {
                    // The instance is silent; many do not implement `Expect`. See `continue_after`.
                    continue_sent = true;
                    self.out.buffer.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                    self.flush().await.map_err(|_| AttemptOutcome::Cut)?;
                    continue;
                }
            };

            if !self.head.is_interim() {
                // The proxy asks only for the protocol that the client asked for.
                let foreign = self.head.status == 101 && !self.is_switch_asked_for(&bytes);
                return if foreign { Err(self.malformed(MalformedHttp::SwitchNotRequested)) } else { Ok(bytes) };
            }
            received.set(Some(self.ring.now()));
            interim += 1;
            if interim > INTERIM_MAX {
                return Err(self.malformed(MalformedHttp::TooManyInterim));
            }
            let wanted = self.head.status != 100 || !continue_sent;
            if wanted && self.request.version == HttpVersion::Http11 {
                continue_sent |= self.head.status == 100;
                put_response(&mut self.out.buffer, self.head.view(&bytes), ResponseContext::INTERIM);
                drop(bytes);
                self.flush().await.map_err(|_| AttemptOutcome::Cut)?;
            }
        }
    }

    /// When the rest of the response head has to be there.
    fn head_due(&self, received: Option<Tick>) -> Option<Tick> {
        self.deadlines.head(received, self.progress.request_sent(), self.ring.now())
    }

    async fn body(&mut self, chunked: bool) -> Result<(), ResponseAbort> {
        let mut reader = BodyDecoder::of_response(self.head.framing);
        loop {
            let step = relay::step(self.read_buffer, &mut reader, chunked, &mut self.out.buffer);
            match step.map_err(ResponseAbort::Malformed)? {
                RelayStep::Done => return Ok(()),
                RelayStep::Send(piece) => {
                    self.flush().await.map_err(|_| ResponseAbort::Client)?;
                    self.send(piece).await.map_err(|_| ResponseAbort::Client)?;
                    relay::after_send(chunked, &mut self.out.buffer);
                }
                RelayStep::NeedBytes => {
                    self.flush().await.map_err(|_| ResponseAbort::Client)?;
                    let due = self.deadlines.next_byte(self.ring);
                    let filled = by(self.ring, due, self.read_buffer.fill_rest(self.up)).await;
                    if filled.is_err() && self.deadlines.is_active(self.progress.activity.last(), self.ring.now()) {
                        continue; // the request still moves
                    }
                    self.progress.activity.received(self.ring.now());
                    match filled {
                        Ok(Ok(_)) if self.deadlines.is_over(self.ring) => return Err(ResponseAbort::Late),
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) if reader.may_close() => {
                            if chunked {
                                relay::put_end(&reader, &mut self.out.buffer);
                            }
                            return Ok(());
                        }
                        Ok(Ok(false) | Err(_)) => return Err(ResponseAbort::Instance),
                        Err(_) => return Err(ResponseAbort::Late),
                    }
                }
            }
        }
    }

    /// Writes the head of the final response.
    fn put_head(&mut self, bytes: &[u8], client: ResponseContext) {
        let changes = self.permit.as_ref().and_then(Permit::response_changes);
        put_changed_response(&mut self.out.buffer, self.head.view(bytes), client, changes);
    }

    /// Adds the affinity cookie to the head that was written last.
    fn put_cookie(&mut self) {
        put_cookie(&mut self.out.buffer, self.permit.as_ref().and_then(|permit| permit.selected.affinity.cookie));
    }

    async fn flush(&mut self) -> io::Result<()> {
        if self.out.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.out.buffer.split().freeze();
        self.send(Chunk::from(bytes)).await
    }

    async fn send(&mut self, bytes: Chunk) -> io::Result<()> {
        self.out.bytes += bytes.len() as u64;
        self.progress.silence.end();
        let (activity, send) = (&self.progress.activity, self.client.send(bytes));
        let sent = activity.send(self.ring, self.deadlines.total, send).await;
        self.progress.silence.start(self.ring.now());
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether the instance switches to the requested protocol.
    fn is_switch_asked_for(&self, bytes: &[u8]) -> bool {
        let protocol = match self.request.upgrade {
            UpgradeRequest::None | UpgradeRequest::Offered => return false,
            UpgradeRequest::WebSocket => "websocket",
            // Before the request has left whole, its rest and the tunnel's first bytes could not be distinguished.
            UpgradeRequest::Admitted { .. } if !self.progress.is_sent() => return false,
            UpgradeRequest::Admitted { listed, .. } => match self.limits.upgrade_protocols.get(usize::from(listed)) {
                Some(protocol) => protocol,
                None => return false,
            },
        };
        self.head.view(bytes).values(FieldName::Upgrade).any(|value| has_token(value, protocol))
    }

    fn failed(&self) -> AttemptOutcome {
        AttemptOutcome::Refused(LocalReply::UpstreamClosed(self.backend_key()))
    }

    fn malformed(&self, why: MalformedHttp) -> AttemptOutcome {
        AttemptOutcome::Refused(LocalReply::UpstreamMalformed(self.backend_key(), why))
    }

    fn backend_key(&self) -> Box<str> {
        self.permit.as_ref().map(|permit| permit.backend().key.clone()).unwrap_or_default()
    }
}

/// Why a response broke off.
enum ResponseAbort {
    Instance,
    /// Its body is not valid HTTP/1.
    Malformed(MalformedHttp),
    /// Its deadline has passed.
    Late,
    Client,
}

//! The answer's way: from the instance to the client.

use std::cell::Cell;
use std::io;

use bytes::BufMut;
use ring::{Chunk, Ring};

use super::bond::put_cookie;
use super::exchange::{Attempt, Due};
use super::sending::Progress;
use super::timing::Timing;
use super::{Place, Refusal};
use crate::http::codec::{
    BodyReader, Framing, Name, RequestHead, ResponseHead, Version, has_token, parse_response,
};
use crate::http::date;
use crate::http::headers::{ForClient, put_response};
use crate::http::limits::{HttpLimits, INTERIM_MAX};
use crate::http::relay::{self, Step};
use crate::http::roster::Seat;
use crate::http::wire::{HeadFault, Inflow, Outflow, by, earlier};
use crate::tls::{Pipe, Wire};

/// One attempt at being answered.
pub(super) struct Answering<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) request: &'a RequestHead,
    pub(super) seat: &'a Seat,
    pub(super) client: &'a Wire,
    pub(super) out: &'a mut Outflow,
    pub(super) up: &'a Wire,
    pub(super) inflow: &'a mut Inflow,
    pub(super) head: &'a mut ResponseHead,
    /// The connection has carried a request before.
    pub(super) reused: bool,
    pub(super) progress: &'a Progress,
    pub(super) due: &'a Due,
    pub(super) timing: Option<&'a Timing>,
    /// Given back as soon as the instance is done, which is before a slow client is.
    pub(super) place: &'a mut Option<Place>,
}

impl Answering<'_> {
    pub(super) async fn run(&mut self) -> Attempt {
        let head = match self.final_head().await {
            Ok(_) if self.due.is_over(self.ring) => return Attempt::Refused(Refusal::TimedOut),
            Ok(head) => head,
            Err(attempt) => return attempt,
        };
        if self.head.status == 101 {
            let client = ForClient { websocket: true, ..ForClient::INTERIM };
            put_response(&mut self.out.buffer, self.head.view(&head), client);
            self.put_cookie();
            self.tell_timing();
            drop(head);
            self.progress.activity.answer_begins(self.ring.now());
            return if self.flush().await.is_ok() { Attempt::Switched } else { Attempt::Cut };
        }
        self.progress.activity.answer_begins(self.ring.now());

        let sent_before = self.out.bytes;
        let modern = self.request.version == Version::Http11;
        let chunked = modern && matches!(self.head.framing, Framing::Chunked | Framing::UntilClose);
        let unbounded = !chunked && matches!(self.head.framing, Framing::Chunked | Framing::UntilClose);
        let close = unbounded
            || !self.request.keep_alive
            || self.seat.is_draining()
            || !self.progress.is_request_read();
        if unbounded && self.client.set_reset_on_close(true).is_err() {
            return Attempt::Cut; // the client is gone
        }
        let date = Some(date::at(self.ring.now()));
        let client = ForClient { chunked, close, keep_alive: !modern && !close, websocket: false, date };
        put_response(&mut self.out.buffer, self.head.view(&head), client);
        self.put_cookie();
        self.tell_timing();
        drop(head); // the receive buffer goes back

        match self.body(chunked).await {
            Ok(()) => {}
            // Nothing has left yet, so a whole answer still can.
            Err(Stop::Instance) if self.out.bytes == sent_before => {
                if unbounded {
                    let _ = self.client.set_reset_on_close(false); // an error: the client is gone
                }
                return self.failed();
            }
            Err(Stop::Instance | Stop::Client | Stop::Late) => return Attempt::Cut,
        }
        if self.progress.is_sent() {
            *self.place = None;
        }
        if self.end(close).await.is_err() {
            return Attempt::Cut;
        }
        if unbounded && self.client.set_reset_on_close(false).is_err() {
            return Attempt::Cut;
        }
        Attempt::Done { status: self.head.status, close }
    }

    /// Sends the last bytes; few of them leave while the connection goes on to its next request. That shows as well if the client
    /// is gone, and the connection's end waits for what was posted.
    async fn end(&mut self, close: bool) -> io::Result<()> {
        if close || self.out.buffer.is_empty() {
            return self.flush().await;
        }
        let bytes = self.out.buffer.split().freeze();
        let count = bytes.len() as u64;
        match self.client.post(bytes.into()) {
            Ok(()) => self.out.bytes += count,
            Err(bytes) => self.send(bytes).await?,
        }
        Ok(())
    }

    fn tell_timing(&mut self) {
        if let Some(timing) = self.timing {
            timing.put(&mut self.out.buffer, self.ring.now());
        }
    }

    /// The final answer's head; interim ones are passed on.
    async fn final_head(&mut self) -> Result<Chunk, Attempt> {
        let received_before = self.inflow.bytes;
        // Interim responses and the beginning of a head are traffic of the instance.
        let received = Cell::new(None);
        let mut interim = 0;
        let mut told_to_continue = !self.request.expects_continue;
        let continue_at = self.ring.now() + self.limits.continue_after;
        loop {
            let waits_for_us = !told_to_continue && !self.progress.is_body_begun();
            let at = earlier(self.due.head(received.get()), waits_for_us.then_some(continue_at));
            let (asked, head) = (self.request.method, &mut *self.head);
            let parse = |bytes: &[u8]| parse_response(bytes, asked, head);
            let parsed = self.inflow.head_noting(self.up, parse, || received.set(Some(self.ring.now())));
            let bytes = match by(self.ring, at, parsed).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(HeadFault::Malformed(why))) => {
                    let key = self.backend_key();
                    return Err(Attempt::Refused(Refusal::InstanceMalformed(key, why)));
                }
                Ok(Err(_)) if self.reused && self.inflow.bytes == received_before => {
                    return Err(Attempt::Stale);
                }
                Ok(Err(why)) if why.is_reset() && self.inflow.bytes == received_before => {
                    return Err(Attempt::Unread);
                }
                Ok(Err(_)) => return Err(self.failed()),
                Err(_) if self.due.head(received.get()).is_some_and(|due| self.ring.now() >= due) => {
                    return Err(Attempt::Refused(Refusal::TimedOut));
                }
                Err(_) if !waits_for_us || self.ring.now() < continue_at => continue, // a part of the head came
                Err(_) => {
                    // The instance is silent; many do not know the expectation. See `continue_after`.
                    told_to_continue = true;
                    self.out.buffer.put_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                    self.flush().await.map_err(|_| Attempt::Cut)?;
                    continue;
                }
            };

            if !self.head.is_interim() {
                // The only other protocol that we ask for is the one that the client asked for.
                let foreign = self.head.status == 101 && !self.is_websocket(&bytes);
                return if foreign { Err(self.failed()) } else { Ok(bytes) };
            }
            received.set(Some(self.ring.now()));
            interim += 1;
            if interim > INTERIM_MAX {
                return Err(self.failed());
            }
            let wanted = self.head.status != 100 || !told_to_continue;
            if wanted && self.request.version == Version::Http11 {
                told_to_continue |= self.head.status == 100;
                put_response(&mut self.out.buffer, self.head.view(&bytes), ForClient::INTERIM);
                drop(bytes);
                self.flush().await.map_err(|_| Attempt::Cut)?;
            }
        }
    }

    async fn body(&mut self, chunked: bool) -> Result<(), Stop> {
        let mut reader = BodyReader::of_response(self.head.framing);
        loop {
            let step = relay::step(self.inflow, &mut reader, chunked, &mut self.out.buffer);
            match step.map_err(|_| Stop::Instance)? {
                Step::Done => return Ok(()),
                Step::Send(piece) => {
                    self.flush().await.map_err(|_| Stop::Client)?;
                    self.send(piece).await.map_err(|_| Stop::Client)?;
                    relay::after_send(chunked, &mut self.out.buffer);
                }
                Step::NeedBytes => {
                    self.flush().await.map_err(|_| Stop::Client)?;
                    let due = self.due.next_byte(self.ring);
                    let filled = by(self.ring, due, self.inflow.fill(self.up)).await;
                    self.progress.activity.received(self.ring.now());
                    match filled {
                        Ok(Ok(_)) if self.due.is_over(self.ring) => return Err(Stop::Late),
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) if reader.may_close() => {
                            if chunked {
                                relay::put_end(&reader, &mut self.out.buffer);
                            }
                            return Ok(());
                        }
                        Ok(Ok(false) | Err(_)) => return Err(Stop::Instance),
                        Err(_) => return Err(Stop::Late),
                    }
                }
            }
        }
    }

    /// A client that is to stay where it is gets its cookie, into the head that was written last.
    fn put_cookie(&mut self) {
        put_cookie(&mut self.out.buffer, self.place.as_ref().and_then(|place| place.choice.bond.cookie));
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
        let sent = activity.send(self.ring, self.due.total, send).await;
        self.progress.silence.begin(self.ring.now());
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether the instance switches as it was asked to.
    fn is_websocket(&self, bytes: &[u8]) -> bool {
        let mut upgrades = self.head.view(bytes).values(Name::Upgrade);
        self.request.wants_websocket && upgrades.any(|value| has_token(value, "websocket"))
    }

    fn failed(&self) -> Attempt {
        Attempt::Refused(Refusal::InstanceFailed(self.backend_key()))
    }

    fn backend_key(&self) -> Box<str> {
        self.place.as_ref().map(|place| place.backend().key.clone()).unwrap_or_default()
    }
}

/// Why an answer broke off.
enum Stop {
    Instance,
    /// Its time was up.
    Late,
    Client,
}

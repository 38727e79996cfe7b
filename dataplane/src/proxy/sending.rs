//! The request's way: from the client to its instance.

use std::cell::Cell;
use std::future::pending;

use bytes::Bytes;
use ring::{Chunk, Ring};

use super::Refusal;
use super::activity::Activity;
use super::exchange::Attempt;
use super::mirror::Recording;
use super::watch::{Silence, watch};
use crate::http::codec::BodyReader;
use crate::http::limits::HttpLimits;
use crate::http::relay::{self, Step};
use crate::http::wire::{Inflow, Outflow};
use crate::tls::{Pipe, Wire};

/// What the two directions of an exchange know of each other.
pub(super) struct Progress {
    /// The request's body was read to its end.
    request_read: Cell<bool>,
    /// ... and all of it was sent.
    sent: Cell<bool>,
    /// The first byte of the body has come, so the client does not wait for `100 Continue`.
    body_begun: Cell<bool>,
    pub(super) activity: Activity,
    /// Towards the client.
    pub(super) silence: Silence,
}

impl Progress {
    pub(super) fn new(body: &BodyReader, body_begun: bool, activity: Activity) -> Self {
        let done = body.is_done();
        Self {
            request_read: done.into(),
            sent: false.into(),
            body_begun: body_begun.into(),
            activity,
            silence: Silence::default(),
        }
    }

    pub(super) fn is_request_read(&self) -> bool {
        self.request_read.get()
    }

    pub(super) fn is_sent(&self) -> bool {
        self.sent.get()
    }

    pub(super) fn is_body_begun(&self) -> bool {
        self.body_begun.get()
    }
}

/// One attempt at sending.
pub(super) struct Sending<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) client: &'a Wire,
    pub(super) inflow: &'a mut Inflow,
    pub(super) body: &'a mut BodyReader,
    pub(super) chunked: bool,
    pub(super) up: &'a Wire,
    pub(super) out: &'a mut Outflow,
    pub(super) progress: &'a Progress,
    /// Of the request, if a copy is wanted.
    pub(super) tape: &'a mut Option<Recording>,
}

/// Why nothing more is sent.
enum Stop {
    /// The instance takes no more. It may have answered all the same.
    Instance,
    With(Refusal),
    /// The client's connection is broken, or ended in the middle of the body.
    ClientGone,
}

impl Sending<'_> {
    /// Sends the request; ends only if the client is at fault.
    pub(super) async fn run(&mut self, wire: Bytes) -> Attempt {
        match self.send_all(wire).await {
            Ok(()) => {
                self.progress.sent.set(true);
                let (silence, most) = (&self.progress.silence, self.limits.half_closed_silence_max);
                watch(self.ring, self.client, self.inflow, silence, most).await;
                Attempt::Cut
            }
            Err(Stop::Instance) => pending().await,
            Err(Stop::ClientGone) => Attempt::Cut,
            Err(Stop::With(_)) if self.progress.activity.answered().is_some() => Attempt::Cut,
            Err(Stop::With(refusal)) => Attempt::Refused(refusal),
        }
    }

    async fn send_all(&mut self, wire: Bytes) -> Result<(), Stop> {
        // What becomes of a small one that is whole, the answer shows.
        let left = if self.body.is_done() { self.up.post(wire.into()) } else { Err(wire.into()) };
        if let Err(wire) = left {
            self.put(wire).await?;
        }
        while !self.body.is_done() {
            if self.inflow.held.is_empty() {
                self.flush().await?;
                self.more().await?;
            }
            let step = relay::step(self.inflow, self.body, self.chunked, &mut self.out.buffer);
            if let Step::Send(piece) = step.map_err(|why| Stop::With(Refusal::Malformed(why)))? {
                self.flush().await?;
                self.record(&piece);
                self.put(piece).await?;
                relay::after_send(self.chunked, &mut self.out.buffer);
            }
        }
        self.progress.request_read.set(true);
        self.flush().await
    }

    /// The next bytes of the body.
    async fn more(&mut self) -> Result<(), Stop> {
        match self.progress.activity.body(self.ring, self.inflow.fill(self.client)).await {
            Ok(Ok(true)) => {
                self.progress.body_begun.set(true);
                Ok(())
            }
            Ok(Ok(false) | Err(_)) => Err(Stop::ClientGone),
            Err(_) => Err(Stop::With(Refusal::BodyStalled)),
        }
    }

    async fn flush(&mut self) -> Result<(), Stop> {
        if self.out.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.out.buffer.split().freeze();
        self.record(&bytes);
        self.put(Chunk::from(bytes)).await
    }

    fn record(&mut self, bytes: &[u8]) {
        if let Some(tape) = self.tape {
            tape.add(bytes);
        }
    }

    async fn put(&self, bytes: Chunk) -> Result<(), Stop> {
        match self.progress.activity.send(self.ring, None, self.up.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Stop::Instance),
            Err(_) => Err(Stop::With(Refusal::TimedOut)),
        }
    }
}

//! The request direction: from the client to its instance.

use std::future::pending;

use bytes::Bytes;
use codec::http::BodyDecoder;
use protocol::http::buffers::{ReadBuffer, WriteBuffer};
use protocol::http::limits::HttpLimits;
use protocol::http::relay::{self, RelayStep};
use protocol::tls::{ByteStream, Transport};
use ring::{Chunk, Ring};

use super::LocalReply;
use super::disconnect_watcher::watch;
use super::exchange_progress::ExchangeProgress;
use super::mirror::MirrorBuffer;
use super::outcome::AttemptOutcome;

/// One attempt to send the request.
pub(super) struct RequestStream<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) client: &'a Transport,
    pub(super) read_buffer: &'a mut ReadBuffer,
    pub(super) body: &'a mut BodyDecoder,
    pub(super) chunked: bool,
    pub(super) up: &'a Transport,
    pub(super) out: &'a mut WriteBuffer,
    pub(super) progress: &'a ExchangeProgress,
    /// Records the request, if it is mirrored.
    pub(super) mirror_buffer: &'a mut Option<Box<MirrorBuffer>>,
}

/// Why sending stops.
enum RequestAbort {
    /// The instance accepts no more bytes. It may have responded anyway.
    Instance,
    With(LocalReply),
    /// The client's connection is broken, or ended inside the body.
    ClientGone,
}

impl RequestStream<'_> {
    /// Sends the request. Resolves only if the client is at fault.
    pub(super) async fn run(&mut self, wire: Bytes) -> AttemptOutcome {
        match self.send_all(wire).await {
            Ok(()) => {
                self.progress.sent.set(true);
                let (silence, most) = (&self.progress.silence, self.limits.half_closed_silence_max);
                watch(self.ring, self.client, self.read_buffer, silence, most).await;
                AttemptOutcome::Cut
            }
            Err(RequestAbort::Instance) => pending().await,
            Err(RequestAbort::ClientGone) => AttemptOutcome::Cut,
            Err(RequestAbort::With(_)) if self.progress.activity.answered().is_some() => AttemptOutcome::Cut,
            Err(RequestAbort::With(local_reply)) => AttemptOutcome::Refused(local_reply),
        }
    }

    async fn send_all(&mut self, wire: Bytes) -> Result<(), RequestAbort> {
        // The response shows whether a small request that is complete arrived.
        let left = if self.body.is_done() { self.up.send_detached(wire.into()) } else { Err(wire.into()) };
        if let Err(wire) = left {
            self.put(wire).await?;
        }
        while !self.body.is_done() {
            if self.read_buffer.unread.is_empty() {
                self.flush().await?;
                self.more().await?;
            }
            let step = relay::step(self.read_buffer, self.body, self.chunked, &mut self.out.buffer);
            if let RelayStep::Send(piece) = step.map_err(|why| RequestAbort::With(LocalReply::Malformed(why)))? {
                self.flush().await?;
                self.record(&piece);
                self.put(piece).await?;
                relay::after_send(self.chunked, &mut self.out.buffer);
            }
        }
        self.progress.request_read.set(true);
        self.flush().await
    }

    /// Reads the next bytes of the body.
    async fn more(&mut self) -> Result<(), RequestAbort> {
        match self.progress.activity.body(self.ring, self.read_buffer.fill_rest(self.client)).await {
            Ok(Ok(true)) => {
                self.progress.body_started.set(true);
                Ok(())
            }
            Ok(Ok(false) | Err(_)) => Err(RequestAbort::ClientGone),
            Err(_) => Err(RequestAbort::With(LocalReply::RequestBodyTimeout)),
        }
    }

    async fn flush(&mut self) -> Result<(), RequestAbort> {
        if self.out.buffer.is_empty() {
            return Ok(());
        }
        let bytes = self.out.buffer.split().freeze();
        self.record(&bytes);
        self.put(Chunk::from(bytes)).await
    }

    fn record(&mut self, bytes: &[u8]) {
        if let Some(mirror_buffer) = self.mirror_buffer {
            mirror_buffer.add(bytes);
        }
    }

    async fn put(&self, bytes: Chunk) -> Result<(), RequestAbort> {
        match self.progress.activity.send(self.ring, None, self.up.send(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(RequestAbort::Instance),
            Err(_) => Err(RequestAbort::With(LocalReply::ResponseTimeout)),
        }
    }
}

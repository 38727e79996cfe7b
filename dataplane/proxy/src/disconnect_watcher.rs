//! Detects that a client has disconnected while its request waits or is with an instance.

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use ring::{Ring, Tick};

use protocol::http::buffers::ReadBuffer;
use protocol::tls::Transport;

/// How long the client has been sent nothing.
#[derive(Debug)]
pub(super) struct SilenceTimer {
    /// `None` while bytes are being sent.
    since: Cell<Option<Tick>>,
}

impl Default for SilenceTimer {
    fn default() -> Self {
        Self { since: Cell::new(Some(Tick::ZERO)) }
    }
}

impl SilenceTimer {
    /// Bytes are being sent.
    pub(super) fn end(&self) {
        self.since.set(None);
    }

    /// The bytes were sent.
    pub(super) fn start(&self, now: Tick) {
        self.since.set(Some(now));
    }

    /// Resolves when the silence has lasted for `most`, counted from now at the earliest.
    async fn lasts(&self, ring: &Ring, most: Duration) {
        let from = ring.now();
        let mut due = from + most;
        while due > ring.now() {
            ring.sleep_until(due).await;
            due = self.since.get().unwrap_or(ring.now()).max(from) + most;
        }
    }
}

/// Resolves when the client closes its connection. Bytes of its body or of a next request are kept and do not hide the
/// close.
pub(super) async fn gone(client: &Transport, read_buffer: &mut ReadBuffer) {
    while read_buffer.unread.is_empty() {
        match read_buffer.fill(client).await {
            Ok(true) => read_buffer.detach(),
            Ok(false) | Err(_) => return,
        }
    }
    // A client that continues sending would fill buffers that other requests need.
    client.suspend();
    if client.hung_up().await.is_err() {
        pending().await // the kernel cannot tell
    }
}

/// The same for a client whose whole request is with an instance. A client that has finished sending may still wait for
/// its response, so it counts as gone only after `silence_max` without a response byte: bytes sent to a closed
/// connection are answered with a reset.
pub(super) async fn watch(
    ring: &Ring,
    client: &Transport,
    read_buffer: &mut ReadBuffer,
    silence: &SilenceTimer,
    silence_max: Duration,
) {
    while read_buffer.unread.is_empty() && !read_buffer.ended {
        if read_buffer.fill(client).await.is_err() {
            return;
        }
        read_buffer.detach();
    }
    if !read_buffer.ended {
        return pending().await;
    }
    // Boxed: few clients half-close, and every exchange would reserve memory for the wait.
    Box::pin(silence.lasts(ring, silence_max)).await;
}

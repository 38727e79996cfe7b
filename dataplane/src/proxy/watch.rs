//! Whether a client is still there, while others have its request.

use std::cell::Cell;
use std::future::pending;
use std::time::Duration;

use ring::{Ring, Tick};

use crate::http::wire::Inflow;
use crate::tls::Wire;

/// How long a client has been sent nothing.
#[derive(Debug)]
pub(super) struct Silence {
    /// `None` while something is on its way to it.
    since: Cell<Option<Tick>>,
}

impl Default for Silence {
    fn default() -> Self {
        Self { since: Cell::new(Some(Tick::ZERO)) }
    }
}

impl Silence {
    /// Something is sent.
    pub(super) fn end(&self) {
        self.since.set(None);
    }

    /// The client has it.
    pub(super) fn begin(&self, now: Tick) {
        self.since.set(Some(now));
    }

    /// Ends when it has lasted for `most` from now on.
    async fn lasts(&self, ring: &Ring, most: Duration) {
        let from = ring.now();
        let mut due = from + most;
        while due > ring.now() {
            ring.sleep_until(due).await;
            due = self.since.get().unwrap_or(ring.now()).max(from) + most;
        }
    }
}

/// Ends when the client's connection does. What came of its body, or of a next request, is kept, and does not hide its end.
pub(super) async fn gone(client: &Wire, inflow: &mut Inflow) {
    while inflow.held.is_empty() {
        match inflow.fill(client).await {
            Ok(true) => inflow.detach(),
            Ok(false) | Err(_) => return,
        }
    }
    // A client that goes on sending would fill buffers that are for those who are served.
    client.suspend();
    if client.hung_up().await.is_err() {
        pending().await // nobody can tell
    }
}

/// The same for one whose whole request is with an instance. A client that has finished sending may still wait for its
/// answer, so it is gone only when that has brought nothing for `silence_max`; what is sent to one that has closed its
/// connection is answered with a reset.
pub(super) async fn watch(
    ring: &Ring,
    client: &Wire,
    inflow: &mut Inflow,
    silence: &Silence,
    silence_max: Duration,
) {
    while inflow.held.is_empty() && !inflow.ended {
        if inflow.fill(client).await.is_err() {
            return;
        }
        inflow.detach();
    }
    if !inflow.ended {
        return pending().await;
    }
    // Boxed: few clients do it, and every exchange has room for the wait.
    Box::pin(silence.lasts(ring, silence_max)).await;
}

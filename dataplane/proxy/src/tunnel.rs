//! A connection that has become a WebSocket, or another protocol by `Upgrade`: bytes pass both ways until one side ends it.
//!
//! A tunnel holds its permit for as long as it lives. The response timeouts of the route apply to the instance's bytes
//! (AMB-11), and `tunnel_idle_max` limits silence on both sides. When the core stops, or such a limit is reached, both
//! ends of a WebSocket get a Close frame after the frame in flight. A tunnel of another protocol is closed.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use codec::http::UpgradeRequest;
use protocol::http::buffers::{ReadBuffer, by, earlier};
use protocol::http::connection_tracker::ConnectionGuard;
use protocol::http::limits::HttpLimits;
use protocol::http::pool::UpstreamConnection;
use protocol::http::server::ClientConnection;
use protocol::http::websocket::{FrameTracker, GOING_AWAY, going_away_masked};
use protocol::tls::ByteStream;
use ring::{Chunk, Ring, Tick};

use super::deadlines::ResponseDeadlines;
use super::proxy_connection::ProxyConnection;

/// What a tunnel needs besides its two ends.
pub(super) struct TunnelContext<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) guard: &'a ConnectionGuard,
    /// Masks the Close frame to the instance; `None`: the protocol is not WebSocket.
    pub(super) key: Option<[u8; 4]>,
    /// The route's deadlines; the 101 counts as the first byte of the instance.
    pub(super) deadlines: ResponseDeadlines,
}

/// Carries bytes until both sides have finished, or one is broken.
pub(super) async fn tunnel(
    connection: &mut ProxyConnection,
    upstream: Box<UpstreamConnection>,
    due: ResponseDeadlines,
) {
    let is_websocket = connection.client.head.upgrade == UpgradeRequest::WebSocket;
    let key = is_websocket.then(|| connection.proxy.rng.borrow_mut().u32(..).to_be_bytes());
    let ClientConnection { ring, stream: client, read_buffer, write_buffer, guard, limits, .. } =
        &mut connection.client;
    let context = TunnelContext { ring, limits, guard, key, deadlines: due };
    write_buffer.bytes += between(&context, client, read_buffer, upstream).await;
}

/// The same for any kind of client. Returns how many bytes the client was sent.
pub(super) async fn between(
    context: &TunnelContext<'_>,
    client: &impl ByteStream,
    read_buffer: &mut ReadBuffer,
    mut upstream: Box<UpstreamConnection>,
) -> u64 {
    let TunnelContext { ring, limits, guard, key, deadlines: due } = *context;
    let UpstreamConnection { stream: instance, read_buffer: from_instance, .. } = &mut *upstream;
    let (draining, last) = (Cell::new(false), Cell::new(ring.now()));
    let last_bytes = Cell::new(ring.now());
    let state = TunnelState { ring, limits, deadlines: due, draining, last, last_bytes };
    let to_client = Cell::new(0);
    let close_frame = key.map(|key| Chunk::from(going_away_masked(key)));
    let up = one_way(&state, read_buffer, client, instance, close_frame, None);
    let close_frame = key.map(|_| Chunk::from(GOING_AWAY));
    let down = one_way(&state, from_instance, instance, client, close_frame, Some(&to_client));

    let mut both = pin!(both(up, down, &state.draining));
    loop {
        let due = state.next_deadline();
        let event = poll_fn(|cx| {
            if !state.draining.get() && guard.poll_draining(cx).is_ready() {
                state.drain();
                return Poll::Ready(TunnelEvent::Look);
            }
            both.as_mut().poll(cx).map(|()| TunnelEvent::Done)
        });
        match by(ring, Some(due), event).await {
            Ok(TunnelEvent::Done) => break,
            Ok(TunnelEvent::Look) => {}
            Err(_) if state.next_deadline() > ring.now() => {} // bytes passed meanwhile
            Err(_) if state.draining.get() => break,
            Err(_) => state.drain(),
        }
    }
    to_client.get()
}

enum TunnelEvent {
    Done,
    Look,
}

struct TunnelState<'a> {
    ring: &'a Ring,
    limits: &'a HttpLimits,
    deadlines: ResponseDeadlines,
    /// The tunnel is closing; Close frames are being sent.
    draining: Cell<bool>,
    /// When bytes last passed, or when draining began.
    last: Cell<Tick>,
    /// When the instance last sent bytes: its 101 at first.
    last_bytes: Cell<Tick>,
}

impl TunnelState<'_> {
    fn drain(&self) {
        self.draining.set(true);
        self.last.set(self.ring.now());
    }

    /// When the tunnel times out: after silence, at the route's deadline, or when a peer does not answer the Close
    /// frame.
    fn next_deadline(&self) -> Tick {
        if self.draining.get() {
            return self.last.get() + self.limits.linger_max;
        }
        let silent = self.last.get() + self.limits.tunnel_idle_max;
        earlier(Some(silent), self.deadlines.tunnel(self.last_bytes.get())).unwrap_or(silent)
    }
}

/// Carries one direction to its end. `close_frame` is sent when the tunnel is closed before that; without one, bytes have no
/// frames.
async fn one_way(
    state: &TunnelState<'_>,
    read_buffer: &mut ReadBuffer,
    from: &impl ByteStream,
    to: &impl ByteStream,
    close_frame: Option<Chunk>,
    passed: Option<&Cell<u64>>,
) -> io::Result<()> {
    let mut frames = FrameTracker::default();
    loop {
        let more = {
            let mut fill = pin!(read_buffer.fill(from));
            poll_fn(|cx| match fill.as_mut().poll(cx) {
                _ if state.draining.get() && (close_frame.is_none() || frames.is_between()) => Poll::Ready(Ok(None)),
                polled => polled.map(|more| more.map(Some)),
            })
            .await?
        };
        let bytes = match more {
            None => break,
            Some(false) => return to.shutdown_write().await,
            Some(true) if state.draining.get() => {
                let taken = frames.rest_of_frame(&read_buffer.unread);
                read_buffer.unread.split_to(taken)
            }
            Some(true) => {
                if close_frame.is_some() {
                    frames.pass(&read_buffer.unread);
                }
                state.last.set(state.ring.now());
                if passed.is_some() {
                    state.last_bytes.set(state.ring.now());
                }
                std::mem::take(&mut read_buffer.unread)
            }
        };
        send(state, to, bytes, passed).await?;
    }
    if let Some(close_frame) = close_frame {
        send(state, to, close_frame, passed).await?;
    }
    to.shutdown_write().await?;
    // The peer answers the Close frame by closing; bytes until then are discarded.
    loop {
        read_buffer.unread = Chunk::empty();
        if !read_buffer.fill(from).await? {
            return Ok(());
        }
    }
}

async fn send(
    state: &TunnelState<'_>,
    to: &impl ByteStream,
    bytes: Chunk,
    passed: Option<&Cell<u64>>,
) -> io::Result<()> {
    if let Some(passed) = passed {
        passed.set(passed.get() + bytes.len() as u64);
    }
    // A reader may pause for as long as the tunnel may be silent; the tunnel's own timer ends both.
    to.send(bytes).await?;
    if !state.draining.get() {
        state.last.set(state.ring.now());
    }
    Ok(())
}

/// Runs both to their ends; a broken one ends the other. Not while draining: a client whose connection is closed while
/// it still sends is reset, and may lose the Close frame that it has not read.
async fn both(
    one: impl Future<Output = io::Result<()>>,
    other: impl Future<Output = io::Result<()>>,
    draining: &Cell<bool>,
) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut one_done, mut other_done) = (false, false);
    poll_fn(|cx| {
        for (done, polled) in [
            (&mut one_done, one.as_mut() as std::pin::Pin<&mut dyn Future<Output = _>>),
            (&mut other_done, other.as_mut()),
        ] {
            if !*done && let Poll::Ready(ended) = polled.poll(cx) {
                *done = true;
                if ended.is_err() && !draining.get() {
                    return Poll::Ready(());
                }
            }
        }
        if one_done && other_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

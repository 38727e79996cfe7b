//! A connection that has become a WebSocket: bytes pass both ways until somebody ends it.
//!
//! A tunnel holds its place in the instance for as long as it lives. It is an answer like others: what limits
//! the time of an answer limits what the instance says in it (AMB-11), and `tunnel_idle_max` silence on both
//! sides. When the core stops, or such a limit is reached, both ends are told with a Close frame at the
//! end of the frame that is under way.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use ring::{Chunk, Ring, Tick};

use super::connection::Connection;
use super::exchange::Due;
use crate::http::limits::HttpLimits;
use crate::http::pool::Upstream;
use crate::http::roster::Seat;
use crate::http::server::Downstream;
use crate::http::websocket::{Frames, GOING_AWAY, going_away_masked};
use crate::http::wire::{Inflow, by, earlier};
use crate::tls::Pipe;

/// What a tunnel has besides its two ends.
pub(super) struct Course<'a> {
    pub(super) ring: &'a Ring,
    pub(super) limits: &'a HttpLimits,
    pub(super) seat: &'a Seat,
    /// Masks the goodbye to the instance.
    pub(super) key: [u8; 4],
    /// The route's limits; the 101 is the first word of the instance.
    pub(super) due: Due,
}

/// Carries bytes until both sides have finished, or one is broken.
pub(super) async fn tunnel(connection: &mut Connection, upstream: Box<Upstream>, due: Due) {
    let key = connection.proxy.rng.borrow_mut().u32(..).to_be_bytes();
    let Downstream { ring, stream: client, inflow, outflow, seat, limits, .. } = &mut connection.client;
    let course = Course { ring, limits, seat, key, due };
    outflow.bytes += between(&course, client, inflow, upstream).await;
}

/// The same between any client and an instance; how many bytes the client was sent.
pub(super) async fn between(
    course: &Course<'_>,
    client: &impl Pipe,
    inflow: &mut Inflow,
    mut upstream: Box<Upstream>,
) -> u64 {
    let Course { ring, limits, seat, key, due } = *course;
    let Upstream { stream: instance, inflow: from_instance, .. } = &mut *upstream;
    let (leaving, last) = (Cell::new(false), Cell::new(ring.now()));
    let heard = Cell::new(ring.now());
    let state = State { ring, limits, due, leaving, last, heard };
    let to_client = Cell::new(0);
    let up = one_way(&state, inflow, client, instance, Chunk::from(going_away_masked(key)), None);
    let down = one_way(&state, from_instance, instance, client, Chunk::from(GOING_AWAY), Some(&to_client));

    let mut both = pin!(both(up, down, &state.leaving));
    loop {
        let due = state.due();
        let event = poll_fn(|cx| {
            if !state.leaving.get() && seat.poll_draining(cx).is_ready() {
                state.leave();
                return Poll::Ready(Event::Look);
            }
            both.as_mut().poll(cx).map(|()| Event::Done)
        });
        match by(ring, Some(due), event).await {
            Ok(Event::Done) => break,
            Ok(Event::Look) => {}
            Err(_) if state.due() > ring.now() => {} // something passed meanwhile
            Err(_) if state.leaving.get() => break,
            Err(_) => state.leave(),
        }
    }
    to_client.get()
}

enum Event {
    Done,
    Look,
}

struct State<'a> {
    ring: &'a Ring,
    limits: &'a HttpLimits,
    due: Due,
    /// The tunnel ends; goodbyes are said.
    leaving: Cell<bool>,
    /// When something passed, or when the leaving began.
    last: Cell<Tick>,
    /// When the instance said something: its 101 at first.
    heard: Cell<Tick>,
}

impl State<'_> {
    fn leave(&self) {
        self.leaving.set(true);
        self.last.set(self.ring.now());
    }

    /// When patience ends: with silence, with the route's time, or with ends that do not say goodbye.
    fn due(&self) -> Tick {
        if self.leaving.get() {
            return self.last.get() + self.limits.linger_max;
        }
        let silent = self.last.get() + self.limits.tunnel_idle_max;
        earlier(Some(silent), self.due.after(self.heard.get())).unwrap_or(silent)
    }
}

/// Carries one direction to its end; `goodbye` is said when the tunnel ends before it.
async fn one_way(
    state: &State<'_>,
    inflow: &mut Inflow,
    from: &impl Pipe,
    to: &impl Pipe,
    goodbye: Chunk,
    passed: Option<&Cell<u64>>,
) -> io::Result<()> {
    let mut frames = Frames::default();
    loop {
        let more = {
            let mut fill = pin!(inflow.fill(from));
            poll_fn(|cx| match fill.as_mut().poll(cx) {
                _ if state.leaving.get() && frames.is_between() => Poll::Ready(Ok(None)),
                polled => polled.map(|more| more.map(Some)),
            })
            .await?
        };
        let bytes = match more {
            None => break,
            Some(false) => return to.shutdown_write().await,
            Some(true) if state.leaving.get() => {
                let taken = frames.rest_of_frame(&inflow.held);
                inflow.held.split_to(taken)
            }
            Some(true) => {
                frames.pass(&inflow.held);
                state.last.set(state.ring.now());
                if passed.is_some() {
                    state.heard.set(state.ring.now());
                }
                std::mem::take(&mut inflow.held)
            }
        };
        send(state, to, bytes, passed).await?;
    }
    send(state, to, goodbye, passed).await?;
    to.shutdown_write().await?;
    // The other side answers the goodbye by closing; what it says until then goes nowhere.
    loop {
        inflow.held = Chunk::empty();
        if !inflow.fill(from).await? {
            return Ok(());
        }
    }
}

async fn send(state: &State<'_>, to: &impl Pipe, bytes: Chunk, passed: Option<&Cell<u64>>) -> io::Result<()> {
    if let Some(passed) = passed {
        passed.set(passed.get() + bytes.len() as u64);
    }
    // A reader may pause for as long as the tunnel may be silent; the tunnel's own timer ends both.
    to.send(bytes).await?;
    if !state.leaving.get() {
        state.last.set(state.ring.now());
    }
    Ok(())
}

/// Runs both to their ends; a broken one ends the other. Once goodbyes are said it does not: a client whose connection is
/// closed while it still sends is reset, and may lose the goodbye that it has not read.
async fn both(
    one: impl Future<Output = io::Result<()>>,
    other: impl Future<Output = io::Result<()>>,
    leaving: &Cell<bool>,
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
                if ended.is_err() && !leaving.get() {
                    return Poll::Ready(());
                }
            }
        }
        if one_done && other_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

//! Relays bytes both ways between two connections until both sides have finished.
//!
//! A piece is sent from the receive buffer that it arrived in. While it is being sent nothing more is received in its direction, so
//! a slow reader slows its sender down. A side that finishes is told so to the other, which may go on sending.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use protocol::http::buffers::by;
use protocol::tls::ByteStream;
use ring::{Chunk, Ring, Tick};

/// Bytes that have passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RelayedBytes {
    pub(super) from_client: u64,
    pub(super) to_client: u64,
}

/// Why a relay has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelayEnd {
    Completed,
    Idle,
    /// The client broke its connection, or cannot be sent to.
    ClientBroken,
    UpstreamBroken,
}

struct RelayState<'a> {
    ring: &'a Ring,
    /// When bytes last passed.
    last: Cell<Tick>,
}

/// Relays until both sides have finished. `arrived` are bytes of the client that were received already.
pub(super) async fn relay(
    ring: &Ring,
    (client, arrived): (&impl ByteStream, Chunk),
    upstream: &impl ByteStream,
    idle: Duration,
) -> (RelayedBytes, RelayEnd) {
    let state = RelayState { ring, last: Cell::new(ring.now()) };
    let (from_client, to_client) = (Cell::new(0), Cell::new(0));
    let up = one_way(&state, client, upstream, arrived, &from_client);
    let down = one_way(&state, upstream, client, Chunk::empty(), &to_client);
    let (mut up, mut down) = (pin!(up), pin!(down));
    let mut both = pin!(async {
        let (mut up_done, mut down_done) = (false, false);
        poll_fn(|cx| {
            let broken =
                [poll_direction(&mut up_done, up.as_mut(), cx), poll_direction(&mut down_done, down.as_mut(), cx)];
            match broken {
                // A failure to send in one direction is one of the side that it sends to.
                [Some(BrokenEnd::Source), _] | [_, Some(BrokenEnd::Target)] => Poll::Ready(RelayEnd::ClientBroken),
                [Some(BrokenEnd::Target), _] | [_, Some(BrokenEnd::Source)] => Poll::Ready(RelayEnd::UpstreamBroken),
                [None, None] if up_done && down_done => Poll::Ready(RelayEnd::Completed),
                [None, None] => Poll::Pending,
            }
        })
        .await
    });
    let end = loop {
        let due = state.last.get() + idle;
        match by(ring, Some(due), both.as_mut()).await {
            Ok(end) => break end,
            Err(_) if state.last.get() + idle > ring.now() => {} // bytes have passed meanwhile
            Err(_) => break RelayEnd::Idle,
        }
    };
    (RelayedBytes { from_client: from_client.get(), to_client: to_client.get() }, end)
}

/// Which end of a direction is broken.
enum BrokenEnd {
    Source,
    Target,
}

/// Polls a direction that has not ended. Returns which end is broken.
fn poll_direction(
    done: &mut bool,
    direction: Pin<&mut impl Future<Output = Result<(), BrokenEnd>>>,
    cx: &mut Context<'_>,
) -> Option<BrokenEnd> {
    if *done {
        return None;
    }
    match direction.poll(cx) {
        Poll::Ready(outcome) => {
            *done = true;
            outcome.err()
        }
        Poll::Pending => None,
    }
}

/// Carries one direction to its end.
async fn one_way(
    state: &RelayState<'_>,
    from: &impl ByteStream,
    to: &impl ByteStream,
    arrived: Chunk,
    passed: &Cell<u64>,
) -> Result<(), BrokenEnd> {
    let mut chunk = arrived;
    loop {
        if chunk.is_empty() {
            chunk = from.recv().await.map_err(|_: io::Error| BrokenEnd::Source)?;
        }
        if chunk.is_empty() {
            return to.shutdown_write().await.map_err(|_| BrokenEnd::Target);
        }
        state.last.set(state.ring.now());
        passed.set(passed.get() + chunk.len() as u64);
        to.send(std::mem::take(&mut chunk)).await.map_err(|_| BrokenEnd::Target)?;
        state.last.set(state.ring.now());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::rc::Rc;

    use ring::sim::{FaultProfile, Simulation};
    use ring::{RingListener, RingStream};

    use super::*;

    const IDLE: Duration = Duration::from_secs(10);
    /// Simulated time in which the peers have to finish after the relay.
    const PEERS_WAIT_MS: u32 = 60_000;

    /// Two connections: from the client to the relay, and from the relay to the server. The outer ends come first.
    async fn connections(ring: &Ring) -> [RingStream; 4] {
        let pair = |port: u16| async move {
            let address = SocketAddr::from(([10, 0, 0, 1], port));
            let listener = RingListener::bind(ring, address).unwrap();
            let near = RingStream::connect(ring, address).await.unwrap();
            (near, listener.accept().await.unwrap())
        };
        let (client, from_client) = pair(1).await;
        let (to_server, server) = pair(2).await;
        [client, server, from_client, to_server]
    }

    async fn read_all(stream: &RingStream) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match stream.recv().await {
                Ok(chunk) if !chunk.is_empty() => all.extend_from_slice(&chunk),
                _ => return all,
            }
        }
    }

    /// Runs a relay between a client and a server, who do as the test says.
    fn relayed<F: Future<Output = ()> + 'static>(
        arrived: &'static [u8],
        peers: impl FnOnce(Ring, RingStream, RingStream) -> F + 'static,
    ) -> (RelayedBytes, RelayEnd) {
        let ring = Simulation::new(1, FaultProfile::calm()).ring();
        let outer = ring.clone();
        ring.block_on(async move {
            let [client, server, from_client, to_server] = connections(&outer).await;
            let done = Rc::new(Cell::new(false));
            let (ended, own) = (Rc::clone(&done), outer.clone());
            let peers = peers(outer.clone(), client, server);
            outer.spawn(async move {
                peers.await;
                ended.set(true);
            });
            let outcome = relay(&outer, (&from_client, Chunk::from(arrived.to_vec())), &to_server, IDLE).await;
            drop((from_client, to_server));
            for _ in 0..PEERS_WAIT_MS {
                if !done.get() {
                    own.sleep(Duration::from_millis(1)).await;
                }
            }
            assert!(done.get(), "the peers have not finished, or a check of theirs has failed");
            outcome
        })
    }

    fn passed(from_client: usize, to_client: usize) -> RelayedBytes {
        RelayedBytes { from_client: from_client as u64, to_client: to_client as u64 }
    }

    #[test]
    fn bytes_pass_both_ways_until_both_sides_finish() {
        const BYTES: usize = 3 << 20;
        let outcome = relayed(b"hello ", |ring, client, server| async move {
            let send_all = |stream: Rc<RingStream>, byte: u8| async move {
                for _ in 0..BYTES / 65_536 {
                    stream.send(vec![byte; 65_536]).await.unwrap();
                }
                stream.shutdown_write().await.unwrap();
            };
            let (client, server) = (Rc::new(client), Rc::new(server));
            ring.spawn(send_all(Rc::clone(&client), b'c'));
            ring.spawn(send_all(Rc::clone(&server), b's'));
            let at_server = Rc::new(Cell::new(0));
            let (count, reader) = (Rc::clone(&at_server), Rc::clone(&server));
            ring.spawn(async move {
                let all = read_all(&reader).await;
                assert!(all.starts_with(b"hello ccc") && all.ends_with(b"c"));
                count.set(all.len());
            });
            let all = read_all(&client).await;
            assert!(all.len() == BYTES && all.iter().all(|byte| *byte == b's'));
            while at_server.get() == 0 {
                ring.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(at_server.get(), BYTES + 6);
        });
        assert_eq!(outcome, (passed(BYTES + 6, BYTES), RelayEnd::Completed));
    }

    #[test]
    fn side_that_has_finished_still_receives() {
        // The client finishes first, and then the server.
        let outcome = relayed(b"", |_, client, server| async move {
            client.send(b"question".to_vec()).await.unwrap();
            client.shutdown_write().await.unwrap();
            assert_eq!(read_all(&server).await, b"question");
            for _ in 0..3 {
                server.send(b"answer ".to_vec()).await.unwrap();
            }
            server.shutdown_write().await.unwrap();
            assert_eq!(read_all(&client).await, b"answer answer answer ");
        });
        assert_eq!(outcome, (passed(8, 21), RelayEnd::Completed));
        let outcome = relayed(b"", |_, client, server| async move {
            server.shutdown_write().await.unwrap();
            assert_eq!(read_all(&client).await, b"");
            client.send(b"still here".to_vec()).await.unwrap();
            client.shutdown_write().await.unwrap();
            assert_eq!(read_all(&server).await, b"still here");
        });
        assert_eq!(outcome, (passed(10, 0), RelayEnd::Completed));
    }

    #[test]
    fn silence_ends_the_relay_and_bytes_keep_it() {
        let outcome = relayed(b"", |ring, client, server| async move {
            for _ in 0..5 {
                ring.sleep(IDLE * 2 / 3).await;
                server.send(b"x".to_vec()).await.unwrap();
            }
            assert_eq!(read_all(&client).await, b"xxxxx");
        });
        assert_eq!(outcome, (passed(0, 5), RelayEnd::Idle));
    }

    #[test]
    fn broken_side_is_named() {
        let outcome = relayed(b"", |_, client, server| async move {
            client.set_reset_on_close(true).unwrap();
            client.send(b"some".to_vec()).await.unwrap();
            let mut arrived = Vec::new();
            while arrived.len() < 4 {
                arrived.extend_from_slice(&server.recv().await.unwrap());
            }
            assert_eq!(arrived, b"some");
            drop(client);
            read_all(&server).await;
        });
        assert_eq!(outcome, (passed(4, 0), RelayEnd::ClientBroken));
        let outcome = relayed(b"", |_, client, server| async move {
            server.set_reset_on_close(true).unwrap();
            drop(server);
            read_all(&client).await;
        });
        assert_eq!(outcome, (passed(0, 0), RelayEnd::UpstreamBroken));
    }
}

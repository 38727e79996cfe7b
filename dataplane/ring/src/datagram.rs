//! A UDP socket, connected to one peer or not.
//!
//! Sends do not wait: a datagram that the kernel has no space for is lost, as it would be on the way. Receives are system calls
//! of their own, and the ring only tells when there is something to receive.

use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::FromRawFd;
use std::rc::Rc;

use crate::op::{Op, SharedSocket};
use crate::ring::Ring;
use crate::ring_state::RingState;

/// One task at a time may receive; others may send.
pub struct RingDatagram {
    core: Rc<RingState>,
    socket: Rc<SharedSocket>,
}

impl RingDatagram {
    /// Takes over a socket.
    ///
    /// # Errors
    ///
    /// The socket cannot be used without waiting, it is beyond the limit of sockets, or this is a simulation.
    pub fn from_std(ring: &Ring, socket: UdpSocket) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let core = Rc::clone(&ring.core);
        let handle = core.driver.borrow_mut().adopt_datagram(socket)?;
        let socket = SharedSocket::new(handle, &core.closing);
        if handle.0 >= core.options.sockets_max {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(Self { core, socket })
    }

    /// Waits for a datagram. Returns its size, which is at most that of the buffer, and its sender.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        loop {
            match self.try_recv_from(buffer) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    /// The same, if a datagram is here. `WouldBlock`: there is none.
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.borrowed().recv_from(buffer)
    }

    /// Sends to the peer that the socket is connected to.
    ///
    /// # Errors
    ///
    /// The kernel has no space, or an earlier datagram was refused by the peer's host.
    pub fn try_send(&self, datagram: &[u8]) -> io::Result<()> {
        self.borrowed().send(datagram).map(drop)
    }

    /// Sends to any peer.
    ///
    /// # Errors
    ///
    /// The kernel has no space, or no way to the peer.
    pub fn try_send_to(&self, datagram: &[u8], peer: SocketAddr) -> io::Result<()> {
        self.borrowed().send_to(datagram, peer).map(drop)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.borrowed().local_addr()
    }

    /// Resolves when there may be a datagram, after a receive that found none. A dropped call loses nothing.
    pub async fn readable(&self) -> io::Result<()> {
        let (result, _) = self.core.start(Op::Readable(Rc::clone(&self.socket))).outcome().await;
        match result {
            0.. => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }

    /// The socket as the standard library has it.
    fn borrowed(&self) -> ManuallyDrop<UdpSocket> {
        // SAFETY: the descriptor is a UDP socket (`from_std`) that stays open as long as `socket` lives, and this borrow of
        // `self` ends before that. It is never dropped here, so the descriptor keeps its one owner.
        ManuallyDrop::new(unsafe { UdpSocket::from_raw_fd(self.socket.handle.0) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::{IoDriver, RingOptions};

    /// Only a wait that never ends takes so long.
    const WAIT_MAX: Duration = Duration::from_secs(20);

    fn loopback() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn datagrams_pass_both_ways_on_each_driver() {
        for driver in [IoDriver::IoUring, IoDriver::Epoll] {
            let Ok(ring) = Ring::open(RingOptions { chunks: 8, driver, ..RingOptions::default() }) else { continue };
            let (server, client) = (loopback(), loopback());
            client.connect(server.local_addr().unwrap()).unwrap();
            let peer = client.local_addr().unwrap();
            let [server, client] = [server, client].map(|socket| RingDatagram::from_std(&ring, socket).unwrap());
            let mut buffer = [0; 100];
            assert_eq!(server.try_recv_from(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for round in 0..3 {
                let received = ring.block_on(async {
                    let later = async {
                        ring.yield_now().await;
                        client.try_send(format!("ping {round}").as_bytes()).unwrap();
                    };
                    let (received, ()) = futures_join(server.recv_from(&mut buffer), later).await;
                    received
                });
                assert_eq!(received.unwrap(), (6, peer));
                server.try_send_to(b"", peer).unwrap();
                server.try_send_to(b"pong", peer).unwrap();
                assert_eq!(ring.block_on(client.recv_from(&mut buffer)).unwrap().0, 0, "empty datagrams are datagrams");
                assert_eq!(ring.block_on(client.recv_from(&mut buffer)).unwrap().0, 4);
            }
            drop((server, client));
            ring.shutdown();
        }
    }

    /// The kernel has reported the datagram before the wait begins, or there were more than were received.
    #[test]
    fn datagram_before_wait_is_found_on_each_driver() {
        for driver in [IoDriver::IoUring, IoDriver::Epoll] {
            let Ok(ring) = Ring::open(RingOptions { chunks: 8, driver, ..RingOptions::default() }) else { continue };
            let (server, client) = (loopback(), loopback());
            client.connect(server.local_addr().unwrap()).unwrap();
            let server = RingDatagram::from_std(&ring, server).unwrap();
            let mut buffer = [0; 100];
            assert_eq!(server.try_recv_from(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            for _ in 0..3 {
                for _ in 0..3 {
                    client.send(b"early").unwrap();
                }
                // Turns in which the kernel reports them.
                ring.block_on(async {
                    for _ in 0..3 {
                        ring.sleep(Duration::from_millis(1)).await;
                    }
                });
                for _ in 0..3 {
                    let waited = ring.block_on(ring.timeout(WAIT_MAX, server.readable()));
                    assert!(waited.is_ok_and(|outcome| outcome.is_ok()), "{driver:?}: the wait does not end");
                    assert_eq!(server.try_recv_from(&mut buffer).unwrap().0, 5);
                }
                assert_eq!(server.try_recv_from(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            }
            drop(server);
            ring.shutdown();
        }
    }

    /// Runs both to their ends.
    async fn futures_join<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
        let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
        let (mut first, mut second) = (None, None);
        std::future::poll_fn(|cx| {
            if first.is_none()
                && let std::task::Poll::Ready(value) = one.as_mut().poll(cx)
            {
                first = Some(value);
            }
            if second.is_none()
                && let std::task::Poll::Ready(value) = other.as_mut().poll(cx)
            {
                second = Some(value);
            }
            if first.is_some() && second.is_some() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
        (first.unwrap(), second.unwrap())
    }
}

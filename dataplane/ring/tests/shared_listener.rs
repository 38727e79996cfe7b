//! A listener that goes from a process with one driver to a process with the other, as in a hot restart.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::net::{SocketAddr, TcpListener, TcpStream};

use sluicegate_ring::{Ring, RingListener, RingOptions};

/// Accepts one connection on a descriptor of the same socket.
fn accept_on(ring: &Ring, shared: &TcpListener, address: SocketAddr) {
    let listener = RingListener::from_std(ring, shared.try_clone().unwrap()).unwrap();
    ring.block_on(async {
        let _client = TcpStream::connect(address).unwrap();
        listener.accept().await.unwrap();
        // No second connection waits: the accept of this driver goes on, and the other's must too.
        assert!(ring.timeout(std::time::Duration::from_millis(20), listener.accept()).await.is_err());
    });
}

#[test]
fn listener_passes_between_drivers() {
    let shared = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = shared.local_addr().unwrap();
    let options = RingOptions::default();
    let (uring, epoll) = (Ring::kernel(options.clone()).unwrap(), Ring::epoll(options).unwrap());
    for ring in [&uring, &epoll, &uring, &epoll] {
        accept_on(ring, &shared, address);
    }
}

//! No socket outlives its owner. In a file of its own, because it counts the descriptors of the process.
#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::net::TcpStream;
use std::time::Duration;

use sluicegate_ring::{Ring, RingListener, RingOptions, RingStream};

fn sockets() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = links.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn cancelled_accept_leaks_no_descriptor() {
    let options = RingOptions::default();
    for ring in [Ring::kernel(options.clone()).unwrap(), Ring::epoll(options).unwrap()] {
        leaks_nothing(ring);
    }
}

fn leaks_nothing(ring: Ring) {
    let before = sockets();
    for round in 0..50 {
        ring.block_on(async {
            let listener = RingListener::bind(&ring, "127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listener.local_addr().unwrap();
            assert!(ring.timeout(Duration::from_micros(10), listener.accept()).await.is_err());
            // Connections that arrive while no accept waits, and while the accept is being cancelled.
            let _early: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
            if round % 2 == 0 {
                ring.yield_now().await;
                listener.close().await.unwrap();
            } else {
                drop(listener);
            }
            // A connect that is dropped.
            let _ = ring.timeout(Duration::ZERO, RingStream::connect(&ring, address)).await;
        });
    }
    ring.shutdown();
    assert_eq!(sockets(), before);
}

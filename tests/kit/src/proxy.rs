//! A TCP proxy that forwards, stops forwarding, or cuts what it forwards: the network between a client and a server.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Forwards connections to one address, until the test ends.
#[derive(Debug)]
pub struct TcpProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
}

#[derive(Debug)]
struct ProxyState {
    target: SocketAddr,
    accepted: AtomicU64,
    /// Connections with a lower number are open and forward nothing: the kernel at the other end still acknowledges.
    stalled_below: AtomicU64,
    /// Bytes from the server after which a connection is closed.
    cut_after: AtomicU64,
    ended: AtomicBool,
}

impl TcpProxy {
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState {
            target,
            accepted: AtomicU64::new(0),
            stalled_below: AtomicU64::new(0),
            cut_after: AtomicU64::new(u64::MAX),
            ended: AtomicBool::new(false),
        });
        let own = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if own.ended.load(SeqCst) {
                    return;
                }
                let number = own.accepted.fetch_add(1, SeqCst);
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect(own.target)) {
                    forward(&own, number, client, server);
                }
            }
        });
        Self { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(SeqCst)
    }

    /// The connections that are open forward nothing any more, and stay open. New ones forward.
    pub fn stall(&self) {
        self.state.stalled_below.store(self.accepted(), SeqCst);
    }

    /// From now on a connection is closed once so many bytes came from the server; `u64::MAX`: none is.
    pub fn cut_after(&self, bytes: u64) {
        self.state.cut_after.store(bytes, SeqCst);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.state.ended.store(true, SeqCst);
        let _ = TcpStream::connect(self.address); // wakes the thread that accepts
    }
}

fn forward(state: &Arc<ProxyState>, number: u64, client: TcpStream, server: TcpStream) {
    let (mut to_server, mut from_server) = (server.try_clone().unwrap(), server);
    let (mut from_client, mut to_client) = (client.try_clone().unwrap(), client);
    let own = Arc::clone(state);
    std::thread::spawn(move || copy(&own, number, &mut from_client, &mut to_server, false));
    let own = Arc::clone(state);
    std::thread::spawn(move || copy(&own, number, &mut from_server, &mut to_client, true));
}

fn copy(state: &ProxyState, number: u64, from: &mut TcpStream, to: &mut TcpStream, is_answer: bool) {
    let (mut buffer, mut copied) = (vec![0; 16 << 10], 0_u64);
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        while number < state.stalled_below.load(SeqCst) {
            std::thread::park(); // forever: the connection stays open and unread
        }
        let left = state.cut_after.load(SeqCst).saturating_sub(copied);
        let piece = if is_answer { read.min(usize::try_from(left).unwrap_or(usize::MAX)) } else { read };
        if to.write_all(&buffer[..piece]).is_err() {
            break;
        }
        copied += piece as u64;
        if piece < read {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

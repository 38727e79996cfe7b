//! Messages that arrive in two segments from a peer with Nagle's algorithm: the second one comes after the first is
//! acknowledged, which the kernel delays by 40 ms if it is not asked.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kit::{Appliance, ApplianceSetup};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "split.example.com";
/// Less than the kernel's shortest delay (`TCP_DELACK_MIN`), more than a request takes.
const DELAYED: Duration = Duration::from_millis(38);
const REQUESTS: usize = 40;

/// Reads a message with a `Content-Length` of 5.
fn read_message(from: &mut impl BufRead) -> bool {
    let mut line = String::new();
    loop {
        line.clear();
        if from.read_line(&mut line).unwrap_or(0) == 0 {
            return false;
        }
        if line == "\r\n" {
            return from.read_exact(&mut [0; 5]).is_ok();
        }
    }
}

/// A server that writes the head and the body of each response by themselves, as Python's `http.server` does.
fn start_split_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut requests = BufReader::new(stream.try_clone().unwrap());
                let mut responses = stream;
                while read_message(&mut requests) {
                    let head = responses.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
                    if head.and_then(|()| responses.write_all(b"hello")).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn gateway(upstream: SocketAddr) -> Appliance {
    ApplianceSetup::new(BIN).flag("route", &format!("{HOST}={upstream}")).flag("workers", "1").start()
}

/// How many of the requests on one connection took as long as a delayed acknowledgement.
fn delayed_requests(gateway: SocketAddr, pieces: &[&[u8]]) -> usize {
    let mut requests = TcpStream::connect(gateway).unwrap(); // Nagle's algorithm is on by default
    let mut responses = BufReader::new(requests.try_clone().unwrap());
    let mut is_delayed = || {
        let start = Instant::now();
        pieces.iter().for_each(|piece| requests.write_all(piece).unwrap());
        assert!(read_message(&mut responses), "the gateway closed the connection");
        start.elapsed() >= DELAYED
    };
    (0..REQUESTS).filter(|_| is_delayed()).count()
}

#[test]
fn split_response_waits_for_no_acknowledgement() {
    let gateway = gateway(start_split_server());
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\nhello");
    let delayed = delayed_requests(gateway.http(), &[head.as_bytes()]);
    assert!(delayed < REQUESTS / 2, "{delayed} of {REQUESTS} responses were delayed");
}

#[test]
fn split_request_waits_for_no_acknowledgement() {
    let gateway = gateway(start_split_server());
    let head = format!("POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\n");
    let (first, second) = head.split_at(20);
    let pieces = [first.as_bytes(), second.as_bytes(), b"he", b"llo"];
    let delayed = delayed_requests(gateway.http(), &pieces);
    assert!(delayed < REQUESTS / 2, "{delayed} of {REQUESTS} requests were delayed");
}

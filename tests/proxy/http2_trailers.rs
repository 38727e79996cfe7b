//! Trailers of HTTP/2 with pseudo-fields, which are malformed (RFC 9113 8.1), through the built binary.
#![allow(clippy::unwrap_used, reason = "a helper of a test that fails is a failed test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use kit::http2::frame;
use kit::{ApplianceSetup, HttpCall};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const HOST: &str = "app.example.com";

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const SETTINGS: u8 = 0x4;
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Answers every stream with this head, a byte of DATA and these trailers.
fn server(head: &'static [u8], trailers: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer_all(&mut stream.unwrap(), head, trailers));
        }
    });
    address
}

fn answer_all(stream: &mut TcpStream, head: &[u8], trailers: &[u8]) {
    stream.read_exact(&mut [0; 24]).unwrap(); // the preface
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
    let mut next = [0; 9];
    while stream.read_exact(&mut next).is_ok() {
        let [high, middle, low, kind, flags, number @ ..] = next;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        stream.read_exact(&mut vec![0; length]).unwrap();
        match kind {
            SETTINGS if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[])).unwrap(),
            HEADERS => {
                let number = u32::from_be_bytes(number);
                let response = [
                    frame(HEADERS, END_HEADERS, number, head),
                    frame(DATA, 0, number, b"x"),
                    frame(HEADERS, END_HEADERS | END_STREAM, number, trailers),
                ];
                let _ = stream.write_all(&response.concat()); // the peer may have reset the stream and be gone
            }
            _ => {}
        }
    }
}

/// A response that is malformed by its trailers is cut, so that it does not look whole; the connection serves on.
#[test]
fn response_with_pseudo_fields_in_trailers_is_aborted() {
    const PLAIN: &[u8] = &[0x00, 5, b'x', b'-', b's', b'u', b'm', 1, b'1'];
    let with_pseudo = [
        &[0x88][..],                                       // :status: 200
        &[0x04, 1, b'/'],                                  // :path, by its name's index
        &[0x00, 5, b':', b'p', b'a', b't', b'h', 1, b'/'], // literal
    ];
    for (head, trailers, is_whole) in with_pseudo
        .into_iter()
        .flat_map(|trailers| [(&[0x88][..], trailers, false), (&[0x08, 3, b'2', b'0', b'1'], trailers, false)])
        .chain([(&[0x88][..], PLAIN, true)])
    {
        let rule = format!("{HOST}=h2c://{}", server(head, trailers));
        let appliance = ApplianceSetup::new(BIN).flag("route", &rule).flag("workers", "1").start();
        for _ in 0..3 {
            let got = HttpCall::get("/").host(HOST).try_send(appliance.http());
            assert_eq!(got.is_ok(), is_whole, "{head:x?} {trailers:x?}: {got:?}");
        }
    }
}

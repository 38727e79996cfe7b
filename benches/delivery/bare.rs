//! The data plane's HTTP client alone: the cost of delivery without filters, logs and retries.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use dataplane::codec::http::Method;
use dataplane::http::client::{BufferedRequest, UpstreamClient};
use dataplane::http::limits::HttpLimits;
use ring::{Ring, RingOptions};

use crate::rig::{Side, cpu_of, pin};
use crate::{DATA_BYTES, WARM_AGAIN};

/// Of an answer to an event.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Requests per second, and processor seconds per request, of one core with so many in flight.
pub(super) fn rate(to: SocketAddr, in_flight: usize, span: Duration) -> (f64, f64) {
    let measured = std::thread::spawn(move || {
        pin(Side::Measured);
        let ring = Ring::kernel(RingOptions::default()).unwrap();
        let client = Rc::new(UpstreamClient::new(&ring, &HttpLimits::default(), std::sync::Arc::default()));
        let done = Rc::new(Cell::new(0_u64));
        for _ in 0..in_flight {
            let (client, done, request) = (Rc::clone(&client), Rc::clone(&done), request(to));
            ring.spawn(async move {
                while client.exchange(to, &request, ANSWER_BYTES_MAX, None).await.is_ok() {
                    done.set(done.get() + 1);
                }
            });
        }
        let measured = ring.block_on(async {
            ring.sleep(WARM_AGAIN).await;
            let before = (done.get(), cpu(), ring.now());
            ring.sleep(span).await;
            let requests = (done.get() - before.0) as f64;
            (requests / (ring.now() - before.2).as_secs_f64(), (cpu() - before.1) / requests)
        });
        ring.shutdown();
        measured
    });
    measured.join().unwrap()
}

fn cpu() -> f64 {
    cpu_of(&std::fs::read_to_string("/proc/thread-self/stat").unwrap())
}

/// What a delivery sends, written once.
fn request(to: SocketAddr) -> BufferedRequest {
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {to}\r\nContent-Length: {DATA_BYTES}\r\nce-specversion: 1.0\r\n\
         ce-id: 4a6f9c5e-6f0d-4d3a-9d57-0a1f0c5b9e21\r\nce-source: /kit\r\nce-type: wanted\r\n\
         ce-left: 0000000000000000\r\nContent-Type: application/octet-stream\r\n\
         ce-knativearrivaltime: 2026-11-21T15:00:00.000Z\r\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
         Prefer: reply\r\nKn-Namespace: default\r\n\r\n"
    );
    let body = Bytes::from(vec![b'x'; DATA_BYTES]);
    BufferedRequest { head: head.into(), body, method: Method::Post, keeps_fields: false }
}

//! Requests cost no allocation once a connection has served some: streams, fields and frames use the same memory again.
//! Alone in its file, because it counts the allocations of the whole process.

mod support;

use sluicegate_http2::Event;
use sluicegate_http2::frame::{DATA, HEADERS, WINDOW_UPDATE};
use std::time::Duration;
use support::{END, POST, TestClient, WHOLE, frame};

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

const FIELDS: [(&[u8], &[u8]); 3] =
    [(b"content-type", b"text/plain"), (b"date", b"Mon, 01 Jan 2024 00:00:00 GMT"), (b"content-length", b"5")];

#[test]
fn requests_after_the_first_ones_do_not_allocate() {
    let requests: Vec<Vec<u8>> = (0..3000_u32)
        .map(|n| {
            let stream = 2 * n + 1;
            let update = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 5]);
            [frame(HEADERS, WHOLE, stream, POST), frame(DATA, END, stream, b"xxxxx"), update].concat()
        })
        .collect();
    let mut client = TestClient::open();
    let serve = |client: &mut TestClient, requests: &[Vec<u8>]| {
        for bytes in requests {
            let mut at = 0;
            while let Some(event) = client.server.receive(bytes, &mut at, Duration::ZERO).unwrap() {
                let Event::Ended { stream } = event else { continue };
                client.server.release(stream, 5);
                client.server.send_head(stream, 200, FIELDS.into_iter(), false).unwrap();
                assert_eq!(client.server.send_data(stream, b"hello", true), Ok(5));
                client.server.detach(stream);
            }
            drop(client.server.take_output());
        }
    };
    let profiler = dhat::Profiler::builder().testing().build();
    serve(&mut client, &requests[..1000]);
    let before = dhat::HeapStats::get().total_blocks;
    serve(&mut client, &requests[1000..]);
    let blocks = dhat::HeapStats::get().total_blocks - before;
    assert!(blocks < 20, "{blocks} allocations for 2000 requests");
    drop(profiler);
}

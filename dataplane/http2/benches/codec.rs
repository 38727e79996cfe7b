//! One request and its response through the codec alone, beside the server of the `h2` crate on an in-memory socket.
//! Both read the same bytes, which their own client would send, and write the same fields.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails is a failed benchmark")]

use std::hint::black_box;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criterion::{Criterion, criterion_group, criterion_main};
use http::Response;
use sluicegate_http2::frame::{self, FrameHeader, PREFACE};
use sluicegate_http2::{Connection, ConnectionConfig, Event};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const CONFIG: ConnectionConfig = ConnectionConfig {
    streams_max: 256,
    slots_max: 512,
    stream_window: 128 * 1024,
    connection_window: 512 * 1024,
    header_list_bytes_max: 64 * 1024,
    output_bytes_max: 64 * 1024,
    tunnels: true,
};

/// The first block of a client, and later ones, which refer to it.
const FIRST: &[u8] = b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff\x7a\x03abc\x53\x03*/*";
const LATER: &[u8] = b"\x82\x86\x84\xc0\xbf\xbe";
const FIELDS: [(&str, &str); 4] =
    [("content-type", "text/plain"), ("date", "Mon, 01 Jan 2024 00:00:00 GMT"), ("server", "bench"), ("x-a", "b")];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader { length: payload.len(), kind, flags, stream };
    [&header.encode(), payload].concat()
}

fn opening() -> Vec<u8> {
    let window = 0x7000_0000_u32.to_be_bytes();
    [&PREFACE[..], &frame(frame::SETTINGS, 0, 0, &[]), &frame(frame::WINDOW_UPDATE, 0, 0, &window)].concat()
}

/// Requests, one after the other.
struct Requests {
    stream: u32,
    body: Vec<u8>,
}

impl Requests {
    fn next(&mut self) -> Vec<u8> {
        let block = if self.stream == 1 { FIRST } else { LATER };
        let end = if self.body.is_empty() { frame::END_STREAM } else { 0 };
        let mut bytes = frame(frame::HEADERS, frame::END_HEADERS | end, self.stream, block);
        if !self.body.is_empty() {
            bytes.extend(frame(frame::DATA, frame::END_STREAM, self.stream, &self.body));
        }
        self.stream += 2;
        bytes
    }
}

fn ours(connection: &mut Connection, input: &[u8]) -> usize {
    let (mut at, mut received) = (0, 0);
    while let Some(event) = connection.receive(input, &mut at, Duration::ZERO).unwrap() {
        let (stream, ends) = match event {
            Event::Head { stream, ends } => (stream, ends),
            Event::Data { stream, bytes } => {
                received += bytes.len();
                connection.release(stream, bytes.len());
                continue;
            }
            Event::Ended { stream } => (stream, true),
            _ => continue,
        };
        if ends {
            let fields = FIELDS.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            connection.send_head(stream, 200, fields, false).unwrap();
            assert_eq!(connection.send_data(stream, b"hello", true), Ok(5));
            connection.detach(stream);
        }
    }
    received + connection.take_output().len()
}

/// A socket in memory.
#[derive(Default)]
struct Memory {
    input: BytesMut,
    written: usize,
}

#[derive(Clone, Default)]
struct Socket(std::rc::Rc<std::cell::RefCell<Memory>>);

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let input = &mut self.0.borrow_mut().input;
        if input.is_empty() {
            return Poll::Pending;
        }
        let taken = input.len().min(into.remaining());
        into.put_slice(&input.split_to(taken));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().written += bytes.len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn theirs(connection: &mut h2::server::Connection<Socket, Bytes>, cx: &mut Context<'_>) -> usize {
    let mut received = 0;
    while let Poll::Ready(Some(request)) = connection.poll_accept(cx) {
        let (request, mut respond) = request.unwrap();
        let mut body = request.into_body();
        while !body.is_end_stream() {
            if let Poll::Ready(Some(Ok(bytes))) = body.poll_data(cx) {
                received += bytes.len();
                body.flow_control().release_capacity(bytes.len()).unwrap();
            } else {
                let _ = connection.poll_closed(cx); // reads on
            }
        }
        let mut response = Response::builder().status(200);
        for (name, value) in FIELDS {
            response = response.header(name, value);
        }
        let mut stream = respond.send_response(response.body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
    }
    received
}

fn requests(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("request");
    for (name, bytes) in [("GET", 0), ("POST of 16 KiB", 16 * 1024)] {
        group.bench_function(format!("{name}, this codec"), |bencher| {
            let mut connection = Connection::server(CONFIG, Duration::ZERO);
            ours(&mut connection, &opening());
            let mut requests = Requests { stream: 1, body: vec![b'x'; bytes] };
            bencher.iter_batched(
                || requests.next(),
                |input| black_box(ours(&mut connection, &input)),
                criterion::BatchSize::SmallInput,
            );
        });
        group.bench_function(format!("{name}, h2 crate"), |bencher| {
            let mut cx = Context::from_waker(Waker::noop());
            let socket = Socket::default();
            socket.0.borrow_mut().input.extend_from_slice(&opening());
            let mut builder = h2::server::Builder::new();
            builder.initial_window_size(CONFIG.stream_window).initial_connection_window_size(CONFIG.connection_window);
            let mut handshake = Box::pin(builder.handshake::<_, Bytes>(socket.clone()));
            let Poll::Ready(Ok(mut connection)) = handshake.as_mut().poll(&mut cx) else { panic!("handshake") };
            let mut requests = Requests { stream: 1, body: vec![b'x'; bytes] };
            bencher.iter_batched(
                || requests.next(),
                |input| {
                    socket.0.borrow_mut().input.extend_from_slice(&input);
                    black_box(theirs(&mut connection, &mut cx))
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, requests);
criterion_main!(benches);

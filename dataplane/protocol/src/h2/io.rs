//! Sends the frames of a connection, of a client or to an instance.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use ring::Ring;

use super::limits::UNSENT_BYTES_MAX;
use super::shared_streams::SharedStreams;
use crate::http::buffers::by;
use crate::tls::{ByteStream as _, Transport};

/// Shared state of a connection that its owner, or a request, reads.
#[derive(Debug, Default)]
pub struct IoState {
    pub received: Cell<u64>,
    pub sent: Cell<u64>,
    /// A send is in flight.
    pub sending: Cell<bool>,
    /// A send has failed: nothing more is sent.
    failed: Cell<bool>,
}

/// Sends what the streams write: the frames of many streams leave in one send. A send may take `stall_max`.
pub(super) async fn write_frames(
    ring: &Ring,
    stream: &Transport,
    streams: &SharedStreams,
    io_state: &IoState,
    stall_max: Option<Duration>,
) -> io::Result<Infallible> {
    loop {
        poll_fn(|_| match streams.codec.borrow().output_len() {
            0 => Poll::Pending, // a stream wakes this task
            _ => Poll::Ready(()),
        })
        .await;
        let bytes = streams.codec.borrow_mut().take_output();
        io_state.sent.set(io_state.sent.get() + bytes.len() as u64);
        if bytes.len() >= UNSENT_BYTES_MAX {
            streams.wake_connection(); // for the reader
        }
        streams.wake_waiting();
        if let Err(bytes) = stream.send_detached(bytes.into()) {
            io_state.sending.set(true);
            let due = stall_max.map(|wait| ring.now() + wait);
            let sent = by(ring, due, stream.send(bytes)).await;
            io_state.sending.set(false);
            let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            sent.inspect_err(|_| io_state.failed.set(true))?;
        }
    }
}

/// Waits before more frames are read, until the answers to the last ones are sent. The writer wakes this task.
pub(super) async fn until_sent(streams: &SharedStreams) {
    poll_fn(|_| match streams.codec.borrow().output_len() < UNSENT_BYTES_MAX {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// Sends the rest and closes the connection, unless a send has failed.
pub(super) async fn finish(
    stream: &Transport,
    streams: &SharedStreams,
    io_state: &IoState,
    mut writer: Pin<&mut impl Future<Output = io::Result<Infallible>>>,
) {
    if io_state.failed.get() {
        return; // the writer has ended, and must not be polled again
    }
    let is_sent = poll_fn(|cx| {
        streams.register_connection(cx);
        if writer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        let is_sent = streams.codec.borrow().output_len() == 0 && !io_state.sending.get();
        if is_sent { Poll::Ready(true) } else { Poll::Pending }
    });
    if is_sent.await {
        let _ = stream.shutdown_write().await; // an error: the peer is gone
    }
}

//! Moves bytes between a client and ports of an instance: a pair of SPDY streams for each connection.
//!
//! The client opens an error stream and a data stream with one request id. A failed connection is reported on its error stream,
//! and the others continue.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, sleep, sleep_until};

use super::instance_streams::InstanceStreams;
use super::limits::{
    CHUNK_BYTES, FORWARDED_CHUNKS_MAX, FORWARDED_CONNECTIONS_MAX, FORWARDED_HALF_CLOSED_TIMEOUT, IDLE_TIMEOUT,
    PING_INTERVAL,
};
use super::spdy::STREAMS_MAX;
use super::spdy::codec::Frame;
use super::spdy::connection::SpdyConnection;

/// The instance that a client forwards ports of, and its Pod's name for messages.
pub(crate) struct ForwardTarget {
    pub(crate) streams: Arc<dyn InstanceStreams>,
    pub(crate) instance: u64,
    pub(crate) pod: String,
    pub(crate) ended: BoxFuture<'static, ()>,
}

/// A client's stream.
enum ClientStream {
    /// The error stream of the connection `request`; it waits for its data stream.
    Error { request: String },
    /// Towards the connection; `None`: the client has finished.
    Data { input: Option<mpsc::Sender<Bytes>>, error: u32, task: tokio::task::AbortHandle },
}

struct QueuedData {
    stream: u32,
    bytes: Bytes,
    fin: bool,
}

/// Runs until the client leaves or the instance ends.
pub(crate) async fn run(connection: SpdyConnection, mut target: ForwardTarget) -> io::Result<()> {
    let (output, outgoing) = mpsc::channel(FORWARDED_CHUNKS_MAX);
    let mut session = ForwardSession {
        connection,
        streams: HashMap::new(),
        connections: JoinSet::new(),
        output,
        outgoing,
        stalled: None,
    };
    session.run(&mut target).await?;
    session.connection.close().await;
    Ok(())
}

struct ForwardSession {
    connection: SpdyConnection,
    streams: HashMap<u32, ClientStream>,
    connections: JoinSet<()>,
    output: mpsc::Sender<QueuedData>,
    outgoing: mpsc::Receiver<QueuedData>,
    /// Bytes for a connection that reads slowly. Until it takes them, nothing is read from the client.
    stalled: Option<(mpsc::Sender<Bytes>, Bytes)>,
}

impl ForwardSession {
    async fn run(&mut self, target: &mut ForwardTarget) -> io::Result<()> {
        let mut idle_since = Instant::now();
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        loop {
            tokio::select! {
                frame = self.connection.receive(), if self.stalled.is_none() => {
                    match frame? {
                        Some(Frame::GoAway) | None => return Ok(()),
                        Some(frame) => self.handle(frame, target)?,
                    }
                    idle_since = Instant::now();
                }
                () = push_stalled(&mut self.stalled), if self.stalled.is_some() => {}
                Some(QueuedData { stream, bytes, fin }) = self.outgoing.recv() => {
                    self.send(stream, &bytes, fin);
                    self.connection.flush().await?;
                    idle_since = Instant::now();
                }
                Some(_) = self.connections.join_next() => {}
                () = &mut target.ended => return Ok(()),
                _ = pings.tick() => {
                    self.connection.ping();
                    self.connection.flush().await?;
                }
                () = sleep_until(idle_since + IDLE_TIMEOUT) => return Ok(()),
            }
        }
    }

    fn handle(&mut self, frame: Frame, target: &ForwardTarget) -> io::Result<()> {
        match frame {
            Frame::SynStream { stream, headers, .. } => {
                let value =
                    |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map_or("", |(_, value)| value);
                self.open(stream, (value("streamtype"), value("requestid"), value("port")), target)
            }
            Frame::Data { stream, fin, bytes } => {
                if let Some(ClientStream::Data { input, .. }) = self.streams.get_mut(&stream) {
                    if let Some(input) = input.as_ref().filter(|_| !bytes.is_empty()) {
                        self.stalled = Some((input.clone(), bytes));
                    }
                    if fin {
                        *input = None;
                    }
                }
                Ok(())
            }
            Frame::Headers { stream, fin: true } => {
                if let Some(ClientStream::Data { input, .. }) = self.streams.get_mut(&stream) {
                    *input = None;
                }
                Ok(())
            }
            Frame::Reset { stream } => {
                if let Some(ClientStream::Data { error, task, .. }) = self.streams.remove(&stream) {
                    task.abort();
                    self.send(error, b"", true); // kubectl waits for it
                }
                Ok(())
            }
            Frame::Headers { .. } | Frame::Ping { .. } | Frame::GoAway => Ok(()),
        }
    }

    /// Nothing is sent on a stream that has ended.
    fn send(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        if !self.streams.contains_key(&stream) {
            return;
        }
        self.connection.data(stream, bytes, fin);
        if fin {
            self.streams.remove(&stream);
        }
    }

    fn open(
        &mut self,
        stream: u32,
        (kind, request, port): (&str, &str, &str),
        target: &ForwardTarget,
    ) -> io::Result<()> {
        let is_full = self.streams.len() >= STREAMS_MAX || self.connections.len() >= FORWARDED_CONNECTIONS_MAX;
        if is_full || self.streams.contains_key(&stream) {
            self.connection.refuse(stream);
            return Ok(());
        }
        match kind {
            "error" => {
                self.streams.insert(stream, ClientStream::Error { request: request.to_owned() });
                self.connection.accept(stream)
            }
            "data" => {
                let of_request =
                    |one: &ClientStream| matches!(one, ClientStream::Error { request: of } if of == request);
                let pair = self.streams.iter().find(|(_, one)| of_request(one)).map(|(stream, _)| *stream);
                let (Some(error), Ok(port)) = (pair, port.parse::<u16>()) else {
                    self.connection.refuse(stream);
                    return Ok(());
                };
                let (input, bytes) = mpsc::channel(FORWARDED_CHUNKS_MAX);
                let (streams, instance, pod) = (Arc::clone(&target.streams), target.instance, target.pod.clone());
                let output = ConnectionOutput { queue: self.output.clone(), data: stream, error };
                let task = self.connections.spawn(async move {
                    let failed = forward(streams.as_ref(), (instance, port), bytes, &output).await.err();
                    let message = failed.map(|why| format!("error forwarding port {port} to pod {pod}: {why}"));
                    output.finish(message.unwrap_or_default()).await;
                });
                self.streams.insert(stream, ClientStream::Data { input: Some(input), error, task });
                self.connection.accept(stream)
            }
            _ => {
                self.connection.refuse(stream);
                Ok(())
            }
        }
    }
}

/// Passes a chunk on when the connection has room. Can be cancelled without loss.
async fn push_stalled(stalled: &mut Option<(mpsc::Sender<Bytes>, Bytes)>) {
    let Some((input, bytes)) = stalled else { return };
    if let Ok(permit) = input.reserve().await {
        // A copy: a view of one byte would keep all that was received with it.
        let count = bytes.len().min(CHUNK_BYTES);
        permit.send(Bytes::copy_from_slice(&bytes[..count]));
        bytes.advance(count);
        if !bytes.is_empty() {
            return;
        }
    } // an error: the connection has ended
    *stalled = None;
}

/// Where a connection's bytes go.
struct ConnectionOutput {
    queue: mpsc::Sender<QueuedData>,
    data: u32,
    error: u32,
}

impl ConnectionOutput {
    /// Closes both streams.
    async fn finish(&self, message: String) {
        // An error of the queue: the client has left.
        if !message.is_empty() {
            let error_frame = QueuedData { stream: self.error, bytes: message.into(), fin: false };
            let _ = self.queue.send(error_frame).await;
        }
        for stream in [self.data, self.error] {
            let _ = self.queue.send(QueuedData { stream, bytes: Bytes::new(), fin: true }).await;
        }
    }
}

/// One connection, until the instance has sent all.
async fn forward(
    streams: &dyn InstanceStreams,
    (instance, port): (u64, u16),
    input: mpsc::Receiver<Bytes>,
    output: &ConnectionOutput,
) -> io::Result<()> {
    let connected = streams.connect(instance, port).await?;
    let _guard = connected.guard;
    let (reader, writer) = TcpStream::from_std(connected.stream)?.into_split();
    // What the client sends may end before or after what it receives.
    tokio::select! {
        received = receive(reader, output) => received,
        ended = send(writer, input) => ended,
    }
}

async fn receive(mut reader: OwnedReadHalf, output: &ConnectionOutput) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let count = reader.read(&mut buffer).await?;
        let bytes = Bytes::copy_from_slice(&buffer[..count]);
        if count == 0 || output.queue.send(QueuedData { stream: output.data, bytes, fin: false }).await.is_err() {
            return Ok(());
        }
    }
}

/// Returns if the connection fails, and some time after the client has finished.
async fn send(mut writer: OwnedWriteHalf, mut input: mpsc::Receiver<Bytes>) -> io::Result<()> {
    while let Some(bytes) = input.recv().await {
        writer.write_all(&bytes).await?;
    }
    writer.shutdown().await?;
    sleep(FORWARDED_HALF_CLOSED_TIMEOUT).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use bytes::BytesMut;
    use futures_util::FutureExt as _;

    use super::super::instance_streams::{
        ExecProcess, ExecRequest, ForwardedConnection, InstanceTarget, ProcessExecRule, StreamError,
    };
    use super::super::spdy::codec::{self, Decoder, Encoder};
    use super::super::test_connection::upgraded_pair;
    use super::*;

    /// All ports of all instances are one listener.
    #[derive(Debug)]
    struct OneListener(SocketAddr);

    impl InstanceStreams for OneListener {
        fn process_exec_rule(&self) -> ProcessExecRule {
            ProcessExecRule::Deny
        }

        fn find(&self, _: u64, _: Option<String>) -> BoxFuture<'static, Result<InstanceTarget, StreamError>> {
            std::future::ready(Err(StreamError::NotRunning)).boxed()
        }

        fn exec(&self, _: ExecRequest) -> BoxFuture<'static, Result<ExecProcess, StreamError>> {
            std::future::ready(Err(StreamError::NotRunning)).boxed()
        }

        fn connect(&self, _: u64, _: u16) -> BoxFuture<'static, io::Result<ForwardedConnection>> {
            let address = self.0;
            async move {
                let stream = TcpStream::connect(address).await?.into_std()?;
                Ok(ForwardedConnection { stream, guard: Box::new(()) })
            }
            .boxed()
        }
    }

    /// A client that resets the data stream of a connection waits for the end of its error stream.
    #[tokio::test]
    async fn reset_of_data_stream_ends_error_stream() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let streams = Arc::new(OneListener(listener.local_addr().unwrap()));
        let (io, mut peer) = upgraded_pair(64 * 1024).await;
        let target = ForwardTarget { streams, instance: 1, pod: "a".into(), ended: std::future::pending().boxed() };
        let session = tokio::spawn(run(SpdyConnection::new(io), target));
        let (mut encoder, mut decoder, mut bytes) = (Encoder::default(), Decoder::default(), BytesMut::new());
        // More of them than may be open at a time.
        for error in (1..).step_by(4).take(STREAMS_MAX) {
            for (stream, kind) in [(error, "error"), (error + 2, "data")] {
                let request = error.to_string();
                let headers = [("streamtype", kind), ("port", "80"), ("requestid", request.as_str())];
                encoder.syn_stream(&mut bytes, stream, &headers).unwrap();
            }
            codec::refuse_stream(&mut bytes, error + 2); // RST_STREAM
            peer.write_all(&bytes.split()).await.unwrap();
            let frame = loop {
                match decoder.next_frame().unwrap() {
                    Some(frame) => break frame,
                    None => assert!(peer.read_buf(decoder.buffer()).await.unwrap() > 0),
                }
            };
            assert_eq!(frame, Frame::Data { stream: error, fin: true, bytes: Bytes::new() });
        }
        drop(peer);
        session.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn endless_response_ends_after_client_has_finished() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _instance = listener.accept().await.unwrap();
        let (_reader, writer) = stream.into_split();
        let (input, bytes) = mpsc::channel(1);
        drop(input); // the client has finished
        tokio::time::pause();
        send(writer, bytes).await.unwrap();
    }

    #[tokio::test]
    async fn long_message_is_passed_on_in_chunks() {
        let (input, mut chunks) = mpsc::channel(FORWARDED_CHUNKS_MAX);
        let mut stalled = Some((input, Bytes::from(vec![7; 2 * CHUNK_BYTES + 1])));
        while stalled.is_some() {
            push_stalled(&mut stalled).await;
        }
        let sizes: Vec<_> = std::iter::from_fn(|| chunks.try_recv().ok()).map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [CHUNK_BYTES, CHUNK_BYTES, 1]);
    }
}

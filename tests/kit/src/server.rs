//! An HTTP/1.1 server on a monoio loop of its own thread: what [`crate::TestUpstream`] and
//! [`crate::EventSink`] are made of.
//!
//! Shutting down takes care, because monoio frees buffers under operations that are still in flight
//! when its runtime is dropped: reads and the accept are cancelled, every task is awaited, and a
//! runtime whose tasks do not end is leaked instead of dropped.

use std::cell::Cell;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use monoio::io::{AsyncWriteRentExt, CancelHandle, CancelableAsyncReadRent, Canceller};
use monoio::net::{TcpListener, TcpStream};

use crate::message::{HttpRequest, chunks};
use crate::runtime::runtime;

/// Read from a connection at a time.
const READ_BYTES: usize = 16 * 1024;
/// Above `net.ipv4.ip_local_port_range`'s default, 32,768 to 60,999.
const ABOVE_EPHEMERAL: RangeInclusive<u16> = 61_000..=65_535;
/// A fixture that is dropped waits this long for its open requests.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// What a handler wants done with a request.
#[derive(Debug, Clone)]
pub enum HandlerReply {
    Send(ReceivedMessage),
    /// Closes the connection without an answer.
    HangUp,
    /// Sends these bytes, whatever they are, and closes the connection.
    Raw(Vec<u8>),
}

#[derive(Debug, Clone)]
pub struct ReceivedMessage {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: ReplyBodyKind,
    /// Closes the connection behind the answer.
    pub close: bool,
}

#[derive(Debug, Clone)]
pub enum ReplyBodyKind {
    Whole(Vec<u8>),
    Chunks(Vec<Vec<u8>>),
}

impl ReceivedMessage {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: ReplyBodyKind::Whole(Vec::new()), close: false }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = ReplyBodyKind::Whole(body.into());
        self
    }

    pub fn chunks(mut self, pieces: Vec<Vec<u8>>) -> Self {
        self.body = ReplyBodyKind::Chunks(pieces);
        self
    }

    fn to_bytes(&self, to_head: bool) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Fixture\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.close {
            head.push_str("Connection: close\r\n");
        }
        let bodiless = self.status < 200 || matches!(self.status, 204 | 304);
        let body = match &self.body {
            _ if bodiless => Vec::new(),
            ReplyBodyKind::Whole(bytes) => {
                head.push_str(&format!("Content-Length: {}\r\n", bytes.len()));
                bytes.clone()
            }
            ReplyBodyKind::Chunks(pieces) => {
                head.push_str("Transfer-Encoding: chunked\r\n");
                chunks(pieces.iter().map(Vec::as_slice))
            }
        };
        head.push_str("\r\n");
        if to_head { head.into_bytes() } else { [head.into_bytes(), body].concat() }
    }
}

/// A running server; dropping it closes its port and its connections.
#[derive(Debug)]
pub struct TestServer {
    address: SocketAddr,
    shared: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ServerState {
    stop: AtomicBool,
    connections: AtomicU64,
}

impl TestServer {
    /// Serves on `address` (port 0: a free one) with the handler that `make` makes on the server's
    /// own thread.
    pub fn start<H, F>(address: SocketAddr, make: impl FnOnce() -> H + Send + 'static) -> Self
    where
        H: Fn(HttpRequest) -> F + 'static,
        F: Future<Output = HandlerReply> + 'static,
    {
        let listener = match StdListener::bind(address) {
            Ok(listener) => listener,
            Err(why) => panic!("a fixture cannot listen on {address}: {why}"),
        };
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(ServerState::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::spawn(move || run(listener, &seen, make()));
        Self { address, shared, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(SeqCst)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        // The accept is woken by a connection; it then sees the flag.
        let _ = StdStream::connect_timeout(&self.address, CLOSING_MAX);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// For handlers: waits on the server's own loop.
pub async fn sleep(wait: Duration) {
    monoio::time::sleep(wait).await;
}

fn run<H, F>(listener: StdListener, shared: &ServerState, handler: H)
where
    H: Fn(HttpRequest) -> F + 'static,
    F: Future<Output = HandlerReply> + 'static,
{
    let mut runtime = runtime();
    let tasks_left = runtime.block_on(async move {
        let listener = TcpListener::from_std(listener).unwrap();
        let (canceller, live, handler) = (Canceller::new(), Rc::new(Cell::new(0_usize)), Rc::new(handler));
        while let Ok((stream, _)) = listener.accept().await {
            if shared.stop.load(SeqCst) {
                break;
            }
            shared.connections.fetch_add(1, SeqCst);
            live.set(live.get() + 1);
            let (live, handler, cancel) = (Rc::clone(&live), Rc::clone(&handler), canceller.handle());
            monoio::spawn(async move {
                serve(stream, cancel, &*handler).await;
                live.set(live.get() - 1);
            });
        }
        drop(listener);
        let _canceller = canceller.cancel();
        let mut waited = Duration::ZERO;
        while live.get() > 0 && waited < CLOSING_MAX {
            let step = Duration::from_millis(1);
            monoio::time::sleep(step).await;
            waited += step;
        }
        live.get()
    });
    if tasks_left > 0 {
        std::mem::forget(runtime);
    }
}

/// One connection, until it ends in any way.
async fn serve<F: Future<Output = HandlerReply>>(
    mut stream: TcpStream,
    cancel: CancelHandle,
    handler: &impl Fn(HttpRequest) -> F,
) {
    let _ = stream.set_nodelay(true);
    let mut received = Vec::new();
    let mut invited = false; // the 100 (Continue) for the current request is sent
    loop {
        match HttpRequest::parse(&received) {
            Ok(Some((request, length))) => {
                received.drain(..length);
                invited = false;
                let to_head = request.method == "HEAD";
                let (bytes, keep) = match handler(request).await {
                    HandlerReply::Send(message) => (message.to_bytes(to_head), !message.close),
                    HandlerReply::Raw(bytes) => (bytes, false),
                    HandlerReply::HangUp => return,
                };
                if stream.write_all(bytes).await.0.is_err() || !keep {
                    return;
                }
            }
            Ok(None) => {
                if !invited && expects_continue(&received) {
                    invited = true;
                    if stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()).await.0.is_err() {
                        return;
                    }
                }
                let piece = Vec::with_capacity(READ_BYTES);
                let (read, piece) = stream.cancelable_read(piece, cancel.clone()).await;
                match read {
                    Ok(0) | Err(_) => return,
                    Ok(length) => received.extend_from_slice(&piece[..length]),
                }
            }
            Err(_) => {
                let _ = stream.write_all(ReceivedMessage::new(400).to_bytes(false)).await;
                return;
            }
        }
    }
}

fn expects_continue(received: &[u8]) -> bool {
    let Ok(Some((head, _))) = HttpRequest::parse_head(received) else { return false };
    head.headers.get("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
}

/// An address of this host without a listener. Its port is above those that the kernel gives
/// out by itself, so that no other test is given it meanwhile.
///
/// # Panics
///
/// When each of those ports is taken.
#[must_use]
pub fn closed_address() -> SocketAddr {
    let ports = ABOVE_EPHEMERAL;
    let count = u64::from(ports.end() - ports.start()) + 1;
    let anywhere = RandomState::new().build_hasher().finish() % count;
    let from_there = ports.clone().cycle().skip(anywhere as usize).take(count as usize);
    from_there
        .map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
        .find(|&address| StdListener::bind(address).is_ok())
        .expect("a free port above the ephemeral ones")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HttpCall, HttpConnection};

    fn hello() -> TestServer {
        TestServer::start("127.0.0.1:0".parse().unwrap(), || {
            |_| async { HandlerReply::Send(ReceivedMessage::new(200).body("hello")) }
        })
    }

    #[test]
    fn a_dropped_server_refuses_connections_and_closes_open_ones() {
        let server = hello();
        let address = server.address();
        let mut open = HttpConnection::open(address);
        assert_eq!(open.call(&HttpCall::get("/")).text(), "hello");
        drop(server);
        assert_eq!(open.rest(), Some(Vec::new()));
        assert!(HttpConnection::try_open(address).is_err());
    }

    #[test]
    fn a_port_can_be_taken_again() {
        let address = hello().address();
        let again = TestServer::start(address, || |_| async { HandlerReply::Send(ReceivedMessage::new(202)) });
        assert_eq!(HttpCall::get("/").send(again.address()).status, 202);
    }

    #[test]
    fn a_client_that_waits_for_its_invitation_gets_one() {
        let server = hello();
        let mut client = HttpConnection::open(server.address());
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
        assert_eq!(client.receive_one(false).unwrap().status, 100);
        client.send(b"hi");
        assert_eq!(client.receive().status, 200);
    }
}

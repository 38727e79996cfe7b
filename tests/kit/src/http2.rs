//! HTTP/2 without TLS, on tokio: a client, an upstream application, and raw frames.
//!
//! The path selects the behavior: `/mirror` sends back the body as it arrives, and the
//! trailers after it; `/trailers-only` answers with one head and no body; `/hang` does not answer and
//! counts canceled requests; `/crumbs` sends frames of one byte for as long as they are accepted;
//! any other path gets the method, the path and the fields as
//! lines of text.

use std::future::Future;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::TIMEOUT;

/// Runs a test's story on a loop of its own; panics when it hangs.
pub fn run<T>(scenario: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async {
        match tokio::time::timeout(4 * TIMEOUT, scenario).await {
            Ok(outcome) => outcome,
            Err(_) => panic!("the story hangs"),
        }
    };
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, bounded)
}

/// A client's connection. Clones share it.
#[derive(Clone)]
pub struct H2Client {
    sender: SendRequest<Bytes>,
}

/// A whole answer.
#[derive(Debug)]
pub struct H2Response {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl H2Response {
    /// Why the gateway answered itself, as a trusted client is told.
    pub fn reason(&self) -> &str {
        self.headers.get("sluicegate-reason").and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl H2Client {
    /// Opens a connection; the second value resolves when it ends. Inside [`run`] only.
    pub async fn open(to: SocketAddr) -> (Self, oneshot::Receiver<Result<(), h2::Error>>) {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        // As most clients, it holds back until it knows what the server allows; and it is slow to read
        // many small answers at once.
        let mut builder = h2::client::Builder::new();
        let (sender, connection) =
            builder.data_frame_budget(1 << 20).initial_max_send_streams(100).handshake(stream).await.unwrap();
        let (tell, ended) = oneshot::channel();
        tokio::task::spawn_local(async move {
            let _ = tell.send(connection.await);
        });
        (Self { sender }, ended)
    }

    /// Waits until the server has said that it knows RFC 8441.
    pub async fn knows_extended_connect(&self) {
        while !self.sender.is_extended_connect_protocol_enabled() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Begins a request; `ends` when no body follows.
    pub async fn begin(
        &self,
        request: Request<()>,
        ends: bool,
    ) -> Result<(h2::client::ResponseFuture, SendStream<Bytes>), h2::Error> {
        self.sender.clone().ready().await?.send_request(request, ends)
    }

    /// A request without a body.
    pub async fn call(&self, request: Request<()>) -> Result<H2Response, h2::Error> {
        let (response, _) = self.begin(request, true).await?;
        answer(response.await?).await
    }

    /// A request with a body and perhaps trailers, sent while the answer is read.
    pub async fn send(
        &self,
        request: Request<()>,
        body: Bytes,
        trailers: Option<HeaderMap>,
    ) -> Result<H2Response, h2::Error> {
        let (response, mut stream) = self.begin(request, false).await?;
        let sending = async {
            send_all(&mut stream, body, trailers.is_none()).await?;
            match trailers {
                Some(fields) => stream.send_trailers(fields),
                None => Ok(()),
            }
        };
        let reading = async { answer(response.await?).await };
        let (sent, answer) = tokio::join!(sending, reading);
        sent.and(answer)
    }
}

/// Whether a stream failed because the server said goodbye before it saw it: to be asked again elsewhere.
pub fn is_unprocessed(why: &h2::Error) -> bool {
    why.is_go_away() && why.is_remote() && why.reason() == Some(h2::Reason::NO_ERROR)
}

/// Runs both to their ends.
pub async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    tokio::join!(one, other)
}

/// Sends all of `body` as the window opens.
pub async fn send_all(stream: &mut SendStream<Bytes>, mut body: Bytes, ends: bool) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let capacity = match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(capacity) => capacity?,
            None => return Ok(()), // the peer wants no more
        };
        let piece = body.split_to(capacity.min(body.len()));
        stream.send_data(piece, false)?;
    }
    if ends { stream.send_data(Bytes::new(), true) } else { Ok(()) }
}

/// Reads an answer to its end.
pub async fn answer(response: Response<RecvStream>) -> Result<H2Response, h2::Error> {
    let (parts, mut stream) = response.into_parts();
    let mut body = BytesMut::new();
    while let Some(piece) = stream.data().await {
        let piece = piece?;
        stream.flow_control().release_capacity(piece.len())?;
        body.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await?;
    Ok(H2Response { status: parts.status.as_u16(), headers: parts.headers, body: body.freeze(), trailers })
}

/// A running application; dropping it closes its port.
pub struct H2Server {
    address: SocketAddr,
    counts: Arc<H2Counts>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct H2Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    taken_back: AtomicU64,
    crumbs: AtomicU64,
}

impl H2Server {
    /// Starts on a free port.
    pub fn start() -> Self {
        let listener = StdListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let counts = Arc::new(H2Counts::default());
        let (stop, stopped) = oneshot::channel();
        let seen = Arc::clone(&counts);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                tokio::select! {
                    () = accept(listener, seen) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, counts, stop: Some(stop), thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connections(&self) -> u64 {
        self.counts.connections.load(SeqCst)
    }

    pub fn requests(&self) -> u64 {
        self.counts.requests.load(SeqCst)
    }

    /// Requests to `/hang` that the client gave up.
    pub fn taken_back(&self) -> u64 {
        self.counts.taken_back.load(SeqCst)
    }

    /// Bytes sent by `/crumbs`.
    pub fn crumbs(&self) -> u64 {
        self.counts.crumbs.load(SeqCst)
    }
}

impl Drop for H2Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: StdListener, counts: Arc<H2Counts>) {
    let listener = TcpListener::from_std(listener).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        counts.connections.fetch_add(1, SeqCst);
        let counts = Arc::clone(&counts);
        tokio::task::spawn_local(async move {
            // A client that does not speak HTTP/2 (a check whether the port is open) is ignored.
            let Ok(mut connection) = h2::server::handshake(stream).await else { return };
            while let Some(Ok((request, respond))) = connection.accept().await {
                counts.requests.fetch_add(1, SeqCst);
                let counts = Arc::clone(&counts);
                tokio::task::spawn_local(async move {
                    // A broken stream affects only its client.
                    let _ = serve(request, respond, &counts).await;
                });
            }
        });
    }
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    counts: &H2Counts,
) -> Result<(), h2::Error> {
    let (parts, mut body) = request.into_parts();
    match parts.uri.path() {
        "/mirror" => {
            let mut out = respond.send_response(Response::new(()), false)?;
            while let Some(piece) = body.data().await {
                let piece = piece?;
                let size = piece.len();
                send_all(&mut out, piece, false).await?;
                body.flow_control().release_capacity(size)?;
            }
            let mut fields = body.trailers().await?.unwrap_or_default();
            fields.insert("grpc-status", HeaderValue::from_static("0"));
            out.send_trailers(fields)
        }
        "/trailers-only" => {
            let answer = Response::builder().header("grpc-status", "7").body(()).unwrap();
            respond.send_response(answer, true).map(drop)
        }
        "/hang" => {
            let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
            counts.taken_back.fetch_add(1, SeqCst);
            Ok(())
        }
        "/crumbs" => {
            let mut out = respond.send_response(Response::new(()), false)?;
            loop {
                out.reserve_capacity(1 << 14);
                let Some(capacity) = std::future::poll_fn(|cx| out.poll_capacity(cx)).await else {
                    return Ok(());
                };
                for _ in 0..capacity? {
                    out.send_data(Bytes::from_static(b"."), false)?;
                    counts.crumbs.fetch_add(1, SeqCst);
                }
            }
        }
        path => {
            let mut text = format!("{} {path}\nauthority: {:?}\n", parts.method, parts.uri.authority());
            for (name, value) in &parts.headers {
                text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
            }
            let answer = Response::builder().header("content-length", text.len()).body(()).unwrap();
            let to_head = parts.method == http::Method::HEAD;
            let mut out = respond.send_response(answer, to_head)?;
            if to_head { Ok(()) } else { send_all(&mut out, Bytes::from(text), true).await }
        }
    }
}

/// One frame's bytes.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head, stream.to_be_bytes().as_slice(), payload].concat()
}

/// The head block of `GET /PATH` to a host, without compression; `path` begins with a slash.
pub fn get_block(host: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86]; // :method GET, :scheme http
    for (index, value) in [(0x01, host), (0x04, path)] {
        block.push(index);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// What a client of prior knowledge begins with: preface and empty SETTINGS.
pub fn opening() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(0x4, 0, 0, &[])].concat()
}

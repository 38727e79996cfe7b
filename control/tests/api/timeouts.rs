//! Slow clients: each has a time limit, and they do not delay others.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::body::Body;
use futures_util::stream;
use http::Method;
use sluicegate_control::api::http_server::{REQUEST_HEADER_BYTES_MAX, REQUEST_HEADER_TIMEOUT, serve};
use sluicegate_control::api::{self, BODY_TIMEOUT, listener};
use sluicegate_control::cross_origin::{CrossOriginProtection, GuardedListener, OwnHosts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, pause};

use crate::support::{MAPS, TestApiServer};

/// APP-19: a body that does not end gets a 408 once its time is over.
#[tokio::test]
async fn a_body_that_does_not_arrive_is_answered_408() {
    let server = TestApiServer::real().await;
    pause();
    let started = Instant::now();
    let slow = stream::unfold(b"{\"metadata\":".to_vec(), |bytes| async {
        if bytes.is_empty() {
            std::future::pending::<()>().await
        }
        Some((Ok::<_, Infallible>(bytes), Vec::new()))
    });
    let (code, status) = server.ask_as(Method::POST, MAPS, "application/json", Body::from_stream(slow)).await;
    assert_eq!((code, status["reason"].as_str()), (408, Some("Timeout")), "{status}");
    assert!(status["message"].as_str().unwrap().contains("60 seconds"), "{status}");
    assert!(started.elapsed() >= BODY_TIMEOUT);
}

/// As at `--api 127.0.0.1`.
pub(crate) fn protection() -> CrossOriginProtection {
    let hosts = OwnHosts::new(Ipv4Addr::LOCALHOST.into(), []);
    CrossOriginProtection::new(GuardedListener::Api, false, hosts, Arc::default())
}

/// A sender that stops behind a large part of its body is refused soon, so that it does not hold the memory of others.
#[tokio::test]
async fn large_body_that_pauses_is_answered_408_soon() {
    let server = TestApiServer::real().await;
    pause();
    let started = Instant::now();
    let slow = stream::unfold(vec![b' '; 1 << 20], |bytes| async {
        if bytes.is_empty() {
            std::future::pending::<()>().await
        }
        Some((Ok::<_, Infallible>(bytes), Vec::new()))
    });
    let (code, status) = server.ask_as(Method::POST, MAPS, "application/json", Body::from_stream(slow)).await;
    assert_eq!(code, 408, "{status}");
    assert!(started.elapsed() < BODY_TIMEOUT / 2);
}

/// The API on a socket; it ends when the sender is dropped.
async fn open(api: &TestApiServer) -> (TcpStream, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = api::router(api.store.clone(), api.registry.clone());
    let (end, ended) = oneshot::channel::<()>();
    let until = async { drop(ended.await) };
    let server = tokio::spawn(serve(listener, router, protection(), listener::tcp_peer, until));
    (TcpStream::connect(address).await.unwrap(), end, server)
}

/// A connection that never sends a request is closed, and its descriptor and its permit are released.
#[tokio::test]
async fn a_head_that_does_not_arrive_ends_its_connection() {
    let server = TestApiServer::real().await;
    let (mut stream, _end, _server) = open(&server).await;
    pause();
    let started = Instant::now();
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: ").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await; // closed or reset
    assert!(started.elapsed() >= REQUEST_HEADER_TIMEOUT, "{}", String::from_utf8_lossy(&answer));
}

/// APP-19: one that ends within what is read ahead, too.
#[tokio::test]
async fn a_head_beyond_its_limit_is_refused() {
    let server = TestApiServer::real().await;
    let begin = b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    for (bytes, end, expected) in [
        (REQUEST_HEADER_BYTES_MAX, "", b"HTTP/1.1 431"), // not a byte more: what is left unread would cut off the answer
        (REQUEST_HEADER_BYTES_MAX - 1024, "\r\n\r\n", b"HTTP/1.1 200"),
        (REQUEST_HEADER_BYTES_MAX + 1024, "\r\n\r\n", b"HTTP/1.1 431"),
    ] {
        let (mut stream, _end, _server) = open(&server).await;
        let mut head = begin.clone();
        head.resize(bytes, b'x');
        head.extend_from_slice(end.as_bytes());
        stream.write_all(&head).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, expected, "{bytes}");
    }
}

/// APP-19: a rejected client gets its response, and can reuse the connection, though its body comes later or is not
/// read by the handler.
#[tokio::test]
async fn a_body_that_nobody_wants_is_read_and_the_connection_goes_on() {
    let server = TestApiServer::real().await;
    let (mut stream, _end, _server) = open(&server).await;
    let body = "x".repeat(100_000);
    let head = format!(
        "POST /apis/none/v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Its head was taken when a later connection is answered.
    let mut other = TcpStream::connect(stream.peer_addr().unwrap()).await.unwrap();
    other.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    other.read_exact(&mut [0; 15]).await.unwrap();
    let next = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(format!("{body}{next}").as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert!(answers.starts_with("HTTP/1.1 404") && answers.contains("HTTP/1.1 200"), "{answers}");

    let (mut stream, _end, _server) = open(&server).await;
    stream.write_all(head.as_bytes()).await.unwrap();
    pause();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("connection: close"), "{answer}");
}

/// An idle connection is closed at once; a request in progress still finishes.
#[tokio::test]
async fn a_listener_that_ends_lets_requests_end() {
    let api = TestApiServer::real().await;
    let (mut stream, end, server) = open(&api).await;
    let body = r#"{"metadata":{"name":"late"}}"#;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Its head was taken when a later connection is answered.
    let mut other = TcpStream::connect(stream.peer_addr().unwrap()).await.unwrap();
    other.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    other.read_exact(&mut [0; 15]).await.unwrap();
    drop(end);
    let _ = other.read_to_end(&mut Vec::new()).await; // closed or reset
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    server.await.unwrap();
}

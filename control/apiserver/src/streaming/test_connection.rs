//! An upgraded connection in memory, for tests.

use axum::body::Body;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::UpgradedIo;

/// The server's side and the client's. At most `buffer_bytes` wait in each direction.
pub(super) async fn upgraded_pair(buffer_bytes: usize) -> (UpgradedIo, DuplexStream) {
    let (mut client, server) = duplex(buffer_bytes);
    let (sender, mut upgrades) = mpsc::channel(1);
    let service = service_fn(move |mut request: Request<Incoming>| {
        sender.try_send(hyper::upgrade::on(&mut request)).unwrap();
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let response = response.header(CONNECTION, "upgrade").header(UPGRADE, "test").body(Body::empty());
        std::future::ready(response)
    });
    tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(server), service).with_upgrades());
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: test\r\n\r\n").await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    (TokioIo::new(upgrades.recv().await.unwrap().await.unwrap()), client)
}

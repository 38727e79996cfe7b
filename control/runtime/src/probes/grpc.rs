//! gRPC's health protocol, as far as a probe needs it: one unary call, one number in the response.
//!
//! Messages are encoded and decoded here: the request has one string and the response one number.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use tokio::net::TcpStream;

use crate::limits::PROBE_HEAD_BYTES_MAX;

/// `HealthCheckResponse.status`, field 1, a varint: SERVING.
const SERVING: [u8; 2] = [0x08, 0x01];
/// A message begins with a flag and its length.
const PREFIX_BYTES: usize = 5;
/// `HealthCheckRequest.service`, field 1, a string.
const SERVICE_TAG: u8 = 0x0A;
/// A service name is written with a length of one byte.
const SERVICE_BYTES_MAX: usize = 127;
/// The connection's own task ends with the call; this is for one that hangs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks whether `service` is served; an empty name is the whole program.
pub(crate) async fn check_serving(stream: TcpStream, address: SocketAddr, service: &str) -> Result<(), String> {
    let question = request_message(service)?;
    let probe_failed = |why: h2::Error| format!("gRPC probe failed: {why}");
    let (client, connection) = h2::client::handshake(stream).await.map_err(probe_failed)?;
    let call = async {
        let mut client = client.ready().await.map_err(probe_failed)?;
        let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "kube-probe/sluicegate")
            .body(())
            .map_err(|why| why.to_string())?;
        let (answer, mut body) = client.send_request(request, false).map_err(probe_failed)?;
        body.send_data(question, true).map_err(probe_failed)?;
        check_response(answer.await.map_err(probe_failed)?).await
    };
    tokio::select! {
        verdict = call => verdict,
        ended = connection => Err(ended.err().map_or_else(|| "gRPC probe failed: the connection ended".to_owned(), probe_failed)),
    }
}

async fn check_response(answer: http::Response<h2::RecvStream>) -> Result<(), String> {
    let probe_failed = |why: h2::Error| format!("gRPC probe failed: {why}");
    let (head, mut body) = answer.into_parts();
    let mut message = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.map_err(probe_failed)?;
        let _ = body.flow_control().release_capacity(chunk.len()); // the stream ends with this call
        message.extend_from_slice(&chunk);
        if message.len() > PROBE_HEAD_BYTES_MAX {
            return Err("gRPC probe failed: the response is not a health message".to_owned());
        }
    }
    let trailers = tokio::time::timeout(CLOSE_TIMEOUT, body.trailers()).await.ok().and_then(Result::ok).flatten();
    let status = |headers: &HeaderMap| headers.get("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
    // An answer without a message has its status in the head.
    match trailers.as_ref().and_then(status).or_else(|| status(&head.headers)) {
        Some(0_u32) if message.get(PREFIX_BYTES..) == Some(&SERVING) => Ok(()),
        Some(0) => Err("gRPC probe failed: service unhealthy".to_owned()),
        Some(code) => Err(format!("gRPC probe failed with status code {code}")),
        None => Err("gRPC probe failed: the answer has no status".to_owned()),
    }
}

fn request_message(service: &str) -> Result<Bytes, String> {
    let length = u8::try_from(service.len()).ok().filter(|&n| usize::from(n) <= SERVICE_BYTES_MAX);
    let length = length.ok_or_else(|| {
        format!("gRPC probe: the service name has {} bytes, limit {SERVICE_BYTES_MAX}", service.len())
    })?;
    let body = if length == 0 { Vec::new() } else { [&[SERVICE_TAG, length], service.as_bytes()].concat() };
    let size = u32::try_from(body.len()).unwrap_or_default().to_be_bytes();
    Ok([&[0], size.as_slice(), &body].concat().into())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn the_question_is_what_protobuf_would_write() {
        assert_eq!(request_message("").unwrap(), Bytes::from_static(&[0, 0, 0, 0, 0]));
        assert_eq!(request_message("ab").unwrap(), Bytes::from_static(&[0, 0, 0, 0, 4, 0x0A, 2, b'a', b'b']));
        assert!(request_message(&"x".repeat(128)).unwrap_err().contains("limit 127"));
    }

    /// A server that answers one call with `message` and `status`.
    async fn answers(message: &'static [u8], status: &'static str) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let mut connection = h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let mut send = respond.send_response(http::Response::new(()), false).unwrap();
                send.send_data(Bytes::from_static(message), false).unwrap();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", status.parse().unwrap());
                send.send_trailers(trailers).unwrap();
            }
        };
        let probe = async { check_serving(TcpStream::connect(address).await.unwrap(), address, "svc").await };
        tokio::select! { verdict = probe => verdict, () = server => panic!("the server ended first") }
    }

    /// RT-PROBE-04: as upstream does, gRPC is accepted too; only SERVING with a good status passes.
    #[tokio::test]
    async fn only_serving_with_a_good_status_passes() {
        assert_eq!(answers(&[0, 0, 0, 0, 2, 8, 1], "0").await, Ok(()));
        for (message, status) in
            [(&[0, 0, 0, 0, 2, 8, 2][..], "0"), (&[0, 0, 0, 0, 2, 8, 1], "12"), (&[], "0"), (&[], "x")]
        {
            assert!(answers(message, status).await.is_err(), "{message:?} {status}");
        }
    }

    #[tokio::test]
    async fn a_server_that_speaks_something_else_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let probe = async { check_serving(TcpStream::connect(address).await.unwrap(), address, "").await };
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 no\r\n\r\n").await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! { verdict = probe => assert!(verdict.is_err()), () = server => {} }
    }
}

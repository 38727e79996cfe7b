//! Detects whether an instance speaks HTTP/2 with prior knowledge. Checked on a separate connection, once an
//! instance is ready (RT-PORT-02; RFC 9113 3.3). The earlier upgrade from HTTP/1.1 is no longer a part of HTTP/2.

use std::io;
use std::net::SocketAddr;

use contract::table::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connect;
use crate::limits::HTTP2_PROBE_TIMEOUT;

/// The client preface, and empty SETTINGS (RFC 9113 3.4).
const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The rest of a frame header, after its length in three bytes.
const SETTINGS: u8 = 4;

/// Detects an instance's protocol. An HTTP/2 server first sends its own settings, which acknowledge nothing; an
/// instance that sends anything else, or nothing, gets HTTP/1.
pub(crate) async fn detect(address: SocketAddr) -> Protocol {
    match timeout(HTTP2_PROBE_TIMEOUT, first_frame(address)).await {
        Ok(Ok([_, _, _, SETTINGS, 0, 0, 0, 0, 0])) => Protocol::H2c,
        Ok(Ok(_) | Err(_)) | Err(_) => Protocol::Http1,
    }
}

/// The head of the first frame.
async fn first_frame(address: SocketAddr) -> io::Result<[u8; 9]> {
    let mut stream = connect(address).await?;
    stream.write_all(CLIENT_PREFACE).await?;
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The result for a server that reads `reads` bytes, sends `says`, and then stays or disconnects.
    async fn found(reads: usize, says: &'static [u8], stays: bool) -> Protocol {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = vec![0; reads];
            stream.read_exact(&mut read).await.unwrap();
            stream.write_all(says).await.unwrap();
            if stays {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            protocol = detect(address) => protocol,
            () = async { server.await; std::future::pending().await } => unreachable!("it never ends"),
        }
    }

    /// RT-PORT-02: settings are HTTP/2's, and nothing else is.
    #[tokio::test]
    async fn who_says_its_settings_speaks_http2_and_nobody_else() {
        for (says, protocol) in [
            (b"\0\0\0\x04\0\0\0\0\0".as_slice(), Protocol::H2c),
            (b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64", Protocol::H2c),
            (b"\0\0\0\x04\x01\0\0\0\0", Protocol::Http1),
            (b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01", Protocol::Http1),
            (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", Protocol::Http1),
        ] {
            for (reads, stays) in [(0, true), (CLIENT_PREFACE.len(), true), (CLIENT_PREFACE.len(), false)] {
                assert_eq!(found(reads, says, stays).await, protocol, "{says:?} {reads} {stays}");
            }
        }
        for (says, stays) in [(b"\0\0\0\x04".as_slice(), false), (b"", false), (b"", true)] {
            assert_eq!(found(CLIENT_PREFACE.len(), says, stays).await, Protocol::Http1, "{says:?} {stays}");
        }
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(detect(closed).await, Protocol::Http1);
    }
}

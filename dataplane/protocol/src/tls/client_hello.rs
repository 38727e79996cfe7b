//! Reads the first flight of a client: until its ClientHello is complete nothing is computed for it.

use std::io;

use ring::{Chunk, Ring, RingStream};
use rustls::server::{Accepted, Acceptor};

use super::limits::{DRAIN_BYTES_MAX, DRAIN_MAX};

/// The first message of a client.
pub(super) enum ClientHello {
    Received {
        accepted: Box<Accepted>,
        /// The bytes after it.
        rest: Chunk,
    },
    /// HTTP without TLS; a 400 was sent.
    Plain,
    /// Not a ClientHello; the alert with the reason was sent.
    Refused(rustls::Error),
    Gone,
}

/// `arrived` are bytes that were received already.
pub(super) async fn read(ring: &Ring, stream: &RingStream, mut arrived: Chunk) -> io::Result<ClientHello> {
    let mut acceptor = Acceptor::default();
    let mut first = true;
    loop {
        let mut chunk = std::mem::take(&mut arrived);
        if chunk.is_empty() {
            chunk = stream.recv().await?;
        }
        let Some(&byte) = chunk.first() else { return Ok(ClientHello::Gone) };
        // A TLS record begins with its type, a small number; an HTTP request with a method.
        if std::mem::take(&mut first) && byte.is_ascii_uppercase() {
            drop(chunk);
            send_and_drain(ring, stream, plain_answer()).await;
            return Ok(ClientHello::Plain);
        }
        while !chunk.is_empty() {
            let mut rest: &[u8] = &chunk;
            let taken = acceptor.read_tls(&mut rest);
            match taken {
                Ok(taken @ 1..) => chunk.advance(taken),
                // A ClientHello larger than its buffer.
                Ok(0) | Err(_) => return Ok(ClientHello::Refused(rustls::Error::PeerSentOversizedRecord)),
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Ok(ClientHello::Received { accepted: Box::new(accepted), rest: chunk });
                }
                Err((why, mut alert)) => {
                    let mut bytes = Vec::new();
                    alert.write_all(&mut bytes)?;
                    drop(chunk);
                    send_and_drain(ring, stream, bytes).await;
                    return Ok(ClientHello::Refused(why));
                }
            }
        }
    }
}

fn plain_answer() -> Vec<u8> {
    const SENTENCE: &str = "this port speaks HTTPS only\n";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{SENTENCE}",
        SENTENCE.len()
    );
    answer.into_bytes()
}

/// Sends the last bytes and reads the peer for a while: a close with unread bytes is a reset, and a reset would
/// overtake them.
pub(super) async fn send_and_drain(ring: &Ring, stream: &RingStream, bytes: Vec<u8>) {
    let sent = async {
        stream.send(bytes).await?;
        stream.shutdown_write().await?;
        let mut received = 0;
        while received < DRAIN_BYTES_MAX {
            let chunk = stream.recv().await?;
            if chunk.is_empty() {
                break;
            }
            received += chunk.len();
        }
        io::Result::Ok(())
    };
    let _ = ring.timeout(DRAIN_MAX, sent).await; // the connection closes in any case
}

//! Reads the server name of a TLS client before it is decided who makes the handshake. No byte is changed or lost.

use codec::client_hello::{MalformedClientHello, ParsedClientHello, ServerName, parse};
use ring::{Chunk, Ring, RingStream};

use super::HandshakeOutcome;
use super::client_hello::send_and_drain;

/// `decode_error`: the message could not be read (RFC 8446 6.2).
const DECODE_ERROR: u8 = 50;
/// `unrecognized_name`: no server of this name is here (RFC 6066 3).
const UNRECOGNIZED_NAME: u8 = 112;

/// The beginning of a TLS connection.
pub struct NamedHello {
    /// `None`: the client names no server, or what it sends is not TLS.
    pub server_name: Option<ServerName>,
    /// All that was received. In memory of its own, because the bytes may wait for a backend.
    pub arrived: Chunk,
    /// It begins with a ClientHello.
    pub is_tls: bool,
}

/// `arrived` are bytes that were received already.
pub(super) async fn read(ring: &Ring, stream: &RingStream, arrived: Chunk) -> Result<NamedHello, HandshakeOutcome> {
    let mut received = arrived.to_vec(); // one allocation for each connection: the bytes wait for the backend
    let mut wanted = 1;
    loop {
        if received.len() >= wanted {
            match parse(&received) {
                ParsedClientHello::Complete(server_name) => {
                    return Ok(NamedHello { server_name, arrived: received.into(), is_tls: true });
                }
                ParsedClientHello::NeedBytes(count) => wanted = count,
                // The answer to HTTP without TLS is that of other listeners for TLS.
                ParsedClientHello::Malformed(MalformedClientHello::NotTls) => {
                    return Ok(NamedHello { server_name: None, arrived: received.into(), is_tls: false });
                }
                ParsedClientHello::Malformed(why) => {
                    tracing::debug!(why = why.sentence(), "TLS connection rejected");
                    send_and_drain(ring, stream, alert(DECODE_ERROR)).await;
                    return Err(HandshakeOutcome::Refused);
                }
            }
        }
        let chunk = stream.recv().await.map_err(|_| HandshakeOutcome::Gone)?;
        if chunk.is_empty() {
            return Err(HandshakeOutcome::Gone);
        }
        received.extend_from_slice(&chunk);
    }
}

/// Tells a client that no server has the name that it asked for.
pub async fn refuse_server_name(ring: &Ring, stream: &RingStream) {
    send_and_drain(ring, stream, alert(UNRECOGNIZED_NAME)).await;
}

/// A fatal alert in a record of its own.
fn alert(description: u8) -> Vec<u8> {
    vec![21, 3, 3, 0, 2, 2, description]
}

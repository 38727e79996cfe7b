//! What a client may cost before its first byte of HTTP.

use std::time::Duration;

/// Limits on handshakes, per core.
#[derive(Debug, Clone, Copy)]
pub struct TlsLimits {
    /// From the accepted connection to the finished handshake: three round trips of the slowest phone, and too little
    /// to hold a permit for long.
    pub handshake_max: Duration,
    /// Active handshakes; each holds some 20 KiB, so 512 hold 10 MiB. Beyond that, the connection that has been silent
    /// longest is evicted; if all have sent a ClientHello, the one whose answer has been due for longest, and for
    /// longer than `answer_min`; otherwise the new one is refused.
    pub handshakes_max: usize,
    /// How long a client has at least to answer the server's flight: two round trips of a slow phone.
    pub answer_min: Duration,
}

impl Default for TlsLimits {
    fn default() -> Self {
        Self { handshake_max: Duration::from_secs(10), handshakes_max: 512, answer_min: Duration::from_secs(1) }
    }
}

/// Plaintext encrypted in one go, four full records: they leave in one send, and a client that does not read holds no
/// more than this and the socket's buffer.
pub(super) const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a rejected client that are read and dropped, so that it sees the reason and not a reset.
pub(super) const DRAIN_BYTES_MAX: usize = 64 * 1024;

/// How long they are read.
pub(super) const DRAIN_MAX: Duration = Duration::from_secs(2);

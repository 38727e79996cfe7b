//! What a client may cost before it has said a word of HTTP.

use std::time::Duration;

/// Limits on handshakes, per core.
#[derive(Debug, Clone, Copy)]
pub struct TlsLimits {
    /// From the accepted connection to the finished handshake: three round trips of the slowest phone,
    /// and no time to sit on a seat.
    pub handshake_max: Duration,
    /// Handshakes under way at a time; each holds some 20 KiB, so 512 hold 10 MiB. Beyond, the connection
    /// that has been silent longest goes; if all have said hello, whoever has owed an answer to ours for longest, and
    /// for longer than `answer_min`; else the newcomer.
    pub handshakes_max: usize,
    /// What a client that has our part of the handshake is given to answer, whoever else may come: two round trips of a slow
    /// phone.
    pub answer_min: Duration,
}

impl Default for TlsLimits {
    fn default() -> Self {
        Self { handshake_max: Duration::from_secs(10), handshakes_max: 512, answer_min: Duration::from_secs(1) }
    }
}

/// Certificates of one chain together. Ten of RSA-4096 are below 20 KB, and each handshake under way holds them.
pub(super) const CHAIN_BYTES_MAX: usize = 32 * 1024;

/// Plaintext encrypted in one go, four full records: they leave in one send, and a client that does not
/// read holds no more than this and what the socket takes.
pub(super) const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a client that was refused which are read and dropped, so that it sees why and not a reset ...
pub(super) const PARTING_BYTES_MAX: usize = 64 * 1024;

/// ... and for how long.
pub(super) const PARTING_MAX: Duration = Duration::from_secs(2);

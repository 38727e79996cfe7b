//! The outcome of a handshake, for counters and logs.

/// Every accepted connection has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// With a certificate and its signature.
    Full,
    /// With a ticket of an earlier connection.
    Resumed,
    /// No common parameters, a protocol violation, or the client rejected the certificate.
    Refused,
    /// HTTP without TLS.
    Plain,
    /// It took longer than `handshake_max`.
    Slow,
    /// `handshakes_max` were active.
    Overload,
    /// The client closed the connection.
    Gone,
    /// None was made here: the server that the client named makes it.
    Forwarded,
}

impl HandshakeOutcome {
    /// Names in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 8] =
        ["full", "resumed", "failed", "not_tls", "timeout", "overload", "client_closed", "forwarded"];

    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_name() {
        for (outcome, name) in [
            (HandshakeOutcome::Full, "full"),
            (HandshakeOutcome::Plain, "not_tls"),
            (HandshakeOutcome::Gone, "client_closed"),
            (HandshakeOutcome::Forwarded, "forwarded"),
        ] {
            assert_eq!(HandshakeOutcome::NAMES[outcome.index()], name);
        }
    }
}

//! Protocol errors of a peer, and the status that each gets. The only place where one becomes the other.

/// Why a message is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MalformedHttp {
    RequestLine,
    StatusLine,
    Target,
    TargetTooLong,
    Version,
    BareLineFeed,
    FieldName,
    FieldValue,
    TooManyFields,
    HeadTooLarge,
    HostMissing,
    HostRepeated,
    HostInvalid,
    LengthInvalid,
    LengthRepeated,
    LengthAndCoding,
    CodingInvalid,
    CodingUnknown,
    CodingInOldVersion,
    ChunkSize,
    ChunkExtension,
    ChunkEnd,
    Trailer,
    TrailersTooLarge,
    TooManyInterim,
    SwitchNotRequested,
    HandshakeWithoutSwitch,
}

impl MalformedHttp {
    /// The status for the client.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::TargetTooLong => 414,
            Self::TooManyFields | Self::HeadTooLarge | Self::TrailersTooLarge => 431,
            Self::CodingUnknown => 501,
            Self::Version => 505,
            _ => 400,
        }
    }

    /// What is wrong, as a sentence for the response body and the log.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::RequestLine => "the request line is not METHOD SP TARGET SP VERSION",
            Self::StatusLine => "the status line is not VERSION SP STATUS SP REASON",
            Self::Target => "the request target is not a path, an http URL or *",
            Self::TargetTooLong => "the request target is too long",
            Self::Version => "only HTTP/1.1 and HTTP/1.0 are supported",
            Self::BareLineFeed => "a line ends in LF without CR",
            Self::FieldName => "a header line does not begin with a field name and a colon",
            Self::FieldValue => "a header value has a forbidden byte",
            Self::TooManyFields => "too many header fields",
            Self::HeadTooLarge => "the head is too large",
            Self::HostMissing => "the Host header is missing",
            Self::HostRepeated => "there is more than one Host header",
            Self::HostInvalid => "the Host header is not a host with an optional port",
            Self::LengthInvalid => "Content-Length is not a number",
            Self::LengthRepeated => "there is more than one Content-Length",
            Self::LengthAndCoding => "both Content-Length and Transfer-Encoding are given",
            Self::CodingInvalid => "Transfer-Encoding does not end in a single chunked",
            Self::CodingUnknown => "the transfer coding is not supported; only chunked is",
            Self::CodingInOldVersion => "Transfer-Encoding does not exist in HTTP/1.0",
            Self::ChunkSize => "a chunk size is not a hexadecimal number that fits",
            Self::ChunkExtension => "a chunk extension is malformed or too long",
            Self::ChunkEnd => "a chunk does not end in CR LF",
            Self::Trailer => "a trailer line is malformed",
            Self::TrailersTooLarge => "the trailers are too large",
            Self::TooManyInterim => "more than 16 interim (1xx) responses come before the final one",
            Self::SwitchNotRequested => "101 switches to a protocol that the request did not ask for",
            Self::HandshakeWithoutSwitch => "the response to a WebSocket handshake does not switch to WebSocket",
        }
    }
}

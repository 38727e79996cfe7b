//! The mistakes of a peer, each with its error code (RFC 9113 7).

use std::fmt;

use crate::field_block::MalformedFields;
use crate::frame_allowances::FloodKind;
use crate::hpack::HpackError;

/// The error codes of RST_STREAM and GOAWAY. Shown by their names in RFC 9113.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    NoError = 0x0,
    ProtocolError = 0x1,
    InternalError = 0x2,
    FlowControlError = 0x3,
    SettingsTimeout = 0x4,
    StreamClosed = 0x5,
    FrameSizeError = 0x6,
    RefusedStream = 0x7,
    Cancel = 0x8,
    CompressionError = 0x9,
    ConnectError = 0xa,
    EnhanceYourCalm = 0xb,
    InadequateSecurity = 0xc,
    Http11Required = 0xd,
}

impl ErrorCode {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoError => "NO_ERROR",
            Self::ProtocolError => "PROTOCOL_ERROR",
            Self::InternalError => "INTERNAL_ERROR",
            Self::FlowControlError => "FLOW_CONTROL_ERROR",
            Self::SettingsTimeout => "SETTINGS_TIMEOUT",
            Self::StreamClosed => "STREAM_CLOSED",
            Self::FrameSizeError => "FRAME_SIZE_ERROR",
            Self::RefusedStream => "REFUSED_STREAM",
            Self::Cancel => "CANCEL",
            Self::CompressionError => "COMPRESSION_ERROR",
            Self::ConnectError => "CONNECT_ERROR",
            Self::EnhanceYourCalm => "ENHANCE_YOUR_CALM",
            Self::InadequateSecurity => "INADEQUATE_SECURITY",
            Self::Http11Required => "HTTP_1_1_REQUIRED",
        }
    }

    /// The code that a peer sent. Unknown codes have no special meaning and count as INTERNAL_ERROR (RFC 9113 7).
    #[must_use]
    pub const fn from_wire(code: u32) -> Self {
        match code {
            0x0 => Self::NoError,
            0x1 => Self::ProtocolError,
            0x3 => Self::FlowControlError,
            0x4 => Self::SettingsTimeout,
            0x5 => Self::StreamClosed,
            0x6 => Self::FrameSizeError,
            0x7 => Self::RefusedStream,
            0x8 => Self::Cancel,
            0x9 => Self::CompressionError,
            0xa => Self::ConnectError,
            0xb => Self::EnhanceYourCalm,
            0xc => Self::InadequateSecurity,
            0xd => Self::Http11Required,
            _ => Self::InternalError,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a connection ends (RFC 9113 5.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionFault {
    #[error("the connection does not begin with the HTTP/2 preface")]
    Preface,
    #[error("the first frame is not SETTINGS")]
    SettingsExpected,
    #[error("a frame is larger than SETTINGS_MAX_FRAME_SIZE")]
    FrameTooLarge,
    #[error("a frame has a length that its type never has")]
    FrameLength,
    #[error("a frame of this type is not allowed on this stream")]
    StreamId,
    #[error("a client's stream has an even number")]
    EvenStream,
    #[error("a response on a stream with an even number, which only a push has")]
    PushedStream,
    #[error("a frame names a stream that was never opened")]
    IdleStream,
    #[error("HEADERS on a stream that is closed")]
    ClosedStream,
    #[error("the padding is longer than its frame")]
    Padding,
    #[error("another frame came inside of a header block")]
    ContinuationExpected,
    #[error("CONTINUATION without HEADERS before it")]
    ContinuationUnexpected,
    #[error("a header block cannot be decoded: {0}")]
    Compression(#[from] HpackError),
    #[error("a setting has a value that is not allowed")]
    SettingValue,
    #[error("SETTINGS_INITIAL_WINDOW_SIZE is larger than 2147483647")]
    InitialWindow,
    #[error("WINDOW_UPDATE by zero")]
    WindowIncrement,
    #[error("WINDOW_UPDATE makes the window of the connection larger than 2147483647")]
    WindowOverflow,
    #[error("more DATA than the window of the connection allows")]
    WindowExceeded,
    #[error("a stream depends on itself")]
    SelfDependency,
    #[error("PUSH_PROMISE is not allowed here")]
    PushPromise,
    #[error("too many {0:?} frames")]
    Flood(FloodKind),
}

impl ConnectionFault {
    /// The code of the GOAWAY.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Preface
            | Self::SettingsExpected
            | Self::StreamId
            | Self::EvenStream
            | Self::PushedStream
            | Self::IdleStream
            | Self::Padding
            | Self::ContinuationExpected
            | Self::ContinuationUnexpected
            | Self::SettingValue
            | Self::WindowIncrement
            | Self::SelfDependency
            | Self::PushPromise => ErrorCode::ProtocolError,
            Self::FrameTooLarge | Self::FrameLength => ErrorCode::FrameSizeError,
            Self::ClosedStream => ErrorCode::StreamClosed,
            Self::Compression(HpackError::FieldBytes) | Self::Flood(_) => ErrorCode::EnhanceYourCalm,
            Self::Compression(_) => ErrorCode::CompressionError,
            Self::InitialWindow | Self::WindowOverflow | Self::WindowExceeded => ErrorCode::FlowControlError,
        }
    }
}

impl From<FloodKind> for ConnectionFault {
    fn from(kind: FloodKind) -> Self {
        Self::Flood(kind)
    }
}

/// Why a stream is reset because of the peer (RFC 9113 5.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    #[error("the head is malformed: {0}")]
    Malformed(#[from] MalformedFields),
    #[error("the fields of the response are larger than SETTINGS_MAX_HEADER_LIST_SIZE")]
    FieldsTooLarge,
    #[error("DATA before the head of the response")]
    HeadMissing,
    #[error("more DATA than Content-Length announced, or less")]
    ContentLength,
    #[error("more streams than SETTINGS_MAX_CONCURRENT_STREAMS")]
    Refused,
    #[error("a frame on a stream that its sender has closed")]
    Closed,
    #[error("WINDOW_UPDATE or SETTINGS make the window of a stream larger than 2147483647")]
    WindowOverflow,
    #[error("more DATA than the window of the stream allows")]
    WindowExceeded,
}

impl StreamFault {
    /// The code of the RST_STREAM.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Malformed(_) | Self::FieldsTooLarge | Self::HeadMissing | Self::ContentLength => {
                ErrorCode::ProtocolError
            }
            Self::Refused => ErrorCode::RefusedStream,
            Self::Closed => ErrorCode::StreamClosed,
            Self::WindowOverflow | Self::WindowExceeded => ErrorCode::FlowControlError,
        }
    }
}

/// The stream was reset, or its connection has ended: nothing can be sent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream is closed")]
pub struct StreamGone;

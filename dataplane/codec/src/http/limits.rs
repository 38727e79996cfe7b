//! The limits of an HTTP/1 message, with the reason for each.

/// Fields of one head, unless the operator sets another limit. Real requests have 10 to 40, and a response that sets
/// many cookies or policies some 150; Envoy allows 100, HAProxy 101, nginx any number within its buffers. Each costs a
/// comparison per hop.
pub const FIELDS_MAX: u16 = 256;

/// The largest configurable value: the parser reserves a stack slot for each.
pub const FIELDS_CEILING: u16 = 1024;

/// Fields that nearly all heads have at most. The parser first tries with this many slots.
pub const FIELDS_USUAL: usize = 100;

/// Largest head, in bytes, unless the operator says otherwise: what nginx (4 x 8 KiB), Envoy (60 KiB) and Go (1 MiB) bound too.
/// 64 KiB holds a dozen full cookies, and a core with 10,000 slow heads holds at most 640 MiB.
pub const HEAD_BYTES_MAX: u32 = 64 * 1024;

/// ... and at most, whatever the operator says.
pub const HEAD_BYTES_CEILING: u32 = 1024 * 1024;

/// Longest request target, in bytes: RFC 9112 asks for at least 8,000.
pub const TARGET_BYTES_MAX: usize = 16 * 1024;

/// The target with a method and a version around it.
pub const REQUEST_LINE_BYTES_MAX: usize = TARGET_BYTES_MAX + 64;

/// Too many empty lines before a head. RFC 9112 2.2 requires skipping at least one; each further one would be scanned
/// again.
pub const EMPTY_LINES: &[u8] = b"\r\n\r\n\r\n";

/// Digits of one chunk size: 16 hex digits fill a `u64`.
pub const CHUNK_SIZE_DIGITS_MAX: u8 = 16;

/// Extension bytes on one chunk's line. Extensions are practically unused; unbounded ones are an attack that makes the
/// gateway read without producing content.
pub const CHUNK_EXTENSION_BYTES_MAX: u16 = 256;

/// All trailer fields together, in bytes: gRPC's status trailers take some hundred.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// How large one head may be. Small, because each connection has two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// At most [`FIELDS_CEILING`].
    pub fields_max: u16,
    /// At most [`HEAD_BYTES_CEILING`].
    pub bytes_max: u32,
}

impl HeadLimits {
    /// For a head that was within its limits before fields were added.
    pub const REWRITTEN: Self = Self { fields_max: FIELDS_CEILING + 64, bytes_max: HEAD_BYTES_CEILING + 64 * 1024 };

    #[must_use]
    pub const fn fields(self) -> usize {
        self.fields_max as usize
    }

    #[must_use]
    pub const fn bytes(self) -> usize {
        self.bytes_max as usize
    }
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { fields_max: FIELDS_MAX, bytes_max: HEAD_BYTES_MAX }
    }
}

//! Limits of the console's listener.

/// Connections of the console at a time; further ones wait in the kernel's backlog. A browser opens six for each viewer.
pub(crate) const CONNECTIONS_MAX: u32 = 256;
/// Streams of figures at a time: one for each viewer. All of them share what is read once a second.
pub(super) const STREAMS_MAX: usize = 32;
/// Bytes of the API's answer whether a caller may do something.
pub(super) const REVIEW_BYTES_MAX: usize = 64 * 1024;

//! Limits of every object, of whatever kind.

/// Largest stored object as JSON, in bytes. What one request may carry, so that an object cannot be
/// patched beyond what could be sent back.
pub const OBJECT_BYTES_MAX: usize = 3 * 1024 * 1024;

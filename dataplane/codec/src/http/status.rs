//! The status code of a response head.

use bytes::{BufMut, BytesMut};

/// Writes a status of three digits.
pub fn put_status(out: &mut BytesMut, status: u16) {
    for divisor in [100, 10, 1] {
        out.put_u8(b'0' + (status / divisor % 10) as u8);
    }
}

//! Hashed names for what is too long or too many to be a name.

use std::fmt::Write as _;

use ring_crypto::digest::{SHA256, digest};

/// SHA-256, in 64 hexadecimal digits.
#[must_use]
pub fn hex_digest(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}"); // a String takes all
        hex
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_what_others_compute() {
        assert_eq!(super::hex_digest(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}

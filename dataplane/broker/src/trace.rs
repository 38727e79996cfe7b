//! W3C trace context: each attempt is its own span of the event's trace (DP-OBS-01).

use fastrand::Rng;

use codec::hex;
use protocol::http::headers::fresh_trace_parent;

/// `00-` trace id `-` parent id `-` flags.
const LENGTH: usize = 55;

/// A `traceparent` of version 00, the version we write.
pub type TraceParent = [u8; LENGTH];

/// Whether a `traceparent` is well formed; anything else is replaced, as the standard requires. Later
/// versions may append fields to those of version 00, and the fields mean the same ("Versioning of
/// traceparent").
#[must_use]
pub fn is_valid(value: &[u8]) -> bool {
    let Some(fields) = value.first_chunk::<LENGTH>() else { return false };
    let is_hex = |range: std::ops::Range<usize>| {
        fields[range].iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
    };
    let may_end_there = match &fields[..2] {
        b"00" => value.len() == LENGTH,
        b"ff" => false,
        _ => value.get(LENGTH).is_none_or(|byte| *byte == b'-'),
    };
    may_end_there
        && [2, 35, 52].into_iter().all(|at| fields[at] == b'-')
        && [0..2, 3..35, 36..52, 53..55].into_iter().all(is_hex)
        && fields[3..35].iter().any(|byte| *byte != b'0')
        && fields[36..52].iter().any(|byte| *byte != b'0')
}

/// The same trace with a parent id of this attempt.
#[must_use]
pub fn attempt(parent: &[u8], rng: &mut Rng) -> TraceParent {
    match parent.first_chunk::<LENGTH>() {
        Some(valid) if is_valid(parent) => {
            let mut next = *valid;
            next[..2].copy_from_slice(b"00"); // the version that we write
            hex::put(&mut next[36..52], rng.u64(1..).into());
            next
        }
        _ => fresh_trace_parent(rng),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_keeps_trace_and_changes_parent() {
        let mut rng = Rng::with_seed(1);
        let incoming = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let first = attempt(incoming, &mut rng);
        let second = attempt(incoming, &mut rng);
        assert!(is_valid(&first) && first != second);
        for next in [first, second] {
            assert_eq!(next[..36], incoming[..36]);
            assert_eq!(&next[52..], b"-00");
            assert_ne!(next[36..52], incoming[36..52]);
        }
    }

    /// DP-OBS-01
    #[test]
    fn later_version_keeps_trace() {
        for more in ["", "-extra-fields"] {
            let incoming = format!("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01{more}");
            let next = attempt(incoming.as_bytes(), &mut Rng::with_seed(1));
            assert!(next.starts_with(b"00-0af7651916cd43dd8448eb211c80319c-") && next.ends_with(b"-01"));
        }
    }

    #[test]
    fn malformed_parent_starts_new_trace() {
        for bad in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-00",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more",
            "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00.more",
            "0x-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c8031éc-b7ad6b716920333-00",
        ] {
            assert!(!is_valid(bad.as_bytes()), "{bad}");
            assert!(is_valid(&attempt(bad.as_bytes(), &mut Rng::with_seed(7))), "{bad}");
        }
    }
}

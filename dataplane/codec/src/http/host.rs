//! Whether a Host value, or a URL's authority, is a host with an optional port.

/// Strict on purpose: a byte that some parser takes for a separator (`@`, `/`, `,`, a blank) could send the request to
/// one host here and to another one behind the gateway.
#[must_use]
pub fn is_authority(value: &[u8]) -> bool {
    let (host, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = memchr::memchr(b']', rest) else { return false };
            if !is_ip_literal(&rest[..end]) {
                return false;
            }
            match &rest[end + 1..] {
                [] => return true,
                [b':', port @ ..] => (&rest[..end], port),
                _ => return false,
            }
        }
        _ => match memchr::memchr(b':', value) {
            None => return is_name(value),
            Some(colon) => (&value[..colon], &value[colon + 1..]),
        },
    };
    let host_is_fine = value[0] == b'[' || is_name(host);
    host_is_fine && is_port(port)
}

/// The port may be empty after its colon (RFC 3986 3.2.3).
fn is_port(port: &[u8]) -> bool {
    let number = port.iter().try_fold(0u32, |sum, byte| {
        byte.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u32::from(byte - b'0')))
    });
    port.len() <= 5 && number.is_some_and(|number| number <= u32::from(u16::MAX))
}

fn is_name(host: &[u8]) -> bool {
    !host.is_empty() && host.len() <= 255 && host.iter().all(|&byte| IN_NAMES[usize::from(byte)])
}

/// The bytes that a name may contain: `unreserved` of RFC 3986.
const IN_NAMES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    table
};

fn is_ip_literal(inside: &[u8]) -> bool {
    std::str::from_utf8(inside).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_a_host_with_an_optional_port() {
        for good in ["a", "a.b:80", "127.0.0.1:8080", "[::1]", "[::1]:80", "my_svc", "a.", "a:"] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
        for bad in [
            "", ":80", "a b", "a,b", "u@a", "a/b", "a:8x", "a:123456", "a:65536", "[::1", "[]", "[::1]x", "[g]:1",
            "a:1:2", "a\tb", "ä", "a?b", "a#b", "a\\b", "a%00b",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }
}

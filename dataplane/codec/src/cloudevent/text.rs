//! Text forms of attributes: percent-encoding, URI references, times, media types.

use std::borrow::Cow;

/// Decodes a binary-mode header value: a quoted string is unquoted, then `%xx` becomes a byte. A percent
/// sign without two hex digits is kept: the binding does not require to reject `50%`. Without any escape,
/// bytes that are not valid UTF-8 are Latin-1. `None` when a quote does not end or the escaped bytes are
/// not UTF-8.
pub(super) fn header_value(raw: &[u8]) -> Option<Cow<'_, str>> {
    let raw = raw.trim_ascii();
    if memchr::memchr2(b'%', b'"', raw).is_none() {
        return Some(characters(raw));
    }
    let unquoted = unquote(raw)?;
    if escapes(&unquoted).next().is_none() {
        return Some(Cow::Owned(characters(&unquoted).into_owned()));
    }
    percent_decode(&unquoted).map(Cow::Owned)
}

/// The same for a URI. In one, the only character that the binding encodes is the percent sign itself: so
/// `/a%252Fb` is an encoded `/a%2Fb`, while `/a%2Fb` was never encoded, and decoding it would name another
/// resource. `is_uri` decides between the two where only one is a URI.
pub(super) fn uri_header_value(raw: &[u8], is_uri: impl Fn(&str) -> bool) -> Option<Cow<'_, str>> {
    let trimmed = raw.trim_ascii();
    let decoded = header_value(raw);
    if memchr::memchr(b'%', trimmed).is_none() {
        return decoded;
    }
    let is_encoded = escapes(trimmed).all(|byte| byte == b'%');
    if is_encoded && decoded.as_deref().is_some_and(&is_uri) {
        return decoded;
    }
    match std::str::from_utf8(trimmed) {
        Ok(as_it_is) if is_uri(as_it_is) => Some(Cow::Borrowed(as_it_is)),
        _ => decoded,
    }
}

/// The text of bytes that are not escaped. Python's and Node's HTTP clients send characters up to U+00FF as
/// one byte each.
pub(super) fn characters(raw: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(raw) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => raw.iter().copied().map(char::from).collect(), // allocates only for those senders
    }
}

/// The bytes that are escaped.
fn escapes(raw: &[u8]) -> impl Iterator<Item = u8> + '_ {
    memchr::memchr_iter(b'%', raw).filter_map(|at| escaped(&raw[at + 1..]).map(|(byte, _)| byte))
}

fn unquote(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(inner) = raw.strip_prefix(b"\"") else { return Some(Cow::Borrowed(raw)) };
    let inner = inner.strip_suffix(b"\"")?;
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => out.push(*bytes.next()?),
            b'"' => return None,
            other => out.push(*other),
        }
    }
    Some(Cow::Owned(out))
}

fn percent_decode(raw: &[u8]) -> Option<String> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        match escaped(tail) {
            Some((byte, tail)) => {
                out.push(byte);
                rest = tail;
            }
            None => out.push(b'%'),
        }
    }
    String::from_utf8(out).ok()
}

/// The byte of two digits, and the rest of the text.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], behind) = text.split_first_chunk()?;
    Some((hex(*high)? << 4 | hex(*low)?, behind))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Encodes a value for a header: space, quote, percent and everything outside printable ASCII.
pub(crate) fn put_header_value(out: &mut Vec<u8>, value: &str) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'%';
    let mut rest = value.as_bytes();
    loop {
        let plain = rest.iter().position(|byte| !is_plain(*byte)).unwrap_or(rest.len());
        out.extend_from_slice(&rest[..plain]);
        let Some((byte, behind)) = rest[plain..].split_first() else { return };
        out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        rest = behind;
    }
}

/// Code points that a CloudEvents String must not have: controls and noncharacters.
pub(super) fn is_clean(value: &str) -> bool {
    if value.is_ascii() {
        return value.bytes().all(|byte| byte >= 0x20 && byte != 0x7f);
    }
    value.chars().all(|c| {
        let code = u32::from(c);
        !c.is_control() && !(0xfdd0..=0xfdef).contains(&code) && code & 0xfffe != 0xfffe
    })
}

/// RFC 3986 URI-reference.
pub(super) fn is_uri_reference(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (before_fragment, fragment) = match memchr::memchr(b'#', bytes) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    let hierarchy_end = memchr::memchr(b'?', before_fragment).unwrap_or(before_fragment.len());
    let (hierarchy, query) = before_fragment.split_at(hierarchy_end);
    let first_segment_end = memchr::memchr(b'/', hierarchy).unwrap_or(hierarchy.len());
    let rest = match memchr::memchr(b':', &hierarchy[..first_segment_end]) {
        Some(colon) if !is_scheme(&hierarchy[..colon]) => return false,
        Some(colon) => &hierarchy[colon + 1..],
        None => hierarchy,
    };
    let (authority, path) = match rest.strip_prefix(b"//") {
        Some(rest) => rest.split_at(memchr::memchr(b'/', rest).unwrap_or(rest.len())),
        None => (&[][..], rest),
    };
    has_only(authority, b":@[]") && has_only(path, b":@/") && has_only(query, b":@/?") && has_only(fragment, b":@/?")
}

/// RFC 3986 URI: with a scheme.
pub(super) fn is_uri(text: &str) -> bool {
    let scheme_end = text.find([':', '/', '?', '#']);
    scheme_end.is_some_and(|at| text.as_bytes()[at] == b':' && at > 0) && is_uri_reference(text)
}

fn is_scheme(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_alphabetic)
        && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
}

/// Unreserved, sub-delimiters, complete percent escapes, and `more`.
fn has_only(part: &[u8], more: &[u8]) -> bool {
    let mut rest = part;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte == b'%' {
            let [high, low, tail @ ..] = tail else { return false };
            if hex(*high).is_none() || hex(*low).is_none() {
                return false;
            }
            rest = tail;
        } else if !(byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte) || more.contains(byte)) {
            return false;
        }
    }
    true
}

/// RFC 3339 date-time.
pub(super) fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some((fixed, tail)) = bytes.split_at_checked(19) else { return false };
    let shape = fixed.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        10 => matches!(byte, b'T' | b't'),
        13 | 16 => *byte == b':',
        _ => byte.is_ascii_digit(),
    });
    if !shape {
        return false;
    }
    let (year, month, day) = (number(&fixed[..4]), number(&fixed[5..7]), number(&fixed[8..10]));
    let (hour, minute, second) = (number(&fixed[11..13]), number(&fixed[14..16]), number(&fixed[17..19]));
    let in_range = (1..=12).contains(&month) && (1..=days(year, month)).contains(&day);
    in_range && hour <= 23 && minute <= 59 && second <= 60 && is_time_tail(tail) // 60: leap second
}

fn is_time_tail(tail: &[u8]) -> bool {
    let zone = match tail.strip_prefix(b".") {
        Some(fraction) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            &fraction[digits..]
        }
        None => tail,
    };
    match zone {
        [b'Z' | b'z'] => true,
        [b'+' | b'-', h1, h2, b':', m1, m2] => {
            let digits = [*h1, *h2, *m1, *m2];
            digits.iter().all(u8::is_ascii_digit) && number(&digits[..2]) <= 23 && number(&digits[2..]) <= 59
        }
        _ => false,
    }
}

fn number(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
}

fn days(year: u32, month: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The basic form of RFC 2046: `type/subtype`, then anything after a semicolon. No surrounding blanks: as a
/// header in binary mode it would lose them.
pub(super) fn is_media_type(text: &str) -> bool {
    if text.trim() != text {
        return false;
    }
    let media = text.split(';').next().unwrap_or_default().trim_end();
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
    };
    media.split_once('/').is_some_and(|(main, sub)| is_token(main) && is_token(sub))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_value_is_unquoted_then_percent_decoded() {
        let cases: [(&str, Option<&str>); 10] = [
            ("plain", Some("plain")),
            ("", Some("")),
            ("Euro%20%E2%82%AC%20%F0%9F%98%80", Some("Euro € 😀")),
            ("%41%2b", Some("A+")),
            ("\"quoted \\\"text\\\" \\\\\"", Some("quoted \"text\" \\")),
            ("\"%20\"", Some(" ")),
            ("50%", Some("50%")),
            ("%4", Some("%4")),
            ("%zz%41%%42", Some("%zzA%B")),
            ("%ff", None),
        ];
        for (raw, expected) in cases {
            assert_eq!(header_value(raw.as_bytes()).as_deref(), expected, "{raw}");
        }
    }

    /// An event keeps the identity that its sender intends, whether the sender encodes or not.
    #[test]
    fn uri_in_header_keeps_its_identity() {
        for (raw, expected) in [
            ("/a", "/a"),
            ("/a%2Fb", "/a%2Fb"),   // a slash is never encoded
            ("/a%20b", "/a%20b"),   // ... and a blank is in no URI
            ("/a%252Fb", "/a%2Fb"), // encoded, in our own way
            ("/a%252Fb%20", "/a%252Fb%20"),
            ("/100%25", "/100%25"), // decoded it would be no URI
            ("/Z%C3%BCrich", "/Z%C3%BCrich"),
            ("\"/a\"", "/a"),
            ("\"/a%252F\"", "/a%2F"),
            ("/50%", "/50%"), // rejected afterwards
        ] {
            let found = uri_header_value(raw.as_bytes(), is_uri_reference);
            assert_eq!(found.as_deref(), Some(expected), "{raw}");
        }
        let schema = uri_header_value(b"https%3A%2F%2Fh/x", is_uri);
        assert_eq!(schema.as_deref(), Some("https://h/x"), "only decoded it is absolute");
        for uri in ["/a%2Fb", "/a%252Fb", "urn:x:100%25", "/%25%25", "/a%20b?q=%C3%BC#%22"] {
            let mut sent = Vec::new();
            put_header_value(&mut sent, uri);
            assert_eq!(uri_header_value(&sent, is_uri_reference).as_deref(), Some(uri), "what we send on");
        }
    }

    #[test]
    fn invalid_utf8_is_read_as_latin1() {
        let cases: [(&[u8], Option<&str>); 6] = [
            (b"Z\xfcrich", Some("Zürich")),
            ("Zürich".as_bytes(), Some("Zürich")),
            (b"\"Z\xfcrich\"", Some("Zürich")),
            (b"50% Z\xfcrich", Some("50% Zürich")),
            (b"Z\xfcrich%20", None),
            (b"%ff", None),
        ];
        for (raw, expected) in cases {
            assert_eq!(header_value(raw).as_deref(), expected, "{raw:?}");
        }
    }

    #[test]
    fn unsafe_header_characters_are_percent_encoded() {
        let mut out = Vec::new();
        put_header_value(&mut out, "a b\"%€~!");
        assert_eq!(out, b"a%20b%22%25%E2%82%AC~!");
    }

    #[test]
    fn uri_references_are_recognised() {
        for good in [
            "/a",
            "a",
            "",
            "?q",
            "#f",
            "urn:x:y",
            "https://u@h:80/p/a:b?q=/?#f/?",
            "//h/p",
            "mailto:a@b",
            "%20",
            "http://[::1]/",
        ] {
            assert!(is_uri_reference(good), "{good}");
        }
        for bad in ["a b", "1a:b", ":a", "a#b#c", "%2", "%zz", "ü", "/a[b]", "a\\b", "<a>", "?[", "a|b"] {
            assert!(!is_uri_reference(bad), "{bad}");
        }
        assert!(is_uri("urn:a") && !is_uri("/a:b") && !is_uri("a") && !is_uri(":a"));
    }

    #[test]
    fn media_types_are_recognised() {
        for good in ["a/b", "a/b+json; charset=utf-8", "a/b ;c", "a/b;"] {
            assert!(is_media_type(good), "{good:?}");
        }
        for bad in ["", "a", "/b", "a/", "a/b/c", " a/b", "a/b ", "a/b; c ", "a b/c", "\u{a0}a/b"] {
            assert!(!is_media_type(bad), "{bad:?}");
        }
    }

    #[test]
    fn times_are_recognised() {
        for good in [
            "2018-04-05T17:31:00Z",
            "2018-04-05t17:31:00.123456789z",
            "2020-02-29T00:00:00+02:00",
            "1990-12-31T23:59:60Z",
        ] {
            assert!(is_time(good), "{good}");
        }
        for bad in [
            "",
            "2018-04-05",
            "2018-04-05 17:31:00Z",
            "2018-04-05T17:31:00",
            "2019-02-29T00:00:00Z",
            "2018-13-05T17:31:00Z",
            "2018-04-05T24:00:00Z",
            "2018-04-05T17:31:00.Z",
            "2018-04-05T17:31:00+24:00",
            "2018-04-05T17:31:00+0200",
            "2018-04-05T17:31:0éZ",
        ] {
            assert!(!is_time(bad), "{bad}");
        }
    }
}

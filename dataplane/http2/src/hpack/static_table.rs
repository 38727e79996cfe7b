//! The static table (RFC 7541, appendix A).

/// Names and values; the first one has index 1.
#[rustfmt::skip]
pub(super) static ENTRIES: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

/// The index of a status that the table contains whole.
pub(super) const fn status(status: u16) -> Option<u8> {
    match status {
        200 => Some(8),
        204 => Some(9),
        206 => Some(10),
        304 => Some(11),
        400 => Some(12),
        404 => Some(13),
        500 => Some(14),
        _ => None,
    }
}

/// The index of `:status`, for those that are not in the table.
pub(super) const STATUS_NAME: u8 = 8;

// Pseudo-fields of requests that the table contains whole.
pub(super) const METHOD_GET: u8 = 2;
pub(super) const METHOD_POST: u8 = 3;
pub(super) const PATH_ROOT: u8 = 4;
pub(super) const SCHEME_HTTP: u8 = 6;
pub(super) const SCHEME_HTTPS: u8 = 7;

/// The index of the first entry with this name.
pub(super) fn name(name: &[u8]) -> Option<u8> {
    let index = match name {
        b":authority" => 1,
        b":method" => METHOD_GET,
        b":path" => PATH_ROOT,
        b":scheme" => SCHEME_HTTP,
        b":status" => STATUS_NAME,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept" => 19,
        b"authorization" => 23,
        b"cookie" => 32,
        b"expect" => 35,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"if-range" => 42,
        b"proxy-authorization" => 49,
        b"range" => 50,
        b"referer" => 51,
        b"user-agent" => 58,
        b"accept-ranges" => 18,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"allow" => 22,
        b"cache-control" => 24,
        b"content-disposition" => 25,
        b"content-encoding" => 26,
        b"content-language" => 27,
        b"content-length" => 28,
        b"content-location" => 29,
        b"content-range" => 30,
        b"content-type" => 31,
        b"date" => 33,
        b"etag" => 34,
        b"expires" => 36,
        b"last-modified" => 44,
        b"link" => 45,
        b"location" => 46,
        b"proxy-authenticate" => 48,
        b"refresh" => 52,
        b"retry-after" => 53,
        b"server" => 54,
        b"set-cookie" => 55,
        b"strict-transport-security" => 56,
        b"vary" => 59,
        b"via" => 60,
        b"www-authenticate" => 61,
        _ => return None,
    };
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_name_their_entries() {
        for (at, (text, value)) in ENTRIES.iter().enumerate() {
            if let Some(index) = name(text.as_bytes()) {
                assert_eq!(ENTRIES[usize::from(index) - 1].0, *text);
            }
            if *text == ":status" {
                assert_eq!(status(value.parse().unwrap()), u8::try_from(at + 1).ok());
            }
        }
        assert_eq!(name(b"x-custom"), None);
        for (index, entry) in [
            (METHOD_GET, (":method", "GET")),
            (METHOD_POST, (":method", "POST")),
            (PATH_ROOT, (":path", "/")),
            (SCHEME_HTTP, (":scheme", "http")),
            (SCHEME_HTTPS, (":scheme", "https")),
        ] {
            assert_eq!(ENTRIES[usize::from(index) - 1], entry);
        }
    }
}

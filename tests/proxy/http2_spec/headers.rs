//! RFC 9113, section 8: valid requests.

use kit::http2::frame;

use super::peer::*;

pub(crate) fn cases() -> Vec<Http2Case> {
    [fields(), pseudo_fields(), bodies()].concat()
}

fn malformed(section: &'static str, name: &'static str, further: &[Vec<u8>]) -> Http2Case {
    case(section, name, &[get_with(further)], Expect::Malformed)
}

/// HEADERS of exactly these fields.
fn exactly(section: &'static str, name: &'static str, fields: &[Vec<u8>]) -> Http2Case {
    case(section, name, &[frame(HEADERS, WHOLE, 1, &fields.concat())], Expect::Malformed)
}

fn fields() -> Vec<Http2Case> {
    vec![
        malformed("8.2", "a name in upper case", &[field("X-Upper", "1")]),
        malformed("8.2.1", "a name with a space", &[field("x y", "1")]),
        malformed("8.2.1", "a name with a control character", &[field("x\u{1}", "1")]),
        malformed("8.2.1", "a value with a line feed", &[field("x", "a\nb: c")]),
        malformed("8.2.1", "a value with a NUL", &[field("x", "a\0b")]),
        malformed("8.2.1", "a value with a blank before it", &[field("x", " a")]),
        malformed("8.2.1", "a value with a tab behind it", &[field("x", "a\t")]),
        malformed("8.2.1", "a value of a blank", &[field("x", " ")]),
        case("8.2.1", "a value may be empty", &[get_with(&[field("x", "")])], Expect::Answer),
        malformed("8.2.2", "connection", &[field("connection", "keep-alive")]),
        malformed("8.2.2", "transfer-encoding", &[field("transfer-encoding", "chunked")]),
        malformed("8.2.2", "keep-alive", &[field("keep-alive", "1")]),
        malformed("8.2.2", "proxy-connection", &[field("proxy-connection", "close")]),
        malformed("8.2.2", "upgrade", &[field("upgrade", "h2c")]),
        malformed("8.2.2", "te that wants more than trailers", &[field("te", "gzip")]),
        case("8.2.2", "te: trailers is allowed", &[get_with(&[field("te", "trailers")])], Expect::Answer),
    ]
}

fn pseudo_fields() -> Vec<Http2Case> {
    let (method, scheme, path) = (field(":method", "GET"), field(":scheme", "http"), field(":path", "/"));
    let host = field(":authority", HOST);
    let all = |with: &[&Vec<u8>]| with.iter().map(|field| (*field).clone()).collect::<Vec<_>>();
    let (empty, any, url) = (field(":path", ""), field("x", "y"), format!("http://{HOST}/"));
    vec![
        malformed("8.3", "one that nobody knows", &[field(":test", "1")]),
        malformed("8.3", "one of answers", &[field(":status", "200")]),
        malformed("8.3", "one behind a field", &[any.clone(), field(":method", "GET")]),
        exactly("8.3", "the method behind a field", &all(&[&scheme, &path, &host, &any, &method])),
        exactly("8.3.1", "no method", &all(&[&scheme, &path, &host])),
        exactly("8.3.1", "no scheme", &all(&[&method, &path, &host])),
        exactly("8.3.1", "no path", &all(&[&method, &scheme, &host])),
        exactly("8.3.1", "an empty path", &all(&[&method, &scheme, &empty, &host])),
        exactly("8.3.1", "a path without a slash", &all(&[&method, &scheme, &field(":path", "a/b"), &host])),
        exactly("8.3.1", "a URL for a path", &all(&[&method, &scheme, &field(":path", &url), &host])),
        exactly("8.3.1", "a query for a path", &all(&[&method, &scheme, &field(":path", "?a"), &host])),
        exactly("8.3.1", "a path with a fragment", &all(&[&method, &scheme, &field(":path", "/#f"), &host])),
        exactly("8.3.1", "two methods", &all(&[&method, &method, &scheme, &path, &host])),
        exactly("8.3.1", "two schemes", &all(&[&method, &scheme, &scheme, &path, &host])),
        exactly("8.3.1", "two paths", &all(&[&method, &scheme, &path, &path, &host])),
        exactly("8.3.1", "two authorities", &all(&[&method, &scheme, &path, &host, &host])),
        exactly("8.3.1", "nobody's host", &all(&[&method, &scheme, &path])),
        malformed("8.3.1", "a host that is another", &[field("host", "other.example.com")]),
        exactly(
            "8.5",
            "CONNECT with a path and no protocol",
            &all(&[&field(":method", "CONNECT"), &scheme, &path, &host]),
        ),
    ]
}

fn bodies() -> Vec<Http2Case> {
    let sized =
        |length: &str| frame(HEADERS, END_HEADERS, 1, &[post_block(), field("content-length", length)].concat());
    let data = |flags, bytes: &[u8]| frame(DATA, flags, 1, bytes);
    let trailers = |flags, fields: &[Vec<u8>]| frame(HEADERS, END_HEADERS | flags, 1, &fields.concat());
    let broken = Expect::BrokenBody;
    let late = [post(1), data(0, b"test"), trailers(0, &[field("x", "y")]), data(END_STREAM, b"more")];
    let pseudo = [post(1), data(0, b"x"), trailers(END_STREAM, &[field(":method", "200")])];
    let padded = [post(1), data(0, b"x"), trailers(END_STREAM, &[field("x-sum", "1 ")])];
    let good = [post(1), data(0, b"x"), trailers(END_STREAM, &[field("x-sum", "1")])];
    vec![
        case("8.1", "trailers that do not end the stream", &late, broken),
        case("8.1", "trailers are allowed", &good, Expect::Answer),
        case("8.2.1", "a trailer with a blank behind it", &padded, broken),
        case("8.3", "a pseudo-field in trailers", &pseudo, broken),
        case("8.1.1", "a length below the body's", &[sized("1"), data(END_STREAM, b"test")], broken),
        case("8.1.1", "a length above the body's", &[sized("9"), data(END_STREAM, b"test")], broken),
        case("8.1.1", "a length below two frames'", &[sized("5"), data(0, b"test"), data(END_STREAM, b"test")], broken),
        case("8.1.1", "a length that is no number", &[sized("x"), data(END_STREAM, b"test")], Expect::Malformed),
        case("8.1.1", "a length that fits", &[sized("4"), data(END_STREAM, b"test")], Expect::Answer),
    ]
}

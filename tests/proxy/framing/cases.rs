//! The tables of cases, read from text.

/// One line of a table: its columns, the last one turned into bytes.
#[derive(Debug)]
pub(crate) struct FramingCase {
    pub(crate) what: &'static str,
    pub(crate) columns: Vec<&'static str>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn read(table: &'static str) -> Vec<FramingCase> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let mut columns: Vec<_> = line.split(" | ").collect();
            let bytes = bytes(columns.pop().unwrap());
            FramingCase { what: columns[0], columns: columns.split_off(1), bytes }
        })
        .collect()
}

/// `$`, escapes and braces as the tables' heads explain them.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '$' => out.extend_from_slice(b"\r\n"),
            '\\' => {
                let (byte, length) = escape(rest);
                out.push(byte);
                rest = &rest[length..];
            }
            '{' => {
                let (inside, behind) = rest.split_once('}').unwrap();
                out.extend(braces(inside));
                rest = behind;
            }
            other => out.extend_from_slice(other.to_string().as_bytes()),
        }
    }
    out
}

fn escape(rest: &str) -> (u8, usize) {
    match rest.as_bytes()[0] {
        b'r' => (b'\r', 1),
        b'n' => (b'\n', 1),
        b't' => (b'\t', 1),
        b'0' => (0, 1),
        b'\\' => (b'\\', 1),
        b'x' => (u8::from_str_radix(&rest[1..3], 16).unwrap(), 3),
        other => panic!("\\{} is no escape", other as char),
    }
}

fn braces(inside: &str) -> Vec<u8> {
    match inside {
        "G" => bytes("GET / HTTP/1.1$Host: a$"),
        "P" => bytes("POST / HTTP/1.1$Host: a$"),
        "C" => bytes("POST / HTTP/1.1$Host: a$Transfer-Encoding: chunked$$"),
        "S" => bytes("GET /smuggled HTTP/1.1$Host: a$$"),
        "O" => bytes("HTTP/1.1 200 OK$"),
        repeated => {
            let (what, times) = repeated.rsplit_once('*').unwrap();
            bytes(what).repeat(times.parse().unwrap())
        }
    }
}

#[test]
fn a_line_is_read_as_its_table_explains() {
    let [case] =
        read("# no case\nwhat | 400 | a$\\x41\\\\{x*3}{G}").try_into().unwrap_or_else(|cases| panic!("{cases:?}"));
    assert_eq!((case.what, case.columns.as_slice()), ("what", ["400"].as_slice()));
    assert_eq!(case.bytes, b"a\r\nA\\xxxGET / HTTP/1.1\r\nHost: a\r\n");
}

/// The tables are what this suite is for: a slip that empties one must not look like success.
#[test]
fn the_tables_are_full() {
    assert!(read(include_str!("requests.txt")).len() >= 180);
    assert!(read(include_str!("responses.txt")).len() >= 60);
}

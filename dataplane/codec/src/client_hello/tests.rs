use proptest::prelude::*;

use super::MalformedClientHello as Malformed;
use super::*;

/// A vector with a length of `width` bytes.
fn vector(width: usize, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_be_bytes();
    [&length[8 - width..], body].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(2, body)].concat()
}

fn host(name: &[u8]) -> Vec<u8> {
    [&[HOST_NAME][..], &vector(2, name)].concat()
}

fn names(list: &[Vec<u8>]) -> Vec<u8> {
    extension(SERVER_NAME, &vector(2, &list.concat()))
}

fn body(extensions: Option<&[Vec<u8>]>) -> Vec<u8> {
    let start = [vec![3, 3], vec![7; 32], vector(1, &[9; 32]), vector(2, &[0x1a, 0x1a, 0x13, 1]), vector(1, &[0])];
    [start.concat(), extensions.map(|all| vector(2, &all.concat())).unwrap_or_default()].concat()
}

fn message(body: &[u8]) -> Vec<u8> {
    [&[CLIENT_HELLO][..], &vector(3, body)].concat()
}

/// The message in records of these sizes; the last takes the rest.
fn records(message: &[u8], sizes: &[usize]) -> Vec<u8> {
    let (mut rest, mut bytes) = (message, Vec::new());
    for size in sizes.iter().copied().chain([usize::MAX]) {
        let (record, after) = rest.split_at(size.min(rest.len()));
        if !record.is_empty() {
            bytes.extend([HANDSHAKE, 3, 1]);
            bytes.extend(vector(2, record));
        }
        rest = after;
    }
    bytes
}

fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
    records(&message(&body(Some(extensions))), &[])
}

/// A GREASE extension (RFC 8701), one with content, and the name.
fn usual() -> Vec<Vec<u8>> {
    vec![extension(0x3a3a, &[]), extension(51, &[5; 1200]), names(&[host(b"App.Example.com")]), extension(0xfafa, &[0])]
}

fn name_in(bytes: &[u8]) -> Option<String> {
    match parse(bytes) {
        ParsedClientHello::Complete(name) => name.map(|name| name.as_str().to_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn server_name_is_found_in_lower_case() {
    assert_eq!(name_in(&hello(&usual())).as_deref(), Some("app.example.com"));
    let mut with_data = hello(&usual());
    with_data.extend([23, 3, 3, 0, 1, 0]);
    assert_eq!(name_in(&with_data).as_deref(), Some("app.example.com"), "early data may follow");
    let other_kind = [&[1][..], &vector(2, b"x")].concat();
    assert_eq!(name_in(&hello(&[names(&[other_kind, host(b"a")])])).as_deref(), Some("a"));
}

#[test]
fn hello_without_a_host_name_has_none() {
    assert_eq!(name_in(&records(&message(&body(None)), &[])), None);
    assert_eq!(name_in(&hello(&[])), None);
    assert_eq!(name_in(&hello(&[extension(16, &[0; 9])])), None);
    assert_eq!(name_in(&hello(&[names(&[host(b"127.0.0.1")])])), None);
    assert_eq!(name_in(&hello(&[names(&[host(b"::1")])])), None);
}

#[test]
fn hostile_hellos_are_malformed() {
    let twice = [names(&[host(b"a")]), names(&[host(b"b")])];
    let long = records(&message(&body(Some(&[extension(21, &[0; CLIENT_HELLO_BYTES_MAX])]))), &[9000]);
    let long_name = vec![b'a'; 256];
    let mut trailing = body(Some(&usual()));
    trailing.push(0);
    let short = |at: usize, by: u8| {
        let mut bytes = hello(&usual());
        bytes[at] -= by;
        bytes
    };
    let changed = |at: usize, to: u8| {
        let mut bytes = hello(&usual());
        bytes[at] = to;
        bytes
    };
    let whole = message(&body(Some(&usual())));
    for (bytes, why) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), Malformed::NotTls),
        (vec![0x80, 0x2e, 1, 3, 1], Malformed::NotTls),
        (vec![21, 3, 1, 0, 2, 1, 0], Malformed::NotTls),
        (changed(1, 2), Malformed::Record),
        (vec![HANDSHAKE, 3, 1, 0, 0], Malformed::Record),
        (vec![HANDSHAKE, 3, 1, 0x40, 1], Malformed::Record),
        (changed(5, 2), Malformed::NotClientHello),
        (changed(6, 1), Malformed::TooLarge),
        (long, Malformed::TooLarge),
        (records(&whole, &[1; CLIENT_HELLO_RECORDS_MAX]), Malformed::TooManyRecords),
        (records(&message(&trailing), &[]), Malformed::Trailing),
        (short(8, 1), Malformed::Length),
        (records(&message(&[3, 3]), &[]), Malformed::Length),
        (records(&message(&[]), &[]), Malformed::Length),
        (changed(5 + 4 + 2 + 32, 255), Malformed::Length),
        (hello(&[extension(SERVER_NAME, &[])]), Malformed::Length),
        (hello(&[extension(SERVER_NAME, &[0, 0])]), Malformed::ServerName),
        (hello(&[extension(SERVER_NAME, &[0, 9, 0])]), Malformed::Length),
        (hello(&[extension(SERVER_NAME, &[0, 4, 0, 0, 1, b'a', 0])]), Malformed::Trailing),
        (hello(&twice), Malformed::ServerName),
        (hello(&[names(&[host(b"a"), host(b"b")])]), Malformed::ServerName),
        (hello(&[names(&[host(b"")])]), Malformed::ServerName),
        (hello(&[names(&[host(&long_name)])]), Malformed::ServerName),
        (hello(&[names(&[host(b"a\0b")])]), Malformed::ServerName),
        (hello(&[names(&[host("ä.test".as_bytes())])]), Malformed::ServerName),
    ] {
        assert_eq!(parse(&bytes), ParsedClientHello::Malformed(why), "{:02x?}", &bytes[..bytes.len().min(60)]);
    }
    let mixed = [records(&whole[..50], &[]), vec![21, 3, 1, 0, 2, 1, 0]].concat();
    assert_eq!(parse(&mixed), ParsedClientHello::Malformed(Malformed::Record));
}

#[test]
fn each_piece_names_the_bytes_that_are_missing() {
    for sizes in [&[][..], &[1, 2, 3], &[4], &[600]] {
        let bytes = records(&message(&body(Some(&usual()))), sizes);
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                ParsedClientHello::NeedBytes(count) => {
                    assert!((end + 1..=bytes.len()).contains(&count), "{count} at {end}")
                }
                other => panic!("{other:?} at {end}"),
            }
        }
        assert_eq!(name_in(&bytes).as_deref(), Some("app.example.com"));
    }
}

proptest! {
    #[test]
    fn borders_of_records_do_not_matter(sizes in proptest::collection::vec(1..900usize, 0..40)) {
        let bytes = records(&message(&body(Some(&usual()))), &sizes);
        prop_assert_eq!(name_in(&bytes), Some("app.example.com".to_owned()));
    }

    #[test]
    fn changed_bytes_never_panic(changes in proptest::collection::vec((0..1400usize, any::<u8>()), 0..8), size in 1..1500usize) {
        let mut bytes = records(&message(&body(Some(&usual()))), &[size]);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = parse(&bytes);
    }

    #[test]
    fn any_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = parse(&bytes);
        bytes.splice(..0, [HANDSHAKE, 3, 1, 2, 0, CLIENT_HELLO, 0, 1, 0xf0]);
        let _ = parse(&bytes);
    }
}

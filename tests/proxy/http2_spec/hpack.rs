//! RFC 7541: valid field blocks.

use kit::http2::{frame, get_block};

use super::peer::*;

/// COMPRESSION_ERROR by the letter. h2 ends the connection, which is what matters, and says PROTOCOL_ERROR.
const BROKEN: Expect = Expect::Connection(&[COMPRESSION_ERROR, PROTOCOL_ERROR]);

pub(crate) fn cases() -> Vec<Http2Case> {
    [good(), bad()].concat()
}

/// `GET /` with these bytes behind it in the block.
fn behind(bytes: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[get_block(HOST, "/"), bytes.to_vec()].concat())
}

/// ... and before it.
fn before(bytes: &[u8]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &[bytes.to_vec(), get_block(HOST, "/")].concat())
}

fn good() -> Vec<Http2Case> {
    let indexed_again = [0x40, 1, b'x', 1, b'y', 0xbe]; // into the table, then out of it
    vec![
        case("RFC7541 6.1", "an indexed field", &[behind(&[0x90])], Expect::Answer), // accept-encoding
        case("RFC7541 6.1", "a field out of the dynamic table", &[behind(&indexed_again)], Expect::Answer),
        case("RFC7541 6.2.1", "a field that goes into the table", &[behind(&[0x40, 1, b'x', 1, b'y'])], Expect::Answer),
        case("RFC7541 6.2.1", "... with an indexed name", &[behind(&[0x7a, 1, b'y'])], Expect::Answer), // user-agent
        case("RFC7541 6.2.2", "a field that does not", &[behind(&[0x00, 1, b'x', 1, b'y'])], Expect::Answer),
        case("RFC7541 6.2.3", "a field that never does", &[behind(&[0x10, 1, b'x', 1, b'y'])], Expect::Answer),
        case("RFC7541 6.3", "a table of no bytes", &[before(&[0x20])], Expect::Answer),
        case("RFC7541 6.3", "a table of 4096 bytes", &[before(&[0x3f, 0xe1, 0x1f])], Expect::Answer),
        case("RFC7541 4.2", "two changes of size", &[before(&[0x20, 0x3f, 0xe1, 0x1f])], Expect::Answer),
        // "x: a" with the value as Huffman's code has it: 00011, and ones to the octet's end.
        case("RFC7541 5.2", "a value in Huffman's code", &[behind(&[0x00, 1, b'x', 0x81, 0x1f])], Expect::Answer),
    ]
}

fn bad() -> Vec<Http2Case> {
    vec![
        case("RFC7541 2.3.3", "an index beyond both tables", &[behind(&[0xc6])], BROKEN),
        case("RFC7541 2.3.3", "a name beyond both tables", &[behind(&[0x7f, 0x0a, 1, b'y'])], BROKEN),
        case("RFC7541 4.2", "a change of size at the end", &[behind(&[0x21])], BROKEN),
        case("RFC7541 5.1", "a number without an end", &[behind(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])], BROKEN),
        case("RFC7541 5.2", "a string that is cut off", &[behind(&[0x00, 9, b'x'])], BROKEN),
        case("RFC7541 5.2", "padding of eight bits", &[behind(&[0x00, 1, b'x', 0x82, 0x1f, 0xff])], BROKEN),
        case("RFC7541 5.2", "padding that is not of ones", &[behind(&[0x00, 1, b'x', 0x81, 0x18])], BROKEN),
        case(
            "RFC7541 5.2",
            "the symbol that ends all",
            &[behind(&[0x00, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xff])],
            BROKEN,
        ),
        case("RFC7541 6.1", "index 0", &[behind(&[0x80])], BROKEN),
        case("RFC7541 6.3", "a table larger than allowed", &[before(&[0x3f, 0xe1, 0xff, 0x03])], BROKEN),
        case("RFC7541 4.1", "a block that ends in a field", &[frame(HEADERS, WHOLE, 1, &[0x82, 0x00, 5])], BROKEN),
    ]
}

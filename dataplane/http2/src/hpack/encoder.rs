//! Encodes the fields of requests and responses (RFC 7541 6).
//!
//! A field that was sent before is one or two bytes, if it is still in the table. Fields whose values rarely repeat are
//! not added to the table, and secrets never are (RFC 7541 7.1.3).

use std::hash::BuildHasher as _;

use bytes::{BufMut, BytesMut};
use foldhash::fast::FixedState;

use super::dynamic_table::{DynamicTable, FieldHashes, TableMatch};
use super::{huffman, integer, static_table};
use crate::limits::{HPACK_ENTRY_BYTES_MAX, HPACK_TABLE_BYTES};

/// Entries of the dynamic table come after those of the static one.
const DYNAMIC_BASE: usize = static_table::ENTRIES.len() + 1;

/// The encoder of one connection.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// The smallest size that the peer has asked for since the last block, if it has changed the size.
    resized_to: Option<usize>,
    /// The size that the peer allows.
    peer_max: usize,
}

impl Default for HpackEncoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(HPACK_TABLE_BYTES), resized_to: None, peer_max: HPACK_TABLE_BYTES }
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct RequestPseudoFields<'a> {
    pub method: &'a [u8],
    pub scheme: &'a [u8],
    pub authority: &'a [u8],
    pub path: &'a [u8],
}

/// How a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldIndexing {
    Incremental,
    Without,
    /// No hop may add it to a table.
    Never,
}

impl HpackEncoder {
    /// The peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_table_bytes(&mut self, bytes: u32) {
        self.peer_max = HPACK_TABLE_BYTES.min(bytes as usize);
        let smallest = self.resized_to.map_or(self.peer_max, |smallest| smallest.min(self.peer_max));
        self.resized_to = Some(smallest);
    }

    /// Begins a block: tells the peer a new size of the table.
    pub fn begin(&mut self, out: &mut BytesMut) {
        let Some(smallest) = self.resized_to.take() else { return };
        if smallest < self.table.max() {
            self.table.set_max(smallest);
            integer::put(out, 0x20, 5, smallest);
        }
        if self.peer_max != self.table.max() {
            self.table.set_max(self.peer_max);
            integer::put(out, 0x20, 5, self.peer_max);
        }
    }

    /// Writes `:status`.
    pub fn status(&mut self, status: u16, out: &mut BytesMut) {
        match static_table::status(status) {
            Some(index) => out.put_u8(0x80 | index),
            None => {
                let digits = [status / 100, status / 10 % 10, status % 10].map(|digit| b'0' + (digit % 10) as u8);
                self.field(b":status", &digits, out);
            }
        }
    }

    /// Writes the pseudo-fields of a request. Paths are not added to the table: most repeat too rarely.
    pub fn request(&mut self, head: RequestPseudoFields<'_>, out: &mut BytesMut) {
        match head.method {
            b"GET" => out.put_u8(0x80 | static_table::METHOD_GET),
            b"POST" => out.put_u8(0x80 | static_table::METHOD_POST),
            method => self.field(b":method", method, out),
        }
        match head.scheme {
            b"https" => out.put_u8(0x80 | static_table::SCHEME_HTTPS),
            b"http" => out.put_u8(0x80 | static_table::SCHEME_HTTP),
            scheme => self.field(b":scheme", scheme, out),
        }
        self.field(b":authority", head.authority, out);
        match head.path {
            b"/" => out.put_u8(0x80 | static_table::PATH_ROOT),
            path => self.field(b":path", path, out),
        }
    }

    /// Writes a field. Its name is in lower case.
    pub fn field(&mut self, name: &[u8], value: &[u8], out: &mut BytesMut) {
        let known_name = static_table::name(name);
        match indexing(name, value) {
            FieldIndexing::Incremental => self.indexed(name, value, known_name, out),
            FieldIndexing::Without => literal(name, value, known_name.map(usize::from), (0x00, 4), out),
            FieldIndexing::Never => literal(name, value, known_name.map(usize::from), (0x10, 4), out),
        }
    }

    fn indexed(&mut self, name: &[u8], value: &[u8], known_name: Option<u8>, out: &mut BytesMut) {
        let hashes = hashes(name, value);
        let name_index = match self.table.find(name, value, hashes) {
            TableMatch::Field(index) => return integer::put(out, 0x80, 7, DYNAMIC_BASE + index),
            TableMatch::Name(index) => known_name.map(usize::from).or(Some(DYNAMIC_BASE + index)),
            TableMatch::None => known_name.map(usize::from),
        };
        literal(name, value, name_index, (0x40, 6), out);
        self.table.insert(name, value, hashes);
    }
}

fn indexing(name: &[u8], value: &[u8]) -> FieldIndexing {
    match name {
        b"set-cookie"
        | b"www-authenticate"
        | b"proxy-authenticate"
        | b"authorization"
        | b"proxy-authorization"
        | b"cookie" => FieldIndexing::Never,
        b"content-length" | b"content-range" | b"etag" | b"last-modified" | b"expires" | b"age" | b"location"
        | b"traceparent" | b"server-timing" | b"x-request-id" | b"grpc-message" => FieldIndexing::Without,
        b":path" | b"referer" | b"range" | b"if-none-match" | b"if-modified-since" | b"tracestate" | b"forwarded"
        | b"x-forwarded-for" | b"x-real-ip" => FieldIndexing::Without,
        _ if name.len() + value.len() > HPACK_ENTRY_BYTES_MAX => FieldIndexing::Without,
        _ => FieldIndexing::Incremental,
    }
}

fn hashes(name: &[u8], value: &[u8]) -> FieldHashes {
    let state = FixedState::default();
    let name = state.hash_one(name) as u32;
    FieldHashes { name, field: state.hash_one((name, value)) as u32 }
}

/// Writes a literal field. `kind`: the bits before the index of the name, and how many bits the index has.
fn literal(name: &[u8], value: &[u8], name_index: Option<usize>, kind: (u8, u32), out: &mut BytesMut) {
    integer::put(out, kind.0, kind.1, name_index.unwrap_or(0));
    if name_index.is_none() {
        string(name, out);
    }
    string(value, out);
}

fn string(text: &[u8], out: &mut BytesMut) {
    let encoded = huffman::encoded_bytes(text);
    if encoded < text.len() {
        integer::put(out, 0x80, 7, encoded);
        huffman::encode(text, out);
    } else {
        integer::put(out, 0x00, 7, text.len());
        out.put_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::HpackDecoder;
    use super::*;

    type Fields = Vec<(Vec<u8>, Vec<u8>)>;

    fn encoded(encoder: &mut HpackEncoder, fields: &[(&[u8], &[u8])]) -> BytesMut {
        let mut out = BytesMut::new();
        encoder.begin(&mut out);
        fields.iter().for_each(|(name, value)| encoder.field(name, value, &mut out));
        out
    }

    #[test]
    fn repeated_field_is_one_byte_and_a_secret_is_never_indexed() {
        let mut encoder = HpackEncoder::default();
        let fields: [(&[u8], &[u8]); 2] = [(b"content-type", b"text/plain"), (b"x-custom", b"value")];
        assert!(encoded(&mut encoder, &fields).len() > 10);
        assert_eq!(encoded(&mut encoder, &fields).as_ref(), [0xbf, 0xbe]);
        for _ in 0..2 {
            assert_eq!(encoded(&mut encoder, &[(b"set-cookie", b"a=1")])[..2], [0x1f, 55 - 15]);
        }
        assert_eq!(encoded(&mut encoder, &fields).as_ref(), [0xbf, 0xbe]);
    }

    #[test]
    fn status_is_indexed_or_remembered() {
        let mut encoder = HpackEncoder::default();
        let mut write = |status| {
            let mut out = BytesMut::new();
            encoder.status(status, &mut out);
            out
        };
        assert_eq!(write(200).as_ref(), [0x88]);
        assert_eq!(write(503)[0], 0x48);
        assert_eq!(write(503).as_ref(), [0xbe]);
    }

    #[test]
    fn changed_table_size_is_announced_with_the_smallest() {
        let mut encoder = HpackEncoder::default();
        encoded(&mut encoder, &[(b"a", b"b")]);
        encoder.set_table_bytes(0);
        encoder.set_table_bytes(100);
        assert_eq!(encoded(&mut encoder, &[]).as_ref(), [0x20, 0x3f, 69]);
        encoder.set_table_bytes(1 << 30);
        assert_eq!(encoded(&mut encoder, &[]).as_ref(), [0x3f, 0xe1, 0x1f]);
        assert_eq!(encoded(&mut encoder, &[]).len(), 0);
    }

    fn any_fields() -> impl Strategy<Value = Vec<(Fields, Option<u32>)>> {
        let name = proptest::sample::select(vec!["a", "date", "content-type", "set-cookie", "x-y", ":status", "etag"]);
        let value = proptest::sample::select(vec![0, 1, 30, 200, 400, 600]);
        let field = (name, value, any::<u8>())
            .prop_map(|(name, length, byte)| (name.as_bytes().to_vec(), vec![byte % 4 + b'0'; length]));
        let block = (proptest::collection::vec(field, 0..8), proptest::option::weighted(0.2, 0..5000_u32));
        proptest::collection::vec(block, 1..20)
    }

    proptest! {
        /// Whatever the table did meanwhile, the other end reads the same fields.
        #[test]
        fn blocks_round_trip(blocks in any_fields()) {
            let (mut encoder, mut decoder) = (HpackEncoder::default(), HpackDecoder::default());
            for (fields, resize) in blocks {
                if let Some(bytes) = resize {
                    encoder.set_table_bytes(bytes);
                }
                let mut out = BytesMut::new();
                encoder.begin(&mut out);
                fields.iter().for_each(|(name, value)| encoder.field(name, value, &mut out));
                let mut read = Vec::new();
                decoder.decode(&out, 1 << 20, |name, value| read.push((name.to_vec(), value.to_vec()))).unwrap();
                prop_assert_eq!(read, fields);
            }
        }
    }
}

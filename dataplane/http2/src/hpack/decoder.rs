//! Decodes header blocks (RFC 7541 6).

use super::dynamic_table::{DynamicTable, FieldHashes};
use super::{FIELD_OVERHEAD, HpackError, huffman, integer, static_table};
use crate::limits::HPACK_TABLE_BYTES;

/// Size updates of the table in one block: the smallest size since the last block, and the present one (RFC 7541 4.2).
const SIZE_UPDATES_MAX: usize = 2;

/// The decoder of one connection.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// The name and the value of the field that is being decoded.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for HpackDecoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(HPACK_TABLE_BYTES), name: Vec::new(), value: Vec::new() }
    }
}

impl HpackDecoder {
    /// Decodes a whole block; `each` gets its fields in order. Two bytes of a block can stand for a field as large as
    /// the table, so the work is bounded by `field_bytes_max`, the size of all fields.
    pub fn decode(
        &mut self,
        block: &[u8],
        field_bytes_max: usize,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), HpackError> {
        let mut field_bytes_left = field_bytes_max;
        let mut each = |name: &[u8], value: &[u8]| {
            let left = field_bytes_left.checked_sub(name.len() + value.len() + FIELD_OVERHEAD);
            field_bytes_left = left.ok_or(HpackError::FieldBytes)?;
            each(name, value);
            Ok(())
        };
        let mut rest = block;
        let (mut begun, mut updates) = (false, 0);
        while let Some(first) = rest.first() {
            match first {
                0x80.. => {
                    let (name, value) = self.field(integer::read(&mut rest, 7)?)?;
                    each(name, value)?;
                }
                0x40.. => {
                    self.literal(&mut rest, 6)?;
                    each(&self.name, &self.value)?;
                    self.table.insert(&self.name, &self.value, FieldHashes::default());
                }
                0x20.. => {
                    let size = integer::read(&mut rest, 5)?;
                    updates += 1;
                    if begun || updates > SIZE_UPDATES_MAX || size > HPACK_TABLE_BYTES {
                        return Err(HpackError::TableSize);
                    }
                    self.table.set_max(size);
                    continue;
                }
                _ => {
                    self.literal(&mut rest, 4)?;
                    each(&self.name, &self.value)?;
                }
            }
            begun = true;
        }
        Ok(())
    }

    fn field(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let index = index.checked_sub(1).ok_or(HpackError::Index)?;
        match static_table::ENTRIES.get(index) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => self.table.get(index - static_table::ENTRIES.len()).ok_or(HpackError::Index),
        }
    }

    /// Decodes a literal field, whose name may be an index with a prefix of `bits`, into `name` and `value`.
    fn literal(&mut self, rest: &mut &[u8], bits: u32) -> Result<(), HpackError> {
        self.name.clear();
        self.value.clear();
        match integer::read(rest, bits)? {
            0 => string(rest, &mut self.name)?,
            index => {
                let mut name = std::mem::take(&mut self.name);
                name.extend_from_slice(self.field(index)?.0);
                self.name = name;
            }
        }
        string(rest, &mut self.value)
    }
}

fn string(rest: &mut &[u8], into: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_huffman = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer::read(rest, 7)?;
    let (text, after) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *rest = after;
    if is_huffman {
        return huffman::decode(text, into);
    }
    into.extend_from_slice(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut HpackDecoder, block: &[u8]) -> Result<String, HpackError> {
        let mut text = String::new();
        decoder.decode(block, 10_000, |name, value| {
            text += &format!("{}={};", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        })?;
        Ok(text)
    }

    /// RFC 7541 C.4: three requests on one connection.
    #[test]
    fn examples_of_the_rfc_are_decoded() {
        let mut decoder = HpackDecoder::default();
        for (block, fields) in [
            (
                &b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..],
                ":method=GET;:scheme=http;:path=/;:authority=www.example.com;",
            ),
            (
                b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
                ":method=GET;:scheme=http;:path=/;:authority=www.example.com;cache-control=no-cache;",
            ),
            (
                b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
                ":method=GET;:scheme=https;:path=/index.html;:authority=www.example.com;custom-key=custom-value;",
            ),
        ] {
            assert_eq!(decoded(&mut decoder, block).as_deref(), Ok(fields));
        }
    }

    #[test]
    fn invalid_blocks_are_errors() {
        for (block, why) in [
            (&[0x80][..], HpackError::Index),
            (&[0xbe], HpackError::Index),
            (&[0x7f, 0x80, 0x01, 0x01, b'v'], HpackError::Index),
            (&[0x40], HpackError::Truncated),
            (&[0x40, 0x03, b'a'], HpackError::Truncated),
            (&[0x40, 0x01, b'a', 0x81, 0xff], HpackError::Huffman),
            (&[0x3f, 0xe2, 0x1f], HpackError::TableSize), // 4097
            (&[0x82, 0x20], HpackError::TableSize),       // after a field
            (&[0x20, 0x20, 0x20], HpackError::TableSize),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff], HpackError::Integer),
        ] {
            assert_eq!(decoded(&mut HpackDecoder::default(), block), Err(why), "{block:x?}");
        }
    }

    /// An HPACK bomb, of whole fields and of names.
    #[test]
    fn fields_beyond_the_limit_are_not_decoded() {
        let large = [&[0x40, 0x7f, 0xd1, 0x0e], &[b'n'; 2000][..], &[1, b'v']].concat();
        for field in [&[0xbe][..], &[0x7e, 0x00], &[0x0f, 0x2f, 0x00]] {
            let block = [&large[..], &field.repeat(3)].concat();
            assert!(decoded(&mut HpackDecoder::default(), &block).is_ok());
            let block = [&large[..], &field.repeat(4)].concat();
            assert_eq!(decoded(&mut HpackDecoder::default(), &block), Err(HpackError::FieldBytes), "{field:x?}");
        }
    }

    #[test]
    fn size_update_evicts_entries() {
        let mut decoder = HpackDecoder::default();
        assert_eq!(decoded(&mut decoder, b"\x40\x01a\x01b\xbe").as_deref(), Ok("a=b;a=b;"));
        assert_eq!(decoded(&mut decoder, b"\x20\x3f\xe1\x1f\xbe"), Err(HpackError::Index));
    }
}

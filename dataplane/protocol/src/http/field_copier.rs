//! Header fields that are copied unchanged from one head to another.

use std::ops::Range;

use bytes::{BufMut, BytesMut};

use codec::http::HeaderField;

/// Copies fields of one head in order. Adjacent fields are copied in one piece: most fields of most heads are
/// forwarded, and copying their four parts each would cost more than all other work on them.
pub(super) struct FieldCopier<'a> {
    head: &'a [u8],
    /// Whole lines that are not copied yet.
    run: Range<usize>,
}

impl<'a> FieldCopier<'a> {
    pub(super) fn of(head: &'a [u8]) -> Self {
        Self { head, run: 0..0 }
    }

    /// Adds `field`, one of the head's, after those before it.
    pub(super) fn put(&mut self, out: &mut BytesMut, field: &HeaderField) {
        let Some(line) = self.plain_line(field) else {
            self.end(out);
            return put_field(out, field.name.in_bytes(self.head), field.value.in_bytes(self.head));
        };
        if self.run.end != line.start {
            self.end(out);
            self.run.start = line.start;
        }
        self.run.end = line.end;
    }

    /// Copies the rest.
    pub(super) fn end(&mut self, out: &mut BytesMut) {
        out.put_slice(&self.head[std::mem::take(&mut self.run)]);
    }

    /// The field's line, if its format is canonical.
    fn plain_line(&self, field: &HeaderField) -> Option<Range<usize>> {
        let (name, value) = (field.name.start as usize..field.name.end as usize, field.value);
        let value = value.start as usize..value.end as usize;
        let plain =
            self.head.get(name.end..value.start)? == b": " && self.head.get(value.end..value.end + 2)? == b"\r\n";
        plain.then_some(name.start..value.end + 2)
    }
}

/// Writes one line.
pub(super) fn put_field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.put_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::http::{Method, Parsed, ResponseHead, parse_response};

    /// `text` without every `nth` field, whatever blanks are around the colons.
    fn without_every(nth: usize, text: &str) -> String {
        let mut head = ResponseHead::default();
        let parsed = parse_response(text.as_bytes(), Method::Get, &mut head);
        assert_eq!(parsed, Parsed::Head { bytes: text.len() });
        let (mut out, mut lines) = (BytesMut::new(), FieldCopier::of(text.as_bytes()));
        for (_, field) in head.fields.iter().enumerate().filter(|(at, _)| at % nth != nth - 1) {
            lines.put(&mut out, field);
        }
        lines.end(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn copied_fields_become_canonical_lines() {
        let text = "HTTP/1.1 200 OK\r\nA: 1\r\nB:2\r\nC: \t3 \r\nD:\r\nE: \r\nF: 6\r\nG: 7\r\n\r\n";
        assert_eq!(without_every(99, text), "A: 1\r\nB: 2\r\nC: 3\r\nD: \r\nE: \r\nF: 6\r\nG: 7\r\n");
        assert_eq!(without_every(2, text), "A: 1\r\nC: 3\r\nE: \r\nG: 7\r\n");
        assert_eq!(without_every(3, text), "A: 1\r\nB: 2\r\nD: \r\nE: \r\nG: 7\r\n");
        assert_eq!(without_every(1, text), "");
    }
}

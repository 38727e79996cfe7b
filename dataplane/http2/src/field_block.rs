//! The fields of one head or trailer section, and the rules for them (RFC 9113 8).
//!
//! All fields are in one buffer that is used again for the next head, so a head costs no allocation here.

use std::ops::Range;

use crate::hpack::FIELD_OVERHEAD;
use crate::limits::FIELD_BYTES_KEPT;

/// Why fields are malformed (RFC 9113 8.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedFields {
    #[error("unknown pseudo-field")]
    PseudoUnknown,
    #[error("repeated pseudo-field")]
    PseudoRepeated,
    #[error("pseudo-field behind other fields")]
    PseudoLate,
    #[error("a pseudo-field is missing")]
    PseudoMissing,
    #[error("a pseudo-field does not belong here")]
    PseudoUnexpected,
    #[error("invalid method")]
    Method,
    #[error("invalid path")]
    Path,
    #[error("invalid status")]
    Status,
    #[error("invalid field name")]
    Name,
    #[error("invalid field value")]
    Value,
    #[error("a field of one HTTP/1 connection")]
    ConnectionField,
    #[error("te allows only trailers")]
    Te,
    #[error("trailers do not end the stream")]
    TrailersWithoutEnd,
}

/// The pseudo-fields of requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PseudoField {
    Method,
    Scheme,
    Authority,
    Path,
    /// RFC 8441.
    Protocol,
    /// Of responses.
    Status,
}

const PSEUDO_FIELDS: usize = 6;

/// A field in [`FieldBlock::bytes`]: its name, then its value.
#[derive(Debug, Clone, Copy)]
struct FieldSpan {
    start: u32,
    name: u32,
    value: u32,
}

/// The fields of one header section.
#[derive(Debug)]
pub struct FieldBlock {
    bytes: Vec<u8>,
    fields: Vec<FieldSpan>,
    pseudo: [Option<Range<usize>>; PSEUDO_FIELDS],
    /// The size of all fields as SETTINGS_MAX_HEADER_LIST_SIZE counts them, and its limit.
    list_bytes: usize,
    list_bytes_max: usize,
    malformed: Option<MalformedFields>,
}

impl FieldBlock {
    #[must_use]
    pub fn new(list_bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            fields: Vec::new(),
            pseudo: Default::default(),
            list_bytes: 0,
            list_bytes_max,
            malformed: None,
        }
    }

    /// Makes room for the next section.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        self.bytes.shrink_to(FIELD_BYTES_KEPT);
        self.fields.shrink_to(FIELD_BYTES_KEPT / size_of::<FieldSpan>());
        self.pseudo = Default::default();
        self.list_bytes = 0;
        self.malformed = None;
    }

    /// Adds a field. Those beyond the limit are dropped, and only counted.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.list_bytes = self.list_bytes.saturating_add(name.len() + value.len() + FIELD_OVERHEAD);
        if self.is_too_large() || self.malformed.is_some() {
            return;
        }
        let checked = match name.strip_prefix(b":") {
            Some(pseudo) => self.push_pseudo(pseudo, value),
            None => self.push_field(name, value),
        };
        self.malformed = checked.err();
    }

    /// The fields are more than the limit allows; not all of them were kept.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.list_bytes > self.list_bytes_max
    }

    /// Whether the fields are a valid request head. `tunnels`: extended CONNECT is allowed.
    pub fn check_request(&self, tunnels: bool) -> Result<(), MalformedFields> {
        if let Some(why) = self.malformed {
            return Err(why);
        }
        if self.pseudo(PseudoField::Status).is_some() {
            return Err(MalformedFields::PseudoUnexpected);
        }
        let method = self.pseudo(PseudoField::Method).ok_or(MalformedFields::PseudoMissing)?;
        let [scheme, authority, path, protocol] =
            [PseudoField::Scheme, PseudoField::Authority, PseudoField::Path, PseudoField::Protocol]
                .map(|field| self.pseudo(field).is_some());
        if protocol && (!tunnels || method != b"CONNECT") {
            return Err(MalformedFields::PseudoUnexpected);
        }
        if method == b"CONNECT" && !protocol {
            return match (scheme || path, authority) {
                (true, _) => Err(MalformedFields::PseudoUnexpected),
                (false, false) => Err(MalformedFields::PseudoMissing),
                (false, true) => Ok(()),
            };
        }
        if !scheme || !path || protocol && !authority {
            return Err(MalformedFields::PseudoMissing);
        }
        match self.path() {
            [b'/', ..] => Ok(()),
            b"*" if method == b"OPTIONS" => Ok(()),
            _ => Err(MalformedFields::Path),
        }
    }

    /// Whether the fields are a valid response head; its status.
    pub fn check_response(&self) -> Result<u16, MalformedFields> {
        if let Some(why) = self.malformed {
            return Err(why);
        }
        let pseudo = self.pseudo.iter().filter(|field| field.is_some()).count();
        match self.status() {
            Some(status) if pseudo == 1 => Ok(status),
            Some(_) => Err(MalformedFields::PseudoUnexpected),
            None => Err(MalformedFields::PseudoMissing),
        }
    }

    /// Whether the fields are valid trailers.
    pub fn check_trailers(&self) -> Result<(), MalformedFields> {
        if let Some(why) = self.malformed {
            return Err(why);
        }
        match self.pseudo.iter().any(Option::is_some) {
            true => Err(MalformedFields::PseudoUnexpected),
            false => Ok(()),
        }
    }

    #[must_use]
    pub fn method(&self) -> &[u8] {
        self.pseudo(PseudoField::Method).unwrap_or_default()
    }

    #[must_use]
    pub fn scheme(&self) -> &[u8] {
        self.pseudo(PseudoField::Scheme).unwrap_or_default()
    }

    #[must_use]
    pub fn authority(&self) -> Option<&[u8]> {
        self.pseudo(PseudoField::Authority)
    }

    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.pseudo(PseudoField::Path).unwrap_or_default()
    }

    /// The protocol of an extended CONNECT.
    #[must_use]
    pub fn protocol(&self) -> Option<&[u8]> {
        self.pseudo(PseudoField::Protocol)
    }

    /// The status of a response.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        let digits = self.pseudo(PseudoField::Status)?;
        Some(digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0')))
    }

    /// The other fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|field| {
            let (name, rest) = self.bytes[field.start as usize..].split_at(field.name as usize);
            (name, &rest[..field.value as usize])
        })
    }

    /// Bytes of all names and values that were kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The number of other fields.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The values of all fields with this name.
    pub fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.fields().filter(move |(found, _)| *found == name).map(|(_, value)| value)
    }

    /// The length that the head announces, if it announces a valid one.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        let mut values = self.values(b"content-length");
        let value = values.next()?;
        if values.next().is_some() || value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    fn pseudo(&self, field: PseudoField) -> Option<&[u8]> {
        self.pseudo[field as usize].clone().map(|range| &self.bytes[range])
    }

    fn push_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), MalformedFields> {
        let field = match name {
            b"method" => PseudoField::Method,
            b"scheme" => PseudoField::Scheme,
            b"authority" => PseudoField::Authority,
            b"path" => PseudoField::Path,
            b"protocol" => PseudoField::Protocol,
            b"status" => PseudoField::Status,
            _ => return Err(MalformedFields::PseudoUnknown),
        };
        if !self.fields.is_empty() {
            return Err(MalformedFields::PseudoLate);
        }
        if self.pseudo[field as usize].is_some() {
            return Err(MalformedFields::PseudoRepeated);
        }
        let is_valid = match field {
            PseudoField::Method | PseudoField::Protocol => {
                !value.is_empty() && value.iter().all(|byte| is_token(*byte))
            }
            // A fragment is no part of a path (RFC 9113 8.3.1).
            PseudoField::Path => !value.is_empty() && value.iter().all(|byte| is_visible(*byte) && *byte != b'#'),
            PseudoField::Status => matches!(value, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']),
            PseudoField::Scheme | PseudoField::Authority => value.iter().all(|byte| is_visible(*byte)),
        };
        if !is_valid {
            return Err(match field {
                PseudoField::Method => MalformedFields::Method,
                PseudoField::Path => MalformedFields::Path,
                PseudoField::Status => MalformedFields::Status,
                _ => MalformedFields::Value,
            });
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.pseudo[field as usize] = Some(start..self.bytes.len());
        Ok(())
    }

    fn push_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), MalformedFields> {
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte) && !byte.is_ascii_uppercase()) {
            return Err(MalformedFields::Name);
        }
        if !value.iter().all(|byte| is_value(*byte)) {
            return Err(MalformedFields::Value);
        }
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                return Err(MalformedFields::ConnectionField);
            }
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => return Err(MalformedFields::Te),
            _ => {}
        }
        let [start, name_bytes, value_bytes] = [self.bytes.len(), name.len(), value.len()].map(|bytes| bytes as u32);
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.fields.push(FieldSpan { start, name: name_bytes, value: value_bytes });
        Ok(())
    }
}

/// RFC 9110 5.6.2.
fn is_token(byte: u8) -> bool {
    static TOKEN: [bool; 256] = {
        let mut all = [false; 256];
        let (mut byte, more) = (0_u8, b"!#$%&'*+-.^_`|~");
        while byte < 128 {
            all[byte as usize] = byte.is_ascii_alphanumeric();
            byte += 1;
        }
        let mut at = 0;
        while at < more.len() {
            all[more[at] as usize] = true;
            at += 1;
        }
        all
    };
    TOKEN[usize::from(byte)]
}

/// No control characters, except tabs.
fn is_value(byte: u8) -> bool {
    byte >= b' ' && byte != 0x7f || byte == b'\t'
}

fn is_visible(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fields: &[(&str, &str)]) -> FieldBlock {
        let mut block = FieldBlock::new(10_000);
        fields.iter().for_each(|(name, value)| block.push(name.as_bytes(), value.as_bytes()));
        block
    }

    const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "app")];

    #[test]
    fn valid_requests_are_accepted() {
        let with = |more: &[(&'static str, &'static str)]| [&GET[..], more].concat();
        for fields in [
            GET.to_vec(),
            GET[..3].to_vec(), // the authority may be in `host`
            with(&[("te", "trailers"), ("x-y", ""), ("cookie", "a=\"b\tc\"")]),
            vec![(":method", "OPTIONS"), (":scheme", "http"), (":path", "*")],
            vec![(":method", "CONNECT"), (":authority", "app:443")],
            [&[(":method", "CONNECT"), (":protocol", "websocket")][..], &GET[1..]].concat(),
        ] {
            assert_eq!(block(&fields).check_request(true), Ok(()), "{fields:?}");
        }
        let block = block(&with(&[("a", "1"), ("b", "2"), ("a", "3")]));
        assert_eq!((block.method(), block.path(), block.authority()), (&b"GET"[..], &b"/"[..], Some(&b"app"[..])));
        assert_eq!(block.values(b"a").collect::<Vec<_>>(), [b"1", b"3"]);
        assert_eq!(block.len(), 3);
    }

    #[test]
    fn malformed_requests_are_named() {
        let with = |more: &[(&'static str, &'static str)]| [&GET[..], more].concat();
        for (fields, why) in [
            (with(&[(":status", "200")]), MalformedFields::PseudoUnexpected),
            (with(&[(":state", "200")]), MalformedFields::PseudoUnknown),
            (with(&[(":path", "/")]), MalformedFields::PseudoRepeated),
            ([&[("a", "b")][..], &GET].concat(), MalformedFields::PseudoLate),
            (GET[1..].to_vec(), MalformedFields::PseudoMissing),
            (vec![GET[0], GET[1]], MalformedFields::PseudoMissing),
            (vec![GET[0], GET[2]], MalformedFields::PseudoMissing),
            (vec![GET[0], GET[1], (":path", "")], MalformedFields::Path),
            (vec![GET[0], GET[1], (":path", "a")], MalformedFields::Path),
            (vec![GET[0], GET[1], (":path", "/a b")], MalformedFields::Path),
            (vec![GET[0], GET[1], (":path", "/a#b")], MalformedFields::Path),
            (vec![GET[0], GET[1], (":path", "*")], MalformedFields::Path),
            (vec![(":method", "G T"), GET[1], GET[2]], MalformedFields::Method),
            (vec![(":method", "CONNECT")], MalformedFields::PseudoMissing),
            (vec![(":method", "CONNECT"), GET[2], GET[3]], MalformedFields::PseudoUnexpected),
            (with(&[(":protocol", "websocket")]), MalformedFields::PseudoUnexpected),
            (with(&[("X-Y", "a")]), MalformedFields::Name),
            (with(&[("", "a")]), MalformedFields::Name),
            (with(&[("a b", "a")]), MalformedFields::Name),
            (with(&[("a", "b\r\nc: d")]), MalformedFields::Value),
            (with(&[("a", "b\0")]), MalformedFields::Value),
            (with(&[("connection", "close")]), MalformedFields::ConnectionField),
            (with(&[("transfer-encoding", "chunked")]), MalformedFields::ConnectionField),
            (with(&[("te", "gzip")]), MalformedFields::Te),
        ] {
            assert_eq!(block(&fields).check_request(true), Err(why), "{fields:?}");
        }
        let tunnel = [&[(":method", "CONNECT"), (":protocol", "websocket")][..], &GET[1..]].concat();
        assert_eq!(block(&tunnel).check_request(false), Err(MalformedFields::PseudoUnexpected));
        assert_eq!(block(&GET).check_trailers(), Err(MalformedFields::PseudoUnexpected));
        assert_eq!(block(&[("grpc-status", "0")]).check_trailers(), Ok(()));
    }

    #[test]
    fn response_heads_have_one_status() {
        assert_eq!(block(&[(":status", "200"), ("a", "b")]).check_response(), Ok(200));
        for (fields, why) in [
            (vec![], MalformedFields::PseudoMissing),
            (vec![("a", "b")], MalformedFields::PseudoMissing),
            (vec![(":status", "20")], MalformedFields::Status),
            (vec![(":status", "099")], MalformedFields::Status),
            (vec![(":status", "2000")], MalformedFields::Status),
            (vec![(":status", "20x")], MalformedFields::Status),
            (vec![(":status", "")], MalformedFields::Status),
            (vec![(":status", "200"), (":status", "200")], MalformedFields::PseudoRepeated),
            (vec![(":status", "200"), (":path", "/")], MalformedFields::PseudoUnexpected),
            (vec![("a", "b"), (":status", "200")], MalformedFields::PseudoLate),
            (vec![(":status", "200"), ("connection", "close")], MalformedFields::ConnectionField),
            (vec![(":status", "200"), ("A", "b")], MalformedFields::Name),
        ] {
            assert_eq!(block(&fields).check_response(), Err(why), "{fields:?}");
        }
        assert_eq!(block(&[(":status", "200")]).check_trailers(), Err(MalformedFields::PseudoUnexpected));
    }

    #[test]
    fn fields_beyond_the_limit_are_counted_and_not_kept() {
        let mut block = FieldBlock::new(1000);
        GET.iter().for_each(|(name, value)| block.push(name.as_bytes(), value.as_bytes()));
        for _ in 0..1000 {
            block.push(b"a", &[b'v'; 67]);
        }
        assert!(block.is_too_large());
        assert!(block.bytes.len() < 1000);
        block.clear();
        block.push(b"a", b"b");
        assert!(!block.is_too_large());
    }

    #[test]
    fn content_length_is_read_if_it_is_valid() {
        for (fields, length) in [
            (vec![("content-length", "12")], Some(12)),
            (vec![("content-length", "+1")], None),
            (vec![("content-length", "1"), ("content-length", "1")], None),
            (vec![("content-length", "99999999999999999999")], None),
            (vec![], None),
        ] {
            assert_eq!(block(&fields).content_length(), length, "{fields:?}");
        }
    }
}

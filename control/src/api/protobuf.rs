//! Kubernetes' protobuf bodies for core kinds, turned into the JSON they stand for.
//!
//! Typed clients send them for core kinds without asking; answers are always JSON, which the same
//! clients accept. An envelope (`k8s\0`, then type and content) holds one message. Which number is
//! which field stands in [`super::protobuf_fields`]. Nesting is bounded by those tables.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::protobuf_fields::{ENVELOPE, Field, Shape, message_of};
use super::protobuf_traffic::NEWS;

const MAGIC: &[u8] = b"k8s\0";

/// Why a body is no message of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    /// The kind has no table here: the client has to send JSON.
    UnknownKind,
    Malformed,
}

/// The object of kind `kind` in `body`.
pub(super) fn decode(kind: &str, body: &[u8]) -> Result<Value, Wrong> {
    let known = message_of(kind).ok_or(Wrong::UnknownKind)?;
    let envelope = body.strip_prefix(MAGIC).ok_or(Wrong::Malformed)?;
    let about = message(ENVELOPE, envelope)?;
    let fields = if about["type"]["apiVersion"] == "events.k8s.io/v1" { NEWS } else { known };
    let mut raw: &[u8] = &[];
    let mut reader = Reader { rest: envelope };
    while let Some((number, part)) = reader.next()? {
        if let (2, Part::Bytes(bytes)) = (number, part) {
            raw = bytes;
        }
    }
    let mut object = message(fields, raw)?;
    for field in ["apiVersion", "kind"] {
        if let Some(value) = about["type"].get(field) {
            object[field] = value.clone();
        }
    }
    Ok(object)
}

fn message(fields: &[Field], bytes: &[u8]) -> Result<Value, Wrong> {
    let mut object = Map::new();
    let mut reader = Reader { rest: bytes };
    while let Some((number, part)) = reader.next()? {
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        match (field.shape, part) {
            (Shape::TextMap | Shape::BytesMap, Part::Bytes(bytes)) => {
                let (key, value) = map_entry(field.shape, bytes)?;
                let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
                map[key] = value;
            }
            (shape, part) => {
                let value = plain(shape, part)?;
                if field.many {
                    let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(list) = list {
                        list.push(value.unwrap_or_else(|| zero(shape)));
                    }
                } else if let Some(value) = value {
                    object.insert(field.name.into(), value);
                }
            }
        }
    }
    Ok(Value::Object(object))
}

/// `None`: the zero that this encoding writes for a field that was left out.
fn plain(shape: Shape, part: Part<'_>) -> Result<Option<Value>, Wrong> {
    let value = match (shape, part) {
        (Shape::Text, Part::Bytes(bytes)) => {
            Some(text(bytes)?).filter(|text| !text.is_empty()).map(Value::String)
        }
        (Shape::Bool, Part::Number(number)) => Some(Value::Bool(number != 0)),
        (Shape::Number, Part::Number(0)) => None,
        (Shape::Number | Shape::NumberOrNone, Part::Number(number)) => {
            Some(Value::from(number.cast_signed()))
        }
        (Shape::Message(fields), Part::Bytes(bytes)) => {
            let value = message(fields, bytes)?;
            Some(value).filter(|value| value.as_object().is_some_and(|fields| !fields.is_empty()))
        }
        (Shape::NumberOrText, Part::Bytes(bytes)) => number_or_text(bytes)?,
        (Shape::Time, Part::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%SZ")?,
        (Shape::MicroTime, Part::Bytes(bytes)) => time(bytes, "%Y-%m-%dT%H:%M:%S%.6fZ")?,
        _ => return Err(Wrong::Malformed),
    };
    Ok(value)
}

/// What stands in a list where [`plain`] finds nothing: there it was not left out. The core group's name is empty.
fn zero(shape: Shape) -> Value {
    match shape {
        Shape::Text => Value::String(String::new()),
        Shape::Message(_) => Value::Object(Map::new()),
        _ => Value::from(0),
    }
}

/// `{ 1: 0 = number, 1 = text; 2: the number; 3: the text }`
fn number_or_text(bytes: &[u8]) -> Result<Option<Value>, Wrong> {
    let (mut is_text, mut number, mut words) = (false, 0, String::new());
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Number(kind)) => is_text = kind == 1,
            (2, Part::Number(value)) => number = value.cast_signed(),
            (3, Part::Bytes(bytes)) => words = text(bytes)?,
            _ => {}
        }
    }
    let value = if is_text { Value::String(words) } else { Value::from(number) };
    Ok(Some(value).filter(|value| *value != 0))
}

/// `{ 1: seconds; 2: nanoseconds }`, written as `format`.
fn time(bytes: &[u8], format: &str) -> Result<Option<Value>, Wrong> {
    let (mut seconds, mut nanoseconds) = (0, 0);
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Number(value)) => seconds = value.cast_signed(),
            (2, Part::Number(value)) => nanoseconds = i32::try_from(value).map_err(|_| Wrong::Malformed)?,
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let stamp = jiff::Timestamp::new(seconds, nanoseconds).map_err(|_| Wrong::Malformed)?;
    Ok(Some(stamp.strftime(format).to_string().into()))
}

fn map_entry(shape: Shape, bytes: &[u8]) -> Result<(String, Value), Wrong> {
    let (mut key, mut value) = (String::new(), Value::String(String::new()));
    let mut reader = Reader { rest: bytes };
    while let Some(field) = reader.next()? {
        match field {
            (1, Part::Bytes(bytes)) => key = text(bytes)?,
            (2, Part::Bytes(bytes)) if shape == Shape::BytesMap => value = STANDARD.encode(bytes).into(),
            (2, Part::Bytes(bytes)) => value = text(bytes)?.into(),
            _ => {}
        }
    }
    Ok((key, value))
}

fn text(bytes: &[u8]) -> Result<String, Wrong> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Wrong::Malformed)
}

/// Content of one field on the wire.
#[derive(Debug, Clone, Copy)]
enum Part<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes a message apart, field by field.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u64, Part<'a>)>, Wrong> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let part = match tag & 7 {
            0 => Part::Number(self.varint()?),
            1 => Part::Bytes(self.take(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Wrong::Malformed)?;
                Part::Bytes(self.take(length)?)
            }
            5 => Part::Bytes(self.take(4)?),
            _ => return Err(Wrong::Malformed),
        };
        Ok(Some((tag >> 3, part)))
    }

    fn varint(&mut self) -> Result<u64, Wrong> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(Wrong::Malformed)?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Wrong::Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Wrong::Malformed)?;
        self.rest = rest;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend_from_slice(content);
        bytes
    }

    /// A ConfigMap `m` with one entry, as a typed client writes it.
    fn config_map() -> Vec<u8> {
        let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        let metadata = [field(1, b"m"), field(2, b""), field(8, b""), vec![7 << 3, 0]].concat();
        let entry = [field(1, b"a"), field(2, b"b")].concat();
        let raw = [field(1, &metadata), field(2, &entry), vec![4 << 3, 1]].concat();
        [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw), field(3, b""), field(4, b"")].concat()
    }

    #[test]
    fn an_enveloped_message_becomes_its_json() {
        let expected = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" },
            "data": { "a": "b" }, "immutable": true });
        assert_eq!(decode("ConfigMap", &config_map()), Ok(expected));
        assert_eq!(decode("Widget", &config_map()), Err(Wrong::UnknownKind));
    }

    /// A Role of the core group, as kubectl writes it: without the empty name it would grant nothing.
    #[test]
    fn what_is_empty_in_a_list_stays_in_it() {
        let type_meta = [field(1, b"rbac.authorization.k8s.io/v1"), field(2, b"Role")].concat();
        let rule = [field(1, b"get"), field(2, b""), field(3, b"pods")].concat();
        let raw = [field(1, &field(1, b"r")), field(2, &rule), field(2, b"")].concat();
        let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
        let rule = json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"] });
        assert_eq!(decode("Role", &body).unwrap()["rules"], json!([rule, {}]));
    }

    /// A Service whose status a load balancer's controller writes.
    #[test]
    fn statuses_are_read() {
        let body = |kind: &[u8], raw: &[u8]| {
            let type_meta = [field(1, b"v1"), field(2, kind)].concat();
            [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
        };
        let stamp = vec![1 << 3, 0xe8, 0x07];
        let port = [vec![1 << 3, 80], field(2, b"TCP")].concat();
        let ingress = [field(1, b"10.0.0.1"), field(2, b""), field(4, &port)].concat();
        let condition = [field(1, b"A"), field(2, b"True"), field(4, &stamp), field(5, b"R")].concat();
        let status = [field(1, &field(1, &ingress)), field(2, &condition)].concat();
        let expected = json!({
            "loadBalancer": { "ingress": [{ "ip": "10.0.0.1", "ports": [{ "port": 80, "protocol": "TCP" }] }] },
            "conditions": [{ "type": "A", "status": "True", "reason": "R",
                "lastTransitionTime": "1970-01-01T00:16:40Z" }],
        });
        assert_eq!(decode("Service", &body(b"Service", &field(3, &status))).unwrap()["status"], expected);
        let condition = [field(1, b"A"), field(2, b"True"), field(4, &stamp), field(6, b"M")].concat();
        let status = [field(1, b"Active"), field(2, &condition)].concat();
        let expected = json!({ "phase": "Active", "conditions": [{ "type": "A", "status": "True",
            "lastTransitionTime": "1970-01-01T00:16:40Z", "message": "M" }] });
        assert_eq!(decode("Namespace", &body(b"Namespace", &field(3, &status))).unwrap()["status"], expected);
    }

    /// A lease as a leader's election writes it.
    #[test]
    fn a_lease_keeps_its_times_to_the_microsecond() {
        let type_meta = [field(1, b"coordination.k8s.io/v1"), field(2, b"Lease")].concat();
        // 1,000 s and 5 ms.
        let stamp = [vec![1 << 3, 0xe8, 0x07], vec![2 << 3, 0xc0, 0x96, 0xb1, 0x02]].concat();
        let spec = [field(1, b"me"), vec![2 << 3, 15], field(4, &stamp), field(3, b"")].concat();
        let raw = [field(1, &field(1, b"l")), field(2, &spec)].concat();
        let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
        let expected = json!({ "holderIdentity": "me", "leaseDurationSeconds": 15,
            "renewTime": "1970-01-01T00:16:40.005000Z" });
        assert_eq!(decode("Lease", &body).unwrap()["spec"], expected);
        let far = [vec![1 << 3], vec![0xff; 9], vec![1]].concat();
        assert!(time(&far, "%Y").is_ok(), "one second before 1970");
        let never = [vec![1 << 3], vec![0xff; 8], vec![0x7f]].concat();
        assert_eq!(time(&never, "%Y"), Err(Wrong::Malformed));
    }

    /// The two groups have one kind's name and different numbers: the envelope says which it is.
    #[test]
    fn an_event_of_either_group_keeps_its_fields() {
        let body = |version: &[u8], fields: &[Vec<u8>]| {
            let type_meta = [field(1, version), field(2, b"Event")].concat();
            [MAGIC.to_vec(), field(1, &type_meta), field(2, &fields.concat())].concat()
        };
        let about = [field(1, b"Service"), field(3, b"hello"), field(7, b"")].concat();
        let stamp = [vec![1 << 3, 0xe8, 0x07], vec![2 << 3, 0xc0, 0x96, 0xb1, 0x02]].concat();
        let series = [vec![1 << 3, 2], field(2, &stamp)].concat();
        let new = [
            field(1, &field(1, b"e")),
            field(2, &stamp),
            field(3, &series),
            field(4, b"example.com/c"),
            field(6, b"Start"),
            field(7, b"Failed"),
            field(8, &about),
            field(10, b"why"),
            field(11, b"Warning"),
            vec![15 << 3, 3],
        ];
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e" },
            "eventTime": "1970-01-01T00:16:40.005000Z", "reportingController": "example.com/c", "action": "Start",
            "series": { "count": 2, "lastObservedTime": "1970-01-01T00:16:40.005000Z" }, "reason": "Failed",
            "regarding": { "kind": "Service", "name": "hello" }, "note": "why", "type": "Warning",
            "deprecatedCount": 3,
        });
        assert_eq!(decode("Event", &body(b"events.k8s.io/v1", &new)), Ok(expected));
        let old = [
            field(2, &about),
            field(3, b"Ready"),
            field(4, b"is ready"),
            field(6, &stamp),
            vec![8 << 3, 3],
            field(9, b"Normal"),
            field(14, b"c"),
        ];
        let expected = json!({
            "apiVersion": "v1", "kind": "Event", "involvedObject": { "kind": "Service", "name": "hello" },
            "reason": "Ready", "message": "is ready", "firstTimestamp": "1970-01-01T00:16:40Z", "count": 3,
            "type": "Normal", "reportingComponent": "c",
        });
        assert_eq!(decode("Event", &body(b"v1", &old)), Ok(expected));
    }

    /// An access review as kubectl's `auth can-i` writes it.
    #[test]
    fn a_review_keeps_what_is_asked() {
        let type_meta = [field(1, b"authorization.k8s.io/v1"), field(2, b"SelfSubjectAccessReview")].concat();
        let asked = [field(1, b"default"), field(2, b"create"), field(5, b"services")].concat();
        let raw = [field(1, &field(1, b"")), field(2, &field(1, &asked)), field(3, &[1 << 3, 0])].concat();
        let body = [MAGIC.to_vec(), field(1, &type_meta), field(2, &raw)].concat();
        let review = decode("SelfSubjectAccessReview", &body).unwrap();
        let attributes = json!({ "namespace": "default", "verb": "create", "resource": "services" });
        assert_eq!(review["spec"], json!({ "resourceAttributes": attributes }));
    }

    #[test]
    fn no_cut_and_no_flipped_byte_does_more_than_be_refused_or_read_differently() {
        let whole = config_map();
        for end in 0..whole.len() {
            let _ = decode("ConfigMap", &whole[..end]);
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[end] ^= 1 << bit;
                let _ = decode("ConfigMap", &flipped);
            }
        }
        for broken in [
            &b""[..],
            b"k8s",
            b"k8s\0\x12\xff",
            b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            b"k8s\0\x0b",
        ] {
            assert_eq!(decode("ConfigMap", broken), Err(Wrong::Malformed), "{broken:?}");
        }
    }
}

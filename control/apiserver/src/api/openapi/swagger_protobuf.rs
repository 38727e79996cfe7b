//! OpenAPI version 2 in protobuf, the only format in which kubectl requests it.
//!
//! The numbers are those of gnostic's `openapi.v2.Document`. Values that have no message type of their own (the
//! extensions) are encoded as YAML text, and JSON is valid YAML.

use serde_json::{Map, Value};

/// A message as it is written.
#[derive(Debug, Default)]
struct ProtobufMessage(Vec<u8>);

/// The whole document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut info = ProtobufMessage::default();
    info.text(1, &document["info"]["title"]);
    info.text(2, &document["info"]["version"]);
    let mut paths = ProtobufMessage::default();
    for (name, item) in fields(&document["paths"]) {
        paths.named(2, name, path(item));
    }
    let mut definitions = ProtobufMessage::default();
    for (name, inner) in fields(&document["definitions"]) {
        definitions.named(1, name, schema(inner));
    }
    let mut whole = ProtobufMessage::default();
    whole.text(1, &document["swagger"]);
    whole.message(2, info);
    whole.message(8, paths);
    whole.message(9, definitions);
    whole.0
}

fn path(item: &Value) -> ProtobufMessage {
    let mut path = ProtobufMessage::default();
    for (number, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(found) = item.get(method) {
            path.message(number, operation(found));
        }
    }
    path
}

fn operation(found: &Value) -> ProtobufMessage {
    let mut operation = ProtobufMessage::default();
    items(&found["produces"]).for_each(|media| operation.text(6, media));
    items(&found["consumes"]).for_each(|media| operation.text(7, media));
    items(&found["parameters"]).for_each(|one| operation.message(8, wrapped(1, parameter(one))));
    let mut responses = ProtobufMessage::default();
    for (code, response) in fields(&found["responses"]) {
        let mut said = ProtobufMessage::default();
        said.text(1, &response["description"]);
        said.message(2, wrapped(1, schema(&response["schema"])));
        responses.named(1, code, wrapped(1, said));
    }
    operation.message(9, responses);
    operation.extensions(13, found);
    operation
}

/// In the body or in the query; there are no others.
fn parameter(found: &Value) -> ProtobufMessage {
    let mut inner = ProtobufMessage::default();
    if found["in"] == "body" {
        inner.text(2, &found["name"]);
        inner.text(3, &found["in"]);
        inner.flag(4, &found["required"]);
        inner.message(5, schema(&found["schema"]));
        return wrapped(1, inner);
    }
    inner.text(2, &found["in"]);
    inner.text(4, &found["name"]);
    inner.text(6, &found["type"]);
    inner.flag(20, &found["uniqueItems"]);
    wrapped(2, wrapped(3, inner))
}

fn schema(found: &Value) -> ProtobufMessage {
    let mut schema = ProtobufMessage::default();
    schema.text(1, &found["$ref"]);
    schema.text(2, &found["format"]);
    schema.text(4, &found["description"]);
    items(&found["required"]).for_each(|name| schema.text(19, name));
    items(&found["enum"]).for_each(|value| schema.message(20, any(value)));
    if let Some(inner) = found.get("additionalProperties") {
        schema.message(21, wrapped(1, self::schema(inner)));
    }
    if found["type"].is_string() {
        let mut types = ProtobufMessage::default();
        types.text(1, &found["type"]);
        schema.message(22, types);
    }
    if let Some(inner) = found.get("items") {
        schema.message(23, wrapped(1, self::schema(inner)));
    }
    if let Some(inner) = found.get("properties") {
        let mut properties = ProtobufMessage::default();
        for (name, inner) in fields(inner) {
            properties.named(1, name, self::schema(inner));
        }
        schema.message(25, properties);
    }
    schema.extensions(31, found);
    schema
}

fn any(value: &Value) -> ProtobufMessage {
    let mut any = ProtobufMessage::default();
    any.bytes(2, value.to_string().as_bytes());
    any
}

fn wrapped(number: u64, inner: ProtobufMessage) -> ProtobufMessage {
    let mut outer = ProtobufMessage::default();
    outer.message(number, inner);
    outer
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl ProtobufMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn bytes(&mut self, number: u64, content: &[u8]) {
        self.varint(number << 3 | 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    fn message(&mut self, number: u64, inner: ProtobufMessage) {
        self.bytes(number, &inner.0);
    }

    /// Nothing if there is no text.
    fn text(&mut self, number: u64, value: &Value) {
        if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn flag(&mut self, number: u64, value: &Value) {
        if *value == true {
            self.varint(number << 3);
            self.varint(1);
        }
    }

    fn named(&mut self, number: u64, name: &str, value: ProtobufMessage) {
        let mut pair = ProtobufMessage::default();
        pair.bytes(1, name.as_bytes());
        pair.message(2, value);
        self.message(number, pair);
    }

    /// Everything whose name begins with `x-`.
    fn extensions(&mut self, number: u64, found: &Value) {
        for (name, value) in fields(found).filter(|(name, _)| name.starts_with("x-")) {
            self.named(number, name, any(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Written from the message's definition.
    #[test]
    fn a_document_has_the_numbers_of_its_message() {
        let gvk = json!({ "x-kubernetes-group-version-kind": 1 });
        let document = json!({
            "swagger": "2.0", "info": { "title": "T", "version": "1" },
            "paths": { "/a": { "patch": {
                "parameters": [{ "name": "dryRun", "in": "query", "type": "string", "uniqueItems": true }],
                "x-kubernetes-group-version-kind": 1,
            } } },
            "definitions": { "K": { "type": "object", "properties": { "m": { "$ref": "#/definitions/M" } } } },
        });
        let field =
            |number: u8, content: &[u8]| [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat();
        let query = [field(2, b"query"), field(4, b"dryRun"), field(6, b"string"), vec![0xa0, 1, 1]].concat();
        let parameter = field(8, &field(1, &field(2, &field(3, &query))));
        let extension = [field(1, b"x-kubernetes-group-version-kind"), field(2, &field(2, b"1"))].concat();
        let patch = [parameter, field(9, b""), field(13, &extension)].concat();
        let paths = field(2, &[field(1, b"/a"), field(2, &field(8, &patch))].concat());
        let property = [field(1, b"m"), field(2, &field(1, b"#/definitions/M"))].concat();
        // 22 and 25 take two bytes.
        let kind = [&[0xb2, 1, 8], field(1, b"object").as_slice(), &[0xca, 1, 24], &field(1, &property)].concat();
        let definitions = field(1, &[field(1, b"K"), field(2, &kind)].concat());
        let expected = [
            field(1, b"2.0"),
            field(2, &[field(1, b"T"), field(2, b"1")].concat()),
            field(8, &paths),
            field(9, &definitions),
        ];
        assert_eq!(encode(&document), expected.concat());
        assert_eq!(schema(&gvk).0[..3], [0xfa, 1, 38]);
    }

    #[test]
    fn a_length_takes_as_many_bytes_as_it_needs() {
        for (value, expected) in [(0, vec![0]), (127, vec![0x7f]), (128, vec![0x80, 1]), (300, vec![0xac, 2])] {
            let mut message = ProtobufMessage::default();
            message.varint(value);
            assert_eq!(message.0, expected);
        }
    }
}

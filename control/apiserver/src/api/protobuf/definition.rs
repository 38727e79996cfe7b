//! Field numbers of CustomResourceDefinitions in protobuf, and of their recursive schemas.
//!
//! Typed clients send CustomResourceDefinitions in this format by default.

use serde_json::Value;

use super::field::{FieldShape, METADATA, ProtobufField, SchemaPosition, many, one, text};
use super::wire::{ProtobufError, ProtobufReader, WireValue, text as words};
use super::{SCHEMA_DEPTH_MAX, message};

/// What is at `place`, within `depth` other schemas.
pub(super) fn read(place: SchemaPosition, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    if depth >= SCHEMA_DEPTH_MAX {
        return Err(ProtobufError::TooDeep);
    }
    if place == SchemaPosition::Schema || place == SchemaPosition::Map {
        return message(SCHEMA, bytes, depth + 1);
    }
    let (mut schema, mut list, mut allows, mut raw): (_, Vec<Value>, _, &[u8]) = (Value::Null, Vec::new(), false, &[]);
    let mut reader = ProtobufReader { remaining: bytes };
    while let Some((number, part)) = reader.next()? {
        match (place, number, part) {
            (SchemaPosition::SchemaOrBool, 1, WireValue::Number(said)) => allows = said != 0,
            (SchemaPosition::SchemaOrBool, 2, WireValue::Bytes(bytes))
            | (SchemaPosition::SchemaOrList | SchemaPosition::SchemaOrStringListMap, 1, WireValue::Bytes(bytes)) => {
                schema = message(SCHEMA, bytes, depth + 1)?;
            }
            (SchemaPosition::SchemaOrList, 2, WireValue::Bytes(bytes)) => list.push(message(SCHEMA, bytes, depth + 1)?),
            (SchemaPosition::SchemaOrStringListMap, 2, WireValue::Bytes(bytes)) => list.push(words(bytes)?.into()),
            (SchemaPosition::Json, 1, WireValue::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    Ok(match place {
        SchemaPosition::Json if raw.is_empty() => Value::Null,
        SchemaPosition::Json => serde_json::from_slice(raw).map_err(|_| ProtobufError::Malformed)?,
        _ if !list.is_empty() => list.into(),
        SchemaPosition::SchemaOrBool if schema.is_null() => allows.into(),
        _ => schema,
    })
}

const NAMES: FieldShape = FieldShape::Message(&[
    text(1, "plural"),
    text(2, "singular"),
    many(3, "shortNames", FieldShape::Text),
    text(4, "kind"),
    text(5, "listKind"),
    many(6, "categories", FieldShape::Text),
]);

const CONVERSION: FieldShape = FieldShape::MessageOrNone(&[
    text(1, "strategy"),
    one(
        2,
        "webhook",
        FieldShape::MessageOrNone(&[
            one(
                2,
                "clientConfig",
                FieldShape::MessageOrNone(&[
                    one(
                        1,
                        "service",
                        FieldShape::MessageOrNone(&[
                            text(1, "namespace"),
                            text(2, "name"),
                            text(3, "path"),
                            one(4, "port", FieldShape::Number),
                        ]),
                    ),
                    one(2, "caBundle", FieldShape::Bytes),
                    text(3, "url"),
                ]),
            ),
            many(3, "conversionReviewVersions", FieldShape::Text),
        ]),
    ),
]);

const COLUMN: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    text(2, "type"),
    text(3, "format"),
    text(4, "description"),
    one(5, "priority", FieldShape::OptionalNumber),
    text(6, "jsonPath"),
]);

const SUBRESOURCES: FieldShape = FieldShape::MessageOrNone(&[
    one(1, "status", FieldShape::MessageOrNone(&[])),
    one(
        2,
        "scale",
        FieldShape::MessageOrNone(&[
            text(1, "specReplicasPath"),
            text(2, "statusReplicasPath"),
            text(3, "labelSelectorPath"),
        ]),
    ),
]);

const VERSION: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    one(2, "served", FieldShape::Bool),
    one(3, "storage", FieldShape::Bool),
    one(
        4,
        "schema",
        FieldShape::MessageOrNone(&[one(1, "openAPIV3Schema", FieldShape::Schema(SchemaPosition::Schema))]),
    ),
    one(5, "subresources", SUBRESOURCES),
    many(6, "additionalPrinterColumns", COLUMN),
    one(7, "deprecated", FieldShape::OptionalBool),
    text(8, "deprecationWarning"),
    many(9, "selectableFields", FieldShape::Message(&[text(1, "jsonPath")])),
]);

pub(super) const DEFINITION: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            text(1, "group"),
            one(3, "names", NAMES),
            text(4, "scope"),
            many(7, "versions", VERSION),
            one(9, "conversion", CONVERSION),
            one(10, "preserveUnknownFields", FieldShape::OptionalBool),
        ]),
    ),
    one(
        3,
        "status",
        FieldShape::Message(&[
            many(
                1,
                "conditions",
                FieldShape::Message(&[
                    text(1, "type"),
                    text(2, "status"),
                    one(3, "lastTransitionTime", FieldShape::Time),
                    text(4, "reason"),
                    text(5, "message"),
                    one(6, "observedGeneration", FieldShape::OptionalNumber),
                ]),
            ),
            one(2, "acceptedNames", NAMES),
            many(3, "storedVersions", FieldShape::Text),
            one(4, "observedGeneration", FieldShape::OptionalNumber),
        ]),
    ),
];

const SCHEMA: &[ProtobufField] = &[
    text(1, "id"),
    text(2, "$schema"),
    text(3, "$ref"),
    text(4, "description"),
    text(5, "type"),
    text(6, "format"),
    text(7, "title"),
    one(8, "default", FieldShape::Schema(SchemaPosition::Json)),
    one(9, "maximum", FieldShape::Double),
    one(10, "exclusiveMaximum", FieldShape::OptionalBool),
    one(11, "minimum", FieldShape::Double),
    one(12, "exclusiveMinimum", FieldShape::OptionalBool),
    one(13, "maxLength", FieldShape::Number),
    one(14, "minLength", FieldShape::Number),
    text(15, "pattern"),
    one(16, "maxItems", FieldShape::Number),
    one(17, "minItems", FieldShape::Number),
    one(18, "uniqueItems", FieldShape::OptionalBool),
    one(19, "multipleOf", FieldShape::Double),
    many(20, "enum", FieldShape::Schema(SchemaPosition::Json)),
    one(21, "maxProperties", FieldShape::Number),
    one(22, "minProperties", FieldShape::Number),
    many(23, "required", FieldShape::Text),
    one(24, "items", FieldShape::Schema(SchemaPosition::SchemaOrList)),
    many(25, "allOf", FieldShape::Schema(SchemaPosition::Schema)),
    many(26, "oneOf", FieldShape::Schema(SchemaPosition::Schema)),
    many(27, "anyOf", FieldShape::Schema(SchemaPosition::Schema)),
    one(28, "not", FieldShape::Schema(SchemaPosition::Schema)),
    one(29, "properties", FieldShape::Schema(SchemaPosition::Map)),
    one(30, "additionalProperties", FieldShape::Schema(SchemaPosition::SchemaOrBool)),
    one(31, "patternProperties", FieldShape::Schema(SchemaPosition::Map)),
    one(32, "dependencies", FieldShape::Schema(SchemaPosition::SchemaOrStringListMap)),
    one(33, "additionalItems", FieldShape::Schema(SchemaPosition::SchemaOrBool)),
    one(34, "definitions", FieldShape::Schema(SchemaPosition::Map)),
    one(35, "externalDocs", FieldShape::MessageOrNone(&[text(1, "description"), text(2, "url")])),
    one(36, "example", FieldShape::Schema(SchemaPosition::Json)),
    one(37, "nullable", FieldShape::OptionalBool),
    one(38, "x-kubernetes-preserve-unknown-fields", FieldShape::Bool),
    one(39, "x-kubernetes-embedded-resource", FieldShape::OptionalBool),
    one(40, "x-kubernetes-int-or-string", FieldShape::OptionalBool),
    many(41, "x-kubernetes-list-map-keys", FieldShape::Text),
    text(42, "x-kubernetes-list-type"),
    text(43, "x-kubernetes-map-type"),
    many(
        44,
        "x-kubernetes-validations",
        FieldShape::Message(&[
            text(1, "rule"),
            text(2, "message"),
            text(3, "messageExpression"),
            text(4, "reason"),
            text(5, "fieldPath"),
            one(6, "optionalOldSelf", FieldShape::Bool),
        ]),
    ),
];

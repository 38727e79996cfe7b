//! Definitions of kinds by protobuf: field numbers, and schemas, which hold each other.
//!
//! Typed clients send CustomResourceDefinitions this way without asking.

use serde_json::Value;

use super::protobuf::{Part, Reader, SCHEMA_DEPTH_MAX, Wrong, message, text as words};
use super::protobuf_fields::{Field, METADATA, Place, Shape, many, one, text};

/// What stands at `place`, within `depth` other schemas.
pub(super) fn read(place: Place, bytes: &[u8], depth: usize) -> Result<Value, Wrong> {
    if depth >= SCHEMA_DEPTH_MAX {
        return Err(Wrong::TooDeep);
    }
    if place == Place::Whole || place == Place::Map {
        return message(SCHEMA, bytes, depth + 1);
    }
    let (mut schema, mut list, mut allows, mut raw): (_, Vec<Value>, _, &[u8]) =
        (Value::Null, Vec::new(), false, &[]);
    let mut reader = Reader { rest: bytes };
    while let Some((number, part)) = reader.next()? {
        match (place, number, part) {
            (Place::OrBool, 1, Part::Number(said)) => allows = said != 0,
            (Place::OrBool, 2, Part::Bytes(bytes))
            | (Place::OrList | Place::OrTextsMap, 1, Part::Bytes(bytes)) => {
                schema = message(SCHEMA, bytes, depth + 1)?;
            }
            (Place::OrList, 2, Part::Bytes(bytes)) => list.push(message(SCHEMA, bytes, depth + 1)?),
            (Place::OrTextsMap, 2, Part::Bytes(bytes)) => list.push(words(bytes)?.into()),
            (Place::Json, 1, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    Ok(match place {
        Place::Json if raw.is_empty() => Value::Null,
        Place::Json => serde_json::from_slice(raw).map_err(|_| Wrong::Malformed)?,
        _ if !list.is_empty() => list.into(),
        Place::OrBool if schema.is_null() => allows.into(),
        _ => schema,
    })
}

const NAMES: Shape = Shape::Message(&[
    text(1, "plural"),
    text(2, "singular"),
    many(3, "shortNames", Shape::Text),
    text(4, "kind"),
    text(5, "listKind"),
    many(6, "categories", Shape::Text),
]);

const CONVERSION: Shape = Shape::MessageOrNone(&[
    text(1, "strategy"),
    one(
        2,
        "webhook",
        Shape::MessageOrNone(&[
            one(
                2,
                "clientConfig",
                Shape::MessageOrNone(&[
                    one(
                        1,
                        "service",
                        Shape::MessageOrNone(&[
                            text(1, "namespace"),
                            text(2, "name"),
                            text(3, "path"),
                            one(4, "port", Shape::NumberOrNone),
                        ]),
                    ),
                    one(2, "caBundle", Shape::Bytes),
                    text(3, "url"),
                ]),
            ),
            many(3, "conversionReviewVersions", Shape::Text),
        ]),
    ),
]);

const COLUMN: Shape = Shape::Message(&[
    text(1, "name"),
    text(2, "type"),
    text(3, "format"),
    text(4, "description"),
    one(5, "priority", Shape::Number),
    text(6, "jsonPath"),
]);

const SUBRESOURCES: Shape = Shape::MessageOrNone(&[
    one(1, "status", Shape::MessageOrNone(&[])),
    one(
        2,
        "scale",
        Shape::MessageOrNone(&[
            text(1, "specReplicasPath"),
            text(2, "statusReplicasPath"),
            text(3, "labelSelectorPath"),
        ]),
    ),
]);

const VERSION: Shape = Shape::Message(&[
    text(1, "name"),
    one(2, "served", Shape::Bool),
    one(3, "storage", Shape::Bool),
    one(4, "schema", Shape::MessageOrNone(&[one(1, "openAPIV3Schema", Shape::Schema(Place::Whole))])),
    one(5, "subresources", SUBRESOURCES),
    many(6, "additionalPrinterColumns", COLUMN),
    one(7, "deprecated", Shape::Flag),
    text(8, "deprecationWarning"),
    many(9, "selectableFields", Shape::Message(&[text(1, "jsonPath")])),
]);

pub(super) const DEFINITION: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Shape::Message(&[
            text(1, "group"),
            one(3, "names", NAMES),
            text(4, "scope"),
            many(7, "versions", VERSION),
            one(9, "conversion", CONVERSION),
            one(10, "preserveUnknownFields", Shape::Flag),
        ]),
    ),
    one(
        3,
        "status",
        Shape::Message(&[
            many(
                1,
                "conditions",
                Shape::Message(&[
                    text(1, "type"),
                    text(2, "status"),
                    one(3, "lastTransitionTime", Shape::Time),
                    text(4, "reason"),
                    text(5, "message"),
                    one(6, "observedGeneration", Shape::Number),
                ]),
            ),
            one(2, "acceptedNames", NAMES),
            many(3, "storedVersions", Shape::Text),
            one(4, "observedGeneration", Shape::Number),
        ]),
    ),
];

const SCHEMA: &[Field] = &[
    text(1, "id"),
    text(2, "$schema"),
    text(3, "$ref"),
    text(4, "description"),
    text(5, "type"),
    text(6, "format"),
    text(7, "title"),
    one(8, "default", Shape::Schema(Place::Json)),
    one(9, "maximum", Shape::Double),
    one(10, "exclusiveMaximum", Shape::Flag),
    one(11, "minimum", Shape::Double),
    one(12, "exclusiveMinimum", Shape::Flag),
    one(13, "maxLength", Shape::NumberOrNone),
    one(14, "minLength", Shape::NumberOrNone),
    text(15, "pattern"),
    one(16, "maxItems", Shape::NumberOrNone),
    one(17, "minItems", Shape::NumberOrNone),
    one(18, "uniqueItems", Shape::Flag),
    one(19, "multipleOf", Shape::Double),
    many(20, "enum", Shape::Schema(Place::Json)),
    one(21, "maxProperties", Shape::NumberOrNone),
    one(22, "minProperties", Shape::NumberOrNone),
    many(23, "required", Shape::Text),
    one(24, "items", Shape::Schema(Place::OrList)),
    many(25, "allOf", Shape::Schema(Place::Whole)),
    many(26, "oneOf", Shape::Schema(Place::Whole)),
    many(27, "anyOf", Shape::Schema(Place::Whole)),
    one(28, "not", Shape::Schema(Place::Whole)),
    one(29, "properties", Shape::Schema(Place::Map)),
    one(30, "additionalProperties", Shape::Schema(Place::OrBool)),
    one(31, "patternProperties", Shape::Schema(Place::Map)),
    one(32, "dependencies", Shape::Schema(Place::OrTextsMap)),
    one(33, "additionalItems", Shape::Schema(Place::OrBool)),
    one(34, "definitions", Shape::Schema(Place::Map)),
    one(35, "externalDocs", Shape::MessageOrNone(&[text(1, "description"), text(2, "url")])),
    one(36, "example", Shape::Schema(Place::Json)),
    one(37, "nullable", Shape::Flag),
    one(38, "x-kubernetes-preserve-unknown-fields", Shape::Bool),
    one(39, "x-kubernetes-embedded-resource", Shape::Flag),
    one(40, "x-kubernetes-int-or-string", Shape::Flag),
    many(41, "x-kubernetes-list-map-keys", Shape::Text),
    text(42, "x-kubernetes-list-type"),
    text(43, "x-kubernetes-map-type"),
    many(
        44,
        "x-kubernetes-validations",
        Shape::Message(&[
            text(1, "rule"),
            text(2, "message"),
            text(3, "messageExpression"),
            text(4, "reason"),
            text(5, "fieldPath"),
            one(6, "optionalOldSelf", Shape::Bool),
        ]),
    ),
];

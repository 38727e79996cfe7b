//! A field of a protobuf message: its number, its name in JSON, and how its content is decoded.

/// How a field's content is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldShape {
    Text,
    Bool,
    /// False = left out.
    OptionalBool,
    /// 0 = left out.
    OptionalNumber,
    /// 0 counts.
    Number,
    IntOrString,
    Double,
    /// Base64 in JSON.
    Bytes,
    TextMap,
    /// Values are base64 in JSON.
    BytesMap,
    /// An amount, which JSON has as text.
    Quantity,
    QuantityMap,
    /// Its fields stand among those of what it is in, and have no name together.
    Inline(&'static [ProtobufField]),
    /// Seconds and nanoseconds; JSON has whole seconds.
    Time,
    /// The same; JSON has microseconds.
    MicroTime,
    /// Empty = left out.
    Message(&'static [ProtobufField]),
    /// An empty one counts.
    MessageOrNone(&'static [ProtobufField]),
    /// What a definition says of its kind's objects.
    Schema(SchemaPosition),
}

/// How a schema is in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaPosition {
    Schema,
    /// A map by the names of fields.
    Map,
    SchemaOrBool,
    SchemaOrList,
    /// A map by the names of fields, each a schema or a list of texts.
    SchemaOrStringListMap,
    /// No schema but any JSON, as text.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProtobufField {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) shape: FieldShape,
    pub(super) repeated: bool,
}

pub(super) const fn one(number: u64, name: &'static str, shape: FieldShape) -> ProtobufField {
    ProtobufField { number, name, shape, repeated: false }
}

pub(super) const fn text(number: u64, name: &'static str) -> ProtobufField {
    one(number, name, FieldShape::Text)
}

pub(super) const fn many(number: u64, name: &'static str, shape: FieldShape) -> ProtobufField {
    ProtobufField { number, name, shape, repeated: true }
}

/// The envelope of every message, as far as it is needed.
pub(super) const ENVELOPE: &[ProtobufField] =
    &[one(1, "type", FieldShape::Message(&[text(1, "apiVersion"), text(2, "kind")]))];

pub(super) const METADATA: ProtobufField = one(
    1,
    "metadata",
    FieldShape::Message(&[
        text(1, "name"),
        text(2, "generateName"),
        text(3, "namespace"),
        text(5, "uid"),
        text(6, "resourceVersion"),
        one(7, "generation", FieldShape::OptionalNumber),
        one(11, "labels", FieldShape::TextMap),
        one(12, "annotations", FieldShape::TextMap),
        many(
            13,
            "ownerReferences",
            FieldShape::Message(&[
                text(1, "kind"),
                text(3, "name"),
                text(4, "uid"),
                text(5, "apiVersion"),
                one(6, "controller", FieldShape::Bool),
                one(7, "blockOwnerDeletion", FieldShape::Bool),
            ]),
        ),
        many(14, "finalizers", FieldShape::Text),
    ]),
);

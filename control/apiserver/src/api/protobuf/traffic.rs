//! Field numbers of the objects that controllers write all the time: events, leases, endpoints.

use super::field::{FieldShape, METADATA, ProtobufField, many, one, text};

/// The message of a group's kind; `None` when it is not known here.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static [ProtobufField]> {
    match (group, kind) {
        ("", "Event") => Some(EVENT),
        ("events.k8s.io", "Event") => Some(EVENTS_V1_EVENT),
        ("coordination.k8s.io", "Lease") => Some(LEASE),
        ("", "Endpoints") => Some(ENDPOINTS),
        ("discovery.k8s.io", "EndpointSlice") => Some(ENDPOINT_SLICE),
        _ => None,
    }
}

pub(super) const REFERENCE: FieldShape = FieldShape::Message(&[
    text(1, "kind"),
    text(2, "namespace"),
    text(3, "name"),
    text(4, "uid"),
    text(5, "apiVersion"),
    text(6, "resourceVersion"),
    text(7, "fieldPath"),
]);

const SERIES: FieldShape = FieldShape::Message(&[
    one(1, "count", FieldShape::OptionalNumber),
    one(2, "lastObservedTime", FieldShape::MicroTime),
]);
const SOURCE: FieldShape = FieldShape::Message(&[text(1, "component"), text(2, "host")]);

const EVENT: &[ProtobufField] = &[
    METADATA,
    one(2, "involvedObject", REFERENCE),
    text(3, "reason"),
    text(4, "message"),
    one(5, "source", SOURCE),
    one(6, "firstTimestamp", FieldShape::Time),
    one(7, "lastTimestamp", FieldShape::Time),
    one(8, "count", FieldShape::OptionalNumber),
    text(9, "type"),
    one(10, "eventTime", FieldShape::MicroTime),
    one(11, "series", SERIES),
    text(12, "action"),
    one(13, "related", REFERENCE),
    text(14, "reportingComponent"),
    text(15, "reportingInstance"),
];

/// Events as the newer group has them.
const EVENTS_V1_EVENT: &[ProtobufField] = &[
    METADATA,
    one(2, "eventTime", FieldShape::MicroTime),
    one(3, "series", SERIES),
    text(4, "reportingController"),
    text(5, "reportingInstance"),
    text(6, "action"),
    text(7, "reason"),
    one(8, "regarding", REFERENCE),
    one(9, "related", REFERENCE),
    text(10, "note"),
    text(11, "type"),
    one(12, "deprecatedSource", SOURCE),
    one(13, "deprecatedFirstTimestamp", FieldShape::Time),
    one(14, "deprecatedLastTimestamp", FieldShape::Time),
    one(15, "deprecatedCount", FieldShape::OptionalNumber),
];

const LEASE: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            text(1, "holderIdentity"),
            one(2, "leaseDurationSeconds", FieldShape::Number),
            one(3, "acquireTime", FieldShape::MicroTime),
            one(4, "renewTime", FieldShape::MicroTime),
            one(5, "leaseTransitions", FieldShape::Number),
            text(6, "strategy"),
            text(7, "preferredHolder"),
        ]),
    ),
];

const ADDRESS: FieldShape =
    FieldShape::Message(&[text(1, "ip"), one(2, "targetRef", REFERENCE), text(3, "hostname"), text(4, "nodeName")]);

const ENDPOINTS: &[ProtobufField] = &[
    METADATA,
    many(
        2,
        "subsets",
        FieldShape::Message(&[
            many(1, "addresses", ADDRESS),
            many(2, "notReadyAddresses", ADDRESS),
            many(
                3,
                "ports",
                FieldShape::Message(&[
                    text(1, "name"),
                    one(2, "port", FieldShape::OptionalNumber),
                    text(3, "protocol"),
                    text(4, "appProtocol"),
                ]),
            ),
        ]),
    ),
];

const NAMED: FieldShape = FieldShape::Message(&[text(1, "name")]);

const ENDPOINT_SLICE: &[ProtobufField] = &[
    METADATA,
    many(
        2,
        "endpoints",
        FieldShape::Message(&[
            many(1, "addresses", FieldShape::Text),
            one(
                2,
                "conditions",
                FieldShape::Message(&[
                    one(1, "ready", FieldShape::Bool),
                    one(2, "serving", FieldShape::Bool),
                    one(3, "terminating", FieldShape::Bool),
                ]),
            ),
            text(3, "hostname"),
            one(4, "targetRef", REFERENCE),
            one(5, "deprecatedTopology", FieldShape::TextMap),
            text(6, "nodeName"),
            text(7, "zone"),
            one(8, "hints", FieldShape::Message(&[many(1, "forZones", NAMED), many(2, "forNodes", NAMED)])),
        ]),
    ),
    many(
        3,
        "ports",
        FieldShape::Message(&[
            text(1, "name"),
            text(2, "protocol"),
            one(3, "port", FieldShape::Number),
            text(4, "appProtocol"),
        ]),
    ),
    text(4, "addressType"),
];

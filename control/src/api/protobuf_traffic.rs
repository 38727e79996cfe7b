//! Field numbers of what controllers write all the time: events, leases, endpoints.

use super::protobuf_fields::{Field, METADATA, Shape, many, one, text};

/// The message of a group's kind; `None` when it is not known here.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static [Field]> {
    match (group, kind) {
        ("", "Event") => Some(EVENT),
        ("events.k8s.io", "Event") => Some(NEWS),
        ("coordination.k8s.io", "Lease") => Some(LEASE),
        ("", "Endpoints") => Some(ENDPOINTS),
        ("discovery.k8s.io", "EndpointSlice") => Some(ENDPOINT_SLICE),
        _ => None,
    }
}

pub(super) const REFERENCE: Shape = Shape::Message(&[
    text(1, "kind"),
    text(2, "namespace"),
    text(3, "name"),
    text(4, "uid"),
    text(5, "apiVersion"),
    text(6, "resourceVersion"),
    text(7, "fieldPath"),
]);

const SERIES: Shape =
    Shape::Message(&[one(1, "count", Shape::Number), one(2, "lastObservedTime", Shape::MicroTime)]);
const SOURCE: Shape = Shape::Message(&[text(1, "component"), text(2, "host")]);

const EVENT: &[Field] = &[
    METADATA,
    one(2, "involvedObject", REFERENCE),
    text(3, "reason"),
    text(4, "message"),
    one(5, "source", SOURCE),
    one(6, "firstTimestamp", Shape::Time),
    one(7, "lastTimestamp", Shape::Time),
    one(8, "count", Shape::Number),
    text(9, "type"),
    one(10, "eventTime", Shape::MicroTime),
    one(11, "series", SERIES),
    text(12, "action"),
    one(13, "related", REFERENCE),
    text(14, "reportingComponent"),
    text(15, "reportingInstance"),
];

/// Events as the newer group has them.
const NEWS: &[Field] = &[
    METADATA,
    one(2, "eventTime", Shape::MicroTime),
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
    one(13, "deprecatedFirstTimestamp", Shape::Time),
    one(14, "deprecatedLastTimestamp", Shape::Time),
    one(15, "deprecatedCount", Shape::Number),
];

const LEASE: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Shape::Message(&[
            text(1, "holderIdentity"),
            one(2, "leaseDurationSeconds", Shape::NumberOrNone),
            one(3, "acquireTime", Shape::MicroTime),
            one(4, "renewTime", Shape::MicroTime),
            one(5, "leaseTransitions", Shape::NumberOrNone),
            text(6, "strategy"),
            text(7, "preferredHolder"),
        ]),
    ),
];

const ADDRESS: Shape = Shape::Message(&[
    text(1, "ip"),
    one(2, "targetRef", REFERENCE),
    text(3, "hostname"),
    text(4, "nodeName"),
]);

const ENDPOINTS: &[Field] = &[
    METADATA,
    many(
        2,
        "subsets",
        Shape::Message(&[
            many(1, "addresses", ADDRESS),
            many(2, "notReadyAddresses", ADDRESS),
            many(
                3,
                "ports",
                Shape::Message(&[
                    text(1, "name"),
                    one(2, "port", Shape::Number),
                    text(3, "protocol"),
                    text(4, "appProtocol"),
                ]),
            ),
        ]),
    ),
];

const NAMED: Shape = Shape::Message(&[text(1, "name")]);

const ENDPOINT_SLICE: &[Field] = &[
    METADATA,
    many(
        2,
        "endpoints",
        Shape::Message(&[
            many(1, "addresses", Shape::Text),
            one(
                2,
                "conditions",
                Shape::Message(&[
                    one(1, "ready", Shape::Bool),
                    one(2, "serving", Shape::Bool),
                    one(3, "terminating", Shape::Bool),
                ]),
            ),
            text(3, "hostname"),
            one(4, "targetRef", REFERENCE),
            one(5, "deprecatedTopology", Shape::TextMap),
            text(6, "nodeName"),
            text(7, "zone"),
            one(8, "hints", Shape::Message(&[many(1, "forZones", NAMED), many(2, "forNodes", NAMED)])),
        ]),
    ),
    many(
        3,
        "ports",
        Shape::Message(&[
            text(1, "name"),
            text(2, "protocol"),
            one(3, "port", Shape::NumberOrNone),
            text(4, "appProtocol"),
        ]),
    ),
    text(4, "addressType"),
];

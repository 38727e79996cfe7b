//! Field numbers of the protobuf messages of core kinds.
//!
//! Fields that only the server sets (times, managed fields) are left out: they are ignored anyway.

use super::definition::DEFINITION;
use super::field::{FieldShape, METADATA, ProtobufField, many, one, text};
use super::{traffic, workload_messages};

/// The message of a group's kind; `None` when it is not known here.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static [ProtobufField]> {
    match (group, kind) {
        // Each group has them by its own name.
        (_, "DeleteOptions") => Some(DELETE_OPTIONS),
        ("", "Namespace") => Some(NAMESPACE),
        ("", "ConfigMap") => Some(CONFIG_MAP),
        ("", "Secret") => Some(SECRET),
        ("", "Service") => Some(SERVICE),
        ("", "ServiceAccount") => Some(SERVICE_ACCOUNT),
        ("rbac.authorization.k8s.io", "Role") => Some(ROLE),
        ("rbac.authorization.k8s.io", "ClusterRole") => Some(CLUSTER_ROLE),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => Some(ROLE_BINDING),
        ("authorization.k8s.io", "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview") => {
            Some(ACCESS_REVIEW)
        }
        ("authorization.k8s.io", "SelfSubjectRulesReview") => Some(RULES_REVIEW),
        ("authentication.k8s.io", "TokenRequest") => Some(TOKEN_REQUEST),
        ("authentication.k8s.io", "SelfSubjectReview") => Some(SUBJECT_REVIEW),
        ("authentication.k8s.io", "TokenReview") => Some(TOKEN_REVIEW),
        ("autoscaling", "Scale") => Some(SCALE),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Some(DEFINITION),
        _ => traffic::message_of(group, kind).or_else(|| workload_messages::message_of(group, kind)),
    }
}

const NAMESPACE: &[ProtobufField] = &[
    METADATA,
    one(2, "spec", FieldShape::Message(&[many(1, "finalizers", FieldShape::Text)])),
    one(
        3,
        "status",
        FieldShape::Message(&[
            text(1, "phase"),
            many(
                2,
                "conditions",
                FieldShape::Message(&[
                    text(1, "type"),
                    text(2, "status"),
                    one(4, "lastTransitionTime", FieldShape::Time),
                    text(5, "reason"),
                    text(6, "message"),
                ]),
            ),
        ]),
    ),
];

const CONFIG_MAP: &[ProtobufField] = &[
    METADATA,
    one(2, "data", FieldShape::TextMap),
    one(3, "binaryData", FieldShape::BytesMap),
    one(4, "immutable", FieldShape::Bool),
];

const SECRET: &[ProtobufField] = &[
    METADATA,
    one(2, "data", FieldShape::BytesMap),
    text(3, "type"),
    one(4, "stringData", FieldShape::TextMap),
    one(5, "immutable", FieldShape::Bool),
];

const SESSION_AFFINITY: FieldShape =
    FieldShape::Message(&[one(1, "clientIP", FieldShape::Message(&[one(1, "timeoutSeconds", FieldShape::Number)]))]);

const SERVICE: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            many(
                1,
                "ports",
                FieldShape::Message(&[
                    text(1, "name"),
                    text(2, "protocol"),
                    one(3, "port", FieldShape::OptionalNumber),
                    one(4, "targetPort", FieldShape::IntOrString),
                    one(5, "nodePort", FieldShape::OptionalNumber),
                    text(6, "appProtocol"),
                ]),
            ),
            one(2, "selector", FieldShape::TextMap),
            text(3, "clusterIP"),
            text(4, "type"),
            many(5, "externalIPs", FieldShape::Text),
            text(7, "sessionAffinity"),
            text(8, "loadBalancerIP"),
            many(9, "loadBalancerSourceRanges", FieldShape::Text),
            text(10, "externalName"),
            text(11, "externalTrafficPolicy"),
            one(12, "healthCheckNodePort", FieldShape::OptionalNumber),
            one(13, "publishNotReadyAddresses", FieldShape::OptionalBool),
            one(14, "sessionAffinityConfig", SESSION_AFFINITY),
            text(17, "ipFamilyPolicy"),
            many(18, "clusterIPs", FieldShape::Text),
            many(19, "ipFamilies", FieldShape::Text),
            one(20, "allocateLoadBalancerNodePorts", FieldShape::Bool),
            text(21, "loadBalancerClass"),
            text(22, "internalTrafficPolicy"),
            text(23, "trafficDistribution"),
        ]),
    ),
    one(3, "status", FieldShape::Message(&[one(1, "loadBalancer", BALANCED), many(2, "conditions", CONDITION)])),
];

const BALANCED: FieldShape = FieldShape::Message(&[many(
    1,
    "ingress",
    FieldShape::Message(&[
        text(1, "ip"),
        text(2, "hostname"),
        text(3, "ipMode"),
        many(
            4,
            "ports",
            FieldShape::Message(&[one(1, "port", FieldShape::OptionalNumber), text(2, "protocol"), text(3, "error")]),
        ),
    ]),
)]);

const CONDITION: FieldShape = FieldShape::Message(&[
    text(1, "type"),
    text(2, "status"),
    one(3, "observedGeneration", FieldShape::OptionalNumber),
    one(4, "lastTransitionTime", FieldShape::Time),
    text(5, "reason"),
    text(6, "message"),
]);

const SERVICE_ACCOUNT: &[ProtobufField] = &[
    METADATA,
    many(2, "secrets", traffic::REFERENCE),
    many(3, "imagePullSecrets", FieldShape::Message(&[text(1, "name")])),
    one(4, "automountServiceAccountToken", FieldShape::Bool),
];

/// A lifetime of zero is not asked for.
const TOKEN_REQUEST: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            many(1, "audiences", FieldShape::Text),
            one(
                3,
                "boundObjectRef",
                FieldShape::Message(&[text(1, "kind"), text(2, "apiVersion"), text(3, "name"), text(4, "uid")]),
            ),
            one(4, "expirationSeconds", FieldShape::OptionalNumber),
        ]),
    ),
];

const DELETE_OPTIONS: &[ProtobufField] = &[
    one(1, "gracePeriodSeconds", FieldShape::Number),
    one(2, "preconditions", FieldShape::Message(&[text(1, "uid"), text(2, "resourceVersion")])),
    one(3, "orphanDependents", FieldShape::Bool),
    text(4, "propagationPolicy"),
    many(5, "dryRun", FieldShape::Text),
];

const RULES: ProtobufField = many(
    2,
    "rules",
    FieldShape::Message(&[
        many(1, "verbs", FieldShape::Text),
        many(2, "apiGroups", FieldShape::Text),
        many(3, "resources", FieldShape::Text),
        many(4, "resourceNames", FieldShape::Text),
        many(5, "nonResourceURLs", FieldShape::Text),
    ]),
);

const ROLE: &[ProtobufField] = &[METADATA, RULES];

const CLUSTER_ROLE: &[ProtobufField] = &[
    METADATA,
    RULES,
    one(
        3,
        "aggregationRule",
        FieldShape::Message(&[many(
            1,
            "clusterRoleSelectors",
            FieldShape::Message(&[
                one(1, "matchLabels", FieldShape::TextMap),
                many(
                    2,
                    "matchExpressions",
                    FieldShape::Message(&[text(1, "key"), text(2, "operator"), many(3, "values", FieldShape::Text)]),
                ),
            ]),
        )]),
    ),
];

const ROLE_BINDING: &[ProtobufField] = &[
    METADATA,
    many(
        2,
        "subjects",
        FieldShape::Message(&[text(1, "kind"), text(2, "apiGroup"), text(3, "name"), text(4, "namespace")]),
    ),
    one(3, "roleRef", FieldShape::Message(&[text(1, "apiGroup"), text(2, "kind"), text(3, "name")])),
];

/// Reviews of oneself leave out the user.
const ACCESS_REVIEW: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            one(
                1,
                "resourceAttributes",
                FieldShape::Message(&[
                    text(1, "namespace"),
                    text(2, "verb"),
                    text(3, "group"),
                    text(4, "version"),
                    text(5, "resource"),
                    text(6, "subresource"),
                    text(7, "name"),
                ]),
            ),
            one(2, "nonResourceAttributes", FieldShape::Message(&[text(1, "path"), text(2, "verb")])),
            text(3, "user"),
            many(4, "groups", FieldShape::Text),
            text(6, "uid"),
        ]),
    ),
];

const RULES_REVIEW: &[ProtobufField] = &[METADATA, one(2, "spec", FieldShape::Message(&[text(1, "namespace")]))];

const SUBJECT_REVIEW: &[ProtobufField] = &[METADATA];

const TOKEN_REVIEW: &[ProtobufField] =
    &[METADATA, one(2, "spec", FieldShape::Message(&[text(1, "token"), many(2, "audiences", FieldShape::Text)]))];

const SCALE: &[ProtobufField] = &[
    METADATA,
    one(2, "spec", FieldShape::Message(&[one(1, "replicas", FieldShape::Number)])),
    one(3, "status", FieldShape::Message(&[one(1, "replicas", FieldShape::Number), text(2, "selector")])),
];

//! Field numbers of the protobuf messages of core kinds.
//!
//! Fields that only the server sets (times, managed fields) are left out: they are ignored anyway.

/// How a field's content is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Bool,
    /// False = left out.
    Flag,
    /// 0 = left out.
    Number,
    /// 0 counts.
    NumberOrNone,
    NumberOrText,
    Double,
    /// Base64 in JSON.
    Bytes,
    TextMap,
    /// Values are base64 in JSON.
    BytesMap,
    /// Seconds and nanoseconds; JSON has whole seconds.
    Time,
    /// The same; JSON has microseconds.
    MicroTime,
    /// Empty = left out.
    Message(&'static [Field]),
    /// An empty one counts.
    MessageOrNone(&'static [Field]),
    /// What a definition says of its kind's objects.
    Schema(Place),
}

/// How a schema stands in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Whole,
    /// By the names of fields.
    Map,
    OrBool,
    OrList,
    /// By the names of fields, each a schema or a list of texts.
    OrTextsMap,
    /// No schema but any JSON, as text.
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) many: bool,
}

pub(super) const fn one(number: u64, name: &'static str, shape: Shape) -> Field {
    Field { number, name, shape, many: false }
}

pub(super) const fn text(number: u64, name: &'static str) -> Field {
    one(number, name, Shape::Text)
}

pub(super) const fn many(number: u64, name: &'static str, shape: Shape) -> Field {
    Field { number, name, shape, many: true }
}

/// The message of a group's kind; `None` when it is not known here.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static [Field]> {
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
        (
            "authorization.k8s.io",
            "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview",
        ) => Some(ACCESS_REVIEW),
        ("authorization.k8s.io", "SelfSubjectRulesReview") => Some(RULES_REVIEW),
        ("authentication.k8s.io", "TokenRequest") => Some(TOKEN_REQUEST),
        ("authentication.k8s.io", "SelfSubjectReview") => Some(SUBJECT_REVIEW),
        ("authentication.k8s.io", "TokenReview") => Some(TOKEN_REVIEW),
        ("autoscaling", "Scale") => Some(SCALE),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => Some(super::protobuf_definition::DEFINITION),
        _ => super::protobuf_traffic::message_of(group, kind),
    }
}

/// What stands around every message, as far as it is of interest.
pub(super) const ENVELOPE: &[Field] =
    &[one(1, "type", Shape::Message(&[text(1, "apiVersion"), text(2, "kind")]))];

pub(super) const METADATA: Field = one(
    1,
    "metadata",
    Shape::Message(&[
        text(1, "name"),
        text(2, "generateName"),
        text(3, "namespace"),
        text(5, "uid"),
        text(6, "resourceVersion"),
        one(7, "generation", Shape::Number),
        one(11, "labels", Shape::TextMap),
        one(12, "annotations", Shape::TextMap),
        many(
            13,
            "ownerReferences",
            Shape::Message(&[
                text(1, "kind"),
                text(3, "name"),
                text(4, "uid"),
                text(5, "apiVersion"),
                one(6, "controller", Shape::Bool),
                one(7, "blockOwnerDeletion", Shape::Bool),
            ]),
        ),
        many(14, "finalizers", Shape::Text),
    ]),
);

const NAMESPACE: &[Field] = &[
    METADATA,
    one(2, "spec", Shape::Message(&[many(1, "finalizers", Shape::Text)])),
    one(
        3,
        "status",
        Shape::Message(&[
            text(1, "phase"),
            many(
                2,
                "conditions",
                Shape::Message(&[
                    text(1, "type"),
                    text(2, "status"),
                    one(4, "lastTransitionTime", Shape::Time),
                    text(5, "reason"),
                    text(6, "message"),
                ]),
            ),
        ]),
    ),
];

const CONFIG_MAP: &[Field] = &[
    METADATA,
    one(2, "data", Shape::TextMap),
    one(3, "binaryData", Shape::BytesMap),
    one(4, "immutable", Shape::Bool),
];

const SECRET: &[Field] = &[
    METADATA,
    one(2, "data", Shape::BytesMap),
    text(3, "type"),
    one(4, "stringData", Shape::TextMap),
    one(5, "immutable", Shape::Bool),
];

const SESSION_AFFINITY: Shape =
    Shape::Message(&[one(1, "clientIP", Shape::Message(&[one(1, "timeoutSeconds", Shape::NumberOrNone)]))]);

const SERVICE: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Shape::Message(&[
            many(
                1,
                "ports",
                Shape::Message(&[
                    text(1, "name"),
                    text(2, "protocol"),
                    one(3, "port", Shape::Number),
                    one(4, "targetPort", Shape::NumberOrText),
                    one(5, "nodePort", Shape::Number),
                    text(6, "appProtocol"),
                ]),
            ),
            one(2, "selector", Shape::TextMap),
            text(3, "clusterIP"),
            text(4, "type"),
            many(5, "externalIPs", Shape::Text),
            text(7, "sessionAffinity"),
            text(8, "loadBalancerIP"),
            many(9, "loadBalancerSourceRanges", Shape::Text),
            text(10, "externalName"),
            text(11, "externalTrafficPolicy"),
            one(12, "healthCheckNodePort", Shape::Number),
            one(13, "publishNotReadyAddresses", Shape::Flag),
            one(14, "sessionAffinityConfig", SESSION_AFFINITY),
            text(17, "ipFamilyPolicy"),
            many(18, "clusterIPs", Shape::Text),
            many(19, "ipFamilies", Shape::Text),
            one(20, "allocateLoadBalancerNodePorts", Shape::Bool),
            text(21, "loadBalancerClass"),
            text(22, "internalTrafficPolicy"),
            text(23, "trafficDistribution"),
        ]),
    ),
    one(3, "status", Shape::Message(&[one(1, "loadBalancer", BALANCED), many(2, "conditions", CONDITION)])),
];

const BALANCED: Shape = Shape::Message(&[many(
    1,
    "ingress",
    Shape::Message(&[
        text(1, "ip"),
        text(2, "hostname"),
        text(3, "ipMode"),
        many(
            4,
            "ports",
            Shape::Message(&[one(1, "port", Shape::Number), text(2, "protocol"), text(3, "error")]),
        ),
    ]),
)]);

const CONDITION: Shape = Shape::Message(&[
    text(1, "type"),
    text(2, "status"),
    one(3, "observedGeneration", Shape::Number),
    one(4, "lastTransitionTime", Shape::Time),
    text(5, "reason"),
    text(6, "message"),
]);

const SERVICE_ACCOUNT: &[Field] = &[
    METADATA,
    many(2, "secrets", super::protobuf_traffic::REFERENCE),
    many(3, "imagePullSecrets", Shape::Message(&[text(1, "name")])),
    one(4, "automountServiceAccountToken", Shape::Bool),
];

/// A lifetime of zero is not asked for.
const TOKEN_REQUEST: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Shape::Message(&[
            many(1, "audiences", Shape::Text),
            one(
                3,
                "boundObjectRef",
                Shape::Message(&[text(1, "kind"), text(2, "apiVersion"), text(3, "name"), text(4, "uid")]),
            ),
            one(4, "expirationSeconds", Shape::Number),
        ]),
    ),
];

const DELETE_OPTIONS: &[Field] = &[
    one(1, "gracePeriodSeconds", Shape::NumberOrNone),
    one(2, "preconditions", Shape::Message(&[text(1, "uid"), text(2, "resourceVersion")])),
    one(3, "orphanDependents", Shape::Bool),
    text(4, "propagationPolicy"),
    many(5, "dryRun", Shape::Text),
];

const RULES: Field = many(
    2,
    "rules",
    Shape::Message(&[
        many(1, "verbs", Shape::Text),
        many(2, "apiGroups", Shape::Text),
        many(3, "resources", Shape::Text),
        many(4, "resourceNames", Shape::Text),
        many(5, "nonResourceURLs", Shape::Text),
    ]),
);

const ROLE: &[Field] = &[METADATA, RULES];

const CLUSTER_ROLE: &[Field] = &[
    METADATA,
    RULES,
    one(
        3,
        "aggregationRule",
        Shape::Message(&[many(
            1,
            "clusterRoleSelectors",
            Shape::Message(&[
                one(1, "matchLabels", Shape::TextMap),
                many(
                    2,
                    "matchExpressions",
                    Shape::Message(&[text(1, "key"), text(2, "operator"), many(3, "values", Shape::Text)]),
                ),
            ]),
        )]),
    ),
];

const ROLE_BINDING: &[Field] = &[
    METADATA,
    many(
        2,
        "subjects",
        Shape::Message(&[text(1, "kind"), text(2, "apiGroup"), text(3, "name"), text(4, "namespace")]),
    ),
    one(3, "roleRef", Shape::Message(&[text(1, "apiGroup"), text(2, "kind"), text(3, "name")])),
];

/// The questions about oneself leave out who is asked about.
const ACCESS_REVIEW: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Shape::Message(&[
            one(
                1,
                "resourceAttributes",
                Shape::Message(&[
                    text(1, "namespace"),
                    text(2, "verb"),
                    text(3, "group"),
                    text(4, "version"),
                    text(5, "resource"),
                    text(6, "subresource"),
                    text(7, "name"),
                ]),
            ),
            one(2, "nonResourceAttributes", Shape::Message(&[text(1, "path"), text(2, "verb")])),
            text(3, "user"),
            many(4, "groups", Shape::Text),
            text(6, "uid"),
        ]),
    ),
];

const RULES_REVIEW: &[Field] = &[METADATA, one(2, "spec", Shape::Message(&[text(1, "namespace")]))];

const SUBJECT_REVIEW: &[Field] = &[METADATA];

const TOKEN_REVIEW: &[Field] =
    &[METADATA, one(2, "spec", Shape::Message(&[text(1, "token"), many(2, "audiences", Shape::Text)]))];

const SCALE: &[Field] = &[
    METADATA,
    one(2, "spec", Shape::Message(&[one(1, "replicas", Shape::NumberOrNone)])),
    one(3, "status", Shape::Message(&[one(1, "replicas", Shape::NumberOrNone), text(2, "selector")])),
];

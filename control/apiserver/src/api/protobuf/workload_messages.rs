//! Field numbers of Pods, and of what makes them. `kubectl create deployment`, `create job` and `create cronjob` write
//! protobuf.

use super::field::{FieldShape, METADATA, ProtobufField, many, one, text};

/// The message of a group's kind; `None` when it is not known here.
pub(super) fn message_of(group: &str, kind: &str) -> Option<&'static [ProtobufField]> {
    match (group, kind) {
        ("", "Pod") => Some(POD),
        ("apps", "Deployment") => Some(DEPLOYMENT),
        ("apps", "ReplicaSet") => Some(REPLICA_SET),
        ("batch", "Job") => Some(JOB),
        ("batch", "CronJob") => Some(CRON_JOB),
        _ => None,
    }
}

const NAME: FieldShape = FieldShape::Message(&[text(1, "name")]);
/// A reference whose fields stand among those of what it is in.
const INLINE_NAME: ProtobufField = one(1, "", FieldShape::Inline(&[text(1, "name")]));

const SELECTOR: FieldShape = FieldShape::Message(&[
    one(1, "matchLabels", FieldShape::TextMap),
    many(
        2,
        "matchExpressions",
        FieldShape::Message(&[text(1, "key"), text(2, "operator"), many(3, "values", FieldShape::Text)]),
    ),
]);

const FIELD_REF: FieldShape = FieldShape::Message(&[text(1, "apiVersion"), text(2, "fieldPath")]);
const RESOURCE_REF: FieldShape =
    FieldShape::Message(&[text(1, "containerName"), text(2, "resource"), one(3, "divisor", FieldShape::Quantity)]);
const KEY_REF: FieldShape = FieldShape::Message(&[INLINE_NAME, text(2, "key"), one(3, "optional", FieldShape::Bool)]);
const ENV: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    text(2, "value"),
    one(
        3,
        "valueFrom",
        FieldShape::Message(&[
            one(1, "fieldRef", FIELD_REF),
            one(2, "resourceFieldRef", RESOURCE_REF),
            one(3, "configMapKeyRef", KEY_REF),
            one(4, "secretKeyRef", KEY_REF),
        ]),
    ),
]);
const ENV_SOURCE: FieldShape = FieldShape::Message(&[INLINE_NAME, one(2, "optional", FieldShape::Bool)]);
const ENV_FROM: FieldShape =
    FieldShape::Message(&[text(1, "prefix"), one(2, "configMapRef", ENV_SOURCE), one(3, "secretRef", ENV_SOURCE)]);

const RESOURCES: FieldShape =
    FieldShape::Message(&[one(1, "limits", FieldShape::QuantityMap), one(2, "requests", FieldShape::QuantityMap)]);
const MOUNT: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    one(2, "readOnly", FieldShape::OptionalBool),
    text(3, "mountPath"),
    text(4, "subPath"),
    text(5, "mountPropagation"),
    text(6, "subPathExpr"),
]);

const EXEC: FieldShape = FieldShape::Message(&[many(1, "command", FieldShape::Text)]);
const HTTP_GET: FieldShape = FieldShape::Message(&[
    text(1, "path"),
    one(2, "port", FieldShape::IntOrString),
    text(3, "host"),
    text(4, "scheme"),
    many(5, "httpHeaders", FieldShape::Message(&[text(1, "name"), text(2, "value")])),
]);
const TCP_SOCKET: FieldShape = FieldShape::Message(&[one(1, "port", FieldShape::IntOrString), text(2, "host")]);
const GRPC: FieldShape = FieldShape::Message(&[one(1, "port", FieldShape::Number), text(2, "service")]);
const PROBE: FieldShape = FieldShape::MessageOrNone(&[
    one(
        1,
        "",
        FieldShape::Inline(&[
            one(1, "exec", EXEC),
            one(2, "httpGet", HTTP_GET),
            one(3, "tcpSocket", TCP_SOCKET),
            one(4, "grpc", GRPC),
        ]),
    ),
    one(2, "initialDelaySeconds", FieldShape::OptionalNumber),
    one(3, "timeoutSeconds", FieldShape::OptionalNumber),
    one(4, "periodSeconds", FieldShape::OptionalNumber),
    one(5, "successThreshold", FieldShape::OptionalNumber),
    one(6, "failureThreshold", FieldShape::OptionalNumber),
    one(7, "terminationGracePeriodSeconds", FieldShape::Number),
]);

const SECCOMP: FieldShape = FieldShape::Message(&[text(1, "type"), text(2, "localhostProfile")]);
const CONTAINER_SECURITY: FieldShape = FieldShape::Message(&[
    one(1, "capabilities", FieldShape::Message(&[many(1, "add", FieldShape::Text), many(2, "drop", FieldShape::Text)])),
    one(2, "privileged", FieldShape::Bool),
    one(4, "runAsUser", FieldShape::Number),
    one(5, "runAsNonRoot", FieldShape::Bool),
    one(6, "readOnlyRootFilesystem", FieldShape::Bool),
    one(7, "allowPrivilegeEscalation", FieldShape::Bool),
    one(8, "runAsGroup", FieldShape::Number),
    one(11, "seccompProfile", SECCOMP),
]);
const POD_SECURITY: FieldShape = FieldShape::Message(&[
    one(2, "runAsUser", FieldShape::Number),
    one(3, "runAsNonRoot", FieldShape::Bool),
    many(4, "supplementalGroups", FieldShape::Number),
    one(5, "fsGroup", FieldShape::Number),
    one(6, "runAsGroup", FieldShape::Number),
    one(10, "seccompProfile", SECCOMP),
]);

const CONTAINER: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    text(2, "image"),
    many(3, "command", FieldShape::Text),
    many(4, "args", FieldShape::Text),
    text(5, "workingDir"),
    many(
        6,
        "ports",
        FieldShape::Message(&[
            text(1, "name"),
            one(2, "hostPort", FieldShape::OptionalNumber),
            one(3, "containerPort", FieldShape::Number),
            text(4, "protocol"),
            text(5, "hostIP"),
        ]),
    ),
    many(7, "env", ENV),
    one(8, "resources", RESOURCES),
    many(9, "volumeMounts", MOUNT),
    one(10, "livenessProbe", PROBE),
    one(11, "readinessProbe", PROBE),
    one(12, "lifecycle", FieldShape::Message(&[one(1, "postStart", HANDLER), one(2, "preStop", HANDLER)])),
    text(13, "terminationMessagePath"),
    text(14, "imagePullPolicy"),
    one(15, "securityContext", CONTAINER_SECURITY),
    one(16, "stdin", FieldShape::OptionalBool),
    one(17, "stdinOnce", FieldShape::OptionalBool),
    one(18, "tty", FieldShape::OptionalBool),
    many(19, "envFrom", ENV_FROM),
    text(20, "terminationMessagePolicy"),
    one(22, "startupProbe", PROBE),
    text(24, "restartPolicy"),
]);
const HANDLER: FieldShape =
    FieldShape::Message(&[one(1, "exec", EXEC), one(2, "httpGet", HTTP_GET), one(3, "tcpSocket", TCP_SOCKET)]);

const KEYS: FieldShape = FieldShape::Message(&[text(1, "key"), text(2, "path"), one(3, "mode", FieldShape::Number)]);
const DOWNWARD_FILE: FieldShape = FieldShape::Message(&[
    text(1, "path"),
    one(2, "fieldRef", FIELD_REF),
    one(3, "resourceFieldRef", RESOURCE_REF),
    one(4, "mode", FieldShape::Number),
]);
const PROJECTION: FieldShape =
    FieldShape::Message(&[INLINE_NAME, many(2, "items", KEYS), one(4, "optional", FieldShape::Bool)]);
const PROJECTED: FieldShape = FieldShape::Message(&[
    many(
        1,
        "sources",
        FieldShape::Message(&[
            one(1, "secret", PROJECTION),
            one(2, "downwardAPI", FieldShape::Message(&[many(1, "items", DOWNWARD_FILE)])),
            one(3, "configMap", PROJECTION),
            one(
                4,
                "serviceAccountToken",
                FieldShape::Message(&[
                    text(1, "audience"),
                    one(2, "expirationSeconds", FieldShape::Number),
                    text(3, "path"),
                ]),
            ),
        ]),
    ),
    one(2, "defaultMode", FieldShape::Number),
]);
/// Of those that this host has not, enough to be refused by name.
const VOLUME: FieldShape = FieldShape::Message(&[
    text(1, "name"),
    one(
        2,
        "",
        FieldShape::Inline(&[
            one(1, "hostPath", FieldShape::MessageOrNone(&[text(1, "path"), text(2, "type")])),
            one(
                2,
                "emptyDir",
                FieldShape::MessageOrNone(&[text(1, "medium"), one(2, "sizeLimit", FieldShape::Quantity)]),
            ),
            one(
                6,
                "secret",
                FieldShape::MessageOrNone(&[
                    text(1, "secretName"),
                    many(2, "items", KEYS),
                    one(3, "defaultMode", FieldShape::Number),
                    one(4, "optional", FieldShape::Bool),
                ]),
            ),
            one(7, "nfs", FieldShape::MessageOrNone(&[text(1, "server"), text(2, "path")])),
            one(
                10,
                "persistentVolumeClaim",
                FieldShape::MessageOrNone(&[text(1, "claimName"), one(2, "readOnly", FieldShape::OptionalBool)]),
            ),
            one(
                16,
                "downwardAPI",
                FieldShape::MessageOrNone(&[
                    many(1, "items", DOWNWARD_FILE),
                    one(2, "defaultMode", FieldShape::Number),
                ]),
            ),
            one(
                19,
                "configMap",
                FieldShape::MessageOrNone(&[
                    INLINE_NAME,
                    many(2, "items", KEYS),
                    one(3, "defaultMode", FieldShape::Number),
                    one(4, "optional", FieldShape::Bool),
                ]),
            ),
            one(26, "projected", PROJECTED),
        ]),
    ),
]);

const POD_SPEC: FieldShape = FieldShape::Message(&[
    many(1, "volumes", VOLUME),
    many(2, "containers", CONTAINER),
    text(3, "restartPolicy"),
    one(4, "terminationGracePeriodSeconds", FieldShape::Number),
    one(5, "activeDeadlineSeconds", FieldShape::Number),
    text(6, "dnsPolicy"),
    one(7, "nodeSelector", FieldShape::TextMap),
    text(8, "serviceAccountName"),
    text(9, "serviceAccount"),
    text(10, "nodeName"),
    one(11, "hostNetwork", FieldShape::OptionalBool),
    one(12, "hostPID", FieldShape::OptionalBool),
    one(13, "hostIPC", FieldShape::OptionalBool),
    one(14, "securityContext", POD_SECURITY),
    many(15, "imagePullSecrets", NAME),
    text(16, "hostname"),
    text(17, "subdomain"),
    text(19, "schedulerName"),
    many(20, "initContainers", CONTAINER),
    one(21, "automountServiceAccountToken", FieldShape::Bool),
    text(24, "priorityClassName"),
    one(30, "enableServiceLinks", FieldShape::Bool),
    one(37, "hostUsers", FieldShape::OptionalBool),
]);
const TEMPLATE: FieldShape = FieldShape::Message(&[METADATA, one(2, "spec", POD_SPEC)]);

const POD: &[ProtobufField] = &[METADATA, one(2, "spec", POD_SPEC)];

const DEPLOYMENT: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            one(1, "replicas", FieldShape::Number),
            one(2, "selector", SELECTOR),
            one(3, "template", TEMPLATE),
            one(
                4,
                "strategy",
                FieldShape::Message(&[
                    text(1, "type"),
                    one(
                        2,
                        "rollingUpdate",
                        FieldShape::Message(&[
                            one(1, "maxUnavailable", FieldShape::IntOrString),
                            one(2, "maxSurge", FieldShape::IntOrString),
                        ]),
                    ),
                ]),
            ),
            one(5, "minReadySeconds", FieldShape::OptionalNumber),
            one(6, "revisionHistoryLimit", FieldShape::Number),
            one(7, "paused", FieldShape::OptionalBool),
            one(9, "progressDeadlineSeconds", FieldShape::Number),
        ]),
    ),
];

const REPLICA_SET: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            one(1, "replicas", FieldShape::Number),
            one(2, "selector", SELECTOR),
            one(3, "template", TEMPLATE),
            one(4, "minReadySeconds", FieldShape::OptionalNumber),
        ]),
    ),
];

const JOB_SPEC: FieldShape = FieldShape::Message(&[
    one(1, "parallelism", FieldShape::Number),
    one(2, "completions", FieldShape::Number),
    one(3, "activeDeadlineSeconds", FieldShape::Number),
    one(4, "selector", SELECTOR),
    one(5, "manualSelector", FieldShape::Bool),
    one(6, "template", TEMPLATE),
    one(7, "backoffLimit", FieldShape::Number),
    one(8, "ttlSecondsAfterFinished", FieldShape::Number),
    text(9, "completionMode"),
    one(10, "suspend", FieldShape::Bool),
    text(14, "podReplacementPolicy"),
]);
const JOB: &[ProtobufField] = &[METADATA, one(2, "spec", JOB_SPEC)];

const CRON_JOB: &[ProtobufField] = &[
    METADATA,
    one(
        2,
        "spec",
        FieldShape::Message(&[
            text(1, "schedule"),
            one(2, "startingDeadlineSeconds", FieldShape::Number),
            text(3, "concurrencyPolicy"),
            one(4, "suspend", FieldShape::Bool),
            one(5, "jobTemplate", FieldShape::Message(&[METADATA, one(2, "spec", JOB_SPEC)])),
            one(6, "successfulJobsHistoryLimit", FieldShape::Number),
            one(7, "failedJobsHistoryLimit", FieldShape::Number),
            text(8, "timeZone"),
        ]),
    ),
];

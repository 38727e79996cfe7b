//! Labels and annotations of serving: their names, their writers, their valid values.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{spare_instances, stream_timeouts};
use crate::classes;
use crate::duration;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind_registry::RequestContext;
use crate::serving::revision_spec::resources;
use crate::settings::HttpProtocol;
use crate::settings::autoscaler::{AutoscalerSettings, TARGET_MIN, WINDOW_MAX, WINDOW_MIN};
use crate::shared::{annotation, controller, label};
use support::names::is_dns1035_label;

pub const SERVICE: &str = "serving.knative.dev/service";
pub const SERVICE_UID: &str = "serving.knative.dev/serviceUID";
pub const CONFIGURATION: &str = "serving.knative.dev/configuration";
pub const CONFIGURATION_UID: &str = "serving.knative.dev/configurationUID";
pub const CONFIGURATION_GENERATION: &str = "serving.knative.dev/configurationGeneration";
/// With the next, the labels that upstream puts on what belongs to a Revision.
pub const REVISION: &str = "serving.knative.dev/revision";
pub const REVISION_UID: &str = "serving.knative.dev/revisionUID";
pub const ROUTING_STATE: &str = "serving.knative.dev/routingState";
pub const ROUTING_STATE_MODIFIED: &str = "serving.knative.dev/routingStateModified";
pub const ROUTES: &str = "serving.knative.dev/routes";
pub const CREATOR: &str = "serving.knative.dev/creator";
pub const LAST_MODIFIER: &str = "serving.knative.dev/lastModifier";
pub const ROLLOUT_DURATION: &str = "serving.knative.dev/rollout-duration";
/// `true`: the Revision is retained however long it is unused.
pub const NO_GC: &str = "serving.knative.dev/no-gc";
pub const PROGRESS_DEADLINE: &str = "serving.knative.dev/progress-deadline";
/// On what a Route makes: its name.
pub const ROUTE: &str = "serving.knative.dev/route";
pub const VISIBILITY: &str = "networking.knative.dev/visibility";
/// No certificate for this one. The former names are the first that upstream looks for.
const NO_TLS: [&str; 3] = [
    "networking.knative.dev/disableAutoTLS",
    "networking.knative.dev/disable-auto-tls",
    "networking.knative.dev/disable-external-domain-tls",
];
/// The response to clients without TLS. The former name is the first that upstream looks for.
const HTTP_PROTOCOL: [&str; 2] = ["networking.knative.dev/httpOption", "networking.knative.dev/http-protocol"];
/// The prefix of annotations about the network.
const NETWORKING: &str = "networking.knative.dev";
pub const CLUSTER_LOCAL: &str = "cluster-local";
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// `process`: the container's command runs as a process of this host.
pub const RUNTIME_CLASS: &str = "runtime.sluicegate.dev/class";
/// `env`: no mounts; the program finds its volumes by the variable SLUICEGATE_VOLUMES.
pub const RUNTIME_VOLUMES: &str = "runtime.sluicegate.dev/volumes";
/// `none`: an instance is ready once it has run for a moment, because its program listens nowhere.
pub const RUNTIME_READINESS: &str = "runtime.sluicegate.dev/readiness-probe";
/// `false`: the users of the containers are others than the host's, as with `hostUsers: false` of a Pod.
pub const RUNTIME_HOST_USERS: &str = "runtime.sluicegate.dev/host-users";
/// The name of a volume; when its files change, the program of the instance gets SIGHUP.
pub const RELOAD_VOLUME: &str = "runtime.sluicegate.dev/reload-volume";
/// The name of a directory that outlives the instances; the program finds it by the variable `STATE_DIRECTORY`.
pub const STATE_DIRECTORY: &str = "runtime.sluicegate.dev/state-directory";

pub const AUTOSCALING: &str = "autoscaling.knative.dev/";
const HPA: &str = "hpa.autoscaling.knative.dev";
/// An activation starts at least one instance (upstream's limit).
const ACTIVATION_MIN: u32 = 2;

/// An autoscaling annotation under its present (`min-scale`) or its former (`minScale`) name.
#[must_use]
pub fn autoscaling<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    annotation(meta, &format!("{AUTOSCALING}{key}"))
        .or_else(|| annotation(meta, &format!("{AUTOSCALING}{}", camel(key))))
}

/// Whether hosts of the object get no certificates, though others do (X-RTE-07). An invalid value means no.
#[must_use]
pub fn declines_tls(meta: &ObjectMeta) -> bool {
    let value = NO_TLS.iter().find_map(|key| annotation(meta, key)).unwrap_or_default();
    ["1", "t", "T", "true", "TRUE", "True"].contains(&value)
}

/// The response to clients without TLS: from the annotation, or else the operator's `usual` (X-RTE-06). An
/// annotation can only choose what upstream lets it choose.
pub fn http_protocol(meta: &ObjectMeta, usual: HttpProtocol) -> Result<HttpProtocol, String> {
    let value = HTTP_PROTOCOL.iter().find_map(|key| annotation(meta, key)).unwrap_or_default();
    match value.to_ascii_lowercase().as_str() {
        "" => Ok(usual),
        "enabled" => Ok(HttpProtocol::Enabled),
        "redirected" => Ok(HttpProtocol::Redirected),
        other => Err(format!("incorrect http-protocol annotation: {other}")),
    }
}

fn camel(key: &str) -> String {
    let mut parts = key.split('-');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut chars = part.chars();
        text.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        text.push_str(chars.as_str());
    }
    text
}

/// Records the creator of the object and the last user who changed its spec. Owned objects do not carry it: their
/// owner does.
pub fn set_user(meta: &mut ObjectMeta, before: Option<&ObjectMeta>, spec_changed: bool, requester: &RequestContext) {
    if controller(meta).is_some() {
        return;
    }
    let user = requester.user.clone();
    let annotations = meta.annotations.get_or_insert_default();
    let Some(before) = before else {
        annotations.insert(CREATOR.to_owned(), user.clone());
        annotations.insert(LAST_MODIFIER.to_owned(), user);
        return;
    };
    if spec_changed {
        annotations.insert(LAST_MODIFIER.to_owned(), user);
    }
    // A PUT without them does not mean to remove the creator.
    for key in [CREATOR, LAST_MODIFIER] {
        if let Some(value) = annotation(before, key) {
            annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

/// The two user annotations are the server's.
pub fn validate_user(meta: &ObjectMeta, before: Option<&ObjectMeta>, spec_changed: bool, problems: &mut FieldErrors) {
    let Some(before) = before else { return };
    if controller(meta).is_some() {
        return;
    }
    for (key, frozen) in [(CREATOR, true), (LAST_MODIFIER, !spec_changed)] {
        if frozen && annotation(meta, key) != annotation(before, key) {
            problems.add(format!("metadata.annotations[{key}]"), "annotation value is immutable");
        }
    }
}

/// The name rule of all serving kinds.
pub fn validate_name(meta: &ObjectMeta, problems: &mut FieldErrors) {
    if let Some(name) = &meta.name
        && !is_dns1035_label(name)
    {
        problems.add("metadata.name", format!("not a DNS 1035 label: \"{name}\""));
    }
}

/// A label that names an owner must tell the truth.
pub fn validate_owner_label(meta: &ObjectMeta, key: &str, kind: &str, problems: &mut FieldErrors) {
    let Some(value) = label(meta, key) else { return };
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|owner| owner.kind == kind && owner.name == value) {
        problems.add(format!("metadata.labels[{key}]"), MISSING);
    }
}

/// X-RTE-05: a typo in it would make an internal host public. What was stored before is left alone.
pub fn validate_visibility(meta: &ObjectMeta, before: Option<&ObjectMeta>, problems: &mut FieldErrors) {
    let Some(value) = label(meta, VISIBILITY).filter(|value| *value != CLUSTER_LOCAL) else { return };
    if before.is_none_or(|before| label(before, VISIBILITY) != Some(value)) {
        problems.add(format!("metadata.labels.{VISIBILITY}"), format!("invalid value: {value}"));
    }
}

/// Autoscaling annotations belong on the template, where the Revision finds them.
pub fn reject_autoscaling(meta: &ObjectMeta, problems: &mut FieldErrors) {
    for key in meta.annotations.iter().flatten().map(|(key, _)| key).filter(|key| key.starts_with(AUTOSCALING)) {
        problems.add(
            "metadata.annotations",
            format!(
                "invalid key name \"{key}\": autoscaling annotations must be put under \
                 \"spec.template.metadata.annotations\" to work"
            ),
        );
    }
}

/// A template may only have network annotations that upstream knows; a typo would be ignored silently.
pub fn reject_unknown_networking(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    let known = [&NO_TLS[..], &HTTP_PROTOCOL, &classes::INGRESS_ANNOTATIONS, &classes::CERTIFICATE_ANNOTATIONS];
    for (key, _) in meta.annotations.iter().flatten() {
        if key.starts_with(NETWORKING) && !known.iter().any(|keys| keys.contains(&key.as_str())) {
            problems.add(format!("{at}.annotations"), format!("invalid key name \"{key}\""));
        }
    }
}

/// Values that the operator's scale settings forbid.
pub fn validate_autoscaler_limits(
    meta: &ObjectMeta,
    at: &str,
    config: &AutoscalerSettings,
    problems: &mut FieldErrors,
) {
    let count = |key: &str| autoscaling(meta, key).and_then(|text| text.parse::<u32>().ok());
    if count("initial-scale") == Some(0) && !config.zero_initial_scale {
        let why = "initial-scale=0 is not allowed by cluster: see allow-zero-initial-scale in config-autoscaler";
        problems.add(field_path(at, "initial-scale"), why);
    }
    let limit = config.max_scale_limit;
    if let Some(max) = count("max-scale").filter(|max| limit != 0 && !(1..=limit).contains(max)) {
        problems.add(field_path(at, "max-scale"), format!("expected 1 <= {max} <= {limit}"));
    }
}

pub fn validate_rollout_duration(meta: &ObjectMeta, problems: &mut FieldErrors) {
    validate_whole_seconds(meta, ROLLOUT_DURATION, "metadata.annotations", problems);
}

/// Validates all annotations of a template for the autoscaler, with upstream's messages.
pub fn validate_template(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    let at = format!("{at}.annotations");
    validate_whole_seconds(meta, PROGRESS_DEADLINE, &at, problems);
    stream_timeouts::validate(meta, &at, problems);
    spare_instances::validate(meta, &at, problems);
    resources::validate_sidecar(meta, &at, problems);
    validate_enums(meta, &at, problems);
    validate_scales(meta, &at, problems);
    if let Some(text) = autoscaling(meta, "target") {
        match text.parse::<f64>() {
            Ok(target) if target >= TARGET_MIN && target.is_finite() => {}
            Ok(_) => problems.add(field_path(&at, "target"), format!("target {text} should be at least {TARGET_MIN}")),
            Err(_) => problems.add(field_path(&at, "target"), format!("invalid value: {text}")),
        }
    }
    for (key, min, max) in [
        ("target-utilization-percentage", 1.0, 100.0),
        ("panic-window-percentage", 1.0, 100.0),
        ("panic-threshold-percentage", 110.0, 1000.0),
    ] {
        let Some(text) = autoscaling(meta, key) else { continue };
        match text.parse::<f64>() {
            Ok(number) if (min..=max).contains(&number) => {}
            Ok(_) => problems.add(field_path(&at, key), format!("expected {min} <= {text} <= {max}")),
            Err(_) => problems.add(field_path(&at, key), format!("invalid value: {text}")),
        }
    }
    if let Some(text) = autoscaling(meta, "target-burst-capacity")
        && !text.parse::<f64>().is_ok_and(|number| number >= 0.0 || (number + 1.0).abs() < f64::EPSILON)
    {
        problems.add(field_path(&at, "target-burst-capacity"), format!("invalid value: {text}"));
    }
    for (key, min, is_whole) in [
        ("window", WINDOW_MIN, true),
        ("scale-down-delay", Duration::ZERO, true),
        ("scale-to-zero-pod-retention-period", Duration::ZERO, false),
    ] {
        let Some(text) = autoscaling(meta, key) else { continue };
        match duration::parse_go(text) {
            // Only a sign makes a duration that Go accepts and we do not.
            None if text.strip_prefix('-').and_then(duration::parse_go).is_none() => {
                problems.add(field_path(&at, key), format!("invalid value: {text}"));
            }
            Some(span) if (min..=WINDOW_MAX).contains(&span) => {
                if is_whole && span.subsec_nanos() != 0 {
                    problems.add(field_path(&at, key), "must be specified with at most second precision");
                }
            }
            _ => {
                let min = min.as_secs();
                problems.add(field_path(&at, key), format!("expected {min}s <= {text} <= 1h0m0s"));
            }
        }
    }
}

fn field_path(at: &str, key: &str) -> String {
    format!("{at}[{AUTOSCALING}{key}]")
}

/// The annotations with a fixed set of values.
fn validate_enums(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    let class = autoscaling(meta, "class").unwrap_or(classes::KPA);
    if class.ends_with(".autoscaling.knative.dev") && class != classes::KPA && class != HPA {
        problems.add(field_path(at, "class"), format!("invalid value: {class}"));
    }
    // Another class's metrics and algorithms are its own.
    if class != classes::KPA {
        return;
    }
    for (key, words) in
        [("metric", ["concurrency", "rps"]), ("metric-aggregation-algorithm", ["linear", "weighted-exponential"])]
    {
        if let Some(word) = autoscaling(meta, key).filter(|word| !words.contains(word)) {
            problems.add(field_path(at, key), format!("invalid value: {word}"));
        }
    }
}

fn validate_scales(meta: &ObjectMeta, at: &str, problems: &mut FieldErrors) {
    let min = validate_scale(meta, "min-scale", at, problems);
    let max = validate_scale(meta, "max-scale", at, problems);
    validate_scale(meta, "initial-scale", at, problems);
    let activation = validate_scale(meta, "activation-scale", at, problems);
    let limit = max.filter(|max| *max != 0);
    if let (Some(min), Some(max)) = (min, limit)
        && min > max
    {
        problems.add(field_path(at, "max-scale"), format!("maxScale={max} is less than minScale={min}"));
    }
    let Some(activation) = activation else { return };
    if activation < ACTIVATION_MIN {
        problems.add(
            field_path(at, "activation-scale"),
            format!("expected {ACTIVATION_MIN} <= {activation} <= {}", i32::MAX),
        );
    }
    if let Some(max) = limit.filter(|max| activation > *max) {
        problems.add(
            field_path(at, "activation-scale"),
            format!("activation-scale={activation} is greater than max-scale={max}"),
        );
    }
}

fn validate_scale(meta: &ObjectMeta, key: &str, at: &str, problems: &mut FieldErrors) -> Option<u32> {
    let text = autoscaling(meta, key)?;
    match text.parse::<i32>() {
        Ok(scale) if scale >= 0 => Some(scale.unsigned_abs()),
        Ok(scale) => {
            problems.add(format!("{at}[{AUTOSCALING}{key}]"), format!("expected 0 <= {scale} <= {}", i32::MAX));
            None
        }
        Err(_) => {
            problems.add(format!("{at}[{AUTOSCALING}{key}]"), format!("invalid value: {text}"));
            None
        }
    }
}

fn validate_whole_seconds(meta: &ObjectMeta, key: &str, at: &str, problems: &mut FieldErrors) {
    if let Some(text) = annotation(meta, key)
        && duration::parse_go(text).is_none_or(|value| value.subsec_nanos() != 0)
    {
        problems.add(format!("{at}[{key}]"), format!("invalid value: {text}: a duration of whole seconds is needed"));
    }
}

/// An owner's map as its children carry it.
#[must_use]
pub fn inherited(map: Option<&BTreeMap<String, String>>, except: &[&str]) -> BTreeMap<String, String> {
    map.into_iter()
        .flatten()
        .filter(|(key, _)| !except.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pairs: &[(&str, &str)]) -> Vec<String> {
        let annotations =
            pairs.iter().map(|(key, value)| (format!("{AUTOSCALING}{key}"), (*value).to_owned())).collect();
        let meta = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
        let mut problems = FieldErrors::default();
        validate_template(&meta, "metadata", &mut problems);
        let prefix = format!("metadata.annotations[{AUTOSCALING}");
        let short = |field: String| field.trim_start_matches(&prefix).trim_end_matches(']').to_owned();
        problems.list.into_iter().map(|p| format!("{}: {}", short(p.field), p.message)).collect()
    }

    /// X-RTE-06
    #[test]
    fn an_annotation_says_what_clients_without_tls_are_answered() {
        let [new, old] = ["networking.knative.dev/http-protocol", "networking.knative.dev/httpOption"];
        let reported = |pairs: &[(&str, &str)]| {
            let annotations = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let meta = ObjectMeta { annotations: Some(annotations.collect()), ..ObjectMeta::default() };
            http_protocol(&meta, HttpProtocol::Disabled)
        };
        assert_eq!(reported(&[]), Ok(HttpProtocol::Disabled), "as the operator says");
        assert_eq!(reported(&[(new, "")]), Ok(HttpProtocol::Disabled));
        assert_eq!(reported(&[(new, "Redirected")]), Ok(HttpProtocol::Redirected));
        assert_eq!(reported(&[(new, "Redirected"), (old, "ENABLED")]), Ok(HttpProtocol::Enabled));
        let wrong = Err("incorrect http-protocol annotation: disabled".to_owned());
        assert_eq!(reported(&[(new, "Disabled")]), wrong, "the operator alone may");
    }

    #[test]
    fn a_template_says_to_the_network_what_upstream_knows() {
        for (key, is_known) in [
            ("networking.knative.dev/http-protocol", true),
            ("networking.knative.dev/disable-external-domain-tls", true),
            ("networking.knative.dev/ingress.class", true),
            ("networking.knative.dev/certificate-class", true),
            ("networking.knative.dev/visibility", false),
            ("networking.knative.dev/http-protocoll", false),
            ("networking.example.com/other", true),
        ] {
            let annotations = Some([(key.to_owned(), "x".to_owned())].into());
            let meta = ObjectMeta { annotations, ..ObjectMeta::default() };
            let mut problems = FieldErrors::default();
            reject_unknown_networking(&meta, "spec.template.metadata", &mut problems);
            let reported: Vec<_> = problems.list.iter().map(|p| format!("{}: {}", p.field, p.message)).collect();
            let wanted = format!("spec.template.metadata.annotations: invalid key name \"{key}\"");
            assert_eq!(reported, if is_known { vec![] } else { vec![wanted] });
        }
    }

    /// X-RTE-07
    #[test]
    fn an_annotation_declines_certificates() {
        for (key, value, declined) in [
            ("disable-external-domain-tls", "true", true),
            ("disable-auto-tls", "1", true),
            ("disableAutoTLS", "T", true),
            ("disable-external-domain-tls", "false", false),
            ("disable-external-domain-tls", "yes", false),
        ] {
            let annotations = [(format!("networking.knative.dev/{key}"), value.to_owned())].into();
            let meta = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            assert_eq!(declines_tls(&meta), declined, "{key}: {value}");
        }
        assert!(!declines_tls(&ObjectMeta::default()));
    }

    #[test]
    fn every_annotation_is_taken_within_its_limits() {
        let all = [
            ("class", "kpa.autoscaling.knative.dev"),
            ("metric", "rps"),
            ("metric-aggregation-algorithm", "weighted-exponential"),
            ("target", "0.01"),
            ("target-utilization-percentage", "100"),
            ("target-burst-capacity", "-1"),
            ("minScale", "1"),
            ("max-scale", "5"),
            ("activation-scale", "2"),
            ("initial-scale", "3"),
            ("window", "1h"),
            ("scale-down-delay", "15m"),
            ("scale-to-zero-pod-retention-period", "1.5s"),
            ("panic-window-percentage", "1"),
            ("panic-threshold-percentage", "1000"),
        ];
        assert_eq!(found(&all), [] as [&str; 0]);
        // A class of another implementation, and annotations that only its scaler understands.
        assert_eq!(found(&[("class", "mine.example.com"), ("metric", "queue")]), [] as [&str; 0]);
        assert_eq!(found(&[("class", HPA), ("metric", "cpu")]), [] as [&str; 0]);
    }

    #[test]
    fn each_value_out_of_its_limits_is_named_with_them() {
        for (key, value, message) in [
            ("class", "x.autoscaling.knative.dev", "invalid value: x.autoscaling.knative.dev"),
            ("metric", "cpu", "invalid value: cpu"),
            ("metric-aggregation-algorithm", "best", "invalid value: best"),
            ("target", "0", "target 0 should be at least 0.01"),
            ("target", "much", "invalid value: much"),
            ("target-utilization-percentage", "0.5", "expected 1 <= 0.5 <= 100"),
            ("target-burst-capacity", "-2", "invalid value: -2"),
            ("min-scale", "-1", "expected 0 <= -1 <= 2147483647"),
            ("min-scale", "few", "invalid value: few"),
            ("activation-scale", "1", "expected 2 <= 1 <= 2147483647"),
            ("window", "5s", "expected 6s <= 5s <= 1h0m0s"),
            ("window", "6.5s", "must be specified with at most second precision"),
            ("window", "long", "invalid value: long"),
            ("scale-down-delay", "-1s", "expected 0s <= -1s <= 1h0m0s"),
            ("scale-down-delay", "2h", "expected 0s <= 2h <= 1h0m0s"),
            ("scale-to-zero-pod-retention-period", "61m", "expected 0s <= 61m <= 1h0m0s"),
            ("panic-window-percentage", "101", "expected 1 <= 101 <= 100"),
            ("panic-threshold-percentage", "109", "expected 110 <= 109 <= 1000"),
        ] {
            assert_eq!(found(&[(key, value)]), [format!("{key}: {message}")]);
        }
        assert_eq!(
            found(&[("max-scale", "2"), ("activation-scale", "3")]),
            ["activation-scale: activation-scale=3 is greater than max-scale=2"]
        );
    }
}

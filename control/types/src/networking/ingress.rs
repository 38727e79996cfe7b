//! Ingress ("KIngress"): hosts, paths and headers of requests, and their core Services. With it
//! another control plane uses this program as its data plane (APP-12).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::classes;
use crate::conditions::ConditionSet;
use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON};
use crate::role_rules::RECONCILED;
use crate::shared::{Status, annotation, namespace};

pub const NETWORK_CONFIGURED: &str = "NetworkConfigured";
pub const LOAD_BALANCER_READY: &str = "LoadBalancerReady";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[NETWORK_CONFIGURED, LOAD_BALANCER_READY] };

/// The whole, of which splits take their percent.
const PERCENT_TOTAL: i32 = 100;

kind! {
    /// `networking.internal.knative.dev/v1alpha1` Ingress.
    Ingress { spec: IngressSpec, status: IngressStatus }
}

// The order of fields, and what is left out when empty, are Knative's: a hash goes over this spec's JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressSpec {
    /// Certificates of hosts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tls: Vec<IngressTls>,
    /// Hosts, and where their requests go.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<IngressRule>,
    /// `Redirected`: clients without TLS are sent to HTTPS; `Enabled` or empty: they are served.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub http_option: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressTls {
    /// The hosts of the certificate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Secret with `tls.crt` and `tls.key`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret_name: String,
    /// The Secret's namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret_namespace: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRule {
    /// Host names, without port.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// `ExternalIP`: public; `ClusterLocal`: for internal callers.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub visibility: String,
    /// Where requests go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpIngressRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HttpIngressRule {
    /// Paths and headers; the longest path first.
    pub paths: Vec<HttpIngressPath>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpIngressPath {
    /// The first segments of the request's path; empty takes every path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The Host that the backend sees instead of the client's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rewrite_host: String,
    /// Headers that the request must have, all of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, HeaderMatch>,
    /// The backends and their shares.
    pub splits: Vec<IngressBackendSplit>,
    /// Headers that the backend sees with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub append_headers: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HeaderMatch {
    /// The value, to the byte.
    pub exact: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressBackendSplit {
    /// Namespace of the Service: the Ingress's own.
    pub service_namespace: String,
    /// Name of the core Service.
    pub service_name: String,
    /// Its port, by number or name.
    pub service_port: IntOrString,
    /// Share of the requests, 0 to 100.
    #[serde(skip_serializing_if = "is_zero")]
    pub percent: i32,
    /// Headers that this backend sees with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub append_headers: BTreeMap<String, String>,
}

impl Default for IngressBackendSplit {
    fn default() -> Self {
        Self {
            service_namespace: String::new(),
            service_name: String::new(),
            service_port: IntOrString::Int(0),
            percent: 0,
            append_headers: BTreeMap::new(),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(percent: &i32) -> bool {
    *percent == 0
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where requests from everywhere are accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_load_balancer: Option<LoadBalancerStatus>,
    /// The addresses for internal callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// The load balancers that accept the requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<LoadBalancerIngress>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// Its IP address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Its public name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Its cluster-local name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain_internal: String,
    /// Not used: a mesh accepts the requests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mesh_only: bool,
}

/// What the author of an Ingress is told: without a class nothing serves it.
#[must_use]
pub fn warnings(object: &serde_json::Value) -> Vec<String> {
    let annotations = &object["metadata"]["annotations"];
    if classes::INGRESS_ANNOTATIONS.iter().any(|key| annotations[*key].as_str().is_some_and(|class| !class.is_empty()))
    {
        return Vec::new();
    }
    let (key, class) = (classes::INGRESS_ANNOTATIONS[1], classes::INGRESS);
    vec![format!(
        "metadata.annotations[{key}] is missing: nothing serves an Ingress without a class; set it to {class}"
    )]
}

impl Ingress {
    /// Whether it is for us.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        classes::INGRESS_ANNOTATIONS.iter().find_map(|key| annotation(&self.metadata, key)) == Some(classes::INGRESS)
    }
}

impl IngressRule {
    /// Whether only internal callers may use it.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.visibility == "ClusterLocal"
    }

    #[must_use]
    pub fn paths(&self) -> &[HttpIngressPath] {
        self.http.as_ref().map(|http| http.paths.as_slice()).unwrap_or_default()
    }
}

impl ResourceStrategy for Ingress {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Ingress",
        plural: "ingresses",
        singular: "ingress",
        short_names: &["kingress", "king"],
        categories: &["knative-internal", "networking"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[READY, REASON],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        for rule in &mut self.spec.rules {
            if rule.visibility.is_empty() {
                "ExternalIP".clone_into(&mut rule.visibility);
            }
            for path in rule.http.iter_mut().flat_map(|http| &mut http.paths) {
                if let [only] = path.splits.as_mut_slice()
                    && only.percent == 0
                {
                    only.percent = PERCENT_TOTAL;
                }
            }
        }
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec == IngressSpec::default() {
            return problems.add("spec", MISSING);
        }
        if self.spec.rules.is_empty() {
            problems.add("spec.rules", MISSING);
        }
        if !["", "Enabled", "Redirected"].contains(&self.spec.http_option.as_str()) {
            problems.add("spec.httpOption", format!("invalid value: {}", self.spec.http_option));
        }
        for (index, rule) in self.spec.rules.iter().enumerate() {
            validate_rule(rule, namespace(&self.metadata), &format!("spec.rules[{index}]"), problems);
        }
        for (index, tls) in self.spec.tls.iter().enumerate() {
            for (field, value) in [("secretName", &tls.secret_name), ("secretNamespace", &tls.secret_namespace)] {
                if value.is_empty() {
                    problems.add(format!("spec.tls[{index}].{field}"), MISSING);
                }
            }
        }
    }
}

fn validate_rule(rule: &IngressRule, home: &str, at: &str, problems: &mut FieldErrors) {
    if *rule == IngressRule::default() {
        return problems.add(at, MISSING);
    }
    if !["", "ExternalIP", "ClusterLocal"].contains(&rule.visibility.as_str()) {
        problems.add(format!("{at}.visibility"), format!("invalid value: {}", rule.visibility));
    }
    match &rule.http {
        None => problems.add(format!("{at}.http"), MISSING),
        Some(http) if http.paths.is_empty() => problems.add(format!("{at}.http.paths"), MISSING),
        Some(http) => {
            for (index, path) in http.paths.iter().enumerate() {
                validate_path(path, home, &format!("{at}.http.paths[{index}]"), problems);
            }
        }
    }
}

fn validate_path(path: &HttpIngressPath, home: &str, at: &str, problems: &mut FieldErrors) {
    if *path == HttpIngressPath::default() {
        return problems.add(at, MISSING);
    }
    if path.splits.is_empty() {
        return problems.add(format!("{at}.splits"), MISSING);
    }
    let mut total = 0_i64;
    for (index, split) in path.splits.iter().enumerate() {
        validate_split(split, home, &format!("{at}.splits[{index}]"), problems);
        total += i64::from(split.percent);
    }
    // One split alone may leave its percent out.
    if total != i64::from(PERCENT_TOTAL) && !(path.splits.len() == 1 && total == 0) {
        let why = format!("traffic split percentage must total to 100, but was {total}");
        problems.add(format!("{at}.splits"), why);
    }
}

fn validate_split(split: &IngressBackendSplit, home: &str, at: &str, problems: &mut FieldErrors) {
    if *split == IngressBackendSplit::default() {
        return problems.add(at, MISSING);
    }
    if !(0..=PERCENT_TOTAL).contains(&split.percent) {
        problems.add(format!("{at}.percent"), format!("invalid value: {}", split.percent));
    }
    if split.service_namespace.is_empty() {
        problems.add(format!("{at}.serviceNamespace"), MISSING);
    } else if split.service_namespace != home {
        problems.add(format!("{at}.serviceNamespace"), "service namespace must match ingress namespace");
    }
    if split.service_name.is_empty() {
        problems.add(format!("{at}.serviceName"), MISSING);
    }
    if split.service_port == IntOrString::Int(0) {
        problems.add(format!("{at}.servicePort"), MISSING);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ingress(spec: Value) -> Ingress {
        let spec = serde_json::from_value(spec).unwrap();
        Ingress::new("ns", "a", spec)
    }

    fn requester() -> RequestContext {
        RequestContext::default()
    }

    fn problems(spec: Value) -> Vec<(String, String)> {
        let mut ingress = ingress(spec);
        ingress.set_defaults(None, &requester());
        let mut problems = FieldErrors::default();
        ingress.validate(None, &mut problems);
        problems.list.into_iter().map(|problem| (problem.field, problem.message)).collect()
    }

    fn rules(splits: Value) -> Value {
        json!({"rules": [{"hosts": ["a"], "http": {"paths": [{"splits": splits}]}}]})
    }

    fn split(percent: i32) -> Value {
        json!({"serviceNamespace": "ns", "serviceName": "s", "servicePort": 80, "percent": percent})
    }

    /// X-KI-03, X-KI-06: defaults are public visibility, and all paths.
    #[test]
    fn visibility_and_a_single_percent_have_defaults() {
        let mut ingress = ingress(rules(json!([split(0)])));
        ingress.set_defaults(None, &requester());
        let rule = &ingress.spec.rules[0];
        assert_eq!((rule.visibility.as_str(), rule.paths()[0].splits[0].percent), ("ExternalIP", 100));
    }

    /// X-KI-19 and the rest of upstream's rules, by field and message.
    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        assert!(problems(rules(json!([split(40), split(60)]))).is_empty());
        let splits = "spec.rules[0].http.paths[0].splits";
        let missing = |field: &str| (field.to_owned(), "missing field(s)".to_owned());
        for (spec, field, message) in [
            (json!({}), "spec", "missing field(s)"),
            (json!({"httpOption": "Enabled"}), "spec.rules", "missing field(s)"),
            (json!({"rules": [{"hosts": ["a"]}]}), "spec.rules[0].http", "missing field(s)"),
            (json!({"rules": [{"http": {"paths": []}}]}), "spec.rules[0].http.paths", "missing field(s)"),
            (rules(json!([])), "spec.rules[0].http.paths[0]", "missing field(s)"),
            (rules(json!([split(40), split(50)])), splits, "traffic split percentage must total to 100, but was 90"),
        ] {
            assert_eq!(problems(spec), [(field.to_owned(), message.to_owned())]);
        }
        let mut foreign = split(100);
        foreign["serviceNamespace"] = "other".into();
        let why = "service namespace must match ingress namespace".to_owned();
        assert_eq!(problems(rules(json!([foreign]))), [(format!("{splits}[0].serviceNamespace"), why)]);
        let bare = json!([{"serviceName": "s", "percent": 100}]);
        let at = |field: &str| missing(&format!("{splits}[0].{field}"));
        assert_eq!(problems(rules(bare)), [at("serviceNamespace"), at("servicePort")]);
        let mut tls = rules(json!([split(100)]));
        tls["tls"] = json!([{"hosts": ["a"]}]);
        let at = |field: &str| missing(&format!("spec.tls[0].{field}"));
        assert_eq!(problems(tls), [at("secretName"), at("secretNamespace")]);
    }

    /// X-KI-01: both spellings of the annotation, and only our own objects.
    #[test]
    fn the_class_says_whose_it_is() {
        for (key, value, ours) in [
            ("networking.knative.dev/ingress-class", classes::INGRESS, true),
            ("networking.knative.dev/ingress.class", classes::INGRESS, true),
            ("networking.knative.dev/ingress-class", "kourier.ingress.networking.knative.dev", false),
            ("other", classes::INGRESS, false),
        ] {
            let mut ingress = ingress(json!({}));
            ingress.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
            assert_eq!(ingress.is_ours(), ours, "{key}: {value}");
        }
    }
}

//! DomainMapping: a custom domain for an addressable object. The object's name is the domain.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, annotations};
use crate::conditions::ConditionSet;
use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{READY, REASON, column};
use crate::role_rules::RECONCILED;
use crate::shared::{Addressable, KReference, Status, name, namespace};
use support::names::is_dns_subdomain;

pub const DOMAIN_CLAIMED: &str = "DomainClaimed";
pub const REFERENCE_RESOLVED: &str = "ReferenceResolved";
pub const INGRESS_READY: &str = "IngressReady";
pub const CERTIFICATE_PROVISIONED: &str = "CertificateProvisioned";
pub const CONDITIONS: ConditionSet =
    ConditionSet { dependents: &[DOMAIN_CLAIMED, REFERENCE_RESOLVED, INGRESS_READY, CERTIFICATE_PROVISIONED] };

/// Names below it are the cluster's own.
const CLUSTER_DOMAIN: &str = "cluster.local";

kind! {
    /// `serving.knative.dev/v1beta1` DomainMapping.
    DomainMapping { spec: DomainMappingSpec, status: DomainMappingStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DomainMappingSpec {
    /// The object that answers at the domain; in the same namespace.
    #[serde(rename = "ref")]
    pub reference: KReference,
    /// A certificate that the operator or developer provides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<SecretTls>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretTls {
    /// A Secret with `tls.crt` and `tls.key`.
    pub secret_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DomainMappingStatus {
    #[serde(flatten)]
    pub base: Status,
    /// Where the domain is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where events for it go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Addressable>,
}

impl ResourceStrategy for DomainMapping {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: "v1beta1",
        kind: "DomainMapping",
        plural: "domainmappings",
        singular: "domainmapping",
        short_names: &["dm"],
        categories: &["all", "knative", "serving"],
        namespaced: true,
        has_status: true,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[column("URL", ".status.url"), READY, REASON],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, before: Option<&Self>, requester: &RequestContext) {
        let home = namespace(&self.metadata).to_owned();
        let named = self.spec.reference.namespace.get_or_insert_default();
        if named.is_empty() {
            *named = home;
        }
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::set_user(&mut self.metadata, before.map(|b| &b.metadata), changed, requester);
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        let domain = name(&self.metadata);
        if self.metadata.generate_name.as_ref().is_some_and(|prefix| !prefix.is_empty()) {
            problems.add("metadata.generateName", MUST_NOT_SET);
        }
        if !is_dns_subdomain(domain) || !domain.contains('.') {
            problems
                .add("metadata.name", format!("invalid name \"{domain}\": should be a fully qualified domain name"));
        } else if domain == CLUSTER_DOMAIN || domain.ends_with(&format!(".{CLUSTER_DOMAIN}")) {
            problems.add(
                "metadata.name",
                format!(
                    "invalid name \"{domain}\": must not be a subdomain of cluster local domain \"{CLUSTER_DOMAIN}\""
                ),
            );
        }
        let reference = &self.spec.reference;
        for (field, value) in
            [("apiVersion", &reference.api_version), ("kind", &reference.kind), ("name", &reference.name)]
        {
            if value.is_empty() {
                problems.add(format!("spec.ref.{field}"), MISSING);
            }
        }
        if reference.namespace.as_deref().is_some_and(|ns| !ns.is_empty() && ns != namespace(&self.metadata)) {
            problems.add(
                "spec.ref.namespace",
                format!(
                    "mismatched namespaces: parent namespace: \"{}\" does not match ref: \"{}\"",
                    namespace(&self.metadata),
                    reference.namespace.as_deref().unwrap_or_default()
                ),
            );
        }
        let changed = before.is_some_and(|b| b.spec != self.spec);
        annotations::validate_user(&self.metadata, before.map(|b| &b.metadata), changed, problems);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(object: Value) -> Vec<String> {
        let mut mapping: DomainMapping = serde_json::from_value(object).unwrap();
        mapping.set_defaults(None, &RequestContext::default());
        let mut problems = FieldErrors::default();
        mapping.validate(None, &mut problems);
        problems.list.into_iter().map(|p| p.field).collect()
    }

    fn mapping(domain: &str) -> Value {
        json!({
            "metadata": {"name": domain, "namespace": "ns"},
            "spec": {"ref": {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "a"}}
        })
    }

    #[test]
    fn a_domain_has_two_labels_and_is_not_the_clusters() {
        assert_eq!(found(mapping("app.example.com")), [] as [&str; 0]);
        for bad in ["app", "App.example.com", "a..b", "*.example.com", "a.svc.cluster.local", "cluster.local"] {
            assert_eq!(found(mapping(bad)), ["metadata.name"], "{bad}");
        }
    }

    #[test]
    fn the_reference_is_whole_and_at_home() {
        for (key, value, field) in [
            ("name", json!(""), "spec.ref.name"),
            ("kind", json!(""), "spec.ref.kind"),
            ("apiVersion", json!(""), "spec.ref.apiVersion"),
            ("namespace", json!("elsewhere"), "spec.ref.namespace"),
        ] {
            let mut object = mapping("app.example.com");
            object["spec"]["ref"][key] = value;
            assert_eq!(found(object), [field]);
        }
        let mut generated = mapping("app.example.com");
        generated["metadata"]["generateName"] = json!("x-");
        assert_eq!(found(generated), ["metadata.generateName"]);
    }
}

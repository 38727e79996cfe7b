//! Certificate ("KCert"): requests a certificate from the issuer of its class, stored in a Secret.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
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
use crate::shared::{Status, annotation};

/// The label for the purpose of the certificate.
pub const TYPE_LABEL: &str = "networking.knative.dev/certificate-type";
/// On one for all names of a namespace: the domain that they are in.
pub const WILDCARD_LABEL: &str = "networking.knative.dev/wildcardDomain";
/// On the Secret: for which Certificate it was made.
pub const UID_LABEL: &str = "networking.internal.knative.dev/certificate-uid";

pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[] };

kind! {
    /// `networking.internal.knative.dev/v1alpha1` Certificate.
    Certificate { spec: CertificateSpec, status: CertificateStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateSpec {
    /// The names that the certificate covers; `*.` covers one label.
    pub dns_names: Vec<String>,
    /// The domain that they are in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The Secret that holds it.
    pub secret_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateStatus {
    #[serde(flatten)]
    pub base: Status,
    /// When the certificate ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
    /// The HTTP-01 challenges of the issuer.
    #[serde(rename = "http01Challenges", skip_serializing_if = "Vec::is_empty")]
    pub http01_challenges: Vec<Http01Challenge>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Http01Challenge {
    /// The URL that the authority will ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The core Service that answers it.
    pub service_name: String,
    /// Its namespace.
    pub service_namespace: String,
    /// Its port.
    pub service_port: IntOrString,
}

impl Default for Http01Challenge {
    fn default() -> Self {
        Self {
            url: None,
            service_name: String::new(),
            service_namespace: String::new(),
            service_port: IntOrString::Int(0),
        }
    }
}

impl Certificate {
    /// Whether it is for us to provide.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        classes::CERTIFICATE_ANNOTATIONS.iter().find_map(|key| annotation(&self.metadata, key))
            == Some(classes::CERTIFICATE)
    }
}

impl ResourceStrategy for Certificate {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "Certificate",
        plural: "certificates",
        singular: "certificate",
        short_names: &["kcert"],
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

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let CertificateSpec { dns_names, domain, secret_name } = &self.spec;
        if dns_names.is_empty() {
            problems.add("spec.dnsNames", MISSING);
        }
        for index in (0..dns_names.len()).filter(|index| dns_names[*index].is_empty()) {
            problems.add(format!("spec.dnsNames[{index}]"), "invalid value: ");
        }
        if secret_name.is_empty() {
            problems.add("spec.secretName", MISSING);
        }
        let is_in = |name: &String| {
            name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if !domain.is_empty() && !dns_names.is_empty() && !dns_names.iter().any(is_in) {
            problems.add(
                "spec.domain",
                "invalid value: domain must be a suffix of, or match exactly, at least one entry in dnsNames",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(spec: Value) -> Vec<String> {
        let mut problems = FieldErrors::default();
        Certificate::new("ns", "c", serde_json::from_value(spec).unwrap()).validate(None, &mut problems);
        problems.list.into_iter().map(|problem| problem.field).collect()
    }

    /// X-RTE-07: upstream's rules, by field.
    #[test]
    fn a_certificate_names_hosts_of_its_domain_and_its_secret() {
        let spec = |names: &[&str], domain: &str| json!({"dnsNames": names, "domain": domain, "secretName": "s"});
        for (names, domain) in
            [(&["a.ns.example.com"] as &[_], "example.com"), (&["a.test"], "a.test"), (&["a.test"], "")]
        {
            assert_eq!(found(spec(names, domain)), [] as [&str; 0], "{names:?} in {domain}");
        }
        assert_eq!(found(json!({})), ["spec.dnsNames", "spec.secretName"]);
        assert_eq!(found(spec(&["a.test", ""], "a.test")), ["spec.dnsNames[1]"]);
        assert_eq!(found(spec(&["a.notexample.com"], "example.com")), ["spec.domain"]);
    }

    #[test]
    fn the_class_says_whose_it_is() {
        for (class, ours) in [(classes::CERTIFICATE, true), ("cert-manager.certificate.networking.knative.dev", false)]
        {
            let mut certificate = Certificate::new("ns", "c", CertificateSpec::default());
            assert!(!certificate.is_ours());
            certificate.metadata.annotations =
                Some([(classes::CERTIFICATE_ANNOTATIONS[0].to_owned(), class.to_owned())].into());
            assert_eq!(certificate.is_ours(), ours, "{class}");
        }
    }
}

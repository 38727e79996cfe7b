//! Computes a DomainMapping's status: values in, values out.

use jiff::Timestamp;

use crate::host_tls::HostTls;
use crate::route_hosts::PublicPorts;
use crate::route_rules::NOT_CONFIGURED;
use runtime::dns::CLUSTER_DOMAIN;
use types::conditions::ConditionManager;
use types::serving::domain_mapping::{
    CERTIFICATE_PROVISIONED, CONDITIONS, DOMAIN_CLAIMED, DomainMapping, DomainMappingStatus, INGRESS_READY,
    REFERENCE_RESOLVED,
};
use types::settings::NetworkSettings;
use types::shared::{Addressable, Status, name};

/// The namespace that may use the domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DomainClaimState {
    Ours,
    /// This namespace.
    OtherNamespace(String),
    #[default]
    Missing,
}

/// The findings of a reconcile; later parts only if the earlier ones succeeded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DomainMappingDependencies {
    pub claim: DomainClaimState,
    /// The Route that answers, or the reason why none does.
    pub target: Option<Result<String, String>>,
    /// The owner of the host.
    pub host_conflict: Option<String>,
    /// An error in an annotation; the previous routing stays.
    pub invalid_annotation: Option<String>,
    /// The Route takes requests.
    pub is_routed: bool,
    pub tls: HostTls,
}

impl DomainMappingDependencies {
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.is_routed && self.host_conflict.is_none()
    }
}

/// The name behind an address of this cluster: `http://NAME.NAMESPACE.svc.cluster.local`.
pub fn parse_local_name(url: &str, namespace: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).unwrap_or(url);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if !path.is_empty() {
        return Err(format!("resolved URI \"{url}\" contains a path"));
    }
    let host = authority.split(':').next().unwrap_or_default();
    let suffix = format!(".{namespace}.svc.{CLUSTER_DOMAIN}");
    match host.strip_suffix(&suffix).filter(|name| !name.is_empty() && !name.contains('.')) {
        Some(name) => Ok(name.to_owned()),
        None => Err(format!("resolved URI \"{url}\" must be of the form {{name}}{suffix}")),
    }
}

#[must_use]
pub fn status(
    mapping: &DomainMapping,
    findings: &DomainMappingDependencies,
    (network, ports): (&NetworkSettings, PublicPorts),
    now: Timestamp,
) -> DomainMappingStatus {
    let mut status = mapping.status.clone().unwrap_or_default();
    let before = std::mem::take(&mut status.base.conditions);
    let mut conditions = CONDITIONS.manage(&before, now);
    let domain = name(&mapping.metadata);
    mark_claim(&mut conditions, &findings.claim, domain);
    match &findings.target {
        Some(Ok(_)) => conditions.mark_true(REFERENCE_RESOLVED),
        Some(Err(why)) => conditions.mark_false(REFERENCE_RESOLVED, "ResolveFailed", why),
        None => conditions.mark_unknown(
            REFERENCE_RESOLVED,
            "DomainNotClaimed",
            "The reference is resolved when the domain is claimed.",
        ),
    }
    match (&findings.host_conflict, &findings.invalid_annotation) {
        (Some(owner), _) => conditions.mark_false(
            INGRESS_READY,
            "NotOwned",
            &format!("The host {domain} belongs to {owner}, which had it first."),
        ),
        (None, Some(why)) => conditions.mark_unknown(INGRESS_READY, NOT_CONFIGURED, why),
        (None, None) if findings.is_routable() => conditions.mark_true(INGRESS_READY),
        (None, None) => {
            conditions.mark_unknown(INGRESS_READY, NOT_CONFIGURED, "Ingress has not yet been reconciled.");
        }
    }
    findings.tls.mark(&mut conditions, CERTIFICATE_PROVISIONED, network.http_protocol);
    let scheme = findings.tls.scheme(domain, network.http_protocol);
    let url = ports.url(scheme.unwrap_or(&network.default_external_scheme), domain);
    status.address = Some(Addressable { url: Some(url.clone()), ..Addressable::default() });
    status.url = Some(url);
    status.base = Status {
        observed_generation: mapping.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn mark_claim(conditions: &mut ConditionManager<'_>, claim: &DomainClaimState, domain: &str) {
    match claim {
        DomainClaimState::Ours => conditions.mark_true(DOMAIN_CLAIMED),
        DomainClaimState::OtherNamespace(ns) => conditions.mark_false(
            DOMAIN_CLAIMED,
            "DomainAlreadyClaimed",
            &format!("The domain name is already in use: its ClusterDomainClaim names the namespace \"{ns}\"."),
        ),
        DomainClaimState::Missing => conditions.mark_false(
            DOMAIN_CLAIMED,
            "DomainClaimFailed",
            &format!(
                "no ClusterDomainClaim found for domain \"{domain}\": create one with spec.namespace, or set \
                 autocreate-cluster-domain-claims in config-network"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::host_tls::{CertificateState, HostCertificate, NOT_ENABLED};
    use crate::service_backends::BackendResolveError;
    use types::shared::{Condition, ConditionStatus};

    fn ready(findings: &DomainMappingDependencies) -> (String, String, String) {
        let mapping: DomainMapping = serde_json::from_value(json!({
            "metadata": {"name": "app.example.com", "namespace": "ns", "generation": 1}, "spec": {}
        }))
        .unwrap();
        let ports = PublicPorts { http: 8080, https: Some(443) };
        let at = Timestamp::from_second(1).unwrap();
        let status = status(&mapping, findings, (&NetworkSettings::default(), ports), at);
        let silent = |c: &&Condition| c.status != ConditionStatus::True && c.reason.is_empty();
        assert_eq!(status.base.conditions.iter().find(silent), None);
        let url = status.url.unwrap_or_default();
        let ready = status.base.conditions.into_iter().find(|c| c.kind == "Ready").unwrap();
        (format!("{:?}", ready.status), ready.reason, url)
    }

    /// COND-17: whatever is not True says why.
    #[test]
    fn each_way_to_fail_has_its_reason() {
        let all_ready = DomainMappingDependencies {
            claim: DomainClaimState::Ours,
            target: Some(Ok("app".into())),
            is_routed: true,
            tls: HostTls::Disabled(NOT_ENABLED),
            ..DomainMappingDependencies::default()
        };
        let plain = "http://app.example.com:8080";
        let case = |findings: DomainMappingDependencies| ready(&findings);
        let outcome = |verdict: &str, reason: &str, url: &str| (verdict.into(), reason.into(), url.into());
        assert_eq!(case(all_ready.clone()), outcome("True", "", plain));
        let held = |standing: CertificateState| {
            let hosts = vec!["app.example.com".to_owned()];
            let tls = HostTls::Requested(vec![HostCertificate::new("c", hosts, standing)]);
            DomainMappingDependencies { tls, ..all_ready.clone() }
        };
        assert_eq!(case(held(CertificateState::Ready(None))), outcome("True", "", "https://app.example.com"));
        assert_eq!(case(held(CertificateState::Pending(String::new()))), outcome("True", "", plain), "by HTTP for now");
        let why = BackendResolveError { reason: "SecretNotFound", message: String::new() };
        for (findings, verdict, reason) in [
            (
                DomainMappingDependencies {
                    claim: DomainClaimState::OtherNamespace("b".into()),
                    target: None,
                    is_routed: false,
                    ..all_ready.clone()
                },
                "False",
                "DomainAlreadyClaimed",
            ),
            (DomainMappingDependencies::default(), "False", "DomainClaimFailed"),
            (
                DomainMappingDependencies { target: Some(Err("gone".into())), is_routed: false, ..all_ready.clone() },
                "False",
                "ResolveFailed",
            ),
            (
                DomainMappingDependencies { host_conflict: Some("ns/a".into()), ..all_ready.clone() },
                "False",
                "NotOwned",
            ),
            (DomainMappingDependencies { is_routed: false, ..all_ready.clone() }, "Unknown", "IngressNotConfigured"),
            (
                DomainMappingDependencies { invalid_annotation: Some("incorrect".into()), ..all_ready.clone() },
                "Unknown",
                "IngressNotConfigured",
            ),
            (
                DomainMappingDependencies {
                    tls: HostTls::Provided("app.example.com".into(), Err(why)),
                    ..all_ready.clone()
                },
                "False",
                "SecretNotFound",
            ),
        ] {
            assert_eq!(case(findings), outcome(verdict, reason, plain));
        }
    }

    #[test]
    fn only_a_name_of_the_own_namespace_is_mapped() {
        assert_eq!(parse_local_name("http://app.ns.svc.cluster.local", "ns").as_deref(), Ok("app"));
        assert_eq!(parse_local_name("http://app.ns.svc.cluster.local:80/", "ns").as_deref(), Ok("app"));
        for bad in [
            "http://app.other.svc.cluster.local",
            "http://example.com",
            "http://app.ns.svc.cluster.local/x",
            "http://a.b.ns.svc.cluster.local",
        ] {
            assert!(parse_local_name(bad, "ns").is_err(), "{bad}");
        }
    }
}

//! What a DomainMapping's status says: values in, values out.

use jiff::Timestamp;

use crate::controllers::ingress::backends::Unresolved;
use crate::controllers::resolve::CLUSTER_DOMAIN;
use crate::kinds::conditions::Conditions;
use crate::kinds::serving::domain_mapping::{
    CERTIFICATE_PROVISIONED, CONDITIONS, DOMAIN_CLAIMED, DomainMapping, DomainMappingStatus, INGRESS_READY,
    REFERENCE_RESOLVED,
};
use crate::kinds::shared::{Addressable, Status, name};

/// The ports that URLs need not name.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Who may have the domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Claim {
    Ours,
    /// This namespace.
    Another(String),
    #[default]
    Nobodys,
}

/// What a look found out; later parts only if the earlier ones were well.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    pub claim: Claim,
    /// The Route that answers, or why there is none.
    pub target: Option<Result<String, String>>,
    /// Who has the host.
    pub taken: Option<String>,
    /// The Route takes requests.
    pub is_routed: bool,
    /// Whether the certificate that the mapping names is shown to TLS clients; `None`: it names none.
    pub certificate: Option<Result<(), Unresolved>>,
}

/// Where clients come in.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub http: u16,
    /// `None`: there is no TLS.
    pub https: Option<u16>,
}

impl Findings {
    #[must_use]
    pub fn flows(&self) -> bool {
        self.is_routed && self.taken.is_none()
    }
}

/// The name behind an address of this cluster: `http://NAME.NAMESPACE.svc.cluster.local`.
pub fn local_name(url: &str, namespace: &str) -> Result<String, String> {
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
    findings: &Findings,
    ports: Ports,
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
        None => conditions.mark_unknown(REFERENCE_RESOLVED, "", ""),
    }
    match &findings.taken {
        Some(owner) => conditions.mark_false(
            INGRESS_READY,
            "NotOwned",
            &format!("The host {domain} belongs to {owner}, which had it first."),
        ),
        None if findings.flows() => conditions.mark_true(INGRESS_READY),
        None => conditions.mark_unknown(
            INGRESS_READY,
            "IngressNotConfigured",
            "Ingress has not yet been reconciled.",
        ),
    }
    match &findings.certificate {
        None => {
            conditions.mark_true_because(CERTIFICATE_PROVISIONED, "TLSNotEnabled", "autoTLS is not enabled")
        }
        Some(Ok(())) => conditions.mark_true(CERTIFICATE_PROVISIONED),
        Some(Err(why)) => conditions.mark_false(CERTIFICATE_PROVISIONED, why.reason, &why.message),
    }
    let (scheme, port, usual) = match (&findings.certificate, ports.https) {
        (Some(Ok(())), Some(port)) => ("https", port, HTTPS_PORT),
        _ => ("http", ports.http, HTTP_PORT),
    };
    let url =
        if port == usual { format!("{scheme}://{domain}") } else { format!("{scheme}://{domain}:{port}") };
    status.address = Some(Addressable { url: Some(url.clone()), ..Addressable::default() });
    status.url = Some(url);
    status.base = Status {
        observed_generation: mapping.metadata.generation,
        conditions: conditions.finish(),
        annotations: status.base.annotations,
    };
    status
}

fn mark_claim(conditions: &mut Conditions<'_>, claim: &Claim, domain: &str) {
    match claim {
        Claim::Ours => conditions.mark_true(DOMAIN_CLAIMED),
        Claim::Another(ns) => conditions.mark_false(
            DOMAIN_CLAIMED,
            "DomainAlreadyClaimed",
            &format!(
                "The domain name is already in use: its ClusterDomainClaim names the namespace \"{ns}\"."
            ),
        ),
        Claim::Nobodys => conditions.mark_false(
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

    fn ready(findings: &Findings) -> (String, String, String) {
        let mapping: DomainMapping = serde_json::from_value(json!({
            "metadata": {"name": "app.example.com", "namespace": "ns", "generation": 1}, "spec": {}
        }))
        .unwrap();
        let ports = Ports { http: 8080, https: Some(443) };
        let status = status(&mapping, findings, ports, Timestamp::from_second(1).unwrap());
        let url = status.url.unwrap_or_default();
        let ready = status.base.conditions.into_iter().find(|c| c.kind == "Ready").unwrap();
        (format!("{:?}", ready.status), ready.reason, url)
    }

    #[test]
    fn each_way_to_fail_has_its_reason() {
        let well = Findings {
            claim: Claim::Ours,
            target: Some(Ok("app".into())),
            is_routed: true,
            ..Findings::default()
        };
        let plain = "http://app.example.com:8080";
        let case = |findings: Findings| ready(&findings);
        let outcome = |verdict: &str, reason: &str, url: &str| (verdict.into(), reason.into(), url.into());
        assert_eq!(case(well.clone()), outcome("True", "", plain));
        let certified = Findings { certificate: Some(Ok(())), ..well.clone() };
        assert_eq!(case(certified), outcome("True", "", "https://app.example.com"));
        let why = Unresolved { reason: "SecretNotFound", message: String::new() };
        for (findings, verdict, reason) in [
            (
                Findings {
                    claim: Claim::Another("b".into()),
                    target: None,
                    is_routed: false,
                    ..well.clone()
                },
                "False",
                "DomainAlreadyClaimed",
            ),
            (Findings::default(), "False", "DomainClaimFailed"),
            (
                Findings { target: Some(Err("gone".into())), is_routed: false, ..well.clone() },
                "False",
                "ResolveFailed",
            ),
            (Findings { taken: Some("ns/a".into()), ..well.clone() }, "False", "NotOwned"),
            (Findings { is_routed: false, ..well.clone() }, "Unknown", "IngressNotConfigured"),
            (Findings { certificate: Some(Err(why)), ..well }, "False", "SecretNotFound"),
        ] {
            assert_eq!(case(findings), outcome(verdict, reason, plain));
        }
    }

    #[test]
    fn only_a_name_of_the_own_namespace_is_mapped() {
        assert_eq!(local_name("http://app.ns.svc.cluster.local", "ns").as_deref(), Ok("app"));
        assert_eq!(local_name("http://app.ns.svc.cluster.local:80/", "ns").as_deref(), Ok("app"));
        for bad in [
            "http://app.other.svc.cluster.local",
            "http://example.com",
            "http://app.ns.svc.cluster.local/x",
            "http://a.b.ns.svc.cluster.local",
        ] {
            assert!(local_name(bad, "ns").is_err(), "{bad}");
        }
    }
}

//! The Certificates that an object requests: values in, values out.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::owned_child::owner_references;
use crate::route_hosts::{self as hosts, RouteNaming};
use runtime::dns::CLUSTER_DOMAIN;
use support::child_name::child_name;
use types::classes::CERTIFICATE_ANNOTATIONS;
use types::networking::certificate::{Certificate, CertificateSpec, TYPE_LABEL, WILDCARD_LABEL};
use types::serving::annotations::{LAST_APPLIED, ROUTE, inherited};
use types::serving::domain_mapping::DomainMapping;
use types::serving::route::Route;
use types::settings::NetworkSettings;
use types::shared::{annotation, name, namespace};

/// The label of a Certificate with its domain; the name is upstream's.
const DOMAIN_MAPPING: &str = "serving.knative.dev/domainMappingUID";
const EXTERNAL_DOMAIN: &str = "external-domain";
const CLUSTER_LOCAL_DOMAIN: &str = "cluster-local-domain";
/// What the names of those end in.
const CLUSTER_LOCAL_SUFFIX: &str = "-local";
/// Not for Certificates.
const INGRESS_CLASS: &str = "networking.knative.dev/ingress-class";
/// Longer values are no labels.
const LABEL_BYTES_MAX: usize = 63;

/// The certificates of a Route's public hosts: its own, and one per tag.
#[must_use]
pub fn for_route(route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    let class = class(&route.metadata, naming.network);
    let public = tags(route).filter(|tag| !hosts::is_cluster_local(route, *tag, naming));
    let made = public.map(|tag| {
        let host = hosts::public_host(route, tag, naming).to_ascii_lowercase();
        let spec = CertificateSpec {
            dns_names: vec![host],
            domain: naming.domain.to_ascii_lowercase(),
            secret_name: route_name(route, tag),
        };
        certificate(route, [(TYPE_LABEL, EXTERNAL_DOMAIN), (ROUTE, name(&route.metadata))], class, spec)
    });
    made.collect()
}

/// The Certificates of its cluster-local names, each of which has three spellings.
#[must_use]
pub fn for_cluster_local(route: &Route, naming: RouteNaming<'_>) -> Vec<Certificate> {
    let class = class(&route.metadata, naming.network);
    let made = tags(route).map(|tag| {
        let mut dns_names = hosts::cluster_local_hosts(route, tag, naming);
        dns_names.sort_unstable();
        let spec = CertificateSpec {
            dns_names,
            domain: format!("svc.{CLUSTER_DOMAIN}"),
            secret_name: route_name(route, tag) + CLUSTER_LOCAL_SUFFIX,
        };
        certificate(route, [(TYPE_LABEL, CLUSTER_LOCAL_DOMAIN), (ROUTE, name(&route.metadata))], class, spec)
    });
    made.collect()
}

/// `None` for the Route itself, and its tags.
fn tags(route: &Route) -> impl Iterator<Item = Option<&str>> {
    let mut tags: Vec<_> = route.spec.traffic.iter().filter_map(|target| target.tag()).map(Some).collect();
    tags.sort_unstable();
    tags.dedup();
    std::iter::once(None).chain(tags)
}

/// That of a mapped domain.
#[must_use]
pub fn for_domain_mapping(mapping: &DomainMapping, network: &NetworkSettings) -> Certificate {
    let domain = name(&mapping.metadata);
    let spec = CertificateSpec {
        dns_names: vec![domain.to_owned()],
        domain: domain.to_owned(),
        secret_name: child_name(domain, ""),
    };
    let labels = [(TYPE_LABEL, EXTERNAL_DOMAIN), (DOMAIN_MAPPING, domain)];
    certificate(mapping, labels, &network.certificate_class, spec)
}

/// The Certificates of all names of a namespace, one per domain; none if the template makes names that no wildcard matches.
#[must_use]
pub fn for_namespace<'a>(
    home: &Namespace,
    domains: impl Iterator<Item = &'a str>,
    network: &NetworkSettings,
) -> Vec<Certificate> {
    let ns = name(&home.metadata);
    let made = domains.filter_map(|domain| {
        let host = wildcard(ns, domain, network)?;
        let own = host.strip_prefix("*.")?.to_owned();
        let spec = CertificateSpec { dns_names: vec![host], domain: String::new(), secret_name: own.clone() };
        let mut made = Certificate::new(ns, &own, spec);
        made.metadata.labels = Some([(WILDCARD_LABEL.to_owned(), domain.to_owned())].into());
        let class = class(&home.metadata, network).to_owned();
        made.metadata.annotations = Some([(CERTIFICATE_ANNOTATIONS[0].to_owned(), class)].into());
        made.metadata.owner_references = owner_references(home);
        Some(made)
    });
    made.collect()
}

/// The name that stands for all of a namespace.
#[must_use]
pub fn wildcard(ns: &str, domain: &str, network: &NetworkSettings) -> Option<String> {
    let (name, namespace) = (Some("*".to_owned()), Some(ns.to_owned()));
    let any = ObjectMeta { name, namespace, ..ObjectMeta::default() };
    let host = network.host(None, &any, domain).to_ascii_lowercase();
    let parent = host.strip_prefix("*.")?;
    (!parent.contains('*')).then_some(host)
}

fn class<'a>(meta: &'a ObjectMeta, network: &'a NetworkSettings) -> &'a str {
    let own = CERTIFICATE_ANNOTATIONS.iter().find_map(|key| annotation(meta, key));
    own.unwrap_or(&network.certificate_class)
}

fn certificate<K: Resource<DynamicType = ()>>(
    of: &K,
    labels: [(&str, &str); 2],
    class: &str,
    spec: CertificateSpec,
) -> Certificate {
    let mut annotations =
        inherited(of.meta().annotations.as_ref(), &[LAST_APPLIED, CERTIFICATE_ANNOTATIONS[1], INGRESS_CLASS]);
    annotations.insert(CERTIFICATE_ANNOTATIONS[0].to_owned(), class.to_owned());
    let labels = labels.into_iter().filter(|(_, value)| value.len() <= LABEL_BYTES_MAX);
    let mut made = Certificate::new(namespace(of.meta()), &spec.secret_name.clone(), spec);
    made.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
    made.metadata.annotations = Some(annotations);
    made.metadata.owner_references = owner_references(of);
    made
}

/// As upstream names them: a tag may be too long for a name, its sum is not.
fn route_name(route: &Route, tag: Option<&str>) -> String {
    let uid = route.metadata.uid.as_deref().unwrap_or_default();
    tag.map_or_else(|| format!("route-{uid}"), |tag| format!("route-{uid}-{}", adler32(tag.as_bytes())))
}

/// RFC 1950's sum.
fn adler32(bytes: &[u8]) -> u32 {
    /// The largest prime below 2^16.
    const MODULUS: u32 = 65_521;
    let (a, b) = bytes.iter().fold((1, 0), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % MODULUS;
        (a, (b + a) % MODULUS)
    });
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::host_tls::HostTls;
    use crate::informer_cache::InformerCache;
    use crate::route_hosts::PublicPorts;
    use types::field_errors::FieldErrors;
    use types::settings::ConfigMapSetting as _;
    use types::shared::label;

    fn made_by(metadata: Value, make: fn(&Route, RouteNaming<'_>) -> Vec<Certificate>) -> Vec<Certificate> {
        let mut route = json!({ "metadata": { "name": "app", "namespace": "ns", "uid": "u" }, "spec": { "traffic": [
            { "revisionName": "a", "percent": 100 }, { "revisionName": "a", "tag": "blue" },
            { "revisionName": "b", "tag": "blue" }
        ] } });
        json_patch::merge(&mut route["metadata"], &metadata);
        let (network, services) = (NetworkSettings::default(), InformerCache::default());
        let naming = RouteNaming {
            domain: "Example.com",
            ports: PublicPorts { http: 80, https: Some(443) },
            tls: &HostTls::NotRequested,
            cluster_local_certificates: &[],
            network: &network,
            services: &services,
        };
        make(&serde_json::from_value(route).unwrap(), naming)
    }

    fn made(metadata: Value) -> Vec<Certificate> {
        made_by(metadata, for_route)
    }

    /// X-RTE-07: one for each public host, named and labelled as upstream does.
    #[test]
    fn a_route_asks_for_a_certificate_for_each_public_host() {
        let annotations = json!({
            "mine": "1", LAST_APPLIED: "{}", CERTIFICATE_ANNOTATIONS[1]: "other.example.com", INGRESS_CLASS: "x"
        });
        let found = made(json!({ "annotations": annotations }));
        let [own, blue] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(own.metadata.name.as_deref(), Some("route-u"));
        assert_eq!(blue.metadata.name.as_deref(), Some("route-u-69140905"), "by zlib's adler32");
        assert_eq!(own.spec.dns_names, ["app.ns.example.com"]);
        let spec = json!({
            "dnsNames": ["blue-app.ns.example.com"], "domain": "example.com", "secretName": "route-u-69140905"
        });
        assert_eq!(serde_json::to_value(&blue.spec).unwrap(), spec);
        let labels = json!({ "serving.knative.dev/route": "app", TYPE_LABEL: "external-domain" });
        assert_eq!(serde_json::to_value(&own.metadata.labels).unwrap(), labels);
        let annotations = json!({ "mine": "1", CERTIFICATE_ANNOTATIONS[0]: "other.example.com" });
        assert_eq!(serde_json::to_value(&own.metadata.annotations).unwrap(), annotations);
    }

    /// X-RTE-07: one for each name inside, be it for the public too or not, with all its spellings.
    #[test]
    fn a_route_asks_for_a_certificate_for_each_name_inside() {
        for labels in [json!({}), json!({ "networking.knative.dev/visibility": "cluster-local" })] {
            let found = made_by(json!({ "labels": labels }), for_cluster_local);
            let [own, blue] = found.as_slice() else { panic!("{found:?}") };
            let spec = json!({
                "dnsNames": ["app.ns", "app.ns.svc", "app.ns.svc.cluster.local"],
                "domain": "svc.cluster.local", "secretName": "route-u-local",
            });
            assert_eq!(serde_json::to_value(&own.spec).unwrap(), spec);
            assert_eq!(own.metadata.name.as_deref(), Some("route-u-local"));
            assert_eq!(blue.metadata.name.as_deref(), Some("route-u-69140905-local"));
            assert_eq!(blue.spec.dns_names[0], "blue-app.ns");
            let labels = json!({ "serving.knative.dev/route": "app", TYPE_LABEL: "cluster-local-domain" });
            assert_eq!(serde_json::to_value(&own.metadata.labels).unwrap(), labels);
        }
    }

    /// X-RTE-07
    #[test]
    fn a_namespace_has_one_for_each_domain_whose_names_a_wildcard_stands_for() {
        let home = |name: &str| Namespace {
            metadata: ObjectMeta { name: Some(name.into()), uid: Some("n".into()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let found = for_namespace(&home("ns"), ["a.test", "b.test"].into_iter(), &NetworkSettings::default());
        let shown: Vec<_> = found.iter().map(|one| (name(&one.metadata), &one.spec.dns_names[..])).collect();
        assert_eq!(shown, [("ns.a.test", &["*.ns.a.test".to_owned()][..]), ("ns.b.test", &["*.ns.b.test".into()])]);
        assert_eq!(label(&found[0].metadata, WILDCARD_LABEL), Some("a.test"));
        let data = [("domain-template".to_owned(), "{{.Name}}-{{.Namespace}}.{{.Domain}}".to_owned())].into();
        let flat = NetworkSettings::parse(&data, &mut FieldErrors::default());
        assert_eq!(for_namespace(&home("ns"), ["a.test"].into_iter(), &flat), []);
    }

    #[test]
    fn a_cluster_local_route_asks_for_none() {
        assert_eq!(made(json!({ "labels": { "networking.knative.dev/visibility": "cluster-local" } })), []);
    }
}

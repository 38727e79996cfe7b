//! The names of a Route: its hosts, and its URLs.

use contract::table::HTTPS_PORT;
use k8s_openapi::api::core::v1::Service;

use crate::host_tls::{HostCertificate, HostTls, ready_certificate};
use crate::informer_cache::InformerCache;
use crate::names::service_host;
use runtime::dns::CLUSTER_DOMAIN;
use support::names::{SUBDOMAIN_CHARS_MAX, is_dns_subdomain, is_dns1123_label, label_error};
use types::serving::annotations::{CLUSTER_LOCAL, VISIBILITY};
use types::serving::route::Route;
use types::settings::{HttpProtocol, NetworkSettings};
use types::shared::{Addressable, label, name, namespace};

/// The port that URLs need not name; the other is [`HTTPS_PORT`].
const HTTP_PORT: u16 = 80;

/// The inputs of hosts, besides the Route.
#[derive(Debug, Clone, Copy)]
pub struct RouteNaming<'a> {
    pub domain: &'a str,
    pub ports: PublicPorts,
    /// The TLS state of its public hosts.
    pub tls: &'a HostTls,
    /// The certificates of its names inside; none unless the operator wants them.
    pub cluster_local_certificates: &'a [HostCertificate],
    /// The operator's templates.
    pub network: &'a NetworkSettings,
    /// Core Services, among them placeholders.
    pub services: &'a InformerCache<Service>,
}

/// The ports of public requests.
#[derive(Debug, Clone, Copy)]
pub struct PublicPorts {
    pub http: u16,
    /// `None`: a proxy in front of us terminates TLS, at its usual port.
    pub https: Option<u16>,
}

impl PublicPorts {
    /// The redirect for clients without TLS: the port that URLs name, if it is ours. A proxy in front of us that
    /// terminates TLS forwards in plaintext.
    #[must_use]
    pub fn redirect(self, protocol: HttpProtocol) -> Option<u16> {
        self.https.filter(|_| protocol == HttpProtocol::Redirected)
    }

    /// The URL of a host, with what clients need not guess.
    #[must_use]
    pub fn url(self, scheme: &str, host: &str) -> String {
        match (scheme, self) {
            ("http", Self { http: HTTP_PORT, .. }) | ("https", Self { https: None | Some(HTTPS_PORT), .. }) => {
                format!("{scheme}://{host}")
            }
            ("https", Self { https: Some(port), .. }) | (_, Self { http: port, .. }) => {
                format!("{scheme}://{host}:{port}")
            }
        }
    }
}

/// Whether only names of the cluster lead to the Route or to its tag: by the Route's label, or by that of the name's
/// placeholder (X-RTE-05).
#[must_use]
pub fn is_cluster_local(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> bool {
    let ns = namespace(&route.metadata);
    label(&route.metadata, VISIBILITY) == Some(CLUSTER_LOCAL)
        || naming.services.is_indexed(ns, &first_label(route, tag, naming), CLUSTER_LOCAL)
}

/// All hosts of the Route, or of one of its tags.
#[must_use]
pub fn hosts(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> Vec<String> {
    let mut hosts = cluster_local_hosts(route, tag, naming);
    if !is_cluster_local(route, tag, naming) {
        hosts.push(public_host(route, tag, naming).to_ascii_lowercase());
    }
    hosts
}

/// The cluster-local hosts.
#[must_use]
pub fn cluster_local_hosts(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> Vec<String> {
    let (first, ns) = (first_label(route, tag, naming), namespace(&route.metadata));
    vec![format!("{first}.{ns}.svc.{CLUSTER_DOMAIN}"), format!("{first}.{ns}.svc"), format!("{first}.{ns}")]
}

/// The URL that clients use.
#[must_use]
pub fn url(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> String {
    if is_cluster_local(route, tag, naming) {
        let host = service_host(&first_label(route, tag, naming), namespace(&route.metadata));
        return cluster_local_url(&host, naming).0;
    }
    let host = public_host(route, tag, naming);
    let scheme = naming.tls.scheme(&host.to_ascii_lowercase(), naming.network.http_protocol);
    naming.ports.url(scheme.unwrap_or(&naming.network.default_external_scheme), &host)
}

/// How other objects reach it.
#[must_use]
pub fn address(route: &Route, naming: RouteNaming<'_>) -> Addressable {
    let (url, ca_certs) = cluster_local_url(&cluster_local_host(route), naming);
    Addressable { url: Some(url), ca_certs, ..Addressable::default() }
}

/// The URL of a cluster-local host, and the authorities that it needs trusted.
fn cluster_local_url(host: &str, naming: RouteNaming<'_>) -> (String, Option<String>) {
    match ready_certificate(naming.cluster_local_certificates, host) {
        Some(held) => (format!("https://{host}"), held.ca_certs.clone()),
        None => (format!("http://{host}"), None),
    }
}

/// Its name for callers inside.
fn cluster_local_host(route: &Route) -> String {
    service_host(name(&route.metadata), namespace(&route.metadata))
}

/// X-RTE-02, X-RTE-03: by the operator's templates.
pub fn public_host(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> String {
    naming.network.host(tag, &route.metadata, naming.domain)
}

/// Why no resolver would take a name of the Route, or of its tag; in upstream's words.
#[must_use]
pub fn host_error(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> Option<String> {
    let public = (!is_cluster_local(route, tag, naming)).then(|| public_host(route, tag, naming).to_ascii_lowercase());
    let inside = service_host(&first_label(route, tag, naming), namespace(&route.metadata));
    let host = public.into_iter().chain([inside]).find(|host| !is_dns_subdomain(host))?;
    let (wrong, why) = match host.split('.').find(|label| !is_dns1123_label(label)) {
        Some(label) => (label, label_error(label)),
        None => (&*host, format!("must be no more than {SUBDOMAIN_CHARS_MAX} bytes")),
    };
    Some(format!("invalid domain name {host:?}: url: Invalid value: {wrong:?}: {why}"))
}

/// The first label of its hosts, or of its tag's.
pub(crate) fn first_label(route: &Route, tag: Option<&str>, naming: RouteNaming<'_>) -> String {
    let name = name(&route.metadata);
    tag.map_or_else(|| name.to_owned(), |tag| naming.network.tagged(tag, name))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;
    use crate::host_tls::CertificateState;
    use crate::indexes::core_service_keys;
    use types::field_errors::FieldErrors;
    use types::serving::route::RouteSpec;
    use types::settings::ConfigMapSetting as _;

    static NETWORK: LazyLock<NetworkSettings> = LazyLock::new(NetworkSettings::default);
    static SERVICES: LazyLock<InformerCache<Service>> = LazyLock::new(InformerCache::default);

    fn naming(http_port: u16) -> RouteNaming<'static> {
        let ports = PublicPorts { http: http_port, https: None };
        RouteNaming {
            domain: "localhost",
            ports,
            tls: &HostTls::NotRequested,
            cluster_local_certificates: &[],
            network: &NETWORK,
            services: &SERVICES,
        }
    }

    /// SRV-ROUTE-08, SRV-ROUTE-09, SRV-TT-04: the URL names host and port; the tag is a prefix of the host.
    #[test]
    fn urls_carry_tag_namespace_domain_and_port() {
        let route = Route::new("ns", "app", RouteSpec::default());
        assert_eq!(url(&route, None, naming(8080)), "http://app.ns.localhost:8080");
        assert_eq!(url(&route, Some("blue"), naming(8080)), "http://blue-app.ns.localhost:8080");
        assert_eq!(url(&route, None, naming(80)), "http://app.ns.localhost");
        assert_eq!(address(&route, naming(80)).url.as_deref(), Some("http://app.ns.svc.cluster.local"));
        assert!(hosts(&route, None, naming(8080)).contains(&"app.ns.localhost".to_owned()));
        assert!(hosts(&route, None, naming(8080)).contains(&"app.ns".to_owned()));
    }

    /// X-RTE-06: TLS is terminated by a proxy in front of us, or here.
    #[test]
    fn the_operator_chooses_the_scheme_of_public_urls() {
        let data = [("default-external-scheme".to_owned(), "https".to_owned())].into();
        let network = NetworkSettings::parse(&data, &mut FieldErrors::default());
        let route = Route::new("ns", "app", RouteSpec::default());
        for (https, wanted) in [
            (None, "https://app.ns.localhost"),
            (Some(443), "https://app.ns.localhost"),
            (Some(8443), "https://app.ns.localhost:8443"),
        ] {
            let naming = RouteNaming { network: &network, ports: PublicPorts { http: 8080, https }, ..naming(80) };
            assert_eq!(url(&route, None, naming), wanted);
            assert_eq!(address(&route, naming).url.as_deref(), Some("http://app.ns.svc.cluster.local"));
        }
    }

    /// X-RTE-06: a proxy in front of us that terminates TLS would send redirected clients back in plaintext, in a
    /// loop.
    #[test]
    fn clients_are_sent_to_a_listener_of_ours_or_nowhere() {
        let sent = |https, protocol| PublicPorts { http: 8080, https }.redirect(protocol);
        assert_eq!(sent(Some(8443), HttpProtocol::Redirected), Some(8443));
        assert_eq!(sent(None, HttpProtocol::Redirected), None);
        assert_eq!(sent(Some(8443), HttpProtocol::Enabled), None);
    }

    #[test]
    fn a_cluster_local_route_has_no_public_host() {
        let mut route = Route::new("ns", "app", RouteSpec::default());
        route.metadata.labels = Some([(VISIBILITY.to_owned(), CLUSTER_LOCAL.to_owned())].into());
        assert!(!hosts(&route, None, naming(8080)).contains(&"app.ns.localhost".to_owned()));
        assert_eq!(url(&route, None, naming(8080)), "http://app.ns.svc.cluster.local");
    }

    /// X-RTE-07: cluster-local URLs use https as soon as there is a certificate, and name its authorities.
    #[test]
    fn names_inside_are_shown_by_tls_when_they_have_certificates() {
        let mut route = Route::new("ns", "app", RouteSpec::default());
        let held = |standing: CertificateState| {
            let hosts = vec!["app.ns.svc.cluster.local".to_owned()];
            [HostCertificate { ca_certs: Some("pem".into()), ..HostCertificate::new("c", hosts, standing) }]
        };
        let (coming, there) = (held(CertificateState::Pending(String::new())), held(CertificateState::Ready(None)));
        let with = |inside| RouteNaming { cluster_local_certificates: inside, ..naming(80) };
        assert_eq!(address(&route, with(&coming)).url.as_deref(), Some("http://app.ns.svc.cluster.local"));
        assert_eq!(address(&route, with(&coming)).ca_certs, None);
        assert_eq!(address(&route, with(&there)).url.as_deref(), Some("https://app.ns.svc.cluster.local"));
        assert_eq!(address(&route, with(&there)).ca_certs.as_deref(), Some("pem"));
        assert_eq!(url(&route, None, with(&there)), "http://app.ns.localhost");
        route.metadata.labels = Some([(VISIBILITY.to_owned(), CLUSTER_LOCAL.to_owned())].into());
        assert_eq!(url(&route, None, with(&there)), "https://app.ns.svc.cluster.local");
    }

    /// COND-12: what is shown as ready can be looked up.
    #[test]
    fn unresolvable_name_is_reported() {
        let route = Route::new("ns", &"n".repeat(50), RouteSpec::default());
        assert_eq!(host_error(&route, None, naming(80)), None);
        assert_eq!(host_error(&route, Some(&"t".repeat(12)), naming(80)), None, "63 characters are a label");
        let label = format!("{}-{}", "t".repeat(13), "n".repeat(50));
        assert_eq!(
            host_error(&route, Some(&"t".repeat(13)), naming(80)),
            Some(format!(
                "invalid domain name \"{label}.ns.localhost\": url: Invalid value: \"{label}\": must be no more \
                 than 63 bytes"
            ))
        );
        let domain = ["d"; 120].join(".");
        let why = host_error(&route, None, RouteNaming { domain: &domain, ..naming(80) }).unwrap();
        assert!(why.ends_with("must be no more than 253 bytes"), "{why}");
    }

    /// X-RTE-02: as the Route is labelled now.
    #[test]
    fn labels_of_the_route_stand_in_its_hosts() {
        let data = [("domain-template".to_owned(), "{{.Name}}.{{.Labels.team}}.{{.Domain}}".to_owned())].into();
        let network = NetworkSettings::parse(&data, &mut FieldErrors::default());
        let naming = RouteNaming { network: &network, ..naming(80) };
        let mut route = Route::new("ns", "app", RouteSpec::default());
        let why = host_error(&route, None, naming).unwrap();
        assert!(why.starts_with("invalid domain name \"app..localhost\""), "{why}");
        route.metadata.labels = Some([("team".to_owned(), "blue".to_owned())].into());
        assert_eq!(
            (host_error(&route, None, naming), url(&route, None, naming)),
            (None, "http://app.blue.localhost".into())
        );
    }

    /// X-RTE-05: one name alone, by the label of its placeholder.
    #[test]
    fn a_tag_is_cluster_local_by_its_placeholder() {
        let labels = Some([(VISIBILITY.to_owned(), CLUSTER_LOCAL.to_owned())].into());
        let services = InformerCache::with_index(core_service_keys);
        let metadata =
            ObjectMeta { name: Some("blue-app".into()), namespace: Some("ns".into()), labels, ..ObjectMeta::default() };
        services.replace(vec![Service { metadata, ..Service::default() }], |_| {});
        let naming = RouteNaming { services: &services, ..naming(80) };
        let route = Route::new("ns", "app", RouteSpec::default());
        assert_eq!(url(&route, Some("blue"), naming), "http://blue-app.ns.svc.cluster.local");
        assert!(!hosts(&route, Some("blue"), naming).contains(&"blue-app.ns.localhost".to_owned()));
        assert_eq!(url(&route, Some("red"), naming), "http://red-app.ns.localhost");
        assert_eq!(url(&route, None, naming), "http://app.ns.localhost");
    }
}

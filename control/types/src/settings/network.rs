//! ConfigMap `config-network`: names, schemes and rollouts.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::sugar::{ObjectSelector, read_selector};
use super::template::{TemplateVariable, fill, render};
use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::classes;
use crate::field_errors::FieldErrors;
use crate::shared::{annotation, label, name, namespace};
use support::names::is_dns_subdomain;

/// Longer than any rollout that an operator plans.
const ROLLOUT_SECONDS_MAX: i64 = 31 * 24 * 3_600;

/// The response to plain HTTP where TLS is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpProtocol {
    /// As if it were TLS.
    Enabled,
    /// A redirect to https.
    Redirected,
    /// Like `Enabled`, but URLs in statuses keep the scheme https while a certificate is missing: all that upstream
    /// left of it.
    Disabled,
}

/// Where certificates are created automatically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AutoTls {
    /// Public hosts get a certificate.
    pub external_domain_tls: bool,
    /// So do names inside.
    pub cluster_local_domain_tls: bool,
    /// Ingresses reach their backends by it.
    pub system_internal_tls: bool,
}

/// The keys that mean something here, with upstream's defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSettings {
    /// The class of the Ingresses that show our routes.
    pub ingress_class: String,
    domain_template: String,
    tag_template: String,
    pub http_protocol: HttpProtocol,
    pub auto_tls: AutoTls,
    /// Namespaces that have one certificate for all their names; `None`: none.
    pub namespace_wildcard_selector: Option<ObjectSelector>,
    /// The class of the Certificates that Routes request.
    pub certificate_class: String,
    /// The scheme of URLs in statuses.
    pub default_external_scheme: String,
    /// How long traffic takes to move to the newest Revision; zero = at once.
    pub rollout_duration: Duration,
    /// Whether a DomainMapping makes the ClusterDomainClaim that it needs.
    pub autocreate_cluster_domain_claims: bool,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            ingress_class: classes::INGRESS.into(),
            domain_template: "{{.Name}}.{{.Namespace}}.{{.Domain}}".into(),
            tag_template: "{{.Tag}}-{{.Name}}".into(),
            http_protocol: HttpProtocol::Enabled,
            auto_tls: AutoTls::default(),
            namespace_wildcard_selector: None,
            certificate_class: classes::CERTIFICATE.into(),
            default_external_scheme: "http".into(),
            rollout_duration: Duration::ZERO,
            autocreate_cluster_domain_claims: false,
        }
    }
}

impl NetworkSettings {
    /// The host of a Route that has `meta`, or of one of its tags, in `domain` (X-RTE-02, X-RTE-03). A label or
    /// annotation that it does not have is an empty text.
    #[must_use]
    pub fn host(&self, tag: Option<&str>, meta: &ObjectMeta, domain: &str) -> String {
        let own = name(meta);
        let own = tag.map_or_else(|| own.to_owned(), |tag| self.tagged(tag, own));
        let found = render(&self.domain_template, |word| match word {
            TemplateVariable::Field("Name") => Some(&own),
            TemplateVariable::Field("Namespace") => Some(namespace(meta)),
            TemplateVariable::Field("Domain") => Some(domain),
            TemplateVariable::MapEntry("Labels", key) => Some(label(meta, key).unwrap_or_default()),
            TemplateVariable::MapEntry("Annotations", key) => Some(annotation(meta, key).unwrap_or_default()),
            _ => None,
        });
        // Refused by `parse` if it did not render.
        found.unwrap_or_default()
    }

    /// Replaces the name in the hosts of a tag.
    #[must_use]
    pub fn tagged(&self, tag: &str, name: &str) -> String {
        fill(&self.tag_template, &[("Tag", tag), ("Name", name)]).unwrap_or_default()
    }
}

impl ConfigMapSetting for NetworkSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-network";
    const EXAMPLE: &'static str = "\
ingress-class: \"sluicegate.ingress.networking.knative.dev\"
domain-template: \"{{.Name}}.{{.Namespace}}.{{.Domain}}\"
tag-template: \"{{.Tag}}-{{.Name}}\"
http-protocol: \"Enabled\"
# Whether public hosts get certificates, and of which class.
external-domain-tls: \"Disabled\"
# Whether the names by which Services call each other do.
cluster-local-domain-tls: \"Disabled\"
# Namespaces with these labels have one certificate for all their names; {} means all of them.
namespace-wildcard-cert-selector: \"\"
# Whether Ingresses reach their Services by TLS.
system-internal-tls: \"Disabled\"
certificate-class: \"sluicegate.certificate.networking.knative.dev\"
default-external-scheme: \"http\"
# In seconds.
rollout-duration: \"0\"
autocreate-cluster-domain-claims: \"false\"
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let mut read = ConfigMapReader::of(data, problems);
        read.text("ingress-class", is_dns_subdomain, "a class's name", &mut config.ingress_class);
        let names_a_host = |template: &str| {
            let found = render(template, |word| match word {
                TemplateVariable::Field("Name") => Some("n"),
                TemplateVariable::Field("Namespace") => Some("ns"),
                TemplateVariable::Field("Domain") => Some("example.com"),
                // An object without that label or annotation has no host, and its status says so.
                TemplateVariable::MapEntry("Labels" | "Annotations", _) => Some("l"),
                _ => None,
            });
            found.is_some_and(|host| is_dns_subdomain(&host) && host != "n")
        };
        let what = "a template of {{.Name}}, {{.Namespace}}, {{.Domain}}, {{index .Labels \"KEY\"}} and {{index \
                    .Annotations \"KEY\"}} that gives a DNS name";
        read.text("domain-template", names_a_host, what, &mut config.domain_template);
        let names_a_tag = |template: &str| {
            let one = fill(template, &[("Tag", "t"), ("Name", "n")]);
            one.is_some_and(|name| is_dns_subdomain(&name) && name.contains('t') && name.contains('n'))
        };
        let what = "a template of {{.Tag}} and {{.Name}} that gives a part of a DNS name";
        read.text("tag-template", names_a_tag, what, &mut config.tag_template);
        let protocols = [
            ("Enabled", HttpProtocol::Enabled),
            ("Redirected", HttpProtocol::Redirected),
            ("Disabled", HttpProtocol::Disabled),
            ("", HttpProtocol::Enabled),
        ];
        for key in ["httpProtocol", "http-protocol"] {
            read.one_of(key, &protocols, &mut config.http_protocol);
        }
        // The newer name counts for more.
        for key in ["autoTLS", "auto-tls", "external-domain-tls"] {
            read.enabled_or_disabled(key, &mut config.auto_tls.external_domain_tls);
        }
        read.enabled_or_disabled("cluster-local-domain-tls", &mut config.auto_tls.cluster_local_domain_tls);
        read.flag("internal-encryption", &mut config.auto_tls.system_internal_tls);
        // Unlike the others, it says nothing against the older key.
        let mut backends = false;
        read.enabled_or_disabled("system-internal-tls", &mut backends);
        config.auto_tls.system_internal_tls |= backends;
        for key in ["certificate.class", "certificate-class"] {
            read.text(key, is_dns_subdomain, "a class's name", &mut config.certificate_class);
        }
        let is_scheme = |text: &str| matches!(text, "http" | "https");
        for key in ["defaultExternalScheme", "default-external-scheme"] {
            read.text(key, is_scheme, "http or https", &mut config.default_external_scheme);
        }
        let mut seconds = 0;
        read.integer("rollout-duration", 0..=ROLLOUT_SECONDS_MAX, &mut seconds);
        config.rollout_duration = Duration::from_secs(seconds.unsigned_abs());
        read.flag("autocreate-cluster-domain-claims", &mut config.autocreate_cluster_domain_claims);
        config.namespace_wildcard_selector = read_selector(data, "namespace-wildcard-cert-selector", read.problems);
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str, value: &str) -> (NetworkSettings, usize) {
        let mut problems = FieldErrors::default();
        let network = NetworkSettings::parse(&ConfigMapData::from([(key.to_owned(), value.to_owned())]), &mut problems);
        (network, problems.list.len())
    }

    fn app() -> ObjectMeta {
        let (name, namespace) = (Some("app".into()), Some("ns".into()));
        ObjectMeta { name, namespace, ..ObjectMeta::default() }
    }

    /// X-RTE-02, X-RTE-03
    #[test]
    fn hosts_are_made_by_the_templates() {
        let (plain, meta) = (NetworkSettings::default(), app());
        assert_eq!(plain.host(None, &meta, "example.com"), "app.ns.example.com");
        assert_eq!(plain.host(Some("blue"), &meta, "example.com"), "blue-app.ns.example.com");
        let (flat, _) = parse("domain-template", "{{.Name}}-{{ .Namespace }}.{{.Domain}}");
        assert_eq!(flat.host(None, &meta, "example.com"), "app-ns.example.com");
        let (turned, _) = parse("tag-template", "{{.Name}}-{{.Tag}}");
        assert_eq!(turned.host(Some("blue"), &meta, "example.com"), "app-blue.ns.example.com");
    }

    /// X-RTE-02: labels and annotations too, and what is not there is empty, as in Go.
    #[test]
    fn a_host_may_have_labels_and_annotations_in_it() {
        let (mut meta, bare) = (app(), app());
        meta.labels = Some([("team".to_owned(), "red".to_owned())].into());
        meta.annotations = Some([("example.com/sub".to_owned(), "api".to_owned())].into());
        for (template, host, without) in [
            ("{{.Name}}.{{.Labels.team}}.{{.Domain}}", "app.red.example.com", "app..example.com"),
            ("{{.Name}}{{index .Labels \"team\"}}.{{.Domain}}", "appred.example.com", "app.example.com"),
            (
                "{{index .Annotations \"example.com/sub\"}}-{{.Name}}.{{.Domain}}",
                "api-app.example.com",
                "-app.example.com",
            ),
        ] {
            let (network, problems) = parse("domain-template", template);
            assert_eq!(problems, 0, "{template}");
            assert_eq!(network.host(None, &meta, "example.com"), host);
            assert_eq!(network.host(None, &bare, "example.com"), without);
        }
    }

    /// X-RTE-06: in any case, under its present key or its former one, which counts less.
    #[test]
    fn the_protocol_of_clients_without_tls_is_read() {
        for (value, protocol) in [
            ("redirected", HttpProtocol::Redirected),
            ("DISABLED", HttpProtocol::Disabled),
            ("", HttpProtocol::Enabled),
        ] {
            for key in ["http-protocol", "httpProtocol"] {
                let (network, problems) = parse(key, value);
                assert_eq!((network.http_protocol, problems), (protocol, 0), "{key}={value}");
            }
        }
        let both = [("http-protocol", "Enabled"), ("httpProtocol", "Redirected")];
        let data = both.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(NetworkSettings::parse(&data, &mut FieldErrors::default()).http_protocol, HttpProtocol::Enabled);
    }

    /// X-RTE-07: under all of its names, old and new.
    #[test]
    fn tls_for_external_domains_is_switched_on() {
        for key in ["autoTLS", "auto-tls", "external-domain-tls"] {
            for (value, on) in [("Enabled", true), ("enabled", true), ("Disabled", false), ("", false)] {
                let (network, problems) = parse(key, value);
                assert_eq!((network.auto_tls.external_domain_tls, problems), (on, 0), "{key}={value}");
            }
        }
        let both = [("auto-tls", "Enabled"), ("external-domain-tls", "Disabled")];
        let data = both.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert!(!NetworkSettings::parse(&data, &mut FieldErrors::default()).auto_tls.external_domain_tls);
    }

    /// X-RTE-07
    #[test]
    fn tls_for_names_inside_is_switched_on() {
        for (value, on) in [("Enabled", true), ("enabled", true), ("Disabled", false), ("", false)] {
            let (network, problems) = parse("cluster-local-domain-tls", value);
            let AutoTls {
                cluster_local_domain_tls: local_domains,
                external_domain_tls: external_domains,
                system_internal_tls: backends,
            } = network.auto_tls;
            assert_eq!((local_domains, external_domains, backends, problems), (on, false, false, 0), "{value}");
        }
    }

    /// X-RTE-07
    #[test]
    fn tls_to_backends_is_switched_on() {
        for (key, value, on) in [
            ("system-internal-tls", "Enabled", true),
            ("system-internal-tls", "disabled", false),
            ("internal-encryption", "true", true),
        ] {
            assert_eq!(parse(key, value).0.auto_tls.system_internal_tls, on, "{key}={value}");
        }
        let both = [("internal-encryption", "true"), ("system-internal-tls", "Disabled")];
        let data = both.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert!(NetworkSettings::parse(&data, &mut FieldErrors::default()).auto_tls.system_internal_tls);
    }

    #[test]
    fn a_template_that_gives_no_host_and_other_nonsense_is_refused() {
        for (key, value) in [
            ("domain-template", "{{.Name}"),
            ("domain-template", "{{.Nmae}}.{{.Domain}}"),
            ("domain-template", "{{index .Annotations a}}.{{.Domain}}"),
            ("domain-template", "{{.Spec.traffic}}.{{.Domain}}"),
            ("tag-template", "{{.Tag}}-{{.Name}}-{{.Labels.a}}"),
            ("domain-template", "-{{.Name}}.{{.Domain}}"),
            ("tag-template", "{{.Name}}"),
            ("http-protocol", "Sometimes"),
            ("httpProtocol", "Sometimes"),
            ("external-domain-tls", "true"),
            ("cluster-local-domain-tls", "true"),
            ("system-internal-tls", "true"),
            ("internal-encryption", "Enabled"),
            ("certificate-class", "no class"),
            ("namespace-wildcard-cert-selector", "all"),
            ("default-external-scheme", "ftp"),
            ("rollout-duration", "-1"),
            ("rollout-duration", "10s"),
            ("autocreate-cluster-domain-claims", "yes"),
        ] {
            assert_eq!(parse(key, value), (NetworkSettings::default(), 1), "{key}={value}");
        }
    }
}

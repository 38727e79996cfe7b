//! ConfigMap `config-kreference-mapping`: URLs for objects without an address of their own (X-FEA-02).

use std::collections::BTreeMap;

use super::template::fill;
use super::{ConfigMapData, ConfigMapSetting, EVENTING};
use crate::field_errors::FieldErrors;
use crate::shared::KReference;

/// A template for each kind that the operator gives URLs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KReferenceMapping {
    /// URL templates by `apiVersion` and kind.
    list: BTreeMap<(String, String), String>,
}

impl ConfigMapSetting for KReferenceMapping {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "config-kreference-mapping";
    const HAS_FREE_KEYS: bool = true;
    const EXAMPLE: &'static str = "\
# Where events go that are sent to objects of a kind without an address: KIND.VERSION, or KIND.VERSION.GROUP. It counts
# if config-features says `kreference-mapping: enabled`. There are Name, Namespace and UID of the object, and
# SystemNamespace.
# Pod.v1: https://addressable-pod.{{ .SystemNamespace }}.svc.cluster.local/{{ .Name }}
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut list = BTreeMap::new();
        for (key, template) in data.iter().filter(|(key, _)| *key != "_example") {
            let mut wrong = |why: &str| {
                problems.add(format!("data[{key}]"), format!("invalid value: {template}: {why}"));
            };
            let mut parts = key.splitn(3, '.').filter(|part| !part.is_empty());
            let (Some(kind), Some(version)) = (parts.next(), parts.next()) else {
                wrong("the key has to be KIND.VERSION or KIND.VERSION.GROUP");
                continue;
            };
            let is_url =
                |url: String| url.parse::<http::Uri>().is_ok_and(|url| url.scheme().is_some() && url.host().is_some());
            if !url(template.trim(), "name", "namespace").is_some_and(is_url) {
                wrong(
                    "a URL is needed, in which {{ .Name }}, {{ .Namespace }}, {{ .SystemNamespace }} and {{ .UID }} may be used",
                );
                continue;
            }
            let api_version = parts.next().map_or(version.to_owned(), |group| format!("{group}/{version}"));
            list.insert((api_version, kind.to_owned()), template.trim().to_owned());
        }
        Self { list }
    }
}

impl KReferenceMapping {
    /// The URL for events to the object with this `apiVersion` and `kind`; `None`: its own address.
    #[must_use]
    pub fn url(&self, reference: &KReference, namespace: &str) -> Option<String> {
        let kind = (reference.api_version.clone(), reference.kind.clone());
        url(self.list.get(&kind)?, &reference.name, namespace)
    }
}

fn url(template: &str, name: &str, namespace: &str) -> Option<String> {
    // A reference does not tell a uid; upstream puts nothing there either.
    let fields = [("Name", name), ("Namespace", namespace), ("SystemNamespace", EVENTING), ("UID", "")];
    fill(template, &fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str, template: &str) -> (KReferenceMapping, usize) {
        let mut problems = FieldErrors::default();
        let mappings =
            KReferenceMapping::parse(&ConfigMapData::from([(key.to_owned(), template.to_owned())]), &mut problems);
        (mappings, problems.list.len())
    }

    fn to(api_version: &str, kind: &str) -> KReference {
        KReference { api_version: api_version.into(), kind: kind.into(), name: "me".into(), ..KReference::default() }
    }

    /// X-FEA-02: a kind of the core group and one of another.
    #[test]
    fn a_kind_has_the_url_that_its_template_makes() {
        let (pods, 0) = parse("Pod.v1", "https://p.{{ .SystemNamespace }}.svc/{{ .Namespace }}/{{ .Name }}") else {
            panic!("refused")
        };
        let found = pods.url(&to("v1", "Pod"), "ns");
        assert_eq!(found.as_deref(), Some("https://p.knative-eventing.svc/ns/me"));
        assert_eq!(pods.url(&to("v1", "Service"), "ns"), None);
        let (things, _) = parse("Thing.v2.example.com", "http://things.example/{{.Name}}");
        assert!(things.url(&to("example.com/v2", "Thing"), "ns").is_some());
    }

    #[test]
    fn what_is_no_kind_and_what_makes_no_url_is_refused() {
        for (key, template) in
            [("Pod", "http://a/"), ("Pod.v1", "/{{ .Name }}"), ("Pod.v1", "http://a/{{ .Nobody }}"), ("Pod.v1", "")]
        {
            assert_eq!(parse(key, template), (KReferenceMapping::default(), 1), "{key}: {template}");
        }
    }
}

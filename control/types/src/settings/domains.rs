//! ConfigMap `config-domain`: the domain of a Route's hosts.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{ConfigMapData, ConfigMapSetting, SERVING};
use crate::field_errors::FieldErrors;
use support::names::is_dns_subdomain;

/// Domains with the labels that a Route must have to be in them (X-RTE-01).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// Domains by name.
    list: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DomainSelector {
    selector: BTreeMap<String, String>,
    /// Upstream's `type: wildcard`, which is the only one.
    r#type: Option<String>,
}

impl ConfigMapSetting for DomainSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-domain";
    const HAS_FREE_KEYS: bool = true;
    const EXAMPLE: &'static str = "\
# Hosts of Routes that have all of these labels. The choice with the most labels wins.
example.org: |
  selector:
    app: prod
# Hosts of all others. Without such a key they are in the domain that the appliance was started with.
example.com: \"\"
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut list = BTreeMap::new();
        for (domain, text) in data.iter().filter(|(key, _)| *key != "_example") {
            let mut wrong = |why: &str| {
                problems.add(format!("data[{domain}]"), format!("invalid value: {text}: {why}"));
            };
            if !is_dns_subdomain(domain) {
                wrong("the key is not a DNS name");
                continue;
            }
            // An empty text is YAML's null.
            match serde_norway::from_str::<Option<DomainSelector>>(text) {
                Ok(choice) => drop(list.insert(domain.clone(), choice.unwrap_or_default().selector)),
                Err(_) => wrong("the value must be empty, or `selector:` with labels"),
            }
        }
        Self { list }
    }
}

impl DomainSettings {
    /// All that are not the cluster's own.
    pub fn public(&self) -> impl Iterator<Item = &str> {
        self.list.keys().map(String::as_str).filter(|domain| !domain.ends_with("cluster.local"))
    }

    /// The domain of a Route with these labels. The most labels win, then the first name; `None` when
    /// nothing is configured for it.
    #[must_use]
    pub fn of(&self, labels: &BTreeMap<String, String>) -> Option<&str> {
        let fits =
            |selector: &BTreeMap<String, String>| selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        let fitting = self.list.iter().filter(|(_, selector)| fits(selector));
        // `min_by_key` keeps the first of equals, and the map is in the order of names.
        fitting.min_by_key(|(_, selector)| usize::MAX - selector.len()).map(|(domain, _)| domain.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// X-RTE-01
    #[test]
    fn the_most_specific_domain_wins_and_then_the_first() {
        let mut problems = FieldErrors::default();
        let domains = DomainSettings::parse(
            &map(&[
                ("z.example", ""),
                ("b.example", "selector: {app: prod}"),
                ("a.example", "selector: {app: prod}"),
                ("c.example", "selector: {app: prod, tier: one}"),
                ("_example", "nonsense: ["),
            ]),
            &mut problems,
        );
        assert_eq!(problems.list, []);
        assert_eq!(domains.of(&map(&[])), Some("z.example"));
        assert_eq!(domains.of(&map(&[("app", "prod")])), Some("a.example"));
        assert_eq!(domains.of(&map(&[("app", "prod"), ("tier", "one")])), Some("c.example"));
        assert_eq!(DomainSettings::default().of(&map(&[])), None);
    }

    #[test]
    fn what_is_no_domain_or_no_selector_is_named() {
        for (key, value) in [("not a domain", ""), ("a.example", "selector: ["), ("a.example", "labels: {}")] {
            let mut problems = FieldErrors::default();
            let domains = DomainSettings::parse(&map(&[(key, value)]), &mut problems);
            assert_eq!(problems.list[0].field, format!("data[{key}]"));
            assert_eq!(domains, DomainSettings::default());
        }
    }
}

//! ConfigMaps `config-br-defaults` and `default-ch-webhook`: defaults of Brokers and Channels,
//! for all namespaces and for single ones.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ConfigMapData, ConfigMapSetting, EVENTING};
use crate::delivery::validate_delivery;
use crate::field_errors::FieldErrors;
use crate::shared::{DeliverySpec, KReference};

const BROKERS: &str = "default-br-config";
const CHANNELS: &str = "default-ch-config";

/// The default for all namespaces, and overrides for single ones.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "T: DeserializeOwned")]
struct ScopedDefaults<T> {
    cluster_default: Option<T>,
    namespace_defaults: BTreeMap<String, T>,
}

impl<T> Default for ScopedDefaults<T> {
    fn default() -> Self {
        Self { cluster_default: None, namespace_defaults: BTreeMap::new() }
    }
}

impl<T> ScopedDefaults<T> {
    fn get(&self, namespace: &str) -> Option<&T> {
        self.namespace_defaults.get(namespace).or(self.cluster_default.as_ref())
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.cluster_default.iter().chain(self.namespace_defaults.values())
    }
}

/// The defaults of Brokers in a namespace, or in all.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BrokerClassDefaults {
    /// The class of Brokers without one.
    broker_class: Option<String>,
    /// For the class above.
    #[serde(flatten)]
    config: BrokerDefaultConfig,
    /// For single classes, and before what is said for all.
    broker_classes: BTreeMap<String, BrokerDefaultConfig>,
    /// A Broker's `spec.config` is an object of its own namespace.
    disallow_different_namespace_config: bool,
}

/// The defaults of a Broker of some class.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerDefaultConfig {
    /// Its `spec.config`, which needs all of the first three.
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub delivery: Option<DeliverySpec>,
}

impl BrokerClassDefaults {
    fn configs(&self) -> impl Iterator<Item = &BrokerDefaultConfig> {
        self.broker_classes.values().chain([&self.config])
    }

    /// The defaults for this class, if there are any. Without a class, they apply to every class.
    fn config(&self, class: &str) -> Option<&BrokerDefaultConfig> {
        let is_for_it = self.broker_class.as_deref().is_none_or(|of| of == class);
        let of_all = (is_for_it && self.config != BrokerDefaultConfig::default()).then_some(&self.config);
        self.broker_classes.get(class).or(of_all)
    }
}

impl BrokerDefaultConfig {
    /// The `spec.config` of Brokers that give none.
    #[must_use]
    pub fn reference(&self) -> Option<KReference> {
        Some(KReference {
            api_version: self.api_version.clone()?,
            kind: self.kind.clone()?,
            name: self.name.clone()?,
            namespace: self.namespace.clone(),
            ..KReference::default()
        })
    }
}

/// The template of a Channel without one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelDefaultTemplate {
    pub api_version: String,
    pub kind: String,
    pub spec: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokerDefaults(ScopedDefaults<BrokerClassDefaults>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChannelDefaults(ScopedDefaults<ChannelDefaultTemplate>);

impl BrokerDefaults {
    /// The namespace's default before that of all.
    fn each(&self, namespace: &str) -> impl Iterator<Item = &BrokerClassDefaults> {
        self.0.namespace_defaults.get(namespace).into_iter().chain(&self.0.cluster_default)
    }

    /// The class of Brokers without one; `None` if nothing is configured.
    #[must_use]
    pub fn class(&self, namespace: &str) -> Option<&str> {
        self.each(namespace).find_map(|default| default.broker_class.as_deref())
    }

    /// The default of the class in the namespace, or else for all; for a class without one, the default there for
    /// all Brokers.
    #[must_use]
    pub fn config(&self, namespace: &str, class: &str) -> Option<&BrokerDefaultConfig> {
        let of_all = self.0.cluster_default.as_ref().map(|default| &default.config);
        self.each(namespace).find_map(|default| default.config(class)).or(of_all)
    }

    /// Whether a Broker may be configured by an object of another namespace.
    #[must_use]
    pub fn allows_config_in_other_namespace(&self, namespace: &str) -> bool {
        self.each(namespace).all(|default| !default.disallow_different_namespace_config)
    }
}

impl ChannelDefaults {
    /// `None`: nothing is configured for that namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Option<&ChannelDefaultTemplate> {
        self.0.get(namespace)
    }
}

fn read<T: DeserializeOwned>(data: &ConfigMapData, key: &str, problems: &mut FieldErrors) -> ScopedDefaults<T> {
    let Some(text) = data.get(key) else { return ScopedDefaults::default() };
    match serde_norway::from_str::<Option<ScopedDefaults<T>>>(text) {
        Ok(read) => read.unwrap_or_default(),
        Err(why) => {
            problems.add(format!("data[{key}]"), format!("invalid value: {why}"));
            ScopedDefaults::default()
        }
    }
}

impl ConfigMapSetting for BrokerDefaults {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "config-br-defaults";
    const EXAMPLE: &'static str = "\
# default-br-config: |
#   clusterDefault:
#     delivery: { retry: 10, backoffPolicy: exponential, backoffDelay: PT0.2S }
#   namespaceDefaults:
#     my-namespace:
#       delivery: { retry: 3 }
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let config: ScopedDefaults<BrokerClassDefaults> = read(data, BROKERS, problems);
        let mut wrong = FieldErrors::default();
        for one in config.all().flat_map(BrokerClassDefaults::configs) {
            if let Some(delivery) = &one.delivery {
                validate_delivery(delivery, &format!("data[{BROKERS}].delivery"), &mut wrong);
            }
            let named = [&one.api_version, &one.kind, &one.name].into_iter().flatten().count();
            if named != 0 && named != 3 {
                wrong.add(format!("data[{BROKERS}]"), "apiVersion, kind and name are needed together");
            }
        }
        if wrong.list.is_empty() {
            return Self(config);
        }
        problems.list.append(&mut wrong.list);
        Self::default()
    }
}

impl ConfigMapSetting for ChannelDefaults {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "default-ch-webhook";
    const EXAMPLE: &'static str = "\
# default-ch-config: |
#   clusterDefault:
#     apiVersion: messaging.knative.dev/v1
#     kind: InMemoryChannel
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let config: ScopedDefaults<ChannelDefaultTemplate> = read(data, CHANNELS, problems);
        if config.all().any(|one| one.api_version.is_empty() || one.kind.is_empty()) {
            problems.add(format!("data[{CHANNELS}]"), "apiVersion and kind are needed");
            return Self::default();
        }
        Self(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<S: ConfigMapSetting>(key: &str, value: &str) -> (S, Vec<String>) {
        let mut problems = FieldErrors::default();
        let setting = S::parse(&ConfigMapData::from([(key.to_owned(), value.to_owned())]), &mut problems);
        (setting, problems.list.into_iter().map(|problem| problem.field).collect())
    }

    #[test]
    fn a_namespaces_own_default_wins_over_the_clusters() {
        let yaml = "clusterDefault: {brokerClass: A, delivery: {retry: 10}}\nnamespaceDefaults: {ns: {brokerClass: B}}";
        let (brokers, problems) = parse::<BrokerDefaults>(BROKERS, yaml);
        assert_eq!(problems, [] as [&str; 0]);
        let class = |namespace| brokers.class(namespace);
        assert_eq!((class("ns"), class("other")), (Some("B"), Some("A")));
        let yaml = "clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel}";
        let (channels, _) = parse::<ChannelDefaults>(CHANNELS, yaml);
        assert_eq!(channels.of("any").unwrap().kind, "InMemoryChannel");
        assert!(ChannelDefaults::default().of("any").is_none());
    }

    /// EV-RTE-17: as upstream has it, by namespace and class.
    #[test]
    fn a_brokers_class_has_its_own_default() {
        let yaml = "clusterDefault:\n  brokerClass: A\n  delivery: {retry: 1}\n  brokerClasses: {B: {delivery: {retry: 2}}}\n\
            namespaceDefaults:\n  ns:\n    brokerClass: C\n    delivery: {retry: 3}\n    brokerClasses: {D: {delivery: {retry: 4}}}\n\
            \x20 plain: {delivery: {retry: 5}}\n  named: {brokerClass: B}\n";
        let (brokers, problems) = parse::<BrokerDefaults>(BROKERS, yaml);
        assert_eq!(problems, [] as [&str; 0]);
        let retry = |namespace, class| brokers.config(namespace, class)?.delivery.as_ref()?.retry;
        for (namespace, class, expected) in [
            ("other", "A", 1),
            ("other", "B", 2),
            ("other", "E", 1),
            ("ns", "C", 3),
            ("ns", "D", 4),
            ("ns", "B", 2),
            ("ns", "A", 1),
            ("plain", "A", 5),
            ("named", "B", 2),
        ] {
            assert_eq!(retry(namespace, class), Some(expected), "{namespace} {class}");
        }
        assert_eq!(["ns", "plain", "named"].map(|ns| brokers.class(ns)), [Some("C"), Some("A"), Some("B")]);
    }

    #[test]
    fn what_cannot_be_read_or_makes_no_sense_is_refused_with_its_key() {
        for yaml in [
            "[",
            "clusterDefault: 7",
            "clusterDefault: {delivery: {backoffPolicy: sometimes}}",
            "clusterDefault: {kind: ConfigMap}",
            "namespaceDefaults: {ns: {brokerClasses: {A: {name: c}}}}",
        ] {
            let (brokers, problems) = parse::<BrokerDefaults>(BROKERS, yaml);
            assert!(problems[0].starts_with("data[default-br-config]"), "{yaml}: {problems:?}");
            assert_eq!(brokers, BrokerDefaults::default());
        }
        assert_eq!(parse::<ChannelDefaults>(CHANNELS, "clusterDefault: {kind: A}").1.len(), 1);
    }
}

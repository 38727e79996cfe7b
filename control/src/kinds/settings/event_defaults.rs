//! ConfigMaps `config-br-defaults` and `default-ch-webhook`: what a Broker and a Channel get that say
//! nothing themselves, for all namespaces and for single ones.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Data, EVENTING, Setting};
use crate::kind::Problems;
use crate::kinds::eventing::rules::validate_delivery;
use crate::kinds::shared::{DeliverySpec, KReference};

const BROKERS: &str = "default-br-config";
const CHANNELS: &str = "default-ch-config";

/// What holds for all namespaces, and instead of it for single ones.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "T: DeserializeOwned")]
struct Scoped<T> {
    cluster_default: Option<T>,
    namespace_defaults: BTreeMap<String, T>,
}

impl<T> Default for Scoped<T> {
    fn default() -> Self {
        Self { cluster_default: None, namespace_defaults: BTreeMap::new() }
    }
}

impl<T> Scoped<T> {
    fn of(&self, namespace: &str) -> Option<&T> {
        self.namespace_defaults.get(namespace).or(self.cluster_default.as_ref())
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.cluster_default.iter().chain(self.namespace_defaults.values())
    }
}

/// What a Broker is filled with.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerDefault {
    pub broker_class: Option<String>,
    /// Its `spec.config`, which needs all of the first three.
    pub api_version: Option<String>,
    pub kind: Option<String>,
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub delivery: Option<DeliverySpec>,
}

impl BrokerDefault {
    /// The `spec.config` of Brokers that give none.
    #[must_use]
    pub fn config(&self) -> Option<KReference> {
        Some(KReference {
            api_version: self.api_version.clone()?,
            kind: self.kind.clone()?,
            name: self.name.clone()?,
            namespace: self.namespace.clone(),
            ..KReference::default()
        })
    }
}

/// What a Channel without a template is made of.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelDefault {
    pub api_version: String,
    pub kind: String,
    pub spec: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokerDefaults(Scoped<BrokerDefault>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChannelDefaults(Scoped<ChannelDefault>);

impl BrokerDefaults {
    /// `None`: nothing is configured for that namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Option<&BrokerDefault> {
        self.0.of(namespace)
    }
}

impl ChannelDefaults {
    /// `None`: nothing is configured for that namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Option<&ChannelDefault> {
        self.0.of(namespace)
    }
}

fn read<T: DeserializeOwned>(data: &Data, key: &str, problems: &mut Problems) -> Scoped<T> {
    let Some(text) = data.get(key) else { return Scoped::default() };
    match serde_norway::from_str::<Option<Scoped<T>>>(text) {
        Ok(read) => read.unwrap_or_default(),
        Err(why) => {
            problems.add(format!("data[{key}]"), format!("invalid value: {why}"));
            Scoped::default()
        }
    }
}

impl Setting for BrokerDefaults {
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

    fn parse(data: &Data, problems: &mut Problems) -> Self {
        let config: Scoped<BrokerDefault> = read(data, BROKERS, problems);
        let mut wrong = Problems::default();
        for one in config.all() {
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

impl Setting for ChannelDefaults {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "default-ch-webhook";
    const EXAMPLE: &'static str = "\
# default-ch-config: |
#   clusterDefault:
#     apiVersion: messaging.knative.dev/v1
#     kind: InMemoryChannel
";

    fn parse(data: &Data, problems: &mut Problems) -> Self {
        let config: Scoped<ChannelDefault> = read(data, CHANNELS, problems);
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

    fn parse<S: Setting>(key: &str, value: &str) -> (S, Vec<String>) {
        let mut problems = Problems::default();
        let setting = S::parse(&Data::from([(key.to_owned(), value.to_owned())]), &mut problems);
        (setting, problems.list.into_iter().map(|problem| problem.field).collect())
    }

    #[test]
    fn a_namespaces_own_default_wins_over_the_clusters() {
        let yaml = "clusterDefault: {brokerClass: A, delivery: {retry: 10}}\nnamespaceDefaults: {ns: {brokerClass: B}}";
        let (brokers, problems) = parse::<BrokerDefaults>(BROKERS, yaml);
        assert_eq!(problems, [] as [&str; 0]);
        let class = |namespace| brokers.of(namespace).unwrap().broker_class.as_deref();
        assert_eq!((class("ns"), class("other")), (Some("B"), Some("A")));
        let yaml = "clusterDefault: {apiVersion: messaging.knative.dev/v1, kind: InMemoryChannel}";
        let (channels, _) = parse::<ChannelDefaults>(CHANNELS, yaml);
        assert_eq!(channels.of("any").unwrap().kind, "InMemoryChannel");
        assert!(ChannelDefaults::default().of("any").is_none());
    }

    #[test]
    fn what_cannot_be_read_or_makes_no_sense_is_refused_with_its_key() {
        for yaml in [
            "[",
            "clusterDefault: 7",
            "clusterDefault: {delivery: {backoffPolicy: sometimes}}",
            "clusterDefault: {kind: ConfigMap}",
        ] {
            let (brokers, problems) = parse::<BrokerDefaults>(BROKERS, yaml);
            assert!(problems[0].starts_with("data[default-br-config]"), "{yaml}: {problems:?}");
            assert_eq!(brokers, BrokerDefaults::default());
        }
        assert_eq!(parse::<ChannelDefaults>(CHANNELS, "clusterDefault: {kind: A}").1.len(), 1);
    }
}

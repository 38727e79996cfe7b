//! The operator's ConfigMaps: one typed struct each, read on every change, rejected with the name of the
//! key when a value is invalid.
//!
//! [`Settings`] is a snapshot of all of them. Admission gets it with the [`Requester`](crate::kind_registry::RequestContext),
//! controllers from their context; a change takes effect at the next read, without a restart. A new map is a
//! type that implements [`ConfigMapSetting`] and a line in [`Settings`].

pub mod autoscaler;
mod config_map_reader;
mod defaults;
mod deployment;
mod domains;
mod event_defaults;
mod event_features;
mod features;
mod gc;
mod kreference_mapping;
mod network;
mod observability;
mod sugar;
mod template;
mod unused_maps;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::shared::{name, namespace};
use crate::field_errors::FieldErrors;

pub use autoscaler::AutoscalerSettings;
pub use config_map_reader::ConfigMapReader;
pub use defaults::RevisionDefaults;
pub use deployment::DeploymentSettings;
pub use domains::DomainSettings;
pub use event_defaults::{BrokerDefaultConfig, BrokerDefaults, ChannelDefaultTemplate, ChannelDefaults};
pub use event_features::{
    ALLOW_ALL, ALLOW_SAME_NAMESPACE, CROSS_NAMESPACE, EventingFeatures, REFERENCE_BY_GROUP, REFERENCE_MAPPING,
};
pub use features::{FeatureFlag, SECURE_DEFAULTS, ServingFeatures};
pub use gc::RevisionGcSettings;
pub use kreference_mapping::KReferenceMapping;
pub use network::{HttpProtocol, NetworkSettings};
pub use observability::ObservabilitySettings;
pub use sugar::SugarSettings;

/// Where the maps of Serving are, as upstream has it.
pub const SERVING: &str = "knative-serving";
/// ... and those of Eventing.
pub const EVENTING: &str = "knative-eventing";

/// The data of a ConfigMap.
pub type ConfigMapData = BTreeMap<String, String>;

/// One ConfigMap with its meaning.
pub trait ConfigMapSetting: Default {
    const NAMESPACE: &'static str;
    const NAME: &'static str;
    /// The documentation of a new map under `_example`; keys count only outside of it.
    const EXAMPLE: &'static str;
    /// Keys are data, like domains: any may be there.
    const HAS_FREE_KEYS: bool = false;

    /// Keys that are read and not in the example.
    fn further_keys() -> Vec<String> {
        Vec::new()
    }

    /// Reads `data` over the defaults. What is wrong goes to `problems`, and its key keeps the default.
    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self;
}

/// A ConfigMap that exists from the start.
#[derive(Debug, Clone, Copy)]
pub struct ConfigMapEntry {
    pub namespace: &'static str,
    pub name: &'static str,
    pub example: &'static str,
    check: fn(&ConfigMapData, &mut FieldErrors),
    /// `None`: any key may be there.
    further_keys: Option<fn() -> Vec<String>>,
}

impl ConfigMapEntry {
    const fn of<S: ConfigMapSetting>() -> Self {
        Self {
            namespace: S::NAMESPACE,
            name: S::NAME,
            example: S::EXAMPLE,
            check: |data, problems| drop(S::parse(data, problems)),
            further_keys: if S::HAS_FREE_KEYS { None } else { Some(S::further_keys) },
        }
    }

    /// A map that upstream's tools expect to find and that nothing here reads.
    const fn unused(namespace: &'static str, name: &'static str, example: &'static str) -> Self {
        Self { namespace, name, example, check: |_, _| {}, further_keys: None }
    }
}

macro_rules! settings {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        /// All of the operator's settings as of one moment.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Settings {
            $($(#[$doc])* pub $field: $type,)*
        }

        const READ: &[ConfigMapEntry] = &[$(ConfigMapEntry::of::<$type>()),*];

        impl Settings {
            /// Reads all maps that `find` (by namespace and name) has. Admission lets no bad value in; one that
            /// came another way keeps its default.
            pub fn read(find: impl Fn(&'static str, &'static str) -> Option<ConfigMapData>) -> Self {
                Self {
                    $($field: find(<$type>::NAMESPACE, <$type>::NAME)
                        .map(|data| <$type>::parse(&data, &mut FieldErrors::default()))
                        .unwrap_or_default(),)*
                }
            }
        }
    };
}

settings! {
    /// How Revisions are scaled without a setting of their own.
    autoscaler: AutoscalerSettings,
    /// How long Revisions are kept that no Route sends to.
    gc: RevisionGcSettings,
    /// The defaults of fields that a template omits, and the limits of fields that it sets.
    defaults: RevisionDefaults,
    /// Serving's features for developers.
    features: ServingFeatures,
    /// Names, schemes and rollouts.
    network: NetworkSettings,
    /// Which domain a Route's hosts are in.
    domains: DomainSettings,
    /// How long a start may take.
    deployment: DeploymentSettings,
    /// Eventing's features for developers.
    event_features: EventingFeatures,
    /// The defaults of Brokers.
    brokers: BrokerDefaults,
    /// The default template of Channels.
    channels: ChannelDefaults,
    /// Where a Broker is created if an object only names it.
    sugar: SugarSettings,
    /// Where events go that are sent to what has no address.
    mappings: KReferenceMapping,
    /// Where logs are found.
    observability: ObservabilitySettings,
}

/// Every map that exists from the start.
pub fn config_maps() -> impl Iterator<Item = &'static ConfigMapEntry> {
    READ.iter().chain(unused_maps::ROWS)
}

/// The keys that are read in a ConfigMap. `None`: it is not the operator's, or any key may be there.
#[must_use]
pub fn known_keys(namespace: &str, name: &str) -> Option<Vec<String>> {
    let row = config_maps().find(|row| row.namespace == namespace && row.name == name)?;
    let mut keys = (row.further_keys?)();
    // The example names keys as words of its text, whether they stand there with a value or are only told of.
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let words = row.example.split(|c: char| !is_key(c)).map(|word| word.trim_end_matches('.'));
    keys.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
    Some(keys)
}

/// A ConfigMap of the operator's must be readable; any other is its owner's business.
pub fn validate(meta: &ObjectMeta, data: Option<&ConfigMapData>, problems: &mut FieldErrors) {
    let row = config_maps().find(|row| row.namespace == namespace(meta) && row.name == name(meta));
    if let (Some(row), Some(data)) = (row, data) {
        (row.check)(data, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(yaml: &str) -> ConfigMapData {
        serde_norway::from_str::<Option<ConfigMapData>>(yaml).unwrap().unwrap_or_default()
    }

    /// A copied line of an example sets the default value.
    #[test]
    fn every_example_can_be_read_and_says_the_defaults() {
        for row in config_maps() {
            let mut problems = FieldErrors::default();
            (row.check)(&data(row.example), &mut problems);
            assert_eq!(problems.list, [], "{}", row.name);
        }
        let reported = Settings::read(|namespace, name| {
            let row = config_maps().find(|row| row.namespace == namespace && row.name == name)?;
            // Its keys are domains, and by default it has none.
            (name != DomainSettings::NAME).then(|| data(row.example))
        });
        assert_eq!(reported, Settings::default());
    }

    #[test]
    fn no_map_stands_twice() {
        let mut names: Vec<_> = config_maps().map(|row| (row.namespace, row.name)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn unrelated_config_map_is_not_validated() {
        let mut meta = ObjectMeta { name: Some("config-gc".into()), ..ObjectMeta::default() };
        let bad = data("max-non-active-revisions: many");
        for (namespace, wrong) in [("default", 0), (SERVING, 1)] {
            meta.namespace = Some(namespace.into());
            let mut problems = FieldErrors::default();
            validate(&meta, Some(&bad), &mut problems);
            assert_eq!(problems.list.len(), wrong, "{namespace}");
        }
    }
}

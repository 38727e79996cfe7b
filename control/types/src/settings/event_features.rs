//! ConfigMap `config-features` of Eventing: feature flags of event flows (X-FEA).

use std::collections::BTreeMap;

use super::{ConfigMapData, ConfigMapSetting, EVENTING};
use crate::duration;
use crate::field_errors::FieldErrors;

const SWITCH: &[&str] = &["disabled", "enabled"];

const AUTHENTICATION: &str = "authentication-oidc";
const DEFAULT_AUTHORIZATION: &str = "default-authorization-mode";
/// Words of the second.
pub const ALLOW_SAME_NAMESPACE: &str = "allow-same-namespace";
pub const ALLOW_ALL: &str = "allow-all";

/// References to kinds without their version (X-FEA-01).
pub const REFERENCE_BY_GROUP: &str = "kreference-group";
/// URLs for what has no address of its own (X-FEA-02).
pub const REFERENCE_MAPPING: &str = "kreference-mapping";
/// Brokers and channels are read from other namespaces (X-FEA-10).
pub const CROSS_NAMESPACE: &str = "cross-namespace-event-links";

/// Upstream's flags with their values; the first is the default.
const FLAGS: [(&str, &[&str]); 11] = [
    (REFERENCE_BY_GROUP, SWITCH),
    (REFERENCE_MAPPING, SWITCH),
    ("delivery-timeout", &["enabled", "disabled"]),
    ("delivery-retryafter", SWITCH),
    ("transport-encryption", &["disabled", "permissive", "strict"]),
    ("eventtype-auto-create", SWITCH),
    (AUTHENTICATION, SWITCH),
    (DEFAULT_AUTHORIZATION, &[ALLOW_SAME_NAMESPACE, ALLOW_ALL, "deny-all"]),
    (CROSS_NAMESPACE, SWITCH),
    ("new-apiserversource-filters", SWITCH),
    ("new-trigger-filters", &["enabled", "disabled"]),
];
const TIMEOUT: &str = "requestreply-default-timeout";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventingFeatures {
    /// The flags that differ from upstream's defaults.
    changed: BTreeMap<&'static str, &'static str>,
}

impl EventingFeatures {
    /// The value of the flag `name`; `disabled` for an unknown flag.
    #[must_use]
    pub fn flag(&self, name: &str) -> &'static str {
        let default = || FLAGS.iter().find(|(flag, _)| *flag == name).map(|(_, words)| words[0]);
        self.changed.get(name).copied().or_else(default).unwrap_or("disabled")
    }

    /// Whether senders of events must authenticate (X-FEA-07).
    #[must_use]
    pub fn authenticates(&self) -> bool {
        self.is_enabled(AUTHENTICATION)
    }

    /// The authorization mode without an EventPolicy (X-FEA-08).
    #[must_use]
    pub fn default_authorization(&self) -> &'static str {
        self.flag(DEFAULT_AUTHORIZATION)
    }

    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.flag(name) == "enabled"
    }
}

impl ConfigMapSetting for EventingFeatures {
    const NAMESPACE: &'static str = EVENTING;
    const NAME: &'static str = "config-features";
    const EXAMPLE: &'static str = "\
kreference-group: \"disabled\"
kreference-mapping: \"disabled\"
delivery-timeout: \"enabled\"
delivery-retryafter: \"disabled\"
transport-encryption: \"disabled\"
eventtype-auto-create: \"disabled\"
authentication-oidc: \"disabled\"
default-authorization-mode: \"allow-same-namespace\"
cross-namespace-event-links: \"disabled\"
new-apiserversource-filters: \"disabled\"
requestreply-default-timeout: \"PT30S\"
";

    fn further_keys() -> Vec<String> {
        FLAGS.iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut changed = BTreeMap::new();
        for (name, words) in FLAGS {
            let Some(text) = data.get(name) else { continue };
            match words.iter().find(|word| word.eq_ignore_ascii_case(text.trim())) {
                Some(word) if *word != words[0] => drop(changed.insert(name, *word)),
                Some(_) => {}
                None => {
                    let why = format!("invalid value: {text}: one of {} is needed", words.join(", "));
                    problems.add(format!("data[{name}]"), why);
                }
            }
        }
        if let Some(text) = data.get(TIMEOUT)
            && duration::parse(text.trim()).is_none()
        {
            problems.add(format!("data[{TIMEOUT}]"), format!("invalid value: {text}: an ISO 8601 period is needed"));
        }
        Self { changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_takes_its_own_words() {
        let parse = |name: &str, word: &str| {
            let mut problems = FieldErrors::default();
            let features =
                EventingFeatures::parse(&ConfigMapData::from([(name.to_owned(), word.to_owned())]), &mut problems);
            (features, problems.list.len())
        };
        assert!(parse("eventtype-auto-create", "enabled").0.is_enabled("eventtype-auto-create"));
        assert_eq!(parse("transport-encryption", "Strict").0.flag("transport-encryption"), "strict");
        for (name, word) in
            [("eventtype-auto-create", "strict"), ("default-authorization-mode", "enabled"), (TIMEOUT, "30s")]
        {
            assert_eq!(parse(name, word), (EventingFeatures::default(), 1), "{name}={word}");
        }
        assert!(EventingFeatures::default().is_enabled("delivery-timeout"));
    }
}

//! ConfigMap `config-features` of Serving: features that developers may use.

use std::collections::BTreeMap;

use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::field_errors::FieldErrors;

/// The state of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureFlag {
    Disabled,
    /// On request.
    Allowed,
    Enabled,
}

const VALUES: [(&str, FeatureFlag); 3] =
    [("enabled", FeatureFlag::Enabled), ("allowed", FeatureFlag::Allowed), ("disabled", FeatureFlag::Disabled)];

/// The only flag with its own name for the middle state.
pub const SECURE_DEFAULTS: &str = "secure-pod-defaults";
const SECURE_VALUES: [(&str, FeatureFlag); 3] = [
    ("enabled", FeatureFlag::Enabled),
    ("allowrootbounded", FeatureFlag::Allowed),
    ("disabled", FeatureFlag::Disabled),
];

/// Upstream's flags and defaults.
const FLAGS: [(&str, FeatureFlag); 34] = [
    ("autodetect-http2", FeatureFlag::Disabled),
    ("kubernetes.containerspec-addcapabilities", FeatureFlag::Disabled),
    ("kubernetes.podspec-affinity", FeatureFlag::Disabled),
    ("kubernetes.podspec-dnsconfig", FeatureFlag::Disabled),
    ("kubernetes.podspec-dnspolicy", FeatureFlag::Disabled),
    ("kubernetes.podspec-dryrun", FeatureFlag::Allowed),
    ("kubernetes.podspec-fieldref", FeatureFlag::Disabled),
    ("kubernetes.podspec-hostaliases", FeatureFlag::Disabled),
    ("kubernetes.podspec-hostipc", FeatureFlag::Disabled),
    ("kubernetes.podspec-hostnetwork", FeatureFlag::Disabled),
    ("kubernetes.podspec-hostpid", FeatureFlag::Disabled),
    ("kubernetes.podspec-init-containers", FeatureFlag::Disabled),
    ("kubernetes.podspec-nodeselector", FeatureFlag::Disabled),
    ("kubernetes.podspec-persistent-volume-claim", FeatureFlag::Disabled),
    ("kubernetes.podspec-persistent-volume-write", FeatureFlag::Disabled),
    ("kubernetes.podspec-priorityclassname", FeatureFlag::Disabled),
    ("kubernetes.podspec-runtimeclassname", FeatureFlag::Disabled),
    ("kubernetes.podspec-schedulername", FeatureFlag::Disabled),
    ("kubernetes.podspec-securitycontext", FeatureFlag::Disabled),
    ("kubernetes.podspec-shareprocessnamespace", FeatureFlag::Disabled),
    ("kubernetes.podspec-tolerations", FeatureFlag::Disabled),
    ("kubernetes.podspec-topologyspreadconstraints", FeatureFlag::Disabled),
    ("kubernetes.podspec-volumes-csi", FeatureFlag::Disabled),
    ("kubernetes.podspec-volumes-emptydir", FeatureFlag::Enabled),
    ("kubernetes.podspec-volumes-hostpath", FeatureFlag::Disabled),
    ("kubernetes.podspec-volumes-image", FeatureFlag::Disabled),
    ("kubernetes.podspec-volumes-mount-propagation", FeatureFlag::Disabled),
    ("multi-container", FeatureFlag::Enabled),
    ("multi-container-probing", FeatureFlag::Disabled),
    ("queueproxy.mount-podinfo", FeatureFlag::Disabled),
    ("queueproxy.resource-defaults", FeatureFlag::Disabled),
    ("responsive-revision-gc", FeatureFlag::Enabled),
    (SECURE_DEFAULTS, FeatureFlag::Disabled),
    ("tag-header-based-routing", FeatureFlag::Disabled),
];

/// The supported features. The others are about Pods of a cluster, and their sidecars.
const SUPPORTED: [&str; 11] = [
    "autodetect-http2",
    "kubernetes.containerspec-addcapabilities",
    "kubernetes.podspec-fieldref",
    "kubernetes.podspec-init-containers",
    "kubernetes.podspec-persistent-volume-claim",
    "kubernetes.podspec-persistent-volume-write",
    "kubernetes.podspec-volumes-emptydir",
    "multi-container",
    "multi-container-probing",
    SECURE_DEFAULTS,
    "tag-header-based-routing",
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServingFeatures {
    /// The flags that differ from upstream's defaults.
    changed: BTreeMap<&'static str, FeatureFlag>,
}

impl ServingFeatures {
    /// The value of the flag `name`; `Disabled` for an unknown flag.
    #[must_use]
    pub fn flag(&self, name: &str) -> FeatureFlag {
        let default = || FLAGS.iter().find(|(flag, _)| *flag == name).map(|(_, default)| *default);
        self.changed.get(name).copied().or_else(default).unwrap_or(FeatureFlag::Disabled)
    }

    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.flag(name) == FeatureFlag::Enabled
    }

    /// Whether a request for it is allowed.
    #[must_use]
    pub fn is_allowed(&self, name: &str) -> bool {
        self.flag(name) != FeatureFlag::Disabled
    }

    /// Features that are set and have no effect here.
    pub fn unsupported(&self) -> impl Iterator<Item = &'static str> {
        self.changed.keys().copied().filter(|name| !SUPPORTED.contains(name))
    }
}

impl ConfigMapSetting for ServingFeatures {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-features";
    const EXAMPLE: &'static str = "\
# Each is enabled, allowed or disabled.
multi-container: \"enabled\"
multi-container-probing: \"disabled\"
kubernetes.podspec-fieldref: \"disabled\"
# Containers may run before the others.
kubernetes.podspec-init-containers: \"disabled\"
kubernetes.podspec-volumes-emptydir: \"enabled\"
# PersistentVolumeClaims may be mounted, and written to.
kubernetes.podspec-persistent-volume-claim: \"disabled\"
kubernetes.podspec-persistent-volume-write: \"disabled\"
tag-header-based-routing: \"disabled\"
# Instances whose port has no name are asked whether they speak HTTP/2.
autodetect-http2: \"disabled\"
# With \"allowRootBounded\", containers without a setting get no capabilities and no new privileges; with
# \"enabled\" they must not be root either.
secure-pod-defaults: \"disabled\"
# Capabilities besides NET_BIND_SERVICE may be added.
kubernetes.containerspec-addcapabilities: \"disabled\"
";

    fn further_keys() -> Vec<String> {
        FLAGS.iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut changed = BTreeMap::new();
        let mut read = ConfigMapReader::of(data, problems);
        for (name, default) in FLAGS {
            let mut flag = default;
            read.one_of(name, if name == SECURE_DEFAULTS { &SECURE_VALUES } else { &VALUES }, &mut flag);
            if flag != default {
                changed.insert(name, flag);
            }
        }
        Self { changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_as_upstream_has_it_until_the_map_says_otherwise() {
        let data = ConfigMapData::from([
            ("tag-header-based-routing".to_owned(), "Enabled".to_owned()),
            ("multi-container".to_owned(), "perhaps".to_owned()),
        ]);
        let mut problems = FieldErrors::default();
        let features = ServingFeatures::parse(&data, &mut problems);
        assert!(features.is_enabled("tag-header-based-routing"));
        assert!(features.is_enabled("multi-container") && features.is_allowed("kubernetes.podspec-dryrun"));
        assert!(SUPPORTED.iter().all(|name| FLAGS.iter().any(|(flag, _)| flag == name)));
        assert_eq!(features.unsupported().count(), 0);
        let idle = ConfigMapData::from([("kubernetes.podspec-affinity".to_owned(), "enabled".to_owned())]);
        let idle = ServingFeatures::parse(&idle, &mut FieldErrors::default());
        assert_eq!(idle.unsupported().collect::<Vec<_>>(), ["kubernetes.podspec-affinity"]);
        let secure = ConfigMapData::from([(SECURE_DEFAULTS.to_owned(), "AllowRootBounded".to_owned())]);
        assert_eq!(
            ServingFeatures::parse(&secure, &mut FieldErrors::default()).flag(SECURE_DEFAULTS),
            FeatureFlag::Allowed
        );
        assert!(!features.is_allowed("autodetect-http2") && !features.is_allowed("no-such-flag"));
        let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["data[multi-container]"]);
    }
}

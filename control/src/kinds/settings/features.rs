//! ConfigMap `config-features` of Serving: what developers may use.

use std::collections::BTreeMap;

use super::{Data, Reader, SERVING, Setting};
use crate::kind::Problems;

/// How far something may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    Disabled,
    /// By those who ask for it.
    Allowed,
    Enabled,
}

const WORDS: [(&str, Flag); 3] =
    [("enabled", Flag::Enabled), ("allowed", Flag::Allowed), ("disabled", Flag::Disabled)];

/// The one flag with a word of its own for what is between.
pub const SECURE_DEFAULTS: &str = "secure-pod-defaults";
const SECURE_WORDS: [(&str, Flag); 3] =
    [("enabled", Flag::Enabled), ("allowrootbounded", Flag::Allowed), ("disabled", Flag::Disabled)];

/// Upstream's flags and defaults.
const FLAGS: [(&str, Flag); 34] = [
    ("autodetect-http2", Flag::Disabled),
    ("kubernetes.containerspec-addcapabilities", Flag::Disabled),
    ("kubernetes.podspec-affinity", Flag::Disabled),
    ("kubernetes.podspec-dnsconfig", Flag::Disabled),
    ("kubernetes.podspec-dnspolicy", Flag::Disabled),
    ("kubernetes.podspec-dryrun", Flag::Allowed),
    ("kubernetes.podspec-fieldref", Flag::Disabled),
    ("kubernetes.podspec-hostaliases", Flag::Disabled),
    ("kubernetes.podspec-hostipc", Flag::Disabled),
    ("kubernetes.podspec-hostnetwork", Flag::Disabled),
    ("kubernetes.podspec-hostpid", Flag::Disabled),
    ("kubernetes.podspec-init-containers", Flag::Disabled),
    ("kubernetes.podspec-nodeselector", Flag::Disabled),
    ("kubernetes.podspec-persistent-volume-claim", Flag::Disabled),
    ("kubernetes.podspec-persistent-volume-write", Flag::Disabled),
    ("kubernetes.podspec-priorityclassname", Flag::Disabled),
    ("kubernetes.podspec-runtimeclassname", Flag::Disabled),
    ("kubernetes.podspec-schedulername", Flag::Disabled),
    ("kubernetes.podspec-securitycontext", Flag::Disabled),
    ("kubernetes.podspec-shareprocessnamespace", Flag::Disabled),
    ("kubernetes.podspec-tolerations", Flag::Disabled),
    ("kubernetes.podspec-topologyspreadconstraints", Flag::Disabled),
    ("kubernetes.podspec-volumes-csi", Flag::Disabled),
    ("kubernetes.podspec-volumes-emptydir", Flag::Enabled),
    ("kubernetes.podspec-volumes-hostpath", Flag::Disabled),
    ("kubernetes.podspec-volumes-image", Flag::Disabled),
    ("kubernetes.podspec-volumes-mount-propagation", Flag::Disabled),
    ("multi-container", Flag::Enabled),
    ("multi-container-probing", Flag::Disabled),
    ("queueproxy.mount-podinfo", Flag::Disabled),
    ("queueproxy.resource-defaults", Flag::Disabled),
    ("responsive-revision-gc", Flag::Enabled),
    (SECURE_DEFAULTS, Flag::Disabled),
    ("tag-header-based-routing", Flag::Disabled),
];

/// Those that are heeded. The others are about Pods of a cluster, and about what runs beside them there.
const HEEDED: [&str; 9] = [
    "autodetect-http2",
    "kubernetes.containerspec-addcapabilities",
    "kubernetes.podspec-fieldref",
    "kubernetes.podspec-init-containers",
    "kubernetes.podspec-volumes-emptydir",
    "multi-container",
    "multi-container-probing",
    SECURE_DEFAULTS,
    "tag-header-based-routing",
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that are not as upstream has them.
    changed: BTreeMap<&'static str, Flag>,
}

impl Features {
    /// What holds for the flag `name`; `Disabled` for one that nobody knows.
    #[must_use]
    pub fn flag(&self, name: &str) -> Flag {
        let default = || FLAGS.iter().find(|(flag, _)| *flag == name).map(|(_, default)| *default);
        self.changed.get(name).copied().or_else(default).unwrap_or(Flag::Disabled)
    }

    #[must_use]
    pub fn is_enabled(&self, name: &str) -> bool {
        self.flag(name) == Flag::Enabled
    }

    /// Whether one who asks for it gets it.
    #[must_use]
    pub fn is_allowed(&self, name: &str) -> bool {
        self.flag(name) != Flag::Disabled
    }

    /// Those that somebody set, and that change nothing here.
    pub fn idle(&self) -> impl Iterator<Item = &'static str> {
        self.changed.keys().copied().filter(|name| !HEEDED.contains(name))
    }
}

impl Setting for Features {
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
tag-header-based-routing: \"disabled\"
# Instances whose port has no name are asked whether they speak HTTP/2.
autodetect-http2: \"disabled\"
# With \"allowRootBounded\", containers that say nothing of it get no capabilities and no way to new privileges; with
# \"enabled\" they must not be root either.
secure-pod-defaults: \"disabled\"
# Capabilities besides NET_BIND_SERVICE may be added.
kubernetes.containerspec-addcapabilities: \"disabled\"
";

    fn parse(data: &Data, problems: &mut Problems) -> Self {
        let mut changed = BTreeMap::new();
        let mut read = Reader::of(data, problems);
        for (name, default) in FLAGS {
            let mut flag = default;
            read.word(name, if name == SECURE_DEFAULTS { &SECURE_WORDS } else { &WORDS }, &mut flag);
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
        let data = Data::from([
            ("tag-header-based-routing".to_owned(), "Enabled".to_owned()),
            ("multi-container".to_owned(), "perhaps".to_owned()),
        ]);
        let mut problems = Problems::default();
        let features = Features::parse(&data, &mut problems);
        assert!(features.is_enabled("tag-header-based-routing"));
        assert!(features.is_enabled("multi-container") && features.is_allowed("kubernetes.podspec-dryrun"));
        assert!(HEEDED.iter().all(|name| FLAGS.iter().any(|(flag, _)| flag == name)));
        assert_eq!(features.idle().count(), 0);
        let idle = Data::from([("kubernetes.podspec-affinity".to_owned(), "enabled".to_owned())]);
        let idle = Features::parse(&idle, &mut Problems::default());
        assert_eq!(idle.idle().collect::<Vec<_>>(), ["kubernetes.podspec-affinity"]);
        let secure = Data::from([(SECURE_DEFAULTS.to_owned(), "AllowRootBounded".to_owned())]);
        assert_eq!(Features::parse(&secure, &mut Problems::default()).flag(SECURE_DEFAULTS), Flag::Allowed);
        assert!(!features.is_allowed("autodetect-http2") && !features.is_allowed("no-such-flag"));
        let fields: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["data[multi-container]"]);
    }
}

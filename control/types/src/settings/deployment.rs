//! ConfigMap `config-deployment`: the progress deadline, and the resolution of image tags to digests.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::field_errors::FieldErrors;

/// Maximum progress deadline: a day.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Maximum time for a registry to resolve a digest: ten minutes.
const RESOLUTION_MAX: Duration = Duration::from_secs(600);
/// Registries of images that were never pushed, by upstream's development tools.
const SKIPPED_REGISTRIES: [&str; 3] = ["kind.local", "ko.local", "dev.local"];

/// The keys with a meaning without a cluster's Pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentSettings {
    /// A Revision that is not ready after this has failed.
    pub progress_deadline: Duration,
    /// The timeout for a registry to resolve a tag.
    pub digest_resolution_timeout: Duration,
    /// Tags of these registries are left as they are.
    pub registries_skipping_tag_resolving: BTreeSet<String>,
}

impl Default for DeploymentSettings {
    fn default() -> Self {
        Self {
            progress_deadline: Duration::from_secs(600),
            digest_resolution_timeout: Duration::from_secs(10),
            registries_skipping_tag_resolving: SKIPPED_REGISTRIES.map(str::to_owned).into(),
        }
    }
}

impl ConfigMapSetting for DeploymentSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-deployment";
    const EXAMPLE: &'static str = "\
# A Revision that is not ready after this has failed.
progress-deadline: \"600s\"
# A registry has this long to say which digest a tag stands for.
digest-resolution-timeout: \"10s\"
# Registries whose tags are left as they are, separated by commas.
registries-skipping-tag-resolving: \"kind.local,ko.local,dev.local\"
# Upstream's other keys are about its sidecar; there is none here.
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let bounds = Duration::from_secs(1)..=DEADLINE_MAX;
        let mut reader = ConfigMapReader::of(data, problems);
        reader.duration("progress-deadline", bounds, &mut config.progress_deadline);
        let bounds = Duration::from_millis(1)..=RESOLUTION_MAX;
        reader.duration("digest-resolution-timeout", bounds, &mut config.digest_resolution_timeout);
        if let Some(text) = data.get("registries-skipping-tag-resolving") {
            let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
            config.registries_skipping_tag_resolving = names.map(str::to_owned).collect();
        }
        config
    }
}

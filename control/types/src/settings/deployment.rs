//! ConfigMap `config-deployment`: how long a start may take.

use std::time::Duration;

use super::{ConfigMapData, ConfigMapReader, ConfigMapSetting, SERVING};
use crate::kind_registry::FieldErrors;

/// A start that takes longer than a day is not waited for.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The keys that mean something where instances are processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeploymentSettings {
    /// A Revision that is not ready after this has failed.
    pub progress_deadline: Duration,
}

impl Default for DeploymentSettings {
    fn default() -> Self {
        Self { progress_deadline: Duration::from_secs(600) }
    }
}

impl ConfigMapSetting for DeploymentSettings {
    const NAMESPACE: &'static str = SERVING;
    const NAME: &'static str = "config-deployment";
    const EXAMPLE: &'static str = "\
# A Revision that is not ready after this has failed. Upstream's other keys are about container images
# and its sidecar; there are none here.
progress-deadline: \"600s\"
";

    fn parse(data: &ConfigMapData, problems: &mut FieldErrors) -> Self {
        let mut config = Self::default();
        let bounds = Duration::from_secs(1)..=DEADLINE_MAX;
        ConfigMapReader::of(data, problems).duration("progress-deadline", bounds, &mut config.progress_deadline);
        config
    }
}

//! Whether the Revision with the expected name belongs to a Configuration's current template.

use std::sync::Arc;

use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::shared::{is_controlled_by, name};

/// The state of the current template.
#[derive(Debug, Clone)]
pub(crate) enum LatestRevision {
    Revision(Arc<Revision>),
    /// No Revision could be created, for this reason.
    Failed(String),
}

/// Whether a Revision that has the wanted name is the current template's.
#[must_use]
pub(crate) fn adopt(configuration: &Configuration, found: Arc<Revision>) -> LatestRevision {
    if is_controlled_by(&found.metadata, &configuration.metadata) && found.spec == configuration.spec.template.spec {
        LatestRevision::Revision(found)
    } else {
        let name = name(&found.metadata);
        LatestRevision::Failed(format!("revisions.serving.knative.dev \"{name}\" already exists"))
    }
}

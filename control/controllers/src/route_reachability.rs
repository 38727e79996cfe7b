//! The Routes that send requests to a Revision.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::context::ControllerContext;
use crate::indexes::{spec_configuration_key, spec_revision_key, status_configuration_key, status_revision_key};
use types::serving::annotations::{CONFIGURATION, CONFIGURATION_GENERATION};
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::shared::{label, name, namespace};

/// The Routes that send to `revision`, or to `configuration`, or are shown to, by name.
pub(crate) fn routes_sending_to(
    context: &ControllerContext,
    ns: &str,
    revision: &str,
    configuration: Option<&str>,
) -> BTreeSet<String> {
    let words = [spec_revision_key(revision), status_revision_key(revision)];
    let of_parent = configuration.map(|parent| [spec_configuration_key(parent), status_configuration_key(parent)]);
    let words = words.iter().chain(of_parent.iter().flatten());
    words.flat_map(|word| context.caches.routes.names_by_index(ns, word)).collect()
}

/// Whether a Route sends to the Revision.
pub(crate) fn is_routed(context: &ControllerContext, revision: &Revision) -> bool {
    !routes(context, revision).is_empty()
}

/// The Routes that send to the Revision: by its name, or because it is what the named Configuration
/// stands for, now or as soon as the Route has seen it.
pub(crate) fn routes(context: &ControllerContext, revision: &Revision) -> BTreeSet<String> {
    let (ns, own) = (namespace(&revision.metadata), name(&revision.metadata));
    // Mostly so, and a Configuration need not be opened for it.
    let by_name = routes_sending_to(context, ns, own, None);
    if !by_name.is_empty() {
        return by_name;
    }
    let followed = parent(context, revision).filter(|parent| {
        let ready = parent.status.as_ref().and_then(|status| status.latest_ready_revision_name.as_deref());
        is_newest(revision, parent) || ready == Some(own)
    });
    let followed = followed.as_ref().map(|parent| name(&parent.metadata));
    routes_sending_to(context, ns, own, followed)
}

pub(crate) fn parent(context: &ControllerContext, revision: &Revision) -> Option<Arc<Configuration>> {
    let parent = label(&revision.metadata, CONFIGURATION)?;
    context.caches.configurations.get(namespace(&revision.metadata), parent)
}

/// The Revision is that of its Configuration's current template: made for it, or found by the name that its author gives.
pub(crate) fn is_newest(revision: &Revision, parent: &Configuration) -> bool {
    let generation = label(&revision.metadata, CONFIGURATION_GENERATION).and_then(|text| text.parse().ok());
    let own_name = parent.spec.template.explicit_name();
    generation == parent.metadata.generation || own_name == revision.metadata.name.as_deref()
}

/// The newest Revision of a Configuration, and the newest that is ready.
pub(crate) fn newest_revisions(configuration: &Configuration) -> [Option<&str>; 2] {
    let status = configuration.status.as_ref();
    [
        status.and_then(|status| status.latest_created_revision_name.as_deref()),
        status.and_then(|status| status.latest_ready_revision_name.as_deref()),
    ]
}

//! Links to other namespaces: the author of an object that receives events from a Broker or channel of another
//! namespace must be allowed to subscribe there (X-FEA-10).

use axum::body::Bytes;
use serde_json::Value;

use super::errors::StatusError;
use super::{ApiRequest, body};
use crate::access::{RequestAttributes, rbac};
use types::eventing::trigger::Trigger;
use types::field_errors::Problem;
use types::kind_registry::ResourceStrategy as _;
use types::messaging::subscription::Subscription;
use types::settings::CROSS_NAMESPACE;

/// Upstream's verb for it.
const VERB: &str = "knsubscribe";

/// Rejects a Trigger or Subscription that refers to a namespace where its author may not subscribe. While the feature
/// is off, no such object is admitted. The reference is immutable, so a patch of another field does not need the
/// right.
pub(super) fn check_links(call: &ApiRequest, bytes: &Bytes) -> Result<(), StatusError> {
    let (meta, who) = (call.target.entry.meta, &call.server.default_requester);
    let field = match (meta.group, meta.kind) {
        (group, kind) if group == Trigger::META.group && kind == Trigger::META.kind => "brokerRef",
        (group, kind) if group == Subscription::META.group && kind == Subscription::META.kind => "channel",
        _ => return Ok(()),
    };
    if who.internal || call.target.status || !call.requester().settings.event_features.is_enabled(CROSS_NAMESPACE) {
        return Ok(());
    }
    // A patch by operations names no link; one that makes an object is written as the object is.
    let read = body::object(&call.headers, meta.kind, bytes);
    let object = read.ok().or_else(|| body::yaml(bytes).ok().map(|read| read.0)).unwrap_or_default();
    let Some(link) =
        CrossNamespaceLink::of(&object["spec"][field], call.target.namespace.as_deref().unwrap_or_default())
    else {
        return Ok(());
    };
    let resource = link.resource();
    let action = RequestAttributes {
        verb: VERB,
        group: link.group,
        resource: &resource,
        subresource: "",
        namespace: link.namespace,
        name: link.name,
    };
    if rbac::allows(&call.server.store.read(), &who.user, &who.groups, &action) {
        return Ok(());
    }
    let why = format!(
        "user {} is not authorized to get target resource in namespace: {}; it needs the verb {VERB} on {resource}.{}",
        who.user, link.namespace, link.group
    );
    let named = call.target.name.as_deref().or(object["metadata"]["name"].as_str()).unwrap_or("");
    let problem = Problem { field: format!("spec.{}Namespace", link.kind), message: why };
    Err(StatusError::invalid(meta, named, &[problem]))
}

struct CrossNamespaceLink<'a> {
    group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> CrossNamespaceLink<'a> {
    /// `None` for a reference that stays in `home`.
    fn of(reference: &'a Value, home: &str) -> Option<Self> {
        let text = |field: &str| reference[field].as_str().unwrap_or_default();
        let namespace = Some(text("namespace")).filter(|namespace| !namespace.is_empty() && *namespace != home)?;
        let group = match text("group") {
            "" => text("apiVersion").split_once('/').map_or("", |(group, _)| group),
            group => group,
        };
        Some(Self { group, kind: text("kind"), namespace, name: text("name") })
    }

    /// Upstream makes it of the kind's name.
    fn resource(&self) -> String {
        self.kind.to_ascii_lowercase() + "s"
    }
}

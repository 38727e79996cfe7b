//! Names that several controllers share.

use types::serving::revision_spec::RevisionSpec;

use runtime::dns::CLUSTER_DOMAIN;

/// The label by which an EndpointSlice names its Service.
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Marks slices that are written here from what the controllers know already. They are not watched.
pub(crate) const DERIVED_LABEL: &str = "sluicegate.dev/derived";
/// The service account of a Revision that names none.
pub(crate) const ACCOUNT_DEFAULT: &str = "default";

/// The name of a Revision's instances and of its backend.
pub(crate) fn revision_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The path of a Broker on the events listener.
pub(crate) fn broker_path(namespace: &str, name: &str) -> String {
    format!("/brokers/{namespace}/{name}")
}

/// The path of a Route's stored requests on the events listener.
pub(crate) fn requests_path(namespace: &str, name: &str) -> String {
    format!("/requests/{namespace}/{name}")
}

/// The backend that stores a Route's requests. No Revision has a colon in its name.
pub(crate) fn requests_backend(namespace: &str, name: &str) -> String {
    format!("requests:{namespace}/{name}")
}

/// The path of a channel on the events listener.
pub(crate) fn channel_path(namespace: &str, name: &str) -> String {
    format!("/channels/{namespace}/{name}")
}

/// The path of a sink on the events listener, by the plural of its kind.
pub(crate) fn sink_path(plural: &str, namespace: &str, name: &str) -> String {
    format!("/sinks/{plural}/{namespace}/{name}")
}

/// The owner of a DomainMapping's hosts in the publisher. No Route has a colon in its name.
pub(crate) fn domain_mapping_owner(namespace: &str, name: &str) -> String {
    format!("domain:{namespace}/{name}")
}

/// The host name of the Service `name` in a cluster.
pub(crate) fn service_host(name: &str, namespace: &str) -> String {
    format!("{name}.{namespace}.svc.{CLUSTER_DOMAIN}")
}

/// The service account of a Revision's instances.
pub(crate) fn service_account(spec: &RevisionSpec) -> &str {
    spec.service_account_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(ACCOUNT_DEFAULT)
}

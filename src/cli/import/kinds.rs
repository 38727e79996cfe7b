//! The kinds that are copied, in the order in which they are created: what others refer to comes first.

/// A kind of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImportedKind {
    /// `v1`, or `GROUP/VERSION`.
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
}

impl ImportedKind {
    const fn new(api_version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self { api_version, kind, plural }
    }

    /// The path of all objects, in one namespace or in all.
    pub(super) fn path(self, namespace: Option<&str>) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        let below = namespace.map(|namespace| format!("namespaces/{namespace}/")).unwrap_or_default();
        format!("/{root}/{}/{below}{}", self.api_version, self.plural)
    }
}

pub(super) const IMPORTED: [ImportedKind; 18] = [
    ImportedKind::new("v1", "ConfigMap", "configmaps"),
    ImportedKind::new("v1", "Secret", "secrets"),
    ImportedKind::new("v1", "ServiceAccount", "serviceaccounts"),
    ImportedKind::new("serving.knative.dev/v1", "Service", "services"),
    ImportedKind::new("serving.knative.dev/v1", "Configuration", "configurations"),
    ImportedKind::new("serving.knative.dev/v1", "Route", "routes"),
    ImportedKind::new("serving.knative.dev/v1beta1", "DomainMapping", "domainmappings"),
    ImportedKind::new("eventing.knative.dev/v1", "Broker", "brokers"),
    ImportedKind::new("messaging.knative.dev/v1", "InMemoryChannel", "inmemorychannels"),
    ImportedKind::new("messaging.knative.dev/v1", "Channel", "channels"),
    ImportedKind::new("eventing.knative.dev/v1alpha1", "EventPolicy", "eventpolicies"),
    ImportedKind::new("eventing.knative.dev/v1", "Trigger", "triggers"),
    ImportedKind::new("messaging.knative.dev/v1", "Subscription", "subscriptions"),
    ImportedKind::new("flows.knative.dev/v1", "Sequence", "sequences"),
    ImportedKind::new("flows.knative.dev/v1", "Parallel", "parallels"),
    ImportedKind::new("sources.knative.dev/v1", "PingSource", "pingsources"),
    ImportedKind::new("sources.knative.dev/v1", "ApiServerSource", "apiserversources"),
    ImportedKind::new("sources.knative.dev/v1", "ContainerSource", "containersources"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_that_of_the_kind() {
        assert_eq!(IMPORTED[0].path(Some("shop")), "/api/v1/namespaces/shop/configmaps");
        assert_eq!(IMPORTED[3].path(None), "/apis/serving.knative.dev/v1/services");
    }

    #[test]
    fn every_kind_is_listed_once() {
        let mut kinds: Vec<&str> = IMPORTED.iter().map(|one| one.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert_eq!(kinds.len(), IMPORTED.len());
    }
}

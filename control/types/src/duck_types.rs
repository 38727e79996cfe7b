//! What objects of a kind can be used as, whatever the kind is: Knative's duck types.
//!
//! A kind lists its duck types in its row. The labels of its definition and the roles by which clients may use it come
//! from there.

/// A use that a kind offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DuckType {
    /// Its objects have an address, so they can be destinations.
    Addressable,
    /// Its objects contain a Pod template.
    Podspecable,
    /// Its objects have subscribers in their spec. The ClusterRole of this name allows changing them.
    Channelable { role: &'static str },
    /// Subscribers may be in other namespaces. The ClusterRole of this name allows subscribing from there.
    CrossNamespaceSubscribable { role: &'static str },
    /// Its objects send events to a sink.
    Source,
    /// Its objects change other objects.
    Binding,
}

impl DuckType {
    /// The labels of the kind's definition; all have the value `true`.
    #[must_use]
    pub fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Addressable => &["duck.knative.dev/addressable"],
            Self::Podspecable => &["duck.knative.dev/podspecable"],
            Self::Channelable { .. } => &["messaging.knative.dev/subscribable"],
            Self::CrossNamespaceSubscribable { .. } => &[],
            Self::Source => &["duck.knative.dev/source", "eventing.knative.dev/source"],
            Self::Binding => &["duck.knative.dev/binding"],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kind_registry::ResourceStrategy as _;
    use crate::sources::sink_binding::SinkBinding;

    #[test]
    fn labels_come_from_all_duck_types_of_a_kind() {
        let labels: Vec<_> = SinkBinding::META.labels().collect();
        assert_eq!(labels, ["duck.knative.dev/source", "eventing.knative.dev/source", "duck.knative.dev/binding"]);
    }
}

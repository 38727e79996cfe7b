//! Sets the defaults of a cluster's objects when they are read, as our own API does when they
//! are written. Knative's webhook does the same; without it a Service without
//! `traffic` would be Ready and route nothing.

use std::sync::{Arc, Mutex, PoisonError};

use crate::informer_cache::InformerCache;
use types::kind_registry::{RequestContext, ResourceStrategy};
use types::settings::Settings;

/// From now on, for the objects of `cache`.
pub(crate) fn install<K: ResourceStrategy + Clone + kube::Resource>(
    cache: &InformerCache<K>,
    settings: &Arc<Mutex<Arc<Settings>>>,
) {
    let settings = Arc::clone(settings);
    cache.set_transform(move |object| {
        let now = Arc::clone(&settings.lock().unwrap_or_else(PoisonError::into_inner));
        apply_defaults(object, now);
    });
}

/// Fills in the spec. Labels and annotations are unchanged: they record the writer and the owner of an object.
fn apply_defaults<K: ResourceStrategy + Clone>(object: &mut K, settings: Arc<Settings>) {
    let before = object.clone();
    let metadata = object.metadata_mut().clone();
    object.set_defaults(Some(&before), &RequestContext { internal: true, settings, ..RequestContext::default() });
    *object.metadata_mut() = metadata;
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use types::eventing::broker::Broker;
    use types::messaging::in_memory_channel::InMemoryChannel;
    use types::serving::service::Service;

    fn with_defaults<K: ResourceStrategy + Clone + DeserializeOwned>(object: Value) -> Value {
        let mut object: K = serde_json::from_value(object).unwrap();
        apply_defaults(&mut object, Arc::default());
        serde_json::to_value(object).unwrap()
    }

    /// APP-12: a Service as users write it, from a cluster that fills in nothing.
    #[test]
    fn a_bare_service_gets_its_traffic_and_keeps_its_metadata() {
        let metadata = json!({ "name": "hello", "namespace": "ns", "annotations": { "mine": "1" } });
        let template = json!({ "spec": { "containers": [{ "image": "i" }] } });
        let after = with_defaults::<Service>(json!({ "metadata": metadata, "spec": { "template": template } }));
        assert_eq!(after["metadata"], metadata);
        assert_eq!(after["spec"]["traffic"], json!([{ "latestRevision": true, "percent": 100 }]));
        let spec = &after["spec"]["template"]["spec"];
        assert_eq!((&spec["timeoutSeconds"], &spec["containers"][0]["name"]), (&json!(300), &json!("user-container")));
        assert_eq!(with_defaults::<Service>(after.clone()), after);
    }

    #[test]
    fn a_broker_of_no_class_does_not_become_ours_and_a_channel_has_no_outsider() {
        let metadata = json!({ "name": "b", "namespace": "ns" });
        let broker = with_defaults::<Broker>(json!({ "metadata": metadata, "spec": {} }));
        assert_eq!(broker["metadata"], metadata);
        assert!(broker["spec"]["delivery"].is_object());
        let channel = with_defaults::<InMemoryChannel>(json!({ "metadata": metadata, "spec": {} }));
        assert_eq!(channel["spec"], json!({}));
    }
}

//! Applies SinkBindings to objects with a template when they are written, as upstream's webhook does: otherwise the first
//! Revision would have no sink, and be replaced at once.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::store::ObjectKey;
use types::kind_registry::{KindMeta, ResourceStrategy as _};
use types::serving::configuration::Configuration;
use types::serving::service::Service;
use types::sink_injection::{self, SinkInjection};
use types::sources::sink_binding::SinkBinding;

use super::{ApiRequest, prepare};

/// SinkBindings of a namespace that are read for a write, each unpacked and parsed. Where there are more, the controller
/// tells subjects alone, a Revision later.
const BINDINGS_READ_MAX: usize = 100;

/// The bindings that concern the write of this call.
pub(super) fn injections_for(call: &ApiRequest) -> Vec<SinkInjection> {
    let Some(namespace) = call.target.namespace.as_deref().filter(|_| is_bindable_write(call)) else {
        return Vec::new();
    };
    let resource = prepare::resource_of(&SinkBinding::META);
    let memory = call.server.store.read();
    if memory.count(&resource, Some(namespace)) > BINDINGS_READ_MAX {
        return Vec::new();
    }
    let found = memory.list(&resource, Some(namespace)).items();
    let home =
        ObjectKey { resource: prepare::resource_of(&Namespace::META), namespace: "".into(), name: namespace.into() };
    let home = memory.get(&home).filter(|_| !found.is_empty());
    drop(memory);
    if home.is_some_and(|home| is_excluded(&home.value())) {
        return Vec::new();
    }
    let bindings = found.iter().filter_map(|one| serde_json::from_value::<SinkBinding>(one.value()).ok());
    bindings.filter_map(|binding| binding.injection()).collect()
}

/// The namespace is kept from being bound (X-SRC-04).
fn is_excluded(home: &Value) -> bool {
    let meta = serde_json::from_value::<ObjectMeta>(home["metadata"].clone());
    meta.is_ok_and(|meta| sink_injection::is_excluded(&meta))
}

/// Our controllers know what they write.
fn is_bindable_write(call: &ApiRequest) -> bool {
    let same = |meta: &KindMeta| {
        let this = call.target.entry.stored_meta();
        (this.group, this.kind) == (meta.group, meta.kind)
    };
    let has_template =
        [&Service::META, &Configuration::META, &Deployment::META, &ReplicaSet::META].into_iter().any(same);
    // Jobs of a CronJob are told by nothing else.
    let is_job = same(&Job::META);
    !call.target.status && (is_job || has_template && !call.server.default_requester.is_controller())
}

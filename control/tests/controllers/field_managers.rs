//! The field managers on the objects of a Service.

use std::collections::BTreeSet;

use http::Request;
use serde_json::Value;
use sluicegate_control::kinds::serving::service::Service;

use crate::control_plane::{TestControlPlane, eventually, in_a_control_plane};
use crate::serving::hello;

type ManagerEntry = (&'static str, &'static str);
const OWN: &[ManagerEntry] = &[("controller", ""), ("controller", "status")];
const SCALED: &[ManagerEntry] = &[("controller", ""), ("autoscaler", "status")];
const KINDS: [(&str, &[ManagerEntry]); 6] = [
    ("/apis/serving.knative.dev/v1/namespaces/default/services", &[("controller", "status")]),
    ("/apis/serving.knative.dev/v1/namespaces/default/configurations", OWN),
    ("/apis/serving.knative.dev/v1/namespaces/default/revisions", OWN),
    ("/apis/serving.knative.dev/v1/namespaces/default/routes", OWN),
    ("/apis/autoscaling.internal.knative.dev/v1alpha1/namespaces/default/podautoscalers", SCALED),
    ("/apis/autoscaling.internal.knative.dev/v1alpha1/namespaces/default/metrics", SCALED),
];

async fn only(control_plane: &TestControlPlane, path: &str) -> Value {
    let request = Request::get(path).body(Vec::new()).unwrap();
    control_plane.client.request::<Value>(request).await.unwrap()["items"][0].take()
}

fn owners(object: &Value) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    entries.map(|entry| (text(&entry["manager"]), text(&entry["subresource"]))).collect()
}

/// APP-29: each object that controllers write says so, under upstream's names; once all is ready, nothing of
/// it moves any more (APP-40).
#[test]
fn every_object_of_a_service_says_which_controller_owns_what() {
    in_a_control_plane(|control_plane| async move {
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.until_ready::<Service>("hello").await;
        let (mut bytes, mut bytes_of_owners) = (0, 0);
        for (path, expected) in KINDS {
            let named = |(manager, part): &ManagerEntry| ((*manager).to_owned(), (*part).to_owned());
            let expected: BTreeSet<_> = expected.iter().map(named).collect();
            let found = eventually(async || {
                let object = only(&control_plane, path).await;
                expected.is_subset(&owners(&object)).then_some(object)
            });
            let object = found.await.unwrap_or_else(|| panic!("{path}: {expected:?}"));
            bytes += object.to_string().len();
            bytes_of_owners += object["metadata"]["managedFields"].to_string().len();
        }
        println!("{bytes} bytes, {bytes_of_owners} of them say who owns what");
        control_plane.close().await;
    });
}

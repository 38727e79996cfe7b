//! Restarts on the same folder.

use serde_json::json;
use sluicegate_control::kinds::eventing::broker::Broker;
use sluicegate_control::kinds::eventing::trigger::Trigger;
use sluicegate_control::kinds::serving::service::Service;
use sluicegate_control::kinds::shared::HasConditions;
use tempfile::TempDir;

use crate::control_plane::{TestControlPlane, on_one_thread, splits};
use crate::eventing::{broker, trigger};
use crate::serving::hello;

/// APP-16: the first table after a restart holds every host, stream and subscriber, before any
/// controller looked at anything; and no instance is started for it.
#[test]
fn the_first_table_after_a_restart_is_complete() {
    let dir = TempDir::new().unwrap();
    let mut before = Vec::new();
    // A runtime each, because a process that ends takes all of its tasks with it.
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Service>(hello("v1")).await;
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Trigger>(trigger(json!({}))).await;
        control_plane.until_ready::<Service>("hello").await;
        control_plane.until_ready::<Trigger>("t").await;
        before = control_plane.table(|table| splits(table, "hello.default.test"));
        control_plane.close().await;
    });
    assert_eq!(before.len(), 1);
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.first_table(|table| {
            assert_eq!(splits(table, "hello.default.test"), before);
            assert_eq!(table.streams["/brokers/default/b"].subscribers.len(), 1);
        });
        control_plane.until_ready::<Service>("hello").await;
        assert_eq!(control_plane.autoscaler.status("default/hello-00001").actual, 0);
        control_plane.close().await;
    });
}

/// EV-TRG-08, EV-DLV-13: a subscriber that is lost over a restart keeps its place in the stream.
#[test]
fn a_lost_subscriber_is_still_subscribed_after_a_restart() {
    let dir = TempDir::new().unwrap();
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Broker>(broker(json!({}))).await;
        control_plane.create::<Broker>(json!({"metadata": {"name": "other", "namespace": "default"}})).await;
        let reference = json!({"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "other"});
        control_plane.create::<Trigger>(trigger(json!({"subscriber": {"ref": reference}}))).await;
        control_plane.until_ready::<Trigger>("t").await;
        control_plane.delete::<Broker>("other").await;
        control_plane.until_not_ready::<Trigger>("t", "SubscriberResolveFailed").await;
        control_plane.table(|table| assert_eq!(table.streams["/brokers/default/b"].subscribers.len(), 1));
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.first_table(|table| assert_eq!(table.streams["/brokers/default/b"].subscribers.len(), 1));
        control_plane.close().await;
    });
}

/// APP-16, EV-TRG-06: unresolvable names are detected again at a start, and do not stop it.
#[test]
fn nothing_that_an_object_says_keeps_the_appliance_from_starting() {
    let dir = TempDir::new().unwrap();
    let config = |namespace: &str, name: &str| json!({"config": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace, "name": name}});
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Broker>(broker(config("default", "my config"))).await;
        let mut other = broker(config("default/configmaps?watch=true&x=", "c"));
        other["metadata"]["name"] = "other".into();
        control_plane.create::<Broker>(other).await;
        let mut hello = hello("v1");
        hello["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
            json!([{"configMapRef": {"name": "my config", "optional": true}}]);
        control_plane.create::<Service>(hello).await;
        control_plane.until_ready::<Service>("hello").await;
        for name in ["b", "other"] {
            control_plane.until::<Broker>(name, |broker| broker.ready().is_some()).await;
        }
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.first_table(|table| {
            assert!(table.streams.contains_key("/brokers/default/b"));
            assert!(table.streams.contains_key("/brokers/default/other"));
            assert_eq!(splits(table, "hello.default.test").len(), 1);
        });
        control_plane.close().await;
    });
}

//! kube's own client over the in-process API.

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use crate::support::TestApiServer;

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "a": "1" } })).unwrap()
}

#[tokio::test]
async fn kubes_own_client_creates_reads_patches_and_deletes() {
    let server = TestApiServer::open().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let made = maps.create(&PostParams::default(), &map("one")).await.unwrap();
    assert!(made.metadata.uid.is_some());
    let patch = Patch::Merge(json!({ "data": { "a": null, "b": "2" } }));
    maps.patch("one", &PatchParams::default(), &patch).await.unwrap();
    let read = maps.get("one").await.unwrap();
    assert_eq!(read.data.unwrap().into_iter().collect::<Vec<_>>(), [("b".into(), "2".into())]);
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    maps.delete("one", &DeleteParams::default()).await.unwrap();
    assert!(maps.get_opt("one").await.unwrap().is_none());
}

#[tokio::test]
async fn kubes_watcher_lists_and_then_follows() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let server = TestApiServer::open().await;
        let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
        maps.create(&PostParams::default(), &map("before")).await.unwrap();
        let mut seen = watcher(maps.clone(), config).applied_objects().boxed();
        assert_eq!(seen.next().await.unwrap().unwrap().metadata.name.unwrap(), "before");
        maps.create(&PostParams::default(), &map("after")).await.unwrap();
        assert_eq!(seen.next().await.unwrap().unwrap().metadata.name.unwrap(), "after");
    }
}

/// APP-17
#[tokio::test]
async fn kubes_discovery_finds_every_kind() {
    let server = TestApiServer::open().await;
    let discovery = kube::Discovery::new(server.client()).run().await.unwrap();
    let found = |group: &str, kind: &str| discovery.get(group).is_some_and(|g| g.recommended_kind(kind).is_some());
    assert!(found("", "Namespace"));
    assert!(found("test.sluicegate.dev", "Widget"));
    assert!(!found("test.sluicegate.dev", "Namespace"));
}

/// SRV-API-09 and AMB-62: what only controllers create, a controller can create.
#[tokio::test]
async fn a_controller_may_create_what_developers_may_not() {
    let server = TestApiServer::open().await;
    let kind = GroupVersionKind::gvk("test.sluicegate.dev", "v1", "Gadget");
    let resource = ApiResource::from_gvk_with_plural(&kind, "gadgets");
    let gadgets: Api<DynamicObject> = Api::default_namespaced_with(server.client(), &resource);
    let gadget = DynamicObject::new("one", &resource).data(json!({ "spec": {} }));
    gadgets.create(&PostParams::default(), &gadget).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(server.client());
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 4);
}

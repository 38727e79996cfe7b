//! Configuration of an adapter that can change while the adapter runs: a ConfigMap, which the instance sees as a file. The
//! runtime replaces the file and sends SIGHUP.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use crate::api::{Error, NamespacedObject};
use crate::context::ControllerContext;
use crate::controller::Watches;
use crate::informer_cache::InformerCache;
use crate::owned_child::{apply, decide, owner_references};
use crate::work_queue::{ControllerKind, WorkItem};
use runtime::may_mount;
use types::adapter_program::{AdapterProgram, is_live as is_live_transport};
use types::adapter_schemas::AdapterTypeSpec;
use types::shared::namespace;
use types::sources::adapter_type::AdapterType;

/// The key of the ConfigMap, and so the name of the file.
pub(super) const KEY: &str = "adapter.json";

/// Whether the adapter reads a changed file when it gets SIGHUP, and can see that file.
pub(super) fn is_live(context: &ControllerContext, program: &AdapterProgram) -> bool {
    // The role of a follower allows no write of ConfigMaps.
    let is_own_api = context.sources().store.strong_count() > 0;
    if !may_mount() || !is_own_api {
        return false;
    }
    if let Some(transport) = &program.transport {
        return is_live_transport(transport);
    }
    let types = context.caches.adapter_types.all();
    AdapterTypeSpec::find(types.iter().map(|known| &known.spec), program).is_some_and(|known| known.live)
}

/// Writes the ConfigMap. Returns `false` if another object owns the one of that name.
pub(super) async fn write<O: NamespacedObject>(
    context: &ControllerContext,
    item: &WorkItem,
    owner: &O,
    (name, document): (&str, String),
) -> Result<bool, Error> {
    let wanted = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace(owner.meta()).to_owned()),
            owner_references: owner_references(owner),
            ..ObjectMeta::default()
        },
        data: Some([(KEY.to_owned(), document)].into()),
        ..ConfigMap::default()
    };
    // Not from the cache, which is too old right after a write.
    let existing = context.api::<ConfigMap>(&item.namespace).get_opt(name).await?;
    let take = |to: &mut ConfigMap, from: ConfigMap| to.data = from.data;
    Ok(apply(context, decide(owner.meta(), existing.as_ref(), wanted, take)).await?.is_some())
}

/// All objects in `cache` are reconciled when an AdapterType changes: it says whether its adapter can be updated live.
pub(crate) fn watch_types<'a, K: kube::Resource>(
    watches: &mut Watches<'a>,
    kind: ControllerKind,
    cache: &'a InformerCache<K>,
) {
    watches.enqueue::<AdapterType, _>(move |_| {
        cache.keys().into_iter().map(move |(home, name)| WorkItem::new(kind, &home, &name)).collect::<Vec<_>>()
    });
}

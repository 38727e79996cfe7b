//! Default objects of every namespace, as in Kubernetes: the account `default`, and the ConfigMap `kube-root-ca.crt`
//! with the API's certificate authority. They are restored when they are deleted or changed. Secrets that request an account's
//! token are filled with it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use serde_json::{Value, json};

use crate::store::maintenance::{self, SkipReason};
use crate::store::{
    ChangeEvent, DecodedObject, ObjectKey, ObjectStore, StagedView, StoreError, StoredObject, WriteOperation, gc,
    lifecycle,
};
use types::core_kinds::NAMESPACE;
use types::kind_registry::{KindEntry, KindRegistry, ResourceStrategy as _};

use super::authentication::TokenSigner;
use super::errors::StatusError;
use super::{account_secrets, create, field_ownership, prepare, seed};

/// The account of objects that name none.
const ACCOUNT: &str = "default";
/// The user that empties namespaces in Kubernetes.
const NAMESPACE_CONTROLLER: &str = "kube-controller-manager";
/// The user that deletes objects without an owner in Kubernetes.
const GARBAGE_COLLECTOR: &str = "garbage-collector-controller";
/// Characters kept of an object's name in that of an Event about it, so that this is a name too.
const EVENT_NAME_CHARS_MAX: usize = 236;
const ROOT_CA_CONFIG_MAP: &str = "kube-root-ca.crt";
const ROOT_CA_KEY: &str = "ca.crt";

/// Pause while the disk is full.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Maintains the default objects of every namespace until the store is shut down or fails. `authority` is PEM, or
/// empty if there is no authority; without a `signer` no tokens are issued.
pub async fn run_namespace_defaults(store: Arc<ObjectStore>, authority: Arc<str>, signer: Option<Arc<TokenSigner>>) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    let mut reached = None;
    loop {
        news.mark_unchanged();
        let Some(store) = weak.upgrade() else { return };
        let (namespaces, now) = changed_namespaces(&store, reached);
        match reconcile_namespaces(&store, namespaces, &authority, signer.as_ref()).await {
            Ok(()) => reached = Some(now),
            Err(StoreError::Full { .. }) => {
                drop(store);
                reached = None;
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            }
            Err(why) => {
                tracing::error!(error = %why, "namespaces no longer get their default account");
                return;
            }
        }
        drop(store);
        if news.changed().await.is_err() {
            return;
        }
    }
}

/// Deletes what owners and namespaces leave, until the store is shut or fails.
pub async fn run_garbage_collector(store: Arc<ObjectStore>, registry: Arc<KindRegistry>) {
    gc::run(store, registry, gc::GcCallbacks { track_status_writer: set_status_manager, record_event: warning_event })
        .await;
}

fn set_status_manager(change: WriteOperation, before: &DecodedObject, now: &str) -> WriteOperation {
    let writer = field_ownership::FieldWriter {
        manager: NAMESPACE_CONTROLLER.into(),
        status: true,
        scale: false,
        now: now.to_owned(),
        meta: &NAMESPACE,
        schema: None,
    };
    field_ownership::track_update(change, Some(before), &writer, None)
}

/// Warns of an object, once for each thing to say of it.
fn warning_event(
    view: &StagedView,
    about: &StoredObject,
    reason: &str,
    message: &str,
) -> Result<WriteOperation, SkipReason> {
    let mut said = DefaultHasher::new();
    (about.head.uid(), reason, message).hash(&mut said);
    let name: String = about.key.name.chars().take(EVENT_NAME_CHARS_MAX).collect();
    let (object, now) = (about.value(), prepare::now());
    let event = json!({
        "metadata": { "name": format!("{name}.{:016x}", said.finish()) },
        "involvedObject": { "apiVersion": object["apiVersion"], "kind": object["kind"], "name": &*about.key.name,
            "namespace": &*about.key.namespace, "uid": about.head.uid() },
        "type": "Warning", "reason": reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": { "component": GARBAGE_COLLECTOR }, "reportingComponent": GARBAGE_COLLECTOR,
    });
    let home = Some(&*about.key.namespace).filter(|home| !home.is_empty()).unwrap_or("default");
    seed::create_if_missing(view, &KindEntry::of::<k8s_openapi::api::core::v1::Event>(), event, Some(home))
        .map_err(skip_terminating)
}

/// Namespaces to reconcile after the changes since `reached`, and the revision of the last change.
fn changed_namespaces(store: &ObjectStore, reached: Option<u64>) -> (BTreeSet<Arc<str>>, u64) {
    let memory = store.read();
    if let Some(reached) = reached
        && let Ok((events, reached)) = memory.changes(None, None, reached, usize::MAX)
    {
        return (events.iter().filter_map(affected_namespace).collect(), reached);
    }
    let all = memory.list(&prepare::resource_of(&NAMESPACE), None).items();
    (all.iter().map(|namespace| namespace.key.name.clone()).collect(), memory.revision())
}

fn affected_namespace(event: &ChangeEvent) -> Option<Arc<str>> {
    let key = &event.object.key;
    if lifecycle::is_namespace(key) {
        return event.before.is_none().then(|| key.name.clone());
    }
    if account_secrets::may_need_token(event) {
        return Some(key.namespace.clone());
    }
    let account = event.deleted && *key == account_key(&key.namespace);
    let changed = event.before.is_some() && *key == root_ca_key(&key.namespace);
    (account || changed).then(|| key.namespace.clone())
}

fn account_key(namespace: &str) -> ObjectKey {
    key(&prepare::resource_of(&ServiceAccount::META), namespace, ACCOUNT)
}

fn root_ca_key(namespace: &str) -> ObjectKey {
    key(&prepare::resource_of(&ConfigMap::META), namespace, ROOT_CA_CONFIG_MAP)
}

fn key(resource: &Arc<str>, namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { resource: Arc::clone(resource), namespace: namespace.into(), name: name.into() }
}

async fn reconcile_namespaces(
    store: &ObjectStore,
    namespaces: BTreeSet<Arc<str>>,
    authority: &Arc<str>,
    signer: Option<&Arc<TokenSigner>>,
) -> Result<(), StoreError> {
    for home in namespaces {
        if let Some(signer) = signer {
            account_secrets::reconcile_namespace(store, &home, authority, signer).await?;
        }
        let (accounts, authority) = (home.clone(), Arc::clone(authority));
        maintenance::write(store, move |view| ensure_default_account(view, &accounts)).await?;
        maintenance::write(store, move |view| ensure_root_ca(view, &home, &authority)).await?;
    }
    Ok(())
}

/// The namespace is gone, or about to go.
fn skip_terminating(_: StatusError) -> SkipReason {
    SkipReason::UpToDate
}

fn ensure_default_account(view: &StagedView, home: &str) -> Result<WriteOperation, SkipReason> {
    create::check_namespace_exists(view, &ServiceAccount::META, ACCOUNT, home).map_err(skip_terminating)?;
    let wanted = json!({ "metadata": { "name": ACCOUNT } });
    seed::create_if_missing(view, &KindEntry::of::<ServiceAccount>(), wanted, Some(home)).map_err(skip_terminating)
}

fn ensure_root_ca(view: &StagedView, home: &str, authority: &str) -> Result<WriteOperation, SkipReason> {
    create::check_namespace_exists(view, &ConfigMap::META, ROOT_CA_CONFIG_MAP, home).map_err(skip_terminating)?;
    let data = json!({ ROOT_CA_KEY: authority });
    let Some(before) = view.get(&root_ca_key(home)) else {
        let wanted = json!({ "metadata": { "name": ROOT_CA_CONFIG_MAP }, "data": data });
        return seed::create_if_missing(view, &KindEntry::of::<ConfigMap>(), wanted, Some(home))
            .map_err(skip_terminating);
    };
    let mut map: Value = before.value();
    if map["data"] == data && map["immutable"] != true {
        return Ok(WriteOperation::NoOp(before));
    }
    map["data"] = data;
    if let Some(fields) = map.as_object_mut() {
        fields.remove("immutable");
    }
    Ok(WriteOperation::Put(before.key.clone(), map))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn object(store: &ObjectStore, key: &ObjectKey) -> Value {
        loop {
            let mut news = store.revision();
            news.mark_unchanged();
            if let Some(found) = store.read().get(key) {
                return found.value();
            }
            let changed = tokio::time::timeout(Duration::from_secs(30), news.changed());
            changed.await.unwrap().unwrap();
        }
    }

    /// APP-32: a namespace has its default account and its authority, and gets them back.
    #[tokio::test]
    async fn every_namespace_has_an_account_and_the_authority() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
        seed::seed(&store, &types::registry()).await.unwrap();
        let controller = tokio::spawn(run_namespace_defaults(Arc::clone(&store), "PEM".into(), None));
        let account = account_key("default");
        let first = object(&store, &account).await;
        let map = object(&store, &root_ca_key("knative-serving")).await;
        assert_eq!(map["data"], json!({ "ca.crt": "PEM" }));

        let gone = account.clone();
        store
            .write(move |view| {
                Ok::<_, StoreError>(WriteOperation::Delete(gone.clone(), view.get(&gone).unwrap().value()))
            })
            .await
            .unwrap();
        let again = object(&store, &account).await;
        assert_ne!(first["metadata"]["uid"], again["metadata"]["uid"]);

        let changed = root_ca_key("default");
        object(&store, &changed).await;
        let key = changed.clone();
        let spoil = move |view: &StagedView| {
            let mut map = view.get(&key).unwrap().value();
            map["data"] = json!({ "ca.crt": "another" });
            Ok::<_, StoreError>(WriteOperation::Put(key.clone(), map))
        };
        store.write(spoil).await.unwrap();
        for _ in 0..300 {
            if store.read().get(&changed).unwrap().value()["data"]["ca.crt"] == "PEM" {
                controller.abort();
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the authority was not written back");
    }
}

//! What every namespace has, as Kubernetes makes it: the account `default`, and the ConfigMap `kube-root-ca.crt`
//! with whom to believe of the API. Who deletes or changes them gets them back. Secrets that ask for an account's token
//! get it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use serde_json::{Value, json};

use crate::kind::{Entry, Registry, Resource as _};
use crate::kinds::core::NAMESPACE;
use crate::store::upkeep::{self, Skip};
use crate::store::{Change, Event, Key, Opened, Store, StoreError, Stored, View, gc, lifecycle};

use super::errors::Refusal;
use super::identity::Signer;
use super::{account_secrets, apply, create, object, seed};

/// The account of whoever names none.
const ACCOUNT: &str = "default";
/// Who empties namespaces in Kubernetes.
const EMPTIER: &str = "kube-controller-manager";
/// Who clears away what lost its owners.
const COLLECTOR: &str = "garbage-collector-controller";
/// Characters kept of an object's name in that of an Event about it, so that this is a name too.
const TOLD_NAME_CHARS_MAX: usize = 236;
const AUTHORITY: &str = "kube-root-ca.crt";
const AUTHORITY_KEY: &str = "ca.crt";

/// Pause while the disk is full.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Keeps every namespace's things until the store is shut or fails. `authority` is PEM, or empty where there is
/// none to tell of; without a `signer` there are no tokens.
pub async fn keep_house(store: Arc<Store>, authority: Arc<str>, signer: Option<Arc<Signer>>) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    let mut reached = None;
    loop {
        news.mark_unchanged();
        let Some(store) = weak.upgrade() else { return };
        let (homes, now) = unsettled(&store, reached);
        match settle(&store, homes, &authority, signer.as_ref()).await {
            Ok(()) => reached = Some(now),
            Err(StoreError::Full { .. }) => {
                drop(store);
                reached = None;
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
                continue;
            }
            Err(why) => {
                tracing::error!(error = %why, "namespaces get no default account any more");
                return;
            }
        }
        drop(store);
        if news.changed().await.is_err() {
            return;
        }
    }
}

/// Clears away what owners and namespaces leave, until the store is shut or fails.
pub async fn collect(store: Arc<Store>, registry: Arc<Registry>) {
    gc::run(store, registry, gc::Words { sign, tell }).await;
}

fn sign(change: Change, before: &Opened, now: &str) -> Change {
    let writer = apply::Writer {
        manager: EMPTIER.into(),
        status: true,
        scale: false,
        now: now.to_owned(),
        meta: &NAMESPACE,
        schema: None,
    };
    apply::track(change, Some(before), &writer, None)
}

/// Warns of an object, once for each thing to say of it.
fn tell(view: &View, about: &Stored, reason: &str, message: &str) -> Result<Change, Skip> {
    let mut said = DefaultHasher::new();
    (about.head.uid(), reason, message).hash(&mut said);
    let name: String = about.key.name.chars().take(TOLD_NAME_CHARS_MAX).collect();
    let (object, now) = (about.value(), object::now());
    let event = json!({
        "metadata": { "name": format!("{name}.{:016x}", said.finish()) },
        "involvedObject": { "apiVersion": object["apiVersion"], "kind": object["kind"], "name": &*about.key.name,
            "namespace": &*about.key.namespace, "uid": about.head.uid() },
        "type": "Warning", "reason": reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": { "component": COLLECTOR }, "reportingComponent": COLLECTOR,
    });
    let home = Some(&*about.key.namespace).filter(|home| !home.is_empty()).unwrap_or("default");
    seed::make(view, &Entry::of::<k8s_openapi::api::core::v1::Event>(), event, Some(home)).map_err(no_home)
}

/// Namespaces to look at after what changed since `reached`, and up to where that is.
fn unsettled(store: &Store, reached: Option<u64>) -> (BTreeSet<Arc<str>>, u64) {
    let memory = store.read();
    if let Some(reached) = reached
        && let Ok((events, reached)) = memory.changes(None, None, reached, usize::MAX)
    {
        return (events.iter().filter_map(concerned).collect(), reached);
    }
    let all = memory.list(&object::resource_of(&NAMESPACE), None).items();
    (all.iter().map(|namespace| namespace.key.name.clone()).collect(), memory.revision())
}

fn concerned(event: &Event) -> Option<Arc<str>> {
    let key = &event.object.key;
    if lifecycle::is_namespace(key) {
        return event.before.is_none().then(|| key.name.clone());
    }
    if account_secrets::concerned(event) {
        return Some(key.namespace.clone());
    }
    let account = event.deleted && *key == account(&key.namespace);
    let changed = event.before.is_some() && *key == authority_map(&key.namespace);
    (account || changed).then(|| key.namespace.clone())
}

fn account(namespace: &str) -> Key {
    key(&object::resource_of(&ServiceAccount::META), namespace, ACCOUNT)
}

fn authority_map(namespace: &str) -> Key {
    key(&object::resource_of(&ConfigMap::META), namespace, AUTHORITY)
}

fn key(resource: &Arc<str>, namespace: &str, name: &str) -> Key {
    Key { resource: Arc::clone(resource), namespace: namespace.into(), name: name.into() }
}

async fn settle(
    store: &Store,
    homes: BTreeSet<Arc<str>>,
    authority: &Arc<str>,
    signer: Option<&Arc<Signer>>,
) -> Result<(), StoreError> {
    for home in homes {
        if let Some(signer) = signer {
            account_secrets::settle(store, &home, authority, signer).await?;
        }
        let (accounts, authority) = (home.clone(), Arc::clone(authority));
        upkeep::write(store, move |view| furnish_account(view, &accounts)).await?;
        upkeep::write(store, move |view| furnish_authority(view, &home, &authority)).await?;
    }
    Ok(())
}

/// The namespace is gone, or about to go.
fn no_home(_: Refusal) -> Skip {
    Skip::Fine
}

fn furnish_account(view: &View, home: &str) -> Result<Change, Skip> {
    create::check_home(view, &ServiceAccount::META, ACCOUNT, home).map_err(no_home)?;
    let wanted = json!({ "metadata": { "name": ACCOUNT } });
    seed::make(view, &Entry::of::<ServiceAccount>(), wanted, Some(home)).map_err(no_home)
}

fn furnish_authority(view: &View, home: &str, authority: &str) -> Result<Change, Skip> {
    create::check_home(view, &ConfigMap::META, AUTHORITY, home).map_err(no_home)?;
    let data = json!({ AUTHORITY_KEY: authority });
    let Some(before) = view.get(&authority_map(home)) else {
        let wanted = json!({ "metadata": { "name": AUTHORITY }, "data": data });
        return seed::make(view, &Entry::of::<ConfigMap>(), wanted, Some(home)).map_err(no_home);
    };
    let mut map: Value = before.value();
    if map["data"] == data && map["immutable"] != true {
        return Ok(Change::Keep(before));
    }
    map["data"] = data;
    if let Some(fields) = map.as_object_mut() {
        fields.remove("immutable");
    }
    Ok(Change::Put(before.key.clone(), map))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    async fn object(store: &Store, key: &Key) -> Value {
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

    /// APP-32: a namespace has its default account and whom to believe, and gets them back.
    #[tokio::test]
    async fn every_namespace_has_an_account_and_the_authority() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(folder.path()).unwrap());
        seed::seed(&store, &kinds::registry()).await.unwrap();
        let keeper = tokio::spawn(keep_house(Arc::clone(&store), "PEM".into(), None));
        let account = account("default");
        let first = object(&store, &account).await;
        let map = object(&store, &authority_map("knative-serving")).await;
        assert_eq!(map["data"], json!({ "ca.crt": "PEM" }));

        let gone = account.clone();
        store
            .write(move |view| {
                Ok::<_, StoreError>(Change::Delete(gone.clone(), view.get(&gone).unwrap().value()))
            })
            .await
            .unwrap();
        let again = object(&store, &account).await;
        assert_ne!(first["metadata"]["uid"], again["metadata"]["uid"]);

        let changed = authority_map("default");
        object(&store, &changed).await;
        let key = changed.clone();
        let spoil = move |view: &View| {
            let mut map = view.get(&key).unwrap().value();
            map["data"] = json!({ "ca.crt": "another" });
            Ok::<_, StoreError>(Change::Put(key.clone(), map))
        };
        store.write(spoil).await.unwrap();
        for _ in 0..300 {
            if store.read().get(&changed).unwrap().value()["data"]["ca.crt"] == "PEM" {
                keeper.abort();
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the authority was not written back");
    }
}

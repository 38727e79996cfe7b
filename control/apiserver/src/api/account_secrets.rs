//! Secrets of type `kubernetes.io/service-account-token`: an account's token for clients that cannot request one, as
//! older tools expect it. The token is valid as long as its Secret and its account exist.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::access::service_account_tokens::{BoundObject, BoundObjectKind, ServiceAccountIdentity, TokenSigner};
use crate::store::maintenance::{self, SkipReason};
use crate::store::{ChangeEvent, ObjectKey, ObjectStore, StagedView, StoreError, WriteOperation};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
const SECRETS: &str = "/secrets";
const ACCOUNTS: &str = "/serviceaccounts";
/// The lifetime of such a token unless its Secret is deleted: a hundred years.
const SECONDS: i64 = 100 * 365 * 24 * 3_600;

/// Whether a change can ask for a token, or end one.
pub(super) fn may_need_token(event: &ChangeEvent) -> bool {
    match &*event.object.key.resource {
        ACCOUNTS => event.deleted || event.before.is_none(),
        SECRETS => !event.deleted && event.object.value()["type"] == TYPE,
        _ => false,
    }
}

/// Fills the Secrets of a namespace that ask for a token, and deletes those whose account is gone.
pub(super) async fn reconcile_namespace(
    store: &ObjectStore,
    home: &str,
    authority: &Arc<str>,
    signer: &Arc<TokenSigner>,
) -> Result<(), StoreError> {
    let all = store.read().list(&SECRETS.into(), Some(home)).items();
    for secret in all.into_iter().filter(|secret| secret.value()["type"] == TYPE) {
        let (key, authority, signer) = (secret.key.clone(), Arc::clone(authority), Arc::clone(signer));
        maintenance::write(store, move |view| fill_token(view, &key, &authority, &signer)).await?;
    }
    Ok(())
}

fn fill_token(
    view: &StagedView,
    key: &ObjectKey,
    authority: &str,
    signer: &TokenSigner,
) -> Result<WriteOperation, SkipReason> {
    let Some(before) = view.get(key).filter(|secret| !secret.head.deleting) else {
        return Err(SkipReason::UpToDate);
    };
    let mut secret: Value = before.value();
    let annotation = |name: &str| secret["metadata"]["annotations"][name].as_str().unwrap_or("").to_owned();
    let (name, uid) = (annotation(NAME), annotation(UID));
    let account = ObjectKey { resource: ACCOUNTS.into(), namespace: key.namespace.clone(), name: name.as_str().into() };
    let account = match view.get(&account) {
        Some(account) if uid.is_empty() || *uid == *account.head.uid() => account,
        _ => return Ok(WriteOperation::Delete(key.clone(), secret)),
    };
    let text = |name: &str| secret["data"][name].as_str().is_some_and(|text| !text.is_empty());
    let ca = STANDARD.encode(authority);
    if !uid.is_empty() && text("token") && text("namespace") && secret["data"]["ca.crt"] == ca {
        return Ok(WriteOperation::NoOp(before));
    }
    if !text("token") {
        let bound = BoundObject {
            kind: BoundObjectKind::Secret,
            name: key.name.to_string(),
            uid: before.head.uid().to_string(),
        };
        let account = ServiceAccountIdentity {
            namespace: key.namespace.to_string(),
            name,
            uid: account.head.uid().to_string(),
            bound_object: Some(bound),
        };
        let token = signer.sign(&account, &[], Timestamp::now().as_second(), SECONDS).ok_or(SkipReason::UpToDate)?;
        secret["data"]["token"] = STANDARD.encode(token).into();
    }
    secret["data"]["ca.crt"] = ca.into();
    secret["data"]["namespace"] = STANDARD.encode(&*key.namespace).into();
    secret["metadata"]["annotations"][UID] = json!(account.head.uid());
    Ok(WriteOperation::Put(key.clone(), secret))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::api::seed;
    use types::kind_registry::KindEntry;

    async fn until(store: &ObjectStore, good: impl Fn(&ObjectStore) -> bool) {
        for _ in 0..300 {
            if good(store) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it did not come to that");
    }

    /// APP-32: a Secret that asks for an account's token gets it, and goes with the account.
    #[tokio::test]
    async fn a_secret_that_asks_for_a_token_gets_it_and_goes_with_the_account() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(ObjectStore::open(folder.path()).unwrap());
        seed::seed(&store, &types::registry()).await.unwrap();
        let signer = Arc::new(TokenSigner::open(&folder.path().join("key")).unwrap());
        let server = crate::api::run_namespace_defaults(Arc::clone(&store), "PEM".into(), Some(Arc::clone(&signer)));
        let controller = tokio::spawn(server);
        let make = |entry: KindEntry, object: Value| {
            let store = Arc::clone(&store);
            async move {
                let made = move |view: &StagedView| seed::create_if_missing(view, &entry, object, Some("default"));
                store.write(made).await.unwrap();
            }
        };
        make(KindEntry::of::<k8s_openapi::api::core::v1::ServiceAccount>(), json!({ "metadata": { "name": "robot" } }))
            .await;
        let secret = json!({ "metadata": { "name": "t", "annotations": { NAME: "robot" } }, "type": TYPE });
        make(KindEntry::of::<k8s_openapi::api::core::v1::Secret>(), secret).await;
        let key = |resource: &str, name: &str| ObjectKey {
            resource: resource.into(),
            namespace: "default".into(),
            name: name.into(),
        };
        let (secret, account) = (key(SECRETS, "t"), key(ACCOUNTS, "robot"));
        until(&store, |store| {
            store.read().get(&secret).is_some_and(|secret| secret.value()["data"]["token"].is_string())
        })
        .await;
        let filled = store.read().get(&secret).unwrap().value();
        assert_eq!(filled["data"]["ca.crt"], STANDARD.encode("PEM"));
        let token = STANDARD.decode(filled["data"]["token"].as_str().unwrap()).unwrap();
        let now = Timestamp::now().as_second();
        let read = signer.verify(std::str::from_utf8(&token).unwrap(), now).unwrap();
        assert_eq!((read.name.as_str(), read.bound_object.unwrap().name.as_str()), ("robot", "t"));
        let gone = account.clone();
        let delete = move |view: &StagedView| {
            Ok::<_, StoreError>(WriteOperation::Delete(gone.clone(), view.get(&gone).unwrap().value()))
        };
        store.write(delete).await.unwrap();
        until(&store, |store| store.read().get(&secret).is_none()).await;
        controller.abort();
    }
}

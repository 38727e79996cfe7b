//! What controllers use of the Kubernetes API: the limits of a typed client, and the texts of its errors.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::leadership::NotLeader;
use crate::replica_reports::ReplicaBehind;

/// Why an object has to be checked again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The missing object will be written by another appliance.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// Ready is to be said when all replicas serve the object.
    #[error(transparent)]
    ReplicaBehind(#[from] ReplicaBehind),
    #[error("no answer in {0:?}")]
    ApiTimeout(Duration),
}

impl Error {
    /// Another client wrote first. The watch brings what it wrote, and a retry starts from that.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Api(kube::Error::Api(status)) => {
                status.is_conflict() || status.is_already_exists() || status.is_not_found()
            }
            Self::Api(_) | Self::NotLeader(_) | Self::ReplicaBehind(_) | Self::ApiTimeout(_) => false,
        }
    }
}

/// The traits that the typed clients need of a kind.
pub trait NamespacedObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + PartialEq
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> NamespacedObject for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + PartialEq
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Conditions carry whole seconds, as Kubernetes' times do.
#[must_use]
pub fn now() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// The server knows no such kind.
pub(crate) fn is_kind_not_found(why: &kube::Error) -> bool {
    let names_object =
        |status: &kube::core::Status| status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    matches!(why, kube::Error::Api(status) if status.code == 404 && !names_object(status))
}

/// The server has no such object, or no such kind. For a kind the error is plain text, which kube does not parse as
/// `NotFound`.
pub(crate) fn is_not_found(why: &kube::Error) -> bool {
    matches!(why, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use http::StatusCode;
    use serde_json::json;

    use kube::Client;

    use super::*;
    use types::serving::service::Service;

    #[tokio::test]
    async fn missing_kind_differs_from_missing_object() {
        let refusal = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": "not found", "details": { "kind": "services", "name": "s" } });
        let named = Router::new().fallback(move || async move { (StatusCode::NOT_FOUND, refusal.to_string()) });
        let plain = Router::new().fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") });
        for (router, lacks) in [(named, false), (plain, true)] {
            let api: kube::Api<Service> = kube::Api::namespaced(Client::new(router, "default"), "ns");
            assert_eq!(is_kind_not_found(&api.get("s").await.unwrap_err()), lacks);
        }
    }
}

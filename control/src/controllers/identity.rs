//! Under whom an object sends: a service account of its own, while senders have to say who they are (X-FEA-07).

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};

use super::managers;
use super::queue::Item;
use super::service::children::owner;
use super::world::{Error, Object, World};
use crate::fingerprint;
use crate::kind::Resource;
use crate::kinds::conditions::Conditions;
use crate::kinds::names::is_path_segment;
use crate::kinds::shared::{AuthStatus, KReference, name, namespace};

/// Longest name as upstream makes them, in characters; longer ones end in a hash.
const NAME_CHARS_MAX: usize = 63;
/// Characters of that hash.
const HASH_CHARS: usize = 32;

/// What became of an object's identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Identity {
    /// Nobody asks for it.
    #[default]
    Unasked,
    /// The service account's name.
    Made(String),
    /// Somebody else has an account of that name.
    Taken(String),
}

impl Identity {
    /// The identity that an object has, or will have at the end of the look at it.
    #[must_use]
    pub fn expected<R: Resource>(world: &World, meta: &ObjectMeta) -> Self {
        if world.settings().event_features.authenticates() {
            Self::Made(account_name::<R>(name(meta)))
        } else {
            Self::Unasked
        }
    }

    #[must_use]
    pub fn account(&self) -> Option<&str> {
        match self {
            Self::Made(account) => Some(account),
            Self::Unasked | Self::Taken(_) => None,
        }
    }

    /// For `status.auth`.
    #[must_use]
    pub fn status(&self) -> Option<AuthStatus> {
        self.account().map(|account| AuthStatus::of(account.to_owned()))
    }

    pub fn mark(&self, conditions: &mut Conditions<'_>, kind: &str) {
        match self {
            Self::Unasked => conditions.mark_true_because(
                kind,
                "AuthenticationOIDCDisabled",
                "The feature authentication-oidc is disabled.",
            ),
            Self::Made(_) => conditions.mark_true(kind),
            Self::Taken(account) => {
                let why = format!("service account {account} is not owned by this object");
                conditions.mark_false(kind, "ServiceAccountNotOwned", &why);
            }
        }
    }
}

/// The account of an object of kind `R` with this name; upstream's name for it, if that is short enough.
#[must_use]
pub fn account_name<R: Resource>(parent: &str) -> String {
    let suffix = format!("-oidc-{}-{}", R::META.group, R::META.kind);
    let whole = format!("{parent}{suffix}").to_lowercase();
    if whole.len() <= NAME_CHARS_MAX {
        return whole;
    }
    let hash = fingerprint::of(whole.as_bytes());
    let begin: String = parent.chars().take(NAME_CHARS_MAX - HASH_CHARS - 1).collect();
    format!("{}-{}", begin.trim_end_matches(['-', '.']), &hash[..HASH_CHARS])
}

/// The subject of tokens of an account.
#[must_use]
pub fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Makes the account of `object` be there, or be gone; `item` is looked at again when somebody touches it. What
/// `had` says is the object's own status.
pub async fn keep<K: Object + Resource>(
    world: &World,
    item: &Item,
    object: &K,
    had: Option<&AuthStatus>,
) -> Result<Identity, Error> {
    let expected = Identity::expected::<K>(world, object.meta());
    let Some(account) = expected.account() else {
        if let Some(account) = had.and_then(|had| had.service_account_name.as_deref()) {
            remove(world, object, account).await?;
        }
        return Ok(expected);
    };
    let reference = KReference {
        api_version: "v1".to_owned(),
        kind: ServiceAccount::META.kind.to_owned(),
        name: account.to_owned(),
        ..KReference::default()
    };
    if let Ok(found) = world.resolver.read(item, &reference).await? {
        let owners = found["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let ours = owners.into_iter().any(|owner| owner["uid"].as_str() == object.meta().uid.as_deref());
        return Ok(if ours { expected.clone() } else { Identity::Taken(account.to_owned()) });
    }
    world.duty.check()?;
    let meta = object.meta();
    let what = format!("Service Account for OIDC Authentication for {} {:?}", K::META.kind, name(meta));
    let wanted = ServiceAccount {
        metadata: ObjectMeta {
            namespace: meta.namespace.clone(),
            name: Some(account.to_owned()),
            owner_references: owner(object),
            annotations: Some([("description".to_owned(), what)].into()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    let api = world.api::<ServiceAccount>(namespace(meta));
    api.create(&managers::objects::<ServiceAccount>(), &wanted).await?;
    Ok(expected.clone())
}

/// Nobody asks any more: the account goes, if it is the object's own.
async fn remove<K: Object>(world: &World, object: &K, account: &str) -> Result<(), Error> {
    let meta = object.meta();
    // Whoever may write statuses wrote it.
    if !is_path_segment(account) {
        return Ok(());
    }
    let api = world.api::<ServiceAccount>(namespace(meta));
    let Some(found) = api.get_opt(account).await? else { return Ok(()) };
    if !crate::kinds::shared::is_controlled_by(&found.metadata, meta) {
        return Ok(());
    }
    world.duty.check()?;
    let preconditions = Preconditions { uid: found.metadata.uid.clone(), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(account, &parameters).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::eventing::trigger::Trigger;
    use crate::kinds::names::is_dns_subdomain;

    /// X-FEA-07
    #[test]
    fn an_account_has_upstreams_name_if_that_is_one() {
        assert_eq!(account_name::<Trigger>("t"), "t-oidc-eventing.knative.dev-trigger");
        let long = |end: &str| account_name::<Trigger>(&format!("{}{end}", "x-".repeat(60)));
        assert!(is_dns_subdomain(&long("a")) && long("a").len() <= NAME_CHARS_MAX);
        assert_ne!(long("a"), long("b"));
    }
}

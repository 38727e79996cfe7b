//! The identity under which an object sends: a service account of its own, while senders must authenticate
//! (X-FEA-07).

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions};

use crate::api::{Error, NamespacedObject};
use crate::context::ControllerContext;
use crate::destination_resolver::DestinationAddress;
use crate::field_managers;
use crate::owned_child::owner_references;
use crate::work_queue::WorkItem;
use support::names::is_path_segment;
use support::sha256;
use types::conditions::ConditionManager;
use types::kind_registry::ResourceStrategy;
use types::shared::{AuthStatus, KReference, name, namespace};

/// Longest name as upstream makes them, in characters; longer ones end in a hash.
const NAME_CHARS_MAX: usize = 63;
/// Characters of that hash.
const HASH_CHARS: usize = 32;

/// The state of an object's identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OidcIdentity {
    /// Authentication is off.
    #[default]
    Disabled,
    /// The service account's name.
    Created(String),
    /// An account of that name exists and has another owner.
    Conflict(String),
}

impl OidcIdentity {
    /// The identity that an object has, or will have at the end of its reconcile.
    #[must_use]
    pub fn expected<R: ResourceStrategy>(context: &ControllerContext, meta: &ObjectMeta) -> Self {
        if context.settings().event_features.authenticates() {
            Self::Created(account_name::<R>(name(meta)))
        } else {
            Self::Disabled
        }
    }

    #[must_use]
    pub fn account(&self) -> Option<&str> {
        match self {
            Self::Created(account) => Some(account),
            Self::Disabled | Self::Conflict(_) => None,
        }
    }

    /// The account whose token a sink requires; `None`: it requires none.
    ///
    /// # Errors
    /// There is no such account.
    pub fn account_for(&self, sink: &DestinationAddress) -> Result<Option<&str>, String> {
        match self {
            _ if sink.audience.is_none() => Ok(None),
            Self::Conflict(account) => {
                Err(format!("the sink requires a token, and service account {account} belongs to another object"))
            }
            Self::Created(account) => Ok(Some(account)),
            Self::Disabled => Ok(None),
        }
    }

    /// For `status.auth`.
    #[must_use]
    pub fn status(&self) -> Option<AuthStatus> {
        self.account().map(|account| AuthStatus::of(account.to_owned()))
    }

    pub fn mark(&self, conditions: &mut ConditionManager<'_>, kind: &str) {
        match self {
            Self::Disabled => conditions.mark_true_with_reason(
                kind,
                "AuthenticationOIDCDisabled",
                "The feature authentication-oidc is disabled.",
            ),
            Self::Created(_) => conditions.mark_true(kind),
            Self::Conflict(account) => {
                let why = format!("service account {account} is not owned by this object");
                conditions.mark_false(kind, "ServiceAccountNotOwned", &why);
            }
        }
    }
}

/// The account of an object of kind `R` with this name; upstream's name for it, if that is short enough.
#[must_use]
pub fn account_name<R: ResourceStrategy>(parent: &str) -> String {
    let suffix = format!("-oidc-{}-{}", R::META.group, R::META.kind);
    let whole = format!("{parent}{suffix}").to_lowercase();
    if whole.len() <= NAME_CHARS_MAX {
        return whole;
    }
    let hash = sha256::hex_digest(whole.as_bytes());
    let begin: String = parent.chars().take(NAME_CHARS_MAX - HASH_CHARS - 1).collect();
    format!("{}-{}", begin.trim_end_matches(['-', '.']), &hash[..HASH_CHARS])
}

/// The subject of tokens of an account.
#[must_use]
pub fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Ensures that the account of `object` exists, or is deleted; `item` is reconciled again when it is changed. `had`
/// is the object's own status.
pub async fn reconcile_account<K: NamespacedObject + ResourceStrategy>(
    context: &ControllerContext,
    item: &WorkItem,
    object: &K,
    had: Option<&AuthStatus>,
) -> Result<OidcIdentity, Error> {
    let expected = OidcIdentity::expected::<K>(context, object.meta());
    let Some(account) = expected.account() else {
        if let Some(account) = had.and_then(|had| had.service_account_name.as_deref()) {
            remove_account(context, object, account).await?;
        }
        return Ok(expected);
    };
    let reference = KReference {
        api_version: "v1".to_owned(),
        kind: ServiceAccount::META.kind.to_owned(),
        name: account.to_owned(),
        ..KReference::default()
    };
    if let Ok(found) = context.resolver.read(item, &reference).await? {
        let owners = found["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let ours = owners.into_iter().any(|owner| owner["uid"].as_str() == object.meta().uid.as_deref());
        return Ok(if ours { expected.clone() } else { OidcIdentity::Conflict(account.to_owned()) });
    }
    context.leadership.check()?;
    let meta = object.meta();
    let what = format!("Service Account for OIDC Authentication for {} {:?}", K::META.kind, name(meta));
    let wanted = ServiceAccount {
        metadata: ObjectMeta {
            namespace: meta.namespace.clone(),
            name: Some(account.to_owned()),
            owner_references: owner_references(object),
            annotations: Some([("description".to_owned(), what)].into()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    let api = context.api::<ServiceAccount>(namespace(meta));
    api.create(&field_managers::object_params::<ServiceAccount>(), &wanted).await?;
    Ok(expected.clone())
}

/// Authentication is off: deletes the account, if the object owns it.
async fn remove_account<K: NamespacedObject>(
    context: &ControllerContext,
    object: &K,
    account: &str,
) -> Result<(), Error> {
    let meta = object.meta();
    // The status is input: its writer may have put anything there.
    if !is_path_segment(account) {
        return Ok(());
    }
    let api = context.api::<ServiceAccount>(namespace(meta));
    let Some(found) = api.get_opt(account).await? else { return Ok(()) };
    if !types::shared::is_controlled_by(&found.metadata, meta) {
        return Ok(());
    }
    context.leadership.check()?;
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
    use support::names::is_dns_subdomain;
    use types::eventing::trigger::Trigger;

    /// X-FEA-07
    #[test]
    fn an_account_has_upstreams_name_if_that_is_one() {
        assert_eq!(account_name::<Trigger>("t"), "t-oidc-eventing.knative.dev-trigger");
        let long = |end: &str| account_name::<Trigger>(&format!("{}{end}", "x-".repeat(60)));
        assert!(is_dns_subdomain(&long("a")) && long("a").len() <= NAME_CHARS_MAX);
        assert_ne!(long("a"), long("b"));
    }
}

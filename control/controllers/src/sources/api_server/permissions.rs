//! Whether a source's service account may read what the source watches.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;

use super::plan::WatchedKind;
use crate::api::Error;
use crate::context::ControllerContext;
use types::conditions::ConditionManager;
use types::shared::namespace;
use types::sources::api_server::ApiServerSource;

const VERBS: [&str; 3] = ["get", "list", "watch"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PermissionCheck {
    Sufficient,
    /// Why not.
    Missing(String),
    /// A kind is not served.
    NotChecked,
}

impl PermissionCheck {
    pub(super) fn mark(&self, conditions: &mut ConditionManager<'_>, kind: &str) {
        match self {
            Self::Sufficient => conditions.mark_true(kind),
            Self::Missing(why) => conditions.mark_false(kind, "InsufficientPermissions", why),
            Self::NotChecked => conditions.mark_unknown(kind, "NotChecked", "a kind is not served"),
        }
    }
}

/// Asks the API for each verb, kind and namespace.
pub(super) async fn check(
    context: &ControllerContext,
    source: &ApiServerSource,
    kinds: &[WatchedKind],
    namespaces: &[String],
) -> Result<PermissionCheck, Error> {
    let reviews: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let account = if source.spec.account.is_empty() { "default" } else { &source.spec.account };
    let user = format!("system:serviceaccount:{}:{account}", namespace(&source.metadata));
    let own_group = format!("system:serviceaccounts:{}", namespace(&source.metadata));
    let groups = ["system:serviceaccounts".to_owned(), own_group, "system:authenticated".to_owned()];
    let mut missing = Vec::new();
    for kind in kinds {
        let everywhere = [String::new()];
        let places: &[String] = if kind.namespaced { namespaces } else { &everywhere };
        for place in places {
            let mut verbs = Vec::new();
            for verb in VERBS {
                let asked = ResourceAttributes {
                    namespace: Some(place.clone()).filter(|place| !place.is_empty()),
                    verb: Some(verb.to_owned()),
                    group: Some(kind.resource.group.clone()),
                    resource: Some(kind.resource.plural.clone()),
                    ..ResourceAttributes::default()
                };
                let spec = SubjectAccessReviewSpec {
                    resource_attributes: Some(asked),
                    user: Some(user.clone()),
                    groups: Some(groups.to_vec()),
                    ..SubjectAccessReviewSpec::default()
                };
                let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
                let answer = reviews.create(&PostParams::default(), &review).await?;
                if !answer.status.is_some_and(|status| status.allowed) {
                    verbs.push(verb);
                }
            }
            if !verbs.is_empty() {
                let (resource, group) = (&kind.resource.plural, &kind.resource.group);
                let verbs = verbs.join(", ");
                missing
                    .push(format!("{verbs} resource \"{resource}\" in API group \"{group}\" in Namespace \"{place}\""));
            }
        }
    }
    Ok(match missing.as_slice() {
        [] => PermissionCheck::Sufficient,
        all => PermissionCheck::Missing(format!("User {user} cannot {}", all.join(", "))),
    })
}

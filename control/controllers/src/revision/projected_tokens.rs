//! Account tokens that a Revision's instances read from files: requested from the API, and renewed before they expire.
//!
//! A renewed token reaches running instances as any other change of a volume does: its file is replaced.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccountTokenProjection;
use tokio::time::Instant;

use crate::access_tokens::{RENEW_AT_FRACTION, TokenRequester};
use crate::context::ControllerContext;
use crate::names::service_account;
use crate::work_queue::WorkItem;
use support::clock::Deadline;
use types::serving::revision_spec::RevisionSpec;

/// How long a token is good if nothing is said, in seconds (Kubernetes' default).
const SECONDS_DEFAULT: i64 = 3_600;
/// Until the Revision is checked again after a token was refused: its account may be made a moment after it.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// Tokens of one Revision's volumes: each is a request and a signature, and comes up again for its renewal.
const TOKENS_MAX: usize = 32;

/// The token request of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectedTokenRequest {
    pub account: String,
    /// Empty: the API itself.
    pub audience: String,
    pub seconds: i64,
}

impl ProjectedTokenRequest {
    pub(super) fn from_projection(account: &str, asked: &ServiceAccountTokenProjection) -> Self {
        Self {
            account: account.to_owned(),
            audience: asked.audience.clone().unwrap_or_default(),
            seconds: asked.expiration_seconds.unwrap_or(SECONDS_DEFAULT),
        }
    }
}

/// All tokens that the volumes of `spec` ask for, each once.
fn requested_tokens(spec: &RevisionSpec) -> BTreeSet<ProjectedTokenRequest> {
    let parts = spec.volumes.iter().filter_map(|volume| volume.projected.as_ref()?.sources.as_ref()).flatten();
    let asked = parts.filter_map(|part| part.service_account_token.as_ref());
    asked.map(|asked| ProjectedTokenRequest::from_projection(service_account(spec), asked)).collect()
}

#[derive(Debug)]
struct ProjectedToken {
    token: String,
    renewal: Deadline,
}

/// A Revision's.
#[derive(Debug, Default)]
struct RevisionTokens {
    tokens: BTreeMap<ProjectedTokenRequest, ProjectedToken>,
    /// When it comes up again because of one that was refused.
    retry_at: Option<Instant>,
}

/// The tokens of Revisions.
#[derive(Debug, Default)]
pub struct ProjectedTokenCache {
    by_revision: Mutex<HashMap<WorkItem, RevisionTokens>>,
}

impl ProjectedTokenCache {
    pub(crate) fn forget(&self, revision: &WorkItem) {
        self.lock().remove(revision);
    }

    /// The Revisions that have some.
    pub(crate) fn revisions(&self) -> Vec<WorkItem> {
        self.lock().keys().cloned().collect()
    }

    fn cached(&self, revision: &WorkItem, wanted: &ProjectedTokenRequest) -> Option<(String, Deadline)> {
        let all = self.lock();
        let given = all.get(revision)?.tokens.get(wanted)?;
        Some((given.token.clone(), given.renewal))
    }

    fn insert(&self, revision: &WorkItem, wanted: &ProjectedTokenRequest, given: ProjectedToken) {
        self.lock().entry(revision.clone()).or_default().tokens.insert(wanted.clone(), given);
    }

    /// Whether the Revision has to be brought up again after [`RETRY`]: not twice, however often it is checked.
    fn start_retry(&self, revision: &WorkItem, now: Instant) -> bool {
        let mut all = self.lock();
        let retry_at = &mut all.entry(revision.clone()).or_default().retry_at;
        let begins = retry_at.is_none_or(|at| at <= now);
        if begins {
            *retry_at = Some(now + RETRY_AFTER);
        }
        begins
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkItem, RevisionTokens>> {
        self.by_revision.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All tokens that the volumes of `spec` request, and the reason for each that is missing.
pub(super) async fn load(
    context: &ControllerContext,
    cache: &ProjectedTokenCache,
    revision: &WorkItem,
    spec: &RevisionSpec,
) -> BTreeMap<ProjectedTokenRequest, Result<String, String>> {
    let named = requested_tokens(spec);
    if let Some(why) = too_many(named.len()) {
        return named.into_iter().map(|wanted| (wanted, Err(why.clone()))).collect();
    }
    let mut tokens = BTreeMap::new();
    for wanted in named {
        let token = token(context, cache, revision, &wanted).await;
        tokens.insert(wanted, token);
    }
    tokens
}

fn too_many(count: usize) -> Option<String> {
    let why = || format!("its volumes ask for {count} different ones, and may for {TOKENS_MAX}");
    (count > TOKENS_MAX).then(why)
}

/// The current token of `revision`, or why it is missing. The Revision is reconciled again when it is time for
/// another; if that one is refused, the one before stays where it is.
async fn token(
    context: &ControllerContext,
    cache: &ProjectedTokenCache,
    revision: &WorkItem,
    wanted: &ProjectedTokenRequest,
) -> Result<String, String> {
    let known = cache.cached(revision, wanted);
    match known {
        Some((token, renewal)) if !renewal.has_passed(context.config.clock.both()) => return Ok(token),
        _ => {}
    }
    let ProjectedTokenRequest { account, audience, seconds } = wanted;
    let requester = TokenRequester { client: &context.client, clock: &context.config.clock };
    match requester.request(&revision.namespace, account, audience, *seconds).await {
        Ok((token, good_for)) => {
            let wait = good_for.mul_f64(RENEW_AT_FRACTION).max(RETRY_AFTER);
            let renewal = Deadline::new(context.config.clock.both(), wait);
            let given = ProjectedToken { token: token.clone(), renewal };
            cache.insert(revision, wanted, given);
            context.queue.add_after(revision.clone(), wait);
            Ok(token)
        }
        Err(why) => {
            if cache.start_retry(revision, Instant::now()) {
                context.queue.add_after(revision.clone(), RETRY_AFTER);
            }
            let Some((before, _)) = known else { return Err(why) };
            let WorkItem { namespace, name, .. } = revision;
            tracing::warn!(namespace, revision = name, account, why, "a token of a volume is not renewed; tried again");
            Ok(before)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::work_queue::ControllerKind;
    use support::clock::WallClock;

    #[test]
    fn each_token_is_asked_for_once_as_kubernetes_would() {
        let part = |asked: serde_json::Value| json!({ "serviceAccountToken": asked });
        let volumes = json!([
            { "name": "a", "projected": { "sources": [
                part(json!({ "path": "one" })), part(json!({ "path": "two" })), { "configMap": { "name": "m" } },
            ] } },
            { "name": "b", "projected": { "sources": [
                part(json!({ "path": "t", "audience": "shop", "expirationSeconds": 600 })),
            ] } },
        ]);
        let spec = |account: Option<&str>| RevisionSpec {
            volumes: serde_json::from_value(volumes.clone()).unwrap(),
            service_account_name: account.map(str::to_owned),
            ..RevisionSpec::default()
        };
        let wanted = |account: &str, audience: &str, seconds| ProjectedTokenRequest {
            account: account.into(),
            audience: audience.into(),
            seconds,
        };
        let all = |account| requested_tokens(&spec(account)).into_iter().collect::<Vec<_>>();
        assert_eq!(all(None), [wanted("default", "", 3_600), wanted("default", "shop", 600)]);
        assert_eq!(too_many(TOKENS_MAX), None);
        assert!(too_many(TOKENS_MAX + 1).is_some_and(|why| why.contains("33") && why.contains("32")));
        assert_eq!(all(Some("teller")), [wanted("teller", "", 3_600), wanted("teller", "shop", 600)]);
    }

    #[test]
    fn a_revisions_tokens_are_forgotten_with_it() {
        let (tokens, item) =
            (ProjectedTokenCache::default(), WorkItem::new(ControllerKind::new("Revision"), "ns", "a-1"));
        let wanted = ProjectedTokenRequest { account: "default".into(), audience: String::new(), seconds: 600 };
        tokens.insert(
            &item,
            &wanted,
            ProjectedToken { token: "t".into(), renewal: Deadline::new(WallClock::default().both(), RETRY_AFTER) },
        );
        assert_eq!(tokens.cached(&item, &wanted).unwrap().0, "t");
        let now = Instant::now();
        let looks = [now, now, now + RETRY_AFTER / 2, now + RETRY_AFTER, now + RETRY_AFTER]
            .map(|at| tokens.start_retry(&item, at));
        assert_eq!(looks, [true, false, false, true, false], "one look brings one other");
        tokens.forget(&item);
        assert!(tokens.cached(&item, &wanted).is_none() && tokens.lock().is_empty());
    }
}

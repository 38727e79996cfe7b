//! Applies EventPolicies to the ingress of Brokers and channels (X-FEA-07 to X-FEA-09).

use std::sync::Arc;

use contract::stream_admission::{AdmissionRule, StreamAdmission, SubjectMatcher};
use contract::table::EventFilter;

use crate::caches::CachedKind;
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::{Watches, items_in, newest};
use crate::event_filters::compiled;
use crate::informer_cache::InformerCache;
use crate::oidc_identity::subject;
use crate::work_queue::ControllerKind;
use types::conditions::ConditionManager;
use types::eventing::event_policy::{API_VERSION, EventPolicy, PolicyTarget};
use types::settings::{ALLOW_ALL, ALLOW_SAME_NAMESPACE};
use types::shared::{AppliedPolicy, HasConditions, name, namespace};

/// The senders that one object admits.
#[derive(Debug, Clone, Default)]
pub struct SenderPolicy {
    /// Senders have to authenticate.
    requires_authentication: bool,
    /// The rule without a policy.
    default_mode: &'static str,
    /// The policies of the object, then of its owner.
    audiences: Vec<String>,
    policies: Vec<Arc<EventPolicy>>,
}

impl SenderPolicy {
    /// For an object that is known by several names: the first is its own.
    #[must_use]
    pub fn for_object(context: &ControllerContext, names: &[PolicyTarget<'_>]) -> Self {
        let features = &context.settings().event_features;
        if !features.authenticates() {
            return Self::default();
        }
        let ns = names.first().map(|first| namespace(first.meta)).unwrap_or_default();
        Self::from_policies(context.caches.event_policies.list(ns), features.default_authorization(), names)
    }

    fn from_policies(mut policies: Vec<Arc<EventPolicy>>, mode: &'static str, names: &[PolicyTarget<'_>]) -> Self {
        policies.retain(|policy| names.iter().any(|name| policy.applies_to(name)));
        Self {
            requires_authentication: true,
            default_mode: mode,
            audiences: names.iter().map(PolicyTarget::audience).collect(),
            policies,
        }
    }

    /// For `status.address.audience`.
    #[must_use]
    pub fn audience(&self) -> Option<String> {
        self.audiences.first().cloned()
    }

    /// For `status.policies`.
    #[must_use]
    pub fn applied_policies(&self) -> Vec<AppliedPolicy> {
        let ready = self.policies.iter().filter(|policy| policy.is_ready());
        let listed = |policy: &Arc<EventPolicy>| AppliedPolicy {
            api_version: API_VERSION.to_owned(),
            name: name(&policy.metadata).to_owned(),
        };
        ready.map(listed).collect()
    }

    pub fn mark(&self, conditions: &mut ConditionManager<'_>, kind: &str) {
        if !self.requires_authentication {
            let why = "Feature \"authentication-oidc\" must be enabled to support Authorization";
            return conditions.mark_true_with_reason(kind, "OIDCDisabled", why);
        }
        if self.policies.is_empty() {
            let why = format!("Default authz mode is {:?}", self.default_mode);
            return conditions.mark_true_with_reason(kind, "DefaultAuthorizationMode", &why);
        }
        let unready = self.policies.iter().filter(|policy| !policy.is_ready());
        let unready: Vec<&str> = unready.map(|policy| name(&policy.metadata)).collect();
        if unready.is_empty() {
            conditions.mark_true(kind);
        } else {
            let why = format!("event policies {} are not ready", unready.join(", "));
            conditions.mark_false(kind, "EventPoliciesNotReady", &why);
        }
    }

    /// The admission rules for the cores; `None`: all senders are admitted. `own` are accounts in `ns` that send to
    /// it as a part of the same object.
    #[must_use]
    pub fn admission(&self, context: &ControllerContext, ns: &str, own: &[String]) -> Option<Arc<StreamAdmission>> {
        if !self.requires_authentication {
            return None;
        }
        let audiences = self.audiences.iter().map(|audience| audience.as_str().into()).collect();
        let grants = self.grants(ns, own);
        Some(Arc::new(StreamAdmission { verifier: context.jwks.verifier(), audiences, grants }))
    }

    fn grants(&self, ns: &str, own: &[String]) -> Vec<AdmissionRule> {
        let mut grants: Vec<AdmissionRule> = self.policies.iter().map(|policy| grant(policy)).collect();
        let unfiltered = |subjects| AdmissionRule { subjects, filter: EventFilter::Everything };
        // A policy that is not ready still keeps others out.
        if self.policies.is_empty() {
            grants.extend(match self.default_mode {
                ALLOW_ALL => Some(unfiltered(SubjectMatcher::any())),
                ALLOW_SAME_NAMESPACE => Some(unfiltered([subject(ns, "*").as_str()].into_iter().collect())),
                _ => None,
            });
        }
        if !own.is_empty() {
            let own: Vec<String> = own.iter().map(|account| subject(ns, account)).collect();
            grants.push(unfiltered(own.iter().map(String::as_str).collect()));
        }
        grants
    }
}

/// The grants of one policy: the subjects that it names, and those resolved for its current generation.
fn grant(policy: &EventPolicy) -> AdmissionRule {
    let named = policy.spec.from.iter().filter_map(|from| from.sub.as_deref());
    let status = policy.status.as_ref();
    let status = status.filter(|status| status.base.observed_generation == policy.metadata.generation);
    let found = status.into_iter().flat_map(|status| &status.from).map(String::as_str);
    AdmissionRule { subjects: named.chain(found).collect(), filter: compiled(&policy.spec.filters) }
}

/// Objects of the kind `K` admit senders by policies: they are reconciled when a policy of their namespace changes, and
/// when the keys of senders' tokens do.
pub(crate) fn watch<'a, K: CachedKind>(
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
    kind: ControllerKind,
) {
    watch_cache(watches, kind, K::cache(&context.caches));
}

/// The same for a kind whose cache is the controller's own.
pub(crate) fn watch_cache<'a, K: kube::Resource>(
    watches: &mut Watches<'a>,
    kind: ControllerKind,
    cache: &'a InformerCache<K>,
) {
    watches.enqueue::<EventPolicy, _>(move |change| {
        let home = newest(change).map(|policy| namespace(&policy.metadata));
        home.map(|home| items_in(kind, cache, Some(home))).unwrap_or_default()
    });
    watches.enqueue_on(ContextChange::SenderKeys, move || items_in(kind, cache, None));
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use types::conditions::ConditionSet;
    use types::eventing::broker::{Broker, BrokerSpec};
    use types::shared::{Condition, ConditionStatus};

    fn policy(spec: Value, status: Value) -> Arc<EventPolicy> {
        let metadata = json!({"name": "p", "namespace": "ns", "generation": 2});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap())
    }

    fn of(policies: &[Arc<EventPolicy>], mode: &'static str) -> SenderPolicy {
        let broker = Broker::new("ns", "b", BrokerSpec::default());
        SenderPolicy::from_policies(policies.to_vec(), mode, &[PolicyTarget::of::<Broker>(&broker.metadata)])
    }

    fn ready_of(rules: &SenderPolicy) -> Condition {
        let set = ConditionSet { dependents: &["EventPoliciesReady"] };
        let mut conditions = set.manage(&[], Timestamp::from_second(1).unwrap());
        rules.mark(&mut conditions, "EventPoliciesReady");
        conditions.finish().into_iter().find(|c| c.kind == "EventPoliciesReady").unwrap()
    }

    fn lets_in(rules: &SenderPolicy, account: &str) -> bool {
        rules.grants("ns", &[]).iter().any(|grant| grant.subjects.has(account))
    }

    /// X-FEA-08: the default without a policy.
    #[test]
    fn without_a_policy_the_mode_decides() {
        for (mode, same, other) in
            [("allow-all", true, true), ("allow-same-namespace", true, false), ("deny-all", false, false)]
        {
            let rules = of(&[], mode);
            assert_eq!(lets_in(&rules, "system:serviceaccount:ns:a"), same, "{mode}");
            assert_eq!(lets_in(&rules, "system:serviceaccount:nsx:a"), other, "{mode}");
            assert_eq!(ready_of(&rules).message, format!("Default authz mode is {mode:?}"));
            let own = rules.grants("ns", &["step".to_owned()]);
            assert!(own.iter().any(|grant| grant.subjects.has("system:serviceaccount:ns:step")), "{mode}");
        }
        assert_eq!(
            (ready_of(&SenderPolicy::default()).reason, SenderPolicy::default().audience()),
            ("OIDCDisabled".into(), None)
        );
    }

    /// X-FEA-09: a policy takes the mode's place, ready or not; its references count once they are resolved.
    #[test]
    fn policy_admits_named_senders() {
        let spec = json!({"from": [{"sub": "me"}, {"ref": {"apiVersion": "v1", "kind": "X", "name": "x"}}]});
        let ready = |status: &str| json!([{"type": "Ready", "status": status}]);
        let resolved = policy(
            spec.clone(),
            json!({"observedGeneration": 2, "from": ["me", "found"], "conditions": ready("True")}),
        );
        let stale =
            policy(spec, json!({"observedGeneration": 1, "from": ["me", "former"], "conditions": ready("True")}));
        let rules = of(&[Arc::clone(&resolved)], "allow-all");
        assert!(lets_in(&rules, "me") && lets_in(&rules, "found") && !lets_in(&rules, "other"));
        assert_eq!((ready_of(&rules).status, rules.applied_policies()[0].name.as_str()), (ConditionStatus::True, "p"));
        let rules = of(&[stale], "allow-all");
        assert!(lets_in(&rules, "me") && !lets_in(&rules, "former") && !lets_in(&rules, "other"));
        assert_eq!((ready_of(&rules).reason.as_str(), rules.applied_policies().len()), ("EventPoliciesNotReady", 0));
    }
}

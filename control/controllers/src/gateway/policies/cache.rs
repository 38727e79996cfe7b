//! Compiled SecurityPolicies. Many routes have the same policy: its users are read once, and its rate limits count the requests
//! of all of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dns_names::DnsNames;
use super::jwks_documents::JwksDocuments;
use crate::gateway::conditions::ConditionRefusal;
use crate::gateway::route_store::RouteReferences;
use crate::publish::RouteFilterRule;
use types::gateway_policies::security_policy::SecurityPolicySpec;

/// What a policy adds to the filters of a rule, and what is wrong with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::gateway) struct CompiledPolicy {
    /// With a reply, requests of the rule get that alone.
    pub(in crate::gateway) filters: RouteFilterRule,
    /// The policy is not in force.
    pub(in crate::gateway) not_accepted: Option<ConditionRefusal>,
    /// A reference that leads nowhere.
    pub(in crate::gateway) unresolved: Option<ConditionRefusal>,
    /// What routes with the policy refer to besides.
    pub(in crate::gateway) references: RouteReferences,
}

/// What a policy was compiled from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CompiledFrom {
    pub(super) spec: SecurityPolicySpec,
    /// The versions of what it refers to.
    pub(super) versions: Vec<String>,
}

type PolicyKey = (String, String);

#[derive(Debug, Default)]
pub(in crate::gateway) struct PolicyCache {
    pub(super) jwks: JwksDocuments,
    pub(super) dns_names: DnsNames,
    compiled: Mutex<HashMap<PolicyKey, (CompiledFrom, Arc<CompiledPolicy>)>>,
}

impl PolicyCache {
    /// The policy as it was compiled before from the same, or as `compile` makes it. `compile` gets what there was before.
    pub(super) fn get_or_compile(
        &self,
        (namespace, name): (&str, &str),
        from: CompiledFrom,
        compile: impl FnOnce(Option<&CompiledPolicy>) -> CompiledPolicy,
    ) -> Arc<CompiledPolicy> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut all = self.lock();
        let before = all.get(&key);
        if let Some((_, made)) = before.filter(|(known, _)| *known == from) {
            return Arc::clone(made);
        }
        let made = Arc::new(compile(before.map(|(_, made)| &**made)));
        all.insert(key, (from, Arc::clone(&made)));
        made
    }

    /// The policy is deleted.
    pub(super) fn forget(&self, kind: &str, namespace: &str, name: &str) {
        if kind == "SecurityPolicy" {
            self.lock().remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyKey, (CompiledFrom, Arc<CompiledPolicy>)>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What the kinds of policies have in common.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cache::{CompiledPolicy, PolicyCache};
use super::dependents::all_routes_of;
use super::dns_names::HostPort;
use super::{ext_auth, security, traffic};
use crate::api::NamespacedObject;
use crate::caches::CachedKind;
use crate::context::ControllerContext;
use crate::controller::Watches;
use crate::gateway::route_store::RouteStore;
use crate::work_queue::{ControllerKind, WorkItem};
use types::gateway_api::policy::{LocalPolicyTargetReference, PolicyStatus};
use types::gateway_policies::security_policy::GatewaySecurityPolicy;
use types::gateway_policies::traffic_policy::GatewayTrafficPolicy;
use types::shared::{name, namespace};

pub(in crate::gateway) trait GatewayPolicy: CachedKind + NamespacedObject {
    const QUEUE: ControllerKind;
    const KIND: &'static str;

    fn target_refs(&self) -> &[LocalPolicyTargetReference];
    fn policy_status(&self) -> Option<&PolicyStatus>;
    fn with_policy_status(&self, status: PolicyStatus) -> Self;
    fn has_same_spec(&self, other: &Self) -> bool;
    /// What it adds to the filters of rules.
    fn compiled(&self, context: &ControllerContext, cache: &PolicyCache) -> Arc<CompiledPolicy>;

    /// What the kind needs beside its reconciles.
    fn register_tasks<'a>(
        _routes: &'a RouteStore,
        _cache: &'a PolicyCache,
        _context: &'a ControllerContext,
        _watches: &mut Watches<'a>,
    ) {
    }
}

impl GatewayPolicy for GatewaySecurityPolicy {
    const QUEUE: ControllerKind = ControllerKind::new("SecurityPolicy");
    const KIND: &'static str = "SecurityPolicy";

    fn target_refs(&self) -> &[LocalPolicyTargetReference] {
        &self.spec.target_refs
    }

    fn policy_status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn with_policy_status(&self, status: PolicyStatus) -> Self {
        Self { status: Some(status), ..self.clone() }
    }

    fn has_same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn compiled(&self, context: &ControllerContext, cache: &PolicyCache) -> Arc<CompiledPolicy> {
        security::compiled(context, cache, self)
    }

    /// Keys that are fetched are verified with as soon as they are there; hosts that move are followed.
    fn register_tasks<'a>(
        routes: &'a RouteStore,
        cache: &'a PolicyCache,
        context: &'a ControllerContext,
        watches: &mut Watches<'a>,
    ) {
        let all = || context.caches.security_policies.all();
        let wanted = move || -> BTreeSet<String> {
            all().iter().filter_map(|policy| security::jwks_uri(policy)).map(str::to_owned).collect()
        };
        let enqueue = move |is_concerned: &dyn Fn(&Self) -> bool| {
            for policy in all().iter().filter(|policy| is_concerned(policy)) {
                let home = namespace(&policy.metadata);
                all_routes_of(routes, home, &policy.spec.target_refs)
                    .into_iter()
                    .chain([WorkItem::new(Self::QUEUE, home, name(&policy.metadata))])
                    .for_each(|item| context.enqueue(item));
            }
        };
        let changed = move |uri: &str| enqueue(&|policy| security::jwks_uri(policy) == Some(uri));
        watches.task(cache.jwks.run(context, wanted, changed));
        let wanted = move || -> BTreeSet<HostPort> {
            all().iter().filter_map(|policy| security::ext_auth_host(policy)).collect()
        };
        let changed = move |host: &HostPort| enqueue(&|policy| security::ext_auth_host(policy).as_ref() == Some(host));
        watches.task(cache.dns_names.run(wanted, changed));
        ext_auth::register(context, Self::QUEUE, watches);
    }
}

impl GatewayPolicy for GatewayTrafficPolicy {
    const QUEUE: ControllerKind = ControllerKind::new("TrafficPolicy");
    const KIND: &'static str = "TrafficPolicy";

    fn target_refs(&self) -> &[LocalPolicyTargetReference] {
        &self.spec.target_refs
    }

    fn policy_status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn with_policy_status(&self, status: PolicyStatus) -> Self {
        Self { status: Some(status), ..self.clone() }
    }

    fn has_same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn compiled(&self, _: &ControllerContext, _: &PolicyCache) -> Arc<CompiledPolicy> {
        Arc::new(traffic::compile(&self.spec))
    }
}

//! Compiles the rules of a route to the publisher's.

use std::collections::BTreeSet;

use super::backends::{self, RefererRoute};
use super::conditions::Refusal;
use super::route_kind::GatewayRoute;
use super::route_store::Dependency;
use crate::context::ControllerContext;
use crate::publish::{PathRule, WeightedBackend};
use types::gateway::http_route::{HttpBackendRef, HttpRouteMatch, HttpRouteRule};
use types::shared::namespace;

/// The rules of a route, and what is wrong with them.
#[derive(Debug, Default)]
pub(super) struct CompiledRules {
    /// For no host yet.
    pub(super) rules: Vec<PathRule>,
    /// The first reference that leads nowhere. Its share of the requests is answered 500.
    pub(super) unresolved: Option<Refusal>,
    /// The first value that is not supported. Requests of its rule are answered 500.
    pub(super) unsupported: Option<Refusal>,
}

pub(super) fn compile<R: GatewayRoute>(
    context: &ControllerContext,
    route: &R,
    dependencies: &mut BTreeSet<Dependency>,
) -> CompiledRules {
    let referer = RefererRoute { kind: R::KIND, namespace: namespace(route.meta()), protocol: R::PROTOCOL };
    let mut compiled = CompiledRules::default();
    for rule in route.rules() {
        let splits = shares(context, referer, &rule, dependencies, &mut compiled);
        let every = [HttpRouteMatch::default()];
        let matches = if rule.matches.is_empty() { &every[..] } else { &rule.matches };
        compiled.rules.extend(matches.iter().map(|one| PathRule { splits: splits.clone(), ..path_rule(one) }));
    }
    compiled
}

/// The backends of a rule with their weights.
fn shares(
    context: &ControllerContext,
    referer: RefererRoute<'_>,
    rule: &HttpRouteRule,
    dependencies: &mut BTreeSet<Dependency>,
    compiled: &mut CompiledRules,
) -> Vec<WeightedBackend> {
    let mut shares = Vec::new();
    for reference in &rule.backend_refs {
        match backends::resolve(context, referer, &reference.backend, dependencies) {
            Ok(keys) => shares.extend(weighted(reference, keys)),
            Err(refusal) => {
                compiled.unresolved.get_or_insert(refusal);
            }
        }
    }
    shares
}

/// The backends of one reference, which divide its weight.
fn weighted(reference: &HttpBackendRef, keys: Vec<(String, u32)>) -> impl Iterator<Item = WeightedBackend> {
    let weight = u64::from(reference.weight.unwrap_or(1));
    let total: u64 = keys.iter().map(|(_, part)| u64::from(*part)).sum();
    // Percents of a Route are whole parts of a hundred.
    let share = move |part: u32| weight * 100 * u64::from(part) / total.max(1);
    keys.into_iter().map(move |(key, part)| WeightedBackend::new(key, u32::try_from(share(part)).unwrap_or(u32::MAX)))
}

fn path_rule(wanted: &HttpRouteMatch) -> PathRule {
    let path = wanted.path.as_ref().and_then(|path| path.value.clone()).unwrap_or_default();
    let headers = wanted.headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect();
    PathRule { path, headers, ..PathRule::default() }
}

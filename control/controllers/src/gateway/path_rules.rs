//! Compiles the rules of a route to the publisher's.

use std::sync::Arc;

use contract::table::{MatchRegex, PathMatch, RequestMatch, ValueMatch};

use super::backends::{self, RefererRoute, ResolvedBackend};
use super::conditions::ConditionRefusal;
use super::route_kind::{GatewayRoute, RouteTransport};
use super::route_store::RouteReferences;
use super::rule_compiler::{CompiledRules, RuleCompiler, UNSUPPORTED_VALUE, invalid};
use super::rule_filters;
use crate::context::ControllerContext;
use crate::publish::{PathRule, RouteFilterRule, WeightedBackend};
use types::gateway_api::GROUP;
use types::gateway_api::http_route::{HttpBackendRef, HttpNamedMatch, HttpPathMatch, HttpRouteMatch, HttpRouteRule};
use types::shared::namespace;

/// A Knative Service divides its share by percents: with this factor its parts are whole numbers.
const WEIGHT_FACTOR: u64 = 100;

pub(super) fn compile<R: GatewayRoute>(
    context: &ControllerContext,
    (route, transport): (&R, RouteTransport),
    references: &mut RouteReferences,
) -> CompiledRules {
    let referer = RefererRoute { group: GROUP, kind: R::KIND, namespace: namespace(route.meta()), transport };
    let mut compiler = RuleCompiler { context, referer, references, compiled: CompiledRules::default() };
    for rule in route.rules() {
        compiler.add(&rule);
    }
    compiler.compiled
}

impl RuleCompiler<'_> {
    /// Adds one rule for each match.
    fn add(&mut self, rule: &HttpRouteRule) {
        let every = [HttpRouteMatch::default()];
        let matches = if rule.matches.is_empty() { &every[..] } else { &rule.matches };
        let mut shares = None;
        for wanted in matches {
            let matches = match request_match(wanted) {
                Ok(matches) => matches,
                Err(refusal) => {
                    self.compiled.unsupported.get_or_insert(refusal);
                    continue;
                }
            };
            let filters = rule_filters::compile(self, &rule.filters, rule.timeouts.as_ref(), matches.path());
            let splits = if filters.as_ref().is_some_and(|filters| filters.reply.is_some()) {
                Vec::new()
            } else if self.replaces_prefix(rule) {
                // Their filters depend on the path of the match.
                self.shares(rule, matches.path())
            } else {
                shares.get_or_insert_with(|| self.shares(rule, matches.path())).clone()
            };
            self.compiled.names.push(rule.name.clone());
            self.compiled.rules.push(PathRule {
                matches,
                splits,
                filters: filters.map(Arc::new),
                ..PathRule::default()
            });
        }
    }

    /// Whether a filter of a backend replaces the prefix that the rule matched.
    fn replaces_prefix(&self, rule: &HttpRouteRule) -> bool {
        let mut filters = rule.backend_refs.iter().flat_map(|backend| &backend.filters);
        filters.any(|filter| filter.url_rewrite.is_some())
    }

    /// The backends of a rule with their weights. A rule without one answers like one whose backend is invalid.
    fn shares(&mut self, rule: &HttpRouteRule, path: &PathMatch) -> Vec<WeightedBackend> {
        let mut shares = Vec::new();
        for reference in &rule.backend_refs {
            let filters = rule_filters::compile(self, &reference.filters, None, path).map(Arc::new);
            match backends::resolve(self.context, self.referer, &reference.backend, self.references) {
                Ok(ResolvedBackend::Keys(keys)) => shares.extend(weighted(reference, &keys, filters.as_ref())),
                Ok(ResolvedBackend::TlsRefused) => shares.push(invalid_backend(weight(reference))),
                Err(refusal) => {
                    self.compiled.unresolved.get_or_insert(refusal);
                    shares.push(invalid_backend(weight(reference)));
                }
            }
        }
        if shares.iter().all(|share| share.weight == 0) {
            shares.push(invalid_backend(1));
        }
        shares
    }
}

fn weight(reference: &HttpBackendRef) -> u32 {
    let weight = u64::from(reference.weight.unwrap_or(1)) * WEIGHT_FACTOR;
    u32::try_from(weight).unwrap_or(u32::MAX)
}

/// The backends of one reference, which divide its weight.
fn weighted(
    reference: &HttpBackendRef,
    keys: &[(String, u32)],
    filters: Option<&Arc<RouteFilterRule>>,
) -> Vec<WeightedBackend> {
    let total: u64 = keys.iter().map(|(_, part)| u64::from(*part)).sum();
    let share = |part: u32| u64::from(weight(reference)) * u64::from(part) / total.max(1);
    let shares = keys.iter().map(|(key, part)| WeightedBackend {
        filters: filters.cloned(),
        ..WeightedBackend::new(key.as_str(), u32::try_from(share(*part)).unwrap_or(u32::MAX))
    });
    shares.collect()
}

/// A share whose requests are answered 500.
fn invalid_backend(weight: u32) -> WeightedBackend {
    WeightedBackend { filters: Some(Arc::new(invalid())), ..WeightedBackend::new("", weight) }
}

fn request_match(wanted: &HttpRouteMatch) -> Result<RequestMatch, ConditionRefusal> {
    let mut matches = RequestMatch::new(path_match(wanted.path.as_ref())?);
    if let Some(method) = &wanted.method {
        matches = matches.with_method(method);
    }
    // Of several for one name the first counts.
    for (at, header) in wanted.headers.iter().enumerate() {
        let is_same = |other: &HttpNamedMatch| other.name.eq_ignore_ascii_case(&header.name);
        if !wanted.headers[..at].iter().any(is_same) {
            matches = matches.with_header(&header.name, value_match(header)?);
        }
    }
    for (at, parameter) in wanted.query_params.iter().enumerate() {
        if !wanted.query_params[..at].iter().any(|other| other.name == parameter.name) {
            matches = matches.with_query(&parameter.name, value_match(parameter)?);
        }
    }
    Ok(matches)
}

fn path_match(path: Option<&HttpPathMatch>) -> Result<PathMatch, ConditionRefusal> {
    let value = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
    match path.and_then(|path| path.kind.as_deref()).unwrap_or("PathPrefix") {
        "Exact" => Ok(PathMatch::Exact(value.into())),
        "RegularExpression" => Ok(PathMatch::Regex(regex("path", value)?)),
        _ => Ok(PathMatch::Prefix(value.into())),
    }
}

fn value_match(wanted: &HttpNamedMatch) -> Result<ValueMatch, ConditionRefusal> {
    match wanted.kind.as_deref().unwrap_or("Exact") {
        "RegularExpression" => Ok(ValueMatch::Regex(regex(&wanted.name, &wanted.value)?)),
        _ => Ok(ValueMatch::Exact(wanted.value.as_str().into())),
    }
}

fn regex(of: &str, pattern: &str) -> Result<MatchRegex, ConditionRefusal> {
    let refused = |why| ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The match of {of}: {pattern:?} {why}."));
    MatchRegex::new(pattern).map_err(refused)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn weights_are_divided_by_the_parts_of_a_knative_service() {
        let reference = HttpBackendRef { weight: Some(3), ..HttpBackendRef::default() };
        let keys = [("a".to_owned(), 90), ("b".to_owned(), 10)];
        let shares: Vec<_> =
            weighted(&reference, &keys, None).into_iter().map(|one| (one.backend, one.weight)).collect();
        assert_eq!(shares, [("a".to_owned(), 270), ("b".to_owned(), 30)]);
        assert_eq!(weighted(&HttpBackendRef::default(), &[("c".to_owned(), 1)], None)[0].weight, 100);
    }

    #[test]
    fn match_has_all_conditions_and_the_first_of_a_name() {
        let wanted = json!({
            "path": { "type": "Exact", "value": "/a/" }, "method": "POST",
            "headers": [{ "name": "X-A", "value": "1" }, { "name": "x-a", "value": "2" }],
            "queryParams": [{ "name": "q", "type": "RegularExpression", "value": "[0-9]+" }],
        });
        let matches = request_match(&serde_json::from_value(wanted).unwrap()).unwrap();
        let expected = RequestMatch::new(PathMatch::Exact("/a/".into()))
            .with_method("POST")
            .with_header("X-A", ValueMatch::Exact("1".into()))
            .with_query("q", ValueMatch::Regex(MatchRegex::new("[0-9]+").unwrap()));
        assert_eq!(matches, expected);
        assert!(request_match(&HttpRouteMatch::default()).unwrap().is_any());
        let wrong = json!({ "path": { "type": "RegularExpression", "value": "/(" } });
        let refusal = request_match(&serde_json::from_value(wrong).unwrap()).unwrap_err();
        assert_eq!(refusal.reason, UNSUPPORTED_VALUE);
    }
}

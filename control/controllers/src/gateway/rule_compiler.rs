//! The state of the compilation of a route's rules.

use contract::table::RouteReply;

use super::backends::RefererRoute;
use super::conditions::ConditionRefusal;
use super::route_store::RouteReferences;
use crate::context::ControllerContext;
use crate::publish::{PathRule, RouteFilterRule};

/// The reason of a value that no rule here can have.
pub(super) const UNSUPPORTED_VALUE: &str = "UnsupportedValue";
/// The status of requests whose backend does not exist, or may not be used.
const INVALID_BACKEND: u16 = 500;

/// The rules of a route, and what is wrong with them.
#[derive(Debug, Default)]
pub(super) struct CompiledRules {
    /// For no scheme yet.
    pub(super) rules: Vec<PathRule>,
    /// The name of each rule in its route, by which policies are for it.
    pub(super) names: Vec<Option<String>>,
    /// The first reference that leads nowhere. Its share of the requests is answered 500.
    pub(super) unresolved: Option<ConditionRefusal>,
    /// The first value that is not supported. Requests of its rule are answered 500, or its match has no rule.
    pub(super) unsupported: Option<ConditionRefusal>,
}

/// What the rules of one route are compiled with.
pub(super) struct RuleCompiler<'a> {
    pub(super) context: &'a ControllerContext,
    pub(super) referer: RefererRoute<'a>,
    pub(super) references: &'a mut RouteReferences,
    pub(super) compiled: CompiledRules,
}

/// The filters of requests that are answered 500.
pub(super) fn invalid() -> RouteFilterRule {
    RouteFilterRule { reply: Some(RouteReply::Status(INVALID_BACKEND)), ..RouteFilterRule::default() }
}

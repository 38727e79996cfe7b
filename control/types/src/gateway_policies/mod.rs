//! `gateway.sluicegate.dev`: policies for Gateways and routes, beyond what Gateway API has.
//!
//! A policy is attached to objects of its own namespace by `targetRefs`. The policy of a rule replaces that of its route, which
//! replaces that of its Gateway.

pub mod ext_auth;
mod http_uri;
pub mod security_policy;
pub mod traffic_policy;

use crate::field_errors::{FieldErrors, MISSING};
use crate::gateway_api::GROUP as GATEWAY_API_GROUP;
use crate::gateway_api::policy::LocalPolicyTargetReference;
use crate::kind_registry::{CORE, KindEntry, KindMeta, UnknownFieldPolicy};
use crate::role_rules::{CONTROLLER_READS, CONTROLLER_REPORTS, EDIT, VIEW};

pub const GROUP: &str = "gateway.sluicegate.dev";

/// Objects of one policy: its status has at most as many ancestors, as upstream's policies.
const TARGETS_MAX: usize = 16;
/// The kinds that a policy can be attached to.
const TARGET_KINDS: [&str; 3] = ["Gateway", "HTTPRoute", "GRPCRoute"];

/// The properties of a kind of this group. A misspelt field is refused: without it a route might be less protected than its
/// owner believes.
const GATEWAY_POLICY: KindMeta = KindMeta {
    group: GROUP,
    version: "v1alpha1",
    categories: &["gateway-api"],
    has_status: true,
    unknown_fields: UnknownFieldPolicy::Reject,
    role_rules: &[VIEW, EDIT, CONTROLLER_READS, CONTROLLER_REPORTS],
    ..CORE
};

#[must_use]
pub fn entries() -> Vec<KindEntry> {
    vec![
        KindEntry::of::<security_policy::GatewaySecurityPolicy>(),
        KindEntry::of::<traffic_policy::GatewayTrafficPolicy>(),
    ]
}

fn validate_targets(targets: &[LocalPolicyTargetReference], problems: &mut FieldErrors) {
    if targets.is_empty() {
        problems.add("spec.targetRefs", MISSING);
    }
    if targets.len() > TARGETS_MAX {
        problems.add("spec.targetRefs", format!("a policy has at most {TARGETS_MAX} targets"));
    }
    for (at, target) in targets.iter().enumerate() {
        let field = |name: &str| format!("spec.targetRefs[{at}].{name}");
        if target.group != GATEWAY_API_GROUP {
            problems.add(field("group"), format!("invalid value: {:?}; use {GATEWAY_API_GROUP}", target.group));
        }
        if !TARGET_KINDS.contains(&target.kind.as_str()) {
            let all = TARGET_KINDS.join(", ");
            problems.add(field("kind"), format!("invalid value: {:?}; use one of {all}", target.kind));
        }
        if target.name.is_empty() {
            problems.add(field("name"), MISSING);
        }
        if target.kind == "Gateway" && target.section().is_some() {
            let why = "a policy is for a whole Gateway; sectionName is the name of a rule of a route";
            problems.add(field("sectionName"), why);
        }
        if targets[..at].contains(target) {
            problems.add(format!("spec.targetRefs[{at}]"), "the target is given twice");
        }
    }
}

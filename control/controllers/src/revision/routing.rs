//! Whether a Revision is reachable: its Routes, and the effect on its labels and its scale.

use serde_json::{Value, json};

use crate::api::now;
use crate::context::ControllerContext;
use crate::route_reachability::{is_newest, is_routed, parent, routes};
use types::serving::annotations::{ROUTES, ROUTING_STATE, ROUTING_STATE_MODIFIED};
use types::serving::revision::{CONTAINER_HEALTHY, RESOURCES_AVAILABLE, Revision};
use types::shared::{ConditionStatus, HasConditions, annotation, label};

/// Upstream's words for the label.
const ACTIVE: &str = "active";
const RESERVE: &str = "reserve";

/// The facts that decide whether a Revision is started, kept and restarted without a request.
#[derive(Debug, Clone, Copy)]
struct Standing<'a> {
    is_routed: bool,
    routing_state: Option<&'a str>,
    was_ready: bool,
    /// An attempt to start it has failed.
    has_failed: bool,
    /// Its Configuration has a newer one.
    is_superseded: bool,
}

impl Standing<'_> {
    /// A Route sends to it or waits for it, or it is the newest and was never ready. The newest is tried without a Route until
    /// an attempt fails after it lost its Route: its Configuration may change a moment before its Route does.
    fn is_reachable(self) -> bool {
        let has_lost_routes = matches!(self.routing_state, Some(ACTIVE | RESERVE));
        let is_given_up = self.has_failed && has_lost_routes;
        self.is_routed || !self.was_ready && !self.is_superseded && !is_given_up
    }

    /// The label that fits, as upstream moves it: `pending` until a Route comes, `active`, and `reserve` when the last one
    /// went, ready or not.
    fn routing_state(self) -> Option<&'static str> {
        match (self.is_routed, self.routing_state) {
            (true, _) => Some(ACTIVE),
            (false, Some(ACTIVE | RESERVE)) => Some(RESERVE),
            (false, _) => None,
        }
    }
}

/// Whether requests can come, or may come soon.
pub(super) fn is_reachable(context: &ControllerContext, revision: &Revision) -> bool {
    let parent = parent(context, revision);
    let standing = Standing {
        is_routed: is_routed(context, revision),
        routing_state: label(&revision.metadata, ROUTING_STATE),
        was_ready: revision.condition(RESOURCES_AVAILABLE).is_some_and(|c| c.status == ConditionStatus::True),
        has_failed: revision.condition(CONTAINER_HEALTHY).is_some_and(|c| c.status == ConditionStatus::False),
        is_superseded: parent.is_some_and(|parent| !is_newest(revision, &parent)),
    };
    standing.is_reachable()
}

/// Keeps what tells whether requests reach the Revision, and by which Routes (X-RTE-12); `None` when it is right.
pub(super) fn patch(context: &ControllerContext, revision: &Revision) -> Option<Value> {
    let state = label(&revision.metadata, ROUTING_STATE);
    let listed = annotation(&revision.metadata, ROUTES).unwrap_or_default();
    let routes: Vec<String> = routes(context, revision).into_iter().collect();
    let routes = routes.join(",");
    let standing = Standing {
        is_routed: !routes.is_empty(),
        routing_state: state,
        was_ready: false, // the label does not depend on these
        has_failed: false,
        is_superseded: false,
    };
    let wanted = standing.routing_state().or(state);
    let mut patch = json!({});
    if wanted != state {
        patch["labels"] = json!({ROUTING_STATE: wanted});
        patch["annotations"] = json!({ROUTING_STATE_MODIFIED: now().to_string()});
    }
    if routes != listed {
        patch["annotations"][ROUTES] = if routes.is_empty() { Value::Null } else { routes.into() };
    }
    (patch != json!({})).then(|| json!({"metadata": patch}))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As (routed, label, was ready, superseded) and the wanted (reachable, label), of one that has failed.
    #[test]
    fn routes_decide_reachability_and_routing_state() {
        for (is_routed, routing_state, was_ready, is_superseded, wanted) in [
            // New: it is tried before any Route is there.
            (false, Some("pending"), false, false, (true, None)),
            (false, None, false, false, (true, None)),
            (true, Some("pending"), false, false, (true, Some(ACTIVE))),
            // Overtaken before it was ready, with and without a Route of its own.
            (false, Some("pending"), false, true, (false, None)),
            (false, Some(ACTIVE), false, true, (false, Some(RESERVE))),
            (true, Some(ACTIVE), false, true, (true, Some(ACTIVE))),
            // Its Route went before it was ready, or after.
            (false, Some(ACTIVE), false, false, (false, Some(RESERVE))),
            (false, Some(ACTIVE), true, false, (false, Some(RESERVE))),
            (false, Some(RESERVE), false, false, (false, Some(RESERVE))),
            // ... and another came.
            (true, Some(RESERVE), false, true, (true, Some(ACTIVE))),
            // Nothing has to run of a version that no Route knows.
            (false, Some("pending"), true, false, (false, None)),
        ] {
            let standing = Standing { is_routed, routing_state, was_ready, has_failed: true, is_superseded };
            assert_eq!((standing.is_reachable(), standing.routing_state()), wanted, "{standing:?}");
        }
    }

    /// Traffic and template of a Service may change at once, so that the newest Revision has a Route for a moment.
    #[test]
    fn newest_revision_without_a_route_is_tried_until_it_fails() {
        for (has_failed, reachable) in [(false, true), (true, false)] {
            let routing_state = Some(RESERVE);
            let standing =
                Standing { is_routed: false, routing_state, was_ready: false, has_failed, is_superseded: false };
            assert_eq!(standing.is_reachable(), reachable);
        }
    }
}

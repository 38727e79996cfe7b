//! The kinds that a Revision depends on besides itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::KIND;
use crate::autoscaler_changes;
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::Watches;
use crate::informer_cache::ObjectChange;
use crate::route_reachability::newest_revisions;
use crate::work_queue::WorkItem;
use types::autoscaling::metric::Metric;
use types::autoscaling::pod_autoscaler::PodAutoscaler;
use types::serving::configuration::Configuration;
use types::serving::revision::Revision;
use types::serving::route::Route;
use types::serving::traffic::TrafficTarget;
use types::shared::{HasConditions as _, name, namespace};

pub(super) fn register<'a>(
    controller: &'a super::RevisionController,
    context: &'a ControllerContext,
    watches: &mut Watches<'a>,
) {
    watches.primary::<Revision>(KIND);
    watches.enqueue::<Configuration, _>(move |change| rerouted_by_configuration(context, change));
    watches.enqueue::<Route, _>(move |change| rerouted_by_route(context, change));
    watches.enqueue::<PodAutoscaler, _>(|change| {
        revision_of_modified_child(change, |before, after| before.spec == after.spec)
    });
    watches
        .enqueue::<Metric, _>(|change| revision_of_modified_child(change, |before, after| before.spec == after.spec));
    watches.enqueue_on(ContextChange::ClockStepped, || controller.projected_tokens.revisions());
    watches.task(autoscaler_changes::follow(context, KIND));
}

/// The Revisions whose routing may change with their Configuration: the latest created and the latest ready one,
/// before and after the change, and those that are not ready.
fn rerouted_by_configuration(
    context: &ControllerContext,
    (before, after): ObjectChange<'_, Configuration>,
) -> Vec<WorkItem> {
    let either = [before, after].into_iter().flatten();
    let standing =
        |one: &Arc<Configuration>| (one.metadata.generation, newest_revisions(one).map(|n| n.map(str::to_owned)));
    if before.map(standing) == after.map(standing) {
        return Vec::new();
    }
    let mut items = Vec::new();
    for one in either {
        let ns = namespace(&one.metadata);
        let named = newest_revisions(one).into_iter().flatten().map(str::to_owned);
        let owned =
            one.metadata.uid.as_deref().map(|uid| context.caches.revisions.by_index(ns, uid)).unwrap_or_default();
        let unready = owned.iter().filter(|revision| !revision.is_ready()).map(|one| name(&one.metadata).to_owned());
        items.extend(named.chain(unready).map(|name| WorkItem::new(KIND, ns, &name)));
    }
    items.sort_unstable();
    items.dedup();
    items
}

/// The Revisions that a Route sends to, or did: whether requests reach them decides their scale.
fn rerouted_by_route(context: &ControllerContext, (before, after): ObjectChange<'_, Route>) -> Vec<WorkItem> {
    let named = |route: &Arc<Route>| {
        let shown = route.status.iter().flat_map(|status| &status.traffic);
        let all = route.spec.traffic.iter().chain(shown);
        let targets = all.flat_map(|target: &TrafficTarget| {
            let revision = target.revision().map(|name| Target::Revision(name.to_owned()));
            let configuration = target.configuration().map(|name| Target::Configuration(name.to_owned()));
            revision.into_iter().chain(configuration)
        });
        targets.map(|target| (namespace(&route.metadata).to_owned(), target)).collect::<BTreeSet<_>>()
    };
    let before = before.map(named).unwrap_or_default();
    let after = after.map(named).unwrap_or_default();
    let revisions = |(ns, target): &(String, Target)| match target {
        Target::Revision(name) => vec![WorkItem::new(KIND, ns, name)],
        // By a Configuration the Route sends to its newest that is ready, and waits for its newest.
        Target::Configuration(name) => {
            let parent = context.caches.configurations.get(ns, name);
            let newest = parent.iter().flat_map(|parent| newest_revisions(parent)).flatten();
            newest.map(|name| WorkItem::new(KIND, ns, name)).collect()
        }
    };
    before.symmetric_difference(&after).flat_map(revisions).collect()
}

/// The object that a Route's target names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Revision(String),
    Configuration(String),
}

/// The Revision of the same name, if a child of it was changed or deleted.
fn revision_of_modified_child<K: kube::Resource>(
    (before, after): ObjectChange<'_, K>,
    same: impl Fn(&K, &K) -> bool,
) -> Option<WorkItem> {
    let meta = before?.meta();
    let kept = after.is_some_and(|after| {
        let (now, then) = (after.meta(), meta);
        before.is_some_and(|before| same(before, after))
            && now.labels == then.labels
            && now.annotations == then.annotations
    });
    (!kept).then(|| WorkItem::new(KIND, namespace(meta), name(meta)))
}

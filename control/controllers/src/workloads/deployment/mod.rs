//! Deployments: a ReplicaSet for each template, and the steps from one to the next.

mod rollout;
mod status;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::owned_pods::{delete, owned, owned_or_adopted, owner_item, tell, write_status};
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches, newest};
use crate::event_recorder::EventSeverity;
use crate::informer_cache::ObjectChange;
use crate::owned_child::owner_references;
use crate::pods::is_derived;
use crate::work_queue::{ControllerKind, WorkItem};
use rollout::{RolloutLimits, ScaleStep};
use types::shared::{annotation, name};
use types::workloads::deployment::RECREATE;

const KIND: ControllerKind = ControllerKind::new("Deployment");
/// The label that tells the Pods of one template from those of another.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Which change of its Deployment a ReplicaSet is of: what `kubectl rollout history` shows.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// How many Pods its Deployment wanted when it was scaled.
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

#[derive(Debug)]
pub struct DeploymentController;

impl Controller for DeploymentController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.enqueue::<Deployment, _>(|change: ObjectChange<'_, Deployment>| {
            let changed = newest(change).filter(|one| !is_derived(&one.metadata));
            changed.map(|one| crate::controller::item_of(KIND, (None, Some(one))))
        });
        watches.enqueue::<ReplicaSet, _>(|change| {
            newest(change).and_then(|set| owner_item(KIND, "Deployment", &set.metadata))
        });
        // The end of the last Pod of a template lets that of the next begin.
        watches.call::<Pod>(move |(before, after)| {
            if let (Some(gone), None) = (before, after)
                && let Some(set) = owner_item(KIND, "ReplicaSet", &gone.metadata)
                && let Some(set) = context.caches.replica_sets.get(&set.namespace, &set.name)
                && let Some(item) = owner_item(KIND, "Deployment", &set.metadata)
            {
                context.enqueue(item);
            }
        });
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let found = context.caches.deployments.get(&item.namespace, &item.name);
    let Some(deployment) = found.filter(|one| !is_derived(&one.metadata)) else { return Ok(()) };
    if deployment.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut sets: Vec<ReplicaSet> = owned_or_adopted(context, &*deployment, &spec.selector, |_| true).await?;
    let current = sets.iter().position(|set| has_template(set, &spec.template));
    let is_paused = spec.paused == Some(true);
    let mut made = None;
    let current = match current {
        Some(at) => Some(sets.remove(at)),
        None if is_paused => None,
        None => {
            let created = create_set(context, &deployment, &spec.template, &sets).await?;
            let Some(set) = created else { return Ok(()) };
            made = Some(name(&set.metadata).to_owned());
            Some(set)
        }
    };
    let Some(mut current) = current else {
        let after = status::status(&deployment, None, &sets, None, now());
        return show(context, item, &deployment, after, None).await;
    };
    promote(context, &mut current, &sets).await?;
    let limits = RolloutLimits::of(&spec);
    let is_recreate = spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()) == Some(RECREATE);
    let steps = match () {
        () if is_paused => rollout::while_paused(limits, &current, &sets),
        () if is_recreate => {
            let leaving = count_pods(context, &sets).await?;
            rollout::recreate(limits, &current, &sets, leaving)
        }
        () => rollout::rolling_update(limits, &current, &sets),
    };
    for step in steps {
        scale(context, &deployment, &mut current, &mut sets, step).await?;
    }
    clean_up(context, &spec, &sets).await?;
    let after = status::status(&deployment, Some(&current), &sets, made.as_deref(), now());
    let revision = annotation(&current.metadata, REVISION).map(str::to_owned);
    show(context, item, &deployment, after, revision).await
}

/// Pods that are still there of other templates.
async fn count_pods(context: &ControllerContext, sets: &[ReplicaSet]) -> Result<usize, Error> {
    let mut count = 0;
    for set in sets {
        count += owned::<Pod>(context, &set.metadata).await?.len();
    }
    Ok(count)
}

/// Whether a set is of this template, but for the label that names it.
fn has_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let own = set.spec.as_ref().and_then(|spec| spec.template.clone()).unwrap_or_default();
    without_hash(own) == without_hash(template.clone())
}

fn without_hash(mut template: PodTemplateSpec) -> PodTemplateSpec {
    let mut meta = template.metadata.take().unwrap_or_default();
    let labels = meta.labels.get_or_insert_default();
    labels.remove(TEMPLATE_HASH);
    meta.labels = meta.labels.filter(|labels| !labels.is_empty());
    meta.annotations = meta.annotations.filter(|all| !all.is_empty());
    meta.creation_timestamp = None;
    template.metadata = Some(meta);
    template
}

/// A word that stands for a template, of letters that spell no other word. It is another one after each collision.
fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = serde_json::to_string(&without_hash(template.clone())).unwrap_or_default();
    text.extend(collisions.map(|count| count.to_string()));
    let mut hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3) // FNV-1a
    });
    let letter = |_| {
        let at = usize::try_from(hash % LETTERS.len() as u64).unwrap_or(0);
        hash /= LETTERS.len() as u64;
        char::from(LETTERS[at])
    };
    (0..10).map(letter).collect()
}

/// Creates the set of a template that is new. `None`: a set with another template or another owner has its name. The
/// status counts that, and the next reconcile tries another name.
async fn create_set(
    context: &ControllerContext,
    deployment: &Deployment,
    template: &PodTemplateSpec,
    others: &[ReplicaSet],
) -> Result<Option<ReplicaSet>, Error> {
    match context.create(&new_set(deployment, template, others)).await {
        Err(Error::Api(kube::Error::Api(refusal))) if refusal.is_already_exists() => {
            let mut status = deployment.status.clone().unwrap_or_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0).saturating_add(1));
            write_status(context, &Deployment { status: Some(status), ..deployment.clone() }).await?;
            Ok(None)
        }
        created => created.map(Some),
    }
}

/// The set of a template that is new. It has no Pods yet.
fn new_set(deployment: &Deployment, template: &PodTemplateSpec, others: &[ReplicaSet]) -> ReplicaSet {
    let hash = template_hash(template, deployment.status.as_ref().and_then(|status| status.collision_count));
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut template = template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(TEMPLATE_HASH.to_owned(), hash.clone());
    let mut annotations = deployment.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    annotations.insert(REVISION.to_owned(), (highest_revision(others) + 1).to_string());
    annotations.insert(DESIRED.to_owned(), spec.replicas.unwrap_or(1).to_string());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", name(&deployment.metadata))),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: owner_references(deployment),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

fn revision(set: &ReplicaSet) -> i64 {
    annotation(&set.metadata, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn highest_revision(sets: &[ReplicaSet]) -> i64 {
    sets.iter().map(revision).max().unwrap_or(0)
}

/// A template that comes back, by an undo, is the newest again.
async fn promote(context: &ControllerContext, current: &mut ReplicaSet, others: &[ReplicaSet]) -> Result<(), Error> {
    let highest = highest_revision(others);
    if revision(current) <= highest {
        let annotations = current.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.to_owned(), (highest + 1).to_string());
        *current = context.replace(current).await?;
    }
    Ok(())
}

/// Carries out one step.
async fn scale(
    context: &ControllerContext,
    deployment: &Deployment,
    current: &mut ReplicaSet,
    others: &mut [ReplicaSet],
    step: ScaleStep,
) -> Result<(), Error> {
    let found = std::iter::once(current).chain(others).find(|set| name(&set.metadata) == step.set);
    let Some(set) = found else { return Ok(()) };
    let before = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    set.spec.get_or_insert_default().replicas = Some(step.replicas);
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    set.metadata.annotations.get_or_insert_default().insert(DESIRED.to_owned(), wanted.to_string());
    *set = context.replace(set).await?;
    let direction = if step.replicas > before { "up" } else { "down" };
    let why = format!("Scaled {direction} replica set {} from {before} to {}", step.set, step.replicas);
    tell(context, deployment, EventSeverity::Normal, ("ScalingReplicaSet", why)).await;
    Ok(())
}

/// Deletes the oldest sets without Pods that are more than the history keeps.
async fn clean_up(
    context: &ControllerContext,
    spec: &k8s_openapi::api::apps::v1::DeploymentSpec,
    others: &[ReplicaSet],
) -> Result<(), Error> {
    let kept = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
    let is_empty = |set: &&ReplicaSet| {
        set.spec.as_ref().and_then(|spec| spec.replicas) == Some(0)
            && set.status.as_ref().is_none_or(|status| status.replicas == 0)
            && set.metadata.deletion_timestamp.is_none()
    };
    let mut old: Vec<&ReplicaSet> = others.iter().filter(is_empty).collect();
    old.sort_by_key(|set| revision(set));
    for set in old.iter().take(old.len().saturating_sub(kept)) {
        delete(context, *set, None).await?;
    }
    Ok(())
}

/// Writes the status, and the number of the change that is rolled out.
async fn show(
    context: &ControllerContext,
    item: &WorkItem,
    deployment: &Deployment,
    (after, look_again): (k8s_openapi::api::apps::v1::DeploymentStatus, Option<std::time::Duration>),
    revision: Option<String>,
) -> Result<(), Error> {
    if let Some(delay) = look_again {
        context.queue.add_after_unless_sooner(item, delay);
    }
    let mut shown = Deployment { status: Some(after), ..deployment.clone() };
    if let Some(revision) = revision.filter(|one| annotation(&deployment.metadata, REVISION) != Some(one)) {
        // One write: our controllers write the status of a Deployment with the object.
        shown.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
        context.replace(&shown).await?;
    } else if shown.status != deployment.status {
        write_status(context, &shown).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        let containers = json!([{ "name": "c", "image": image }]);
        serde_json::from_value(
            json!({ "metadata": { "labels": { "app": "a" } }, "spec": { "containers": containers } }),
        )
        .unwrap()
    }

    #[test]
    fn set_is_found_by_its_template_without_the_hash() {
        let mut deployment = Deployment::default();
        deployment.metadata.name = Some("web".into());
        let set = new_set(&deployment, &template("a:1"), &[]);
        assert!(has_template(&set, &template("a:1")) && !has_template(&set, &template("a:2")));
        assert_eq!((revision(&set), set.spec.as_ref().unwrap().replicas), (1, Some(0)));
        let hash = template_hash(&template("a:1"), None);
        assert_eq!(set.metadata.name, Some(format!("web-{hash}")));
        assert_ne!(hash, template_hash(&template("a:2"), None));
        assert_ne!(hash, template_hash(&template("a:1"), Some(1)));
        assert_eq!(revision(&new_set(&deployment, &template("a:2"), &[set])), 2);
    }
}

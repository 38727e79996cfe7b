//! Instance policies: privileges for which a Revision's service account needs the verb `use`.
//!
//! An instance is a process of this host, so its command and its user may exceed what RBAC grants the manifest's
//! author: a program of the host's root reads every Secret. As with PodSecurityPolicy and OpenShift's
//! SecurityContextConstraints, the rights of the Revision's service account are checked at each reconcile of the
//! Revision. The policies are names for RBAC, like the signers of `certificates.k8s.io`, and have no objects.

use std::collections::BTreeSet;
use std::fs;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Container, Probe};
use kube::Api;
use kube::api::PostParams;

use super::error::RevisionError;
use super::images::runs_image;
use super::security_context::security;
use crate::api::Error;
use crate::context::ControllerContext;
use crate::names::service_account;
use apiserver::access::{AUTHENTICATED, RequestAttributes, rbac};
use types::serving::annotations::RUNTIME_CLASS;
use types::serving::revision::Revision;
use types::shared::{annotation, namespace};

/// The resource name in roles.
const GROUP: &str = "sluicegate.dev";
const RESOURCE: &str = "instancepolicies";
const VERB: &str = "use";

/// The kernel's overflow user, "nobody": it owns nothing, so a process that runs as it gains no rights.
const NOBODY: u32 = 65_534;
/// First user id of namespaces: above the ids of container managers, below 2^31.
const NAMESPACE_USER_MIN: u32 = 1_900_000_000;
/// Number of these ids: two of a thousand namespaces share a user with a probability of 0.3 %.
const NAMESPACE_USERS: u32 = 200_000_000;

/// Whether manifests may start programs of this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProcessInstances {
    /// None: what runs is what the operator mapped images to.
    Deny,
    /// Where a service account may use the policy `process`.
    AllowList,
    #[default]
    Allow,
}

/// The operator's settings for instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InstanceRules {
    pub processes: ProcessInstances,
    /// User and group of instances whose manifest names no user.
    pub user: Option<(u32, u32)>,
    /// Manifests come from authors that do not own this host: an instance runs as a user without rights here, unless
    /// its service account may use a policy.
    pub guarded: bool,
}

impl InstanceRules {
    /// User and group of an instance in `namespace` whose manifest names no user. `None`: the appliance's.
    #[must_use]
    pub(super) fn usual(self, namespace: &str, is_root: bool) -> Option<(u32, u32)> {
        let own = namespace_user(namespace);
        self.user.or((self.guarded && is_root).then_some((own, own)))
    }
}

/// The user of a namespace: the same after each restart, and another one for each, so that instances of one namespace can
/// neither signal those of another nor read what is theirs.
fn namespace_user(namespace: &str) -> u32 {
    let hash = namespace.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193) // FNV-1a
    });
    NAMESPACE_USER_MIN + hash % NAMESPACE_USERS
}

/// The permissions that a Revision needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum InstancePolicy {
    /// A command of its own as a process of this host.
    Process,
    /// A user or a group of this host.
    HostUser,
    Root,
}

impl InstancePolicy {
    fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::HostUser => "host-user",
            Self::Root => "root",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Process => "its own command on this host",
            Self::HostUser => "a user or a group that this host has",
            Self::Root => "runAsUser 0",
        }
    }
}

/// Returns the reason if the Revision must not run on this host.
pub(super) async fn check(
    context: &ControllerContext,
    rules: InstanceRules,
    images: &[(String, Vec<String>)],
    revision: &Revision,
    is_root: bool,
) -> Result<Result<(), RevisionError>, Error> {
    let usual = rules.usual(namespace(&revision.metadata), is_root);
    let needed = match needed(revision, rules, usual, images) {
        Ok(needed) => needed,
        Err(why) => return Ok(Err(why)),
    };
    for policy in needed {
        if !may_use(context, revision, policy).await? {
            return Ok(Err(forbidden(revision, policy)));
        }
    }
    Ok(Ok(()))
}

fn forbidden(revision: &Revision, policy: InstancePolicy) -> RevisionError {
    let (account, name) = (service_account(&revision.spec), policy.name());
    // A Pod that a client wrote is checked by the same rules.
    let kind = if revision.kind == "Pod" { "Pod" } else { "Revision" };
    RevisionError {
        reason: FORBIDDEN,
        message: format!(
            "The {kind} asks for {}: its service account \"{account}\" may not {VERB} {RESOURCE}.{GROUP} \"{name}\" in this \
             namespace. Bind the ClusterRole sluicegate-instances-{name} to it, or change the template.",
            policy.what()
        ),
    }
}

/// The reason of a Revision whose service account lacks a policy; it is reconciled again, because a role binding may
/// come.
const FORBIDDEN: &str = "InstancePolicyRequired";

pub(super) fn may_be_granted(why: &RevisionError) -> bool {
    why.reason == FORBIDDEN
}

/// The policies that `revision` needs under the operator's rules.
fn needed(
    revision: &Revision,
    rules: InstanceRules,
    usual: Option<(u32, u32)>,
    images: &[(String, Vec<String>)],
) -> Result<BTreeSet<InstancePolicy>, RevisionError> {
    let mut needed = BTreeSet::new();
    let containers = || revision.spec.containers.iter().chain(&revision.spec.init_containers);
    let own = containers().find(|container| starts_own_command(revision, container, images));
    match (own, rules.processes) {
        (Some(container), ProcessInstances::Deny) => {
            return Err(RevisionError {
                reason: "ProcessInstancesDenied",
                message: format!(
                    "The container \"{}\" starts its own command, and this appliance runs with --process-instances deny: \
                     only commands that its operator mapped with --image are started.",
                    container.name
                ),
            });
        }
        (Some(_), ProcessInstances::AllowList) => _ = needed.insert(InstancePolicy::Process),
        _ => {}
    }
    if rules.guarded {
        // A container's users are its image's: root there owns nothing here.
        let on_host = containers().filter(|container| !runs_image(revision, container, images));
        needed.extend(on_host.filter_map(|container| of_user(container, usual)));
    }
    Ok(needed)
}

/// The words of a program of this host are the manifest's: its command, or one of its probes'.
fn starts_own_command(revision: &Revision, container: &Container, images: &[(String, Vec<String>)]) -> bool {
    let is_exec = |probe: &Option<Probe>| probe.as_ref().is_some_and(|probe| probe.exec.is_some());
    let probes = [&container.startup_probe, &container.readiness_probe, &container.liveness_probe];
    let is_mapped = || images.iter().any(|(reference, _)| Some(reference) == container.image.as_ref());
    let is_process = annotation(&revision.metadata, RUNTIME_CLASS) == Some("process");
    let has_command = container.command.as_ref().is_some_and(|command| !command.is_empty());
    is_process || is_mapped() && (has_command || probes.into_iter().any(is_exec))
}

fn of_user(container: &Container, usual: Option<(u32, u32)>) -> Option<InstancePolicy> {
    let security = security(container);
    let is_usual = |id: i64, usual: Option<u32>| usual.is_some_and(|usual| i64::from(usual) == id);
    let (user, group) = (security.run_as_user, security.run_as_group);
    let user = user.filter(|id| !is_usual(*id, usual.map(|(user, _)| user)));
    let group = group.filter(|id| !is_usual(*id, usual.map(|(_, group)| group)));
    if user == Some(0) {
        return Some(InstancePolicy::Root);
    }
    let is_taken = user.is_some_and(|id| is_listed("/etc/passwd", id))
        || group.is_some_and(|id| id == 0 || is_listed("/etc/group", id));
    is_taken.then_some(InstancePolicy::HostUser)
}

/// Whether the third field of a line of `file` is this number. Read each time: accounts come and go, and few manifests name one.
fn is_listed(file: &str, id: i64) -> bool {
    let listed = fs::read_to_string(file).unwrap_or_default();
    id != i64::from(NOBODY) && has_id(&listed, id)
}

fn has_id(listed: &str, id: i64) -> bool {
    listed.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).any(|one: i64| one == id)
}

async fn may_use(context: &ControllerContext, revision: &Revision, policy: InstancePolicy) -> Result<bool, Error> {
    let ns = namespace(&revision.metadata);
    let user = format!("system:serviceaccount:{ns}:{}", service_account(&revision.spec));
    let groups =
        ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{ns}"), AUTHENTICATED.to_owned()];
    if let Some(store) = context.config.store.upgrade() {
        let (verb, group, resource) = (VERB, GROUP, RESOURCE);
        let action = RequestAttributes { verb, group, resource, subresource: "", namespace: ns, name: policy.name() };
        return Ok(rbac::allows(&store.read(), &user, &groups, &action));
    }
    let asked = ResourceAttributes {
        group: Some(GROUP.to_owned()),
        resource: Some(RESOURCE.to_owned()),
        verb: Some(VERB.to_owned()),
        name: Some(policy.name().to_owned()),
        namespace: Some(ns.to_owned()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(user),
        groups: Some(groups.to_vec()),
        resource_attributes: Some(asked),
        ..SubjectAccessReviewSpec::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    match api.create(&PostParams::default(), &review).await {
        Ok(answer) => Ok(answer.status.is_some_and(|status| status.allowed)),
        // An appliance that may not ask knows of no grant.
        Err(kube::Error::Api(refused)) if refused.is_forbidden() => Ok(false),
        Err(why) => Err(why.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GUARDED: InstanceRules = InstanceRules { processes: ProcessInstances::Allow, user: None, guarded: true };

    fn revision(container: &Value, class: &str) -> Revision {
        let mut container = container.clone();
        container["name"] = json!("c");
        let image = container["image"].as_str().unwrap_or("mapped").to_owned();
        container["image"] = json!(image);
        serde_json::from_value(json!({
            "metadata": {"name": "a-1", "namespace": "team", "annotations": {RUNTIME_CLASS: class}},
            "spec": {"containers": [container]}
        }))
        .unwrap()
    }

    fn of(container: &Value, class: &str, rules: InstanceRules) -> Result<Vec<&'static str>, &'static str> {
        let images = [("mapped".to_owned(), vec!["/bin/hello".to_owned()])];
        let usual = rules.usual("team", true);
        let needed = needed(&revision(container, class), rules, usual, &images);
        needed.map(|all| all.into_iter().map(InstancePolicy::name).collect()).map_err(|why| why.reason)
    }

    #[test]
    fn every_command_of_a_manifest_counts() {
        let exec = json!({"exec": {"command": ["true"]}});
        for (container, class, counts) in [
            (json!({"command": ["sh"]}), "process", true),
            (json!({"image": "mapped"}), "", false),
            (json!({"image": "mapped", "args": ["-v"]}), "", false),
            (json!({"image": "mapped", "command": ["sh"]}), "", true),
            (json!({"image": "mapped", "readinessProbe": exec}), "", true),
            (json!({"image": "mapped", "livenessProbe": exec}), "", true),
            (json!({"image": "mapped", "startupProbe": exec}), "", true),
            (json!({"image": "mapped", "readinessProbe": {"tcpSocket": {"port": 1}}}), "", false),
        ] {
            let under = |processes| of(&container, class, InstanceRules { processes, ..InstanceRules::default() });
            let wanted = if counts { Err("ProcessInstancesDenied") } else { Ok(vec![]) };
            assert_eq!(under(ProcessInstances::Deny), wanted, "{container}");
            let wanted = if counts { vec!["process"] } else { vec![] };
            assert_eq!(under(ProcessInstances::AllowList), Ok(wanted), "{container}");
            assert_eq!(under(ProcessInstances::Allow), Ok(vec![]), "{container}");
        }
    }

    #[test]
    fn sidecars_and_init_containers_count_too() {
        for list in ["containers", "initContainers"] {
            let mut object = serde_json::to_value(revision(&json!({"image": "mapped"}), "")).unwrap();
            let other = json!({"name": "o", "image": "mapped", "command": ["sh"], "securityContext": {"runAsUser": 0}});
            match object["spec"][list].as_array_mut() {
                Some(all) => all.push(other),
                None => object["spec"][list] = json!([other]),
            }
            let rules = InstanceRules { processes: ProcessInstances::AllowList, ..GUARDED };
            let images = [("mapped".to_owned(), vec!["/bin/hello".to_owned()])];
            let needed = needed(&serde_json::from_value(object).unwrap(), rules, None, &images).unwrap();
            assert_eq!(needed, [InstancePolicy::Process, InstancePolicy::Root].into(), "{list}");
        }
    }

    #[test]
    fn users_of_the_host_need_a_policy_where_others_write_manifests() {
        let context = |user: Value, group: Value| json!({"securityContext": {"runAsUser": user, "runAsGroup": group}});
        let own = namespace_user("team");
        for (user, group, wanted) in [
            (Value::Null, Value::Null, vec![]),
            (json!(0), Value::Null, vec!["root"]),
            (json!(0), json!(0), vec!["root"]),
            (json!(1_234_567), json!(1_234_567), vec![]),
            (json!(NOBODY), json!(NOBODY), vec![]),
            (json!(1), Value::Null, vec!["host-user"]), // `daemon`, wherever there is a passwd
            (json!(1_234_567), json!(0), vec!["host-user"]),
            (json!(own), json!(own), vec![]),
        ] {
            assert_eq!(of(&context(user.clone(), group), "", GUARDED), Ok(wanted), "{user}");
            assert_eq!(of(&context(user.clone(), json!(0)), "", InstanceRules::default()), Ok(vec![]), "{user}");
        }
        let root = InstanceRules { user: Some((0, 0)), ..GUARDED };
        assert_eq!(of(&context(json!(0), json!(0)), "", root), Ok(vec![]), "the operator's own choice");
        assert!(has_id("root:x:0:0:root:/root:/bin/sh\nmail:x:8:", 8) && !has_id("a:x:88:", 8) && !has_id("", 0));
    }

    #[test]
    fn namespaces_have_users_of_their_own() {
        let (one, other) = (namespace_user("default"), namespace_user("team"));
        assert_ne!(one, other);
        let range = NAMESPACE_USER_MIN..NAMESPACE_USER_MIN + NAMESPACE_USERS;
        assert!(range.contains(&one) && range.contains(&other) && range.end <= 1 << 31);
        assert_eq!(GUARDED.usual("team", true), Some((other, other)));
        assert_eq!(GUARDED.usual("team", false), None, "only root runs programs as others");
        assert_eq!(InstanceRules { user: Some((7, 8)), ..GUARDED }.usual("team", true), Some((7, 8)));
        assert_eq!(InstanceRules::default().usual("team", true), None);
    }

    #[test]
    fn refusal_names_account_policy_and_role() {
        let why = forbidden(&revision(&json!({}), ""), InstancePolicy::Root);
        for word in ["\"default\"", "\"root\"", "sluicegate-instances-root", "runAsUser 0"] {
            assert!(why.message.contains(word), "{}", why.message);
        }
        assert!(may_be_granted(&why));
    }
}

//! User, group and capabilities of an instance, from its container's `securityContext`.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::error::RevisionError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::InstanceCredentials;
use runtime::capabilities::{self, Capabilities};
use types::serving::annotations::RUNTIME_HOST_USERS;
use types::shared::annotation;

/// RT-USER-01, RT-USER-02: the user that the manifest names, or else the `usual` user and group, or else the
/// appliance's. Where other authors write manifests, `guarded`, a user without a group does not get the appliance's
/// group, which is root's.
pub(super) fn process_credentials(
    container: &Container,
    meta: &ObjectMeta,
    (usual, guarded): (Option<(u32, u32)>, bool),
) -> Result<InstanceCredentials, RevisionError> {
    if has_user_namespace(meta) {
        return Err(RevisionError {
            reason: "CreateContainerConfigError",
            message: format!(
                "hostUsers: false (annotation {RUNTIME_HOST_USERS}) needs an image that runs as a container: container \"{}\" is a process of this host.",
                container.name
            ),
        });
    }
    credentials(container, usual, guarded)
}

fn credentials(
    container: &Container,
    usual: Option<(u32, u32)>,
    guarded: bool,
) -> Result<InstanceCredentials, RevisionError> {
    let security = security(container);
    let id = |number: Option<i64>| number.and_then(|id| u32::try_from(id).ok());
    let keeps_group = guarded && security.run_as_user != Some(0);
    let usual_group = usual.filter(|_| security.run_as_user.is_none() || keeps_group).map(|(_, group)| group);
    let usual_user = usual.map(|(user, _)| user);
    let asked = security.capabilities.unwrap_or_default();
    let (added, dropped) = (asked.add.unwrap_or_default(), asked.drop.unwrap_or_default());
    if let Some(unknown) = added.iter().find(|name| !capabilities::is_known(name)) {
        return Err(RevisionError {
            reason: "CreateContainerError",
            message: format!(
                "there is no capability \"{unknown}\" to add: they are named as NET_ADMIN is, without CAP_"
            ),
        });
    }
    Ok(InstanceCredentials {
        user: id(security.run_as_user).or(usual_user),
        group: id(security.run_as_group).or(usual_group),
        run_as_non_root: security.run_as_non_root == Some(true),
        capabilities: Capabilities::from_manifest(&added, &dropped),
        has_user_namespace: false,
    })
}

/// RT-USER-01: the user in the manifest, or else the image's user, which only the image defines. Its capabilities are fewer than a
/// process's: the network is the host's.
pub(super) fn container_credentials(
    container: &Container,
    meta: &ObjectMeta,
) -> Result<InstanceCredentials, RevisionError> {
    let asked = security(container).capabilities.unwrap_or_default();
    let (added, dropped) = (asked.add.unwrap_or_default(), asked.drop.unwrap_or_default());
    let capabilities = Capabilities::of_container(&added, &dropped);
    let has_user_namespace = has_user_namespace(meta);
    Ok(InstanceCredentials { capabilities, has_user_namespace, ..credentials(container, None, false)? })
}

/// A Revision's template asks for it by an annotation, because Knative has no field for it.
fn has_user_namespace(meta: &ObjectMeta) -> bool {
    annotation(meta, RUNTIME_HOST_USERS) == Some("false")
}

pub(super) fn security(container: &Container) -> SecurityContext {
    container.security_context.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(context: &Value) -> Result<InstanceCredentials, RevisionError> {
        let container = json!({ "name": "a", "securityContext": context });
        credentials(&serde_json::from_value(container).unwrap(), None, false)
    }

    /// RT-USER-02: without a user the operator's user applies, whatever group the manifest names.
    #[test]
    fn the_operators_user_is_for_those_who_name_none() {
        let of = |context: Value, guarded| {
            let container = json!({ "name": "a", "securityContext": context });
            let container = serde_json::from_value(container).unwrap();
            let identity = credentials(&container, Some((65_532, 7)), guarded).unwrap();
            (identity.user, identity.group)
        };
        let who = |context| of(context, false);
        assert_eq!(who(json!({})), (Some(65_532), Some(7)));
        assert_eq!(who(json!({ "runAsGroup": 3 })), (Some(65_532), Some(3)));
        assert_eq!(who(json!({ "runAsUser": 0 })), (Some(0), None));
        assert_eq!(who(json!({ "runAsUser": 5 })), (Some(5), None));
        assert_eq!(of(json!({ "runAsUser": 5 }), true), (Some(5), Some(7)), "not root's group");
        assert_eq!(of(json!({ "runAsUser": 0 }), true), (Some(0), None));
    }

    /// A process has the host's users, and one that asks for others is not started.
    #[test]
    fn users_of_their_own_are_for_containers() {
        let container: Container = serde_json::from_value(json!({ "name": "a" })).unwrap();
        let meta = |value: &str| ObjectMeta {
            annotations: Some([(RUNTIME_HOST_USERS.to_owned(), value.to_owned())].into()),
            ..ObjectMeta::default()
        };
        for (value, has_one) in [("false", true), ("true", false)] {
            let of = container_credentials(&container, &meta(value)).unwrap();
            assert_eq!(of.has_user_namespace, has_one, "{value}");
            assert_eq!(process_credentials(&container, &meta(value), (None, false)).is_err(), has_one, "{value}");
        }
    }

    /// RT-USER-01: what the manifest says reaches the process.
    #[test]
    fn a_manifest_says_who_its_instances_are() {
        let said = json!({ "runAsUser": 1000, "runAsGroup": 7, "runAsNonRoot": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } });
        let capabilities = Capabilities::from_manifest(&["NET_BIND_SERVICE".to_owned()], &["ALL".to_owned()]);
        let wanted = InstanceCredentials {
            user: Some(1000),
            group: Some(7),
            run_as_non_root: true,
            capabilities,
            has_user_namespace: false,
        };
        assert_eq!(of(&said).unwrap(), wanted);
        assert_eq!(of(&json!({})).unwrap(), InstanceCredentials::default());
        let refused = of(&json!({ "capabilities": { "add": ["FLY"] } })).unwrap_err();
        assert!(refused.message.contains("\"FLY\""), "{}", refused.message);
    }
}

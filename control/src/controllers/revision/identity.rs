//! Who an instance is to the kernel, as its container's `securityContext` says.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::plan::Unrunnable;
use crate::runtime::Identity;
use crate::runtime::capabilities::{self, Capabilities};

/// RT-USER-01, RT-USER-02: who the manifest names, or else the `usual` user and group, or else whoever the appliance is.
pub(super) fn identity(container: &Container, usual: Option<(u32, u32)>) -> Result<Identity, Unrunnable> {
    let security = security(container);
    let id = |number: Option<i64>| number.and_then(|id| u32::try_from(id).ok());
    let usual = usual.filter(|_| security.run_as_user.is_none());
    let asked = security.capabilities.unwrap_or_default();
    let (added, dropped) = (asked.add.unwrap_or_default(), asked.drop.unwrap_or_default());
    if let Some(unknown) = added.iter().find(|name| !capabilities::is_known(name)) {
        return Err(Unrunnable {
            reason: "CreateContainerError",
            message: format!(
                "there is no capability \"{unknown}\" to add: they are named as NET_ADMIN is, without CAP_"
            ),
        });
    }
    Ok(Identity {
        user: id(security.run_as_user).or(usual.map(|(user, _)| user)),
        group: id(security.run_as_group).or(usual.map(|(_, group)| group)),
        never_root: security.run_as_non_root == Some(true),
        capabilities: Capabilities::of(&added, &dropped),
    })
}

pub(super) fn security(container: &Container) -> SecurityContext {
    container.security_context.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(context: &Value) -> Result<Identity, Unrunnable> {
        let container = json!({ "name": "a", "securityContext": context });
        identity(&serde_json::from_value(container).unwrap(), None)
    }

    /// RT-USER-02: whoever names no user is the operator's, whatever group he names.
    #[test]
    fn the_operators_user_is_for_those_who_name_none() {
        let who = |context: Value| {
            let container = json!({ "name": "a", "securityContext": context });
            let identity = identity(&serde_json::from_value(container).unwrap(), Some((65_532, 7))).unwrap();
            (identity.user, identity.group)
        };
        assert_eq!(who(json!({})), (Some(65_532), Some(7)));
        assert_eq!(who(json!({ "runAsGroup": 3 })), (Some(65_532), Some(3)));
        assert_eq!(who(json!({ "runAsUser": 0 })), (Some(0), None));
    }

    /// RT-USER-01: what the manifest says reaches the process.
    #[test]
    fn a_manifest_says_who_its_instances_are() {
        let said = json!({ "runAsUser": 1000, "runAsGroup": 7, "runAsNonRoot": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] } });
        let capabilities = Capabilities::of(&["NET_BIND_SERVICE".to_owned()], &["ALL".to_owned()]);
        let wanted = Identity { user: Some(1000), group: Some(7), never_root: true, capabilities };
        assert_eq!(of(&said).unwrap(), wanted);
        assert_eq!(of(&json!({})).unwrap(), Identity::default());
        let refused = of(&json!({ "capabilities": { "add": ["FLY"] } })).unwrap_err();
        assert!(refused.message.contains("\"FLY\""), "{}", refused.message);
    }
}

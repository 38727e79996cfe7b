//! What a container may ask of the kernel about itself.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::pod::FORBIDDEN;
use crate::kind::Problems;

/// A user id has 31 bits (Kubernetes' bound).
const ID_MAX: i64 = 2_147_483_647;
/// The one capability that may be added.
const CAPABILITY: &str = "NET_BIND_SERVICE";

pub(super) fn validate(container: &Container, at: &str, problems: &mut Problems) {
    let Some(context) = &container.security_context else { return };
    let at = format!("{at}.securityContext");
    for (field, id) in [("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)] {
        if let Some(id) = id
            && !(0..=ID_MAX).contains(&id)
        {
            problems.add(format!("{at}.{field}"), format!("expected 0 <= {id} <= {ID_MAX}"));
        }
    }
    for field in not_the_developers(context) {
        problems.add(format!("{at}.{field}"), FORBIDDEN);
    }
    let added = context.capabilities.as_ref().and_then(|c| c.add.as_ref());
    for capability in added.into_iter().flatten().filter(|name| *name != CAPABILITY) {
        problems.add(format!("{at}.capabilities.add"), format!("invalid value: {capability}"));
    }
}

/// The fields that are set and may not be.
fn not_the_developers(context: &SecurityContext) -> impl Iterator<Item = &'static str> {
    [
        ("privileged", context.privileged == Some(true)),
        ("procMount", context.proc_mount.is_some()),
        ("seLinuxOptions", context.se_linux_options.is_some()),
        ("appArmorProfile", context.app_armor_profile.is_some()),
        ("windowsOptions", context.windows_options.is_some()),
    ]
    .into_iter()
    .filter_map(|(field, set)| set.then_some(field))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(context: &Value) -> Vec<String> {
        let container = json!({"name": "a", "image": "a", "securityContext": context});
        let mut problems = Problems::default();
        validate(&serde_json::from_value(container).unwrap(), "c", &mut problems);
        problems.list.into_iter().map(|p| p.field).collect()
    }

    #[test]
    fn what_upstream_lets_a_developer_set_is_taken() {
        assert!(
            found(&json!({
                "runAsUser": 1000, "runAsGroup": 0, "runAsNonRoot": true, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "privileged": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                "seccompProfile": {"type": "RuntimeDefault"}
            }))
            .is_empty()
        );
    }

    /// RT-ISO-06, RT-ISO-07, RT-ENV-06: what belongs to the operator is refused by its name.
    #[test]
    fn what_belongs_to_the_operator_is_refused() {
        for (context, field) in [
            (json!({"privileged": true}), "privileged"),
            (json!({"runAsUser": -1}), "runAsUser"),
            (json!({"runAsGroup": 1_i64 << 31}), "runAsGroup"),
            (json!({"procMount": "Unmasked"}), "procMount"),
            (json!({"seLinuxOptions": {"type": "x"}}), "seLinuxOptions"),
            (json!({"capabilities": {"add": ["SYS_ADMIN"]}}), "capabilities.add"),
        ] {
            assert_eq!(found(&context), [format!("c.securityContext.{field}")]);
        }
    }
}

//! What a container may ask of the kernel about itself.

use k8s_openapi::api::core::v1::{Container, SecurityContext};

use super::pod::FORBIDDEN;
use super::template::RevisionSpec;
use crate::kind::Problems;
use crate::kinds::settings::Features;

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
}

/// What only a feature of the operator's allows.
pub(super) fn validate_by(spec: &RevisionSpec, at: &str, features: &Features, problems: &mut Problems) {
    if features.is_allowed("kubernetes.containerspec-addcapabilities") {
        return;
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let asked = container.security_context.as_ref().and_then(|context| context.capabilities.as_ref());
        let added = asked.and_then(|asked| asked.add.as_ref());
        for capability in added.into_iter().flatten().filter(|name| *name != CAPABILITY) {
            let at = format!("{at}.containers[{index}].securityContext.capabilities.add");
            problems.add(at, format!("invalid value: {capability}"));
        }
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
    use crate::kinds::settings::Setting;

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
        ] {
            assert_eq!(found(&context), [format!("c.securityContext.{field}")]);
        }
    }
    /// RT-ENV-06: one capability may be added, and others if the operator lets them.
    #[test]
    fn capabilities_are_added_as_the_operator_allows() {
        for (word, name, is_taken) in [
            ("disabled", "NET_BIND_SERVICE", true),
            ("disabled", "SYS_ADMIN", false),
            ("allowed", "SYS_ADMIN", true),
        ] {
            let data = [("kubernetes.containerspec-addcapabilities".to_owned(), word.to_owned())].into();
            let spec = json!({"containers": [{"name": "a", "image": "a",
                "securityContext": {"capabilities": {"add": [name]}}}]});
            let mut problems = Problems::default();
            let features = Features::parse(&data, &mut problems);
            validate_by(&serde_json::from_value(spec).unwrap(), "spec", &features, &mut problems);
            let found: Vec<_> = problems.list.into_iter().map(|problem| problem.field).collect();
            let wanted = ["spec.containers[0].securityContext.capabilities.add".to_owned()];
            assert_eq!(found, wanted[usize::from(is_taken)..], "{word} {name}");
        }
    }
}

//! The rules of a container's security context.

use k8s_openapi::api::core::v1::{Capabilities, Container, SecurityContext};

use crate::field_errors::{FieldErrors, MUST_NOT_SET};
use crate::serving::revision_spec::RevisionSpec;
use crate::settings::{FeatureFlag, SECURE_DEFAULTS, ServingFeatures};

/// A user id has 31 bits (Kubernetes' bound).
const ID_MAX: i64 = 2_147_483_647;
/// The one capability that may be added.
const CAPABILITY: &str = "NET_BIND_SERVICE";
/// Below it are the ports that take that capability.
const PORT_UNPRIVILEGED: i32 = 1024;
const SECCOMP: &str = "RuntimeDefault";

/// The operator's default for containers without a setting (upstream's `secure-pod-defaults`).
pub(super) fn set_defaults(containers: &mut [Container], features: &ServingFeatures) {
    let wanted = features.flag(SECURE_DEFAULTS);
    if wanted == FeatureFlag::Disabled {
        return;
    }
    for container in containers {
        let has_low_port = container.ports.iter().flatten().any(|port| port.container_port < PORT_UNPRIVILEGED);
        let context = container.security_context.get_or_insert_default();
        context.allow_privilege_escalation.get_or_insert(false);
        let seccomp = context.seccomp_profile.get_or_insert_default();
        if seccomp.type_.is_empty() {
            SECCOMP.clone_into(&mut seccomp.type_);
        }
        context.capabilities.get_or_insert_with(|| Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            add: has_low_port.then(|| vec![CAPABILITY.to_owned()]),
        });
        if wanted == FeatureFlag::Enabled {
            context.run_as_non_root.get_or_insert(true);
        }
    }
}

pub(super) fn validate(container: &Container, at: &str, problems: &mut FieldErrors) {
    let Some(context) = &container.security_context else { return };
    let at = format!("{at}.securityContext");
    for (field, id) in [("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)] {
        if let Some(id) = id
            && !(0..=ID_MAX).contains(&id)
        {
            problems.add(format!("{at}.{field}"), format!("expected 0 <= {id} <= {ID_MAX}"));
        }
    }
    for field in forbidden_fields(context) {
        problems.add(format!("{at}.{field}"), MUST_NOT_SET);
    }
}

/// For a container of a Pod that a client writes: as for a Service whose operator enabled no feature.
pub(crate) fn validate_for_pod(container: &Container, at: &str, problems: &mut FieldErrors) {
    let Some(context) = &container.security_context else { return };
    let at = format!("{at}.securityContext");
    validate_ids(context.run_as_user, context.run_as_group, &at, problems);
    let added = context.capabilities.as_ref().and_then(|asked| asked.add.as_ref());
    for capability in added.into_iter().flatten().filter(|name| *name != CAPABILITY) {
        let why = format!("Forbidden: {capability} may not be added here, only {CAPABILITY}");
        problems.add(format!("{at}.capabilities.add"), why);
    }
}

/// User and group of a Pod that a client writes, or of one of its containers.
pub(crate) fn validate_ids(user: Option<i64>, group: Option<i64>, at: &str, problems: &mut FieldErrors) {
    for (field, id) in [("runAsUser", user), ("runAsGroup", group)] {
        if let Some(id) = id.filter(|id| !(0..=ID_MAX).contains(id)) {
            let why = format!("Invalid value: {id}: must be between 0 and {ID_MAX}, inclusive");
            problems.add(format!("{at}.{field}"), why);
        }
    }
}

/// Fields that only a feature of the operator's allows.
pub(super) fn validate_by(spec: &RevisionSpec, at: &str, features: &ServingFeatures, problems: &mut FieldErrors) {
    if features.is_allowed("kubernetes.containerspec-addcapabilities") {
        return;
    }
    for (container_at, container) in spec.each_container() {
        let asked = container.security_context.as_ref().and_then(|context| context.capabilities.as_ref());
        let added = asked.and_then(|asked| asked.add.as_ref());
        for capability in added.into_iter().flatten().filter(|name| *name != CAPABILITY) {
            let at = format!("{at}.{container_at}.securityContext.capabilities.add");
            problems.add(at, format!("invalid value: {capability}"));
        }
    }
}

/// The fields that are set and may not be.
fn forbidden_fields(context: &SecurityContext) -> impl Iterator<Item = &'static str> {
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

    use crate::serving::revision_spec::security::*;
    use crate::settings::ConfigMapSetting;

    fn found(context: &Value) -> Vec<String> {
        let container = json!({"name": "a", "image": "a", "securityContext": context});
        let mut problems = FieldErrors::default();
        validate(&serde_json::from_value(container).unwrap(), "c", &mut problems);
        problems.list.into_iter().map(|p| p.field).collect()
    }

    #[test]
    fn container_of_a_pod_gets_no_right_that_a_service_has_not() {
        for (context, field) in [
            (json!({"capabilities": {"add": ["ALL"]}}), Some("c.securityContext.capabilities.add")),
            (
                json!({"capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}),
                Some("c.securityContext.capabilities.add"),
            ),
            (json!({"capabilities": {"add": ["NET_BIND_SERVICE"]}}), None),
            (json!({"runAsUser": -1}), Some("c.securityContext.runAsUser")),
            (json!({"runAsGroup": ID_MAX + 1}), Some("c.securityContext.runAsGroup")),
            (json!({"runAsUser": ID_MAX}), None),
        ] {
            let container = json!({"name": "a", "image": "a", "securityContext": context});
            let mut problems = FieldErrors::default();
            validate_for_pod(&serde_json::from_value(container).unwrap(), "c", &mut problems);
            let first = problems.list.first().map(|problem| problem.field.as_str());
            assert_eq!(first, field, "{context}");
        }
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
    /// Upstream's secure defaults fill what is not said, and nothing else.
    #[test]
    fn secure_defaults_are_for_those_who_say_nothing() {
        let filled = |word: &str, container: Value| {
            let data = [(SECURE_DEFAULTS.to_owned(), word.to_owned())].into();
            let features = ServingFeatures::parse(&data, &mut FieldErrors::default());
            let mut container = serde_json::from_value(container).unwrap();
            set_defaults(std::slice::from_mut(&mut container), &features);
            serde_json::to_value(container.security_context).unwrap()
        };
        let bare = || json!({"name": "a"});
        assert_eq!(filled("disabled", bare()), Value::Null);
        let mut wanted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"}});
        assert_eq!(filled("AllowRootBounded", bare()), wanted);
        wanted["runAsNonRoot"] = json!(true);
        assert_eq!(filled("enabled", bare()), wanted);
        wanted["capabilities"]["add"] = json!([CAPABILITY]);
        assert_eq!(filled("enabled", json!({"name": "a", "ports": [{"containerPort": 80}]})), wanted);
        let said = json!({"allowPrivilegeEscalation": true, "capabilities": {"drop": ["CHOWN"]},
            "seccompProfile": {"type": "Unconfined"}, "runAsNonRoot": false});
        assert_eq!(filled("enabled", json!({"name": "a", "securityContext": said})), said);
    }

    /// RT-ENV-06: one capability may be added, and others if the operator lets them.
    #[test]
    fn capabilities_are_added_as_the_operator_allows() {
        for (word, name, is_taken) in
            [("disabled", "NET_BIND_SERVICE", true), ("disabled", "SYS_ADMIN", false), ("allowed", "SYS_ADMIN", true)]
        {
            let data = [("kubernetes.containerspec-addcapabilities".to_owned(), word.to_owned())].into();
            let spec = json!({"containers": [{"name": "a", "image": "a",
                "securityContext": {"capabilities": {"add": [name]}}}]});
            let mut problems = FieldErrors::default();
            let features = ServingFeatures::parse(&data, &mut problems);
            validate_by(&serde_json::from_value(spec).unwrap(), "spec", &features, &mut problems);
            let found: Vec<_> = problems.list.into_iter().map(|problem| problem.field).collect();
            let wanted = ["spec.containers[0].securityContext.capabilities.add".to_owned()];
            assert_eq!(found, wanted[usize::from(is_taken)..], "{word} {name}");
        }
    }
}

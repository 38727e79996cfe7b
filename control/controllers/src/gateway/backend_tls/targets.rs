//! Which policy holds for a port of a Service: values in, values out.

use std::sync::Arc;

use types::gateway_api::backend_tls_policy::BackendTlsPolicy;
use types::gateway_api::policy::LocalPolicyTargetReference;
use types::shared::name;

/// The policy for a port: one that names the port, or else one for the whole Service. Of several, the oldest.
pub(super) fn effective<'a>(
    policies: &'a [Arc<BackendTlsPolicy>],
    service: &str,
    port: Option<&str>,
) -> Option<&'a Arc<BackendTlsPolicy>> {
    let of_port = port.filter(|port| !port.is_empty()).and_then(|port| oldest(policies, service, Some(port)));
    of_port.or_else(|| oldest(policies, service, None))
}

/// The policy that had this target before `policy`.
pub(super) fn conflict<'a>(
    policies: &'a [Arc<BackendTlsPolicy>],
    policy: &BackendTlsPolicy,
    target: &LocalPolicyTargetReference,
) -> Option<&'a Arc<BackendTlsPolicy>> {
    oldest(policies, &target.name, target.section()).filter(|oldest| age(oldest) < age(policy))
}

/// The oldest policy with exactly this target.
fn oldest<'a>(
    policies: &'a [Arc<BackendTlsPolicy>],
    service: &str,
    section: Option<&str>,
) -> Option<&'a Arc<BackendTlsPolicy>> {
    let has_target = |policy: &&Arc<BackendTlsPolicy>| {
        policy.spec.services().any(|target| target.name == service && target.section() == section)
    };
    policies.iter().filter(has_target).min_by_key(|policy| age(policy))
}

/// Policies of the same second come by name.
fn age(policy: &BackendTlsPolicy) -> (Option<jiff::Timestamp>, &str) {
    (policy.metadata.creation_timestamp.as_ref().map(|time| time.0), name(&policy.metadata))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;

    fn policy(name: &str, second: i64, service: &str, section: Option<&str>) -> Arc<BackendTlsPolicy> {
        let target = json!({ "group": "", "kind": "Service", "name": service, "sectionName": section });
        let spec = json!({ "targetRefs": [target], "validation": { "hostname": "a.test" } });
        let mut policy = BackendTlsPolicy::new("ns", name, serde_json::from_value(spec).unwrap());
        policy.metadata.creation_timestamp = Some(Time(jiff::Timestamp::from_second(second).unwrap()));
        Arc::new(policy)
    }

    #[test]
    fn port_has_its_own_policy_before_that_of_the_service() {
        let all = [policy("whole", 1, "a", None), policy("port", 2, "a", Some("https")), policy("b", 1, "b", None)];
        let of = |service, port| effective(&all, service, port).map(|policy| name(&policy.metadata).to_owned());
        assert_eq!(of("a", Some("https")).as_deref(), Some("port"));
        assert_eq!(of("a", Some("other")).as_deref(), Some("whole"));
        assert_eq!(of("a", None).as_deref(), Some("whole"));
        assert_eq!(of("c", Some("https")), None);
    }

    #[test]
    fn oldest_policy_of_a_target_holds() {
        let all = [policy("b", 5, "a", None), policy("c", 5, "a", None), policy("new", 9, "a", None)];
        assert_eq!(name(&effective(&all, "a", None).unwrap().metadata), "b");
        let conflicts = |at: usize| {
            let target = &all[at].spec.target_refs[0];
            conflict(&all, &all[at], target).map(|other| name(&other.metadata).to_owned())
        };
        assert_eq!([conflicts(0), conflicts(1), conflicts(2)], [None, Some("b".into()), Some("b".into())]);
        let apart = [policy("a", 1, "a", None), policy("b", 2, "a", Some("https"))];
        assert!(conflict(&apart, &apart[1], &apart[1].spec.target_refs[0]).is_none());
    }
}

//! What Kubernetes fills into a Pod's spec.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The mode of files of a volume that does not say: 0644.
const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Fills what the author of a Pod, or of a template for Pods, left out.
pub(super) fn set_spec_defaults(spec: &mut PodSpec) {
    spec.restart_policy.get_or_insert_with(|| "Always".into());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".into());
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".into());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.security_context.get_or_insert_default();
    // The older name of the same field.
    match (spec.service_account_name.clone(), spec.service_account.clone()) {
        (Some(name), _) => spec.service_account = Some(name),
        (None, Some(old)) => spec.service_account_name = Some(old),
        (None, None) => {}
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        set_container_defaults(container);
    }
    spec.volumes.iter_mut().flatten().for_each(set_volume_defaults);
}

fn set_container_defaults(container: &mut Container) {
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".into());
    container.termination_message_policy.get_or_insert_with(|| "File".into());
    let image = container.image.clone().unwrap_or_default();
    container.image_pull_policy.get_or_insert_with(|| pull_policy(&image).into());
    for port in container.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".into());
    }
    for env in container.env.iter_mut().flatten() {
        if let Some(field) = env.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
            field.api_version.get_or_insert_with(|| "v1".into());
        }
    }
    let probes = [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe];
    probes.into_iter().flatten().for_each(set_probe_defaults);
    let resources = container.resources.get_or_insert_default();
    // What is limited is asked for in full.
    for (name, limit) in resources.limits.clone().unwrap_or_default() {
        resources.requests.get_or_insert_default().entry(name).or_insert(limit);
    }
    resources.requests.take_if(|all: &mut BTreeMap<String, Quantity>| all.is_empty());
}

/// An image whose tag moves is pulled each time.
fn pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_pinned = last.contains('@') || last.split_once(':').is_some_and(|(_, tag)| tag != "latest");
    if is_pinned { "IfNotPresent" } else { "Always" }
}

fn set_probe_defaults(probe: &mut Probe) {
    probe.timeout_seconds.get_or_insert(1);
    probe.period_seconds.get_or_insert(10);
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
    if let Some(get) = &mut probe.http_get {
        get.path.get_or_insert_with(|| "/".into());
        get.scheme.get_or_insert_with(|| "HTTP".into());
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn set_volume_defaults(volume: &mut Volume) {
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(all) = &mut volume.projected {
        all.default_mode.get_or_insert(FILE_MODE);
        for token in all.sources.iter_mut().flatten().filter_map(|one| one.service_account_token.as_mut()) {
            token.expiration_seconds.get_or_insert(TOKEN_SECONDS);
        }
    }
    let files = volume.downward_api.iter_mut().flat_map(|api| api.items.iter_mut().flatten());
    files.filter_map(|file| file.field_ref.as_mut()).for_each(|field| {
        field.api_version.get_or_insert_with(|| "v1".into());
    });
    if let Some(api) = &mut volume.downward_api {
        api.default_mode.get_or_insert(FILE_MODE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_without_a_fixed_tag_is_pulled_each_time() {
        for (image, policy) in [
            ("a", "Always"),
            ("a:latest", "Always"),
            ("host:5000/a", "Always"),
            ("host:5000/a:1", "IfNotPresent"),
            ("a@sha256:0", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }
}

//! The parts of an instance in its `/dev`: memory that its containers share, and the termination message.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;

use super::plan_inputs::{PlanInputs, uses_volume_variable};
use runtime::limits::SHARED_MEMORY_BYTES_MAX;
use runtime::volumes::{InstanceMount, InstanceVolume, VolumeContent, VolumeMedium};
use runtime::{InstanceSpec, Sidecar, TerminationMessagePath};
use types::serving::revision::Revision;

/// Kubernetes' default `terminationMessagePath`.
const TERMINATION_PATH: &str = "/dev/termination-log";

const SHARED_MEMORY: &str = "/dev/shm";
/// No volume of a manifest can have this name: theirs are without dots.
const SHARED_VOLUME: &str = "dev.shm";

pub(super) fn has_own_dev(revision: &Revision, given: &PlanInputs<'_>) -> bool {
    given.can_mount && !given.host_devices && !uses_volume_variable(revision)
}

/// SRV-CON-15: a file for it where Kubernetes has it, or where the manifest wants it.
pub(super) fn termination_message_path(
    revision: &Revision,
    container: &Container,
    given: &PlanInputs<'_>,
) -> Option<TerminationMessagePath> {
    let named = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    // Nothing is mounted into the host's `/dev` without a request for it.
    let path = named.or_else(|| has_own_dev(revision, given).then_some(TERMINATION_PATH))?;
    let at_path = given.can_mount && !uses_volume_variable(revision);
    Some(if at_path { TerminationMessagePath::Path(PathBuf::from(path)) } else { TerminationMessagePath::Variable })
}

/// In a container it is where Kubernetes has it, and nowhere else.
pub(super) fn container_termination_path(container: &Container) -> TerminationMessagePath {
    let named = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    TerminationMessagePath::Path(PathBuf::from(named.unwrap_or(TERMINATION_PATH)))
}

/// Makes containers with their own `/dev` share `/dev/shm`, as those of a Pod do. A single container has it already, and
/// a container with another mount there keeps that.
pub(super) fn share_dev_shm(serving: &mut InstanceSpec, sidecars: &mut [Sidecar]) {
    if sidecars.is_empty() {
        return;
    }
    for spec in sidecars.iter_mut().map(|sidecar| &mut sidecar.spec).chain([serving]) {
        let content = VolumeContent::Empty(VolumeMedium::Memory { bytes_max: Some(SHARED_MEMORY_BYTES_MAX) });
        spec.volumes.push(InstanceVolume { name: SHARED_VOLUME.to_owned(), content });
        if !spec.mounts.iter().any(|mount| mount.path == Path::new(SHARED_MEMORY)) {
            let (volume, path) = (SHARED_VOLUME.to_owned(), SHARED_MEMORY.into());
            spec.mounts.push(InstanceMount { volume, path, sub_path: None, read_only: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::plan;
    use super::super::plan::tests::{given, hello, images, revision};
    use super::*;
    use types::serving::annotations::RUNTIME_VOLUMES;

    /// RT-FS-09, SRV-CON-15: a `/dev` of its own has memory that containers share, and a place for the message about the end; nothing
    /// is mounted into the host's, or for who wants no mounts.
    #[test]
    fn containers_share_the_memory_of_a_dev_that_is_theirs() {
        let mut both = revision(hello(), json!({}));
        let mut second = both.spec.containers[0].clone();
        (second.name, both.spec.containers[0].ports) =
            ("helper".into(), Some(vec![serde_json::from_value(json!({"containerPort": 8888})).unwrap()]));
        second.volume_mounts = Some(vec![]);
        both.spec.containers.push(second);
        let shared = |spec: &InstanceSpec| {
            let found = spec.mounts.iter().filter(|mount| mount.path == Path::new("/dev/shm"));
            found.filter(|mount| spec.volumes.iter().any(|volume| volume.name == mount.volume)).count()
        };
        let images = images();
        let found = |revision: &Revision, given: &PlanInputs<'_>| {
            let instance = plan(revision, given).unwrap().instance;
            let second = instance.sidecars.iter().map(|sidecar| shared(&sidecar.spec)).sum();
            (shared(&instance), second, instance.termination_message.clone())
        };
        let at = |path: &str| Some(TerminationMessagePath::Path(path.into()));
        let own = given(&images);
        assert_eq!(found(&both, &own), (1, 1, at("/dev/termination-log")));
        let alone = revision(hello(), json!({}));
        assert_eq!(found(&alone, &own), (0, 0, at("/dev/termination-log")), "it is there already");
        for hosts in
            [PlanInputs { host_devices: true, ..given(&images) }, PlanInputs { can_mount: false, ..given(&images) }]
        {
            assert_eq!(found(&both, &hosts), (0, 0, None));
        }
        let by_variable = revision(hello(), json!({ RUNTIME_VOLUMES: "env" }));
        assert_eq!(found(&by_variable, &own), (0, 0, None));
    }
}

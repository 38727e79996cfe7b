//! The rules of volumes, and of their mount paths.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, KeyToPath, ProjectedVolumeSource, Volume};

use super::RevisionSpec;
use crate::field_errors::{FieldErrors, MISSING, MUST_NOT_SET, exactly_one};
use crate::quantity;
use support::names::is_dns1123_label;

pub(crate) const PATHS_RESERVED: [&str; 3] = ["/", "/dev", "/dev/log"];
/// The medium of an `emptyDir` that is no disk.
pub const MEMORY: &str = "Memory";

/// The volumes' names.
pub(super) fn validate<'a>(volumes: &'a [Volume], at: &str, problems: &mut FieldErrors) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = format!("{at}.volumes[{index}]");
        if !names.insert(volume.name.as_str()) {
            problems.add(format!("{at}.name"), format!("duplicate volume name \"{}\"", volume.name));
        }
        if !is_dns1123_label(&volume.name) {
            problems.add(format!("{at}.name"), format!("invalid value: {}", volume.name));
        }
        let sources = [
            volume.secret.is_some(),
            volume.config_map.is_some(),
            volume.projected.is_some(),
            volume.empty_dir.is_some(),
            volume.persistent_volume_claim.is_some(),
        ];
        exactly_one(
            sources.iter().filter(|set| **set).count(),
            &at,
            "configMap, emptyDir, persistentVolumeClaim, projected, secret",
            problems,
        );
        if let Some(empty) = &volume.empty_dir {
            validate_empty_dir(empty, &format!("{at}.emptyDir"), problems);
        }
        if volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name.is_empty()) {
            problems.add(format!("{at}.persistentVolumeClaim.claimName"), MISSING);
        }
        if let Some(map) = &volume.config_map {
            validate_items(map.items.as_deref(), &format!("{at}.configMap"), problems);
        }
        if let Some(secret) = &volume.secret {
            validate_items(secret.items.as_deref(), &format!("{at}.secret"), problems);
        }
        if let Some(projected) = &volume.projected {
            validate_projected(projected, &format!("{at}.projected"), problems);
        }
    }
    names
}

/// SRV-VOL-18: each source is one thing.
fn validate_projected(volume: &ProjectedVolumeSource, at: &str, problems: &mut FieldErrors) {
    for (index, source) in volume.sources.iter().flatten().enumerate() {
        let at = format!("{at}.sources[{index}]");
        let kinds = [
            source.config_map.is_some(),
            source.downward_api.is_some(),
            source.secret.is_some(),
            source.service_account_token.is_some(),
        ];
        exactly_one(
            kinds.iter().filter(|set| **set).count(),
            &at,
            "configMap, downwardAPI, secret, serviceAccountToken",
            problems,
        );
        if let Some(map) = &source.config_map {
            validate_items(map.items.as_deref(), &format!("{at}.configMap"), problems);
        }
        if let Some(secret) = &source.secret {
            validate_items(secret.items.as_deref(), &format!("{at}.secret"), problems);
        }
        if source.service_account_token.as_ref().is_some_and(|token| token.path.is_empty()) {
            problems.add(format!("{at}.serviceAccountToken.path"), MISSING);
        }
    }
}

/// SRV-VOL-19, SRV-VOL-21: which key, and into which file.
fn validate_items(items: Option<&[KeyToPath]>, at: &str, problems: &mut FieldErrors) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        for (field, text) in [("key", &item.key), ("path", &item.path)] {
            if text.is_empty() {
                problems.add(format!("{at}.items[{index}].{field}"), MISSING);
            }
        }
    }
}

/// Where the operator does not want them.
pub(super) fn reject_empty_dirs(volumes: &[Volume], at: &str, problems: &mut FieldErrors) {
    for (index, _) in volumes.iter().enumerate().filter(|(_, volume)| volume.empty_dir.is_some()) {
        problems.add(format!("{at}.volumes[{index}].emptyDir"), MUST_NOT_SET);
    }
}

/// The same of claims, or of those that can be written to.
pub(super) fn reject_claims(spec: &RevisionSpec, may_write: Option<bool>, at: &str, problems: &mut FieldErrors) {
    if may_write == Some(true) {
        return;
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let Some(claim) = &volume.persistent_volume_claim else { continue };
        let at = format!("{at}.volumes[{index}].persistentVolumeClaim");
        match may_write {
            None => problems.add(at, format!("{MUST_NOT_SET}: kubernetes.podspec-persistent-volume-claim is off")),
            Some(_) if claim.read_only != Some(true) => {
                problems.add(format!("{at}.readOnly"), "kubernetes.podspec-persistent-volume-write is off: use true");
            }
            Some(_) => {}
        }
    }
}

fn validate_empty_dir(volume: &EmptyDirVolumeSource, at: &str, problems: &mut FieldErrors) {
    let medium = volume.medium.as_deref().unwrap_or_default();
    if !medium.is_empty() && medium != MEMORY {
        problems.add(format!("{at}.medium"), format!("invalid value: {medium}"));
    }
    if let Some(limit) = volume.size_limit.as_ref().filter(|limit| quantity::memory(&limit.0).is_none()) {
        problems.add(format!("{at}.sizeLimit"), format!("invalid value: {}", limit.0));
    }
}

/// Adds the volumes that are mounted to `mounted`.
pub(super) fn validate_mounts<'a>(
    container: &'a Container,
    volumes: &HashSet<&str>,
    mounted: &mut HashSet<&'a str>,
    at: &str,
    problems: &mut FieldErrors,
) {
    let mut paths = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        if !volumes.contains(mount.name.as_str()) {
            problems.add(format!("{at}.name"), format!("volumeMount has no matching volume: {}", mount.name));
        }
        mounted.insert(&mount.name);
        for (field, set) in [
            ("mountPropagation", mount.mount_propagation.is_some()),
            ("recursiveReadOnly", mount.recursive_read_only.is_some()),
            ("subPathExpr", mount.sub_path_expr.as_ref().is_some_and(|path| !path.is_empty())),
        ] {
            if set {
                problems.add(format!("{at}.{field}"), MUST_NOT_SET);
            }
        }
        let path = mount.mount_path.as_str();
        if path.is_empty() {
            problems.add(format!("{at}.mountPath"), MISSING);
        } else if !is_clean_path(path) {
            problems.add(format!("{at}.mountPath"), format!("invalid value: {path}: must be absolute and clean"));
        } else if PATHS_RESERVED.contains(&path) {
            problems.add(format!("{at}.mountPath"), format!("mountPath \"{path}\" is a reserved path"));
        } else if !paths.insert(path) {
            problems.add(format!("{at}.mountPath"), format!("\"{path}\" must be unique"));
        }
    }
}

pub(crate) fn is_clean_path(path: &str) -> bool {
    path == "/"
        || (path.starts_with('/') && path[1..].split('/').all(|part| !part.is_empty() && part != "." && part != ".."))
}

/// The volumes that can be written to.
pub(super) fn writable(volumes: &[Volume]) -> HashSet<&str> {
    let is_writable = |volume: &&Volume| {
        let claim = volume.persistent_volume_claim.as_ref();
        volume.empty_dir.is_some() || claim.is_some_and(|claim| claim.read_only != Some(true))
    };
    volumes.iter().filter(is_writable).map(|volume| volume.name.as_str()).collect()
}

/// Mounts are read-only unless their volume can be written to.
pub(super) fn default_mounts(container: &mut Container, writable: &HashSet<&str>) {
    for mount in container.volume_mounts.iter_mut().flatten() {
        if !writable.contains(mount.name.as_str()) {
            mount.read_only = Some(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::pod::tests::found_in;

    /// RT-ISO-05: how mounts spread is the operator's, and what upstream's mounts do not have is not in ours.
    #[test]
    fn fields_of_a_mount_that_revisions_do_not_have_are_refused() {
        for (field, value) in
            [("mountPropagation", "Bidirectional"), ("subPathExpr", "$(POD_NAME)"), ("recursiveReadOnly", "Enabled")]
        {
            let mut spec = json!({
                "containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "emptyDir": {}}]
            });
            spec["containers"][0]["volumeMounts"][0][field] = json!(value);
            let wanted = format!("spec.containers[0].volumeMounts[0].{field}: must not set the field(s)");
            assert_eq!(found_in(spec), [wanted]);
        }
    }

    /// SRV-VOL-10, SRV-VOL-18, SRV-VOL-19, SRV-VOL-21, SRV-VOL-22 .. SRV-VOL-24, SRV-VOL-27
    #[test]
    fn a_volume_says_which_source_which_key_and_which_file() {
        let with = |source: Value| {
            let mut volume = source;
            volume["name"] = json!("v");
            found_in(json!({
                "containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [volume]
            }))
        };
        let item = json!([{"key": "k", "path": "p"}]);
        let token = json!({"serviceAccountToken": {"path": "t"}});
        for good in [
            json!({"configMap": {"name": "c", "items": item}}),
            json!({"secret": {"secretName": "s", "items": item}}),
            json!({"projected": {"sources": [{"configMap": {"name": "c", "items": item}}, token,
                                             {"secret": {"name": "s"}}, {"downwardAPI": {}}]}}),
        ] {
            assert_eq!(with(good.clone()), [""; 0], "{good}");
        }
        let kinds = "configMap, downwardAPI, secret, serviceAccountToken";
        let sources = |sources: Value| json!({"projected": {"sources": sources}});
        let (keyless, pathless) = (json!([{"path": "p"}]), json!([{"key": "k", "path": ""}]));
        for (bad, wrong) in [
            (json!({"configMap": {"items": keyless}}), "configMap.items[0].key: missing field(s)".to_owned()),
            (json!({"secret": {"items": pathless}}), "secret.items[0].path: missing field(s)".to_owned()),
            (
                sources(json!([{"configMap": {"items": pathless}}])),
                "projected.sources[0].configMap.items[0].path: missing field(s)".to_owned(),
            ),
            (
                sources(json!([token, {"secret": {"items": keyless}}])),
                "projected.sources[1].secret.items[0].key: missing field(s)".to_owned(),
            ),
            (
                sources(json!([{"serviceAccountToken": {}}])),
                "projected.sources[0].serviceAccountToken.path: missing field(s)".to_owned(),
            ),
            (sources(json!([{}])), format!("projected.sources[0]: expected exactly one, got neither: {kinds}")),
            (
                sources(json!([{"configMap": {"name": "c"}, "secret": {"name": "s"}}])),
                format!("projected.sources[0]: expected exactly one, got both: {kinds}"),
            ),
        ] {
            assert_eq!(with(bad), [format!("spec.volumes[0].{wrong}")]);
        }
    }

    /// An empty folder is on disk or in memory, of a size that is one.
    #[test]
    fn an_empty_folder_has_a_medium_and_a_size_that_there_are() {
        let with = |empty: Value| {
            found_in(json!({
                "containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "emptyDir": empty}]
            }))
        };
        for good in
            [json!({}), json!({"medium": "", "sizeLimit": "0"}), json!({"medium": "Memory", "sizeLimit": "1.5Gi"})]
        {
            assert_eq!(with(good.clone()), [""; 0], "{good}");
        }
        for (bad, wrong) in [
            (json!({"medium": "HugePages"}), "medium: invalid value: HugePages"),
            (json!({"medium": "Memory", "sizeLimit": "-1"}), "sizeLimit: invalid value: -1"),
        ] {
            assert_eq!(with(bad), [format!("spec.volumes[0].emptyDir.{wrong}")]);
        }
    }

    /// SRV-CON-17, SRV-VOL-02, SRV-VOL-05: mounts and volumes belong together, on decent paths.
    #[test]
    fn mounts_need_a_volume_and_a_clean_absolute_path() {
        let with = |path: &str| {
            found_in(json!({
                "containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "v", "mountPath": path}]}],
                "volumes": [{"name": "v", "configMap": {"name": "c"}}]
            }))
        };
        assert!(with("/etc/app").is_empty());
        for bad in ["/", "/dev", "/dev/log", "etc", "/a/../b", "/a//b", ""] {
            assert_eq!(with(bad).len(), 1, "{bad}");
        }
        let unmounted = found_in(json!({
            "containers": [{"name": "a", "image": "a"}], "volumes": [{"name": "v", "emptyDir": {}}]}));
        assert_eq!(unmounted, ["spec.volumes[0].name: volume with name \"v\" not mounted"]);
    }

    /// RT-FS-12: disks of a cluster are not provided to instances (a claim is a folder of this host), nor are other volume
    /// types without an implementation here.
    #[test]
    fn volumes_of_a_cluster_are_refused() {
        for source in [json!({"hostPath": {"path": "/"}}), json!({"csi": {"driver": "d"}}), json!({"ephemeral": {}})] {
            let mut volume = source.clone();
            volume["name"] = json!("v");
            let found = found_in(json!({
                "containers": [{"name": "a", "image": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [volume]
            }));
            let none =
                "expected exactly one, got neither: configMap, emptyDir, persistentVolumeClaim, projected, secret";
            assert_eq!(found, [format!("spec.volumes[0]: {none}")], "{source}");
        }
    }
}

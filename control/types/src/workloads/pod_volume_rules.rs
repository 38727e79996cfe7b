//! The rules of a Pod's volumes, in Kubernetes' words.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use crate::field_errors::FieldErrors;
use crate::serving::revision_spec::volumes::{PATHS_RESERVED, is_clean_path};
use support::names::{is_dns1123_label, label_error};

/// Where a volume's files may come from here.
const SOURCES: &str = "configMap, emptyDir, persistentVolumeClaim, projected and secret are the volumes of this host";
const KNOWN: [&str; 5] = ["configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"];

pub(super) fn validate<'a>(spec: &'a PodSpec, at: &str, problems: &mut FieldErrors) -> HashSet<&'a str> {
    let mut names = HashSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let at = format!("{at}.volumes[{index}]");
        let name = volume.name.as_str();
        if name.is_empty() {
            problems.add(format!("{at}.name"), "Required value");
        } else if !is_dns1123_label(name) {
            problems.add(format!("{at}.name"), format!("Invalid value: {name:?}: {}", label_error(name)));
        } else if !names.insert(name) {
            problems.add(format!("{at}.name"), format!("Duplicate value: {name:?}"));
        }
        validate_source(volume, &at, problems);
    }
    names
}

fn validate_source(volume: &Volume, at: &str, problems: &mut FieldErrors) {
    // The Go type holds an empty emptyDir where no source is named.
    let mut source = serde_json::to_value(volume).unwrap_or_default();
    let fields = source.as_object_mut().map(std::mem::take).unwrap_or_default();
    let named: Vec<String> = fields.into_iter().map(|(name, _)| name).filter(|name| name != "name").collect();
    match named.as_slice() {
        [] => problems.add(at, "Required value: must specify a volume type"),
        [_] if volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name.is_empty()) => {
            problems.add(format!("{at}.persistentVolumeClaim.claimName"), "Required value");
        }
        [one] if KNOWN.contains(&one.as_str()) => {}
        [one] => problems.add(format!("{at}.{one}"), format!("Forbidden: {SOURCES}")),
        [_, others @ ..] => {
            for other in others {
                problems.add(format!("{at}.{other}"), "Forbidden: may not specify more than 1 volume type");
            }
        }
    }
}

pub(super) fn validate_mounts(container: &Container, names: &HashSet<&str>, at: &str, problems: &mut FieldErrors) {
    let mut paths = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = format!("{at}.volumeMounts[{index}]");
        let (name, path) = (mount.name.as_str(), mount.mount_path.as_str());
        if name.is_empty() {
            problems.add(format!("{at}.name"), "Required value");
        } else if !names.contains(name) {
            problems.add(format!("{at}.name"), format!("Not found: {name:?}"));
        }
        if path.is_empty() {
            problems.add(format!("{at}.mountPath"), "Required value");
        } else if !is_clean_path(path) || PATHS_RESERVED.contains(&path) {
            let why = format!("Invalid value: {path:?}: must be absolute and clean, and no reserved path");
            problems.add(format!("{at}.mountPath"), why);
        } else if !paths.insert(path) {
            problems.add(format!("{at}.mountPath"), format!("Invalid value: {path:?}: must be unique"));
        }
        if mount.sub_path_expr.as_ref().is_some_and(|path| !path.is_empty()) {
            problems.add(format!("{at}.subPathExpr"), "Forbidden: variables in a subPath are not expanded here");
        }
    }
}

//! The folders that a Revision's instances read: values in, values out.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, DownwardAPIVolumeFile, EmptyDirVolumeSource, KeyToPath, ProjectedVolumeSource,
    SecretVolumeSource, ServiceAccountTokenProjection, Volume as VolumeSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{DataSourceKind, RevisionDataSources, missing};
use crate::revision::downward_api;
use crate::revision::error::RevisionError;
use crate::revision::projected_tokens::ProjectedTokenRequest;
use runtime::volumes::{InstanceVolume, VolumeContent, VolumeFile, VolumeMedium, is_contained_path};
use types::quantity;
use types::serving::revision_spec::volumes::MEMORY;
use types::shared::namespace;

/// Permissions of a file without a setting (Kubernetes' default).
const MODE_DEFAULT: i32 = 0o644;

impl RevisionDataSources {
    /// The folders that the Revision's instances read.
    pub fn volumes(&self, specs: &[VolumeSpec], meta: &ObjectMeta) -> Result<Vec<InstanceVolume>, RevisionError> {
        specs
            .iter()
            .map(|spec| Ok(InstanceVolume { name: spec.name.clone(), content: self.content(spec, meta)? }))
            .collect()
    }

    fn content(&self, spec: &VolumeSpec, meta: &ObjectMeta) -> Result<VolumeContent, RevisionError> {
        let files = if let Some(volume) = &spec.config_map {
            self.config_map(volume, meta)?
        } else if let Some(volume) = &spec.secret {
            self.secret(volume, meta)?
        } else if let Some(volume) = &spec.projected {
            self.projected(volume, meta)?
        } else if let Some(volume) = &spec.persistent_volume_claim {
            let name = volume.claim_name.as_str();
            let folder = self.claims.get(name).cloned();
            let why = || missing(format!("persistentvolumeclaim \"{name}\" not found, or not bound"));
            return folder.map(VolumeContent::Claim).ok_or_else(why);
        } else {
            return Ok(VolumeContent::Empty(medium(spec.empty_dir.as_ref())));
        };
        Ok(VolumeContent::Files(files))
    }

    fn config_map(&self, volume: &ConfigMapVolumeSource, meta: &ObjectMeta) -> Result<Vec<VolumeFile>, RevisionError> {
        let source = (DataSourceKind::ConfigMap, volume.name.as_str());
        self.files(source, volume.items.as_deref(), volume.default_mode, volume.optional, meta)
    }

    fn secret(&self, volume: &SecretVolumeSource, meta: &ObjectMeta) -> Result<Vec<VolumeFile>, RevisionError> {
        let source = (DataSourceKind::Secret, volume.secret_name.as_deref().unwrap_or_default());
        self.files(source, volume.items.as_deref(), volume.default_mode, volume.optional, meta)
    }

    fn projected(&self, volume: &ProjectedVolumeSource, meta: &ObjectMeta) -> Result<Vec<VolumeFile>, RevisionError> {
        let (mut all, mode) = (Vec::new(), volume.default_mode);
        for part in volume.sources.iter().flatten() {
            if let Some(map) = &part.config_map {
                let source = (DataSourceKind::ConfigMap, map.name.as_str());
                all.extend(self.files(source, map.items.as_deref(), mode, map.optional, meta)?);
            } else if let Some(secret) = &part.secret {
                let source = (DataSourceKind::Secret, secret.name.as_str());
                all.extend(self.files(source, secret.items.as_deref(), mode, secret.optional, meta)?);
            } else if let Some(own) = &part.downward_api {
                for item in own.items.iter().flatten() {
                    all.push(downward_api_file(item, mode, meta)?);
                }
            } else if let Some(asked) = &part.service_account_token {
                all.push(file(&asked.path, self.token(asked)?.as_bytes(), mode)?);
            } else {
                return Err(RevisionError {
                    reason: "NotSupported",
                    message: "The process runtime does not support trust bundles in projected volumes.".into(),
                });
            }
        }
        Ok(all)
    }

    fn token(&self, asked: &ServiceAccountTokenProjection) -> Result<&str, RevisionError> {
        match self.tokens.get(&ProjectedTokenRequest::from_projection(&self.account, asked)) {
            Some(Ok(token)) => Ok(token),
            Some(Err(why)) => Err(missing(format!("no token of account \"{}\": {why}", self.account))),
            None => Err(missing(format!("no token of account \"{}\"", self.account))),
        }
    }

    fn files(
        &self,
        (kind, name): (DataSourceKind, &str),
        items: Option<&[KeyToPath]>,
        mode: Option<i32>,
        optional: Option<bool>,
        meta: &ObjectMeta,
    ) -> Result<Vec<VolumeFile>, RevisionError> {
        let Some(data) = self.get(kind, name, optional)? else { return Ok(Vec::new()) };
        let binary = self.binary.get(name).filter(|_| kind == DataSourceKind::ConfigMap);
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            let all = data.iter().chain(binary.into_iter().flatten());
            return all.map(|(key, bytes)| file(key, bytes, mode)).collect();
        };
        let mut files = Vec::with_capacity(items.len());
        for item in items {
            let bytes = match binary.and_then(|binary| binary.get(&item.key)) {
                None => self.key(kind, name, &item.key, optional, meta)?,
                found => found,
            };
            if let Some(bytes) = bytes {
                files.push(file(&item.path, bytes, item.mode.or(mode))?);
            }
        }
        Ok(files)
    }
}

fn medium(volume: Option<&EmptyDirVolumeSource>) -> VolumeMedium {
    let Some(volume) = volume.filter(|volume| volume.medium.as_deref() == Some(MEMORY)) else {
        return VolumeMedium::Disk;
    };
    let limit = volume.size_limit.as_ref().and_then(|limit| quantity::memory(&limit.0));
    VolumeMedium::Memory { bytes_max: limit.filter(|bytes| *bytes > 0) } // none is no limit, as the kubelet has it
}

fn file(path: &str, bytes: &[u8], mode: Option<i32>) -> Result<VolumeFile, RevisionError> {
    if !is_contained_path(path) {
        return Err(missing(format!("the path \"{path}\" leads out of its volume")));
    }
    let mode = u32::try_from(mode.unwrap_or(MODE_DEFAULT)).unwrap_or_default();
    Ok(VolumeFile { path: path.to_owned(), bytes: bytes.to_vec(), mode })
}

/// A file with something of the Revision's own metadata.
fn downward_api_file(
    item: &DownwardAPIVolumeFile,
    mode: Option<i32>,
    meta: &ObjectMeta,
) -> Result<VolumeFile, RevisionError> {
    let path = item.field_ref.as_ref().map(|field| field.field_path.as_str()).unwrap_or_default();
    let lines = |map: &Option<BTreeMap<String, String>>| {
        map.iter().flatten().map(|(key, value)| format!("{key}={value:?}\n")).collect::<String>()
    };
    let text = match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => namespace(meta).to_owned(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        _ => downward_api::label_or_annotation(path, meta).ok_or_else(|| RevisionError {
            reason: "NotSupported",
            message: format!("The process runtime has no field \"{path}\" for a projected volume."),
        })?,
    };
    file(&item.path, text.as_bytes(), item.mode.or(mode))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::MISSING;
    use super::super::tests::{meta, sources};
    use super::*;

    fn files(volume: Value) -> Result<Vec<(String, String, u32)>, RevisionError> {
        let volume: VolumeSpec = serde_json::from_value(volume).unwrap();
        let VolumeContent::Files(files) = sources().content(&volume, &meta())? else { return Ok(Vec::new()) };
        Ok(files.into_iter().map(|f| (f.path, String::from_utf8(f.bytes).unwrap(), f.mode)).collect())
    }

    /// SRV-VOL-06, SRV-VOL-07, SRV-VOL-09, SRV-VOL-10, SRV-VOL-11, SRV-VOL-12, SRV-VOL-13, SRV-VOL-14, SRV-VOL-15,
    /// SRV-VOL-16, SRV-VOL-19, SRV-VOL-20, SRV-VOL-21: objects, keys, paths, modes, and what may be absent.
    #[test]
    fn volumes_hold_all_keys_or_the_named_ones_with_their_modes() {
        let all = files(json!({"name": "v", "configMap": {"name": "settings"}})).unwrap();
        let wanted = [("colour", "red"), ("size", "9"), ("zip", "\0\u{1}")];
        assert_eq!(all, wanted.map(|(path, text)| (path.into(), text.into(), 0o644)));
        let binary =
            files(json!({"name": "v", "configMap": {"name": "settings", "items": [{"key": "zip", "path": "z"}]}}));
        assert_eq!(binary.unwrap(), [("z".into(), "\0\u{1}".into(), 0o644)]);

        let some = files(json!({"name": "v", "secret": {"secretName": "keys", "defaultMode": 0o400,
            "items": [{"key": "token", "path": "a/b", "mode": 0o600}]}}));
        assert_eq!(some.unwrap(), [("a/b".into(), "t0p".into(), 0o600)]);
        let absent = files(json!({"name": "v", "configMap": {"name": "no", "optional": true}}));
        assert_eq!(absent.unwrap(), []);
        let absent = files(json!({"name": "v", "secret": {"secretName": "no", "optional": true}}));
        assert_eq!(absent.unwrap(), []);
        let moded = files(json!({"name": "v", "configMap": {"name": "settings", "defaultMode": 0o440,
            "items": [{"key": "size", "path": "s"}]}}));
        assert_eq!(moded.unwrap(), [("s".into(), "9".into(), 0o440)]);
        let missing = files(json!({"name": "v", "secret": {"secretName": "no"}}));
        assert_eq!(missing.unwrap_err().message, "secret \"no\" not found");
        let out = files(json!({"name": "v", "configMap": {"name": "settings",
            "items": [{"key": "size", "path": "../../etc/passwd"}]}}));
        assert!(out.unwrap_err().message.contains("leads out of its volume"));
    }

    /// SRV-VOL-08, SRV-VOL-17, SRV-VOL-18, SRV-VOL-22, SRV-VOL-23, SRV-VOL-24, SRV-VOL-25, SRV-VOL-26, SRV-VOL-27,
    /// SRV-VOL-28, SRV-VOL-29: several objects in one folder.
    #[test]
    fn a_projected_volume_gathers_several_sources() {
        let gathered = files(json!({"name": "v", "projected": {"defaultMode": 0o440, "sources": [
            {"configMap": {"name": "settings", "items": [{"key": "colour", "path": "c"}]}},
            {"secret": {"name": "keys", "items": [{"key": "token", "path": "token"}]}},
            {"configMap": {"name": "no", "optional": true}},
            {"secret": {"name": "no", "optional": true}},
            {"downwardAPI": {"items": [{"path": "who", "fieldRef": {"fieldPath": "metadata.name"}},
                {"path": "team", "fieldRef": {"fieldPath": "metadata.labels['team']"}}]}}
        ]}}));
        let files_wanted = [("c", "red"), ("token", "t0p"), ("who", "a-1"), ("team", "blue")];
        assert_eq!(gathered.unwrap(), files_wanted.map(|(p, t)| (p.to_owned(), t.to_owned(), 0o440)));
        let token = |audience: &str| {
            let asked = json!({"path": "t", "audience": audience});
            files(json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": asked}]}}))
        };
        assert_eq!(token("shop").unwrap(), [("t".into(), "j.w.t".into(), 0o644)]);
        let refused = token("bank").unwrap_err();
        assert_eq!((refused.reason, refused.message.contains("not found")), (MISSING, true));
    }
}

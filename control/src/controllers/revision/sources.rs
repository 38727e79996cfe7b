//! What a Revision takes from ConfigMaps, Secrets and its account: variables and files.
//!
//! Values in, values out, but for [`load`], which reads the objects and leaves word that the Revision is
//! to be looked at again when one of them changes or appears.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVarSource,
    KeyToPath, ProjectedVolumeSource, Secret, SecretVolumeSource, ServiceAccountTokenProjection,
    Volume as VolumeSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::fields;
use super::plan::Unrunnable;
use super::tokens::{self, Wanted};
use crate::controllers::queue::Item;
use crate::controllers::world::{Error, World};
use crate::kinds::quantity;
use crate::kinds::serving::template::RevisionSpec;
use crate::kinds::serving::volumes::MEMORY;
use crate::kinds::shared::{KReference, namespace};
use crate::runtime::environment::expand;
use crate::runtime::volumes::{Content, File, Medium, Volume, is_inside};

/// Permissions of a file that says nothing (Kubernetes' default).
const MODE_DEFAULT: i32 = 0o644;
/// The reason that a kubelet gives for the same.
pub const MISSING: &str = "CreateContainerConfigError";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ConfigMap,
    Secret,
}

type Data = BTreeMap<String, Vec<u8>>;

/// The objects that exist of those that a Revision names.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    found: BTreeMap<(Kind, String), Data>,
    /// `binaryData` by ConfigMap: files are made of it, and variables are not, as in a kubelet.
    binary: BTreeMap<String, Data>,
    /// As whom instances act.
    account: String,
    /// Of that account, or why there is none.
    tokens: BTreeMap<Wanted, Result<String, String>>,
}

/// Reads everything that `spec` names.
pub async fn load(world: &World, item: &Item, spec: &RevisionSpec) -> Result<Sources, Error> {
    world.resolver.forget(item);
    let mut sources = Sources { account: tokens::account(spec).to_owned(), ..Sources::default() };
    sources.tokens = tokens::load(world, item, spec).await;
    for (kind, name) in named(spec) {
        let reference = KReference {
            kind: if kind == Kind::ConfigMap { "ConfigMap" } else { "Secret" }.to_owned(),
            api_version: "v1".to_owned(),
            name: name.clone(),
            ..KReference::default()
        };
        if let Ok(object) = world.resolver.read(item, &reference).await? {
            sources.take(kind, name, object);
        }
    }
    Ok(sources)
}

/// All objects that `spec` names, each once.
fn named(spec: &RevisionSpec) -> BTreeSet<(Kind, String)> {
    let mut all = BTreeSet::new();
    for container in &spec.containers {
        for from in container.env_from.iter().flatten() {
            all.extend(from.config_map_ref.as_ref().map(|r| (Kind::ConfigMap, r.name.clone())));
            all.extend(from.secret_ref.as_ref().map(|r| (Kind::Secret, r.name.clone())));
        }
        for from in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
            all.extend(from.config_map_key_ref.as_ref().map(|r| (Kind::ConfigMap, r.name.clone())));
            all.extend(from.secret_key_ref.as_ref().map(|r| (Kind::Secret, r.name.clone())));
        }
    }
    for volume in &spec.volumes {
        all.extend(volume.config_map.as_ref().map(|v| (Kind::ConfigMap, v.name.clone())));
        all.extend(volume.secret.iter().filter_map(|v| v.secret_name.clone()).map(|n| (Kind::Secret, n)));
        for part in volume.projected.iter().filter_map(|v| v.sources.as_ref()).flatten() {
            all.extend(part.config_map.as_ref().map(|v| (Kind::ConfigMap, v.name.clone())));
            all.extend(part.secret.as_ref().map(|v| (Kind::Secret, v.name.clone())));
        }
    }
    all.retain(|(_, name)| !name.is_empty());
    all
}

impl Sources {
    fn take(&mut self, kind: Kind, name: String, object: serde_json::Value) {
        let data = match kind {
            Kind::ConfigMap => {
                let map: ConfigMap = serde_json::from_value(object).unwrap_or_default();
                let binary = map.binary_data.into_iter().flatten();
                self.binary.insert(name.clone(), binary.map(|(key, bytes)| (key, bytes.0)).collect());
                map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes())).collect()
            }
            Kind::Secret => {
                let secret: Secret = serde_json::from_value(object).unwrap_or_default();
                secret.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect()
            }
        };
        self.found.insert((kind, name), data);
    }

    /// SRV-CON-05: `envFrom` first, `env` over it; each may use what stands before it as `$(NAME)`.
    pub fn environment(
        &self,
        container: &Container,
        meta: &ObjectMeta,
    ) -> Result<Vec<(String, String)>, Unrunnable> {
        let mut done: Vec<(String, String)> = Vec::new();
        for from in container.env_from.iter().flatten() {
            let (config_map, secret) = (from.config_map_ref.as_ref(), from.secret_ref.as_ref());
            let data = match (config_map, secret) {
                (Some(r), _) => self.get(Kind::ConfigMap, &r.name, r.optional)?,
                (None, Some(r)) => self.get(Kind::Secret, &r.name, r.optional)?,
                (None, None) => None,
            };
            let prefix = from.prefix.as_deref().unwrap_or_default();
            for (key, value) in data.into_iter().flatten() {
                done.push((format!("{prefix}{key}"), text(value)));
            }
        }
        for env in container.env.iter().flatten() {
            let value = match &env.value_from {
                Some(from) => self.value(from, container, meta)?,
                None => Some(expand(env.value.as_deref().unwrap_or_default(), &done)),
            };
            done.extend(value.map(|value| (env.name.clone(), value)));
        }
        Ok(done)
    }

    /// `None`: there is none, and there need not be.
    fn value(
        &self,
        from: &EnvVarSource,
        container: &Container,
        meta: &ObjectMeta,
    ) -> Result<Option<String>, Unrunnable> {
        if let Some(r) = &from.config_map_key_ref {
            return Ok(self
                .key(Kind::ConfigMap, &r.name, &r.key, r.optional, meta)?
                .map(|bytes| text(bytes)));
        }
        if let Some(r) = &from.secret_key_ref {
            return Ok(self.key(Kind::Secret, &r.name, &r.key, r.optional, meta)?.map(|bytes| text(bytes)));
        }
        if let Some(own) = &from.field_ref {
            return fields::field(own, meta).map(Some);
        }
        from.resource_field_ref.as_ref().map(|own| fields::resource(own, container)).transpose()
    }

    /// The folders that the Revision's instances read.
    pub fn volumes(&self, specs: &[VolumeSpec], meta: &ObjectMeta) -> Result<Vec<Volume>, Unrunnable> {
        specs
            .iter()
            .map(|spec| Ok(Volume { name: spec.name.clone(), content: self.content(spec, meta)? }))
            .collect()
    }

    fn content(&self, spec: &VolumeSpec, meta: &ObjectMeta) -> Result<Content, Unrunnable> {
        let files = if let Some(volume) = &spec.config_map {
            self.config_map(volume, meta)?
        } else if let Some(volume) = &spec.secret {
            self.secret(volume, meta)?
        } else if let Some(volume) = &spec.projected {
            self.projected(volume, meta)?
        } else {
            return Ok(Content::Empty(medium(spec.empty_dir.as_ref())));
        };
        Ok(Content::Files(files))
    }

    fn config_map(&self, volume: &ConfigMapVolumeSource, meta: &ObjectMeta) -> Result<Vec<File>, Unrunnable> {
        let source = (Kind::ConfigMap, volume.name.as_str());
        self.files(source, volume.items.as_deref(), volume.default_mode, volume.optional, meta)
    }

    fn secret(&self, volume: &SecretVolumeSource, meta: &ObjectMeta) -> Result<Vec<File>, Unrunnable> {
        let source = (Kind::Secret, volume.secret_name.as_deref().unwrap_or_default());
        self.files(source, volume.items.as_deref(), volume.default_mode, volume.optional, meta)
    }

    fn projected(&self, volume: &ProjectedVolumeSource, meta: &ObjectMeta) -> Result<Vec<File>, Unrunnable> {
        let (mut all, mode) = (Vec::new(), volume.default_mode);
        for part in volume.sources.iter().flatten() {
            if let Some(map) = &part.config_map {
                let source = (Kind::ConfigMap, map.name.as_str());
                all.extend(self.files(source, map.items.as_deref(), mode, map.optional, meta)?);
            } else if let Some(secret) = &part.secret {
                let source = (Kind::Secret, secret.name.as_str());
                all.extend(self.files(source, secret.items.as_deref(), mode, secret.optional, meta)?);
            } else if let Some(own) = &part.downward_api {
                for item in own.items.iter().flatten() {
                    all.push(own_field(item, mode, meta)?);
                }
            } else if let Some(asked) = &part.service_account_token {
                all.push(file(&asked.path, self.token(asked)?.as_bytes(), mode)?);
            } else {
                return Err(Unrunnable {
                    reason: "NotSupported",
                    message: "The process runtime has no bundles of trust for projected volumes.".into(),
                });
            }
        }
        Ok(all)
    }

    fn token(&self, asked: &ServiceAccountTokenProjection) -> Result<&str, Unrunnable> {
        match self.tokens.get(&Wanted::of(&self.account, asked)) {
            Some(Ok(token)) => Ok(token),
            Some(Err(why)) => Err(missing(format!("no token of account \"{}\": {why}", self.account))),
            None => Err(missing(format!("no token of account \"{}\"", self.account))),
        }
    }

    fn files(
        &self,
        (kind, name): (Kind, &str),
        items: Option<&[KeyToPath]>,
        mode: Option<i32>,
        optional: Option<bool>,
        meta: &ObjectMeta,
    ) -> Result<Vec<File>, Unrunnable> {
        let Some(data) = self.get(kind, name, optional)? else { return Ok(Vec::new()) };
        let binary = self.binary.get(name).filter(|_| kind == Kind::ConfigMap);
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

    fn get(&self, kind: Kind, name: &str, optional: Option<bool>) -> Result<Option<&Data>, Unrunnable> {
        match self.found.get(&(kind, name.to_owned())) {
            None if optional != Some(true) => {
                let kind = if kind == Kind::ConfigMap { "configmap" } else { "secret" };
                Err(missing(format!("{kind} \"{name}\" not found")))
            }
            found => Ok(found),
        }
    }

    fn key(
        &self,
        kind: Kind,
        name: &str,
        key: &str,
        optional: Option<bool>,
        meta: &ObjectMeta,
    ) -> Result<Option<&Vec<u8>>, Unrunnable> {
        match self.get(kind, name, optional)?.and_then(|data| data.get(key)) {
            None if optional != Some(true) => {
                Err(missing(format!("couldn't find key {key} in {kind:?} {}/{name}", namespace(meta))))
            }
            found => Ok(found),
        }
    }
}

fn medium(volume: Option<&EmptyDirVolumeSource>) -> Medium {
    let Some(volume) = volume.filter(|volume| volume.medium.as_deref() == Some(MEMORY)) else {
        return Medium::Disk;
    };
    let limit = volume.size_limit.as_ref().and_then(|limit| quantity::memory(&limit.0));
    Medium::Memory { bytes_max: limit.filter(|bytes| *bytes > 0) } // none is no limit, as the kubelet has it
}

fn missing(message: String) -> Unrunnable {
    Unrunnable { reason: MISSING, message }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn file(path: &str, bytes: &[u8], mode: Option<i32>) -> Result<File, Unrunnable> {
    if !is_inside(path) {
        return Err(missing(format!("the path \"{path}\" leads out of its volume")));
    }
    let mode = u32::try_from(mode.unwrap_or(MODE_DEFAULT)).unwrap_or_default();
    Ok(File { path: path.to_owned(), bytes: bytes.to_vec(), mode })
}

/// A file with something of the Revision's own metadata.
fn own_field(item: &DownwardAPIVolumeFile, mode: Option<i32>, meta: &ObjectMeta) -> Result<File, Unrunnable> {
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
        _ => {
            return Err(Unrunnable {
                reason: "NotSupported",
                message: format!("The process runtime has no field \"{path}\" for a projected volume."),
            });
        }
    };
    file(&item.path, text.as_bytes(), item.mode.or(mode))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(audience: &str) -> Wanted {
        Wanted { account: "teller".into(), audience: audience.into(), seconds: 3_600 }
    }

    fn sources() -> Sources {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect::<Data>()
        };
        Sources {
            found: BTreeMap::from([
                ((Kind::ConfigMap, "settings".into()), data(&[("colour", "red"), ("size", "9")])),
                ((Kind::Secret, "keys".into()), data(&[("token", "t0p")])),
            ]),
            binary: BTreeMap::from([("settings".into(), data(&[("zip", "\0\u{1}")]))]),
            account: "teller".into(),
            tokens: BTreeMap::from([
                (wanted("shop"), Ok("j.w.t".into())),
                (wanted("bank"), Err("serviceaccounts \"teller\" not found".into())),
            ]),
        }
    }

    fn meta() -> ObjectMeta {
        ObjectMeta { namespace: Some("ns".into()), name: Some("a-1".into()), ..ObjectMeta::default() }
    }

    fn environment(container: Value) -> Result<Vec<(String, String)>, Unrunnable> {
        sources().environment(&serde_json::from_value(container).unwrap(), &meta())
    }

    fn files(volume: Value) -> Result<Vec<(String, String, u32)>, Unrunnable> {
        let volume: VolumeSpec = serde_json::from_value(volume).unwrap();
        let Content::Files(files) = sources().content(&volume, &meta())? else { return Ok(Vec::new()) };
        Ok(files.into_iter().map(|f| (f.path, String::from_utf8(f.bytes).unwrap(), f.mode)).collect())
    }

    /// SRV-CON-05, SRV-CON-06, SRV-CON-21, SRV-CON-22, SRV-CON-23, SRV-CON-24, SRV-CON-25, SRV-CON-26, SRV-CON-27,
    /// SRV-CON-28, SRV-CON-37, SRV-CON-38, SRV-CON-39, SRV-CON-51, SRV-CON-52, SRV-CON-53, SRV-CON-54: one variable, all of an object, and
    /// references to what stands before.
    #[test]
    fn variables_come_from_objects_and_may_be_used_by_later_ones() {
        let found = environment(json!({"name": "x",
            "envFrom": [{"prefix": "S_", "configMapRef": {"name": "settings"}},
                        {"secretRef": {"name": "keys"}},
                        {"configMapRef": {"name": "absent", "optional": true}},
                        {"secretRef": {"name": "absent", "optional": true}}],
            "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
                    {"name": "BOTH", "value": "$(S_colour)-$(TOKEN)-$$(TOKEN)"},
                    {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "size"}}},
                    {"name": "NONE", "valueFrom": {"configMapKeyRef":
                        {"name": "settings", "key": "absent", "optional": true}}},
                    {"name": "NEITHER", "valueFrom": {"secretKeyRef":
                        {"name": "absent", "key": "absent", "optional": true}}}]
        }));
        let pairs = [
            ("S_colour", "red"),
            ("S_size", "9"),
            ("token", "t0p"),
            ("TOKEN", "t0p"),
            ("BOTH", "red-t0p-$(TOKEN)"),
            ("ONE", "9"),
        ];
        assert_eq!(found.unwrap(), pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    /// SRV-CON-06, SRV-CON-22: a variable cannot hold every byte, so what is binary is none.
    #[test]
    fn no_variable_is_made_of_binary_data() {
        let all =
            environment(json!({"name": "x", "envFrom": [{"configMapRef": {"name": "settings"}}]})).unwrap();
        assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["colour", "size"]);
        let from = json!({"configMapKeyRef": {"name": "settings", "key": "zip"}});
        let refused =
            environment(json!({"name": "x", "env": [{"name": "Z", "valueFrom": from}]})).unwrap_err();
        assert_eq!(refused.message, "couldn't find key zip in ConfigMap ns/settings");
    }

    /// SRV-CON-26, SRV-CON-29: what must be there and is not keeps the Revision from starting.
    #[test]
    fn what_is_missing_is_named_as_a_kubelet_names_it() {
        for (container, message) in [
            (json!({"envFrom": [{"configMapRef": {"name": "no"}}]}), "configmap \"no\" not found"),
            (
                json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}]}),
                "secret \"no\" not found",
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "k"}}}]}),
                "couldn't find key k in ConfigMap ns/settings",
            ),
        ] {
            let mut container = container;
            container["name"] = json!("x");
            let refused = environment(container).unwrap_err();
            assert_eq!((refused.reason, refused.message.as_str()), ("CreateContainerConfigError", message));
        }
        assert_eq!(
            files(json!({"name": "v", "secret": {"secretName": "no"}})).unwrap_err().message,
            "secret \"no\" not found"
        );
    }

    /// SRV-VOL-06, SRV-VOL-07, SRV-VOL-09, SRV-VOL-10, SRV-VOL-11, SRV-VOL-12, SRV-VOL-13, SRV-VOL-14, SRV-VOL-15,
    /// SRV-VOL-16, SRV-VOL-19, SRV-VOL-20, SRV-VOL-21: objects, keys, paths, modes, and what may be absent.
    #[test]
    fn volumes_hold_all_keys_or_the_named_ones_with_their_modes() {
        let all = files(json!({"name": "v", "configMap": {"name": "settings"}})).unwrap();
        let wanted = [("colour", "red"), ("size", "9"), ("zip", "\0\u{1}")];
        assert_eq!(all, wanted.map(|(path, text)| (path.into(), text.into(), 0o644)));
        let binary = files(
            json!({"name": "v", "configMap": {"name": "settings", "items": [{"key": "zip", "path": "z"}]}}),
        );
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
            {"downwardAPI": {"items": [{"path": "who", "fieldRef": {"fieldPath": "metadata.name"}}]}}
        ]}}));
        let files_wanted = [("c", "red"), ("token", "t0p"), ("who", "a-1")];
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

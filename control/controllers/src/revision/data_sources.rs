//! The data that a Revision takes from ConfigMaps, Secrets and its account: variables, and files (`files`).
//!
//! Values in, values out, except [`load`], which reads the objects and tracks them, so that the Revision is
//! reconciled when one of them changes or appears.

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, PersistentVolumeClaim, Secret, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::downward_api;
use super::error::RevisionError;
use super::projected_tokens::{self, ProjectedTokenCache, ProjectedTokenRequest};
use crate::api::Error;
use crate::claim_folders;
use crate::context::ControllerContext;
use crate::names::{ACCOUNT_DEFAULT, service_account};
use crate::work_queue::WorkItem;
use runtime::deployment_name;
use runtime::environment::expand_variables;
use types::serving::revision_spec::RevisionSpec;
use types::shared::{KReference, name, namespace};

/// The reason that a kubelet gives when something is not there.
pub const MISSING: &str = "CreateContainerConfigError";
/// ... and a Deployment whose Pods are refused.
const FAILED_CREATE: &str = "FailedCreate";

/// Something that is not there, and may come: what runs continues without it.
#[must_use]
pub fn is_retryable(why: &RevisionError) -> bool {
    [MISSING, FAILED_CREATE].contains(&why.reason)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataSourceKind {
    ConfigMap,
    Secret,
}

type DataSourceData = BTreeMap<String, Vec<u8>>;

/// The objects that exist of those that a Revision names.
#[derive(Debug, Clone, Default)]
pub struct RevisionDataSources {
    objects: BTreeMap<(DataSourceKind, String), DataSourceData>,
    /// `binaryData` by ConfigMap: files are made of it, and variables are not, as in a kubelet.
    binary: BTreeMap<String, DataSourceData>,
    /// The folders of claims that are bound.
    claims: BTreeMap<String, PathBuf>,
    /// The account of the instances.
    account: String,
    /// ... if there is such an account.
    account_missing: bool,
    /// The credentials of that account, or the reason why they are missing.
    tokens: BTreeMap<ProjectedTokenRequest, Result<String, String>>,
}

/// Reads everything that `spec` names.
pub async fn load(
    context: &ControllerContext,
    tokens: &ProjectedTokenCache,
    item: &WorkItem,
    spec: &RevisionSpec,
) -> Result<RevisionDataSources, Error> {
    context.resolver.forget(item);
    let account = service_account(spec);
    let mut sources = RevisionDataSources { account: account.to_owned(), ..RevisionDataSources::default() };
    // Every namespace has the usual one, or will in a moment.
    if account != ACCOUNT_DEFAULT {
        sources.account_missing = context.resolver.read(item, &core("ServiceAccount", account)).await?.is_err();
    }
    sources.tokens = projected_tokens::load(context, tokens, item, spec).await;
    for (kind, name) in referenced_objects(spec) {
        let reference = core(if kind == DataSourceKind::ConfigMap { "ConfigMap" } else { "Secret" }, &name);
        if let Ok(object) = context.resolver.read(item, &reference).await? {
            sources.insert(kind, name, object);
        }
    }
    for name in spec.volumes.iter().filter_map(claim_name) {
        if let Ok(object) = context.resolver.read(item, &core("PersistentVolumeClaim", name)).await? {
            let claim: PersistentVolumeClaim = serde_json::from_value(object).unwrap_or_default();
            sources.claims.extend(claim_folders::of(context, &claim).map(|folder| (name.to_owned(), folder)));
        }
    }
    Ok(sources)
}

fn claim_name(volume: &Volume) -> Option<&str> {
    volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str())
}

fn core(kind: &str, name: &str) -> KReference {
    KReference { kind: kind.to_owned(), api_version: "v1".to_owned(), name: name.to_owned(), ..KReference::default() }
}

/// All objects that `spec` names, each once.
fn referenced_objects(spec: &RevisionSpec) -> BTreeSet<(DataSourceKind, String)> {
    let mut all = BTreeSet::new();
    for container in spec.containers.iter().chain(&spec.init_containers) {
        for from in container.env_from.iter().flatten() {
            all.extend(from.config_map_ref.as_ref().map(|r| (DataSourceKind::ConfigMap, r.name.clone())));
            all.extend(from.secret_ref.as_ref().map(|r| (DataSourceKind::Secret, r.name.clone())));
        }
        for from in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
            all.extend(from.config_map_key_ref.as_ref().map(|r| (DataSourceKind::ConfigMap, r.name.clone())));
            all.extend(from.secret_key_ref.as_ref().map(|r| (DataSourceKind::Secret, r.name.clone())));
        }
    }
    for volume in &spec.volumes {
        all.extend(volume.config_map.as_ref().map(|v| (DataSourceKind::ConfigMap, v.name.clone())));
        all.extend(volume.secret.iter().filter_map(|v| v.secret_name.clone()).map(|n| (DataSourceKind::Secret, n)));
        for part in volume.projected.iter().filter_map(|v| v.sources.as_ref()).flatten() {
            all.extend(part.config_map.as_ref().map(|v| (DataSourceKind::ConfigMap, v.name.clone())));
            all.extend(part.secret.as_ref().map(|v| (DataSourceKind::Secret, v.name.clone())));
        }
    }
    all.retain(|(_, name)| !name.is_empty());
    all
}

impl RevisionDataSources {
    fn insert(&mut self, kind: DataSourceKind, name: String, object: serde_json::Value) {
        let data = match kind {
            DataSourceKind::ConfigMap => {
                let map: ConfigMap = serde_json::from_value(object).unwrap_or_default();
                let binary = map.binary_data.into_iter().flatten();
                self.binary.insert(name.clone(), binary.map(|(key, bytes)| (key, bytes.0)).collect());
                map.data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes())).collect()
            }
            DataSourceKind::Secret => {
                let secret: Secret = serde_json::from_value(object).unwrap_or_default();
                secret.data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0)).collect()
            }
        };
        self.objects.insert((kind, name), data);
    }

    /// SRV-REV-13: a Revision with a missing account does not run; the message is that of a cluster's admission.
    pub fn check_account(&self, meta: &ObjectMeta) -> Result<(), RevisionError> {
        if !self.account_missing {
            return Ok(());
        }
        let Self { account, .. } = self;
        let (pods, ns) = (deployment_name(name(meta)), namespace(meta));
        let why = format!("error looking up service account {ns}/{account}: serviceaccount \"{account}\" not found");
        Err(RevisionError { reason: FAILED_CREATE, message: format!("pods \"{pods}-\" is forbidden: {why}") })
    }

    /// SRV-CON-05: `first`, then `envFrom`, `env` over it; each may use what stands before it as `$(NAME)`.
    pub fn environment(
        &self,
        container: &Container,
        meta: &ObjectMeta,
        first: Option<(String, String)>,
    ) -> Result<Vec<(String, String)>, RevisionError> {
        let mut done: Vec<(String, String)> = first.into_iter().collect();
        for from in container.env_from.iter().flatten() {
            let (config_map, secret) = (from.config_map_ref.as_ref(), from.secret_ref.as_ref());
            let data = match (config_map, secret) {
                (Some(r), _) => self.get(DataSourceKind::ConfigMap, &r.name, r.optional)?,
                (None, Some(r)) => self.get(DataSourceKind::Secret, &r.name, r.optional)?,
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
                None => Some(expand_variables(env.value.as_deref().unwrap_or_default(), &done)),
            };
            done.extend(value.map(|value| (env.name.clone(), value)));
        }
        Ok(done)
    }

    /// `None`: missing, and optional.
    fn value(
        &self,
        from: &EnvVarSource,
        container: &Container,
        meta: &ObjectMeta,
    ) -> Result<Option<String>, RevisionError> {
        if let Some(r) = &from.config_map_key_ref {
            return Ok(self
                .key(DataSourceKind::ConfigMap, &r.name, &r.key, r.optional, meta)?
                .map(|bytes| text(bytes)));
        }
        if let Some(r) = &from.secret_key_ref {
            return Ok(self.key(DataSourceKind::Secret, &r.name, &r.key, r.optional, meta)?.map(|bytes| text(bytes)));
        }
        if let Some(own) = &from.field_ref {
            return downward_api::field_ref(own, meta, &self.account).map(Some);
        }
        from.resource_field_ref.as_ref().map(|own| downward_api::resource_field_ref(own, container)).transpose()
    }

    fn get(
        &self,
        kind: DataSourceKind,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&DataSourceData>, RevisionError> {
        match self.objects.get(&(kind, name.to_owned())) {
            None if optional != Some(true) => {
                let kind = if kind == DataSourceKind::ConfigMap { "configmap" } else { "secret" };
                Err(missing(format!("{kind} \"{name}\" not found")))
            }
            found => Ok(found),
        }
    }

    fn key(
        &self,
        kind: DataSourceKind,
        name: &str,
        key: &str,
        optional: Option<bool>,
        meta: &ObjectMeta,
    ) -> Result<Option<&Vec<u8>>, RevisionError> {
        match self.get(kind, name, optional)?.and_then(|data| data.get(key)) {
            None if optional != Some(true) => {
                Err(missing(format!("couldn't find key {key} in {kind:?} {}/{name}", namespace(meta))))
            }
            found => Ok(found),
        }
    }
}

fn missing(message: String) -> RevisionError {
    RevisionError { reason: MISSING, message }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wanted(audience: &str) -> ProjectedTokenRequest {
        ProjectedTokenRequest { account: "teller".into(), audience: audience.into(), seconds: 3_600 }
    }

    pub(super) fn sources() -> RevisionDataSources {
        let data = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect::<DataSourceData>()
        };
        RevisionDataSources {
            claims: BTreeMap::new(),
            objects: BTreeMap::from([
                ((DataSourceKind::ConfigMap, "settings".into()), data(&[("colour", "red"), ("size", "9")])),
                ((DataSourceKind::Secret, "keys".into()), data(&[("token", "t0p")])),
            ]),
            binary: BTreeMap::from([("settings".into(), data(&[("zip", "\0\u{1}")]))]),
            account: "teller".into(),
            account_missing: false,
            tokens: BTreeMap::from([
                (wanted("shop"), Ok("j.w.t".into())),
                (wanted("bank"), Err("serviceaccounts \"teller\" not found".into())),
            ]),
        }
    }

    pub(super) fn meta() -> ObjectMeta {
        let labels = Some([("team".to_owned(), "blue".to_owned())].into());
        ObjectMeta { namespace: Some("ns".into()), name: Some("a-1".into()), labels, ..ObjectMeta::default() }
    }

    fn environment(container: Value) -> Result<Vec<(String, String)>, RevisionError> {
        sources().environment(&serde_json::from_value(container).unwrap(), &meta(), None)
    }

    /// SRV-CON-05, SRV-CON-06, SRV-CON-21, SRV-CON-22, SRV-CON-23, SRV-CON-24, SRV-CON-25, SRV-CON-26, SRV-CON-27,
    /// SRV-CON-28, SRV-CON-37, SRV-CON-38, SRV-CON-39, SRV-CON-51, SRV-CON-52, SRV-CON-53, SRV-CON-54: one variable, all of an object, and
    /// references to what is before.
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

    /// SRV-CON-06, SRV-CON-22: a variable cannot hold every byte, so binary data sets none.
    #[test]
    fn no_variable_is_made_of_binary_data() {
        let all = environment(json!({"name": "x", "envFrom": [{"configMapRef": {"name": "settings"}}]})).unwrap();
        assert_eq!(all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["colour", "size"]);
        let from = json!({"configMapKeyRef": {"name": "settings", "key": "zip"}});
        let refused = environment(json!({"name": "x", "env": [{"name": "Z", "valueFrom": from}]})).unwrap_err();
        assert_eq!(refused.message, "couldn't find key zip in ConfigMap ns/settings");
    }

    /// SRV-REV-13: an unusable account is reported in the words of a cluster.
    #[test]
    fn nobody_runs_as_an_account_that_is_not_there() {
        assert!(sources().check_account(&meta()).is_ok());
        let refused = RevisionDataSources { account_missing: true, ..sources() }.check_account(&meta()).unwrap_err();
        let words = "pods \"a-1-deployment-\" is forbidden: error looking up service account ns/teller: serviceaccount \"teller\" not found";
        assert_eq!((refused.reason, refused.message.as_str()), ("FailedCreate", words));
        assert!(is_retryable(&refused));
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
    }
}

//! One pass: applies the documents as objects, and deletes objects without a document.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value};

use super::known_kind;
use super::manifest_files::{ManifestDocument, ManifestError};
use super::{FIELD_MANAGER, LABEL};

/// A kind that was defined just now is asked for this often: a cluster takes a second or two to serve it.
const DISCOVERY_ATTEMPTS_MAX: usize = 20;
/// ... with this between.
const DISCOVERY_RETRY_AFTER: Duration = Duration::from_millis(250);
/// Fields of an exported object that only the server sets.
const SERVER_FIELDS: [&str; 7] =
    ["creationTimestamp", "deletionTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct ApplyResult {
    pub(super) documents: usize,
    pub(super) pruned: usize,
    pub(super) errors: Vec<ManifestError>,
    /// What is applied, and probably not meant.
    pub(super) warnings: Vec<ManifestError>,
}

/// Group, kind, namespace and name.
type ManifestIdentity = (String, String, String, String);

struct ApplyPass<'a> {
    client: &'a Client,
    label: &'a str,
    discovery: Discovery,
    /// A kind was defined in this pass, so one that is not served yet may soon be.
    has_new_kinds: bool,
    desired: HashSet<ManifestIdentity>,
    done: ApplyResult,
}

/// Applies the documents in the order in which they need each other. `whole`: there are no others that
/// could not be read, so that what is not among them may go.
pub(super) async fn apply(
    client: &Client,
    label: &str,
    mut documents: Vec<ManifestDocument>,
    whole: bool,
) -> ApplyResult {
    documents.sort_by_key(|document| apply_order(&document.object));
    let served = match discover(client).await {
        Ok(served) => served,
        Err(why) => {
            let no_answer = |document: &ManifestDocument| document.error(format!("the API does not answer: {why}"));
            let errors = documents.iter().map(no_answer).collect();
            return ApplyResult { documents: documents.len(), errors, ..ApplyResult::default() };
        }
    };
    let done = ApplyResult { documents: documents.len(), ..ApplyResult::default() };
    let mut pass = ApplyPass { client, label, discovery: served, has_new_kinds: false, desired: HashSet::new(), done };
    let mut nameless = false;
    for document in documents {
        match pass.write(&document).await {
            Ok(()) => {
                let told = known_kind::warnings(&document.object).into_iter().map(|told| document.error(told));
                pass.done.warnings.extend(told);
            }
            Err(ApplyError::Unidentified(why)) => {
                nameless = true;
                pass.done.errors.push(document.error(why));
            }
            Err(ApplyError::Rejected(why)) => pass.done.errors.push(document.error(why)),
        }
    }
    if whole && !nameless {
        pass.prune().await;
    }
    pass.done
}

/// Kinds whose objects must be applied first.
fn apply_order(object: &Value) -> usize {
    match object["kind"].as_str().unwrap_or_default() {
        "Namespace" => 0,
        "CustomResourceDefinition" => 1,
        "ConfigMap" | "Secret" | "ServiceAccount" => 2,
        "ClusterRole" | "ClusterRoleBinding" | "Role" | "RoleBinding" => 3,
        _ => 4,
    }
}

async fn discover(client: &Client) -> kube::Result<Discovery> {
    match Discovery::new(client.clone()).run_aggregated().await {
        Ok(served) => Ok(served),
        // Clusters before 1.26.
        Err(_) => Discovery::new(client.clone()).run().await,
    }
}

enum ApplyError {
    /// The object cannot be identified.
    Unidentified(String),
    Rejected(String),
}

impl ApplyPass<'_> {
    async fn write(&mut self, document: &ManifestDocument) -> Result<(), ApplyError> {
        let object = &document.object;
        let nameless = |field: &str| ApplyError::Unidentified(format!("{field} is missing"));
        let version = object["apiVersion"].as_str().ok_or_else(|| nameless("apiVersion"))?;
        let kind = object["kind"].as_str().ok_or_else(|| nameless("kind"))?;
        let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty()).ok_or_else(|| {
            if object["metadata"]["generateName"].is_string() {
                ApplyError::Unidentified(
                    "metadata.name is missing; generateName would make another one each time".into(),
                )
            } else {
                nameless("metadata.name")
            }
        })?;
        let (group, number) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, number, kind);
        let (resource, capabilities) =
            self.find(&kind).await.ok_or_else(|| ApplyError::Unidentified(known_kind::unknown(version, &kind.kind)))?;
        let namespace = match capabilities.scope {
            Scope::Namespaced => object["metadata"]["namespace"].as_str().unwrap_or("default"),
            Scope::Cluster => "",
        };
        self.desired.insert((group.to_owned(), kind.kind.clone(), namespace.to_owned(), name.to_owned()));
        let body = to_apply(object, self.label, namespace);
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(FIELD_MANAGER).force()
        };
        let written = api(self.client, &resource, namespace).patch(name, &params, &Patch::Apply(&body)).await;
        written.map_err(|why| ApplyError::Rejected(format!("{} {name}: {}", kind.kind, error_text(why))))?;
        self.has_new_kinds |= kind.kind == "CustomResourceDefinition";
        Ok(())
    }

    async fn find(&mut self, kind: &GroupVersionKind) -> Option<(ApiResource, ApiCapabilities)> {
        for _ in 0..DISCOVERY_ATTEMPTS_MAX {
            let found = self.discovery.resolve_gvk(kind);
            if found.is_some() || !self.has_new_kinds {
                return found;
            }
            if let Ok(served) = discover(self.client).await {
                self.discovery = served;
            }
            if self.discovery.resolve_gvk(kind).is_none() {
                tokio::time::sleep(DISCOVERY_RETRY_AFTER).await;
            }
        }
        self.has_new_kinds = false; // the next one need not wait again
        None
    }

    /// Deletes what carries the label and is not wanted; what others need goes last.
    async fn prune(&mut self) {
        let mut doomed = Vec::new();
        let params = ListParams::default().labels(&format!("{LABEL}={}", self.label));
        for group in self.discovery.groups() {
            for (resource, capabilities) in group.resources_by_stability() {
                let can = |verb| capabilities.supports_operation(verb);
                // Events are news of the same things under two names.
                if !can(verbs::LIST) || !can(verbs::DELETE) || resource.kind == "Event" {
                    continue;
                }
                let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
                // A kind that may not be listed was never applied.
                let Ok(list) = all.list_metadata(&params).await else { continue };
                for object in list.items {
                    let namespace = object.namespace().unwrap_or_default();
                    let identity = (resource.group.clone(), resource.kind.clone(), namespace, object.name_any());
                    // Controllers hand labels on to what they make; that goes with its owner.
                    let owned = !object.owner_references().is_empty();
                    let leaving = object.metadata.deletion_timestamp.is_some();
                    if !owned && !leaving && !self.desired.contains(&identity) {
                        doomed.push((resource.clone(), identity));
                    }
                }
            }
        }
        let kind_of = |kind: &str| apply_order(&serde_json::json!({ "kind": kind }));
        doomed.sort_by_key(|(resource, _)| std::cmp::Reverse(kind_of(&resource.kind)));
        for (resource, (_, kind, namespace, name)) in doomed {
            match api(self.client, &resource, &namespace).delete(&name, &DeleteParams::default()).await {
                Ok(_) => {
                    tracing::info!(kind, namespace, name, "deleted: no manifest names it any longer");
                    self.done.pruned += 1;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(why) => {
                    let why = format!("{kind} {name} is in no manifest any longer and stays: {}", error_text(why));
                    self.done.errors.push(ManifestError { path: self.label.into(), line: 0, message: why });
                }
            }
        }
    }
}

fn api(client: &Client, resource: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    match namespace {
        "" => Api::all_with(client.clone(), resource),
        namespace => Api::namespaced_with(client.clone(), namespace, resource),
    }
}

fn error_text(why: kube::Error) -> String {
    match why {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The document as it is sent: with the label and its namespace, without what is the server's.
fn to_apply(object: &Value, label: &str, namespace: &str) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let Some(metadata) = object["metadata"].as_object_mut() else { return object };
    for field in SERVER_FIELDS {
        metadata.remove(field);
    }
    if !namespace.is_empty() {
        metadata.insert("namespace".into(), namespace.into());
    }
    let labels = metadata.entry("labels").or_insert_with(|| Map::new().into());
    if labels.is_null() {
        *labels = Map::new().into();
    }
    // Labels that are no object are left for the server to refuse, with its own words.
    if let Some(labels) = labels.as_object_mut() {
        labels.insert(LABEL.into(), label.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_need_goes_first() {
        let mut kinds = ["Trigger", "Role", "ConfigMap", "Namespace", "Broker", "CustomResourceDefinition"];
        kinds.sort_by_key(|kind| apply_order(&json!({ "kind": kind })));
        assert_eq!(kinds, ["Namespace", "CustomResourceDefinition", "ConfigMap", "Role", "Trigger", "Broker"]);
    }

    #[test]
    fn an_exported_object_loses_what_is_the_servers() {
        let exported = json!({
            "kind": "A", "status": {},
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "1", "managedFields": [], "labels": null },
        });
        let wanted = json!({ "kind": "A", "metadata": { "name": "a", "namespace": "n", "labels": { LABEL: "l" } } });
        assert_eq!(to_apply(&exported, "l", "n"), wanted);
    }
}

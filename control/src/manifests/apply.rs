//! One pass: documents to objects, and objects without a document away.

use std::collections::HashSet;
use std::time::Duration;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, ValidationDirective};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use serde_json::{Map, Value};

use super::read::{Complaint, Document};
use super::{FIELD_MANAGER, LABEL};

/// A kind that was defined a moment ago is asked for this often: a cluster takes a second or two to serve it.
const LOOKS_MAX: usize = 20;
/// ... with this between.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(250);
/// Fields of an object that somebody exported, which only the server sets.
const SERVER_FIELDS: [&str; 7] = [
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// What a pass came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) documents: usize,
    pub(super) pruned: usize,
    pub(super) complaints: Vec<Complaint>,
}

/// Group, kind, namespace and name.
type Identity = (String, String, String, String);

struct Pass<'a> {
    client: &'a Client,
    label: &'a str,
    served: Discovery,
    /// A kind was defined in this pass, so one that is not served yet may soon be.
    defined: bool,
    wanted: HashSet<Identity>,
    done: Done,
}

/// Applies the documents in the order in which they need each other. `whole`: there are no others that
/// could not be read, so that what is not among them may go.
pub(super) async fn apply(client: &Client, label: &str, mut documents: Vec<Document>, whole: bool) -> Done {
    documents.sort_by_key(|document| rank(&document.object));
    let served = match discover(client).await {
        Ok(served) => served,
        Err(why) => {
            let told = |document: &Document| document.complaint(format!("the API does not answer: {why}"));
            let complaints = documents.iter().map(told).collect();
            return Done { documents: documents.len(), complaints, pruned: 0 };
        }
    };
    let done = Done { documents: documents.len(), ..Done::default() };
    let mut pass = Pass { client, label, served, defined: false, wanted: HashSet::new(), done };
    let mut nameless = false;
    for document in documents {
        match pass.write(&document).await {
            Ok(()) => {}
            Err(Wrong::Nameless(why)) => {
                nameless = true;
                pass.done.complaints.push(document.complaint(why));
            }
            Err(Wrong::Refused(why)) => pass.done.complaints.push(document.complaint(why)),
        }
    }
    if whole && !nameless {
        pass.prune().await;
    }
    pass.done
}

/// Whose objects others need first.
fn rank(object: &Value) -> usize {
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

enum Wrong {
    /// Nobody can say which object is meant.
    Nameless(String),
    Refused(String),
}

impl Pass<'_> {
    async fn write(&mut self, document: &Document) -> Result<(), Wrong> {
        let object = &document.object;
        let nameless = |field: &str| Wrong::Nameless(format!("{field} is missing"));
        let version = object["apiVersion"].as_str().ok_or_else(|| nameless("apiVersion"))?;
        let kind = object["kind"].as_str().ok_or_else(|| nameless("kind"))?;
        let name = object["metadata"]["name"].as_str().filter(|name| !name.is_empty()).ok_or_else(|| {
            if object["metadata"]["generateName"].is_string() {
                Wrong::Nameless(
                    "metadata.name is missing; generateName would make another one each time".into(),
                )
            } else {
                nameless("metadata.name")
            }
        })?;
        let (group, number) = version.split_once('/').unwrap_or(("", version));
        let kind = GroupVersionKind::gvk(group, number, kind);
        let (resource, capabilities) = self.find(&kind).await.ok_or_else(|| {
            let why = format!(
                "no kind {} in {version}; `kubectl api-resources` lists those that are served",
                kind.kind
            );
            Wrong::Nameless(why)
        })?;
        let namespace = match capabilities.scope {
            Scope::Namespaced => object["metadata"]["namespace"].as_str().unwrap_or("default"),
            Scope::Cluster => "",
        };
        self.wanted.insert((group.to_owned(), kind.kind.clone(), namespace.to_owned(), name.to_owned()));
        let body = dressed(object, self.label, namespace);
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(FIELD_MANAGER).force()
        };
        let written = api(self.client, &resource, namespace).patch(name, &params, &Patch::Apply(&body)).await;
        written.map_err(|why| Wrong::Refused(format!("{} {name}: {}", kind.kind, told(why))))?;
        self.defined |= kind.kind == "CustomResourceDefinition";
        Ok(())
    }

    async fn find(&mut self, kind: &GroupVersionKind) -> Option<(ApiResource, ApiCapabilities)> {
        for _ in 0..LOOKS_MAX {
            let found = self.served.resolve_gvk(kind);
            if found.is_some() || !self.defined {
                return found;
            }
            if let Ok(served) = discover(self.client).await {
                self.served = served;
            }
            if self.served.resolve_gvk(kind).is_none() {
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
        }
        self.defined = false; // the next one need not wait again
        None
    }

    /// Deletes what carries the label and is not wanted; what others need goes last.
    async fn prune(&mut self) {
        let mut doomed = Vec::new();
        let params = ListParams::default().labels(&format!("{LABEL}={}", self.label));
        for group in self.served.groups() {
            for (resource, capabilities) in group.resources_by_stability() {
                let can = |verb| capabilities.supports_operation(verb);
                // Events are news of the same things under two names.
                if !can(verbs::LIST) || !can(verbs::DELETE) || resource.kind == "Event" {
                    continue;
                }
                let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
                // A kind that may not be listed is none that was applied.
                let Ok(list) = all.list_metadata(&params).await else { continue };
                for object in list.items {
                    let namespace = object.namespace().unwrap_or_default();
                    let identity =
                        (resource.group.clone(), resource.kind.clone(), namespace, object.name_any());
                    // Controllers hand labels on to what they make; that goes with its owner.
                    let owned = !object.owner_references().is_empty();
                    let leaving = object.metadata.deletion_timestamp.is_some();
                    if !owned && !leaving && !self.wanted.contains(&identity) {
                        doomed.push((resource.clone(), identity));
                    }
                }
            }
        }
        let kind_of = |kind: &str| rank(&serde_json::json!({ "kind": kind }));
        doomed.sort_by_key(|(resource, _)| std::cmp::Reverse(kind_of(&resource.kind)));
        for (resource, (_, kind, namespace, name)) in doomed {
            match api(self.client, &resource, &namespace).delete(&name, &DeleteParams::default()).await {
                Ok(_) => {
                    tracing::info!(kind, namespace, name, "deleted: no manifest names it any longer");
                    self.done.pruned += 1;
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(why) => {
                    let why = format!("{kind} {name} is in no manifest any longer and stays: {}", told(why));
                    self.done.complaints.push(Complaint { path: self.label.into(), line: 0, why });
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

fn told(why: kube::Error) -> String {
    match why {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// The document as it is sent: with the label and its namespace, without what is the server's.
fn dressed(object: &Value, label: &str, namespace: &str) -> Value {
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
        kinds.sort_by_key(|kind| rank(&json!({ "kind": kind })));
        assert_eq!(
            kinds,
            ["Namespace", "CustomResourceDefinition", "ConfigMap", "Role", "Trigger", "Broker"]
        );
    }

    #[test]
    fn an_exported_object_loses_what_is_the_servers() {
        let exported = json!({
            "kind": "A", "status": {},
            "metadata": { "name": "a", "uid": "u", "resourceVersion": "1", "managedFields": [], "labels": null },
        });
        let wanted =
            json!({ "kind": "A", "metadata": { "name": "a", "namespace": "n", "labels": { LABEL: "l" } } });
        assert_eq!(dressed(&exported, "l", "n"), wanted);
    }
}

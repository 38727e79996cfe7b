//! `sluicegate config diff`: what applying manifests would add, change and remove.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use control::kind_registry::{KindEntry, KindMeta};
use control::{kinds, manifests};
use kube::client::Body;
use serde_json::Value;
use ureq::http::Request;
use ureq::http::header::CONTENT_TYPE;

use super::field_differences::differences;
use crate::cli::api_access::{ApiAccessArgs, ApiClient};
use crate::cli::{USAGE, tell};

/// The groups whose objects are removed if no file has them: what `config show` prints beside them may belong to others.
const WHOLE_GROUPS: [&str; 2] = [kinds::gateway_api::GROUP, kinds::gateway_policies::GROUP];
/// Lines about one object.
const LINES_MAX: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Manifests (YAML or JSON) with the wanted objects, or folders of manifests
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Compare with these manifests instead of a running appliance; may be given more than once
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    #[command(flatten)]
    api: ApiAccessArgs,
}

/// Below the flags.
pub(super) const HELP: &str = "\
Objects with `+` would be added, with `~` changed, and with `-` removed. A running appliance tells its defaults, so that \
fields that a file leaves out are no difference. Objects of Gateway API and its policies are removed if no file has them, \
in the namespaces of the files; of other kinds only with --from. The exit status is 0 if nothing differs, 1 if something does, \
and 2 after an error.";

/// Group, kind, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ManifestKey {
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

type ObjectSet = BTreeMap<ManifestKey, Value>;

/// What differs, in the order of the keys.
#[derive(Debug, Default)]
struct Differences {
    added: Vec<ManifestKey>,
    changed: Vec<(ManifestKey, Vec<String>)>,
    removed: Vec<ManifestKey>,
}

pub(super) fn run(args: &DiffArgs) -> ExitCode {
    let compared = read(&args.files).and_then(|wanted| match args.from.as_slice() {
        [] => with_appliance(&args.api.open()?, &wanted),
        from => Ok(compare(&read(from)?, &wanted)),
    });
    match compared.and_then(|found| tell(&found.text()).map(|()| found.is_empty())) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            complain!("sluicegate: config diff: {why:#}");
            USAGE.into()
        }
    }
}

fn read(paths: &[PathBuf]) -> Result<ObjectSet> {
    let mut set = ObjectSet::new();
    for path in paths {
        let objects = manifests::objects(path).map_err(|why| anyhow!("{why}"))?;
        for object in objects {
            let key = ManifestKey::of(&object).with_context(|| path.display().to_string())?;
            if set.insert(key.clone(), object).is_some() {
                bail!("{}: {key} is given twice", path.display());
            }
        }
    }
    Ok(set)
}

impl ManifestKey {
    fn of(object: &Value) -> Result<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        if version.is_empty() || kind.is_empty() || name.is_empty() {
            bail!("an object has no apiVersion, kind or metadata.name");
        }
        let namespace = Some(text("/metadata/namespace")).filter(|namespace| !namespace.is_empty());
        Ok(Self {
            group: version.split_once('/').map_or("", |(group, _)| group).to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.unwrap_or("default").to_owned(),
            name: name.to_owned(),
        })
    }

    /// The path of the object in the API.
    fn path(&self) -> Result<String> {
        let registry = kinds::registry();
        let of_kind = |entry: &&KindEntry| entry.meta.kind == self.kind && entry.meta.group == self.group;
        let entry = registry.entries.iter().find(of_kind);
        let meta = entry.with_context(|| format!("{self}: this program does not know the kind"))?.meta;
        Ok(format!("{}/{}", collection(meta, &self.namespace), self.name))
    }
}

fn collection(meta: &KindMeta, namespace: &str) -> String {
    let root = if meta.group.is_empty() { "/api" } else { "/apis" };
    match meta.namespaced {
        true => format!("{root}/{}/namespaces/{namespace}/{}", meta.api_version(), meta.plural),
        false => format!("{root}/{}/{}", meta.api_version(), meta.plural),
    }
}

impl std::fmt::Display for ManifestKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// What would change if the objects `before` became those of `after`.
fn compare(before: &ObjectSet, after: &ObjectSet) -> Differences {
    let mut found = Differences::default();
    for (key, wanted) in after {
        match before.get(key) {
            None => found.added.push(key.clone()),
            Some(known) => found.add_changes(key, differences(known, wanted)),
        }
    }
    found.removed.extend(before.keys().filter(|key| !after.contains_key(key)).cloned());
    found
}

fn with_appliance(api: &ApiClient, wanted: &ObjectSet) -> Result<Differences> {
    let mut found = Differences::default();
    for (key, object) in wanted {
        let path = key.path()?;
        let Some(live) = api.runtime.block_on(get(api, &path))? else {
            found.added.push(key.clone());
            continue;
        };
        let after = api.runtime.block_on(would_be(api, &path, object, &live)).with_context(|| key.to_string())?;
        found.add_changes(key, differences(&live, &after));
    }
    found.removed = unwanted(api, wanted)?;
    Ok(found)
}

/// The objects of [`WHOLE_GROUPS`] that the appliance has besides. A kind that is served in several versions is listed for each.
fn unwanted(api: &ApiClient, wanted: &ObjectSet) -> Result<Vec<ManifestKey>> {
    let namespaces: BTreeSet<_> = wanted.keys().map(|key| key.namespace.as_str()).collect();
    let registry = kinds::registry();
    let whole = |meta: &&KindMeta| meta.namespaced && WHOLE_GROUPS.contains(&meta.group);
    let mut found = BTreeSet::new();
    for meta in registry.entries.iter().map(|entry| entry.meta).filter(whole) {
        for namespace in &namespaces {
            let list = api.runtime.block_on(get(api, &collection(meta, namespace)))?.unwrap_or_default();
            let items = list["items"].as_array().into_iter().flatten();
            let own = items.filter(|item| item["metadata"]["ownerReferences"].is_null());
            let names = own.filter_map(|item| item["metadata"]["name"].as_str());
            found.extend(names.map(|name| ManifestKey {
                group: meta.group.to_owned(),
                kind: meta.kind.to_owned(),
                namespace: (*namespace).to_owned(),
                name: name.to_owned(),
            }));
        }
    }
    found.retain(|key| !wanted.contains_key(key));
    Ok(found.into_iter().collect())
}

async fn get(api: &ApiClient, path: &str) -> Result<Option<Value>> {
    let response = api.send(Request::get(path).body(Body::empty())?).await?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await.context("the response was truncated")?;
    match status.as_u16() {
        200 => Ok(Some(serde_json::from_slice(&body).with_context(|| path.to_owned())?)),
        404 => Ok(None),
        _ => bail!("{path}: the API answers {status}: {}", message(&body)),
    }
}

/// The object as the appliance would store it.
async fn would_be(api: &ApiClient, path: &str, wanted: &Value, live: &Value) -> Result<Value> {
    let mut object = wanted.clone();
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let path = format!("{path}?dryRun=All");
    let body = Body::from(serde_json::to_vec(&object)?);
    let response = api.send(Request::put(path).header(CONTENT_TYPE, "application/json").body(body)?).await?;
    let status = response.status();
    let body = response.into_body().collect_bytes().await.context("the response was truncated")?;
    match status.as_u16() {
        200 => Ok(serde_json::from_slice(&body)?),
        _ => bail!("the API refuses the object: {}", message(&body)),
    }
}

fn message(body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    status["message"].as_str().map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

impl Differences {
    /// The values of a Secret are not shown.
    fn add_changes(&mut self, key: &ManifestKey, mut lines: Vec<String>) {
        if key.kind == "Secret" {
            let field = |line: &String| line.split(':').next().unwrap_or_default().to_owned();
            lines = lines.iter().map(field).collect();
        }
        if !lines.is_empty() {
            self.changed.push((key.clone(), lines));
        }
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn text(&self) -> String {
        let Self { added, changed, removed } = self;
        let mut text = String::new();
        added.iter().for_each(|key| text.push_str(&format!("+ {key}\n")));
        for (key, lines) in changed {
            text.push_str(&format!("~ {key}\n"));
            lines.iter().take(LINES_MAX).for_each(|line| text.push_str(&format!("    {line}\n")));
            if lines.len() > LINES_MAX {
                text.push_str(&format!("    and {} more\n", lines.len() - LINES_MAX));
            }
        }
        removed.iter().for_each(|key| text.push_str(&format!("- {key}\n")));
        text.push_str(&format!("{} added, {} changed, {} removed\n", added.len(), changed.len(), removed.len()));
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(objects: &[Value]) -> ObjectSet {
        objects.iter().map(|object| (ManifestKey::of(object).unwrap(), object.clone())).collect()
    }

    fn map(name: &str, text: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "a": text } })
    }

    #[test]
    fn objects_are_added_changed_and_removed() {
        let before = set(&[map("same", "1"), map("other", "1"), map("gone", "1")]);
        let after = set(&[map("same", "1"), map("other", "2"), map("new", "1")]);
        let found = compare(&before, &after);
        assert_eq!(
            found.text(),
            "+ ConfigMap default/new\n~ ConfigMap default/other\n    data.a: \"1\" -> \"2\"\n- ConfigMap default/gone\n\
             1 added, 1 changed, 1 removed\n"
        );
        assert!(compare(&before, &before).is_empty());
    }

    #[test]
    fn value_of_a_secret_is_not_shown() {
        let secret = |text: &str| {
            let metadata = json!({ "name": "s" });
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": { "key": text } })
        };
        let found = compare(&set(&[secret("abc")]), &set(&[secret("def")]));
        assert_eq!(found.changed[0].1, ["data.key"]);
    }

    #[test]
    fn path_of_an_object_is_that_of_its_kind() {
        let route = json!({ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": { "name": "a", "namespace": "n" } });
        let path = ManifestKey::of(&route).unwrap().path().unwrap();
        assert!(path.ends_with("/namespaces/n/httproutes/a") && path.starts_with("/apis/gateway.networking.k8s.io/v1"));
        assert_eq!(ManifestKey::of(&map("m", "")).unwrap().path().unwrap(), "/api/v1/namespaces/default/configmaps/m");
        let unknown = json!({ "apiVersion": "a.test/v1", "kind": "B", "metadata": { "name": "c" } });
        assert!(ManifestKey::of(&unknown).unwrap().path().is_err() && ManifestKey::of(&json!({})).is_err());
    }
}

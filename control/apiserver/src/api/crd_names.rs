//! Accepts the names that a definition requests if no other definition of its group has them.
//!
//! Two kinds with the same name would be the same to every client, so a definition is not served until it has all of its names, or
//! continues under its earlier names. The rules, and the conditions in the status, are Kubernetes'.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::store::lifecycle::{self, DEFINITIONS};
use crate::store::maintenance::{self, SkipReason};
use crate::store::{ObjectKey, ObjectStore, StagedView, StoreError, StoredObject, WriteOperation};

use super::prepare;

const ACCEPTED: &str = "NamesAccepted";
const ESTABLISHED: &str = "Established";
/// The suffix of the reasons for names that are not accepted.
const CONFLICT: &str = "Conflict";
/// Pause while the disk is full.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// The names that the definitions of a group have.
#[derive(Debug, Default)]
struct ReservedNames {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

/// Accepts the names of a written definition, against the newest state.
pub(super) fn assign_names(view: &StagedView, change: WriteOperation, now: &str) -> WriteOperation {
    let WriteOperation::Put(key, mut definition) = change else { return change };
    if &*key.resource != DEFINITIONS || lifecycle::is_deleting(&definition) {
        return WriteOperation::Put(key, definition);
    }
    let group = definition["spec"]["group"].as_str().unwrap_or("");
    let has_same_group = |other: &Arc<StoredObject>| {
        other.key != key && other.key.name.split_once('.').is_some_and(|(_, rest)| rest == group)
    };
    let others = view.list(&key.resource).into_iter().filter(has_same_group);
    let taken = ReservedNames::from_definitions(others.map(|other| accepted_names(&other)));
    let before = view.get(&key).map(|before| before.decode());
    accept_definition(&mut definition, before.as_ref().map(|before| &before.value), &taken, now);
    match before {
        Some(before) if before.value == definition => WriteOperation::NoOp(before.stored),
        _ => WriteOperation::Put(key, definition),
    }
}

/// The names of another definition, without a tree of its schema: this runs on the store's thread.
fn accepted_names(definition: &StoredObject) -> Value {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        #[serde(rename = "acceptedNames")]
        accepted_names: Value,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Named {
        status: Status,
    }
    let named: Named = serde_json::from_slice(&definition.json()).unwrap_or_default(); // we wrote it
    named.status.accepted_names
}

/// The definition with its accepted names; `None`: it is not served.
pub(super) fn with_accepted_names(mut definition: Value) -> Option<Value> {
    if condition(&definition, ESTABLISHED)?["status"] != "True" {
        return None;
    }
    let names = definition["status"]["acceptedNames"].take();
    if names.is_object() {
        definition["spec"]["names"] = names;
    }
    Some(definition)
}

/// Assigns released names to waiting definitions, until the store is closed or fails.
pub async fn run_crd_names(store: Arc<ObjectStore>) {
    let mut news = store.revision();
    let weak = Arc::downgrade(&store);
    drop(store);
    // A crash may have left a definition waiting. It is checked with the first write, so that the start does not wait for it.
    let mut looked_at = None;
    while news.changed().await.is_ok() {
        let Some(store) = weak.upgrade() else { return };
        let changed = store.read().last_change(DEFINITIONS);
        if looked_at == Some(changed) {
            continue;
        }
        match accept_pending_names(&store).await {
            Ok(()) => looked_at = Some(changed),
            Err(StoreError::Full { .. }) => {
                drop(store);
                tokio::time::sleep(RETRY_AFTER).await;
                news.mark_changed();
            }
            Err(why) => {
                tracing::error!(error = %why, "names of definitions are no longer accepted");
                return;
            }
        }
    }
}

async fn accept_pending_names(store: &ObjectStore) -> Result<(), StoreError> {
    let all = store.read().list(&DEFINITIONS.into(), None);
    let waiting: Vec<ObjectKey> = all.into_iter().filter(|one| lacks_name(one)).map(|one| one.key.clone()).collect();
    for key in waiting {
        let settle = move |view: &StagedView| {
            let definition = view.get(&key).ok_or(SkipReason::UpToDate)?.value();
            Ok(assign_names(view, WriteOperation::Put(key, definition), &prepare::now()))
        };
        maintenance::write(store, settle).await?;
    }
    Ok(())
}

/// Whether the definition lacks a name. Most do not, and schemas are long: those are not parsed.
fn lacks_name(definition: &StoredObject) -> bool {
    let json = definition.json();
    let reason = format!("{CONFLICT}\"");
    json.windows(reason.len()).any(|part| part == reason.as_bytes())
        && condition(&definition.value(), ACCEPTED).is_some_and(|one| one["status"] != "True")
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    definition["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

impl ReservedNames {
    fn from_definitions(all: impl Iterator<Item = Value>) -> Self {
        let mut taken = Self::default();
        for names in all {
            let of = |field: &str| name_list(&names[field]).map(str::to_owned).collect::<Vec<_>>();
            taken.resources.extend(["plural", "singular", "shortNames"].into_iter().flat_map(of));
            taken.kinds.extend(["kind", "listKind"].into_iter().flat_map(of));
        }
        taken
    }
}

/// A name, or several.
fn name_list(value: &Value) -> impl Iterator<Item = &str> {
    let several = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    value.as_str().into_iter().chain(several)
}

/// Writes the accepted names into the status, and whether the kind is served. Names accepted `before` stay as far as the new
/// ones are taken.
fn accept_definition(definition: &mut Value, before: Option<&Value>, taken: &ReservedNames, now: &str) {
    let wanted = definition["spec"]["names"].clone();
    let mut names = before.map_or(Value::Null, |before| before["status"]["acceptedNames"].clone());
    if !names.is_object() {
        names = json!({});
    }
    let mut conflict = None;
    for (field, what, used) in [
        ("plural", "Plural", &taken.resources),
        ("singular", "Singular", &taken.resources),
        ("shortNames", "ShortNames", &taken.resources),
        ("kind", "Kind", &taken.kinds),
        ("listKind", "ListKind", &taken.kinds),
    ] {
        let had: HashSet<&str> = name_list(&names[field]).collect();
        let is_had = |word: &&str| had.contains(word);
        let clashes: Vec<String> = name_list(&wanted[field])
            .filter(|word| !is_had(word) && used.contains(*word))
            .map(|word| format!("{word:?} is already in use"))
            .collect();
        match clashes.as_slice() {
            [] => accept_name(&mut names, &wanted, field),
            [one] => conflict = Some((format!("{what}{CONFLICT}"), one.clone())),
            all => conflict = Some((format!("{what}{CONFLICT}"), format!("[{}]", all.join(", ")))),
        }
    }
    accept_name(&mut names, &wanted, "categories");
    definition["status"]["acceptedNames"] = names;

    let was_served =
        before.and_then(|before| condition(before, ESTABLISHED)).is_some_and(|one| one["status"] == "True");
    let is_served = conflict.is_none() || was_served;
    let accepted = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found"),
        Some((reason, why)) => ("False", reason.as_str(), why.as_str()),
    };
    let established = if is_served {
        ("True", "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        ("False", "NotAccepted", "not all names are accepted")
    };
    for (kind, said) in [(ACCEPTED, accepted), (ESTABLISHED, established)] {
        set_condition(definition, before, kind, said, now);
    }
}

fn accept_name(names: &mut Value, wanted: &Value, field: &str) {
    match wanted.get(field).filter(|value| !value.is_null()) {
        Some(value) => names[field] = value.clone(),
        None => drop(names.as_object_mut().and_then(|names| names.remove(field))),
    }
}

/// A condition that keeps its transition time while it is unchanged.
fn set_condition(
    definition: &mut Value,
    before: Option<&Value>,
    kind: &str,
    (status, reason, message): (&str, &str, &str),
    now: &str,
) {
    let as_it_was = |one: &Value| condition(one, kind).filter(|known| known["status"] == status).cloned();
    let known = as_it_was(definition).or_else(|| before.and_then(as_it_was));
    let since = known.map_or_else(|| now.into(), |known| known["lastTransitionTime"].clone());
    let fresh = json!({ "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": since });
    let conditions = &mut definition["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|one| one["type"] == kind) {
        Some(one) => *one = fresh,
        None => conditions.push(fresh),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(names: Value) -> Value {
        json!({ "spec": { "group": "e.com", "names": names } })
    }

    fn condition_of<'a>(definition: &'a Value, kind: &str) -> [&'a str; 3] {
        let one = condition(definition, kind).unwrap();
        ["status", "reason", "message"].map(|field| one[field].as_str().unwrap())
    }

    /// APP-17: in Kubernetes' words.
    #[test]
    fn a_name_that_another_has_is_not_given_and_its_kind_not_served() {
        let taken = ReservedNames::from_definitions(
            [json!({ "plural": "ups", "singular": "up", "shortNames": ["u", "v"], "kind": "Up",
            "listKind": "UpList" })]
            .into_iter(),
        );
        for (names, reason, message) in [
            (json!({ "plural": "up", "kind": "A" }), "PluralConflict", r#""up" is already in use"#),
            (json!({ "plural": "a", "singular": "u", "kind": "A" }), "SingularConflict", r#""u" is already in use"#),
            (
                json!({ "plural": "a", "kind": "A", "shortNames": ["v", "w", "u"] }),
                "ShortNamesConflict",
                r#"["v" is already in use, "u" is already in use]"#,
            ),
            (json!({ "plural": "a", "kind": "Up" }), "KindConflict", r#""Up" is already in use"#),
            (json!({ "plural": "a", "kind": "A", "listKind": "Up" }), "ListKindConflict", r#""Up" is already in use"#),
        ] {
            let mut one = definition(names);
            accept_definition(&mut one, None, &taken, "now");
            assert_eq!(condition_of(&one, ACCEPTED), ["False", reason, message]);
            assert_eq!(condition_of(&one, ESTABLISHED), ["False", "NotAccepted", "not all names are accepted"]);
            assert_eq!(with_accepted_names(one.clone()), None);

            let waited = one.clone();
            accept_definition(&mut one, Some(&waited), &ReservedNames::default(), "later");
            assert_eq!(condition_of(&one, ACCEPTED), ["True", "NoConflicts", "no conflicts found"]);
            assert_eq!(one["status"]["acceptedNames"], one["spec"]["names"]);
            assert_eq!(condition(&one, ESTABLISHED).unwrap()["lastTransitionTime"], "later");
            assert!(with_accepted_names(one).is_some());
        }
    }

    #[test]
    fn who_was_served_goes_on_under_the_names_that_he_had() {
        let mut first = definition(json!({ "plural": "as", "kind": "A", "shortNames": ["a"] }));
        accept_definition(&mut first, None, &ReservedNames::default(), "one");
        let taken =
            ReservedNames::from_definitions([json!({ "plural": "bs", "shortNames": ["b"], "kind": "B" })].into_iter());
        let mut second = first.clone();
        second["spec"]["names"] =
            json!({ "plural": "as", "kind": "A", "shortNames": ["a", "b"], "categories": ["all"] });
        accept_definition(&mut second, Some(&first), &taken, "two");
        assert_eq!(condition_of(&second, ACCEPTED), ["False", "ShortNamesConflict", r#""b" is already in use"#]);
        assert_eq!(condition_of(&second, ESTABLISHED)[0], "True");
        let names = json!({ "plural": "as", "kind": "A", "shortNames": ["a"], "categories": ["all"] });
        assert_eq!(with_accepted_names(second.clone()).unwrap()["spec"]["names"], names);
        let mut again = second.clone();
        accept_definition(&mut again, Some(&second), &taken, "three");
        assert_eq!(again, second, "what stays as it is is no change");
    }
}

//! The writer of an object, and the fields that it can own.

use serde_json::Value;

use types::kind_registry::{KindEntry, KindMeta};

use super::field_location::FieldLocation;
use super::field_set::{FieldDiff, FieldSet};
use super::initial_fields;

/// Fields of `metadata` that identify an object or belong to the server.
const NOT_OWNED: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
];

/// The writer, the target, and the time of a write.
#[derive(Debug, Clone)]
pub(in super::super) struct FieldWriter {
    pub(in super::super) manager: String,
    /// Whether the subresource is written.
    pub(in super::super) status: bool,
    /// The number of a scale is written, and nothing else.
    pub(in super::super) scale: bool,
    pub(in super::super) now: String,
    pub(in super::super) meta: &'static KindMeta,
    /// For a custom kind.
    pub(in super::super) schema: Option<&'static Value>,
}

impl FieldWriter {
    /// All fields of an intent that this writer can own.
    pub(in super::super) fn owned_fields(&self, wanted: &Value) -> FieldSet {
        let mut found = FieldSet::of(self.location(), wanted);
        found.children.retain(|element, _| self.can_own(element));
        if let Some(mut metadata) = found.children.remove("f:metadata") {
            metadata.owned = false;
            metadata.children.retain(|element, _| is_owned(element));
            found.insert("f:metadata".into(), metadata);
        }
        found
    }

    /// The fields that this writer can own of the difference between the two; without `before`, of a new object.
    pub(in super::super) fn compare(&self, before: Option<&Value>, after: &Value) -> FieldDiff {
        let blank = initial_fields::of(self.meta).filter(|_| self.schema.is_none());
        let fields = |object: &'_ Value| object.as_object().map(|fields| fields.keys().cloned().collect());
        let mut names: Vec<String> = fields(after).unwrap_or_default();
        names.extend(before.and_then(fields).unwrap_or_default());
        names.sort_unstable();
        names.dedup();
        let mut found = FieldDiff::default();
        for name in names {
            let element = format!("f:{name}");
            if !self.can_own(&element) {
                continue;
            }
            let old = before.and_then(|before| before.get(&name));
            let blank = blank.and_then(|blank| blank.get(&name));
            let mut inside = FieldDiff::of(self.location().child(&element), blank, old, after.get(&name));
            if name == "metadata" {
                for set in [&mut inside.added, &mut inside.modified, &mut inside.removed] {
                    set.owned = false;
                    set.children.retain(|element, _| is_owned(element));
                }
            }
            found.insert(element, inside);
        }
        found
    }

    /// A client's request, for kinds in which the server adds fields without an owner.
    pub(in super::super) fn user_object(&self, entry: &KindEntry, object: &Value) -> Option<Value> {
        let wanted = self.defaults_by_webhook() || !self.server_assigned_fields().is_empty();
        (wanted && !self.status).then(|| {
            let mut sent = object.clone();
            entry.partial_to_stored(&mut sent);
            sent
        })
    }

    /// Knative's defaults come from its webhook, after owners are noted; all others from the API server itself, before.
    pub(in super::super) fn defaults_by_webhook(&self) -> bool {
        self.meta.group.ends_with(super::KNATIVE) && self.schema.is_none()
    }

    /// Fields of `spec` that the server chooses when the object is stored, and not as a default.
    pub(in super::super) fn server_assigned_fields(&self) -> &'static [&'static str] {
        match (self.meta.group, self.meta.kind) {
            ("", "Namespace") => &["finalizers"],
            ("", "Service") => &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"],
            _ => &[],
        }
    }

    pub(in super::super) fn location(&self) -> FieldLocation<'static> {
        FieldLocation::root_of_kind(self.meta, self.schema)
    }

    /// Whether it is this writer's to say anything of the field.
    fn can_own(&self, element: &str) -> bool {
        match element {
            "f:apiVersion" | "f:kind" => false,
            "f:status" => self.status || !self.meta.has_status,
            _ => !self.status,
        }
    }

    /// The subresource that is written; empty: the object itself.
    pub(in super::super) fn subresource(&self) -> &'static str {
        match (self.status, self.scale) {
            (true, _) => "status",
            (_, true) => "scale",
            _ => "",
        }
    }
}

fn is_owned(element: &str) -> bool {
    !element.strip_prefix("f:").is_some_and(|name| NOT_OWNED.contains(&name))
}

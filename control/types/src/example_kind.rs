//! Reminder: the kind that CONTRIBUTING.md adds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field_errors::{FieldErrors, MISSING};
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, READY, column};
use crate::role_rules::RECONCILED;
use crate::shared::Status;

kind! {
    /// `eventing.knative.dev/v1alpha1` Reminder.
    Reminder { spec: ReminderSpec, status: ReminderStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReminderSpec {
    /// What to be reminded of.
    pub text: String,
    /// How often, as a duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ReminderStatus {
    #[serde(flatten)]
    pub base: Status,
}

impl ResourceStrategy for Reminder {
    const META: KindMeta = KindMeta {
        group: "eventing.knative.dev",
        version: "v1alpha1",
        kind: "Reminder",
        plural: "reminders",
        singular: "reminder",
        has_status: true,
        columns: &[column("Text", ".spec.text"), READY, AGE],
        role_rules: RECONCILED,
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        self.spec.every.get_or_insert_with(|| "1h".to_owned());
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        if self.spec.text.is_empty() {
            problems.add("spec.text", MISSING);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind_registry::KindEntry;

    #[test]
    fn reminder_gets_an_interval_and_needs_a_text() {
        let admit = |text: &str| {
            let spec = ReminderSpec { text: text.to_owned(), every: None };
            let object = serde_json::to_value(Reminder::new("ns", "tea", spec)).unwrap();
            KindEntry::of::<Reminder>().admit_object(object, None, &RequestContext::default())
        };
        assert_eq!(admit("drink tea").unwrap()["spec"]["every"], "1h");
        assert!(admit("").is_err());
    }
}

//! References to keys of Secrets, as upstream's sources and sinks write them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::field_errors::{FieldErrors, MISSING};

/// A value that stands in a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretValue {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<SecretKeyReference>,
}

/// One key of a Secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretKeyReference {
    pub name: String,
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// A Secret with credentials, as upstream's sinks name it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AuthSecret {
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<AuthSecretReference>,
}

/// Its name, in the namespace of the object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AuthSecretReference {
    pub name: String,
}

impl AuthSecret {
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.reference.as_ref().map(|reference| reference.name.as_str())
    }
}

impl SecretValue {
    /// The form of it in the configuration of an adapter: it becomes the path of a file.
    #[must_use]
    pub fn file(&self) -> Option<Value> {
        self.secret_key_ref.as_ref().map(|from| file(&from.name, &from.key))
    }

    pub(crate) fn validate(&self, at: &str, problems: &mut FieldErrors) {
        let Some(from) = &self.secret_key_ref else { return };
        for (field, value) in [("name", &from.name), ("key", &from.key)] {
            if value.is_empty() {
                problems.add(format!("{at}.secretKeyRef.{field}"), MISSING);
            }
        }
    }
}

/// A key of a Secret in the configuration of an adapter.
#[must_use]
pub fn file(secret: &str, key: &str) -> Value {
    json!({ "secret": { "name": secret, "key": key } })
}

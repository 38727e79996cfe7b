//! Secrets, with the keys that their types require; and the validation of the keys of all data.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, COUNT, PrinterColumn, column};
use crate::role_rules::{CONTROLLER_READS, DefaultRole, EDIT, READ, RoleRule};

/// Bytes of all values of a Secret or a ConfigMap; Kubernetes' figure.
pub(super) const DATA_BYTES_MAX: usize = 1024 * 1024;
/// Keys of one Secret or ConfigMap. Kubernetes counts the bytes of values alone; each key is owned and becomes a file of its own.
const DATA_KEYS_MAX: usize = 10_000;
/// Characters of a key, which may become a file's name.
const KEY_CHARS_MAX: usize = 253;

const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";

impl ResourceStrategy for Secret {
    const META: KindMeta = KindMeta {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        columns: &[column("Type", ".type"), PrinterColumn { format: COUNT, ..column("Data", ".data") }, AGE],
        role_rules: &[EDIT, RoleRule::new(DefaultRole::Edit, READ), CONTROLLER_READS],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn normalize_input(object: &mut Value) {
        if let Some(data) = object.get_mut("data") {
            join_base64_lines(data);
        }
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        for (key, text) in self.string_data.take().into_iter().flatten() {
            self.data.get_or_insert_default().insert(key, ByteString(text.into_bytes()));
        }
        if self.type_.as_deref().unwrap_or("").is_empty() {
            self.type_ = Some("Opaque".into());
        }
    }

    fn validate(&self, before: Option<&Self>, problems: &mut FieldErrors) {
        if let Some(before) = before {
            if self.type_ != before.type_ {
                let type_name = self.type_.as_deref().unwrap_or("");
                problems.add("type", format!("Invalid value: {type_name:?}: field is immutable"));
            }
            if before.immutable == Some(true) {
                if self.immutable != Some(true) {
                    problems.add("immutable", "Forbidden: field is immutable when `immutable` is set");
                }
                if self.data != before.data {
                    problems.add("data", "Forbidden: field is immutable when `immutable` is set");
                }
            }
        }
        let data = || self.data.iter().flatten();
        check_keys("data", data().map(|(key, _)| key.as_str()), problems);
        check_key_count(data().count(), problems);
        let bytes: usize = data().map(|(_, value)| value.0.len()).sum();
        if bytes > DATA_BYTES_MAX {
            problems.add("data", format!("Too long: may not be more than {DATA_BYTES_MAX} bytes"));
        }
        check_type(self, problems);
    }
}

/// Size of all data of one object.
pub(super) fn check_key_count(count: usize, problems: &mut FieldErrors) {
    if count > DATA_KEYS_MAX {
        problems.add("data", format!("Too many: {count}: must have at most {DATA_KEYS_MAX} items"));
    }
}

/// Encoded values may come in lines of 76, as `base64` writes them.
pub(super) fn join_base64_lines(data: &mut Value) {
    for value in data.as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
        if let Value::String(text) = value
            && text.contains(['\r', '\n'])
        {
            text.retain(|letter| !matches!(letter, '\r' | '\n'));
        }
    }
}

/// The required keys of the types.
fn check_type(secret: &Secret, problems: &mut FieldErrors) {
    let value = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let missing = |key: &str| value(key).is_none();
    let needed: &[&str] = match secret.type_.as_deref().unwrap_or("") {
        ACCOUNT_TOKEN => {
            let annotations = secret.metadata.annotations.as_ref();
            if annotations.and_then(|all| all.get(ACCOUNT)).is_none_or(String::is_empty) {
                problems.add(format!("metadata.annotations[{ACCOUNT}]"), "Required value");
            }
            &[]
        }
        "kubernetes.io/basic-auth" if missing("username") && missing("password") => &["username", "password"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    };
    for key in needed {
        let field = format!("data[{key}]");
        match value(key) {
            None => problems.add(field, "Required value"),
            Some(ByteString(bytes)) if key.starts_with(".docker") => {
                if let Err(why) = serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
                    let why = format!("Invalid value: \"<secret contents redacted>\": {why}");
                    problems.add(field, why);
                }
            }
            Some(_) => {}
        }
    }
}

/// Keys may become names of files.
pub(super) fn check_keys<'a>(at: &str, keys: impl Iterator<Item = &'a str>, problems: &mut FieldErrors) {
    for key in keys {
        let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let why = if key.len() > KEY_CHARS_MAX {
            format!("must be no more than {KEY_CHARS_MAX} bytes")
        } else if key.is_empty() || !key.bytes().all(named) {
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .into()
        } else if key == "." {
            "must not be '.'".into()
        } else if key == ".." {
            "must not be '..'".into()
        } else if key.starts_with("..") {
            "must not start with '..'".into()
        } else {
            continue;
        };
        problems.add(format!("{at}[{key}]"), format!("Invalid value: {key:?}: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secret(fields: Value) -> Secret {
        let mut object = json!({ "metadata": { "name": "s" } });
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut secret: Secret = serde_json::from_value(object).unwrap();
        secret.set_defaults(None, &RequestContext::default());
        secret
    }

    /// APP-32: a Secret holds what its type promises.
    #[test]
    fn each_type_names_what_it_lacks() {
        for (fields, expected) in [
            (json!({}), vec![]),
            (json!({ "type": "example.com/any" }), vec![]),
            (json!({ "type": "kubernetes.io/tls" }), vec!["data[tls.crt]", "data[tls.key]"]),
            (json!({ "type": "kubernetes.io/tls", "data": { "tls.crt": "", "tls.key": "" } }), vec![]),
            (json!({ "type": "kubernetes.io/basic-auth" }), vec!["data[username]", "data[password]"]),
            (json!({ "type": "kubernetes.io/basic-auth", "stringData": { "username": "u" } }), vec![]),
            (json!({ "type": "kubernetes.io/ssh-auth" }), vec!["data[ssh-privatekey]"]),
            (json!({ "type": "kubernetes.io/dockercfg" }), vec!["data[.dockercfg]"]),
            (
                json!({ "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": "{" } }),
                vec!["data[.dockerconfigjson]"],
            ),
            (json!({ "type": ACCOUNT_TOKEN }), vec!["metadata.annotations[kubernetes.io/service-account.name]"]),
            (json!({ "stringData": { "a b": "", "..x": "", "": "" } }), vec!["data[]", "data[..x]", "data[a b]"]),
            (json!({ "stringData": { "a": "x".repeat(DATA_BYTES_MAX + 1) } }), vec!["data"]),
        ] {
            let mut problems = FieldErrors::default();
            secret(fields.clone()).validate(None, &mut problems);
            let found: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(found, expected, "{:.120}", fields.to_string());
        }
    }

    #[test]
    fn a_value_in_several_lines_is_one_value() {
        let mut object = json!({ "metadata": {}, "data": { "a": "YWJj\r\nZGVm\n" } });
        Secret::normalize_input(&mut object);
        assert_eq!(object["data"]["a"], "YWJjZGVm");
        Secret::normalize_input(&mut json!({ "metadata": {} }));
    }

    #[test]
    fn what_is_immutable_stays() {
        let sealed = secret(json!({ "immutable": true, "stringData": { "a": "1" } }));
        for (fields, expected) in [
            (json!({ "immutable": true, "stringData": { "a": "1" } }), vec![]),
            (json!({ "stringData": { "a": "1" } }), vec!["immutable"]),
            (json!({ "immutable": true, "stringData": { "a": "2" } }), vec!["data"]),
            (json!({ "immutable": true, "type": "x/y", "stringData": { "a": "1" } }), vec!["type"]),
        ] {
            let mut problems = FieldErrors::default();
            secret(fields).validate(Some(&sealed), &mut problems);
            let found: Vec<_> = problems.list.iter().map(|problem| problem.field.as_str()).collect();
            assert_eq!(found, expected);
        }
    }
}

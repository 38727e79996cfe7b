//! How a Kafka cluster is reached, in the fields of upstream's KafkaSource, and by the keys of a Secret of upstream's
//! KafkaSink.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::field_errors::FieldErrors;
use crate::secret_reference::{SecretValue, file};

/// TLS and SASL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KafkaNet {
    pub sasl: KafkaNetSasl,
    pub tls: KafkaNetTls,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KafkaNetSasl {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable: bool,
    pub user: SecretValue,
    pub password: SecretValue,
    /// The key has the mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
    #[serde(rename = "type")]
    pub mechanism: SecretValue,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KafkaNetTls {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enable: bool,
    pub cert: SecretValue,
    pub key: SecretValue,
    #[serde(rename = "caCert")]
    pub ca_cert: SecretValue,
}

impl KafkaNet {
    /// The section `net` of the transport `kafka`.
    #[must_use]
    pub fn section(&self) -> Value {
        let with_files = |enable: bool, files: &[(&str, &SecretValue)]| {
            let mut section = json!({ "enable": enable });
            for (name, value) in files {
                if let Some(file) = value.file() {
                    section[*name] = file;
                }
            }
            section
        };
        let (sasl, tls) = (&self.sasl, &self.tls);
        json!({
            "sasl": with_files(sasl.enable, &[("user", &sasl.user), ("password", &sasl.password), ("type", &sasl.mechanism)]),
            "tls": with_files(tls.enable, &[("cert", &tls.cert), ("key", &tls.key), ("caCert", &tls.ca_cert)]),
        })
    }

    pub(crate) fn validate(&self, at: &str, problems: &mut FieldErrors) {
        for (field, value) in [
            ("sasl.user", &self.sasl.user),
            ("sasl.password", &self.sasl.password),
            ("sasl.type", &self.sasl.mechanism),
            ("tls.cert", &self.tls.cert),
            ("tls.key", &self.tls.key),
            ("tls.caCert", &self.tls.ca_cert),
        ] {
            value.validate(&format!("{at}.{field}"), problems);
        }
    }
}

/// The section `net` by the keys of a Secret: `protocol`, `sasl.mechanism`, `user`, `password`, `ca.crt`, `user.crt` and
/// `user.key`.
pub(crate) fn net_of_secret(name: &str, keys: &BTreeMap<String, Vec<u8>>) -> Result<Value, String> {
    let protocol = keys.get("protocol").map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let (has_sasl, has_tls) = match protocol.as_deref().unwrap_or("PLAINTEXT") {
        "PLAINTEXT" => (false, false),
        "SSL" => (false, true),
        "SASL_PLAINTEXT" => (true, false),
        "SASL_SSL" => (true, true),
        other => {
            return Err(format!(
                "Secret {name}: protocol: {other:?} is unknown; use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"
            ));
        }
    };
    let with_files = |enable: bool, files: &[(&str, &str)]| {
        let mut section = json!({ "enable": enable });
        for (field, key) in files.iter().filter(|(_, key)| enable && keys.contains_key(*key)) {
            section[*field] = file(name, key);
        }
        section
    };
    let sasl = [("user", "user"), ("password", "password"), ("type", "sasl.mechanism")];
    let tls = [("cert", "user.crt"), ("key", "user.key"), ("caCert", "ca.crt")];
    Ok(json!({ "sasl": with_files(has_sasl, &sasl), "tls": with_files(has_tls, &tls) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_of_a_secret_decides_what_is_used() {
        let keys = |protocol: &str| {
            let all = [("protocol", protocol), ("user", "u"), ("password", "p"), ("ca.crt", "c")];
            all.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec())).into()
        };
        let both = net_of_secret("s", &keys("SASL_SSL")).unwrap();
        assert_eq!(both["sasl"]["user"], file("s", "user"));
        assert_eq!(both["tls"], json!({ "enable": true, "caCert": file("s", "ca.crt") }));
        let none = net_of_secret("s", &keys("PLAINTEXT")).unwrap();
        assert_eq!(none, json!({ "sasl": { "enable": false }, "tls": { "enable": false } }));
        assert!(net_of_secret("s", &keys("TELNET")).unwrap_err().contains("TELNET"));
    }
}

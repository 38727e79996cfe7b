//! The image configuration of the process.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Digest;
use crate::platform::Platform;

/// The part of an image's configuration that a run needs. Absent lists are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub cmd: Vec<String>,
    /// `NAME=VALUE`
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub working_dir: String,
    /// `user`, `uid`, `user:group`, `uid:gid` or empty, which is root.
    #[serde(deserialize_with = "null_is_default")]
    pub user: String,
    /// `SIGTERM`, `TERM` or `15`; empty is SIGTERM.
    #[serde(deserialize_with = "null_is_default")]
    pub stop_signal: String,
    /// `8080/tcp`, `53/udp`, `80`.
    #[serde(deserialize_with = "keys")]
    pub exposed_ports: BTreeSet<String>,
    #[serde(deserialize_with = "keys")]
    pub volumes: BTreeSet<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
}

impl ImageConfig {
    /// The TCP ports that the image exposes, in order.
    #[must_use]
    pub fn tcp_ports(&self) -> Vec<u16> {
        let mut ports: Vec<u16> = self
            .exposed_ports
            .iter()
            .filter_map(|port| port.strip_suffix("/tcp").or((!port.contains('/')).then_some(port)))
            .filter_map(|port| port.parse().ok())
            .collect();
        ports.sort_unstable();
        ports
    }
}

/// The whole document.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct ConfigDocument {
    #[serde(flatten)]
    pub platform: Platform,
    #[serde(default, deserialize_with = "null_is_default")]
    pub created: String,
    #[serde(default, deserialize_with = "null_is_default")]
    pub config: ImageConfig,
    #[serde(default)]
    pub rootfs: RootFilesystem,
}

/// The digests of the uncompressed layers, the lowest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct RootFilesystem {
    #[serde(default)]
    pub diff_ids: Vec<Digest>,
}

/// # Errors
/// The reason why it is no configuration of an image, without its name.
pub fn parse(bytes: &[u8]) -> Result<ConfigDocument, String> {
    serde_json::from_slice(bytes).map_err(|why| format!("its configuration cannot be read: {why}"))
}

/// Builders write `null` where a field has no value.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Sets are objects with empty objects in these documents; a list is read, too, as that is how it is recorded here.
fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Object(BTreeMap<String, serde::de::IgnoredAny>),
        List(BTreeSet<String>),
    }
    Ok(match Option::deserialize(deserializer)? {
        None => BTreeSet::new(),
        Some(Form::Object(object)) => object.into_keys().collect(),
        Some(Form::List(list)) => list,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_of_docker_is_read_with_nulls() {
        let text = br#"{"architecture":"amd64","os":"linux","created":"2026-01-01T00:00:00Z","config":{
            "Entrypoint":["/app"],"Cmd":null,"Env":["A=b"],"WorkingDir":"/w","User":"app:staff","StopSignal":"SIGQUIT",
            "ExposedPorts":{"8080/tcp":{},"53/udp":{},"90":{}},"Labels":null,"Volumes":{"/d":{}},"Healthcheck":{"Test":["x"]}},
            "rootfs":{"type":"layers","diff_ids":["sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]},
            "history":[{"created_by":"x"}]}"#;
        let document = parse(text).expect("valid");
        assert_eq!(document.platform.to_string(), "linux/amd64");
        assert_eq!(document.rootfs.diff_ids.len(), 1);
        let config = document.config;
        assert_eq!((config.entrypoint.len(), config.cmd.len(), config.user.as_str()), (1, 0, "app:staff"));
        assert_eq!(config.tcp_ports(), [90, 8080]);
        assert_eq!(config.stop_signal, "SIGQUIT");
        let written = serde_json::to_string(&config).expect("plain data");
        assert_eq!(serde_json::from_str::<ImageConfig>(&written).expect("its own text"), config);
    }

    #[test]
    fn config_without_config_is_empty() {
        assert_eq!(parse(b"{}").expect("valid").config, ImageConfig::default());
        assert!(parse(b"[]").is_err());
    }
}

//! The configuration of registries: flags, files and the credentials of this host's user.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use images::credentials::docker_config::DockerConfig;
use images::registry::{ProxySettings, RegistrySettings};

/// The settings of the registry configuration `file`, with the registries that flags name as insecure.
pub(crate) fn settings(file: Option<&Path>, insecure: &[String]) -> Result<RegistrySettings> {
    let mut settings = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("registry-config: {}", path.display()))?;
            toml::from_str(&text).with_context(|| format!("registry-config: {}", path.display()))?
        }
        None => RegistrySettings::default(),
    };
    settings.insecure_registries.extend(insecure.iter().cloned());
    settings.proxy = ProxySettings::from_environment().map_err(anyhow::Error::msg)?;
    settings.check().map_err(anyhow::Error::msg)?;
    Ok(settings)
}

/// docker's own: `$DOCKER_CONFIG`, else `~/.docker`.
pub(crate) fn docker_config() -> Result<DockerConfig> {
    let given = std::env::var_os("DOCKER_CONFIG").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    match given.or_else(home) {
        Some(folder) => DockerConfig::load(&folder).map_err(anyhow::Error::msg),
        None => Ok(DockerConfig::default()),
    }
}

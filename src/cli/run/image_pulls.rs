//! The source of container images.

use std::sync::Arc;
use std::time::Duration;

use ::control::controllers::revision::deferred_store::DeferredStore;
use ::control::controllers::revision::image_puller::ImagePuller;
use ::control::controllers::revision::images::ImageProvider;
use ::control::runtime::may_mount;
use anyhow::{Context as _, Result};
use images::StoreOptions;

use crate::cli::image::{IMAGES_FOLDER, registries};
use crate::config::RunConfig;

/// After a start, Revisions pin their images one by one. The quota removes no image before that.
const QUOTA_GRACE: Duration = Duration::from_secs(60);

/// # Errors A file of registry settings cannot be read or has a mistake.
pub(super) fn check(config: &RunConfig) -> Result<()> {
    registries::settings(config.registry_config.as_deref(), &config.insecure_registries)?;
    registries::docker_config().map(drop)
}

/// Opens the image store in the data folder. Returns `None` without root, as containers cannot run then.
pub(super) fn provider(config: &RunConfig) -> Result<Option<Arc<dyn ImageProvider>>> {
    let registries = registries::settings(config.registry_config.as_deref(), &config.insecure_registries)?;
    if !may_mount() {
        return Ok(None);
    }
    let quota_bytes = config.image_quota.map(|quota| quota.0);
    let options = StoreOptions { registries, quota_bytes, quota_grace: QUOTA_GRACE, ..StoreOptions::default() };
    let folder = std::path::absolute(config.data.join(IMAGES_FOLDER))?;
    let puller = ImagePuller::start(DeferredStore::new(folder, options), Arc::new(registries::docker_config()?))
        .context("image pulls")?;
    Ok(Some(Arc::new(puller)))
}

//! `sluicegate image pull|list|inspect|import|remove|prune`: the container images of a data folder.
//!
//! They work on the folder itself, whether an appliance runs on it or not: layers that it uses are locked.

mod progress;
pub(super) mod registries;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use images::registry::RegistrySettings;
use images::store::{ImageRecord, PrunePolicy};
use images::{Credentials, ImageStore, PullPolicy, Reference, StoreOptions};

use super::tell;
use crate::config::ByteSize;
use progress::ConsoleProgress;

/// The folder for images below `--data`.
pub(super) const IMAGES_FOLDER: &str = "images";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from its registry; layers that are here already are not pulled again
    Pull(PullArgs),
    /// List the images
    List(ImageListArgs),
    /// Print an image's digest, configuration and layers as JSON
    Inspect(NamedArgs),
    /// Add the images of a `docker save` archive, an OCI archive or an OCI layout folder, without any registry
    Import(ImportArgs),
    /// Remove an image, and its layers that no other image has; what is in use stays until it is not
    Remove(NamedArgs),
    /// Remove layers that no image has, and images that are not in use if asked to
    Prune(PruneArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageFolderArgs {
    /// The data folder, as for `run`
    #[arg(long, value_name = "DIR", env = "SLUICEGATE_DATA", default_value = "./sluicegate-data")]
    data: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    folder: ImageFolderArgs,
    /// The image, such as ghcr.io/knative/helloworld-go:latest
    reference: Reference,
    /// A registry whose certificate is not verified and that may speak plain HTTP; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    insecure_registry: Vec<String>,
    /// Mirrors, CA files and insecure registries (TOML)
    #[arg(long, value_name = "FILE")]
    registry_config: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImageListArgs {
    #[command(flatten)]
    folder: ImageFolderArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct NamedArgs {
    #[command(flatten)]
    folder: ImageFolderArgs,
    /// The image
    reference: Reference,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    #[command(flatten)]
    folder: ImageFolderArgs,
    /// The archive or folder
    path: PathBuf,
    /// The image's name, if the archive has none or another
    #[arg(long, value_name = "REFERENCE")]
    reference: Option<Reference>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    folder: ImageFolderArgs,
    /// Remove every image that is not in use
    #[arg(long, conflicts_with = "keep")]
    all: bool,
    /// Remove the least recently used images until the layers have at most this size
    #[arg(long, value_name = "SIZE")]
    keep: Option<ByteSize>,
}

pub(crate) fn run(verb: &ImageCommand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("the pull's runtime");
    let outcome = runtime.and_then(|runtime| runtime.block_on(carry_out(verb)));
    super::exit_code(outcome.and_then(|line| tell(&line)).map(|()| true))
}

async fn carry_out(verb: &ImageCommand) -> Result<String> {
    match verb {
        ImageCommand::Pull(args) => pull(args).await,
        ImageCommand::List(args) => list(args).await,
        ImageCommand::Inspect(args) => inspect(args).await,
        ImageCommand::Import(args) => import(args).await,
        ImageCommand::Remove(args) => remove(args).await,
        ImageCommand::Prune(args) => prune(args).await,
    }
}

/// Opens the images of a data folder. Only a verb that adds images creates the folder.
fn open(folder: &ImageFolderArgs, registries: RegistrySettings, may_make: bool) -> Result<ImageStore> {
    let path = folder.data.join(IMAGES_FOLDER);
    if !may_make && !path.exists() {
        bail!("{}: no images here: give the folder that `sluicegate run` has as --data", folder.data.display());
    }
    let options = StoreOptions { registries, ..StoreOptions::default() };
    Ok(ImageStore::open(&path, options)?)
}

async fn pull(args: &PullArgs) -> Result<String> {
    let settings = registries::settings(args.registry_config.as_deref(), &args.insecure_registry)?;
    let store = open(&args.folder, settings, true)?;
    let progress = Arc::new(ConsoleProgress::new(args.reference.to_string()));
    let shown = Arc::clone(&progress);
    let pulled = store.pull(&args.reference, &host_credentials()?, PullPolicy::Always, progress).await;
    shown.finish();
    let image = pulled?;
    Ok(format!("{} {} {}\n", image.reference, image.digest, size(image.bytes)))
}

fn host_credentials() -> Result<Credentials> {
    let mut credentials = Credentials::anonymous();
    credentials.set_host_config(Arc::new(registries::docker_config()?));
    Ok(credentials)
}

async fn list(args: &ImageListArgs) -> Result<String> {
    let records = open(&args.folder, RegistrySettings::default(), false)?.list().await?;
    if args.json {
        return Ok(format!("{}\n", serde_json::to_string_pretty(&records)?));
    }
    let width = records.iter().map(|record| record.reference.len()).max().unwrap_or(0).max(9);
    let mut text = format!("{:width$}  {:19}  {:>9}  LAST USED\n", "REFERENCE", "DIGEST", "SIZE");
    for record in &records {
        let ImageRecord { reference, bytes, last_used_s, .. } = record;
        let digest = record.digest.to_string();
        let used = jiff::Timestamp::from_second(i64::try_from(*last_used_s)?)?;
        writeln!(text, "{reference:width$}  {:19}  {:>9}  {used:.0}", &digest[..digest.len().min(19)], size(*bytes))?;
    }
    Ok(text)
}

async fn inspect(args: &NamedArgs) -> Result<String> {
    let records = open(&args.folder, RegistrySettings::default(), false)?.list().await?;
    let record = find(&records, &args.reference).with_context(|| missing(&args.reference))?;
    Ok(format!("{}\n", serde_json::to_string_pretty(record)?))
}

fn missing(reference: &Reference) -> String {
    format!("{reference} is not on this host; `sluicegate image list` lists the stored images")
}

/// By the reference itself, or by a digest of the same repository.
fn find<'r>(records: &'r [ImageRecord], reference: &Reference) -> Option<&'r ImageRecord> {
    let exact = records.iter().find(|record| record.reference == reference.to_string());
    exact.or_else(|| records.iter().find(|record| record.matches(reference)))
}

async fn import(args: &ImportArgs) -> Result<String> {
    let store = open(&args.folder, RegistrySettings::default(), true)?;
    let progress = Arc::new(ConsoleProgress::new(args.path.display().to_string()));
    let shown = Arc::clone(&progress);
    let imported = store.import(&args.path, args.reference.clone(), progress).await;
    shown.finish();
    let mut text = String::new();
    for image in imported? {
        writeln!(text, "{} {} {}", image.reference, image.digest, size(image.bytes))?;
    }
    Ok(text)
}

async fn remove(args: &NamedArgs) -> Result<String> {
    let store = open(&args.folder, RegistrySettings::default(), false)?;
    let records = store.list().await?;
    let record = find(&records, &args.reference).with_context(|| missing(&args.reference))?;
    let reference: Reference = record.reference.parse()?;
    store.remove(&reference).await?;
    Ok(format!("removed {reference}\n"))
}

async fn prune(args: &PruneArgs) -> Result<String> {
    let policy = match args.keep {
        Some(bytes) => PrunePolicy::KeepBytes(bytes.0),
        None if args.all => PrunePolicy::UnusedImages,
        None => PrunePolicy::UnusedLayers,
    };
    let report = open(&args.folder, RegistrySettings::default(), false)?.prune(policy).await?;
    let mut text = String::new();
    for image in &report.images {
        writeln!(text, "removed {image}")?;
    }
    writeln!(
        text,
        "{} images and {} layers removed, {} freed",
        report.images.len(),
        report.layers,
        size(report.bytes)
    )?;
    Ok(text)
}

/// A size in the largest unit that it has at least one of.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).min(4);
    let unit = UNITS[power as usize - 1];
    #[allow(clippy::cast_precision_loss, reason = "one digit is shown")]
    let value = bytes as f64 / (1_u64 << (10 * power)) as f64;
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_shown_in_their_unit() {
        let shown = [0, 1023, 1024, 1_572_864, 5 << 30, 1 << 60].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "5.0 GiB", "1048576.0 TiB"]);
    }
}

//! Manifests given at start: applied, and applied again when they change.
//!
//! The files are one more client of the API: server-side apply under a field manager of their own, with
//! a label that names the path they came from. Objects with the label that are no longer in the files
//! are deleted. Changes by other means stay until a file sets the field.

mod apply;
mod file_watch;
mod known_kind;
mod manifest_files;
mod validate;
mod yaml_lines;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kube::Client;

pub use manifest_files::{DOCUMENTS_MAX, FILE_BYTES_MAX, FILES_MAX, ManifestError, PATH_BYTES_MAX, objects};

pub use validate::{ManifestFinding, Severity, validate};

use file_watch::ManifestWatch;
use manifest_files::ManifestContents;
use support::{blocking, sha256};

/// Names the path that an object came from: the last part of the path, and a print of all of it.
pub const LABEL: &str = "sluicegate.dev/manifests";
/// The field manager of manifests.
pub const FIELD_MANAGER: &str = "sluicegate-manifests";

/// Files are checked when they have been quiet for this long: an editor, a copy or a checkout writes
/// several times.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// ... and at the latest after this.
const DEBOUNCE_MAX: Duration = Duration::from_secs(3);
/// How often documents that were refused are tried again: what they need may exist by then.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// How the manifests are, for the metrics.
#[derive(Debug, Default)]
pub struct ManifestMetrics {
    /// Documents found.
    pub documents: AtomicU64,
    /// Documents and files that are not applied.
    pub failed: AtomicU64,
    /// Objects that were deleted because their documents went.
    pub pruned: AtomicU64,
}

/// The manifests of one appliance.
pub struct ManifestApplier {
    client: Client,
    sources: Vec<ManifestSource>,
    watch: Option<ManifestWatch>,
    tally: Arc<ManifestMetrics>,
}

/// One path that was given.
#[derive(Debug)]
struct ManifestSource {
    path: PathBuf,
    label: String,
    /// A folder that is gone is a mistake (an unmounted disk); a file that is gone is a document that went.
    is_folder: bool,
    /// The hash of the last applied contents.
    hash: Option<u64>,
    documents: usize,
    errors: Vec<ManifestError>,
    /// What was told of documents that are applied.
    warnings: Vec<ManifestError>,
}

impl ManifestSource {
    fn new(path: PathBuf) -> Self {
        let (label, is_folder) = (label(&path), path.is_dir());
        Self { path, label, is_folder, hash: None, documents: 0, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Reading blocks, and a disk may be slow: not on the control thread.
    async fn read(&self) -> ManifestContents {
        let (path, may_be_gone) = (self.path.clone(), !self.is_folder);
        let reading = blocking::run("manifests", move || {
            if may_be_gone && !path.exists() { ManifestContents::default() } else { manifest_files::read(&path) }
        });
        reading.await.unwrap_or_else(|why| {
            let error = ManifestError { path: self.path.clone(), line: 0, message: why.to_string() };
            ManifestContents { errors: vec![error], ..ManifestContents::default() }
        })
    }

    /// Logs new warnings.
    fn set_warnings(&mut self, warnings: Vec<ManifestError>) {
        for warning in warnings.iter().filter(|warning| !self.warnings.contains(warning)) {
            tracing::warn!("manifest {warning}");
        }
        self.warnings = warnings;
    }

    /// Logs new errors.
    fn set_errors(&mut self, errors: Vec<ManifestError>) {
        for error in errors.iter().filter(|error| !self.errors.contains(error)) {
            tracing::error!("manifest {error}");
        }
        if errors.is_empty() && !self.errors.is_empty() {
            tracing::info!(path = %self.path.display(), "all manifests are applied now");
        }
        self.errors = errors;
    }
}

impl ManifestApplier {
    /// Watches the paths from here on. Has to be called in a Tokio runtime.
    #[must_use]
    pub fn new(client: Client, paths: &[PathBuf], tally: Arc<ManifestMetrics>) -> Self {
        let sources: Vec<_> = paths.iter().cloned().map(ManifestSource::new).collect();
        let watch = if sources.is_empty() { None } else { watch(&sources) };
        Self { client, sources, watch, tally }
    }

    /// Applies the files. An error is logged and skipped; nothing else waits for it.
    pub async fn apply(&mut self) {
        self.apply_changed().await;
        // A document may need what a later path brings.
        if self.sources.len() > 1 && self.sources.iter().any(|source| !source.errors.is_empty()) {
            self.apply_changed().await;
        }
    }

    /// Applies what changes, until dropped.
    pub async fn run(mut self) {
        while !self.sources.is_empty() {
            self.wait_for_change().await;
            if let Some(watch) = &self.watch {
                watch_sources(watch, &self.sources);
            }
            self.apply_changed().await;
        }
    }

    /// Ends when files changed and are quiet again, or when it is time to try again.
    async fn wait_for_change(&self) {
        let failed = self.sources.iter().any(|source| !source.errors.is_empty());
        let retry =
            async { if failed { tokio::time::sleep(RETRY_INTERVAL).await } else { std::future::pending().await } };
        tokio::select! {
            () = self.changed() => {}
            () = retry => return,
        }
        let more = async { while tokio::time::timeout(DEBOUNCE, self.changed()).await.is_ok() {} };
        let _ = tokio::time::timeout(DEBOUNCE_MAX, more).await; // either end will do
    }

    async fn changed(&self) {
        if let Some(watch) = &self.watch {
            match watch.changed().await {
                Ok(()) => return,
                Err(why) => tracing::error!(%why, "changes of manifests are seen at the next start only"),
            }
        }
        std::future::pending().await
    }

    /// Applies the paths that changed since they were applied, or that were not applied whole.
    async fn apply_changed(&mut self) {
        for source in &mut self.sources {
            let mut contents = source.read().await;
            if source.hash == Some(contents.hash) && source.errors.is_empty() {
                continue;
            }
            let mut errors = std::mem::take(&mut contents.errors);
            let whole = errors.is_empty();
            let done = apply::apply(&self.client, &source.label, contents.documents, whole).await;
            errors.extend(done.errors);
            let (path, documents, pruned) = (source.path.display(), done.documents, done.pruned);
            match errors.len() {
                0 => tracing::info!(%path, documents, pruned, "manifests applied"),
                failed => {
                    let told = "some manifests could not be applied; the lines below name them, and the objects of before stay";
                    tracing::error!(%path, documents, failed, pruned, "{told}");
                }
            }
            source.set_warnings(done.warnings);
            source.hash = Some(contents.hash);
            source.documents = done.documents;
            source.set_errors(errors);
            self.tally.pruned.fetch_add(done.pruned as u64, Relaxed);
        }
        let sum = |count: fn(&ManifestSource) -> usize| self.sources.iter().map(count).sum::<usize>() as u64;
        self.tally.documents.store(sum(|source| source.documents), Relaxed);
        self.tally.failed.store(sum(|source| source.errors.len()), Relaxed);
    }
}

fn watch(sources: &[ManifestSource]) -> Option<ManifestWatch> {
    match ManifestWatch::new() {
        Ok(watch) => {
            watch_sources(&watch, sources);
            Some(watch)
        }
        Err(why) => {
            tracing::error!(%why, "changes of manifests are seen at the next start only");
            None
        }
    }
}

fn watch_sources(watch: &ManifestWatch, sources: &[ManifestSource]) {
    for source in sources {
        if let Err(why) = watch.watch_path(&source.path) {
            tracing::error!(%why, path = %source.path.display(), "changes there may not be seen");
        }
    }
}

/// A label's value: at most 63 characters, of a few kinds.
fn label(path: &Path) -> String {
    /// Characters kept of the name, so that the label with its print is within 63.
    const NAME_CHARS_MAX: usize = 40;
    const PRINT_CHARS: usize = 10;
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let print = sha256::hex_digest(whole.as_os_str().as_encoded_bytes());
    let name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).take(NAME_CHARS_MAX).collect();
    format!("{}.{}", name.trim_matches(['-', '_', '.']), &print[..PRINT_CHARS]).trim_start_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_becomes_a_label_of_its_own() {
        let of = |path: &str| label(Path::new(path));
        assert!(of("/etc/sluicegate/apps").starts_with("apps."));
        assert_ne!(of("/a/apps"), of("/b/apps"));
        assert_eq!(of("/a/apps"), of("/a/apps"));
        for strange in ["/", "/..x", "/ä ö", &format!("/{}", "n".repeat(200))] {
            let label = of(strange);
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            assert!(label.len() <= 63 && label.chars().all(plain), "{label}");
            assert!(label.starts_with(|c: char| c.is_ascii_alphanumeric()), "{label}");
        }
    }
}

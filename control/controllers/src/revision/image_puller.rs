//! Images of Revisions, from their registries to this host: a tag is resolved once, then pulled by its digest before the
//! Revision is ready.
//!
//! Pulls run on a thread of their own, so that no reconcile waits for a registry. A failed pull is retried after a back-off that
//! doubles, and at once if its credentials have changed.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeFrom;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use container::process_config::{self, ImageProcess};
use contract::allocator;
use images::credentials::docker_config::DockerConfig;
use images::progress::{Progress, ProgressEvent};
use images::{Credentials, Digest, Image, ImageStore, PullPolicy, Reference};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

use super::deferred_store::DeferredStore;
use super::images::{ImageProvider, ImageRequest, ImageState, LocalImage};
use super::shared_images::SharedImages;
use crate::event_recorder::{EventMessage, EventSeverity};
use runtime::ContainerImage;

/// Delay before the first retry of a failed pull; doubled for each further one.
const BACKOFF_MIN: Duration = Duration::from_secs(2);
/// A registry that comes back is found within this time. The kubelet waits up to five minutes.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Pulls from registries at a time, of all Revisions: each has up to three downloads with some megabytes of buffers.
const PULLS_MAX: usize = 64;
/// Events of one image that wait to be recorded. Older ones are dropped.
const EVENTS_MAX: usize = 8;
/// How exact the progress in a condition is, in percent: each change is a write of the object.
const PROGRESS_STEP: u64 = 10;
/// The name of Docker Hub in resolved references of upstream and docker.
const DOCKER_HUB: (&str, &str) = ("docker.io/", "index.docker.io/");

/// Pulls for Revisions, from one store.
#[derive(Debug)]
pub struct ImagePuller {
    store: Arc<DeferredStore>,
    runtime: tokio::runtime::Handle,
    /// Logins of this host, after those of the namespace.
    host: Arc<DockerConfig>,
    pulls: Arc<Mutex<Pulls>>,
    images: Arc<Mutex<SharedImages>>,
    /// One for each pull from a registry. An image on this host needs no permit.
    permits: Arc<Semaphore>,
}

/// Revision and reference.
type PullKey = (String, String);
type Pulls = BTreeMap<PullKey, Pull>;

/// Where the pulls of one Revision begin, and whether a pull is one of them.
fn of_revision(revision: &str) -> (RangeFrom<PullKey>, impl Fn(&PullKey) -> bool) {
    ((revision.to_owned(), String::new()).., move |(owner, _)| owner == revision)
}

#[derive(Debug)]
struct Pull {
    state: ImageState,
    /// A hash of the credentials that the last attempt used.
    credentials_hash: u64,
    failures: u32,
    /// None while an attempt is in progress, and after a successful one.
    retry_at: Option<Instant>,
    events: Vec<EventMessage>,
    /// The attempt in progress. It ends when its Revision is gone. The handle of a finished one would keep its memory.
    attempt: Option<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ImagePuller {
    /// Pulls to `store`, on a thread that lives as long as the process.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(store: DeferredStore, host: Arc<DockerConfig>) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("image-pulls".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        let permits = Arc::new(Semaphore::new(PULLS_MAX));
        Ok(Self {
            store: Arc::new(store),
            runtime: handle,
            host,
            pulls: Arc::default(),
            images: Arc::default(),
            permits,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pulls> {
        lock(&self.pulls)
    }
}

fn lock(pulls: &Mutex<Pulls>) -> MutexGuard<'_, Pulls> {
    pulls.lock().unwrap_or_else(PoisonError::into_inner) // each change is one step
}

impl ImageProvider for ImagePuller {
    fn get(&self, request: &ImageRequest<'_>) -> ImageState {
        let key = (request.revision.to_owned(), request.reference.to_owned());
        let mut pulls = self.lock();
        let before = pulls.get(&key);
        if let Some(pull) = before.filter(|pull| !pull.is_due(request.credentials_hash, Instant::now())) {
            return pull.state.clone();
        }
        // A retry keeps the state of the failure until its outcome is known.
        let again = before.map(|pull| (pull.state.clone(), pull.failures)).filter(|(_, failures)| *failures > 0);
        let (state, failures) = again.unwrap_or_else(|| (ImageState::Pulling(resolving(request.reference)), 0));
        let message = format!("Pulling image \"{}\".", request.reference);
        let events = vec![event_message(EventSeverity::Normal, "Pulling", message)];
        let mut credentials = request.credentials.clone();
        credentials.set_host_config(Arc::clone(&self.host));
        let task = PullTask {
            key: key.clone(),
            credentials,
            resolved: request.resolved.map(str::to_owned),
            skips_resolving: request.skips_resolving,
            resolution_timeout: request.resolution_timeout,
            pull_policy: request.pull_policy,
            store: Arc::clone(&self.store),
            pulls: Arc::clone(&self.pulls),
            images: Arc::clone(&self.images),
            permits: Arc::clone(&self.permits),
        };
        // The lock is held until the task's entry is there.
        let attempt = self.runtime.spawn(task.run()).abort_handle();
        let pull = Pull {
            state: state.clone(),
            credentials_hash: request.credentials_hash,
            failures,
            retry_at: None,
            events: if failures == 0 { events } else { Vec::new() },
            attempt: Some(AbortOnDrop(attempt)),
        };
        // As long as the Revision.
        let _stays = allocator::long_lived();
        pulls.insert(key.clone(), pull);
        state
    }

    fn take_events(&self, revision: &str) -> Vec<EventMessage> {
        let mut pulls = self.lock();
        let (from, is_own) = of_revision(revision);
        let own = pulls.range_mut(from).take_while(|(key, _)| is_own(key));
        own.flat_map(|(_, pull)| std::mem::take(&mut pull.events)).collect()
    }

    fn forget(&self, revision: &str) {
        let mut pulls = self.lock();
        let (from, is_own) = of_revision(revision);
        let own: Vec<_> = pulls.range(from).map(|(key, _)| key).take_while(|key| is_own(key)).cloned().collect();
        own.iter().for_each(|key| drop(pulls.remove(key)));
    }
}

impl Pull {
    fn is_due(&self, credentials_hash: u64, now: Instant) -> bool {
        let has_failed = matches!(self.state, ImageState::Failed { .. });
        let (Some(retry_at), true) = (self.retry_at, has_failed) else { return false };
        retry_at <= now || self.credentials_hash != credentials_hash
    }

    fn push_event(&mut self, event: EventMessage) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

fn event_message(level: EventSeverity, reason: &str, message: String) -> EventMessage {
    EventMessage { level, reason: reason.to_owned(), message }
}

fn resolving(reference: &str) -> String {
    format!("Resolving image \"{reference}\" to a digest.")
}

/// One attempt.
struct PullTask {
    key: (String, String),
    credentials: Credentials,
    /// The digest of the tag when it was first resolved.
    resolved: Option<String>,
    skips_resolving: bool,
    resolution_timeout: Duration,
    pull_policy: Option<PullPolicy>,
    store: Arc<DeferredStore>,
    pulls: Arc<Mutex<Pulls>>,
    images: Arc<Mutex<SharedImages>>,
    permits: Arc<Semaphore>,
}

impl PullTask {
    async fn run(self) {
        let started = Instant::now();
        let outcome = self.pull().await;
        let mut pulls = lock(&self.pulls);
        // The Revision may be gone.
        let Some(pull) = pulls.get_mut(&self.key) else { return };
        pull.attempt = None;
        match outcome {
            Ok(image) => {
                let took = started.elapsed().as_millis();
                let message = format!("Image \"{}\" is on this host after {took} ms, {} bytes.", self.key.1, image.1);
                pull.push_event(event_message(EventSeverity::Normal, "Pulled", message));
                pull.failures = 0;
                let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
                pull.state = ImageState::Present(images.share(image.0));
            }
            Err(failure) => {
                pull.failures += 1;
                let pause = backoff(pull.failures);
                pull.retry_at = Some(Instant::now() + pause);
                pull.push_event(event_message(EventSeverity::Warning, "Failed", failure.message.clone()));
                pull.state = failed(&failure, &self.key.1, pull.failures, pause);
            }
        }
    }

    async fn pull(&self) -> Result<(LocalImage, u64), PullFailure> {
        let reference: Reference = self.key.1.parse().map_err(|error| PullFailure::new(&error))?;
        let store = self.store.get().map_err(|error| PullFailure::new(&error))?;
        if let Some(here) = self.present(&reference, &store).await? {
            return Ok(here);
        }
        let target = self.target(&reference, &store).await?;
        let image = match store.get(&target).await.map_err(|error| PullFailure::new(&error))? {
            Some(image) => image,
            None => self.pull_missing(&target, &store).await.map_err(|error| PullFailure::new(&error))?,
        };
        if self.pull_policy.is_some() && self.resolved.is_none() {
            // The next Pod finds it by its tag. A Pod that runs again may have an older image than the tag.
            store.set_tag(&reference, &target).await.map_err(|error| PullFailure::new(&error))?;
        }
        let digest = target.digest().map(|digest| by_digest(&target, digest)).unwrap_or_default();
        let bytes = image.bytes;
        Ok((local(image, digest), bytes))
    }

    /// The image by its tag, if it is on this host and the policy of the Pod asks no registry then. A digest that was resolved
    /// for the Pod goes before its tag.
    async fn present(
        &self,
        reference: &Reference,
        store: &ImageStore,
    ) -> Result<Option<(LocalImage, u64)>, PullFailure> {
        let is_never = self.pull_policy == Some(PullPolicy::Never);
        if !(is_never || self.pull_policy == Some(PullPolicy::IfNotPresent) && self.resolved.is_none()) {
            return Ok(None);
        }
        let found = store.get(reference).await.map_err(|error| PullFailure::new(&error))?;
        match found {
            Some(image) => {
                let (digest, bytes) = (by_digest(reference, &image.digest), image.bytes);
                Ok(Some((local(image, digest), bytes)))
            }
            None if is_never => {
                let message = format!("Container image \"{}\" is not present with pull policy of Never", self.key.1);
                Err(PullFailure { reason: "ErrImageNeverPull", message })
            }
            None => Ok(None),
        }
    }

    async fn pull_missing(&self, target: &Reference, store: &ImageStore) -> Result<Image, images::Error> {
        let closed = |_| images::Error::Cancelled(self.key.1.clone());
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let (pulls, key) = (Arc::clone(&self.pulls), self.key.clone());
        let progress = Arc::new(ConditionProgress { pulls, key, layers: Mutex::default() });
        store.pull(target, &self.credentials, PullPolicy::IfNotPresent, progress).await
    }

    /// The image by digest, or by tag if the tags of its registry are not resolved.
    async fn target(&self, reference: &Reference, store: &ImageStore) -> Result<Reference, PullFailure> {
        let known = self.resolved.as_deref().and_then(|resolved| resolved.parse::<Reference>().ok());
        if let Some(digest) = known.as_ref().and_then(Reference::digest).or(reference.digest()) {
            return Ok(reference.with_digest(digest.clone()));
        }
        if self.skips_resolving {
            return Ok(reference.clone());
        }
        let resolve = store.resolve(reference, &self.credentials);
        match tokio::time::timeout(self.resolution_timeout, resolve).await {
            Ok(Ok(digest)) => Ok(reference.with_digest(digest)),
            Ok(Err(error)) => Err(PullFailure::unresolved(reference, error.reason(), &error.to_string())),
            Err(_) => {
                let timeout = self.resolution_timeout;
                let why = format!("no answer within {timeout:?}; see digest-resolution-timeout in config-deployment");
                Err(PullFailure::unresolved(reference, "ErrImagePull", &why))
            }
        }
    }
}

/// The reason and message of a condition.
struct PullFailure {
    reason: &'static str,
    message: String,
}

impl PullFailure {
    fn new(error: &images::Error) -> Self {
        Self { reason: error.reason(), message: error.to_string() }
    }

    /// In upstream's words, which its tools and tests look for.
    fn unresolved(reference: &Reference, reason: &'static str, why: &str) -> Self {
        Self {
            reason,
            message: format!("Unable to fetch image \"{reference}\": failed to resolve image to digest: {why}"),
        }
    }
}

/// The first failure has its own reason. From the second on it is the kubelet's `ImagePullBackOff`, unless a retry alone cannot
/// help.
fn failed(failure: &PullFailure, reference: &str, failures: u32, pause: Duration) -> ImageState {
    let PullFailure { reason, message } = failure;
    if failures > 1 && matches!(*reason, "ErrImagePull" | "RegistryUnavailable") {
        let message = format!("Back-off pulling image \"{reference}\", again in {} s: {message}", pause.as_secs());
        return ImageState::Failed { reason: "ImagePullBackOff", message };
    }
    ImageState::Failed { reason, message: message.clone() }
}

fn backoff(failures: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(BACKOFF_MAX)
}

/// `REPOSITORY@DIGEST` in upstream's form.
fn by_digest(reference: &Reference, digest: &Digest) -> String {
    let text = format!("{}@{digest}", reference.name());
    match text.strip_prefix(DOCKER_HUB.0) {
        Some(rest) => format!("{}{rest}", DOCKER_HUB.1),
        None => text,
    }
}

fn local(image: Image, digest: String) -> LocalImage {
    let config = ImageProcess {
        entrypoint: image.config.entrypoint.clone(),
        cmd: image.config.cmd.clone(),
        env: image.config.env.clone(),
        working_dir: image.config.working_dir.clone(),
        user: image.config.user.clone(),
        stop_signal: image.config.stop_signal.clone(),
    };
    let container = ContainerImage {
        layers: image.layers.clone().into(),
        user: config.user.clone(),
        stop_signal: process_config::stop_signal(&config),
        pin: Arc::new(image.pin),
    };
    LocalImage { image: container, config, digest }
}

/// Progress as a condition's message.
#[derive(Debug)]
struct ConditionProgress {
    pulls: Arc<Mutex<Pulls>>,
    key: (String, String),
    layers: Mutex<LayerBytes>,
}

/// Compressed bytes of the layers that are missing.
#[derive(Debug, Default)]
struct LayerBytes {
    total: u64,
    arrived: HashMap<Digest, u64>,
    reported: Option<u64>,
}

impl LayerBytes {
    /// The progress in percent, if it differs from the last one.
    fn change(&mut self, event: &ProgressEvent) -> Option<u64> {
        match event {
            ProgressEvent::Started { bytes, .. } => self.total = *bytes,
            ProgressEvent::Downloaded { layer, bytes, .. } => {
                self.arrived.insert(layer.clone(), *bytes);
            }
            _ => {}
        }
        let arrived: u64 = self.arrived.values().sum();
        let percent = arrived.saturating_mul(100).checked_div(self.total).unwrap_or(0) / PROGRESS_STEP * PROGRESS_STEP;
        (self.reported.replace(percent) != Some(percent)).then_some(percent)
    }
}

impl Progress for ConditionProgress {
    fn event(&self, event: &ProgressEvent) {
        let change = self.layers.lock().unwrap_or_else(PoisonError::into_inner).change(event);
        let Some(percent) = change else { return };
        let mut pulls = lock(&self.pulls);
        // A retry keeps the message of the failure.
        if let Some(Pull { state: ImageState::Pulling(message), .. }) = pulls.get_mut(&self.key) {
            *message = format!("Pulling image \"{}\": {percent} percent downloaded.", self.key.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use images::StoreOptions;

    use super::*;

    #[test]
    fn pause_doubles_up_to_its_limit() {
        let pauses = [1, 2, 3, 6, 60].map(backoff).map(|pause| pause.as_secs());
        assert_eq!(pauses, [2, 4, 8, 60, 60]);
    }

    #[test]
    fn failure_that_repeats_is_a_back_off() {
        let reason = |reason, failures| {
            let failure = PullFailure { reason, message: "why".into() };
            match failed(&failure, "app", failures, Duration::from_secs(4)) {
                ImageState::Failed { reason, message } => (reason, message),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(reason("ErrImagePull", 1), ("ErrImagePull", "why".into()));
        let message = "Back-off pulling image \"app\", again in 4 s: why";
        assert_eq!(reason("ErrImagePull", 2), ("ImagePullBackOff", message.into()));
        assert_eq!(reason("ContainerMissing", 3).0, "ContainerMissing");
    }

    #[test]
    fn pull_of_a_deleted_revision_is_aborted() {
        let registry = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let store = DeferredStore::new(folder.path().join("images"), StoreOptions::default());
        let puller = ImagePuller::start(store, Arc::default()).expect("a thread");
        let reference = format!("{}/app:v1", registry.local_addr().expect("bound"));
        let state = puller.get(&ImageRequest {
            revision: "default/app-00001",
            reference: &reference,
            resolved: None,
            credentials: &Credentials::anonymous(),
            credentials_hash: 0,
            skips_resolving: false,
            resolution_timeout: Duration::from_secs(60),
            pull_policy: None,
        });
        assert!(matches!(state, ImageState::Pulling(_)), "{state:?}");
        let (mut connection, _) = registry.accept().expect("the pull");
        puller.forget("default/app-00001");
        // The registry never answers, so only the client can close the connection.
        connection.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let ended = std::io::copy(&mut connection, &mut std::io::sink());
        assert!(
            ended.as_ref().map_or_else(|why| why.kind() == std::io::ErrorKind::ConnectionReset, |_| true),
            "{ended:?}"
        );
    }

    #[test]
    fn resolved_reference_has_upstreams_form() {
        let digest = Digest::of(b"");
        let pinned = |text: &str| by_digest(&text.parse().expect("valid"), &digest);
        assert_eq!(pinned("nginx:1"), format!("index.docker.io/library/nginx@{digest}"));
        assert_eq!(pinned("ghcr.io/a/b"), format!("ghcr.io/a/b@{digest}"));
    }

    #[test]
    fn progress_is_reported_in_steps() {
        let mut layers = LayerBytes::default();
        let mut arrive =
            |bytes| layers.change(&ProgressEvent::Downloaded { layer: Digest::of(b""), bytes, total: 100 });
        assert_eq!([arrive(0), arrive(1)], [Some(0), None]);
        let started = ProgressEvent::Started { layers: 1, missing_layers: 1, bytes: 100 };
        assert_eq!(layers.change(&started), None);
        let mut arrive =
            |bytes| layers.change(&ProgressEvent::Downloaded { layer: Digest::of(b""), bytes, total: 100 });
        assert_eq!([arrive(9), arrive(10), arrive(19), arrive(100)], [None, Some(10), None, Some(100)]);
    }
}

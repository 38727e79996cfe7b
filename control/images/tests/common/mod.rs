//! Fixtures that the tests of this folder share.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use images::progress::ProgressEvent;
use images::registry::RegistrySettings;
use images::unpack::Unpacker;
use images::{Credentials, Error, Image, ImageStore, Progress, PullPolicy, Reference, StoreOptions};
use kit::registry::{TestImage, TestLayer};

/// Short pauses, so that retries cost no time; timeouts are long enough for a busy machine.
pub(crate) fn options() -> StoreOptions {
    let mut registries = RegistrySettings::default();
    registries.limits.backoff_min = Duration::from_millis(5);
    registries.limits.backoff_max = Duration::from_millis(1_500);
    registries.limits.attempts_max = 4;
    StoreOptions { registries, unpacker: Unpacker::InProcess, ..StoreOptions::default() }
}

pub(crate) fn store(folder: &Path) -> ImageStore {
    ImageStore::open(folder, options()).expect("a store")
}

pub(crate) fn reference(text: &str) -> Reference {
    text.parse().expect("a valid reference")
}

/// One layer with a file of `content`, gzip.
pub(crate) fn image(content: &str) -> TestImage {
    let tar = TestLayer::files(&[("greeting", 0o644, content.as_bytes())]);
    TestImage::new(vec![TestLayer::gzip(&tar)], r#"{"Cmd":["/bin/true"]}"#)
}

/// A layer whose content does not compress.
pub(crate) fn large_layer(bytes: usize, seed: u64) -> TestLayer {
    let mut random = fastrand::Rng::with_seed(seed);
    let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
    TestLayer::gzip(&TestLayer::files(&[(&format!("large-{seed}"), 0o644, &content)]))
}

pub(crate) async fn ensure(store: &ImageStore, name: &str) -> Result<Image, Error> {
    store.ensure(&reference(name), &Credentials::anonymous()).await
}

pub(crate) async fn pull(store: &ImageStore, name: &str, progress: &Arc<Recorder>) -> Result<Image, Error> {
    let progress = Arc::clone(progress) as Arc<dyn Progress>;
    store.pull(&reference(name), &Credentials::anonymous(), PullPolicy::Always, progress).await
}

pub(crate) fn text(image: &Image, name: &str) -> String {
    let path = image.layers.iter().rev().map(|layer| layer.join(name)).find(|path| path.exists());
    std::fs::read_to_string(path.expect("a layer has it")).expect("readable")
}

/// True if nothing is left of a pull that failed.
pub(crate) fn is_clean(folder: &Path) -> bool {
    let count = |name: &str| std::fs::read_dir(folder.join(name)).expect("a store").count();
    let staging = std::fs::read_dir(folder.join("staging")).expect("a store");
    let work = staging.flat_map(|own| std::fs::read_dir(own.expect("read").path()).expect("read"));
    count("layers") == 0 && count("records") == 0 && work.flatten().all(|entry| entry.file_name() == "lock")
}

/// Unpacking sets owners, which takes root.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: unpacking takes root");
    }
    is_root
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(Mutex<Vec<ProgressEvent>>);

impl Recorder {
    pub(crate) fn events(&self) -> Vec<ProgressEvent> {
        self.0.lock().expect("no panic").clone()
    }

    pub(crate) fn retries(&self) -> usize {
        self.events().iter().filter(|event| matches!(event, ProgressEvent::Retrying { .. })).count()
    }
}

impl Progress for Recorder {
    fn event(&self, event: &ProgressEvent) {
        self.0.lock().expect("no panic").push(event.clone());
    }
}

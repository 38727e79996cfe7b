//! Registries that fail, send wrong content or reject requests.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Recorder, ensure, image, is_clean, is_root, large_layer, options, pull, store, text};
use images::registry::RegistryEntry;
use images::{Error, ImageStore};
use kit::registry::{RegistryFault, RegistryLogin, TestImage, TestRegistry, sha256};

fn registry_with(image: &TestImage) -> (TestRegistry, String) {
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", image);
    let name = registry.reference("app", "v1");
    (registry, name)
}

#[tokio::test]
async fn cut_connection_resumes_where_it_broke() {
    if !is_root() {
        return;
    }
    let layer = large_layer(3_000_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    // More cuts than attempts: each brings progress.
    registry.fail(&layer.digest(), RegistryFault::CutAfter(500_000), 5);
    let folder = tempfile::tempdir().expect("a folder");
    ensure(&store(folder.path()), &name).await.expect("pulled");
    let requests = registry.requests_for(&layer.digest());
    assert_eq!(requests.len(), 6);
    assert_eq!(requests[0].range, None);
    let from = |at: usize| -> u64 {
        let range = requests[at].range.as_deref().expect("a range");
        range.trim_start_matches("bytes=").trim_end_matches('-').parse().expect("a number")
    };
    assert!((1..6).all(|at| from(at) > if at == 1 { 0 } else { from(at - 1) }), "{requests:?}");
}

#[tokio::test]
async fn registry_without_ranges_is_downloaded_from_the_start() {
    if !is_root() {
        return;
    }
    let layer = large_layer(1_000_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::CutAfter(400_000), 1);
    registry.fail(&layer.digest(), RegistryFault::IgnoreRange, 1);
    let folder = tempfile::tempdir().expect("a folder");
    ensure(&store(folder.path()), &name).await.expect("pulled");
}

#[tokio::test]
async fn stalled_download_resumes_after_its_timeout() {
    if !is_root() {
        return;
    }
    let layer = large_layer(1_000_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::StallAfter(300_000), 1);
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = options();
    options.registries.limits.progress_timeout = Duration::from_millis(500);
    let store = ImageStore::open(folder.path(), options).expect("a store");
    ensure(&store, &name).await.expect("pulled");
    assert!(registry.requests_for(&layer.digest()).len() >= 2);
}

#[tokio::test]
async fn download_of_a_byte_at_a_time_fails() {
    let layer = large_layer(1_000_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::Drip, usize::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = options();
    options.registries.limits.progress_timeout = Duration::from_millis(500);
    let store = ImageStore::open(folder.path(), options).expect("a store");
    let error = ensure(&store, &name).await.expect_err("too slow");
    assert!(error.to_string().contains("the next bytes of a layer"), "{error}");
    assert_eq!(registry.requests_for(&layer.digest()).len(), 4);
    assert!(is_clean(folder.path()));
}

#[tokio::test]
async fn download_that_never_progresses_fails() {
    let layer = large_layer(1_000_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::CutAfter(0), usize::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &name).await.expect_err("no progress");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(registry.requests_for(&layer.digest()).len(), 4);
    assert!(is_clean(folder.path()));
}

#[tokio::test]
async fn corrupt_layer_is_refused_and_named() {
    let layer = large_layer(100_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::FlipFirstByte, usize::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let error = ensure(&store, &name).await.expect_err("corrupt");
    assert!(matches!(&error, Error::Corrupt { digest, .. } if digest.to_string() == layer.digest()), "{error}");
    assert!(error.to_string().contains(&layer.digest()) && error.to_string().contains(&name), "{error}");
    assert_eq!(registry.requests_for(&layer.digest()).len(), 2);
    assert!(is_clean(folder.path()));
}

#[tokio::test]
async fn layer_corrupted_once_is_downloaded_again() {
    if !is_root() {
        return;
    }
    let layer = large_layer(100_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    registry.fail(&layer.digest(), RegistryFault::FlipFirstByte, 1);
    let folder = tempfile::tempdir().expect("a folder");
    ensure(&store(folder.path()), &name).await.expect("pulled");
}

#[tokio::test]
async fn blob_of_another_size_is_refused() {
    for bytes in [vec![1; 10], vec![1; 1_000_000]] {
        let layer = large_layer(100_000, 1);
        let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
        registry.put_blob("app", &layer.digest(), bytes);
        let folder = tempfile::tempdir().expect("a folder");
        let error = ensure(&store(folder.path()), &name).await.expect_err("another size");
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert!(is_clean(folder.path()));
    }
}

#[tokio::test]
async fn layer_that_is_not_the_configurations_is_refused() {
    if !is_root() {
        return;
    }
    // The blob is what the manifest says, but not what the configuration says.
    let (one, two) = (TestImage::new(vec![large_layer(1_000, 1)], "{}"), large_layer(1_000, 2));
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &one);
    registry.put_blob("app", &two.digest(), TestImage::new(vec![two.clone()], "{}").blobs()[0].1.clone());
    let first = large_layer(1_000, 1);
    let manifest = one.manifest().replace(&first.digest(), &two.digest());
    let manifest = manifest.replace(&format!("\"size\":{}}}]", first.bytes()), &format!("\"size\":{}}}]", two.bytes()));
    registry.put_manifest("app", "v1", "application/vnd.oci.image.manifest.v1+json", manifest.into_bytes());
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &registry.reference("app", "v1")).await.expect_err("another DiffID");
    assert!(error.to_string().contains("its content is"), "{error}");
    assert!(is_clean(folder.path()));
}

#[tokio::test]
async fn manifest_of_another_digest_is_refused() {
    let (registry, _) = registry_with(&image("x"));
    let wanted = sha256(b"another");
    let bytes = image("y").manifest().into_bytes();
    registry.put_manifest("app", &wanted, "application/vnd.oci.image.manifest.v1+json", bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("{}/app@{wanted}", registry.address());
    let error = ensure(&store(folder.path()), &name).await.expect_err("another digest");
    assert!(matches!(error, Error::Corrupt { part: "manifest", .. }), "{error}");
}

#[tokio::test]
async fn too_large_manifest_is_refused() {
    let (registry, name) = registry_with(&image("x"));
    let bytes = vec![b' '; (4 << 20) + 1];
    registry.put_manifest("app", "v1", "application/vnd.oci.image.manifest.v1+json", bytes);
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &name).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn busy_registry_is_asked_again() {
    if !is_root() {
        return;
    }
    let (registry, name) = registry_with(&image("x"));
    registry.fail("/manifests/", RegistryFault::Status(503, vec![]), 1);
    registry.fail("/manifests/", RegistryFault::Status(429, vec![("Retry-After", "1".into())]), 1);
    let folder = tempfile::tempdir().expect("a folder");
    let progress = Arc::new(Recorder::default());
    let started = std::time::Instant::now();
    pull(&store(folder.path()), &name, &progress).await.expect("pulled");
    assert_eq!(progress.retries(), 2);
    assert!(started.elapsed() >= Duration::from_secs(1), "Retry-After was not honoured");
}

#[tokio::test]
async fn rate_limit_past_our_timeout_fails_at_once() {
    let (registry, name) = registry_with(&image("x"));
    registry.fail("/manifests/", RegistryFault::Status(429, vec![("Retry-After", "3600".into())]), usize::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &name).await.expect_err("limited");
    let hour = Some(Duration::from_secs(3600));
    assert!(matches!(&error, Error::RateLimited { retry_after, .. } if *retry_after == hour), "{error}");
    assert!(error.is_temporary());
    assert_eq!(registry.requests().len(), 1);
}

#[tokio::test]
async fn redirect_to_another_host_carries_no_authorization() {
    if !is_root() {
        return;
    }
    let layer = large_layer(100_000, 1);
    let image = TestImage::new(vec![layer.clone()], "{}");
    let elsewhere = TestRegistry::start(RegistryLogin::None);
    elsewhere.push("store", "v1", &image);
    let registry = TestRegistry::start(RegistryLogin::Bearer { user: None, requests_per_token: 100 });
    registry.push("app", "v1", &image);
    let target = format!("http://{}/v2/store/blobs/{}", elsewhere.address(), layer.digest());
    registry.fail(&layer.digest(), RegistryFault::Status(307, vec![("Location", target)]), 1);
    let folder = tempfile::tempdir().expect("a folder");
    ensure(&store(folder.path()), &registry.reference("app", "v1")).await.expect("pulled");
    let requests = elsewhere.requests();
    assert_eq!((requests.len(), requests[0].authorization.as_deref()), (1, None));
    assert!(registry.requests_for(&layer.digest())[0].authorization.is_some());
}

#[tokio::test]
async fn endless_redirects_are_cut_off() {
    let layer = large_layer(1_000, 1);
    let (registry, name) = registry_with(&TestImage::new(vec![layer.clone()], "{}"));
    let target = format!("/v2/app/blobs/{}", layer.digest());
    registry.fail(&layer.digest(), RegistryFault::Status(302, vec![("Location", target)]), usize::MAX);
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &name).await.expect_err("a loop");
    assert!(error.to_string().contains("redirects"), "{error}");
    assert_eq!(registry.requests_for(&layer.digest()).len(), 6);
}

#[tokio::test]
async fn mirror_is_asked_first_and_may_fail() {
    if !is_root() {
        return;
    }
    let (registry, name) = registry_with(&image("from the registry"));
    let mirror = TestRegistry::start(RegistryLogin::None);
    let mut options = options();
    let entry = RegistryEntry { mirrors: vec![mirror.address().to_string()], ca_file: None };
    options.registries.registry.insert(registry.address().to_string(), entry);
    let folder = tempfile::tempdir().expect("a folder");
    let store = ImageStore::open(folder.path(), options).expect("a store");
    let pulled = ensure(&store, &name).await.expect("pulled");
    assert_eq!(text(&pulled, "greeting"), "from the registry");
    assert!(mirror.requests()[0].path.ends_with(&format!("?ns={}", registry.address())));

    mirror.push("app", "v2", &image("from the mirror"));
    let before = registry.requests().len();
    let pulled = ensure(&store, &registry.reference("app", "v2")).await.expect("pulled");
    assert_eq!((text(&pulled, "greeting").as_str(), registry.requests().len()), ("from the mirror", before));
}

#[tokio::test]
async fn unreachable_registry_is_named() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &format!("{free}/app:v1")).await.expect_err("no registry");
    assert!(matches!(error, Error::Unreachable { .. }) && error.is_temporary(), "{error}");
    assert!(error.to_string().contains(&free.to_string()), "{error}");
}

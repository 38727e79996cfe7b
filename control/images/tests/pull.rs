//! Pulls from a working registry: image formats, credentials, sharing.

mod common;

use std::sync::Arc;

use common::{Recorder, ensure, image, is_root, large_layer, pull, reference, store, text};
use images::credentials::SECRET_TYPE_DOCKER_CONFIG_JSON;
use images::progress::ProgressEvent;
use images::{Credentials, Error, PullPolicy};
use kit::registry::{RegistryFault, RegistryLogin, TestImage, TestLayer, TestRegistry};

fn login(registry: &TestRegistry, entry: &str) -> Credentials {
    let mut credentials = Credentials::anonymous();
    let payload = format!(r#"{{"auths":{{"{}":{entry}}}}}"#, registry.address());
    credentials.add_secret("s", SECRET_TYPE_DOCKER_CONFIG_JSON, payload.as_bytes()).expect("valid");
    credentials
}

const USER: &str = r#"{"username":"u","password":"p"}"#;

#[tokio::test]
async fn each_compression_and_media_type_is_pulled() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let tar = |text: &str| TestLayer::files(&[("greeting", 0o644, text.as_bytes())]);
    for (name, layer, is_docker) in [
        ("gzip", TestLayer::gzip(&tar("gzip")), false),
        ("zstd", TestLayer::zstd(&tar("zstd")), false),
        ("plain", TestLayer::plain(tar("plain")), false),
        ("docker", TestLayer::gzip(&tar("docker")), true),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let image = TestImage::new(vec![layer], r#"{"Entrypoint":["/app"],"User":"7"}"#);
        let image = if is_docker { image.docker() } else { image };
        let digest = registry.push(name, "v1", &image);
        let pulled = ensure(&store(folder.path()), &registry.reference(name, "v1")).await.expect(name);
        assert_eq!((text(&pulled, "greeting").as_str(), pulled.digest.to_string()), (name, digest));
        assert_eq!(
            (pulled.config.entrypoint.as_slice(), pulled.config.user.as_str()),
            (["/app".to_owned()].as_slice(), "7")
        );
    }
}

#[tokio::test]
async fn index_gives_the_image_of_this_platform() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let (own, other) = (image("own"), image("other"));
    let host = images::Platform::host().to_string();
    let digest = registry.push_index("app", "v1", &[("linux/s390x", &other), (host.as_str(), &own)]);
    let folder = tempfile::tempdir().expect("a folder");
    let pulled = ensure(&store(folder.path()), &registry.reference("app", "v1")).await.expect("pulled");
    assert_eq!((text(&pulled, "greeting").as_str(), pulled.digest.to_string()), ("own", digest));

    registry.push_index("app", "v2", &[("linux/s390x", &other), ("windows/amd64", &other)]);
    let error = ensure(&store(folder.path()), &registry.reference("app", "v2")).await.expect_err("no platform");
    assert!(matches!(error, Error::NoMatchingPlatform { .. }), "{error}");
    assert!(error.to_string().contains("linux/s390x, windows/amd64"), "{error}");
}

#[tokio::test]
async fn missing_image_is_not_found() {
    let registry = TestRegistry::start(RegistryLogin::None);
    let folder = tempfile::tempdir().expect("a folder");
    let error = ensure(&store(folder.path()), &registry.reference("none", "v1")).await.expect_err("missing");
    assert_eq!(error.reason(), "ContainerMissing");
    assert!(error.to_string().contains("none:v1") && error.to_string().contains("not in this registry"), "{error}");
}

#[tokio::test]
async fn basic_login_is_sent_only_when_it_is_asked_for() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::Basic { user: "u".into(), password: "p".into() });
    registry.push("app", "v1", &image("private"));
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let name = reference(&registry.reference("app", "v1"));
    let error = store.ensure(&name, &Credentials::anonymous()).await.expect_err("anonymous");
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    let wrong = login(&registry, r#"{"username":"u","password":"x"}"#);
    assert!(matches!(store.ensure(&name, &wrong).await, Err(Error::Unauthorized { .. })));
    assert!(matches!(store.resolve(&name, &wrong).await, Err(Error::Unauthorized { .. })));

    store.resolve(&name, &login(&registry, USER)).await.expect("resolved");
    let pulled = store.ensure(&name, &login(&registry, USER)).await.expect("pulled");
    assert_eq!(text(&pulled, "greeting"), "private");
    assert_eq!(registry.requests()[0].authorization, None);
}

#[tokio::test]
async fn second_login_is_tried_when_the_first_is_refused() {
    if !is_root() {
        return;
    }
    let user = Some(("u".to_owned(), "p".to_owned()));
    for kind in [
        RegistryLogin::Basic { user: "u".into(), password: "p".into() },
        RegistryLogin::Bearer { user, requests_per_token: 100 },
    ] {
        let registry = TestRegistry::start(kind);
        registry.push("app", "v1", &image("private"));
        let mut credentials = login(&registry, r#"{"username":"old","password":"old"}"#);
        let payload = format!(r#"{{"auths":{{"{}":{USER}}}}}"#, registry.address());
        credentials.add_secret("t", SECRET_TYPE_DOCKER_CONFIG_JSON, payload.as_bytes()).expect("valid");
        let folder = tempfile::tempdir().expect("a folder");
        let name = reference(&registry.reference("app", "v1"));
        store(folder.path()).ensure(&name, &credentials).await.expect("pulled");
    }
}

#[tokio::test]
async fn login_without_access_makes_way_for_the_next() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::Basic { user: "u".into(), password: "p".into() });
    registry.push("app", "v1", &image("private"));
    // The first request with a login is refused as known, but not allowed.
    registry.fail("/manifests/", RegistryFault::Status(401, vec![("WWW-Authenticate", "Basic".into())]), 1);
    registry.fail("/manifests/", RegistryFault::Status(403, vec![]), 1);
    let mut credentials = login(&registry, r#"{"username":"other","password":"other"}"#);
    let payload = format!(r#"{{"auths":{{"{}":{USER}}}}}"#, registry.address());
    credentials.add_secret("t", SECRET_TYPE_DOCKER_CONFIG_JSON, payload.as_bytes()).expect("valid");
    let folder = tempfile::tempdir().expect("a folder");
    store(folder.path()).ensure(&reference(&registry.reference("app", "v1")), &credentials).await.expect("pulled");
}

#[tokio::test]
async fn token_that_expires_in_mid_pull_is_renewed() {
    if !is_root() {
        return;
    }
    for (user, entry) in [(None, "{}"), (Some("p"), USER), (Some("p"), r#"{"identitytoken":"p"}"#)] {
        let user = user.map(|password| ("u".to_owned(), password.to_owned()));
        let registry = TestRegistry::start(RegistryLogin::Bearer { user, requests_per_token: 4 });
        let layers = (0..6).map(|seed| large_layer(100_000, seed)).collect();
        registry.push("app", "v1", &TestImage::new(layers, "{}"));
        let folder = tempfile::tempdir().expect("a folder");
        let name = reference(&registry.reference("app", "v1"));
        let pulled = store(folder.path()).ensure(&name, &login(&registry, entry)).await.expect("pulled");
        assert_eq!(pulled.layers.len(), 6);
        // Eight documents with four for each token; downloads that are refused together share one.
        assert!((2..=8).contains(&registry.requests_for("/token").len()), "{:?}", registry.requests());
    }
}

#[tokio::test]
async fn token_serves_a_second_pull() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::Bearer { user: None, requests_per_token: 1_000 });
    registry.push("app", "v1", &image("one"));
    let folder = tempfile::tempdir().expect("a folder");
    let (store, progress) = (store(folder.path()), Arc::default());
    for _ in 0..2 {
        pull(&store, &registry.reference("app", "v1"), &progress).await.expect("pulled");
    }
    assert_eq!(registry.requests_for("/token").len(), 1);
}

#[tokio::test]
async fn concurrent_pulls_of_one_image_download_once() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let (shared, own) = (large_layer(2_000_000, 1), large_layer(1_000, 2));
    registry.push("a", "v1", &TestImage::new(vec![shared.clone()], "{}"));
    registry.push("b", "v1", &TestImage::new(vec![shared.clone(), own], "{}"));
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let names = ["a", "b", "a", "a"].map(|name| registry.reference(name, "v1"));
    let pulls = names.iter().map(|name| ensure(&store, name));
    let pulled = futures_util::future::try_join_all(pulls).await.expect("pulled");
    assert_eq!(registry.requests_for(&shared.digest()).len(), 1);
    assert_eq!(pulled[0].layers[0], pulled[1].layers[0]);

    // A second Service of the same image: no byte.
    let before = registry.requests().len();
    ensure(&store, &names[1]).await.expect("there");
    let by_digest = format!("{}/b@{}", registry.address(), pulled[1].digest);
    ensure(&store, &by_digest).await.expect("there by digest");
    assert_eq!(registry.requests().len(), before);
}

#[tokio::test]
async fn pull_that_is_dropped_leaves_the_others_their_layer() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let layer = large_layer(3_000_000, 1);
    registry.push("a", "v1", &TestImage::new(vec![layer.clone()], "{}"));
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let name = registry.reference("a", "v1");
    let first = ensure(&store, &name);
    let second = ensure(&store, &name);
    tokio::pin!(first, second);
    // The first is dropped as soon as the second waits for the same layer.
    let winner = tokio::select! {
        biased;
        () = async { while registry.requests_for(&layer.digest()).is_empty() { tokio::task::yield_now().await } } => None,
        image = &mut first => Some(image),
    };
    drop(winner);
    second.await.expect("pulled");
}

#[tokio::test]
async fn moved_tag_is_seen_by_policy_always_only() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let name = registry.reference("app", "v1");
    registry.push("app", "v1", &image("old"));
    let folder = tempfile::tempdir().expect("a folder");
    let (store, progress) = (store(folder.path()), Arc::new(Recorder::default()));
    ensure(&store, &name).await.expect("pulled");
    registry.push("app", "v1", &image("new"));
    assert_eq!(text(&ensure(&store, &name).await.expect("there"), "greeting"), "old");
    assert_eq!(text(&pull(&store, &name, &progress).await.expect("pulled"), "greeting"), "new");
    let started = progress.events().into_iter().find(|event| matches!(event, ProgressEvent::Started { .. }));
    assert!(matches!(started, Some(ProgressEvent::Started { layers: 1, missing_layers: 1, .. })), "{started:?}");

    let (other, progress) = (reference("registry.invalid/app"), Arc::new(Recorder::default()));
    let never = store.pull(&other, &Credentials::anonymous(), PullPolicy::Never, progress).await;
    assert!(matches!(never, Err(Error::Absent(_))));
}

#[tokio::test]
async fn layer_that_an_image_has_twice_is_downloaded_once() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let layer = large_layer(1_000, 1);
    registry.push("app", "v1", &TestImage::new(vec![layer.clone(), layer.clone()], "{}"));
    let folder = tempfile::tempdir().expect("a folder");
    let pulled = ensure(&store(folder.path()), &registry.reference("app", "v1")).await.expect("pulled");
    assert_eq!((pulled.layers.len(), registry.requests_for(&layer.digest()).len()), (2, 1));
}

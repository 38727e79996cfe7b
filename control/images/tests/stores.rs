//! The store over time: pins, garbage collection, killed processes, archives.

mod common;

use std::fs;
use std::sync::Arc;

use common::{ensure, image, is_clean, is_root, large_layer, options, pull, reference, store, text};
use images::progress::NoProgress;
use images::store::PrunePolicy;
use images::{Credentials, Error, ImageStore};
use kit::registry::{RegistryLogin, TestImage, TestLayer, TestRegistry};

#[tokio::test]
async fn image_survives_a_restart_of_the_store() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &image("kept"));
    let folder = tempfile::tempdir().expect("a folder");
    let name = registry.reference("app", "v1");
    ensure(&store(folder.path()), &name).await.expect("pulled");
    let before = registry.requests().len();
    let again = ensure(&store(folder.path()), &name).await.expect("there");
    assert_eq!((text(&again, "greeting").as_str(), registry.requests().len()), ("kept", before));
}

#[tokio::test]
async fn pinned_layers_are_never_removed() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let base = large_layer(1_000, 1);
    registry.push("a", "v1", &TestImage::new(vec![base.clone(), large_layer(1_000, 2)], "{}"));
    registry.push("b", "v1", &TestImage::new(vec![base, large_layer(1_000, 3)], "{}"));
    let folder = tempfile::tempdir().expect("a folder");
    // The second store is another process as far as locks are concerned.
    let (store, other) = (store(folder.path()), store(folder.path()));
    let running = ensure(&store, &registry.reference("a", "v1")).await.expect("pulled");
    let clone = running.clone();
    drop(ensure(&store, &registry.reference("b", "v1")).await.expect("pulled"));

    let report = other.prune(PrunePolicy::UnusedImages).await.expect("pruned");
    assert_eq!((report.images, report.layers), (vec![registry.reference("b", "v1")], 1));
    assert!(running.layers.iter().all(|layer| layer.exists()));
    drop(running);
    assert!(store.remove(&reference(&registry.reference("a", "v1"))).await.expect("removed"));
    assert!(clone.layers.iter().all(|layer| layer.exists()), "a layer of an image in use was removed");
    drop(clone);
    assert_eq!(store.prune(PrunePolicy::UnusedLayers).await.expect("pruned").layers, 2);
    assert!(is_clean(folder.path()));
}

#[tokio::test]
async fn garbage_collection_races_no_start() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let names: Vec<String> = (0..4)
        .map(|seed| {
            let name = format!("app{seed}");
            registry.push(&name, "v1", &TestImage::new(vec![large_layer(1_000, 9), large_layer(1_000, seed)], "{}"));
            registry.reference(&name, "v1")
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let (store, other) = (store(folder.path()), store(folder.path()));
    let collector = tokio::spawn(async move {
        for _ in 0..200 {
            other.prune(PrunePolicy::UnusedImages).await.expect("pruned");
        }
    });
    let starts = names.into_iter().map(|name| {
        let store = store.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                match ensure(&store, &name).await {
                    Ok(image) => assert!(image.layers.iter().all(|layer| layer.read_dir().is_ok()), "{image:?}"),
                    // Reported, and repaired the next time.
                    Err(error) => assert!(error.is_temporary(), "{error}"),
                }
            }
        })
    });
    for start in starts.collect::<Vec<_>>() {
        start.await.expect("no start met a missing layer");
    }
    collector.await.expect("it ran to its end");
}

#[tokio::test]
async fn quota_removes_the_least_recently_used_image() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    for seed in 0..3 {
        registry.push(&format!("app{seed}"), "v1", &TestImage::new(vec![large_layer(100_000, seed)], "{}"));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let options = images::StoreOptions { quota_bytes: Some(250_000), ..options() };
    let store = ImageStore::open(folder.path(), options).expect("a store");
    for seed in 0..3 {
        drop(ensure(&store, &registry.reference(&format!("app{seed}"), "v1")).await.expect("pulled"));
    }
    assert_eq!(store.list().await.expect("listed").len(), 2);
    assert!(store.bytes().await.expect("counted") <= 250_000);
}

#[tokio::test]
async fn half_layer_of_a_killed_process_is_never_used() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &image("whole"));
    let folder = tempfile::tempdir().expect("a folder");
    drop(store(folder.path()));
    // As kill -9 leaves it: files in staging, a record's part, nothing in its place.
    let left = folder.path().join("staging/4000000000-1/work-0/layer/fs");
    fs::create_dir_all(&left).expect("made");
    fs::write(left.join("greeting"), "half").expect("written");
    let pulled = ensure(&store(folder.path()), &registry.reference("app", "v1")).await.expect("pulled");
    assert_eq!(text(&pulled, "greeting"), "whole");
    assert!(!left.exists());
}

#[tokio::test]
async fn full_disk_is_reported_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    // Zeros: the blob fits, what it unpacks to does not.
    let zeros = TestLayer::gzip(&TestLayer::files(&[("zeros", 0o644, &vec![0; 8 << 20])]));
    registry.push("app", "v1", &TestImage::new(vec![zeros], "{}"));
    registry.push("big", "v1", &TestImage::new(vec![large_layer(6 << 20, 1)], "{}"));
    registry.push("small", "v1", &image("fits"));
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m", "images-test"])
        .arg(folder.path())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    }
    let store = store(folder.path());
    for name in ["app", "big"] {
        let error = ensure(&store, &registry.reference(name, "v1")).await.expect_err("no space");
        assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        assert!(is_clean(folder.path()), "{name} left something");
    }
    ensure(&store, &registry.reference("small", "v1")).await.expect("the next one fits");
    drop(store);
    let unmounted = std::process::Command::new("umount").arg(folder.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[tokio::test]
async fn archives_are_imported_without_a_registry() {
    if !is_root() {
        return;
    }
    let image = image("from an archive");
    let folder = tempfile::tempdir().expect("a folder");
    let layout = folder.path().join("layout");
    let files = image.oci_layout("registry.invalid/app:oci");
    for (name, bytes) in &files {
        let path = layout.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    let entries: Vec<(&str, u32, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), 0o644, bytes.as_slice())).collect();
    fs::write(folder.path().join("oci.tar"), TestLayer::files(&entries)).expect("written");
    fs::write(folder.path().join("docker.tar"), image.docker_archive("registry.invalid/app:docker")).expect("written");

    for (file, tag) in [("layout", "oci"), ("oci.tar", "oci"), ("docker.tar", "docker")] {
        let data = tempfile::tempdir().expect("a folder");
        let store = store(data.path());
        let images = store.import(&folder.path().join(file), None, Arc::new(NoProgress)).await.expect(file);
        let name = format!("registry.invalid/app:{tag}");
        assert_eq!((images.len(), images[0].reference.to_string()), (1, name.clone()));
        drop(images);
        let there = ensure(&store, &name).await.expect("no registry is asked");
        assert_eq!(text(&there, "greeting"), "from an archive");
        let digest = store.resolve(&reference(&name), &Credentials::anonymous()).await.expect("no registry is asked");
        assert_eq!(digest, there.digest);
    }
}

#[tokio::test]
async fn archive_without_a_name_needs_one() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let files = image("x").oci_layout("v1");
    let entries: Vec<(&str, u32, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), 0o644, bytes.as_slice())).collect();
    let path = folder.path().join("oci.tar");
    fs::write(&path, TestLayer::files(&entries)).expect("written");
    let store = store(&folder.path().join("data"));
    let error = store.import(&path, None, Arc::new(NoProgress)).await.expect_err("no name");
    assert!(error.to_string().contains("--reference"), "{error}");
    let name = Some(reference("mine/app:v1"));
    store.import(&path, name, Arc::new(NoProgress)).await.expect("named");
}

#[tokio::test]
async fn hostile_archives_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder.path().join("data"));
    let path = folder.path().join("a.tar");
    let config = r#"[{"Config":"../../../../etc/passwd","RepoTags":["a:b"],"Layers":[]}]"#;
    for bytes in [
        b"no archive".to_vec(),
        TestLayer::files(&[("other", 0o644, b"")]),
        TestLayer::files(&[("manifest.json", 0o644, config.as_bytes())]),
        TestLayer::files(&[("manifest.json", 0o644, b"{}")]),
    ] {
        fs::write(&path, bytes).expect("written");
        let outcome = store.import(&path, None, Arc::new(NoProgress)).await;
        assert!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    }
    assert!(is_clean(&folder.path().join("data")));
}

#[tokio::test]
async fn archive_with_too_many_images_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder.path().join("data"));
    let path = folder.path().join("a.tar");
    let entries = vec![r#"{"Config":"c","Layers":[]}"#; 257].join(",");
    let files = [("manifest.json", 0o644, format!("[{entries}]").into_bytes()), ("c", 0o644, b"{}".to_vec())];
    let files: Vec<(&str, u32, &[u8])> =
        files.iter().map(|(name, mode, bytes)| (*name, *mode, bytes.as_slice())).collect();
    fs::write(&path, TestLayer::files(&files)).expect("written");
    let error = store.import(&path, None, Arc::new(NoProgress)).await.expect_err("too many");
    assert!(error.to_string().contains("257 images, limit 256"), "{error}");
}

#[tokio::test]
async fn archive_with_a_huge_header_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(&folder.path().join("data"));
    let path = folder.path().join("a.tar");
    // A tar with one file, whose type becomes that of a long name for the next entry.
    let mut tar = TestLayer::files(&[("long", 0o644, &vec![b'n'; 2 << 20])]);
    let old: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    let field: u32 = tar[148..156].iter().map(|byte| u32::from(*byte)).sum();
    let checksum = old - field + 8 * u32::from(b' ') - u32::from(tar[156]) + u32::from(b'L');
    tar[156] = b'L';
    tar[148..156].copy_from_slice(format!("{checksum:06o}\0 ").as_bytes());
    fs::write(&path, tar).expect("written");
    let error = store.import(&path, None, Arc::new(NoProgress)).await.expect_err("too long");
    assert!(error.to_string().contains("headers of one entry"), "{error}");
}

#[tokio::test]
async fn record_that_cannot_be_read_costs_a_pull() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &image("x"));
    let folder = tempfile::tempdir().expect("a folder");
    let (store, name) = (store(folder.path()), registry.reference("app", "v1"));
    drop(ensure(&store, &name).await.expect("pulled"));
    for record in fs::read_dir(folder.path().join("records")).expect("read") {
        fs::write(record.expect("read").path(), "{").expect("written");
    }
    drop(ensure(&store, &name).await.expect("pulled again"));
    assert_eq!(store.list().await.expect("listed").len(), 1);
}

#[tokio::test]
async fn removed_image_is_pulled_again() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &image("x"));
    let folder = tempfile::tempdir().expect("a folder");
    let (store, name) = (store(folder.path()), registry.reference("app", "v1"));
    drop(ensure(&store, &name).await.expect("pulled"));
    assert!(store.remove(&reference(&name)).await.expect("removed"));
    assert!(!store.remove(&reference(&name)).await.expect("nothing to remove"));
    assert!(is_clean(folder.path()));
    pull(&store, &name, &Arc::default()).await.expect("pulled again");
}

//! `sluicegate image`, through the binary, with layers that are unpacked by its confined child.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use kit::registry::{RegistryFault, RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::wait;
use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");

fn image(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(BIN);
    command.arg("image").args(words).arg("--data").arg(folder).env("DOCKER_CONFIG", folder.join("docker"));
    command.output().unwrap()
}

/// What the verb printed; it must have succeeded.
fn printed(folder: &Path, words: &[&str]) -> String {
    let output = image(folder, words);
    assert!(output.status.success(), "{words:?}: {}", stderr_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn app() -> TestImage {
    let tar = TestLayer::files(&[("bin/app", 0o4755, b"#!/bin/sh\n"), ("etc/.wh.old", 0o644, b"")]);
    TestImage::new(vec![TestLayer::gzip(&tar)], r#"{"Entrypoint":["/bin/app"],"User":"1000:1000"}"#)
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: unpacking takes root");
    }
    is_root
}

fn layer_folders(folder: &Path) -> usize {
    fs::read_dir(folder.join("images/layers")).map_or(0, Iterator::count)
}

#[test]
fn image_is_pulled_listed_inspected_and_removed() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    let digest = registry.push("app", "v1", &app());
    let name = registry.reference("app", "v1");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();

    assert!(printed(folder, &["pull", &name]).starts_with(&format!("{name} {digest}")));
    assert!(printed(folder, &["list"]).contains(&name));
    let listed: Value = serde_json::from_str(&printed(folder, &["list", "--json"])).unwrap();
    let inspected: Value = serde_json::from_str(&printed(folder, &["inspect", &name])).unwrap();
    assert_eq!(listed[0], inspected);
    assert_eq!(inspected["config"]["User"], "1000:1000");

    // A second pull asks for the manifest and downloads no layer again.
    printed(folder, &["pull", &name]);
    let layers = registry.requests().iter().filter(|request| request.path.contains("/blobs/")).count();
    assert_eq!(layers, 3, "one layer and two configurations: {:?}", registry.requests());

    assert_eq!((layer_folders(folder), printed(folder, &["remove", &name])), (1, format!("removed {name}\n")));
    assert_eq!(layer_folders(folder), 0);
    let output = image(folder, &["inspect", &name]);
    assert!(!output.status.success() && stderr_of(&output).contains("not on this host"), "{}", stderr_of(&output));
}

#[test]
fn archive_is_imported_and_pruned() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("app.tar");
    fs::write(&archive, app().docker_archive("registry.invalid/app:v1")).unwrap();
    let archive = archive.to_str().unwrap();
    assert!(printed(folder.path(), &["import", archive]).starts_with("registry.invalid/app:v1 sha256:"));
    assert!(printed(folder.path(), &["prune"]).starts_with("0 images and 0 layers removed"));
    assert!(printed(folder.path(), &["prune", "--keep", "1Gi"]).starts_with("0 images"));
    assert!(printed(folder.path(), &["prune", "--all"]).contains("1 images and 1 layers removed"));
    assert_eq!(layer_folders(folder.path()), 0);
}

#[test]
fn private_image_is_pulled_with_dockers_own_login() {
    if !is_root() {
        return;
    }
    let user = Some(("u".to_owned(), "p".to_owned()));
    let registry = TestRegistry::start(RegistryLogin::Bearer { user, requests_per_token: 100 });
    registry.push("app", "v1", &app());
    let folder = tempfile::tempdir().unwrap();
    let name = registry.reference("app", "v1");
    let output = image(folder.path(), &["pull", &name]);
    assert!(!output.status.success() && stderr_of(&output).contains("denies access"), "{}", stderr_of(&output));

    fs::create_dir(folder.path().join("docker")).unwrap();
    let config = format!(r#"{{"auths":{{"{}":{{"auth":"dTpw"}}}}}}"#, registry.address());
    fs::write(folder.path().join("docker/config.json"), config).unwrap();
    printed(folder.path(), &["pull", &name]);
}

#[test]
fn hostile_layer_is_refused_by_the_child() {
    if !is_root() {
        return;
    }
    let mut header = tar_header("../../../../escaped");
    header.resize(1024 + 512, 0);
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &TestImage::new(vec![TestLayer::plain(header)], "{}"));
    let folder = tempfile::tempdir().unwrap();
    let output = image(folder.path(), &["pull", &registry.reference("app", "v1")]);
    assert!(
        !output.status.success() && stderr_of(&output).contains("leads out of its folder"),
        "{}",
        stderr_of(&output)
    );
    assert_eq!(layer_folders(folder.path()), 0);
}

/// A header of an empty file with a name that no library writes.
fn tar_header(name: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    for (at, field) in
        [(100, "0000644\0"), (108, "0000000\0"), (116, "0000000\0"), (124, "00000000000\0"), (136, "00000000000\0")]
    {
        header[at..at + field.len()].copy_from_slice(field.as_bytes());
    }
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// kill -9 while a layer comes in: the next pull removes what was left, and is whole.
#[test]
fn killed_pull_leaves_nothing_that_is_used() {
    if !is_root() {
        return;
    }
    let registry = TestRegistry::start(RegistryLogin::None);
    registry.push("app", "v1", &app());
    let name = registry.reference("app", "v1");
    registry.fail("/blobs/", RegistryFault::StallAfter(10), usize::MAX);
    let folder = tempfile::tempdir().unwrap();
    let mut pull = Command::new(BIN)
        .args(["image", "pull", &name, "--data"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait::until(kit::TIMEOUT, "a download has begun", || registry.requests_for("/blobs/").pop());
    pull.kill().unwrap();
    pull.wait().unwrap();
    assert_eq!(fs::read_dir(folder.path().join("images/staging")).unwrap().count(), 1);

    // Another one, as this one would stall too.
    let healthy = TestRegistry::start(RegistryLogin::None);
    healthy.push("app", "v1", &app());
    printed(folder.path(), &["pull", &healthy.reference("app", "v1")]);
    assert_eq!(fs::read_dir(folder.path().join("images/staging")).unwrap().count(), 0);
    assert_eq!(layer_folders(folder.path()), 1);
}

#[test]
fn missing_image_names_reference_and_registry() {
    let registry = TestRegistry::start(RegistryLogin::None);
    let folder = tempfile::tempdir().unwrap();
    let name = registry.reference("none", "v9");
    let started = std::time::Instant::now();
    let output = image(folder.path(), &["pull", &name]);
    assert!(
        !output.status.success() && stderr_of(&output).contains(&format!("{name}: not found")),
        "{}",
        stderr_of(&output)
    );
    assert!(started.elapsed() < Duration::from_secs(20), "a missing image is not asked for again and again");
    let output = image(folder.path(), &["pull", "Not A Reference"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
}

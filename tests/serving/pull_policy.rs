//! `imagePullPolicy` of Pods, and proxies between this host and a registry.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use kit::manifest::NAMESPACE;
use kit::registry::{RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::{ApplianceSetup, KitApi, TIMEOUT};
use serde_json::{Value, json};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const BUSYBOX: &str = "/bin/busybox";

fn busybox() -> Option<TestImage> {
    if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
        eprintln!("skipped: containers take root, and this test {BUSYBOX} (Debian's busybox-static)");
        return None;
    }
    let program = TestLayer::gzip(&TestLayer::files(&[("bin/busybox", 0o755, &std::fs::read(BUSYBOX).unwrap())]));
    Some(TestImage::new(vec![program], r#"{"Entrypoint":["/bin/busybox","true"]}"#))
}

/// Creates a Pod and returns its status once `wanted` holds.
fn run(api: KitApi, name: &str, image: &str, policy: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let container = json!({ "name": "main", "image": image, "imagePullPolicy": policy });
    api.create(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": { "restartPolicy": "Never", "containers": [container] } }));
    api.wait_for("Pod", NAMESPACE, name, TIMEOUT, |pod| wanted(&pod["status"]))["status"].clone()
}

fn has_succeeded(status: &Value) -> bool {
    status["phase"] == "Succeeded"
}

#[test]
fn pull_policy_decides_whether_a_registry_is_asked() {
    let Some(image) = busybox() else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    let first = registry.push("app", "v1", &image);
    let reference = registry.reference("app", "v1");
    let appliance = ApplianceSetup::new(BIN).start();
    let api = appliance.api();
    let never = run(api, "never", &reference, "Never", |status| {
        status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImageNeverPull"
    });
    assert_eq!(never["phase"], "Pending");
    assert_eq!(registry.requests().len(), 0, "{:?}", registry.requests());
    run(api, "first", &reference, "IfNotPresent", has_succeeded);
    let asked = registry.requests().len();
    assert!(asked > 0);

    // The tag moves. Only `Always` learns of it.
    let other = TestImage::new(
        vec![TestLayer::gzip(&TestLayer::files(&[("bin/busybox", 0o755, &std::fs::read(BUSYBOX).unwrap())]))],
        r#"{"Entrypoint":["/bin/busybox","true"],"Env":["MOVED=1"]}"#,
    );
    let second = registry.push("app", "v1", &other);
    let used = |name: &str, policy: &str| {
        let status = run(api, name, &reference, policy, has_succeeded);
        status["containerStatuses"][0]["imageID"].as_str().unwrap().rsplit('@').next().unwrap().to_owned()
    };
    assert_eq!((used("again", "IfNotPresent"), used("here", "Never")), (first.clone(), first));
    assert_eq!(registry.requests().len(), asked, "the image is on this host");
    assert_eq!(used("always", "Always"), second);
    assert_eq!(used("after", "IfNotPresent"), second, "the tag is the newest that was pulled");
}

/// A proxy that connects every tunnel to one address, whatever its client asks for.
fn proxy_to(target: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, heads) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
    let seen = Arc::clone(&heads);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || tunnel(client, target, &seen));
        }
    });
    (address, heads)
}

fn tunnel(mut client: TcpStream, target: SocketAddr, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(client.try_clone().ok()?);
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|bytes| *bytes > 0)?;
    }
    seen.lock().unwrap().push(head);
    let mut server = TcpStream::connect(target).ok()?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
    let (mut to_server, mut to_client) = (server.try_clone().ok()?, client);
    std::thread::spawn(move || {
        copy(&mut reader, &mut to_server);
        drop(to_server.shutdown(std::net::Shutdown::Write));
    });
    copy(&mut server, &mut to_client);
    drop(to_client.shutdown(std::net::Shutdown::Both));
    Some(())
}

fn copy(from: &mut impl Read, to: &mut TcpStream) {
    drop(std::io::copy(from, to)); // until one of them closes
}

#[test]
fn image_comes_through_the_proxy_of_the_environment() {
    let Some(image) = busybox() else { return };
    let registry = TestRegistry::start(RegistryLogin::None);
    let digest = registry.push("app", "v1", &image);
    let (proxy, heads) = proxy_to(registry.address());
    let folder = tempfile::tempdir().unwrap();
    let pull = |variable: &str, value: &str, exception: &str| {
        let mut command = Command::new(BIN);
        command.args(["image", "pull", "--insecure-registry", "registry.invalid:5000", "registry.invalid:5000/app:v1"]);
        command.arg("--data").arg(folder.path()).env("DOCKER_CONFIG", folder.path().join("docker"));
        command.env(variable, value).env("NO_PROXY", exception).output().unwrap()
    };
    let url = format!("http://me:secret@{proxy}");
    let output = pull("HTTPS_PROXY", &url, "other.invalid");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(&digest), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let seen = heads.lock().unwrap().clone();
    assert!(seen.iter().all(|head| head.starts_with("CONNECT registry.invalid:5000 HTTP/1.1\r\n")), "{seen:?}");
    assert!(seen[0].contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{seen:?}");

    let before = seen.len();
    let output = pull("https_proxy", &url, ".invalid");
    assert!(!output.status.success() && heads.lock().unwrap().len() == before, "NO_PROXY names its domain");
    let output = pull("HTTPS_PROXY", "socks5://me:secret@127.0.0.1:1", "");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && why.contains("HTTPS_PROXY") && !why.contains("secret"), "{why}");
}

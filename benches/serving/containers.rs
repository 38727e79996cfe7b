//! Containers beside processes: cold starts, starts at once, memory of sleeping Services, and pulls.
//!
//! Both run Debian's static busybox, once from an image of a registry in this process and once from this host. It
//! takes root. A pull is compared with skopeo and umoci if `SLUICEGATE_BENCH_IMAGE` names an image of a loopback registry.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::api::is_ready;
use kit::manifest::{NAMESPACE, service};
use kit::registry::{RegistryLogin, TestImage, TestLayer, TestRegistry};
use kit::{ApplianceSetup, HttpCall, HttpConnection, wait};
use serde_json::{Value, json};

use super::stage::{Stage, annotated};
use super::table::Table;
use super::{LIMIT, LOOK_EVERY, PAUSE, SLEEP, many_times};

const BIN: &str = env!("CARGO_BIN_EXE_sluicegate");
const BUSYBOX: &str = "/bin/busybox";
const PROCESS: &str = "example.com/process";
/// Names the image of a pull: `127.0.0.1:5000/nginx:v1`.
const IMAGE: &str = "SLUICEGATE_BENCH_IMAGE";

const STARTS: usize = 100;
/// The first starts bring in what all others find.
const BEFORE: usize = 3;
const AT_ONCE: usize = 100;
const PULLS: usize = 3;

/// An appliance, and the images that its Services have: of a container and of a process.
struct Bench {
    stage: Stage,
    container: String,
    /// Kept, because the image comes from it.
    _registry: TestRegistry,
}

pub(super) fn containers(table: &mut Table, sleepers: usize) {
    if !rustix::process::geteuid().is_root() || !Path::new(BUSYBOX).exists() {
        return println!("containers: skipped, they take root and {BUSYBOX} (Debian's busybox-static)");
    }
    cold(table);
    at_once(table);
    asleep(table, sleepers);
    if let Ok(image) = std::env::var(IMAGE) {
        pull(table, &image);
    }
}

impl Bench {
    fn start() -> Self {
        let busybox = std::fs::read(BUSYBOX).unwrap();
        let layer = TestLayer::files(&[("bin/busybox", 0o755, &busybox), ("www/index.html", 0o644, b"hello")]);
        let script = format!("exec {BUSYBOX} httpd -f -p 127.0.0.1:$PORT -h");
        let config = json!({ "Entrypoint": [BUSYBOX, "sh", "-c", format!("{script} /www")] }).to_string();
        let image = TestImage::new(vec![TestLayer::gzip(&layer)], &config);
        let registry = TestRegistry::start(RegistryLogin::None);
        registry.push("busybox", "v1", &image);
        let container = registry.reference("busybox", "v1");
        let setup = ApplianceSetup::new(BIN);
        let page = setup.write_file("index.html", "hello");
        let script = setup.write_file("start.sh", &format!("{script} {}\n", page.parent().unwrap().display()));
        let command = format!("{PROCESS}={BUSYBOX} sh {}", script.display());
        let stage = Stage { appliance: setup.flag("image", &command).start() };
        let any = json!({ "data": { "allow-zero-initial-scale": "true" } });
        stage.appliance.api().patch("ConfigMap", "knative-serving", "config-autoscaler", &any);
        Self { stage, container, _registry: registry }
    }

    fn image(&self, kind: &str) -> &str {
        if kind == "container" { &self.container } else { PROCESS }
    }

    /// Creates so many of a kind, and returns the time until all are Ready.
    fn create(&self, kind: &str, count: usize, scale: &str) -> Duration {
        let began = Instant::now();
        let image = self.image(kind);
        many_times(&self.stage, count, |api, n| drop(api.create(&scaled(image, &name(kind, n), scale))));
        wait::until(LIMIT, "all to be Ready", || {
            wait::rest(LOOK_EVERY / 10);
            let all = self.stage.appliance.api().list("Service", NAMESPACE);
            let of_kind = all.iter().filter(|one| one["metadata"]["name"].as_str().unwrap().starts_with(kind));
            (of_kind.filter(|one| is_ready(one)).count() >= count).then_some(())
        });
        began.elapsed()
    }
}

fn scaled(image: &str, name: &str, scale: &str) -> Value {
    let one = annotated(service(name, image, name), "autoscaling.knative.dev/initial-scale", scale);
    annotated(one, "autoscaling.knative.dev/window", "6s")
}

fn name(kind: &str, n: usize) -> String {
    format!("{kind}-{n}")
}

/// In turn, so that noise of a shared host affects both.
fn cold(table: &mut Table) {
    let bench = Bench::start();
    let kinds = ["process", "container"];
    for kind in kinds {
        bench.create(kind, STARTS + BEFORE, "0");
    }
    let mut took = [Vec::new(), Vec::new()];
    for n in 0..STARTS + BEFORE {
        for (kind, took) in kinds.iter().zip(&mut took) {
            wait::rest(PAUSE);
            let host = format!("{}.{NAMESPACE}.localhost", name(kind, n));
            let mut connection = HttpConnection::open(bench.stage.appliance.http());
            let left = Instant::now();
            assert_eq!(connection.call(&HttpCall::get("/index.html").host(&host)).status, 200);
            if n >= BEFORE {
                took.push(left.elapsed());
            }
        }
    }
    let [process, container] = took.map(|mut all| {
        all.sort_unstable();
        all[all.len() / 2].as_secs_f64() * 1e3
    });
    table.note("a cold request to a process, p50", "ms", process);
    table.at_most("… what a container adds to it, p50", "ms", container - process, 1.0);
}

fn at_once(table: &mut Table) {
    let bench = Bench::start();
    // Of each kind once before, so that no pull is among the starts.
    for kind in ["process", "container"] {
        bench.create(kind, 1, "1");
    }
    let [process, container] = ["process", "container"].map(|kind| {
        bench.stage.appliance.api().delete("Service", NAMESPACE, &name(kind, 0));
        bench.stage.wait_asleep();
        let took = bench.create(kind, AT_ONCE, "1").as_secs_f64();
        bench.stage.wait_asleep();
        took
    });
    table.note(&format!("{AT_ONCE} processes created until all are Ready"), "s", process);
    table.at_most("… containers, relative to that", "", container / process, 2.0);
}

fn asleep(table: &mut Table, count: usize) {
    let [process, container] = ["process", "container"].map(|kind| {
        let bench = Bench::start();
        let (image, first) = (bench.image(kind), name(kind, count));
        bench.stage.create_and_sleep(&scaled(image, &first, "1"), &first); // brings in what all of them share
        let before = bench.stage.own_memory_kib();
        bench.create(kind, count, "0");
        bench.stage.wait_asleep();
        wait::rest(SLEEP); // pages that a burst of writes needed are given back
        (bench.stage.own_memory_kib() - before) / count as f64
    });
    table.note(&format!("memory of a sleeping Service that is a process, of {count}"), "KiB", process);
    table.at_most("… of a container, relative to that", "", container / process, 1.05);
}

/// Into a new folder each time, in turn.
fn pull(table: &mut Table, image: &str) {
    let (mut own, mut others) = (Duration::MAX, Duration::MAX);
    for _ in 0..PULLS {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        own = own.min(timed(BIN, &["image", "pull", image, "--data", &at("data")]));
        let copy = [
            "--insecure-policy",
            "copy",
            "--src-tls-verify=false",
            &format!("docker://{image}"),
            &format!("oci:{}:v1", at("oci")),
        ];
        let unpack = ["unpack", "--image", &format!("{}:v1", at("oci")), &at("bundle")];
        others = others.min(timed("skopeo", &copy) + timed("umoci", &unpack));
    }
    table.note(&format!("skopeo and umoci pull and unpack {image}"), "s", others.as_secs_f64());
    table.at_most("… sluicegate image pull, relative to that", "", own.as_secs_f64() / others.as_secs_f64(), 1.5);
}

fn timed(program: &str, arguments: &[&str]) -> Duration {
    let began = Instant::now();
    let ended = Command::new(program).args(arguments).output().unwrap();
    assert!(ended.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    began.elapsed()
}

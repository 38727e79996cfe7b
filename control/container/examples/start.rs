//! Measures create → run → end of a static program: as a child, as a container, and as a container whose process waited.
//! As root: `cargo run --release -p sluicegate-container --example start -- PROGRAM ROUNDS`, where PROGRAM is the built
//! `container-run`.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement, not a product")]

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use container::ContainerSpec;
use container::namespaces::spawn_first_process;
use container::program::ProtectedProgram;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let program = ProtectedProgram::open(Path::new(&arguments.next().expect("PROGRAM"))).unwrap();
    let rounds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(200);
    let dir = tempfile::tempdir_in(".").unwrap();
    let layer = dir.path().canonicalize().unwrap().join("layer");
    for folder in ["bin", "proc", "sys", "dev", "tmp", "etc"] {
        fs::create_dir_all(layer.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", layer.join("bin/busybox")).unwrap();
    let scratch = |round: usize| {
        let folder = layer.with_file_name(format!("scratch-{round}"));
        fs::create_dir(&folder).unwrap();
        folder
    };
    let container = |round: usize| ContainerSpec {
        layers: vec![layer.clone()],
        scratch: scratch(round),
        hostname: "start".into(),
        capabilities: container::capabilities::DEFAULTS.bits(),
        parent: i32::try_from(std::process::id()).unwrap(),
        ..ContainerSpec::default()
    };
    let spawn = || {
        let mut starting = Command::new(program.path());
        starting.arg0("container-run").arg(std::process::id().to_string()).stdin(Stdio::piped());
        spawn_first_process(&mut starting).unwrap()
    };
    let order = |child: &mut Child, spec: &ContainerSpec| {
        let job = serde_json::json!({ "container": spec, "command": ["/bin/busybox", "true"] });
        child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    };
    report("child", rounds, |_| {
        let began = Instant::now();
        assert!(Command::new("/bin/busybox").arg("true").status().unwrap().success());
        began.elapsed()
    });
    report("container", rounds, |round| {
        let spec = container(round);
        let began = Instant::now();
        order(&mut spawn(), &spec);
        began.elapsed()
    });
    report("container that waited", rounds, |round| {
        let spec = container(rounds + round);
        let mut child = spawn();
        std::thread::sleep(Duration::from_millis(20));
        let began = Instant::now();
        order(&mut child, &spec);
        began.elapsed()
    });
}

fn report(what: &str, rounds: usize, one: impl Fn(usize) -> Duration) {
    let mut times: Vec<Duration> = (0..rounds).map(one).collect();
    times.sort_unstable();
    println!("{what:24} minimum {:?}, p50 {:?}", times[0], times[times.len() / 2]);
}

//! Fixtures that tests with real processes share.

use std::path::PathBuf;
use std::time::Duration;

use sluicegate_control::runtime::{InitProgram, InstanceCredentials, InstanceSpec, ProbeCheck, ProbeSpec};

/// Far longer than anything here takes; a test that hangs should say so.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The example program, which cargo builds next to the tests.
pub(crate) fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(2).unwrap();
    let path = target.join("examples/instance");
    assert!(path.exists(), "{} is missing: build it with `cargo build --examples`", path.display());
    path
}

pub(crate) fn init() -> InitProgram {
    InitProgram { program: example(), arguments: Vec::new() }
}

pub(crate) fn spec(command: &[&str]) -> InstanceSpec {
    InstanceSpec {
        pod: None,
        namespace: "default".into(),
        revision: "hello-00001".into(),
        service: "hello".into(),
        configuration: "hello-conf".into(),
        image: None,
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        port: 8080,
        other_ports: Vec::new(),
        working_dir: None,
        volumes: Vec::new(),
        mounts: Vec::new(),
        reload_volume: None,
        credentials: InstanceCredentials::default(),
        read_only_root: false,
        restart: sluicegate_control::runtime::RestartPolicy::default(),
        resources: sluicegate_control::runtime::ResourceLimits::default(),
        termination_message: None,
        startup: None,
        readiness: ProbeSpec::single(ProbeCheck::Tcp),
        liveness: None,
        detect_http2: false,
        startup_timeout: TIMEOUT,
        termination_grace_period: TIMEOUT,
        init_containers: Vec::new(),
        sidecars: Vec::new(),
    }
}

/// A program that serves HTTP on PORT.
pub(crate) fn listener() -> InstanceSpec {
    spec(&[example().to_str().unwrap(), "listen"])
}

//! Sidecar containers.

use super::*;
use sluicegate_control::runtime::{Sidecar, SidecarStatus};

const NAME: &str = "helper";

fn sidecar_running(script: &str) -> Sidecar {
    Sidecar { name: NAME.into(), has_readiness_probe: false, spec: shell(script) }
}

fn with(sidecar: Sidecar) -> InstanceSpec {
    InstanceSpec { sidecars: vec![sidecar], ..listener() }
}

fn sidecar_report(ready: bool, restarts: u32) -> InstanceReport {
    InstanceReport::Sidecars(vec![SidecarStatus {
        name: NAME.into(),
        ready,
        restarts,
        started_at: None,
        finished_at: None,
        last_exit: None,
        is_running: ready,
        ended: false,
    }])
}

fn log(host: &TestRuntimeHost) -> String {
    fs::read_to_string(host.folder().join(format!("1.{NAME}.log"))).unwrap_or_default()
}

/// Waits for a line that begins with `pid=` after this many others, and returns its value.
async fn pid(host: &TestRuntimeHost, nth: usize) -> String {
    for _ in 0..TIMEOUT.as_millis() / 10 {
        if let Some((_, pid)) = log(host).lines().filter_map(|line| line.split_once("pid=")).nth(nth) {
            return pid.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no process id was written: {}", log(host));
}

/// AMB-10: they are ready together, the sidecar has its own output and no PORT, and they end together.
#[tokio::test]
async fn an_instance_is_ready_when_its_sidecar_is_and_takes_it_along() {
    let host = TestRuntimeHost::new();
    let sign = host.dir.path().join("sign");
    let mut sidecar = sidecar_running("echo pid=$$; echo port=${PORT-none} $K_REVISION; exec sleep 1000");
    sidecar.has_readiness_probe = true;
    let command = ["test", "-e", sign.to_str().unwrap()].map(str::to_owned).to_vec();
    sidecar.spec.readiness = ProbeSpec::single(ProbeCheck::Exec { command });
    let mut instance = host.start(1, with(sidecar));
    let pid = pid(&host, 0).await;
    fs::write(&sign, "").unwrap();
    assert_eq!(instance.report().await, sidecar_report(true, 0), "before the instance is");
    instance.ready().await;
    assert!(log(&host).contains("stdout F port=none hello-00001"), "{}", log(&host));
    assert!(!host.log(1).contains("pid="), "outputs are mixed");

    instance.handle.stop();
    assert_eq!(instance.report().await, sidecar_report(false, 0));
    assert_eq!(instance.gone().await.cause, ExitCause::Signaled(15));
    assert!(!Path::new("/proc").join(pid).exists(), "the sidecar outlived its instance");
}

#[tokio::test]
async fn a_sidecar_that_ends_is_started_again_and_nobody_comes_meanwhile() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, with(sidecar_running("echo pid=$$; exec sleep 1000")));
    assert_eq!(instance.report().await, sidecar_report(true, 0));
    instance.ready().await;
    let killed = Command::new("kill").args(["-9", &pid(&host, 0).await]).status().unwrap();
    assert!(killed.success());
    assert_eq!(instance.report().await, sidecar_report(false, 0));
    assert_eq!(instance.report().await, InstanceReport::Unready);
    assert_eq!(instance.report().await, sidecar_report(true, 1));
    instance.ready().await;
    let second = pid(&host, 1).await;
    assert!(Path::new("/proc").join(second).exists());
}

/// COND-10: the reason of a sidecar is the instance's.
#[tokio::test]
async fn a_sidecar_that_fails_again_and_again_ends_the_instance_and_says_why() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, with(sidecar_running("echo no key >&2; exit 3")));
    let gone = loop {
        if let InstanceReport::Exited(gone) = instance.report().await {
            break gone;
        }
    };
    assert_eq!(gone.cause, ExitCause::Exited(3));
    assert!(gone.message.contains("container helper") && gone.message.contains("no key"), "{}", gone.message);
}

/// RT-LIFE-05: a sidecar that ignores SIGTERM is killed after the grace period.
#[tokio::test]
async fn a_deaf_sidecar_ends_after_the_grace_period() {
    let host = TestRuntimeHost::new();
    let deaf = sidecar_running("trap '' TERM; echo pid=$$; while true; do sleep 1; done");
    let mut instance =
        host.start(1, InstanceSpec { termination_grace_period: Duration::from_millis(100), ..with(deaf) });
    assert_eq!(instance.report().await, sidecar_report(true, 0));
    instance.ready().await;
    let pid = pid(&host, 0).await;
    instance.handle.stop();
    assert_eq!(instance.report().await, sidecar_report(false, 0));
    instance.gone().await;
    assert!(!Path::new("/proc").join(pid).exists());
}

/// RT-LIFE-05: a sidecar whose liveness probe fails gets SIGTERM before SIGKILL, as from a kubelet.
#[tokio::test]
async fn a_sidecar_that_is_not_alive_hears_that_it_has_to_end() {
    let host = TestRuntimeHost::new();
    let sign = host.dir.path().join("sign");
    fs::write(&sign, "").unwrap();
    let mut sidecar = sidecar_running("trap 'echo bye; exit 0' TERM; echo pid=$$; while true; do sleep 0.01; done");
    let command = ["test", "-e", sign.to_str().unwrap()].map(str::to_owned).to_vec();
    let period = Duration::from_millis(20);
    sidecar.spec.liveness = Some(ProbeSpec { period, ..ProbeSpec::single(ProbeCheck::Exec { command }) });
    let mut instance = host.start(1, with(sidecar));
    assert_eq!(instance.report().await, sidecar_report(true, 0));
    instance.ready().await;
    pid(&host, 0).await; // it handles signals from here on
    fs::remove_file(&sign).unwrap();
    assert_eq!(instance.report().await, sidecar_report(false, 0));
    assert!(log(&host).contains("stdout F bye"), "{}", log(&host));
}

//! Init containers.

use super::*;
use sluicegate_control::runtime::{Sidecar, SidecarStatus};

fn before(name: &str, script: &str) -> Sidecar {
    Sidecar { name: name.into(), has_readiness_probe: false, spec: shell(script) }
}

/// An instance that listens, after `scripts`, which are called `one`, `two` and so on and find a file in `FILE`.
fn after(host: &TestRuntimeHost, scripts: &[&str]) -> InstanceSpec {
    let file = host.dir.path().join("file").display().to_string();
    let each = ["one", "two", "three"].into_iter().zip(scripts).map(|(name, script)| {
        let mut container = before(name, script);
        container.spec.env = vec![("FILE".into(), file.clone())];
        container
    });
    InstanceSpec { init_containers: each.collect(), ..listener() }
}

/// What a report tells of them, each of which says when it began, and when it ended if it did.
fn statuses_of(report: InstanceReport) -> Vec<(String, bool)> {
    let InstanceReport::Sidecars(all) = report else { panic!("{report:?}") };
    let one = |SidecarStatus { name, ready, started_at: began, finished_at: ended, .. }: SidecarStatus| {
        assert!(began.is_some() && ended.is_some() == ready && (!ready || ended >= began), "{name}");
        (name, ready)
    };
    all.into_iter().map(one).collect()
}

fn done(all: &[(&str, bool)]) -> Vec<(String, bool)> {
    all.iter().map(|(name, ready)| ((*name).to_owned(), *ready)).collect()
}

fn log_of(host: &TestRuntimeHost, name: &str) -> String {
    fs::read_to_string(host.folder().join(format!("1.{name}.log"))).unwrap_or_default()
}

/// Each begins when the one before it is over, the instance itself after all of them, and each has its own output.
#[tokio::test]
async fn they_run_one_after_the_other_and_then_the_instance_does() {
    let host = TestRuntimeHost::new();
    let scripts = [
        "test ! -e $FILE || exit 1; sleep 0.05; echo first port=${PORT-none} $K_REVISION; echo 1 > $FILE",
        "grep -q 1 $FILE && echo second",
    ];
    let mut instance = host.start(1, after(&host, &scripts));
    for all in [&[("one", false)][..], &[("one", true), ("two", false)], &[("one", true), ("two", true)]] {
        assert_eq!(statuses_of(instance.report().await), done(all));
    }
    instance.ready().await;
    assert!(log_of(&host, "one").contains("stdout F first port=none hello-00001"), "{}", log_of(&host, "one"));
    assert!(log_of(&host, "two").contains("stdout F second"), "{}", log_of(&host, "two"));
    instance.handle.stop();
    assert_eq!(instance.gone().await.cause, ExitCause::Signaled(15));
}

/// COND-10: the reason of one that fails is the instance's, which never runs, nor do the following init containers.
#[tokio::test]
async fn one_that_fails_ends_the_instance_and_says_why() {
    let host = TestRuntimeHost::new();
    let mut instance = host.start(1, after(&host, &["echo no key >&2; exit 3", "echo ran > $FILE"]));
    assert_eq!(statuses_of(instance.report().await), done(&[("one", false)]));
    let gone = instance.gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(3));
    assert!(gone.message.starts_with("init container one: instance ended with exit status: 3"), "{}", gone.message);
    assert!(gone.message.contains("no key"), "{}", gone.message);
    assert!(!host.dir.path().join("file").exists());
    assert!(!host.folder().join("1.run").exists(), "the record outlived the instance");
}

/// RT-LIFE-05, RT-PROBE-08: an init container that takes too long, or is no longer wanted, ends with all its children.
#[tokio::test]
async fn one_that_does_not_end_is_ended() {
    let host = TestRuntimeHost::new();
    let slow = "sleep 1000 & echo $! > $FILE; wait";
    let spec = InstanceSpec { startup_timeout: Duration::from_millis(300), ..after(&host, &[slow]) };
    let mut late = host.start(1, spec);
    assert_eq!(statuses_of(late.report().await), done(&[("one", false)]));
    let gone = late.gone().await;
    assert_eq!(gone.cause, ExitCause::NotReady, "{}", gone.message);

    let file = host.dir.path().join("file");
    fs::remove_file(&file).unwrap_or_default(); // a slow machine ended it before it wrote that
    let mut unwanted = host.start(2, after(&host, &[slow]));
    assert_eq!(statuses_of(unwanted.report().await), done(&[("one", false)]));
    let pid = loop {
        match fs::read_to_string(&file) {
            Ok(pid) if pid.ends_with('\n') => break pid.trim().parse().unwrap(),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    unwanted.handle.stop();
    unwanted.gone().await;
    assert!(ends(pid).await, "a child of it outlived the instance");
}

/// RT-LIFE-09: a loop of failures holds the logs of the last instances only.
#[tokio::test]
async fn what_failing_ones_wrote_makes_capacity() {
    let host = TestRuntimeHost::new();
    for id in 1..=8 {
        let mut instance = host.start(id, after(&host, &["echo no; exit 1"]));
        assert_eq!(statuses_of(instance.report().await), done(&[("one", false)]));
        instance.gone().await;
    }
    let logs = fs::read_dir(host.folder()).unwrap().flatten().map(|entry| entry.file_name());
    let mut logs: Vec<_> = logs.filter(|name| name.to_string_lossy().ends_with(".log")).collect();
    logs.sort();
    assert_eq!(logs, ["4.one.log", "5.one.log", "6.one.log", "7.one.log", "8.one.log"]);
}

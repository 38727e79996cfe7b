//! Containers of a Pod that end: each is started again by itself.

use super::*;
use sluicegate_control::runtime::{RestartPolicy, Sidecar};

fn running(restart: RestartPolicy, script: &str) -> InstanceSpec {
    InstanceSpec { restart, readiness: ProbeSpec::single(ProbeCheck::Running), ..shell(script) }
}

fn sidecar(restart: RestartPolicy, script: &str) -> Sidecar {
    Sidecar { name: "side".into(), has_readiness_probe: false, spec: running(restart, script) }
}

impl TestInstance {
    /// Its next report of this kind.
    async fn until<T>(&mut self, wanted: impl Fn(InstanceReport) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.report().await) {
                return found;
            }
        }
    }

    async fn restarting(&mut self) -> InstanceExit {
        self.until(|report| match report {
            InstanceReport::Restarting(exit) => Some(exit),
            InstanceReport::Exited(exit) => panic!("it has ended: {exit:?}"),
            _ => None,
        })
        .await
    }

    async fn exited(&mut self) -> InstanceExit {
        self.until(|report| match report {
            InstanceReport::Exited(exit) => Some(exit),
            _ => None,
        })
        .await
    }
}

fn file(host: &TestRuntimeHost, name: &str) -> String {
    fs::read_to_string(host.folder().join(name)).unwrap_or_default()
}

/// Init containers are not run again, the sidecar runs on, and the log of the run before is kept.
#[tokio::test]
async fn program_that_ends_is_started_again_alone() {
    let host = TestRuntimeHost::new();
    let runs = host.dir.path().join("runs");
    let script =
        format!("echo x >>{0}; n=$(wc -l <{0}); echo run $n; test $n -ge 3 && exec sleep 1000; exit 7", runs.display());
    let mut spec = running(RestartPolicy::Always, &script);
    spec.init_containers = vec![Sidecar { name: "before".into(), ..sidecar(RestartPolicy::OnFailure, "echo once") }];
    spec.sidecars = vec![sidecar(RestartPolicy::Always, "echo side; exec sleep 1000")];
    let mut instance = host.start(1, spec);
    for _ in 0..2 {
        assert_eq!(instance.restarting().await.cause, ExitCause::Exited(7));
        instance.until(|report| (report == InstanceReport::Restarted).then_some(())).await;
    }
    instance.until(|report| matches!(report, InstanceReport::Ready { .. }).then_some(())).await;
    host.wrote(1, "run 3").await;
    let ends = |name: &str, text: &str| assert!(file(&host, name).ends_with(text), "{name}: {}", file(&host, name));
    ends("1.log", "F run 3\n");
    ends("1._previous.log", "F run 2\n");
    for (name, text) in [("1.before.log", "once"), ("1.side.log", "side")] {
        assert_eq!(file(&host, name).matches(text).count(), 1, "{name}");
    }
    instance.handle.stop();
    assert_eq!(instance.exited().await.cause, ExitCause::Signaled(15));
}

#[tokio::test]
async fn program_that_succeeded_is_not_started_again_on_failure() {
    let host = TestRuntimeHost::new();
    let flag = host.dir.path().join("flag");
    let script = format!("test -e {0} && exit 0; touch {0}; exit 5", flag.display());
    let mut spec = running(RestartPolicy::OnFailure, &script);
    spec.sidecars = vec![sidecar(RestartPolicy::OnFailure, "exit 0")];
    let mut instance = host.start(1, spec);
    assert_eq!(instance.restarting().await.cause, ExitCause::Exited(5));
    assert_eq!(instance.exited().await.cause, ExitCause::Exited(0));

    let mut never = host.start(2, running(RestartPolicy::Never, "exit 5"));
    assert_eq!(never.exited().await.cause, ExitCause::Exited(5));
}

/// A stop while it waits for its next start ends the instance at once, with the others.
#[tokio::test]
async fn stop_ends_an_instance_that_waits_for_a_restart() {
    let host = TestRuntimeHost::new();
    let mut spec = running(RestartPolicy::Always, "exit 1");
    spec.sidecars = vec![sidecar(RestartPolicy::Always, "exec sleep 1000")];
    let mut instance = host.start(1, spec);
    for _ in 0..4 {
        instance.restarting().await; // the next start would follow after seconds
    }
    instance.handle.stop();
    let exit = instance.exited().await;
    assert_eq!(exit.cause, ExitCause::Exited(1), "{exit:?}");
    assert!(!host.folder().join("1.run").exists());
}

/// A failed liveness probe ends the program alone, and the others run on.
#[tokio::test]
async fn unhealthy_program_is_started_again_alone() {
    let host = TestRuntimeHost::new();
    let sick = host.dir.path().join("sick");
    fs::write(&sick, "").unwrap();
    let mut spec = running(RestartPolicy::OnFailure, "exec sleep 1000");
    let command = ["test", "!", "-e", sick.to_str().unwrap()].map(str::to_owned).to_vec();
    let probe = ProbeSpec::single(ProbeCheck::Exec { command });
    spec.liveness = Some(ProbeSpec { period: Duration::from_millis(20), failures_max: 1, ..probe });
    spec.sidecars = vec![sidecar(RestartPolicy::OnFailure, "echo side; exec sleep 1000")];
    let mut instance = host.start(1, spec);
    let exit = instance.restarting().await;
    assert!(matches!(exit.cause, ExitCause::Unhealthy(_)), "{exit:?}");
    fs::remove_file(&sick).unwrap();
    instance.until(|report| matches!(report, InstanceReport::Ready { .. }).then_some(())).await;
    assert_eq!(file(&host, "1.side.log").matches("side").count(), 1);
}

/// One init container that fails is tried again, and those before it are not.
#[tokio::test]
async fn failed_init_container_is_tried_again_alone() {
    let host = TestRuntimeHost::new();
    let flag = host.dir.path().join("flag");
    let mut spec = running(RestartPolicy::Always, "exec sleep 1000");
    let init = |name: &str, script: &str| Sidecar { name: name.into(), ..sidecar(RestartPolicy::OnFailure, script) };
    let second = format!("test -e {0} && exit 0; touch {0}; exit 5", flag.display());
    spec.init_containers = vec![init("first", "echo once"), init("second", &second)];
    let mut instance = host.start(1, spec);
    let failed = instance
        .until(|report| match report {
            InstanceReport::Sidecars(all) => all.into_iter().find(|one| one.last_exit.is_some()),
            _ => None,
        })
        .await;
    assert_eq!((failed.name.as_str(), failed.is_running, failed.restarts), ("second", false, 0));
    assert_eq!(failed.last_exit.unwrap().cause, ExitCause::Exited(5));
    let over = instance
        .until(|report| match report {
            InstanceReport::Sidecars(all) => Some(all).filter(|all| all.len() == 2 && all.iter().all(|one| one.ended)),
            _ => None,
        })
        .await;
    assert_eq!(over.iter().map(|one| one.restarts).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(file(&host, "1.first.log").matches("once").count(), 1);
}

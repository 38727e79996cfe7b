//! The effect of probes on an instance after its start.

use std::fs;
use std::time::Duration;

use sluicegate_control::runtime::sessions::{SessionCommandSpec, SessionExit};
use sluicegate_control::runtime::{
    ExitCause, InstanceReport, InstanceSpec, ProbeCheck, ProbeSpec, TerminationMessagePath,
};

use super::{TestRuntimeHost, shell};

/// A probe by a shell command, in quick rounds.
pub(super) fn asks(script: &str, failures_max: u32) -> ProbeSpec {
    let command = ["/bin/sh", "-c", script].map(String::from).to_vec();
    ProbeSpec { period: Duration::from_millis(20), failures_max, ..ProbeSpec::single(ProbeCheck::Exec { command }) }
}

/// A runtime host, the path of a file that its instances check, and an instance with the path.
fn with_file() -> (TestRuntimeHost, std::path::PathBuf, InstanceSpec) {
    let host = TestRuntimeHost::new();
    let file = host.dir.path().join("well");
    let mut spec = shell("sleep 1000");
    spec.env = vec![("FILE".into(), file.display().to_string())];
    (host, file, spec)
}

/// SRV-CON-09, SRV-CON-10, SRV-CON-31: an instance whose liveness probe fails is ended, and the report names the
/// probe.
#[tokio::test]
async fn a_program_that_is_not_alive_any_more_is_ended() {
    let (host, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let readiness = asks("true", 3);
    let liveness = Some(asks("test -e $FILE", 3));
    let mut instance = host.start(1, InstanceSpec { readiness, liveness, ..spec });
    instance.ready().await;
    fs::remove_file(&file).unwrap();
    let gone = instance.gone().await;
    assert_eq!(gone.cause.to_string(), "Unhealthy");
    assert!(gone.message.contains("liveness probe failed: the command failed"), "{}", gone.message);
}

/// SRV-CON-30, COND-17: a command that is not there says so at once, not when the start has taken too long; and then its end
/// says it too.
#[tokio::test]
async fn not_ready_reason_of_start_is_reported() {
    let host = TestRuntimeHost::new();
    let command = vec!["/no/such/command".to_owned()];
    let readiness = ProbeSpec::single(ProbeCheck::Exec { command });
    let startup_max = Duration::from_secs(3);
    let mut instance = host.start(1, InstanceSpec { readiness, startup_timeout: startup_max, ..shell("sleep 1000") });
    let why =
        "readiness probe failed: the command failed with exit status: 127: sluicegate: cannot run /no/such/command";
    let reported = instance.not_ready_reason().await;
    assert!(reported.starts_with(why), "{reported}");
    let gone = instance.gone().await;
    assert_eq!(gone.cause, ExitCause::NotReady);
    assert!(gone.message.contains(why), "{}", gone.message);
}

/// RT-PROBE-08: the time that a start may take counts while the startup probe is asked, however often that may fail.
#[tokio::test]
async fn a_startup_probe_does_not_extend_the_time_of_a_start() {
    let host = TestRuntimeHost::new();
    let startup_max = Duration::from_millis(200);
    let startup = Some(asks("echo not yet; false", u32::MAX));
    let mut instance = host.start(1, InstanceSpec { startup, startup_timeout: startup_max, ..shell("sleep 1000") });
    let gone = instance.gone().await;
    assert_eq!(gone.cause, ExitCause::NotReady);
    assert!(gone.message.contains("startup probe failed: the command failed"), "{}", gone.message);
    assert!(gone.message.contains("not yet"), "{}", gone.message);
}

/// A probe's command that takes too long ends with all its children: one more would stay with each period.
#[tokio::test]
async fn a_command_that_is_given_up_leaves_nobody_behind() {
    let (host, file, spec) = with_file();
    let slow = asks("sleep 1000 & echo $! >> $FILE; wait", u32::MAX); // so the instance itself ends no process
    let liveness = Some(ProbeSpec { timeout: Duration::from_secs(1), ..slow });
    let mut instance = host.start(1, InstanceSpec { readiness: asks("true", 3), liveness, ..spec });
    instance.ready().await;
    let pid = loop {
        match fs::read_to_string(&file).ok().and_then(|pids| pids.lines().next().map(str::to_owned)) {
            Some(pid) => break pid.parse().unwrap(),
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(super::ends(pid).await, "it outlived the attempt");
}

/// SRV-CON-31: the threshold is of failures in a row.
#[tokio::test]
async fn fewer_failures_than_the_threshold_in_a_row_end_nobody() {
    let (host, _, spec) = with_file();
    // Every second round fails.
    let flicker = "if test -e $FILE; then rm $FILE; exit 1; else echo x > $FILE; fi";
    let liveness = Some(asks(flicker, 2));
    let mut instance = host.start(1, InstanceSpec { readiness: asks("true", 3), liveness, ..spec });
    instance.ready().await;
    // Some twenty rounds; an end would be reported.
    let report = tokio::time::timeout(Duration::from_millis(600), instance.report()).await;
    assert!(report.is_err(), "{report:?}");
}

/// SRV-CON-36: an answer that is slower than the probe's timeout is a failure, however good it would have been.
#[tokio::test]
async fn an_answer_that_comes_after_the_timeout_is_a_failure() {
    let (host, file, spec) = with_file();
    let slow = asks("if test -e $FILE; then sleep 1000; fi", 2);
    let liveness = Some(ProbeSpec { timeout: Duration::from_secs(2), ..slow });
    let mut instance = host.start(1, InstanceSpec { readiness: asks("true", 3), liveness, ..spec });
    instance.ready().await;
    let report = tokio::time::timeout(Duration::from_millis(300), instance.report()).await;
    assert!(report.is_err(), "quick answers pass: {report:?}");
    fs::write(&file, "").unwrap();
    let gone = instance.gone().await;
    assert!(matches!(gone.cause, ExitCause::Unhealthy(_)), "{gone:?}");
    assert!(gone.message.contains("liveness probe failed"), "{}", gone.message);
}

/// RT-CG-05: a frozen instance stands still, continues where it was, and ends on SIGTERM.
#[tokio::test]
async fn a_frozen_instance_stands_still_until_it_is_thawed() {
    let (host, file, spec) = with_file();
    let mut spec = spec;
    spec.command[2] = "while :; do echo x >> $FILE; sleep 0.05; done".to_owned();
    let mut instance = host.start(1, InstanceSpec { readiness: asks("true", 3), ..spec });
    instance.ready().await;
    let lines = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    let grows = async |from: usize| {
        while lines() <= from {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    grows(3).await;
    instance.handle.freeze();
    let still = async {
        let mut seen = 0;
        while seen != lines() {
            seen = lines();
            tokio::time::sleep(Duration::from_millis(300)).await; // six lines, if the order has not come yet
        }
        seen
    };
    let before = tokio::time::timeout(super::TIMEOUT, still).await.expect("it stands still");
    let report = tokio::time::timeout(Duration::from_millis(600), instance.report()).await;
    assert!(report.is_err(), "{report:?}");
    assert_eq!(lines(), before, "it went on");
    instance.handle.thaw();
    tokio::time::timeout(super::TIMEOUT, grows(before + 3)).await.expect("it goes on");

    instance.handle.freeze();
    tokio::time::sleep(Duration::from_millis(300)).await;
    instance.handle.stop();
    let gone = loop {
        if let InstanceReport::Exited(gone) = instance.report().await {
            break gone;
        }
    };
    assert_eq!(gone.cause, ExitCause::Signaled(15), "it heard the signal: {}", gone.message);
}

/// RT-CG-05: a client's command runs in a frozen instance, which is frozen again after it.
#[tokio::test]
async fn frozen_instance_runs_only_while_a_session_is_open() {
    let (host, file, spec) = with_file();
    let mut spec = spec;
    spec.command[2] = "while :; do echo x >> $FILE; sleep 0.05; done".to_owned();
    let mut instance = host.start(1, InstanceSpec { readiness: asks("test -s $FILE", 3), ..spec });
    instance.ready().await;
    let lines = || fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    let until_still = async || {
        let mut seen = 0;
        while seen != lines() {
            seen = lines();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        seen
    };
    instance.handle.freeze();
    let before = tokio::time::timeout(super::TIMEOUT, until_still()).await.expect("it stands still");
    let command = ["/bin/sh", "-c", "while [ $(wc -l < $FILE) -le $FROM ]; do sleep 0.02; done"].map(String::from);
    let command = command.map(|word| word.replace("$FROM", &before.to_string())).to_vec();
    let client = host.runtime.sessions();
    let session = client.exec(SessionCommandSpec { instance: 1, command, ..Default::default() });
    let session = tokio::time::timeout(super::TIMEOUT, session).await.expect("it is thawed").expect("it starts");
    let exit = tokio::time::timeout(super::TIMEOUT, session.exit).await.expect("it goes on");
    assert_eq!(exit, Ok(SessionExit::Code(0)));
    assert!(lines() > before);
    tokio::time::timeout(super::TIMEOUT, until_still()).await.expect("it is frozen again");
    instance.handle.thaw();
    let after = lines();
    let goes_on = async {
        while lines() <= after {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(super::TIMEOUT, goes_on).await.expect("it is thawed");
    instance.handle.stop();
    instance.gone().await;
}

/// RT-PROBE-01, RT-CG-05: the first probe after a thaw may fail, and that is reported as ever; a thawed instance repeats no `Ready`.
#[tokio::test]
async fn thawed_instance_that_fails_its_probe_is_unready() {
    let (host, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let mut instance = host.start(1, InstanceSpec { readiness: asks("test -e $FILE", 1), ..spec });
    let address = instance.ready().await;
    instance.handle.freeze();
    fs::remove_file(&file).unwrap();
    instance.handle.thaw();
    assert_eq!(instance.report().await, InstanceReport::Unready);
    fs::write(&file, "").unwrap();
    assert_eq!(instance.ready().await, address);
    instance.handle.stop();
    instance.gone().await;
}

/// An instance whose state was in doubt when it was frozen is in doubt after its thaw.
#[tokio::test]
async fn unready_instance_is_unready_again_after_a_thaw() {
    let (host, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let mut instance = host.start(1, InstanceSpec { readiness: asks("test -e $FILE", 1), ..spec });
    instance.ready().await;
    fs::remove_file(&file).unwrap();
    assert_eq!(instance.report().await, InstanceReport::Unready);
    instance.handle.freeze();
    instance.handle.thaw();
    assert_eq!(instance.report().await, InstanceReport::Unready);
    fs::write(&file, "").unwrap();
    instance.ready().await;
}

/// SRV-CON-15: the report of its end has what the program wrote at the manifest's path, and a file of the host at
/// that path is not touched.
#[tokio::test]
async fn last_output_of_instance_is_reported() {
    let host = TestRuntimeHost::new();
    let by_variable = "echo out of coffee > $SLUICEGATE_TERMINATION_LOG; echo noise; exit 3";
    let spec = InstanceSpec { termination_message: Some(TerminationMessagePath::Variable), ..shell(by_variable) };
    let gone = host.start(1, spec.clone()).gone().await;
    assert_eq!(gone.cause, ExitCause::Exited(3));
    assert!(gone.message.ends_with("it said: out of coffee"), "{}", gone.message);
    let silent = InstanceSpec { termination_message: spec.termination_message, ..shell("echo noise; exit 3") };
    let gone = host.start(2, silent).gone().await;
    assert!(gone.message.contains("noise"), "{}", gone.message);
    if !sluicegate_control::runtime::may_mount() {
        eprintln!("skipped: only root may mount");
        return;
    }
    let path = host.dir.path().join("not/there/log");
    for (id, path) in [(3, path.as_path()), (4, std::path::Path::new("/dev/termination-log"))] {
        let script = format!("echo mounted > {}; exit 4", path.display());
        let spec =
            InstanceSpec { termination_message: Some(TerminationMessagePath::Path(path.to_owned())), ..shell(&script) };
        let gone = host.start(id, spec).gone().await;
        assert!(gone.message.ends_with("it said: mounted"), "{}", gone.message);
        assert!(!path.exists());
    }
}

/// RT-PROBE-05: readiness with a period is asked on, lost, and found again.
#[tokio::test]
async fn readiness_is_lost_and_found_again() {
    let (host, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let mut instance = host.start(1, InstanceSpec { readiness: asks("test -e $FILE", 2), ..spec });
    instance.ready().await;
    fs::remove_file(&file).unwrap();
    assert_eq!(instance.report().await, InstanceReport::Unready);
    fs::write(&file, "").unwrap();
    instance.ready().await;
}

#[tokio::test]
async fn a_startup_probe_that_never_passes_ends_the_start() {
    let (host, _, spec) = with_file();
    let startup = Some(asks("test -e $FILE", 3));
    let mut instance = host.start(1, InstanceSpec { startup, readiness: asks("true", 3), ..spec });
    let gone = instance.gone().await;
    assert!(matches!(gone.cause, ExitCause::Unhealthy(_)), "{gone:?}");
    assert!(gone.message.contains("startup probe failed"), "{}", gone.message);
}

#[tokio::test]
async fn readiness_waits_for_the_startup_probe() {
    let (host, file, spec) = with_file();
    let startup = Some(asks("test -e $FILE", 1_000));
    let mut instance = host.start(1, InstanceSpec { startup, readiness: asks("true", 3), ..spec });
    let early = tokio::time::timeout(Duration::from_millis(200), instance.report()).await;
    assert!(early.is_err(), "{early:?}");
    fs::write(&file, "").unwrap();
    instance.ready().await;
}

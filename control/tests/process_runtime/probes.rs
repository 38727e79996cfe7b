//! What probes do to an instance after its start.

use std::fs;
use std::time::Duration;

use sluicegate_control::runtime::{Cause, Check, InstanceSpec, Probe, Report};

use super::{House, shell};

/// A probe by a shell command, in quick rounds.
pub(super) fn asks(script: &str, failures_max: u32) -> Probe {
    let command = ["/bin/sh", "-c", script].map(String::from).to_vec();
    Probe { period: Duration::from_millis(20), failures_max, ..Probe::once(Check::Exec { command }) }
}

/// A house, the path of a file that its instances look at, and an instance that knows it.
fn with_file() -> (House, std::path::PathBuf, InstanceSpec) {
    let house = House::new();
    let file = house.dir.path().join("well");
    let mut spec = shell("sleep 1000");
    spec.env = vec![("FILE".into(), file.display().to_string())];
    (house, file, spec)
}

/// SRV-CON-09, SRV-CON-10, SRV-CON-31: an instance whose liveness probe fails is ended, and its end says why.
#[tokio::test]
async fn a_program_that_is_not_alive_any_more_is_ended() {
    let (house, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let readiness = asks("true", 3);
    let liveness = Some(asks("test -e $FILE", 3));
    let mut guest = house.start(1, InstanceSpec { readiness, liveness, ..spec });
    guest.ready().await;
    fs::remove_file(&file).unwrap();
    let gone = guest.gone().await;
    assert_eq!(gone.cause.to_string(), "Unhealthy");
    assert!(gone.message.contains("liveness probe failed: the command failed"), "{}", gone.message);
}

/// SRV-CON-31: the threshold is of failures in a row.
#[tokio::test]
async fn fewer_failures_than_the_threshold_in_a_row_end_nobody() {
    let (house, _, spec) = with_file();
    // Every second round fails.
    let flicker = "if test -e $FILE; then rm $FILE; exit 1; else echo x > $FILE; fi";
    let liveness = Some(asks(flicker, 2));
    let mut guest = house.start(1, InstanceSpec { readiness: asks("true", 3), liveness, ..spec });
    guest.ready().await;
    // Some twenty rounds; an end would be reported.
    let report = tokio::time::timeout(Duration::from_millis(600), guest.report()).await;
    assert!(report.is_err(), "{report:?}");
}

/// RT-PROBE-05: readiness with a period is asked on, lost, and found again.
#[tokio::test]
async fn readiness_is_lost_and_found_again() {
    let (house, file, spec) = with_file();
    fs::write(&file, "").unwrap();
    let mut guest = house.start(1, InstanceSpec { readiness: asks("test -e $FILE", 2), ..spec });
    guest.ready().await;
    fs::remove_file(&file).unwrap();
    assert_eq!(guest.report().await, Report::Unready);
    fs::write(&file, "").unwrap();
    guest.ready().await;
}

#[tokio::test]
async fn a_startup_probe_that_never_passes_ends_the_start() {
    let (house, _, spec) = with_file();
    let startup = Some(asks("test -e $FILE", 3));
    let mut guest = house.start(1, InstanceSpec { startup, readiness: asks("true", 3), ..spec });
    let gone = guest.gone().await;
    assert!(matches!(gone.cause, Cause::Unhealthy(_)), "{gone:?}");
    assert!(gone.message.contains("startup probe failed"), "{}", gone.message);
}

#[tokio::test]
async fn readiness_waits_for_the_startup_probe() {
    let (house, file, spec) = with_file();
    let startup = Some(asks("test -e $FILE", 1_000));
    let mut guest = house.start(1, InstanceSpec { startup, readiness: asks("true", 3), ..spec });
    let early = tokio::time::timeout(Duration::from_millis(200), guest.report()).await;
    assert!(early.is_err(), "{early:?}");
    fs::write(&file, "").unwrap();
    guest.ready().await;
}

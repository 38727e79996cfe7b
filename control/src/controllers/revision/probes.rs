//! From a manifest's probes to the questions that an instance is asked.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe as Manifest};

use super::plan::Unrunnable;
use crate::runtime::limits::{PROBE_FAILURES_MAX, PROBE_PERIOD, PROBE_TIMEOUT};
use crate::runtime::{Check, Probe};

/// RT-PROBE-01: without one a TCP connect; without a period as soon as possible, and then never again.
pub(super) fn readiness(manifest: Option<&Manifest>) -> Result<Probe, Unrunnable> {
    let Some(manifest) = manifest else { return Ok(Probe::once(Check::Tcp)) };
    let period = seconds(manifest.period_seconds).unwrap_or_default();
    Ok(Probe { period, ..probe(manifest)? })
}

/// Liveness and startup probes have a period even if nobody gave them one.
pub(super) fn later(manifest: &Manifest) -> Result<Probe, Unrunnable> {
    let successes_min = 1; // Kubernetes allows no other
    Ok(Probe { successes_min, ..probe(manifest)? })
}

fn probe(manifest: &Manifest) -> Result<Probe, Unrunnable> {
    let count = |value: Option<i32>| value.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    Ok(Probe {
        check: check(manifest)?,
        delay: seconds(manifest.initial_delay_seconds).unwrap_or_default(),
        period: seconds(manifest.period_seconds).unwrap_or(PROBE_PERIOD),
        timeout: seconds(manifest.timeout_seconds).unwrap_or(PROBE_TIMEOUT),
        failures_max: count(manifest.failure_threshold).unwrap_or(PROBE_FAILURES_MAX),
        successes_min: count(manifest.success_threshold).unwrap_or(1),
    })
}

fn check(manifest: &Manifest) -> Result<Check, Unrunnable> {
    if manifest.grpc.is_some() {
        return Err(Unrunnable {
            reason: "NotSupported",
            message: "The process runtime does not speak grpc probes: use tcpSocket, or exec with a program that does."
                .to_owned(),
        });
    }
    Ok(if let Some(get) = &manifest.http_get {
        http(get)
    } else if let Some(exec) = &manifest.exec {
        Check::Exec { command: exec.command.clone().unwrap_or_default() }
    } else {
        Check::Tcp
    })
}

fn http(get: &HTTPGetAction) -> Check {
    let mut headers: Vec<_> =
        get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
    headers.extend(get.host.clone().map(|host| ("Host".to_owned(), host)));
    let path = get.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    Check::Http { path, headers }
}

/// `None` for zero as well, which is how a manifest says "as usual".
fn seconds(value: Option<i32>) -> Option<Duration> {
    value.and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn manifest(json: Value) -> Manifest {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn readiness_without_a_period_is_asked_as_fast_as_possible_and_once() {
        assert_eq!(readiness(None).unwrap(), Probe::once(Check::Tcp));
        let zero = manifest(json!({"tcpSocket": {"port": 0}, "successThreshold": 1}));
        assert_eq!(readiness(Some(&zero)).unwrap(), Probe::once(Check::Tcp));
        let slow = manifest(json!({"tcpSocket": {"port": 0}, "periodSeconds": 2, "failureThreshold": 5}));
        let slow = readiness(Some(&slow)).unwrap();
        assert_eq!((slow.period, slow.failures_max), (Duration::from_secs(2), 5));
    }

    #[test]
    fn liveness_keeps_kubernetes_defaults() {
        let probe = later(&manifest(json!({"httpGet": {"path": "/live", "port": 0}}))).unwrap();
        assert_eq!(probe.check, Check::Http { path: "/live".into(), headers: Vec::new() });
        assert_eq!((probe.period.as_secs(), probe.timeout.as_secs(), probe.failures_max), (10, 1, 3));
    }

    #[test]
    fn a_grpc_probe_is_refused_with_what_to_use_instead() {
        let grpc = manifest(json!({"grpc": {"port": 0}}));
        for refused in [readiness(Some(&grpc)), later(&grpc)] {
            assert!(refused.unwrap_err().message.contains("exec"));
        }
    }
}

//! Converts a manifest's probes to the runtime's.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, Probe as Manifest};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use runtime::limits::{PROBE_FAILURES_MAX, PROBE_PERIOD, PROBE_TIMEOUT};
use runtime::{ProbeCheck, ProbeSpec};

/// RT-PROBE-01: without one a TCP connect; without a period as soon as possible.
pub(super) fn readiness(manifest: Option<&Manifest>) -> ProbeSpec {
    let Some(manifest) = manifest else { return ProbeSpec::single(ProbeCheck::Tcp) };
    let period = seconds(manifest.period_seconds).unwrap_or_default();
    ProbeSpec { period, ..probe(manifest) }
}

/// Liveness and startup probes have a period even if the manifest specifies none.
pub(super) fn periodic_probe(manifest: &Manifest) -> ProbeSpec {
    let successes_min = 1; // Kubernetes allows no other
    ProbeSpec { successes_min, ..probe(manifest) }
}

fn probe(manifest: &Manifest) -> ProbeSpec {
    let count = |value: Option<i32>| value.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    ProbeSpec {
        check: check(manifest),
        port: None,
        initial_delay: seconds(manifest.initial_delay_seconds).unwrap_or_default(),
        period: seconds(manifest.period_seconds).unwrap_or(PROBE_PERIOD),
        timeout: seconds(manifest.timeout_seconds).unwrap_or(PROBE_TIMEOUT),
        failures_max: count(manifest.failure_threshold).unwrap_or(PROBE_FAILURES_MAX),
        successes_min: count(manifest.success_threshold).unwrap_or(1),
    }
}

/// RT-PROBE-03: whatever port a probe names, it aims at the instance's own. Pods set it later.
fn check(manifest: &Manifest) -> ProbeCheck {
    if let Some(get) = &manifest.http_get {
        http(get)
    } else if let Some(exec) = &manifest.exec {
        ProbeCheck::Exec { command: exec.command.clone().unwrap_or_default() }
    } else if let Some(grpc) = &manifest.grpc {
        ProbeCheck::Grpc { service: grpc.service.clone().unwrap_or_default() }
    } else if let Some(host) = manifest.tcp_socket.as_ref().and_then(|tcp| named(tcp.host.as_ref())) {
        ProbeCheck::TcpAt { host }
    } else {
        ProbeCheck::Tcp
    }
}

/// The port that a probe names by its number.
pub(super) fn port(manifest: &Manifest) -> Option<u16> {
    let number = |port: &IntOrString| match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(_) => None,
    };
    let get = manifest.http_get.as_ref().and_then(|get| number(&get.port));
    let tcp = manifest.tcp_socket.as_ref().and_then(|tcp| number(&tcp.port));
    let grpc = manifest.grpc.as_ref().map(|grpc| grpc.port);
    get.or(tcp).or(grpc).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

fn named(host: Option<&String>) -> Option<String> {
    host.cloned().filter(|host| !host.is_empty())
}

fn http(get: &HTTPGetAction) -> ProbeCheck {
    let mut headers: Vec<_> = get.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
    // A header of that name says it more exactly; a request has one Host.
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        headers.extend(named(get.host.as_ref()).map(|host| ("Host".to_owned(), host)));
    }
    let path = get.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".to_owned());
    let tls = get.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    ProbeCheck::Http { path, headers, tls }
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

    /// SRV-CON-31, SRV-CON-33, SRV-CON-34, SRV-CON-36: each number reaches the probe.
    #[test]
    fn readiness_without_a_period_is_asked_as_fast_as_possible() {
        assert_eq!(readiness(None), ProbeSpec::single(ProbeCheck::Tcp));
        let zero = manifest(json!({"tcpSocket": {"port": 0}, "successThreshold": 1}));
        assert_eq!(readiness(Some(&zero)), ProbeSpec::single(ProbeCheck::Tcp));
        let slow = readiness(Some(&manifest(json!({
            "tcpSocket": {"port": 0}, "periodSeconds": 2, "failureThreshold": 5, "successThreshold": 4,
            "timeoutSeconds": 3, "initialDelaySeconds": 7
        }))));
        assert_eq!((slow.period.as_secs(), slow.timeout.as_secs(), slow.initial_delay.as_secs()), (2, 3, 7));
        assert_eq!((slow.failures_max, slow.successes_min), (5, 4));
    }

    /// Without a period readiness is asked for on, every ten seconds, unless it is no more than to listen.
    #[test]
    fn who_was_ready_is_asked_on() {
        let asked = |probe: Value| readiness(Some(&manifest(probe))).periodic().map(|probe| probe.period.as_secs());
        assert_eq!(asked(json!({"httpGet": {"path": "/", "port": 0}})), Some(10));
        assert_eq!(asked(json!({"httpGet": {"path": "/", "port": 0}, "periodSeconds": 2})), Some(2));
        assert_eq!(asked(json!({"tcpSocket": {"port": 0}})), None);
        assert_eq!(asked(json!({"tcpSocket": {"port": 0}, "periodSeconds": 3})), Some(3));
        assert_eq!(readiness(None).periodic(), None);
    }

    #[test]
    fn liveness_keeps_kubernetes_defaults() {
        let probe = periodic_probe(&manifest(json!({"httpGet": {"path": "/live", "port": 0}})));
        assert_eq!(probe.check, ProbeCheck::Http { path: "/live".into(), headers: Vec::new(), tls: false });
        assert_eq!((probe.period.as_secs(), probe.timeout.as_secs(), probe.failures_max), (10, 1, 3));
    }

    /// RT-PROBE-03, SRV-CON-32, SRV-CON-35, SRV-CON-40, SRV-CON-41, SRV-CON-43, SRV-CON-45: each kind of question, and
    /// no port but the instance's; its host is the request's.
    #[test]
    fn every_kind_of_probe_is_asked_at_the_instances_port() {
        for (written, wanted) in [
            (json!({"tcpSocket": {"port": 9}}), ProbeCheck::Tcp),
            (json!({"tcpSocket": {"port": 9, "host": "127.0.0.2"}}), ProbeCheck::TcpAt { host: "127.0.0.2".into() }),
            (
                json!({"httpGet": {"port": 9, "path": "/a?b", "scheme": "HTTPS", "host": "h",
                    "httpHeaders": [{"name": "X", "value": "1"}]}}),
                ProbeCheck::Http {
                    path: "/a?b".into(),
                    headers: vec![("X".into(), "1".into()), ("Host".into(), "h".into())],
                    tls: true,
                },
            ),
            (
                json!({"httpGet": {"port": 9, "host": "h", "httpHeaders": [{"name": "HOST", "value": "own"}]}}),
                ProbeCheck::Http { path: "/".into(), headers: vec![("HOST".into(), "own".into())], tls: false },
            ),
            (
                json!({"httpGet": {"port": 9, "host": ""}}),
                ProbeCheck::Http { path: "/".into(), headers: Vec::new(), tls: false },
            ),
            (json!({"grpc": {"port": 9, "service": "s"}}), ProbeCheck::Grpc { service: "s".into() }),
            (json!({"exec": {"command": ["a", "b"]}}), ProbeCheck::Exec { command: vec!["a".into(), "b".into()] }),
        ] {
            assert_eq!(readiness(Some(&manifest(written.clone()))).check, wanted, "{written}");
        }
    }
}

//! The rules of probes, in Kubernetes' words.

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::not_negative;
use crate::field_errors::FieldErrors;

/// The probes of a container.
pub(super) fn validate(container: &Container, at: &str, problems: &mut FieldErrors) {
    for (name, probe, counts_successes) in [
        ("livenessProbe", &container.liveness_probe, false),
        ("readinessProbe", &container.readiness_probe, true),
        ("startupProbe", &container.startup_probe, false),
    ] {
        if let Some(probe) = probe {
            validate_probe(probe, &format!("{at}.{name}"), counts_successes, problems);
        }
    }
}

fn validate_probe(probe: &Probe, at: &str, counts_successes: bool, problems: &mut FieldErrors) {
    let handlers = [probe.exec.is_some(), probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.grpc.is_some()];
    match handlers.iter().filter(|set| **set).count() {
        0 => problems.add(at, "Required value: must specify a handler type"),
        1 => {}
        _ => problems.add(at, "Forbidden: may not specify more than 1 handler type"),
    }
    if let Some(exec) = &probe.exec
        && exec.command.as_ref().is_none_or(Vec::is_empty)
    {
        problems.add(format!("{at}.exec.command"), "Required value");
    }
    let ports = [
        ("httpGet", probe.http_get.as_ref().map(|get| &get.port)),
        ("tcpSocket", probe.tcp_socket.as_ref().map(|tcp| &tcp.port)),
    ];
    for (handler, port) in ports {
        if let Some(IntOrString::Int(number)) = port
            && !(1..=65535).contains(number)
        {
            let why = format!("Invalid value: {number}: must be between 1 and 65535, inclusive");
            problems.add(format!("{at}.{handler}.port"), why);
        }
    }
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        not_negative(value, &format!("{at}.{field}"), problems);
    }
    if !counts_successes && probe.success_threshold.is_some_and(|count| count > 1) {
        let count = probe.success_threshold.unwrap_or_default();
        problems.add(format!("{at}.successThreshold"), format!("Invalid value: {count}: must be 1"));
    }
}

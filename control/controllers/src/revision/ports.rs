//! The port of a container, and the protocol that its name declares.

use k8s_openapi::api::core::v1::Container;

use super::probes;

/// The default port of programs (RT-PORT-03).
const PORT_DEFAULT: u16 = 8080;

/// RT-PORT-03: the developer's port, or the platform's default.
pub(super) fn port(container: &Container) -> u16 {
    let named = container.ports.iter().flatten().find_map(|port| u16::try_from(port.container_port).ok());
    let probes = [&container.readiness_probe, &container.liveness_probe, &container.startup_probe];
    // Of a sidecar, which has none, the one that its probes name.
    let asked = || probes.into_iter().flatten().find_map(probes::port);
    named.filter(|port| *port > 0).or_else(asked).unwrap_or(PORT_DEFAULT)
}

/// RT-PORT-02: its port has no name.
pub(super) fn says_no_protocol(container: &Container) -> bool {
    container.ports.iter().flatten().all(|port| port.name.as_deref().is_none_or(str::is_empty))
}

//! Variables from `fieldRef` and `resourceFieldRef`.
//!
//! A process is its own Pod: its name is the Pod's, its addresses are this host's. A field that a Pod has and a process
//! does not is rejected by name.

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::error::RevisionError;
use runtime::ResourceLimits;
use runtime::environment::{POD_NAME_PLACEHOLDER, POD_UID_PLACEHOLDER};
use types::node::NODE;
use types::quantity;
use types::shared::namespace;

/// Where instances listen.
const ADDRESS: &str = "127.0.0.1";

/// The host's processors, in thousandths, and its memory in bytes: the values without a limit.
#[derive(Debug, Clone, Copy)]
struct HostCapacity {
    cpu_milli: u64,
    memory_bytes: u64,
}

impl HostCapacity {
    fn current() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        Self {
            cpu_milli: cpus * 1000,
            memory_bytes: total.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) * 1024,
        }
    }
}

/// The value of `fieldRef` for an instance that runs as `account`.
pub(super) fn field_ref(
    field: &ObjectFieldSelector,
    meta: &ObjectMeta,
    account: &str,
) -> Result<String, RevisionError> {
    let path = field.field_path.as_str();
    Ok(match path {
        "metadata.name" => POD_NAME_PLACEHOLDER.to_owned(),
        "metadata.uid" => POD_UID_PLACEHOLDER.to_owned(),
        "metadata.namespace" => namespace(meta).to_owned(),
        "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs" => ADDRESS.to_owned(),
        "spec.nodeName" => NODE.to_owned(),
        "spec.serviceAccountName" => account.to_owned(),
        _ => label_or_annotation(path, meta).ok_or_else(|| unknown("fieldRef", path))?,
    })
}

/// The value of one label or annotation, `metadata.labels['KEY']`; `None` if `path` is no such thing.
pub(super) fn label_or_annotation(path: &str, meta: &ObjectMeta) -> Option<String> {
    let key = |prefix: &str| path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']");
    let (map, key) = match (key("metadata.labels"), key("metadata.annotations")) {
        (Some(key), _) => (&meta.labels, key),
        (_, Some(key)) => (&meta.annotations, key),
        _ => return None,
    };
    Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default())
}

/// The value of `resourceFieldRef`: a quantity of the container, or the host's if it has none.
pub(super) fn resource_field_ref(
    field: &ResourceFieldSelector,
    container: &Container,
) -> Result<String, RevisionError> {
    resource_on(field, container, HostCapacity::current())
}

/// The container's resources (SRV-CON-13, SRV-CON-55, SRV-CON-56).
pub(super) fn resources(container: &Container) -> Result<ResourceLimits, RevisionError> {
    let given = container.resources.clone().unwrap_or_default();
    let read = |side: &str, name: &str, read: fn(&str) -> Option<u64>| {
        let map = if side == "limits" { &given.limits } else { &given.requests };
        let Some(quantity) = map.as_ref().and_then(|map| map.get(name)) else { return Ok(0) };
        read(&quantity.0).ok_or_else(|| RevisionError {
            reason: "CreateContainerConfigError",
            message: format!("resources.{side}.{name}: \"{}\" is not a valid quantity", quantity.0),
        })
    };
    Ok(ResourceLimits {
        memory_bytes_max: read("limits", "memory", quantity::memory)?,
        cpu_milli_max: read("limits", "cpu", quantity::milli)?,
        cpu_milli_request: read("requests", "cpu", quantity::milli)?,
    })
}

fn resource_on(
    field: &ResourceFieldSelector,
    container: &Container,
    host: HostCapacity,
) -> Result<String, RevisionError> {
    let path = field.resource.as_str();
    let unknown = || unknown("resourceFieldRef", path);
    let (side, name) = path.split_once('.').ok_or_else(unknown)?;
    let resources = container.resources.clone().unwrap_or_default();
    let given = match side {
        "limits" => &resources.limits,
        "requests" => &resources.requests,
        _ => return Err(unknown()),
    };
    let text = given.as_ref().and_then(|given| given.get(name)).map(|quantity| quantity.0.as_str());
    let divisor = field.divisor.as_ref().map(|divisor| divisor.0.as_str()).filter(|text| *text != "0");
    // The unit of counting is a thousandth of a processor, and a byte.
    let (read, whole, host): (fn(&str) -> Option<u64>, _, _) = match name {
        "cpu" => (quantity::milli, 1000, host.cpu_milli),
        "memory" => (quantity::memory, 1, host.memory_bytes),
        _ => return Err(unknown()),
    };
    let unread = |text: &str| RevisionError {
        reason: "CreateContainerConfigError",
        message: format!("resourceFieldRef {path}: \"{text}\" cannot be read as a quantity of {name}"),
    };
    let amount = match text {
        Some(text) => read(text).ok_or_else(|| unread(text))?,
        None if side == "limits" => host,
        None => 0,
    };
    let unit = match divisor {
        Some(text) => read(text).filter(|unit| *unit > 0).ok_or_else(|| unread(text))?,
        None => whole,
    };
    Ok(amount.div_ceil(unit).to_string())
}

fn unknown(kind: &str, path: &str) -> RevisionError {
    RevisionError {
        reason: "NotSupported",
        message: format!("The process runtime does not support {kind} \"{path}\"."),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn fields_are_the_instances_own_and_what_a_process_lacks_is_refused() {
        let meta: ObjectMeta = serde_json::from_value(json!({
            "namespace": "ns", "labels": {"app.dev/team": "red"}, "annotations": {"note": "x"}
        }))
        .unwrap();
        let of = |path: &str| {
            let asked = ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() };
            field_ref(&asked, &meta, "teller")
        };
        for (path, wanted) in [
            ("metadata.name", POD_NAME_PLACEHOLDER),
            ("metadata.uid", POD_UID_PLACEHOLDER),
            ("metadata.namespace", "ns"),
            ("metadata.labels['app.dev/team']", "red"),
            ("metadata.labels['gone']", ""),
            ("metadata.annotations['note']", "x"),
            ("status.podIP", "127.0.0.1"),
            ("status.hostIP", "127.0.0.1"),
            ("spec.nodeName", "localhost"),
            ("spec.serviceAccountName", "teller"),
        ] {
            assert_eq!(of(path).as_deref(), Ok(wanted), "{path}");
        }
        for path in ["", "status.phase", "metadata.labels", "metadata.labels[x]"] {
            assert_eq!(of(path).unwrap_err().reason, "NotSupported", "{path}");
        }
    }

    #[test]
    fn resources_are_counted_in_their_divisor_and_rounded_up() {
        let container: Container = serde_json::from_value(json!({"name": "x", "resources": {
            "limits": {"cpu": "1500m", "memory": "65Mi"}, "requests": {"memory": "much"}}}))
        .unwrap();
        let of = |resource: &str, divisor: Value| {
            let selector = serde_json::from_value(json!({"resource": resource, "divisor": divisor})).unwrap();
            resource_on(&selector, &container, HostCapacity { cpu_milli: 4000, memory_bytes: 1 << 30 })
        };
        for (resource, divisor, wanted) in [
            ("limits.cpu", Value::Null, "2"),
            ("limits.cpu", json!("1m"), "1500"),
            ("limits.memory", Value::Null, "68157440"),
            ("limits.memory", json!("1Mi"), "65"),
            ("limits.memory", json!("0"), "68157440"),
            ("requests.cpu", Value::Null, "0"),
        ] {
            assert_eq!(of(resource, divisor).as_deref(), Ok(wanted), "{resource}");
        }
        for resource in ["requests.memory", "limits.gpu", "cpu", "mine.cpu"] {
            assert!(of(resource, Value::Null).is_err(), "{resource}");
        }
        let bare = Container::default();
        let selector: ResourceFieldSelector =
            serde_json::from_value(json!({"resource": "limits.memory", "divisor": "1Gi"})).unwrap();
        let host = HostCapacity { cpu_milli: 4000, memory_bytes: 1 << 30 };
        assert_eq!(resource_on(&selector, &bare, host).as_deref(), Ok("1"), "the host's, where none is set");
        assert!(HostCapacity::current().cpu_milli >= 1000 && HostCapacity::current().memory_bytes > 0);
    }
}

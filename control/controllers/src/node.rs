//! The Node: this host as clients of Kubernetes look for it. There is one, and it is Ready for as long as the appliance runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use rustix::fs::StatVfs;

use crate::api::{Error, is_not_found, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, RestoreFuture, Watches};
use crate::field_managers::{object_params, status_params};
use crate::informer_cache::InformerCache;
use crate::pods::runtime_usage::memory_of_host;
use crate::work_queue::{ControllerKind, WorkItem};
use crate::workloads::limits::PODS_MAX;
use types::node::NODE;

const KIND: ControllerKind = ControllerKind::new("Node");
/// How often memory and disk are checked. The object is written only if its status changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The kubelet's thresholds: less memory is available than this ...
const MEMORY_AVAILABLE_MIN: u64 = 100 * 1024 * 1024;
/// ... or less of the disk, in percent.
const DISK_AVAILABLE_MIN_PERCENT: u64 = 10;

/// Writes the Node.
#[derive(Debug, Default)]
pub struct NodeController {
    cache: InformerCache<Node>,
}

impl Controller for NodeController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.own_primary(KIND, &self.cache);
    }

    fn restore<'a>(&'a self, context: &'a ControllerContext) -> RestoreFuture<'a> {
        Box::pin(async { context.enqueue(WorkItem::new(KIND, "", NODE)) })
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    if item.name != NODE {
        return Ok(()); // it was created by an earlier version
    }
    // One timer, whatever else brings the item up: each of them would start another.
    context.queue.add_after_unless_sooner(item, CHECK_INTERVAL);
    let api = Api::<Node>::all(context.client.clone());
    let node = match api.get(NODE).await {
        Err(why) if is_not_found(&why) => api.create(&object_params::<Node>(), &new_node()).await?,
        found => found?,
    };
    let data = context.config.state_root.as_deref().and_then(Path::parent);
    let status = status(&HostFigures::read(data), node.status.as_ref(), now());
    if node.status.as_ref() != Some(&status) {
        let after = Node { status: Some(status), ..node };
        api.replace_status(NODE, &status_params::<Node>(), &after).await?;
    }
    Ok(())
}

fn new_node() -> Node {
    let labels = [
        ("kubernetes.io/arch", architecture().to_owned()),
        ("kubernetes.io/hostname", host_name()),
        ("kubernetes.io/os", std::env::consts::OS.to_owned()),
        ("node-role.kubernetes.io/control-plane", String::new()),
    ];
    let labels: BTreeMap<String, String> = labels.map(|(key, value)| (key.to_owned(), value)).into();
    Node {
        metadata: ObjectMeta { name: Some(NODE.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        ..Node::default()
    }
}

/// Go's names, which clients compare with.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The name of this host, if it can be a label; else the Node's.
fn host_name() -> String {
    let name = file("/proc/sys/kernel/hostname").to_ascii_lowercase();
    if support::names::is_dns1123_label(&name) { name } else { NODE.to_owned() }
}

/// The text of a small file, or nothing.
fn file(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// What this host has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostFigures {
    processors: usize,
    memory_bytes: u64,
    memory_available_bytes: u64,
    /// Of the file system with the data folder.
    disk_bytes: u64,
    disk_available_bytes: u64,
}

impl HostFigures {
    fn read(data: Option<&Path>) -> Self {
        let [memory_bytes, memory_available_bytes] = memory_of_host().unwrap_or_default();
        let disk = data.and_then(|data| rustix::fs::statvfs(data).ok());
        let bytes =
            |blocks: fn(&StatVfs) -> u64| disk.as_ref().map_or(0, |disk| blocks(disk).saturating_mul(disk.f_frsize));
        Self {
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes,
            memory_available_bytes,
            disk_bytes: bytes(|disk| disk.f_blocks),
            disk_available_bytes: bytes(|disk| disk.f_bavail),
        }
    }

    fn capacity(&self) -> BTreeMap<String, Quantity> {
        let quantities = [
            ("cpu", self.processors.to_string()),
            ("ephemeral-storage", format!("{}Ki", self.disk_bytes / 1024)),
            ("memory", format!("{}Ki", self.memory_bytes / 1024)),
            ("pods", PODS_MAX.to_string()),
        ];
        quantities.map(|(name, value)| (name.to_owned(), Quantity(value))).into()
    }
}

/// The status; its times change only with its conditions.
fn status(host: &HostFigures, before: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let memory = host.memory_available_bytes < MEMORY_AVAILABLE_MIN;
    let disk =
        host.disk_available_bytes.saturating_mul(100) < host.disk_bytes.saturating_mul(DISK_AVAILABLE_MIN_PERCENT);
    let reasons = |holds: bool, yes: (&'static str, &'static str), no: (&'static str, &'static str)| {
        (holds, if holds { yes } else { no })
    };
    let conditions = [
        (
            "MemoryPressure",
            reasons(
                memory,
                ("KubeletHasInsufficientMemory", "less than 100 MiB of memory are available"),
                ("KubeletHasSufficientMemory", "there is sufficient memory available"),
            ),
        ),
        (
            "DiskPressure",
            reasons(
                disk,
                ("KubeletHasDiskPressure", "less than a tenth of the disk with the data folder is available"),
                ("KubeletHasNoDiskPressure", "there is no disk pressure"),
            ),
        ),
        ("Ready", (true, ("KubeletReady", "the appliance runs Pods"))),
    ];
    let known = before.and_then(|before| before.conditions.as_ref());
    let condition = |(kind, (holds, (reason, message))): (&str, (bool, (&str, &str)))| {
        let status = if holds { "True" } else { "False" };
        let same = known.into_iter().flatten().find(|one| one.type_ == kind && one.status == status);
        let since = same.and_then(|one| one.last_transition_time.clone()).unwrap_or(Time(now));
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(since.clone()),
            last_transition_time: Some(since),
        }
    };
    let address = |kind: &str, address: String| NodeAddress { type_: kind.to_owned(), address };
    NodeStatus {
        capacity: Some(host.capacity()),
        allocatable: Some(host.capacity()),
        conditions: Some(conditions.map(condition).into()),
        addresses: Some(vec![address("InternalIP", "127.0.0.1".to_owned()), address("Hostname", host_name())]),
        node_info: Some(system_info()),
        ..NodeStatus::default()
    }
}

fn system_info() -> NodeSystemInfo {
    let release = file("/etc/os-release");
    let system = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: file("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: format!("sluicegate://{}", env!("CARGO_PKG_VERSION")),
        kernel_version: file("/proc/sys/kernel/osrelease"),
        kubelet_version: apiserver::api::git_version(),
        machine_id: file("/etc/machine-id"),
        operating_system: std::env::consts::OS.to_owned(),
        os_image: system.unwrap_or(std::env::consts::OS).trim_matches('"').to_owned(),
        ..NodeSystemInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(memory_available_bytes: u64, disk_available_bytes: u64) -> HostFigures {
        let (memory_bytes, disk_bytes) = (1 << 34, 1 << 40);
        HostFigures { processors: 2, memory_bytes, memory_available_bytes, disk_bytes, disk_available_bytes }
    }

    #[test]
    fn pressure_is_told_when_little_is_left() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let states = |status: &NodeStatus| -> Vec<String> {
            status.conditions.iter().flatten().map(|one| format!("{}={}", one.type_, one.status)).collect()
        };
        let well = status(&host(1 << 33, 1 << 39), None, at(100));
        assert_eq!(states(&well), ["MemoryPressure=False", "DiskPressure=False", "Ready=True"]);
        assert_eq!(well.capacity.as_ref().unwrap()["memory"].0, "16777216Ki");
        let again = status(&host(1 << 32, 1 << 39), Some(&well), at(200));
        assert_eq!(again, well, "figures that change all the time are not in it");
        let bad = status(&host(1 << 20, 1 << 30), Some(&well), at(300));
        assert_eq!(states(&bad), ["MemoryPressure=True", "DiskPressure=True", "Ready=True"]);
        let since = |index: usize| bad.conditions.as_ref().unwrap()[index].last_transition_time.clone().unwrap().0;
        assert_eq!((since(0), since(2)), (at(300), at(100)));
    }
}

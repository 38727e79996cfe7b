//! Node: this host, as clients of Kubernetes see it. A controller writes the only object.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field_errors::FieldErrors;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy};
use crate::printer_column::{AGE, PrinterColumn, column};
use crate::role_rules::VIEW;

/// The name of the only Node: where everything runs.
pub const NODE: &str = "localhost";

const fn wide(name: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { priority: 1, ..column(name, path) }
}

impl ResourceStrategy for Node {
    const META: KindMeta = KindMeta {
        kind: "Node",
        plural: "nodes",
        singular: "node",
        short_names: &["no"],
        namespaced: false,
        has_status: true,
        columns: &[
            column("Status", ".status.conditions[?(@.type==\"Ready\")].type|=NotReady"),
            column("Roles", "=control-plane"),
            AGE,
            column("Version", ".status.nodeInfo.kubeletVersion"),
            wide("Internal-IP", ".status.addresses[?(@.type==\"InternalIP\")].address|=<none>"),
            wide("External-IP", "=<none>"),
            wide("OS-Image", ".status.nodeInfo.osImage|=<unknown>"),
            wide("Kernel-Version", ".status.nodeInfo.kernelVersion|=<unknown>"),
            wide("Container-Runtime", ".status.nodeInfo.containerRuntimeVersion|=<unknown>"),
        ],
        role_rules: &[VIEW],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, _: &mut FieldErrors) {}
}

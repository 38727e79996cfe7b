//! ServerlessService ("SKS"): the names of a Revision's gateway, and those of its instances.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{GROUP, VERSION};
use crate::autoscaling::pod_autoscaler::ScaleTarget;
use crate::conditions::ConditionSet;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{CORE, KindMeta, RequestContext, ResourceStrategy, UnknownFieldPolicy};
use crate::printer_column::{PrinterColumn, READY, REASON, column};
use crate::shared::Status;

/// There are instances.
pub const ENDPOINTS_POPULATED: &str = "EndpointsPopulated";
/// Requests are accepted by the gateway, and wait for instances if none are ready.
pub const ACTIVATOR_ENDPOINTS_POPULATED: &str = "ActivatorEndpointsPopulated";
pub const CONDITIONS: ConditionSet = ConditionSet { dependents: &[ENDPOINTS_POPULATED] };

kind! {
    /// `networking.internal.knative.dev/v1alpha1` ServerlessService.
    ServerlessService { spec: ServerlessServiceSpec, status: ServerlessServiceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerlessServiceSpec {
    /// `Serve` or `Proxy`.
    pub mode: String,
    /// The scaled object.
    pub object_ref: ScaleTarget,
    /// `http1` or `h2c`.
    pub protocol_type: String,
    /// The number of gateways that accept requests.
    pub num_activators: i32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerlessServiceStatus {
    #[serde(flatten)]
    pub base: Status,
    /// The name of the Service that accepts requests.
    pub service_name: String,
    /// The name of the Service with the instances.
    pub private_service_name: String,
}

impl ResourceStrategy for ServerlessService {
    const META: KindMeta = KindMeta {
        group: GROUP,
        version: VERSION,
        kind: "ServerlessService",
        plural: "serverlessservices",
        singular: "serverlessservice",
        short_names: &["sks"],
        categories: &["knative-internal", "networking"],
        namespaced: true,
        // Whole with each write.
        has_status: false,
        unknown_fields: UnknownFieldPolicy::Prune,
        user_creatable: true,
        columns: &[
            column("Mode", ".spec.mode"),
            PrinterColumn { format: "integer", ..column("Activators", ".spec.numActivators") },
            column("ServiceName", ".status.serviceName"),
            column("PrivateServiceName", ".status.privateServiceName"),
            READY,
            REASON,
        ],
        ..CORE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {}

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        self.spec.object_ref.validate("spec.objectRef", problems);
        for (field, value, known) in [
            ("mode", &self.spec.mode, ["Serve", "Proxy"]),
            ("protocolType", &self.spec.protocol_type, ["http1", "h2c"]),
        ] {
            if !known.contains(&value.as_str()) {
                problems.add(format!("spec.{field}"), format!("invalid value: {value}"));
            }
        }
        if self.spec.num_activators < 0 {
            problems.add("spec.numActivators", format!("invalid value: {}", self.spec.num_activators));
        }
    }
}

//! How a backend is verified: by the policy of its port.

use std::sync::Arc;

use contract::tls::{ApplicationProtocol, SubjectName, TlsClientConfig};

use super::{authorities, targets};
use crate::backend_trust::BackendTrust;
use crate::context::ControllerContext;
use crate::gateway::conditions::ConditionRefusal;
use types::gateway_api::backend_tls_policy::{BackendSubjectAltName, BackendTlsPolicy};
use types::shared::namespace;

/// The policy for a port of a Service.
pub(in crate::gateway) fn policy_for(
    context: &ControllerContext,
    namespace: &str,
    service: &str,
    port: Option<&str>,
) -> Option<Arc<BackendTlsPolicy>> {
    let policies = context.caches.backend_tls_policies.list(namespace);
    targets::effective(&policies, service, port).cloned()
}

/// The configuration for backends of the policy that speak `protocol`. `Err`: no connection may be opened.
pub(in crate::gateway) fn client_config(
    context: &ControllerContext,
    policy: &BackendTlsPolicy,
    protocol: ApplicationProtocol,
) -> Result<Arc<TlsClientConfig>, ConditionRefusal> {
    let validation = &policy.spec.validation;
    let trust = BackendTrust {
        authorities: authorities::read(context, namespace(&policy.metadata), validation).usable?,
        server_name: validation.hostname.clone(),
        names: validation.subject_alt_names.iter().filter_map(subject_name).collect(),
        protocol,
    };
    let config = context.backend_trust.config(trust, || context.trust_store.system_authorities());
    config
        .map_err(|why| ConditionRefusal::new("NoValidCACertificate", format!("The authorities cannot be used: {why}.")))
}

fn subject_name(name: &BackendSubjectAltName) -> Option<SubjectName> {
    match name.kind.as_str() {
        "Hostname" => name.hostname.as_deref().map(|host| SubjectName::Dns(host.into())),
        _ => name.uri.as_deref().map(|uri| SubjectName::Uri(uri.into())),
    }
}

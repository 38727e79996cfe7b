//! The authorities that a policy trusts: those of this host, or those in ConfigMaps and Secrets.

use contract::tls::CertificateAuthorities;
use rustls::RootCertStore;

use crate::backend_trust::BackendAuthorities;
use crate::context::ControllerContext;
use crate::gateway::conditions::ConditionRefusal;
use crate::tls_secrets::{CA_CERT_KEY, secret_data};
use types::gateway_api::backend_tls_policy::{BackendTlsValidation, LocalObjectReference, SYSTEM_CERTIFICATES};

/// What a policy trusts, and what is wrong with its references.
#[derive(Debug)]
pub(super) struct PolicyAuthorities {
    /// `Err`: there is none, and no connection is opened.
    pub(super) usable: Result<BackendAuthorities, ConditionRefusal>,
    /// The first reference that leads nowhere. The others hold.
    pub(super) unresolved: Option<ConditionRefusal>,
}

pub(super) fn read(
    context: &ControllerContext,
    namespace: &str,
    validation: &BackendTlsValidation,
) -> PolicyAuthorities {
    let references = &validation.ca_certificate_refs;
    if references.is_empty() {
        return PolicyAuthorities { usable: well_known(validation), unresolved: None };
    }
    let (mut certificates, mut unresolved) = (Vec::new(), None);
    for reference in references {
        match certificates_of(context, namespace, reference) {
            Ok(pem) => {
                certificates.extend_from_slice(&pem);
                certificates.push(b'\n');
            }
            Err(refusal) => {
                unresolved.get_or_insert(refusal);
            }
        }
    }
    let usable = if certificates.is_empty() {
        let why = "No reference of caCertificateRefs leads to a certificate; the condition ResolvedRefs says more.";
        Err(ConditionRefusal::new("NoValidCACertificate", why))
    } else {
        Ok(BackendAuthorities::Certificates(certificates))
    };
    PolicyAuthorities { usable, unresolved }
}

fn well_known(validation: &BackendTlsValidation) -> Result<BackendAuthorities, ConditionRefusal> {
    let name = validation.well_known_ca_certificates.as_deref().unwrap_or_default();
    if name == SYSTEM_CERTIFICATES {
        return Ok(BackendAuthorities::System);
    }
    let why = format!("wellKnownCACertificates {name:?} is not supported; use System, or caCertificateRefs.");
    Err(ConditionRefusal::new("Invalid", why))
}

/// The certificates (PEM) that a reference leads to. They can be read.
fn certificates_of(
    context: &ControllerContext,
    namespace: &str,
    reference: &LocalObjectReference,
) -> Result<Vec<u8>, ConditionRefusal> {
    let LocalObjectReference { group, kind, name } = reference;
    let invalid = |why: String| ConditionRefusal::new("InvalidCACertificateRef", why);
    let not_found = || invalid(format!("{kind} \"{namespace}/{name}\" not found."));
    let pem = match (group.as_str(), kind.as_str()) {
        ("", "ConfigMap") => {
            let map = context.caches.config_maps.get(namespace, name).ok_or_else(not_found)?;
            let text = map.data.as_ref().and_then(|data| data.get(CA_CERT_KEY));
            let bytes = || map.binary_data.as_ref().and_then(|data| data.get(CA_CERT_KEY)).map(|bytes| bytes.0.clone());
            text.map(|text| text.clone().into_bytes()).or_else(bytes).unwrap_or_default()
        }
        ("", "Secret") => {
            let secret = context.caches.secrets.get(namespace, name).ok_or_else(not_found)?;
            secret_data(&secret, CA_CERT_KEY).to_vec()
        }
        _ => {
            let why =
                format!("Certificates cannot be in a {kind} of the group {group:?}; use a core ConfigMap or Secret.");
            return Err(ConditionRefusal::new("InvalidKind", why));
        }
    };
    CertificateAuthorities::read(&pem, &mut RootCertStore::empty())
        .map_err(|why| invalid(format!("{kind} \"{namespace}/{name}\": {CA_CERT_KEY}: {why}.")))?;
    Ok(pem)
}

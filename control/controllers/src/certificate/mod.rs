//! Certificate: requested by Routes and DomainMappings for hosts with TLS, issued by us or by the controller
//! of its class, and served to clients from its Secret.
//!
//! Our own authority signs ours (`issue`). Hosts with a certificate from `--tls-cert` need none.

mod authority;
mod issue;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;

use crate::api::now;
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::indexes::secret_key;
use crate::informer_cache::ObjectChange;
use crate::tls_secrets::is_authority;
use crate::work_queue::{ControllerKind, WorkItem};
use types::networking::certificate::Certificate;
use types::shared::{name, namespace};

const KIND: ControllerKind = ControllerKind::new("Certificate");
/// Interval of the check for certificates to renew: they expire weeks after they are due.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub struct CertificateController;

impl Controller for CertificateController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, context: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.enqueue::<Certificate, _>(changed_spec);
        watches.resync(KIND, &context.caches.certificates);
        watches.enqueue_by_name::<Secret>(move |ns, secret| affected_by_secret(context, ns, secret));
        watches.task(run_renewal(context));
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(issue::reconcile(context, item))
    }
}

/// The Certificate, unless only its status has changed.
fn changed_spec((before, after): ObjectChange<'_, Certificate>) -> Option<WorkItem> {
    let after = after?;
    let is_new = before.is_none_or(|before| {
        let (then, now) = (&before.metadata, &after.metadata);
        before.spec != after.spec || then.uid != now.uid || then.annotations != now.annotations
    });
    is_new.then(|| item(after))
}

/// The Certificates that are kept in a Secret; all, if it is the authority's.
fn affected_by_secret(context: &ControllerContext, ns: &str, secret: &str) -> Vec<WorkItem> {
    let mut affected = context.caches.certificates.by_index(ns, &secret_key(secret));
    if is_authority(ns, secret) {
        affected.extend(context.caches.certificates.all());
    }
    affected.iter().map(|certificate| item(certificate)).collect()
}

fn item(certificate: &Certificate) -> WorkItem {
    WorkItem::new(KIND, namespace(&certificate.metadata), name(&certificate.metadata))
}

async fn run_renewal(context: &ControllerContext) {
    loop {
        tokio::time::sleep(RENEWAL_INTERVAL).await;
        let all: Vec<Arc<Certificate>> = context.caches.certificates.all();
        let due = all.iter().filter(|certificate| issue::needs_renewal(certificate, now()));
        due.for_each(|certificate| context.enqueue(item(certificate)));
    }
}

//! GatewayClass: accepts those that name our controller, and lists what we support.

use kube::Api;

use super::conditions::{ACCEPTED, ConditionList};
use super::features::SUPPORTED_FEATURES;
use super::infrastructure;
use crate::api::{Error, now};
use crate::context::ControllerContext;
use crate::controller::{Controller, ControllerFuture, Watches};
use crate::field_managers;
use crate::work_queue::{ControllerKind, WorkItem};
use types::gateway_api::gateway_class::{GatewayClass, GatewayClassStatus, SupportedFeature};

const KIND: ControllerKind = ControllerKind::new("GatewayClass");

#[derive(Debug)]
pub(super) struct GatewayClassController;

impl Controller for GatewayClassController {
    fn kind(&self) -> ControllerKind {
        KIND
    }

    fn watches<'a>(&'a self, _: &'a ControllerContext, watches: &mut Watches<'a>) {
        watches.primary::<GatewayClass>(KIND);
    }

    fn reconcile<'a>(&'a self, context: &'a ControllerContext, item: &'a WorkItem) -> ControllerFuture<'a> {
        Box::pin(reconcile(context, item))
    }
}

async fn reconcile(context: &ControllerContext, item: &WorkItem) -> Result<(), Error> {
    let Some(class) = context.caches.gateway_classes.get("", &item.name).filter(|class| class.is_ours()) else {
        return Ok(());
    };
    let before = class.status.as_ref().map(|status| &status.conditions[..]).unwrap_or_default();
    let mut conditions = ConditionList::new(before, class.metadata.generation, now());
    let refusal = infrastructure::unsupported_parameters(class.spec.parameters_ref.as_ref());
    conditions.set(ACCEPTED, "Accepted", refusal.as_ref());
    let status = GatewayClassStatus {
        conditions: conditions.finish(),
        supported_features: SUPPORTED_FEATURES
            .iter()
            .map(|name| SupportedFeature { name: (*name).to_owned() })
            .collect(),
    };
    if class.status.as_ref() != Some(&status) && context.leadership.is_leader() {
        let after = GatewayClass { status: Some(status), ..(*class).clone() };
        let api: Api<GatewayClass> = Api::all(context.client.clone());
        api.replace_status(&item.name, &field_managers::status_params::<GatewayClass>(), &after).await?;
    }
    Ok(())
}

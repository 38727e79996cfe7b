//! Follows the operator's ConfigMaps; changes take effect with the next reconcile.

use std::sync::Arc;

use apiserver::expiry::Source;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::api::Error;
use crate::config_maps::is_trust_bundle;
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::controller::Watches;
use crate::informer_cache::ObjectChange;
use crate::trust_store::BUNDLE_LABEL;
use types::settings::{EVENTING, SERVING, Settings};
use types::shared::label;

/// Reads what is there, before anything is checked.
pub(crate) async fn restore(context: &ControllerContext) -> Result<(), Error> {
    for namespace in [SERVING, EVENTING] {
        context.source_in(namespace).fill(context.config_maps.of(namespace)).await?;
    }
    apply_settings(context, context.config_maps.read());
    set_bundles(context);
    Ok(())
}

/// Takes the operator's authorities; `true` if they are others than before.
fn set_bundles(context: &ControllerContext) -> bool {
    let bundles = context.config_maps.trust_bundles();
    let is_changed = context.trust_store.set_bundles(bundles.clone());
    if is_changed {
        let expiries = &context.config.expiries;
        expiries.retain(Source::TrustBundle, |name| bundles.iter().any(|(bundle, _)| bundle == name));
        for (name, pem) in &bundles {
            expiries.record(Source::TrustBundle, name, pem.as_bytes(), Timestamp::now());
        }
    }
    is_changed
}

pub(crate) fn register<'a>(context: &'a ControllerContext, watches: &mut Watches<'a>) {
    for namespace in [SERVING, EVENTING] {
        let maps = context.config_maps.of(namespace);
        watches.own(context.source_in(namespace), maps, move |change| {
            let (before, after) = change;
            if affects_trust_bundles(change) && set_bundles(context) {
                context.notify(ContextChange::Settings);
            }
            let has_label =
                |map: Option<&Arc<ConfigMap>>| map.is_some_and(|map| label(&map.metadata, BUNDLE_LABEL).is_some());
            if namespace == SERVING && (has_label(before) || has_label(after)) {
                context.notify(ContextChange::BackendAuthorities);
            }
            if before.map(|map| &map.data) != after.map(|map| &map.data) {
                let settings = context.config_maps.read();
                if *context.settings() != settings {
                    apply_settings(context, settings);
                    context.jwks.settings_changed();
                    context.notify(ContextChange::Settings);
                }
            }
        });
    }
}

/// From now on these hold.
fn apply_settings(context: &ControllerContext, settings: Settings) {
    context.publisher.set_request_log(settings.observability.request_log.clone());
    context.set_settings(settings);
}

fn affects_trust_bundles((before, after): ObjectChange<'_, ConfigMap>) -> bool {
    before.is_some_and(|map| is_trust_bundle(map)) || after.is_some_and(|map| is_trust_bundle(map))
}

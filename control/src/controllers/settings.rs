//! The operator's ConfigMaps: made at the start, read at every look.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::queue::{Item, Kind};
use super::world::{Error, World};
use crate::kind::Problems;
use crate::kinds::serving::autoscaler::{Autoscaler, EXAMPLE, NAME, NAMESPACE};
use crate::kinds::serving::gc::{self, Gc};
use crate::kinds::shared::{name, namespace};

/// The settings as they are now. Admission lets no bad value in; one that came another way keeps its
/// default.
#[must_use]
pub fn autoscaler(world: &World) -> Autoscaler {
    let found = world.config_maps.get(NAMESPACE, NAME);
    let data = found.as_ref().and_then(|map| map.data.as_ref());
    data.map_or_else(Autoscaler::default, |data| Autoscaler::parse(data, &mut Problems::default()))
}

#[must_use]
pub fn gc(world: &World) -> Gc {
    let found = world.config_maps.get(NAMESPACE, gc::NAME);
    let data = found.as_ref().and_then(|map| map.data.as_ref());
    data.map_or_else(Gc::default, |data| Gc::parse(data, &mut Problems::default()))
}

/// Makes what is missing, so that an operator finds something to edit.
pub(super) async fn ensure(world: &World) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(world.client.clone());
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    make(&namespaces, NAMESPACE, own).await?;
    for (name, example) in [(NAME, EXAMPLE), (gc::NAME, gc::EXAMPLE)] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE},
            "data": {"_example": example}
        });
        make(&api(world), name, map).await?;
    }
    Ok(())
}

async fn make<K>(api: &Api<K>, name: &str, object: serde_json::Value) -> Result<(), Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    if api.get_opt(name).await?.is_some() {
        return Ok(());
    }
    let object = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if !status.is_already_exists() => {
            // A cluster may not let us; the defaults hold without the object.
            tracing::warn!(name, why = status.message, "cannot be made");
            Ok(())
        }
        Err(kube::Error::Api(_)) | Ok(_) => Ok(()),
        Err(why) => Err(why.into()),
    }
}

pub(super) fn api(world: &World) -> Api<ConfigMap> {
    Api::namespaced(world.client.clone(), NAMESPACE)
}

/// Everybody is scaled and collected by them.
pub(super) fn changed(world: &World) {
    for configuration in world.configurations.all() {
        let meta = &configuration.metadata;
        world.look_at(Item::new(Kind::Configuration, namespace(meta), name(meta)));
    }
    for revision in world.revisions.all() {
        let meta = &revision.metadata;
        world.look_at(Item::new(Kind::Revision, namespace(meta), name(meta)));
    }
    for route in world.routes.all() {
        world.look_at(Item::new(Kind::Route, namespace(&route.metadata), name(&route.metadata)));
    }
    for mapping in world.domain_mappings.all() {
        world.look_at(Item::new(Kind::DomainMapping, namespace(&mapping.metadata), name(&mapping.metadata)));
    }
}

/// Whether a DomainMapping may claim its domain by itself.
#[must_use]
pub(super) fn autocreates_claims(world: &World) -> bool {
    network(world, "autocreate-cluster-domain-claims").is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// How long a new Revision takes to get all of its traffic; zero = at once.
#[must_use]
pub(super) fn rollout_duration(world: &World) -> Duration {
    Duration::from_secs(network(world, "rollout-duration").and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// A value of ConfigMap `config-network`.
fn network(world: &World, key: &str) -> Option<String> {
    let found = world.config_maps.get(NAMESPACE, "config-network")?;
    Some(found.data.as_ref()?.get(key)?.trim().to_owned())
}

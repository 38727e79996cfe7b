//! Who is looked at when what changes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;

use crate::controllers::cache::{Change, follow};
use crate::controllers::queue::{Item, Kind};
use crate::controllers::world::{Error, World};
use crate::controllers::{Task, either, itself, list};
use crate::controllers::{certificate, core_names, domain_mapping};
use crate::kinds::networking::ingress::Ingress;
use crate::kinds::shared::{label, name, namespace};

use super::{SERVICE_LABEL, inner_tls, item, splits};

/// Between two looks at what leads to names outside: their addresses change without telling anybody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

pub async fn list_all(world: &World) -> Result<(), Error> {
    let room = &world.ingress;
    list(world, &room.endpoints).await?;
    core_names::news(world).fill(&room.slices).await?;
    list(world, &room.secrets).await?;
    list(world, &room.ingresses).await
}

pub fn watches(world: &World) -> Vec<Task<'_>> {
    let look = |items: Vec<Item>| items.into_iter().for_each(|item| world.look_at(item));
    vec![
        Box::pin(follow(world.all(), &world.ingress.ingresses, move |change| {
            if let (before, Some(after)) = change
                && (after.is_ours() || before.is_some_and(|before| before.is_ours()))
            {
                look(vec![item(after)]);
            } else if change.1.is_none() {
                look(vec![itself(Kind::Ingress, change)]);
            }
        })),
        Box::pin(follow(world.all(), &world.ingress.endpoints, move |change| {
            let meta = either(change).map(|endpoints| &endpoints.metadata);
            look(meta.map(|meta| of_service(world, namespace(meta), name(meta))).unwrap_or_default());
        })),
        Box::pin(follow(core_names::news(world), &world.ingress.slices, move |change| {
            // A slice that changes its label leaves one Service and comes to another.
            for slice in [change.0, change.1].into_iter().flatten() {
                if let Some(service) = label(&slice.metadata, SERVICE_LABEL) {
                    look(of_service(world, namespace(&slice.metadata), service));
                }
            }
        })),
        Box::pin(follow(world.all(), &world.ingress.secrets, move |change| {
            let meta = either(change).map(|secret| &secret.metadata);
            let Some(meta) = meta else { return };
            if change.1.is_none() {
                world.ingress.forget_identity(namespace(meta), name(meta), &world.config.expiries);
            }
            look(of_secret(world, namespace(meta), name(meta)));
            if inner_tls::is_concerned(namespace(meta), name(meta)) {
                inner_tls::look_at_all(world);
            }
            look(domain_mapping::of_secret(world, namespace(meta), name(meta)));
            look(certificate::of_secret(world, namespace(meta), name(meta)));
        })),
        Box::pin(async move {
            loop {
                tokio::time::sleep(LOOK_AGAIN).await;
                look_again(world);
            }
        }),
    ]
}

/// Ingresses may send to this Service.
pub fn hear_service(world: &World, change: Change<'_, Service>) {
    if let Some(Service { metadata, .. }) = either(change).map(|service| &**service) {
        let items = of_service(world, namespace(metadata), name(metadata));
        items.into_iter().for_each(|item| world.look_at(item));
    }
}

/// Something changed that Ingresses lead to without a Service between.
pub fn look_again(world: &World) {
    world.ingress.loose().into_iter().for_each(|item| world.look_at(item));
}

/// The Ingresses that send to a Service: of its namespace, for they may send nowhere else. And whose challenges it answers.
fn of_service(world: &World, ns: &str, service: &str) -> Vec<Item> {
    let sends = |ingress: &Ingress| {
        splits(ingress).any(|split| split.service_namespace == ns && split.service_name == service)
    };
    let ingresses = world.ingress.ingresses.list(ns);
    let ours = ingresses.iter().filter(|ingress| ingress.is_ours() && sends(ingress)).map(|i| item(i));
    ours.chain(certificate::of_service(world, ns, service)).collect()
}

fn of_secret(world: &World, ns: &str, secret: &str) -> Vec<Item> {
    let shows = |ingress: &Ingress| {
        let mut tls = ingress.spec.tls.iter();
        tls.any(|tls| tls.secret_namespace == ns && tls.secret_name == secret)
    };
    let ingresses = world.ingress.ingresses.all();
    ingresses.iter().filter(|ingress| ingress.is_ours() && shows(ingress)).map(|i| item(i)).collect()
}

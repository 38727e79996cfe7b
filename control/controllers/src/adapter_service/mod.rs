//! Adapters and programs of sources run as Services of their own: the instances get users, limits, logs, restarts, volumes
//! and a directory for their state from there. No controller opens a connection of a foreign protocol.

mod live_configuration;
mod readiness;
mod template;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use crate::api::{Error, NamespacedObject};
use crate::context::ControllerContext;
use crate::owned_child::{apply, decide};
use crate::revision::state_directory;
use crate::work_queue::WorkItem;
use types::conditions::ConditionManager;
use types::serving::annotations::SERVICE;
use types::serving::service::{CONFIGURATIONS_READY, Service};
use types::shared::{ConditionStatus, HasConditions as _, controller, label, namespace};
use types::sources::adapter::{AdapterProgram, SecretData};

pub(crate) use live_configuration::watch_types;
pub(crate) use readiness::watch_revisions;
use template::{AdapterTemplate, Secrets, hash_of, program, secret_names};
pub(crate) use template::{TOKEN_FILE, service_name, service_of};

/// How often the controller looks for a missing Secret or program.
const MISSING_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How often the controller looks whether the instances of a deleted Service have ended.
const ENDED_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the program behind a source or a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deployment {
    Ready,
    Waiting(&'static str, String),
    Failed(String, String),
}

impl Deployment {
    pub(crate) fn failed(reason: &str, message: String) -> Self {
        Self::Failed(reason.to_owned(), message)
    }

    pub(crate) fn mark(&self, conditions: &mut ConditionManager<'_>, kind: &str) {
        match self {
            Self::Ready => conditions.mark_true(kind),
            Self::Waiting(reason, message) => conditions.mark_unknown(kind, reason, message),
            Self::Failed(reason, message) => conditions.mark_false(kind, reason, message),
        }
    }
}

/// The sections of an adapter's configuration. Objects `{secret: {name, key}}` in them become paths.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AdapterSections {
    /// Without it, the adapter receives events as HTTP requests.
    pub(crate) receiver: Option<Value>,
    pub(crate) sender: Value,
}

/// An adapter that is to run.
#[derive(Debug)]
pub(crate) struct AdapterRequest<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) service: &'a str,
    pub(crate) program: &'a AdapterProgram,
    pub(crate) sections: AdapterSections,
    pub(crate) variables: Vec<(&'static str, String)>,
    pub(crate) service_account_name: Option<&'a str>,
    /// The adapter gets a token of its account for this audience, in [`TOKEN_FILE`].
    pub(crate) token_audience: Option<&'a str>,
    pub(crate) memory_max: Option<&'a str>,
    /// Clients outside send requests to it.
    pub(crate) is_public: bool,
    pub(crate) instances: u32,
}

/// Applies the Service of an adapter and returns the state of its instances. `finish` completes the sections once the Secrets
/// that they name are known.
pub(crate) async fn deploy<O: NamespacedObject>(
    context: &ControllerContext,
    item: &WorkItem,
    mut request: AdapterRequest<'_, O>,
    finish: impl FnOnce(&mut AdapterSections, &BTreeMap<String, SecretData>) -> Result<(), String>,
) -> Result<Deployment, Error> {
    let mut found = BTreeMap::new();
    let sections = &request.sections;
    for name in sections.receiver.iter().chain([&sections.sender]).flat_map(secret_names) {
        let Some(secret) = context.api::<Secret>(&item.namespace).get_opt(&name).await? else {
            context.queue.add_after(item.clone(), MISSING_POLL_INTERVAL);
            let why = format!("Secret {name} does not exist in namespace {}; create it", item.namespace);
            return Ok(Deployment::failed("SecretNotFound", why));
        };
        let data = secret.data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0));
        found.insert(name, data.collect::<SecretData>());
    }
    if let Err(why) = finish(&mut request.sections, &found) {
        context.queue.add_after(item.clone(), MISSING_POLL_INTERVAL);
        return Ok(Deployment::failed("SecretInvalid", why));
    }
    let mut secrets = Secrets::default();
    for name in request.sections.receiver.iter().chain([&request.sections.sender]).flat_map(secret_names) {
        let keys = found.get(&name).map(|data| data.keys().cloned().collect());
        secrets.add(name, keys.unwrap_or_default());
    }
    let live = live_configuration::is_live(context, request.program);
    let program = match program(request.program) {
        Ok(program) => program,
        Err(why) => {
            context.queue.add_after(item.clone(), MISSING_POLL_INTERVAL);
            return Ok(Deployment::failed("AdapterProgramNotFound", why));
        }
    };
    let template = AdapterTemplate {
        program: &program,
        secrets: &secrets,
        receiver: request.sections.receiver.as_ref(),
        sender: &request.sections.sender,
        variables: request.variables,
        is_live: live,
        service_account_name: request.service_account_name,
        token_audience: request.token_audience,
        memory_max: request.memory_max,
        instances: request.instances,
    };
    if live {
        let document = template.document().to_string();
        if !live_configuration::write(context, item, request.owner, (request.service, document)).await? {
            let why =
                format!("ConfigMap {} exists and does not belong to this object; rename one of them", request.service);
            return Ok(Deployment::failed("ConfigMapNotOwned", why));
        }
    }
    match template.service(request.owner, request.service) {
        Ok(mut service) => {
            if request.is_public {
                service.metadata.labels = None;
            }
            apply_service(context, item, request.owner, service).await
        }
        Err(why) => Ok(Deployment::failed("TemplateInvalid", why)),
    }
}

/// Applies a Service of `owner` and returns the state of its instances.
pub(crate) async fn apply_service<O: NamespacedObject>(
    context: &ControllerContext,
    item: &WorkItem,
    owner: &O,
    wanted: Service,
) -> Result<Deployment, Error> {
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let existing = context.caches.services.get(&item.namespace, &name);
    // The API fills in defaults, so the template is replaced only if its hash differs.
    let take = |to: &mut Service, from: Service| {
        if hash_of(to) != hash_of(&from) {
            to.spec.template = from.spec.template;
        }
    };
    let service = match apply(context, decide(owner.meta(), existing.as_deref(), wanted, take)).await {
        Ok(Some(service)) => service,
        Ok(None) => {
            let why = format!("Service {name} exists and does not belong to this object; rename one of them");
            return Ok(Deployment::failed("ServiceNotOwned", why));
        }
        // The API refuses the template for good; its message names the field.
        Err(Error::Api(kube::Error::Api(refused))) if [400, 422].contains(&refused.code) => {
            return Ok(Deployment::failed("TemplateRefused", refused.message.clone()));
        }
        Err(why) => return Err(why),
    };
    if let Some(told) = readiness::told_by_instance(context, &service) {
        return Ok(told);
    }
    // It has the exit status and the last lines of output; Ready may have the reason of the Route.
    let failed = service.condition(CONFIGURATIONS_READY).filter(|one| one.status == ConditionStatus::False);
    Ok(match failed.or_else(|| service.condition("Ready")) {
        Some(ready) if ready.status == ConditionStatus::True => Deployment::Ready,
        Some(ready) if ready.status == ConditionStatus::False => {
            let reason = if ready.reason.is_empty() { "NotReady" } else { &ready.reason };
            Deployment::failed(reason, ready.message.clone())
        }
        _ => Deployment::Waiting("Deploying", format!("Service {name} starts the program")),
    })
}

/// Removes the state directory of a deleted object once no instance of its Service runs.
pub(crate) fn remove_state(context: &ControllerContext, item: &WorkItem, service: &str) {
    let Some(root) = context.config.state_root.as_deref().filter(|_| context.leadership.is_leader()) else { return };
    let pods = context.caches.pods.list(&item.namespace);
    let runs = pods.iter().any(|pod| label(&pod.metadata, SERVICE) == Some(service));
    let known = context.caches.services.get(&item.namespace, service);
    let is_own = |service: &Service| controller(&service.metadata).is_some_and(|owner| owner.name == item.name);
    if known.as_ref().is_some_and(|known| !is_own(known)) {
        return; // the Service of another object, which has that name
    }
    if runs || known.is_some() {
        context.queue.add_after(item.clone(), ENDED_POLL_INTERVAL);
        return;
    }
    state_directory::remove(root, &item.namespace, service);
}

/// Removes the state directories of Services that were deleted while the appliance ended.
pub(crate) fn remove_unused_state(context: &ControllerContext) {
    if let Some(root) = context.config.state_root.as_deref() {
        state_directory::remove_unused(root, |home, name| context.caches.services.get(home, name).is_some());
    }
}

/// The item of the object that owns a Service, if it is of `kind`.
pub(crate) fn owner_item(service: &Service, kind: &'static str) -> Option<WorkItem> {
    let owner = controller(&service.metadata).filter(|owner| owner.kind == kind)?;
    let kind = crate::work_queue::ControllerKind::new(kind);
    Some(WorkItem::new(kind, namespace(&service.metadata), &owner.name))
}

//! The Kubernetes API over the store: one file per verb, one row of the registry per kind.
//!
//! Outside it is reached over HTTP ([`router`]); our own controllers use the same router in the same
//! process, without a socket ([`client`]). Who asks through which door is the only difference.

mod accept;
mod apply;
mod body;
mod create;
mod delete;
mod discovery;
mod errors;
mod fields;
mod get;
mod jsonpath;
mod list;
mod logs;
mod names;
mod object;
mod openapi;
mod parameters;
mod patch;
mod path;
mod protobuf;
mod protobuf_fields;
mod reviews;
mod rules;
mod seed;
mod selectors;
mod settings;
mod strategic;
mod table;
mod update;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use http::{HeaderMap, Method, header};

use crate::kind::{Access, Registry, Requester};
use crate::store::{Change, Key, Store, Stored};

use accept::Format;
use errors::Refusal;
use fields::FieldValidation;
use parameters::Parameters;
use path::Target;

pub use body::BODY_BYTES_MAX;
pub use seed::seed;

/// Whom requests over the socket count as, until there is authentication.
const OUTSIDE_USER: &str = "sluicegate-admin";
/// The group that may do everything.
const MASTERS: &str = "system:masters";
/// Whom our controllers count as.
const INSIDE_USER: &str = "system:serviceaccount:sluicegate:controller";

/// There from the first start on.
const SEED_NAMESPACES: [&str; 4] = ["default", "knative-serving", "knative-eventing", "kube-system"];

/// What the API needs to know of the appliance around it.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Where the runtime keeps what instances write; without it there are no logs.
    pub instances: Option<PathBuf>,
}

/// The API for everybody else.
pub fn router(store: Arc<Store>, registry: Arc<Registry>) -> Router {
    router_in(store, registry, Surroundings::default())
}

/// The same, with what is around it.
pub fn router_in(store: Arc<Store>, registry: Arc<Registry>, around: Surroundings) -> Router {
    let admin = Requester { user: OUTSIDE_USER.into(), groups: vec![MASTERS.into()], ..Requester::default() };
    serve(store, registry, admin, around)
}

/// The API for our own controllers: no socket, and they may create what developers may not. Must be
/// called inside a Tokio runtime.
pub fn client(store: Arc<Store>, registry: Arc<Registry>) -> kube::Client {
    let requester = Requester { user: INSIDE_USER.into(), internal: true, ..Requester::default() };
    kube::Client::new(serve(store, registry, requester, Surroundings::default()), "default")
}

fn serve(store: Arc<Store>, registry: Arc<Registry>, requester: Requester, around: Surroundings) -> Router {
    let server = Server {
        store,
        registry,
        requester: Arc::new(requester),
        settings: Arc::new(settings::Live::new()),
        instances: around.instances.map(Arc::from),
    };
    Router::new().fallback(answer).with_state(server)
}

#[derive(Debug, Clone)]
struct Server {
    store: Arc<Store>,
    registry: Arc<Registry>,
    /// Whom requests count as.
    requester: Arc<Requester>,
    settings: Arc<settings::Live>,
    /// Where instances' logs are.
    instances: Option<Arc<Path>>,
}

/// One request about objects.
#[derive(Debug)]
struct Call {
    server: Server,
    target: Target,
    parameters: Parameters,
    headers: HeaderMap,
    format: Format,
}

impl Call {
    /// Who asks, with the settings under which a write is judged.
    fn requester(&self) -> Requester {
        let settings = self.server.settings.now(&self.server.store);
        Requester { settings, ..Requester::clone(&self.server.requester) }
    }

    fn resource(&self) -> Arc<str> {
        object::resource_of(self.target.entry.meta)
    }

    /// Who the fields of this write belong to. Controllers own none: their children are theirs whole, and
    /// nobody else's opinion on them would last.
    fn writer(&self) -> Option<apply::Writer> {
        if self.server.requester.internal {
            return None;
        }
        let agent = self.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("");
        let agent = agent.split('/').next().unwrap_or("");
        let named =
            [&self.parameters.field_manager, agent, "unknown"].into_iter().find(|name| !name.is_empty());
        let manager: String = named.unwrap_or_default().chars().take(parameters::MANAGER_BYTES_MAX).collect();
        Some(apply::Writer {
            manager,
            status: self.target.status,
            now: object::now(),
            meta: self.target.entry.meta,
        })
    }

    /// Our controllers write what they read; nobody there would read a warning.
    fn validation(&self) -> FieldValidation {
        let internal = self.server.requester.internal;
        if internal { FieldValidation::Ignore } else { self.parameters.field_validation }
    }

    /// The object that the path names.
    fn key(&self) -> Result<Key, Refusal> {
        let name = self.target.name.as_deref().ok_or_else(Refusal::method_not_allowed)?;
        let namespace = self.target.namespace.as_deref().unwrap_or("");
        Ok(Key { resource: self.resource(), namespace: namespace.into(), name: name.into() })
    }
}

/// Turns a change into a look at what it would have done.
fn rehearse(change: Change) -> Change {
    match change {
        Change::Keep(object) => Change::Keep(object),
        Change::Put(key, value) | Change::Delete(key, value) => {
            let json = value.to_string().into();
            Change::Keep(Arc::new(Stored { key, resource_version: 0, value, json }))
        }
    }
}

async fn answer(State(server): State<Server>, request: Request) -> Response {
    dispatch(server, request).await.unwrap_or_else(Refusal::into_response)
}

async fn dispatch(server: Server, request: Request) -> Result<Response, Refusal> {
    let (head, body): (_, Body) = request.into_parts();
    if let Some(found) = discovery::answer(&server, &head.method, head.uri.path(), &head.headers) {
        return found;
    }
    if let Some((namespace, name)) = logs::named(head.uri.path()) {
        return match head.method {
            Method::GET => logs::answer(&server, namespace, name, &head.uri),
            _ => Err(Refusal::method_not_allowed()),
        };
    }
    let target = path::parse(head.uri.path(), &server.registry)?;
    let parameters = Parameters::parse(&head.uri)?;
    let format = accept::negotiate(&head.headers)?;
    let call = Call { server, target, parameters, headers: head.headers, format };
    let named = call.target.name.is_some();
    match call.target.entry.access {
        Access::CreateOnly if head.method == Method::POST && !named => {
            return reviews::answer(&call, &body::read(body).await?);
        }
        Access::CreateOnly => return Err(Refusal::method_not_allowed()),
        Access::ReadOnly if head.method != Method::GET => return Err(Refusal::method_not_allowed()),
        Access::Derived
            if !call.server.requester.internal && ![Method::GET, Method::DELETE].contains(&head.method) =>
        {
            return Err(Refusal::method_not_allowed());
        }
        Access::ReadOnly | Access::Derived | Access::Full => {}
    }
    match head.method {
        Method::GET if call.parameters.watch => watch::watch(&call),
        Method::GET if named => get::get(&call),
        Method::GET => list::list(&call),
        Method::POST if !named => create::create(&call, &body::read(body).await?).await,
        Method::PUT if named => update::update(&call, &body::read(body).await?).await,
        Method::PATCH if named => patch::patch(&call, &body::read(body).await?).await,
        Method::DELETE if named && !call.target.status => {
            delete::delete(&call, &body::read(body).await?).await
        }
        Method::DELETE if !named => delete::delete_collection(&call, &body::read(body).await?).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

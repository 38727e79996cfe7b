//! The Kubernetes API over the store: one file per verb, one row of the registry per kind.
//!
//! Outside it is reached over HTTP ([`router`]); our own controllers use the same router in the same
//! process, without a socket ([`client`]). Who asks through which door is the only difference.

mod accept;
mod account_secrets;
mod account_tokens;
mod aggregate;
mod allow;
mod apply;
mod audit;
mod backup;
mod bindings;
mod body;
mod budget;
mod create;
mod crowd;
mod customs;
mod decide;
mod delete;
mod discovery;
pub mod door;
mod errors;
mod faces;
mod fields;
mod get;
mod grant;
mod household;
mod identity;
mod impersonation;
mod jsonpath;
mod links;
mod list;
mod logs;
mod naming;
mod numbers;
mod object;
mod openapi;
mod parameters;
mod patch;
mod path;
mod protobuf;
mod protobuf_definition;
mod protobuf_fields;
mod protobuf_traffic;
mod readiness;
mod returning;
mod reviews;
mod rules;
mod scale;
mod seed;
mod seed_roles;
mod selectors;
pub mod serve;
mod settings;
mod shelf;
mod strategic;
mod swagger;
mod swagger_protobuf;
mod table;
mod unserved;
mod update;
mod watch;
mod weight;
mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, header};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::access::Action;
use crate::cross_origin::CrossOriginProtection;
use crate::kind::{Access, Registry, Requester};
use crate::kinds::custom::Custom;
use crate::store::{Change, Key, Store, Stored};

use accept::Format;
use body::Received;
use budget::Budget;
use crowd::{Crowd, Stay};
use customs::Customs;
use errors::Refusal;
use fields::FieldValidation;
use parameters::Parameters;
use path::Target;
use shelf::Shelf;
use weight::Weight;

pub use aggregate::aggregate;
pub use audit::Audit;
pub use backup::PATH as BACKUP_PATH;
pub use body::{BODY_BYTES_MAX, BODY_MAX};
pub use household::{collect, keep_house};
pub use identity::{Believed, Peer, Signer};
pub use naming::accept_names;
pub use readiness::{Check, Readiness};
pub use seed::{Definition, definitions, has_definitions, seed, seed_definitions, seed_objects};

/// Whom requests from this host count as that do not say who they are.
const OUTSIDE_USER: &str = "sluicegate-admin";
/// ... and those of strangers, with their group.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// Whom our controllers count as.
const INSIDE_USER: &str = "system:serviceaccount:sluicegate:controller";

/// There from the first start on.
const SEED_NAMESPACES: [&str; 4] = ["default", "knative-serving", "knative-eventing", "kube-system"];

/// What the API needs to know of the appliance around it.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Where the runtime keeps what instances write; without it there are no logs.
    pub instances: Option<PathBuf>,
    /// Ways to be believed besides being local.
    pub believed: Believed,
    pub audit: Option<Audit>,
    /// What `/readyz` depends on; without it on the store alone.
    pub readiness: Option<Readiness>,
}

/// The API for everybody else.
pub fn router(store: Arc<Store>, registry: Arc<Registry>) -> Router {
    router_in(store, registry, Surroundings::default())
}

/// The same, with what is around it.
pub fn router_in(store: Arc<Store>, registry: Arc<Registry>, around: Surroundings) -> Router {
    let anybody =
        Requester { user: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Requester::default() };
    serve(store, registry, anybody, around)
}

/// The API for our own controllers: no socket, and they may create what developers may not. Must be
/// called inside a Tokio runtime.
pub fn client(store: Arc<Store>, registry: Arc<Registry>) -> kube::Client {
    client_with(store, registry, None)
}

/// The same, which also makes tokens.
pub fn client_with(store: Arc<Store>, registry: Arc<Registry>, signer: Option<Arc<Signer>>) -> kube::Client {
    let requester = Requester { user: INSIDE_USER.into(), internal: true, ..Requester::default() };
    let believed = Believed { signer, ..Believed::default() };
    let around = Surroundings { believed, ..Surroundings::default() };
    kube::Client::new(serve(store, registry, requester, around), "default")
}

fn serve(store: Arc<Store>, registry: Arc<Registry>, requester: Requester, around: Surroundings) -> Router {
    let server = Server {
        store,
        registry,
        requester: Arc::new(requester),
        settings: Arc::new(settings::Live::new()),
        instances: around.instances.map(Arc::from),
        believed: Arc::new(around.believed),
        audit: around.audit,
        readiness: around.readiness,
        crowd: Arc::default(),
        customs: Arc::default(),
        shelf: Arc::default(),
        budget: Arc::default(),
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
    believed: Arc<Believed>,
    audit: Option<Audit>,
    readiness: Option<Readiness>,
    crowd: Arc<Crowd>,
    customs: Arc<Customs>,
    /// Documents about the kinds.
    shelf: Arc<Shelf>,
    budget: Arc<Budget>,
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
        let bindings = bindings::of(self);
        Requester { settings, bindings, ..Requester::clone(&self.server.requester) }
    }

    fn resource(&self) -> Arc<str> {
        object::resource_of(self.target.entry.stored_meta())
    }

    /// Who the fields of this write belong to: whom the request names, or else the program that sent it.
    fn writer(&self) -> apply::Writer {
        let agent = agent(&self.headers);
        let agent = agent.split('/').next().unwrap_or("");
        let named =
            [&self.parameters.field_manager, agent, "unknown"].into_iter().find(|name| !name.is_empty());
        let manager: String = named.unwrap_or_default().chars().take(parameters::MANAGER_BYTES_MAX).collect();
        apply::Writer {
            manager,
            status: self.target.status,
            scale: self.target.scale.is_some(),
            now: object::now(),
            meta: self.target.entry.stored_meta(),
            schema: self.target.entry.custom.map(Custom::schema),
        }
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

/// What the client calls itself.
fn agent(headers: &HeaderMap) -> &str {
    headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("")
}

/// Turns a change into a look at what it would have done.
fn rehearse(change: Change) -> Change {
    match change {
        kept @ (Change::Keep(_) | Change::PutPrepared(..)) => kept,
        Change::Put(key, value) | Change::Delete(key, value) => {
            Change::Keep(Arc::new(Stored::new(key, 0, &value)))
        }
    }
}

async fn answer(State(mut server): State<Server>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    if let Some(plain) = path::plain(&head.uri) {
        head.uri = plain;
    }
    server.registry = server.customs.now(&server.store, &server.registry);
    let note = server.audit.as_ref().map(|audit| audit.note(&head));
    let (is_yaml, is_pretty) = (accept::is_yaml(&head.headers), accept::is_pretty(&head));
    let admitted = admit(&mut server, &head);
    let who = Arc::clone(&server.requester);
    let (uri, registry) = (head.uri.clone(), Arc::clone(&server.registry));
    let answered = match admitted {
        Ok(()) => dispatch(server, head, body).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = answered.unwrap_or_else(Refusal::into_response);
    allow::add(&mut response, &registry, uri.path());
    if is_yaml {
        response = accept::in_yaml(response).await;
    } else if is_pretty {
        response = accept::in_lines(response).await;
    }
    if let Some(note) = note {
        note.end(&who, response.status());
    }
    response
}

/// Rejects what a web page may have sent, and finds out who asks.
fn admit(server: &mut Server, head: &Parts) -> Result<(), Refusal> {
    // A request that came over no socket is from inside the process.
    if let Some(protection) = head.extensions.get::<Arc<CrossOriginProtection>>() {
        protection.check(head).map_err(|rejection| Refusal::cross_origin(&rejection))?;
    }
    match identity::of(server, head) {
        Ok(who) => server.requester = Arc::new(who),
        Err(_) if grant::is_open(head.uri.path()) => {}
        Err(refusal) => return Err(refusal),
    }
    Ok(())
}

async fn dispatch(server: Server, head: Parts, body: Body) -> Result<Response, Refusal> {
    let who = Arc::clone(&server.requester);
    let agent = agent(&head.headers);
    let _place =
        if who.internal { None } else { Some(server.crowd.enter(&who.user, agent, Stay::Request)?) };
    let path = head.uri.path();
    if let Some(found) = discovery::answer(&server, &head) {
        grant::check_path(&server, &who, "get", path)?;
        return found;
    }
    let mut body = Some(body);
    if let Some(refused) = unserved::answer(&server, &head) {
        return refused;
    }
    if let Some(answered) = part(&server, &head, &mut body).await {
        return answered;
    }
    if let Some(uid) = logs::revision::named(path) {
        return logs::revision::answer(&server, &head, uid);
    }
    if path == backup::PATH {
        grant::check_path(&server, &who, if head.method == Method::GET { "get" } else { "put" }, path)?;
        return backup::answer(&server, &head, body.unwrap_or_default()).await;
    }
    let target = path::parse(path, &server.registry)
        .or_else(|unknown| grant::check_unknown(&server, &who, &head.method, path).and(Err(unknown)))?;
    let mut parameters = Parameters::parse(&head.uri, &head.method)?;
    parameters.watch |= target.watch;
    let verb = grant::verb(&head.method, target.name.is_some(), parameters.watch);
    let mut action = target.action(verb);
    if ["list", "watch"].contains(&verb)
        && let Some(name) = selectors::only_name(&parameters.field_selector).filter(|_| target.name.is_none())
    {
        action.name = name;
    }
    grant::check(&server, &who, &action)?;
    let format = accept::negotiate(&head.headers)?;
    if parameters.watch && accept::is_yaml(&head.headers) {
        return Err(Refusal::not_acceptable("application/json")); // a stream of documents
    }
    let reads = head.method == Method::GET;
    let call = Arc::new(Call { server, target, parameters, headers: head.headers, format });
    let answered = carry_out(&call, &head.method, body.unwrap_or_default()).await;
    let answered = answered.map(|response| {
        let response = fields::warn(response, deprecated(&call).as_slice());
        if reads { response } else { fields::warn(response, &settings::unheeded(&call)) }
    });
    let meta = call.target.entry.meta;
    answered.map_err(|refusal| {
        let refusal = refusal.of_method(meta, verb);
        if call.parameters.dry_run { refusal.of_dry_run(meta) } else { refusal }
    })
}

/// What is said to whoever looks at a kind, or a version of one, that goes.
fn deprecated(call: &Call) -> Option<&'static str> {
    let entry = &call.target.entry;
    match (entry.meta.group, entry.meta.plural) {
        _ if call.server.requester.internal => None,
        ("", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        _ => entry.deprecated.or_else(|| entry.custom.and_then(Custom::deprecated)),
    }
}

async fn carry_out(call: &Arc<Call>, method: &Method, body: Body) -> Result<Response, Refusal> {
    let named = call.target.name.is_some();
    let reads = method == Method::GET;
    match call.target.entry.access {
        Access::CreateOnly if method == Method::POST && !named => {
            let received = receive(call, body).await?;
            return on_its_thread(
                call,
                received,
                |call, bytes| async move { reviews::answer(&call, &bytes) },
            )
            .await;
        }
        Access::CreateOnly => return Err(Refusal::method_not_allowed()),
        Access::ReadOnly if !reads => return Err(Refusal::method_not_allowed()),
        Access::Derived if !call.server.requester.internal && !reads && method != Method::DELETE => {
            return Err(Refusal::method_not_allowed());
        }
        Access::ReadOnly | Access::Derived | Access::Full => {}
    }
    if let Some(scale) = call.target.scale {
        let (received, method) = (receive(call, body).await?, method.clone());
        let answer =
            async move |call: Arc<Call>, bytes: Bytes| scale::answer(&call, &method, scale, &bytes).await;
        return on_its_thread(call, received, answer).await;
    }
    if call.target.finalize && *method != Method::PUT {
        return Err(Refusal::method_not_allowed());
    }
    if reads {
        return match named {
            _ if call.parameters.watch => watch::watch(call),
            true => get::get(call),
            false => list::list(call),
        };
    }
    if let Some(name) = &call.target.name {
        customs::check(call, name)?;
    }
    let (received, method) = (receive(call, body).await?, method.clone());
    on_its_thread(call, received, async move |call: Arc<Call>, bytes: Bytes| {
        write(&call, &method, &bytes).await
    })
    .await
}

/// A body, with what it will take in memory.
async fn receive(call: &Call, body: Body) -> Result<(Received, Weight), Refusal> {
    let received = body::read(&call.server.budget, body).await?;
    if call.server.requester.internal {
        return Ok((received, Weight::default())); // our own controllers do not attack us
    }
    let weight = Weight::of(body::content_type(&call.headers).as_deref(), &received)?;
    // A short patch of a long object is as much work as the object is.
    let stored = call.key().ok().and_then(|key| call.server.store.read().get(&key));
    let weight = stored.map_or(weight, |stored| weight.with_stored(stored.json_bytes()));
    Ok((received, weight))
}

/// Answers a small request here, and a large one on a thread of its own when it is its turn: on this one controllers
/// work, too. A request whose client has gone is not begun.
async fn on_its_thread<Answer, Answered>(
    call: &Arc<Call>,
    (received, weight): (Received, Weight),
    answer: Answer,
) -> Result<Response, Refusal>
where
    Answer: FnOnce(Arc<Call>, Bytes) -> Answered + Send + 'static,
    Answered: Future<Output = Result<Response, Refusal>>,
{
    let (bytes, body_share) = received.into_parts();
    if weight.is_small() {
        return answer(Arc::clone(call), bytes).await;
    }
    let work_share = call.server.budget.work(weight).await?;
    let (call, runtime) = (Arc::clone(call), Handle::current());
    let (_client, gone) = oneshot::channel::<()>();
    let work = tokio::task::spawn_blocking(move || {
        let _shares = (body_share, work_share);
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = gone => Err(Refusal::busy("the client has gone")),
                answered = answer(call, bytes) => answered,
            }
        })
    });
    work.await.unwrap_or_else(|_| Err(Refusal::internal("the request was abandoned")))
}

async fn write(call: &Call, method: &Method, bytes: &Bytes) -> Result<Response, Refusal> {
    let named = call.target.name.is_some();
    if method != Method::DELETE {
        grant::check_escalation(call, bytes)?;
        links::check(call, bytes)?;
    }
    match *method {
        Method::POST if !named => create::create(call, bytes).await,
        Method::PUT if named => update::update(call, bytes).await,
        Method::PATCH if named => patch::patch(call, bytes).await,
        Method::DELETE if named && !call.target.status => delete::delete(call, bytes).await,
        Method::DELETE if !named => delete::delete_collection(call, bytes).await,
        _ => Err(Refusal::method_not_allowed()),
    }
}

/// The two subresources that are no objects: logs of Pods, tokens of accounts. `None`: the path is about
/// neither.
async fn part(server: &Server, head: &Parts, body: &mut Option<Body>) -> Option<Result<Response, Refusal>> {
    let path = head.uri.path();
    let (who, of_logs) = (&server.requester, logs::named(path));
    let (namespace, name) = of_logs.or_else(|| account_tokens::named(path))?;
    let (verb, resource, subresource, method) = match of_logs {
        Some(_) => ("get", "pods", "log", Method::GET),
        None => ("create", "serviceaccounts", "token", Method::POST),
    };
    let action = Action { verb, group: "", resource, subresource, namespace, name };
    if let Err(refusal) = grant::check(server, who, &action) {
        return Some(Err(refusal));
    }
    if head.method != method {
        return Some(Err(Refusal::method_not_allowed()));
    }
    if of_logs.is_some() {
        return Some(logs::answer(server, namespace, name, &head.uri));
    }
    Some(match body::read(&server.budget, body.take().unwrap_or_default()).await {
        Ok(bytes) => account_tokens::answer(server, namespace, name, head, &bytes),
        Err(refusal) => Err(refusal),
    })
}

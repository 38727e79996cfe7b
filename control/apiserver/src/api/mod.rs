//! The Kubernetes API over the store: one file per verb, one row of the registry per kind.
//!
//! Clients reach it over HTTP ([`router`]); our own controllers use the same router in the same process, without a
//! socket ([`client`]). Only the authentication of the caller differs.

mod account_secrets;
mod account_tokens;
mod adapter_types;
mod allow;
mod api_groups;
mod apply;
mod audit;
mod authentication;
mod authorization;
mod backup;
mod body;
mod budget;
mod content_negotiation;
mod conversion;
mod crd_names;
mod crd_registry;
mod crd_status;
mod create;
mod cross_namespace_links;
mod decide;
mod delete;
mod derived_pods;
mod discovery;
mod document_cache;
mod document_tree;
mod errors;
mod field_ownership;
mod field_validation;
mod get;
pub mod http_server;
mod impersonation;
mod inflight_limiter;
mod integers;
mod jsonpath;
mod list;
mod list_lengths;
pub mod listener;
mod logs;
mod metadata_validation;
mod metrics;
mod namespace_defaults;
mod openapi;
mod patch;
mod pod_streams;
mod prepare;
mod protobuf;
mod query_parameters;
mod readiness;
mod request_path;
mod restore;
mod reviews;
mod role_aggregation;
mod scale;
mod seed;
mod seed_roles;
mod selectors;
mod server_config;
mod settings;
mod sink_bindings;
mod strategic_merge;
mod table;
mod unsupported_subresources;
mod update;
mod watch;
mod weight;
pub mod yaml;

use std::path::Path;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Router, body::Body};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, header};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::access::RequestAttributes;
use crate::cross_origin::CrossOriginProtection;
use crate::store::{ObjectKey, ObjectStore, StoredObject, WriteOperation};
use crate::streaming::instance_streams::InstanceStreams;
use types::custom_kinds::CustomKind;
use types::kind_registry::{AllowedVerbs, KindRegistry, RequestContext};

use body::Received;
use budget::Budget;
use content_negotiation::ResponseFormat;
use crd_registry::CrdRegistry;
use document_cache::DocumentCache;
use errors::StatusError;
use field_validation::FieldValidation;
use inflight_limiter::{InflightLimiter, RequestClass};
use query_parameters::QueryParameters;
use request_path::RequestTarget;
use weight::Weight;

pub use audit::AuditLog;
pub use authentication::{AuthenticationSources, PeerIdentity, TokenSigner};
pub use backup::PATH as BACKUP_PATH;
pub use body::{BODY_BYTES_MAX, BODY_TIMEOUT};
pub use crd_names::run_crd_names;
pub use discovery::git_version;
pub use namespace_defaults::{run_garbage_collector, run_namespace_defaults};
pub use readiness::{Check, Readiness};
pub use role_aggregation::aggregate;
pub use seed::{SeedDefinition, definitions, has_definitions, seed, seed_definitions, seed_objects};
pub use server_config::ApiServerConfig;

/// User of anonymous requests, with their group.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// User of our controllers.
const IN_PROCESS_USER: &str = "system:serviceaccount:sluicegate:controller";

/// The API for all other callers.
pub fn router(store: Arc<ObjectStore>, registry: Arc<KindRegistry>) -> Router {
    router_with(store, registry, ApiServerConfig::default())
}

/// The same, with the given server configuration.
pub fn router_with(store: Arc<ObjectStore>, registry: Arc<KindRegistry>, around: ApiServerConfig) -> Router {
    let anybody =
        RequestContext { user: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..RequestContext::default() };
    build_router(store, registry, anybody, around)
}

/// The API for our own controllers, without a socket. They may create what developers may not. Needs a Tokio runtime.
pub fn client(store: Arc<ObjectStore>, registry: Arc<KindRegistry>) -> kube::Client {
    client_with_signer(store, registry, None)
}

/// The same, which also issues tokens.
pub fn client_with_signer(
    store: Arc<ObjectStore>,
    registry: Arc<KindRegistry>,
    signer: Option<Arc<TokenSigner>>,
) -> kube::Client {
    let requester = RequestContext { user: IN_PROCESS_USER.into(), internal: true, ..RequestContext::default() };
    let believed = AuthenticationSources { service_accounts: signer, ..AuthenticationSources::default() };
    let around = ApiServerConfig { authentication: believed, ..ApiServerConfig::default() };
    kube::Client::new(build_router(store, registry, requester, around), "default")
}

fn build_router(
    store: Arc<ObjectStore>,
    registry: Arc<KindRegistry>,
    requester: RequestContext,
    around: ApiServerConfig,
) -> Router {
    let server = ApiServer {
        store,
        registry,
        default_requester: Arc::new(requester),
        settings: Arc::new(settings::SettingsCache::new()),
        log_dir: around.log_dir.map(Arc::from),
        authentication: Arc::new(around.authentication),
        audit_log: around.audit_log,
        readiness: around.readiness,
        instance_streams: around.instance_streams,
        usage: around.usage,
        sessions: Arc::default(),
        inflight: Arc::default(),
        crds: Arc::default(),
        documents: Arc::default(),
        budget: Arc::new(Budget::new(around.memory)),
    };
    Router::new().fallback(handle).with_state(server)
}

#[derive(Debug, Clone)]
struct ApiServer {
    store: Arc<ObjectStore>,
    registry: Arc<KindRegistry>,
    /// The user of requests without credentials of their own.
    default_requester: Arc<RequestContext>,
    settings: Arc<settings::SettingsCache>,
    /// The folder of instances' logs.
    log_dir: Option<Arc<Path>>,
    authentication: Arc<AuthenticationSources>,
    audit_log: Option<AuditLog>,
    readiness: Option<Readiness>,
    instance_streams: Option<Arc<dyn InstanceStreams>>,
    usage: Option<Arc<dyn crate::instance_usage::UsageSource>>,
    sessions: Arc<pod_streams::SessionLimiter>,
    inflight: Arc<InflightLimiter>,
    crds: Arc<CrdRegistry>,
    /// Documents about the kinds.
    documents: Arc<DocumentCache>,
    budget: Arc<Budget>,
}

/// One request about objects.
#[derive(Debug)]
struct ApiRequest {
    server: ApiServer,
    target: RequestTarget,
    parameters: QueryParameters,
    headers: HeaderMap,
    format: ResponseFormat,
}

impl ApiRequest {
    /// The caller, with the settings that its write is validated under.
    fn requester(&self) -> RequestContext {
        let settings = self.server.settings.get(&self.server.store);
        let injections = sink_bindings::injections_for(self);
        let adapter_types = adapter_types::types_for(self);
        RequestContext { settings, injections, adapter_types, ..RequestContext::clone(&self.server.default_requester) }
    }

    fn resource(&self) -> Arc<str> {
        prepare::resource_of(self.target.entry.stored_meta())
    }

    /// The field manager of this write: the one that the request names, or else the client program.
    fn field_writer(&self) -> field_ownership::FieldWriter {
        let agent = user_agent(&self.headers);
        let agent = agent.split('/').next().unwrap_or("");
        let named = [&self.parameters.field_manager, agent, "unknown"].into_iter().find(|name| !name.is_empty());
        let manager: String = named.unwrap_or_default().chars().take(query_parameters::MANAGER_BYTES_MAX).collect();
        field_ownership::FieldWriter {
            manager,
            status: self.target.status,
            scale: self.target.scale.is_some(),
            now: prepare::now(),
            meta: self.target.entry.stored_meta(),
            schema: self.target.entry.definition().map(CustomKind::schema),
        }
    }

    /// Our controllers write back what they read, and do not read warnings.
    fn field_validation(&self) -> FieldValidation {
        let internal = self.server.default_requester.internal;
        if internal { FieldValidation::Ignore } else { self.parameters.field_validation }
    }

    /// The object in the path.
    fn key(&self) -> Result<ObjectKey, StatusError> {
        let name = self.target.name.as_deref().ok_or_else(StatusError::method_not_allowed)?;
        let namespace = self.target.namespace.as_deref().unwrap_or("");
        Ok(ObjectKey { resource: self.resource(), namespace: namespace.into(), name: name.into() })
    }
}

/// The client's user agent.
fn user_agent(headers: &HeaderMap) -> &str {
    headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("")
}

/// Turns a write into a dry run, which returns what it would have stored.
fn as_dry_run(change: WriteOperation) -> WriteOperation {
    match change {
        kept @ (WriteOperation::NoOp(_) | WriteOperation::PutPrepared(..)) => kept,
        WriteOperation::Put(key, value) | WriteOperation::Delete(key, value) => {
            WriteOperation::NoOp(Arc::new(StoredObject::new(key, 0, &value)))
        }
    }
}

async fn handle(State(mut server): State<ApiServer>, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    if let Some(plain) = request_path::unescape(&head.uri) {
        head.uri = plain;
    }
    server.registry = server.crds.registry(&server.store, &server.registry);
    let note = server.audit_log.as_ref().map(|audit| audit.begin(&head));
    let (is_yaml, is_pretty) = (content_negotiation::is_yaml(&head.headers), content_negotiation::is_pretty(&head));
    let admitted = admit(&mut server, &head);
    let who = Arc::clone(&server.default_requester);
    let (uri, registry) = (head.uri.clone(), Arc::clone(&server.registry));
    let answered = match admitted {
        Ok(()) => dispatch(server, head, body).await,
        Err(refusal) => Err(refusal),
    };
    let mut response = answered.unwrap_or_else(StatusError::into_response);
    allow::add(&mut response, &registry, uri.path());
    if is_yaml {
        response = content_negotiation::to_yaml(response).await;
    } else if is_pretty {
        response = content_negotiation::to_pretty_json(response).await;
    }
    if let Some(note) = note {
        note.finish(&who, response.status());
    }
    response
}

/// Rejects requests that a web page may have sent, and authenticates the caller.
fn admit(server: &mut ApiServer, head: &Parts) -> Result<(), StatusError> {
    // A request that came over no socket is from inside the process.
    if let Some(protection) = head.extensions.get::<Arc<CrossOriginProtection>>() {
        protection.check(head).map_err(|rejection| StatusError::cross_origin(&rejection))?;
    }
    match authentication::authenticate(server, head) {
        Ok(who) => server.default_requester = Arc::new(who),
        Err(_) if authorization::is_anonymous_path(head.uri.path()) => {}
        Err(refusal) => return Err(refusal),
    }
    Ok(())
}

async fn dispatch(server: ApiServer, mut head: Parts, body: Body) -> Result<Response, StatusError> {
    let who = Arc::clone(&server.default_requester);
    let agent = user_agent(&head.headers);
    let _place =
        if who.internal { None } else { Some(server.inflight.acquire(&who.user, agent, RequestClass::Request)?) };
    if let Some(opened) = pod_streams::handle(&server, &mut head).await {
        return opened;
    }
    let path = head.uri.path();
    if let Some(found) = discovery::handle(&server, &head) {
        authorization::check_path(&server, &who, "get", path)?;
        return found;
    }
    let mut body = Some(body);
    if let Some(refused) = unsupported_subresources::handle(&server, &head) {
        return refused;
    }
    if let Some(answered) = handle_subresource(&server, &head, &mut body).await {
        return answered;
    }
    if let Some(uid) = logs::revision::parse_path(path) {
        return logs::revision::handle(&server, &head, uid);
    }
    if path == backup::PATH {
        authorization::check_path(&server, &who, if head.method == Method::GET { "get" } else { "put" }, path)?;
        return backup::handle(&server, &head, body.unwrap_or_default()).await;
    }
    let target = request_path::parse(path, &server.registry)
        .or_else(|unknown| authorization::check_unknown_path(&server, &who, &head.method, path).and(Err(unknown)))?;
    let mut parameters = QueryParameters::parse(&head.uri, &head.method)?;
    parameters.watch |= target.watch;
    let verb = authorization::verb(&head.method, target.name.is_some(), parameters.watch);
    let mut action = target.action(verb);
    if ["list", "watch"].contains(&verb)
        && let Some(name) = selectors::single_name(&parameters.field_selector).filter(|_| target.name.is_none())
    {
        action.name = name;
    }
    authorization::check(&server, &who, &action)?;
    let format = content_negotiation::negotiate(&head.headers)?;
    if parameters.watch && content_negotiation::is_yaml(&head.headers) {
        return Err(StatusError::not_acceptable("application/json")); // a stream of documents
    }
    let reads = head.method == Method::GET;
    let call = Arc::new(ApiRequest { server, target, parameters, headers: head.headers, format });
    let answered = handle_object_request(&call, &head.method, body.unwrap_or_default()).await;
    let answered = answered.map(|response| {
        let response = field_validation::with_warnings(response, deprecation_warning(&call).as_slice());
        if reads { response } else { field_validation::with_warnings(response, &settings::ignored_settings(&call)) }
    });
    let (meta, access) = (call.target.entry.meta, call.target.entry.access);
    answered.map_err(|refusal| {
        let refusal = refusal.with_verb(meta, access, verb);
        if call.parameters.dry_run { refusal.for_dry_run(meta) } else { refusal }
    })
}

/// The warning for clients that use a deprecated kind or version.
fn deprecation_warning(call: &ApiRequest) -> Option<&'static str> {
    let entry = &call.target.entry;
    match (entry.meta.group, entry.meta.plural) {
        _ if call.server.default_requester.internal => None,
        ("", "endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
        _ => entry.deprecated.or_else(|| entry.custom.and_then(CustomKind::deprecated)),
    }
}

async fn handle_object_request(call: &Arc<ApiRequest>, method: &Method, body: Body) -> Result<Response, StatusError> {
    let named = call.target.name.is_some();
    let reads = method == Method::GET;
    match call.target.entry.access {
        AllowedVerbs::CreateOnly if method == Method::POST && !named => {
            let received = body::receive(call, body).await?;
            return on_its_thread(call, received, |call, bytes| async move { reviews::handle(&call, &bytes) }).await;
        }
        AllowedVerbs::CreateOnly => return Err(StatusError::method_not_allowed()),
        AllowedVerbs::ReadOnly => return metrics::handle(call, method).await,
        AllowedVerbs::Derived if !call.server.default_requester.internal && !reads && method != Method::DELETE => {
            return Err(StatusError::method_not_allowed());
        }
        AllowedVerbs::Derived | AllowedVerbs::Full => {}
    }
    if let Some(scale) = call.target.scale {
        let (received, method) = (body::receive(call, body).await?, method.clone());
        let answer =
            async move |call: Arc<ApiRequest>, bytes: Bytes| scale::handle(&call, &method, scale, &bytes).await;
        return on_its_thread(call, received, answer).await;
    }
    if call.target.finalize && *method != Method::PUT {
        return Err(StatusError::method_not_allowed());
    }
    if reads {
        return match named {
            _ if call.parameters.watch => watch::watch(call),
            true => get::get(call),
            false => list::list(call),
        };
    }
    if let Some(name) = &call.target.name {
        crd_registry::check_not_built_in(call, name)?;
    }
    let (received, method) = (body::receive(call, body).await?, method.clone());
    on_its_thread(call, received, async move |call: Arc<ApiRequest>, bytes: Bytes| write(&call, &method, &bytes).await)
        .await
}

/// Answers a small request on this thread, and a large one on a worker thread. Skips a request whose client has gone.
async fn on_its_thread<Answer, Answered>(
    call: &Arc<ApiRequest>,
    (received, weight): (Received, Weight),
    answer: Answer,
) -> Result<Response, StatusError>
where
    Answer: FnOnce(Arc<ApiRequest>, Bytes) -> Answered + Send + 'static,
    Answered: Future<Output = Result<Response, StatusError>>,
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
                _ = gone => Err(StatusError::busy("the client has disconnected")),
                answered = answer(call, bytes) => answered,
            }
        })
    });
    work.await.unwrap_or_else(|_| Err(StatusError::internal("the request was abandoned")))
}

async fn write(call: &ApiRequest, method: &Method, bytes: &Bytes) -> Result<Response, StatusError> {
    let named = call.target.name.is_some();
    if method != Method::DELETE {
        authorization::check_escalation(call, bytes)?;
        cross_namespace_links::check_links(call, bytes)?;
    }
    match *method {
        Method::POST if !named => create::create(call, bytes).await,
        Method::PUT if named => update::update(call, bytes).await,
        Method::PATCH if named => patch::patch(call, bytes).await,
        Method::DELETE if named && !call.target.status => delete::delete(call, bytes).await,
        Method::DELETE if !named => delete::delete_collection(call, bytes).await,
        _ => Err(StatusError::method_not_allowed()),
    }
}

/// Answers the two subresources that are not objects, Pod logs and account tokens; `None` for other paths.
async fn handle_subresource(
    server: &ApiServer,
    head: &Parts,
    body: &mut Option<Body>,
) -> Option<Result<Response, StatusError>> {
    let path = head.uri.path();
    let (who, of_logs) = (&server.default_requester, logs::parse_path(path));
    let (namespace, name) = of_logs.or_else(|| account_tokens::parse_path(path))?;
    let (verb, resource, subresource, method) = match of_logs {
        Some(_) => ("get", "pods", "log", Method::GET),
        None => ("create", "serviceaccounts", "token", Method::POST),
    };
    let action = RequestAttributes { verb, group: "", resource, subresource, namespace, name };
    if let Err(refusal) = authorization::check(server, who, &action) {
        return Some(Err(refusal));
    }
    if head.method != method {
        return Some(Err(StatusError::method_not_allowed()));
    }
    if of_logs.is_some() {
        return Some(logs::handle(server, namespace, name, &head.uri));
    }
    Some(match body::read(&server.budget, body.take().unwrap_or_default()).await {
        Ok(bytes) => account_tokens::create_token(server, namespace, name, head, &bytes),
        Err(refusal) => Err(refusal),
    })
}

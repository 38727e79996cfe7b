//! The listeners that Gateways have opened: opens and closes them, and knows which cannot be opened.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::listener_sockets::{ListenerSockets, ListenerSpec};
use contract::table::TlsRelayMode;
use contract::tls::TlsIdentity;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::conditions::ConditionRefusal;
use super::listener_plan::{WantedListeners, plan};
use crate::context::ControllerContext;
use crate::publish::ListenerState;

/// A core opens its socket at its next wake-up, which takes microseconds unless it is stalled.
const ACCEPT_WAIT_MAX: Duration = Duration::from_secs(5);
/// A listener that could not be opened is tried again after these times, at first and at most.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);

/// Namespace and name.
type GatewayKey = (String, String);

/// A listener of a Gateway at one address.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ListenerClaim {
    pub(super) spec: ListenerSpec,
    /// In lower case; `*` for all hosts.
    pub(super) hostname: String,
    pub(super) identities: Vec<TlsIdentity>,
    /// How its connections are relayed.
    pub(super) relay: Option<TlsRelayMode>,
}

/// Why a listener of a Gateway is not open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotOpen {
    /// Another Gateway has the address.
    Conflict(ConditionRefusal),
    /// The port cannot be used.
    Port(String),
    /// This host does not have the address.
    Address(String),
}

#[derive(Debug, Default)]
pub(super) struct ListenerBook {
    state: Mutex<BookState>,
    /// Notified when a listener was opened, or could not be.
    changed: Notify,
}

#[derive(Debug, Default)]
struct BookState {
    gateways: BTreeMap<GatewayKey, GatewayClaims>,
    open: BTreeMap<ListenerSpec, Arc<ListenerSockets>>,
    /// Those that could not be opened the last time.
    failed: BTreeMap<ListenerSpec, NotOpen>,
    /// Attempts of Gateways with such a listener.
    attempts: HashMap<GatewayKey, u32>,
}

#[derive(Debug)]
struct GatewayClaims {
    /// The oldest Gateway comes first.
    created: Timestamp,
    /// `NAMESPACE/NAME`, for messages.
    name: String,
    claims: Vec<ListenerClaim>,
}

impl ListenerBook {
    /// Replaces the listeners of a Gateway, and opens and closes what that requires. Returns the other Gateways that it
    /// concerns: those with an address that has another protocol now. The publisher has to be flushed.
    pub(super) fn set(
        &self,
        context: &ControllerContext,
        (gateway, created): (&GatewayKey, Timestamp),
        claims: Vec<ListenerClaim>,
    ) -> BTreeSet<GatewayKey> {
        let mut state = self.lock();
        let before = state.wanted().specs();
        let known = state.gateways.remove(gateway);
        let own: BTreeSet<ListenerSpec> = claims.iter().map(|claim| claim.spec).collect();
        let touched: BTreeSet<_> =
            known.iter().flat_map(|known| &known.claims).map(|claim| claim.spec).chain(own.iter().copied()).collect();
        if !claims.is_empty() {
            let name = format!("{}/{}", gateway.0, gateway.1);
            state.gateways.insert(gateway.clone(), GatewayClaims { created, name, claims });
        }
        let wanted = state.wanted().specs();
        let plan = plan(&wanted, &state.open.keys().copied().collect());
        for spec in plan.close {
            state.open.remove(&spec);
            context.publisher.set_listener(spec, ListenerState::default());
            context.config.gateway_listeners.opener.release(spec);
            tracing::info!(listener = %spec, "closing a listener: no Gateway has it any more");
        }
        state.failed.retain(|spec, _| wanted.contains(spec));
        for spec in plan.open.into_iter().filter(|spec| own.contains(spec)) {
            state.open(context, spec);
        }
        for spec in touched.intersection(&wanted) {
            let shown = state.shown(*spec);
            context.publisher.set_listener(*spec, shown);
        }
        let others = state.concerned(gateway, wanted.symmetric_difference(&before).copied().collect());
        drop(state);
        self.changed.notify_waiters();
        others
    }

    /// Why a listener is not open; returns when the cores accept.
    pub(super) async fn outcome(&self, context: &ControllerContext, spec: ListenerSpec) -> Option<NotOpen> {
        let sockets = {
            let state = self.lock();
            if let Some(refusal) = state.wanted().refusal(spec) {
                let is_conflict = is_conflict(&refusal);
                return Some(if is_conflict { NotOpen::Conflict(refusal) } else { NotOpen::Port(refusal.message) });
            }
            match state.open.get(&spec) {
                Some(sockets) => Arc::clone(sockets),
                None => return state.failed.get(&spec).cloned(),
            }
        };
        match timeout(ACCEPT_WAIT_MAX, sockets.accepting()).await {
            Ok(Ok(())) => None,
            Ok(Err(why)) => {
                let failed = NotOpen::Port(format!("A core cannot serve {spec}: {why}."));
                self.close_failed(context, &sockets, failed.clone());
                Some(failed)
            }
            Err(_) => Some(NotOpen::Port(format!("Not every core accepts at {spec} yet."))),
        }
    }

    /// Returns when the cores accept at a listener, or when it is known not to be open.
    pub(super) async fn settled(&self, spec: ListenerSpec) {
        let settle = async {
            loop {
                let changed = self.changed.notified();
                let sockets = {
                    let state = self.lock();
                    if state.failed.contains_key(&spec)
                        || state.wanted().refusal(spec).as_ref().is_some_and(is_conflict)
                    {
                        return;
                    }
                    state.open.get(&spec).cloned()
                };
                match sockets {
                    Some(sockets) => return drop(sockets.accepting().await),
                    None => changed.await,
                }
            }
        };
        // After that the status of the Gateway says that the listener is not open.
        let _ = timeout(ACCEPT_WAIT_MAX, settle).await;
    }

    /// When to try again the listeners of a Gateway that are not open.
    pub(super) fn retry_delay(&self, gateway: &GatewayKey) -> Duration {
        let mut state = self.lock();
        let attempts = state.attempts.entry(gateway.clone()).or_default();
        let delay = RETRY_DELAY_MIN.saturating_mul(1 << (*attempts).min(16));
        *attempts += 1;
        delay.min(RETRY_DELAY_MAX)
    }

    /// All listeners of a Gateway are open, or it has none.
    pub(super) fn forget_attempts(&self, gateway: &GatewayKey) {
        self.lock().attempts.remove(gateway);
    }

    fn close_failed(&self, context: &ControllerContext, sockets: &Arc<ListenerSockets>, failed: NotOpen) {
        let (mut state, spec) = (self.lock(), sockets.spec);
        if state.open.get(&spec).is_some_and(|open| Arc::ptr_eq(open, sockets)) {
            state.open.remove(&spec);
            state.failed.insert(spec, failed);
            let shown = state.shown(spec);
            context.publisher.set_listener(spec, shown);
            context.config.gateway_listeners.opener.release(spec);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BookState {
    fn wanted(&self) -> WantedListeners<'_> {
        let mut gateways: Vec<_> = self.gateways.iter().collect();
        gateways.sort_by_key(|(key, gateway)| (gateway.created, *key));
        WantedListeners::of(
            gateways.into_iter().flat_map(|(_, GatewayClaims { name, claims, .. })| {
                claims.iter().map(|claim| (name.as_str(), claim.spec))
            }),
        )
    }

    fn open(&mut self, context: &ControllerContext, spec: ListenerSpec) {
        match context.config.gateway_listeners.opener.open(spec) {
            Ok(sockets) => {
                let sockets = ListenerSockets::new(context.publisher.listener_id(spec), spec, sockets);
                self.open.insert(spec, sockets);
                self.failed.remove(&spec);
                tracing::info!(listener = %spec, "opening a listener of a Gateway");
            }
            Err(why) => {
                let failed = bind_failure(spec, &why);
                if self.failed.insert(spec, failed.clone()).as_ref() != Some(&failed) {
                    tracing::warn!(listener = %spec, %why, "cannot open a listener of a Gateway; it is tried again");
                }
            }
        }
    }

    /// A listener as the cores have to see it.
    fn shown(&self, spec: ListenerSpec) -> ListenerState {
        let claims = self.gateways.values().flat_map(|gateway| &gateway.claims).filter(|claim| claim.spec == spec);
        let mut state = ListenerState { sockets: self.open.get(&spec).cloned(), ..ListenerState::default() };
        for claim in claims {
            state.hostnames.insert(claim.hostname.clone());
            let named = claim.identities.iter().map(|identity| (claim.hostname.clone(), identity.clone()));
            state.certificates.extend(named);
            if let Some(mode) = claim.relay {
                state.relay_modes.entry(claim.hostname.clone()).or_insert(mode);
            }
        }
        state
    }

    /// The other Gateways with a listener at the address of a changed one.
    fn concerned(&self, own: &GatewayKey, changed: BTreeSet<ListenerSpec>) -> BTreeSet<GatewayKey> {
        if changed.is_empty() {
            return BTreeSet::new();
        }
        let is_changed = |claim: &ListenerClaim| changed.iter().any(|spec| spec.address == claim.spec.address);
        let others = self.gateways.iter().filter(|(key, gateway)| *key != own && gateway.claims.iter().any(is_changed));
        others.map(|(key, _)| key.clone()).collect()
    }
}

/// Whether waiting is of no use; a listener that no Gateway has may come.
fn is_conflict(refusal: &ConditionRefusal) -> bool {
    refusal.reason == "ProtocolConflict"
}

fn bind_failure(spec: ListenerSpec, why: &io::Error) -> NotOpen {
    let address = spec.address;
    match why.kind() {
        io::ErrorKind::AddrNotAvailable => {
            NotOpen::Address(format!("This host does not have the address {}; add it, or use another.", address.ip()))
        }
        io::ErrorKind::AddrInUse => {
            NotOpen::Port(format!("{address} is in use by another program; stop that program, or use another port."))
        }
        io::ErrorKind::PermissionDenied => NotOpen::Port(format!(
            "Listening on {address} is not permitted; run as root or grant CAP_NET_BIND_SERVICE."
        )),
        _ => NotOpen::Port(format!("Listening on {address} failed: {why}.")),
    }
}

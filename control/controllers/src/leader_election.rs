//! Leader election: of several appliances that follow one API server, all serve and one writes.
//!
//! A Lease names the leader. Its holder renews it; the others watch it by their own clocks and acquire it when it has
//! not been renewed for as long as it says itself. A holder that loses its connection to the API server stops writing
//! before another may begin. An appliance with an API of its own holds the Lease there forever, so its followers
//! serve and leave the writing to it.
//!
//! Appliances with chosen roles have a Lease for each role instead, and write while they hold all of theirs. They acquire them
//! in one order, so that two of them never wait for each other.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use tokio::time::{Instant, sleep, timeout};

use crate::api::Error;
use crate::context::ControllerContext;
use crate::context_change::ContextChange;
use crate::field_managers;
use crate::roles::LEASE_NAMESPACE;
use support::clock::Deadline;

/// A holder that has not renewed for this many seconds is gone. This and the two below are the figures of Kubernetes'
/// own controllers.
const LEASE_DURATION_SECONDS: i32 = 15;
/// A holder that could not renew for this long stops writing.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval between attempts to acquire or renew the Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// How long one attempt may take, so that a silent server does not keep a holder from giving up in time: with
/// [`RETRY_PERIOD`] and [`RENEW_DEADLINE`] it ends before the Lease does.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Holder of the Lease of an API that is part of an appliance; it never expires.
const EMBEDDED: &str = "embedded";

/// A name that no other appliance has.
#[must_use]
pub fn new_identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// The Lease as it was last seen to change, by our own clock: those of others may be anywhere.
#[derive(Debug, Default)]
struct LeaseObservation {
    spec: Option<LeaseSpec>,
    since: Option<Instant>,
}

impl LeaseObservation {
    fn holder(&self) -> Option<&str> {
        self.spec.as_ref()?.holder_identity.as_deref()
    }

    /// How long the Lease has stood still.
    fn unchanged_for(&mut self, spec: Option<&LeaseSpec>, now: Instant) -> Duration {
        if self.since.is_none() || self.spec.as_ref() != spec {
            *self = Self { spec: spec.cloned(), since: Some(now) };
        }
        self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }
}

/// The action for the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseAction {
    Create,
    Renew,
    Acquire,
    Wait,
}

fn decide(found: Option<&LeaseSpec>, me: &str, still_for: Duration) -> LeaseAction {
    let Some(spec) = found else { return LeaseAction::Create };
    let held = u64::try_from(spec.lease_duration_seconds.unwrap_or(LEASE_DURATION_SECONDS)).unwrap_or(0);
    match spec.holder_identity.as_deref() {
        Some(holder) if holder == me => LeaseAction::Renew,
        None | Some("") => LeaseAction::Acquire,
        Some(_) if still_for >= Duration::from_secs(held) => LeaseAction::Acquire,
        Some(_) => LeaseAction::Wait,
    }
}

/// The Lease as `me` holds it from `now` on.
fn lease_spec(before: Option<&LeaseSpec>, me: &str, now: Timestamp) -> LeaseSpec {
    let goes_on = before.is_none_or(|before| before.holder_identity.as_deref() == Some(me));
    let before = before.cloned().unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(LEASE_DURATION_SECONDS),
        acquire_time: before.acquire_time.filter(|_| goes_on).or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!goes_on)),
        ..LeaseSpec::default()
    }
}

fn api(context: &ControllerContext) -> Api<Lease> {
    Api::namespaced(context.client.clone(), LEASE_NAMESPACE)
}

/// One Lease, and how it was last seen.
#[derive(Debug)]
struct ElectionLease {
    name: String,
    seen: LeaseObservation,
}

/// One attempt for all Leases, in their order; returns whether this appliance holds them all afterwards.
async fn try_acquire_or_renew_all(
    api: &Api<Lease>,
    me: &str,
    leases: &mut [ElectionLease],
) -> Result<bool, kube::Error> {
    for lease in leases {
        if !try_acquire_or_renew(api, me, lease).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads one Lease and acquires or renews it; returns whether this appliance holds it afterwards.
async fn try_acquire_or_renew(api: &Api<Lease>, me: &str, election: &mut ElectionLease) -> Result<bool, kube::Error> {
    let found = api.get_opt(&election.name).await?;
    let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
    let still_for = election.seen.unchanged_for(spec.as_ref(), Instant::now());
    let step = decide(spec.as_ref(), me, still_for);
    if step == LeaseAction::Wait {
        return Ok(false);
    }
    let metadata = found.map_or_else(|| metadata(&election.name), |lease| lease.metadata);
    let lease = Lease { metadata, spec: Some(lease_spec(spec.as_ref(), me, Timestamp::now())) };
    let parameters = field_managers::object_params::<Lease>();
    match step {
        LeaseAction::Create => api.create(&parameters, &lease).await?,
        // The write has the version that was read: of two that acquire it at once, one is refused.
        _ => api.replace(&election.name, &parameters, &lease).await?,
    };
    Ok(true)
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }
}

/// Holds the Leases or waits for them, forever.
pub(crate) async fn run(context: &ControllerContext, me: &str) {
    let api = api(context);
    let names = context.config.roles.leases();
    let mut leases: Vec<_> =
        names.iter().map(|name| ElectionLease { name: name.clone(), seen: LeaseObservation::default() }).collect();
    let clock = &context.config.clock;
    let mut valid = Deadline::new(clock.both(), RENEW_DEADLINE);
    let mut last_logged = String::new();
    loop {
        let began = clock.both();
        // Also after a suspend, during which the monotonic clock stops: others had the time to acquire the Lease.
        if valid.has_passed(began) {
            on_leadership_change(context, false);
        }
        let outcome = timeout(REQUEST_TIMEOUT, try_acquire_or_renew_all(&api, me, &mut leases)).await;
        let why = match outcome {
            Ok(Ok(ours)) => {
                let is_embedded = |lease: &ElectionLease| lease.seen.holder() == Some(EMBEDDED);
                context.leadership.set_contested(!leases.iter().any(is_embedded));
                if ours {
                    valid = Deadline::new(began, RENEW_DEADLINE);
                }
                on_leadership_change(context, ours);
                String::new()
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                on_leadership_change(context, false); // another appliance was faster
                String::new()
            }
            Ok(Err(why)) => why.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if valid.has_passed(clock.both()) {
            on_leadership_change(context, false);
        }
        if !why.is_empty() && why != last_logged {
            tracing::warn!(
                lease = names.join(","),
                namespace = LEASE_NAMESPACE,
                why,
                "the Lease cannot be renewed; without it this appliance serves and writes no status. \
                 Its account must be allowed to get, create and update it"
            );
        }
        if why.is_empty() && !last_logged.is_empty() {
            tracing::info!("the server answers again, and the Lease is renewed");
        }
        last_logged = why;
        sleep(RETRY_PERIOD).await;
    }
}

fn on_leadership_change(context: &ControllerContext, ours: bool) {
    if !context.leadership.set(ours) {
        return;
    }
    if ours {
        tracing::info!("this appliance writes from now on");
        context.notify(ContextChange::Settings);
    } else {
        tracing::info!("another appliance may write from now on; this one serves");
    }
}

/// Gives the Leases up, so that the next one need not wait for them to lapse.
pub(crate) async fn release(context: &ControllerContext) {
    if !context.leadership.set(false) {
        return;
    }
    let api = api(context);
    let given_up = async {
        for name in context.config.roles.leases() {
            release_one(&api, &name, context.config.leader_identity.as_deref()).await?;
        }
        Ok::<_, kube::Error>(())
    };
    match timeout(REQUEST_TIMEOUT, given_up).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::debug!(%why, "the Lease lapses by itself"),
        Err(_) => tracing::debug!("the Lease lapses by itself"),
    }
}

async fn release_one(api: &Api<Lease>, name: &str, me: Option<&str>) -> Result<(), kube::Error> {
    let Some(mut lease) = api.get_opt(name).await? else { return Ok(()) };
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() == me {
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        api.replace(name, &field_managers::object_params::<Lease>(), &lease).await?;
    }
    Ok(())
}

/// Records in our own API that its appliance is the leader.
///
/// # Errors
/// The API refuses.
pub(crate) async fn hold_permanently(context: &ControllerContext) -> Result<(), Error> {
    let api = api(context);
    let (held, left) = context.config.roles.leases_of_own_api();
    for name in held {
        hold_one_permanently(&api, &name).await?;
    }
    // An earlier start may have had more roles.
    for name in left {
        release_one(&api, &name, Some(EMBEDDED)).await?;
    }
    Ok(())
}

async fn hold_one_permanently(api: &Api<Lease>, name: &str) -> Result<(), Error> {
    let found = api.get_opt(name).await?;
    let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
    if spec.is_some_and(|spec| spec.holder_identity.as_deref() == Some(EMBEDDED)) {
        return Ok(());
    }
    let wanted = LeaseSpec { lease_duration_seconds: Some(i32::MAX), ..lease_spec(spec, EMBEDDED, Timestamp::now()) };
    let parameters = field_managers::object_params::<Lease>();
    match found {
        Some(lease) => api.replace(name, &parameters, &Lease { spec: Some(wanted), ..lease }).await?,
        None => api.create(&parameters, &Lease { metadata: metadata(name), spec: Some(wanted) }).await?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, seconds: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_or_has_stood_still_for_its_time() {
        let seconds = Duration::from_secs;
        for (found, still_for, step) in [
            (None, seconds(0), LeaseAction::Create),
            (Some(lease("me", 15)), seconds(99), LeaseAction::Renew),
            (Some(lease("", 15)), seconds(0), LeaseAction::Acquire),
            (Some(LeaseSpec::default()), seconds(0), LeaseAction::Acquire),
            (Some(lease("you", 15)), seconds(14), LeaseAction::Wait),
            (Some(lease("you", 15)), seconds(15), LeaseAction::Acquire),
            (Some(lease("you", i32::MAX)), seconds(86_400 * 365), LeaseAction::Wait),
            (Some(lease("you", -1)), seconds(0), LeaseAction::Acquire),
        ] {
            assert_eq!(decide(found.as_ref(), "me", still_for), step, "{found:?} {still_for:?}");
        }
    }

    #[test]
    fn a_holder_that_renews_never_seems_still() {
        let (mut seen, start) = (LeaseObservation::default(), Instant::now());
        let at = |second: i64| {
            let renewed = MicroTime(Timestamp::from_second(second).unwrap());
            LeaseSpec { renew_time: Some(renewed), ..lease("you", 15) }
        };
        assert_eq!(seen.unchanged_for(Some(&at(1)), start), Duration::ZERO);
        let later = start + Duration::from_secs(9);
        assert_eq!(seen.unchanged_for(Some(&at(1)), later), Duration::from_secs(9));
        assert_eq!(seen.unchanged_for(Some(&at(2)), later), Duration::ZERO);
    }

    #[test]
    fn a_change_of_hands_is_counted_and_a_renewal_is_not() {
        let now = Timestamp::from_second(1_000).unwrap();
        let first = lease_spec(None, "a", now);
        assert_eq!(first.lease_transitions, Some(0));
        let renewed = lease_spec(Some(&first), "a", Timestamp::from_second(1_002).unwrap());
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(0), &first.acquire_time));
        assert_ne!(renewed.renew_time, first.renew_time);
        let taken = lease_spec(Some(&renewed), "b", Timestamp::from_second(1_020).unwrap());
        assert_eq!(taken.lease_transitions, Some(1));
        assert_ne!(taken.acquire_time, first.acquire_time);
    }
}

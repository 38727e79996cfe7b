//! Whose turn it is to write: of several appliances that follow one API server, all serve and one writes.
//!
//! A Lease says which. Its holder renews it; the others watch it by their own clocks and take it over when it
//! has not moved for as long as it says itself. Who loses touch with the API server stops writing before
//! anybody else may begin. An appliance with an API of its own holds the Lease there for good, so whoever
//! follows it serves and leaves the writing to it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use tokio::time::{Instant, sleep, timeout};

use super::managers;
use super::settings::look_at_all;
use super::world::{Error, World};
use crate::clock::Deadline;
use crate::kinds::settings::SERVING;

/// Where the Lease is: in the namespace that every installation of Knative has.
pub const LEASE: &str = "sluicegate";
pub const LEASE_NAMESPACE: &str = SERVING;

/// A holder that has not been heard of for so long is gone, in seconds. This and the two below are the
/// figures of Kubernetes' own controllers.
const HELD_SECONDS: i32 = 15;
/// A holder that could not renew for so long stops writing.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// Between two looks at the Lease.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long one look may take, so that a silent server does not keep a holder from giving up in time: this
/// and [`LOOK_EVERY`] on top of [`GIVE_UP_AFTER`] would be too much without it.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Who holds the Lease of an API that is part of an appliance, and for how long: for ever.
const EMBEDDED: &str = "embedded";

/// A name that no other appliance has.
#[must_use]
pub fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// Whether it is ours to write.
#[derive(Debug)]
pub struct Duty {
    ours: AtomicBool,
}

/// Another appliance writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another appliance holds the Lease and writes")]
pub struct NotOurs;

impl Duty {
    #[must_use]
    pub fn new(ours: bool) -> Self {
        Self { ours: AtomicBool::new(ours) }
    }

    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours.load(Relaxed)
    }

    /// # Errors
    /// It is not ours.
    pub fn check(&self) -> Result<(), NotOurs> {
        if self.is_ours() { Ok(()) } else { Err(NotOurs) }
    }

    /// Whether that is news.
    fn set(&self, ours: bool) -> bool {
        self.ours.swap(ours, Relaxed) != ours
    }
}

/// The Lease as it was last seen to change, by our own clock: those of others may be anywhere.
#[derive(Debug, Default)]
struct Seen {
    spec: Option<LeaseSpec>,
    since: Option<Instant>,
}

impl Seen {
    /// How long the Lease has stood still.
    fn still_for(&mut self, spec: Option<&LeaseSpec>, now: Instant) -> Duration {
        if self.since.is_none() || self.spec.as_ref() != spec {
            *self = Self { spec: spec.cloned(), since: Some(now) };
        }
        self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }
}

/// What to do about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Make,
    Renew,
    Take,
    Wait,
}

fn decide(found: Option<&LeaseSpec>, me: &str, still_for: Duration) -> Step {
    let Some(spec) = found else { return Step::Make };
    let held = u64::try_from(spec.lease_duration_seconds.unwrap_or(HELD_SECONDS)).unwrap_or(0);
    match spec.holder_identity.as_deref() {
        Some(holder) if holder == me => Step::Renew,
        None | Some("") => Step::Take,
        Some(_) if still_for >= Duration::from_secs(held) => Step::Take,
        Some(_) => Step::Wait,
    }
}

/// The Lease as `me` holds it from `now` on.
fn held(before: Option<&LeaseSpec>, me: &str, now: Timestamp) -> LeaseSpec {
    let goes_on = before.is_none_or(|before| before.holder_identity.as_deref() == Some(me));
    let before = before.cloned().unwrap_or_default();
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: Some(HELD_SECONDS),
        acquire_time: before.acquire_time.filter(|_| goes_on).or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!goes_on)),
        ..LeaseSpec::default()
    }
}

fn api(world: &World) -> Api<Lease> {
    Api::namespaced(world.client.clone(), LEASE_NAMESPACE)
}

/// One look, and what it calls for; whether the Lease is ours after it.
async fn look(api: &Api<Lease>, me: &str, seen: &mut Seen) -> Result<bool, kube::Error> {
    let found = api.get_opt(LEASE).await?;
    let spec = found.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
    let still_for = seen.still_for(spec.as_ref(), Instant::now());
    let step = decide(spec.as_ref(), me, still_for);
    if step == Step::Wait {
        return Ok(false);
    }
    let metadata = found.map_or_else(metadata, |lease| lease.metadata);
    let lease = Lease { metadata, spec: Some(held(spec.as_ref(), me, Timestamp::now())) };
    let parameters = managers::objects::<Lease>();
    match step {
        Step::Make => api.create(&parameters, &lease).await?,
        // The version that was read goes with it: of two that take it at once, one is refused.
        _ => api.replace(LEASE, &parameters, &lease).await?,
    };
    Ok(true)
}

fn metadata() -> ObjectMeta {
    ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() }
}

/// Holds the Lease or waits for it, for ever.
pub(super) async fn keep(world: &World, me: &str) {
    let api = api(world);
    let mut seen = Seen::default();
    let clock = &world.config.clock;
    let mut valid = Deadline::new(clock.both(), GIVE_UP_AFTER);
    let mut told = String::new();
    loop {
        let began = clock.both();
        // Also after a suspend, for which the monotonic clock stands still: others had the time to take the Lease over.
        if valid.has_passed(began) {
            turn(world, false);
        }
        let outcome = timeout(LOOK_MAX, look(&api, me, &mut seen)).await;
        let why = match outcome {
            Ok(Ok(ours)) => {
                if ours {
                    valid = Deadline::new(began, GIVE_UP_AFTER);
                }
                turn(world, ours);
                String::new()
            }
            Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
                turn(world, false); // somebody was faster
                String::new()
            }
            Ok(Err(why)) => why.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if valid.has_passed(clock.both()) {
            turn(world, false);
        }
        if !why.is_empty() && why != told {
            tracing::warn!(
                lease = format!("{LEASE_NAMESPACE}/{LEASE}"),
                why,
                "the Lease cannot be looked after; without it this appliance serves and writes no status. \
                 Its account must be allowed to get, create and update it"
            );
        }
        if why.is_empty() && !told.is_empty() {
            tracing::info!("the server answers again, and the Lease is looked after");
        }
        told = why;
        sleep(LOOK_EVERY).await;
    }
}

fn turn(world: &World, ours: bool) {
    if !world.duty.set(ours) {
        return;
    }
    if ours {
        tracing::info!("this appliance writes from now on");
        look_at_all(world);
    } else {
        tracing::info!("another appliance may write from now on; this one serves");
    }
}

/// Gives the Lease up, so that the next one need not wait for it to lapse.
pub(super) async fn leave(world: &World) {
    if !world.duty.set(false) {
        return;
    }
    let api = api(world);
    let given_up = async {
        let Some(mut lease) = api.get_opt(LEASE).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity == world.config.holder {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            api.replace(LEASE, &managers::objects::<Lease>(), &lease).await?;
        }
        Ok::<_, kube::Error>(())
    };
    match timeout(LOOK_MAX, given_up).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => tracing::debug!(%why, "the Lease lapses by itself"),
        Err(_) => tracing::debug!("the Lease lapses by itself"),
    }
}

/// Says in an API of our own that its appliance does the writing.
///
/// # Errors
/// The API refuses.
pub(super) async fn hold_for_good(world: &World) -> Result<(), Error> {
    let api = api(world);
    let found = api.get_opt(LEASE).await?;
    let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
    if spec.is_some_and(|spec| spec.holder_identity.as_deref() == Some(EMBEDDED)) {
        return Ok(());
    }
    let wanted =
        LeaseSpec { lease_duration_seconds: Some(i32::MAX), ..held(spec, EMBEDDED, Timestamp::now()) };
    let parameters = managers::objects::<Lease>();
    match found {
        Some(lease) => api.replace(LEASE, &parameters, &Lease { spec: Some(wanted), ..lease }).await?,
        None => api.create(&parameters, &Lease { metadata: metadata(), spec: Some(wanted) }).await?,
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
            (None, seconds(0), Step::Make),
            (Some(lease("me", 15)), seconds(99), Step::Renew),
            (Some(lease("", 15)), seconds(0), Step::Take),
            (Some(LeaseSpec::default()), seconds(0), Step::Take),
            (Some(lease("you", 15)), seconds(14), Step::Wait),
            (Some(lease("you", 15)), seconds(15), Step::Take),
            (Some(lease("you", i32::MAX)), seconds(86_400 * 365), Step::Wait),
            (Some(lease("you", -1)), seconds(0), Step::Take),
        ] {
            assert_eq!(decide(found.as_ref(), "me", still_for), step, "{found:?} {still_for:?}");
        }
    }

    #[test]
    fn a_holder_that_renews_never_seems_still() {
        let (mut seen, start) = (Seen::default(), Instant::now());
        let at = |second: i64| {
            let renewed = MicroTime(Timestamp::from_second(second).unwrap());
            LeaseSpec { renew_time: Some(renewed), ..lease("you", 15) }
        };
        assert_eq!(seen.still_for(Some(&at(1)), start), Duration::ZERO);
        let later = start + Duration::from_secs(9);
        assert_eq!(seen.still_for(Some(&at(1)), later), Duration::from_secs(9));
        assert_eq!(seen.still_for(Some(&at(2)), later), Duration::ZERO);
    }

    #[test]
    fn a_change_of_hands_is_counted_and_a_renewal_is_not() {
        let now = Timestamp::from_second(1_000).unwrap();
        let first = held(None, "a", now);
        assert_eq!(first.lease_transitions, Some(0));
        let renewed = held(Some(&first), "a", Timestamp::from_second(1_002).unwrap());
        assert_eq!((renewed.lease_transitions, &renewed.acquire_time), (Some(0), &first.acquire_time));
        assert_ne!(renewed.renew_time, first.renew_time);
        let taken = held(Some(&renewed), "b", Timestamp::from_second(1_020).unwrap());
        assert_eq!(taken.lease_transitions, Some(1));
        assert_ne!(taken.acquire_time, first.acquire_time);
    }
}

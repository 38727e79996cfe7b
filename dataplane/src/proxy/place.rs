//! A place for one request in one instance: taken at once, waited for, given back when dropped.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::task::Poll;
use std::time::Duration;

use ring::Tick;

use super::exchange::Due;
use super::waiting::Ticket;
use super::{Proxy, Refusal, pick};
use crate::http::wire::{by, earlier};
use crate::load::{BackendLoad, InFlight};
use crate::outcomes::Tag;
use crate::signal::Signal;
use crate::table::{Ask, Backend, Bond, Edits, Endpoint, Split, Start, WhenEmpty};

/// Between two attempts to say `Demand` while the queue to control is full. Control drains thousands of
/// signals in a millisecond.
const DEMAND_RETRY: Duration = Duration::from_millis(5);

/// Between two rounds through instances that all refused the connection, while the request may wait.
const UNREACHABLE_RETRY: Duration = Duration::from_millis(20);

/// The share that a request fell to.
#[derive(Debug, Clone)]
pub struct Choice {
    pub backend: Arc<Backend>,
    pub edits: Option<Arc<Edits>>,
    /// What its route's manners make of the request.
    pub bond: Bond,
}

impl From<&Split> for Choice {
    fn from(split: &Split) -> Self {
        Self { backend: Arc::clone(&split.backend), edits: split.edits.clone(), bond: Bond::default() }
    }
}

impl Choice {
    /// Under which tag the request is counted.
    pub(crate) fn tag(&self, ask: &Ask<'_>) -> Tag {
        self.edits.as_ref().map(|edits| edits.tag(ask)).unwrap_or_default()
    }
}

/// One request's place inside one instance.
pub struct Place {
    pub endpoint: Arc<Endpoint>,
    pub choice: Choice,
    /// It was waited for; and how its instance came up meanwhile, if it did.
    pub(super) waited: Option<Option<Start>>,
    proxy: Rc<Proxy>,
    /// Given back before the others are told.
    inside: Option<InFlight>,
}

impl Place {
    #[must_use]
    pub fn backend(&self) -> &Arc<Backend> {
        &self.choice.backend
    }

    /// What the route changes in the request.
    #[must_use]
    pub fn edits(&self) -> Option<&Edits> {
        self.choice.edits.as_deref()
    }

    /// Its request has become a WebSocket. Who waits for the end of requests need not wait for it.
    pub fn becomes_tunnel(&mut self) {
        if let Some(inside) = &mut self.inside {
            inside.becomes_tunnel();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inside = None;
        self.backend().load.in_flight.fetch_sub(1, Relaxed);
        self.proxy.place_freed(self.backend());
    }
}

/// What a request wants, as far as places go.
pub struct Wish<'a> {
    /// To find the backend again in a new table.
    pub ask: Ask<'a>,
    /// What it holds while it waits.
    pub bytes: usize,
    /// Instances that refused a connection for this request.
    pub tried: Vec<u64>,
}

impl Proxy {
    /// A place at once, if there is one and nobody waits before us.
    #[must_use]
    pub fn try_place(self: &Rc<Self>, choice: &Choice, tried: &[u64]) -> Option<Place> {
        let backend = &choice.backend;
        // Whoever is served by an unlimited instance takes nothing from those who wait for another.
        let is_overtaking = backend.concurrency_max != 0
            && backend.load.waiting.load(Relaxed) != 0
            && backend.when_empty != WhenEmpty::Refuse;
        if is_overtaking || self.room.borrow().anyone(&backend.key) {
            return None;
        }
        self.grasp(choice, tried)
    }

    /// A place at once or, where that makes sense, later: then it waits in the waiting room and asks
    /// control for an instance.
    pub async fn place(self: &Rc<Self>, mut choice: Choice, wish: &mut Wish<'_>) -> Result<Place, Refusal> {
        if let Some(place) = self.try_place(&choice, &wish.tried) {
            return Ok(place);
        }
        let started = self.ring.now();
        let first = Arc::clone(&choice.backend);
        let waited = |mut place: Place| {
            let is_new = first.endpoints.iter().all(|known| known.id != place.endpoint.id);
            place.waited = Some(place.endpoint.born.as_ref().and_then(|born| born.start).filter(|_| is_new));
            place
        };
        loop {
            let backend = &choice.backend;
            let due = match backend.when_empty {
                WhenEmpty::Wait { patience } => started + patience,
                WhenEmpty::Refuse if wish.tried.is_empty() => {
                    return Err(Refusal::NoInstance(backend.key.clone()));
                }
                WhenEmpty::Refuse => return Err(Refusal::Unreachable(backend.key.clone())),
            };
            // The route's limits count from the request's head, so they go on in the waiting room.
            let ends = Due::new(started, &backend.timeouts).first_byte.filter(|ends| *ends < due);
            match self.wait(&choice, wish, ends.unwrap_or(due)).await {
                Ok(Waited::Place(place)) => return Ok(waited(place)),
                Ok(Waited::Elsewhere(other)) => choice = other,
                Err(Refusal::Patience(_)) if ends.is_some() => return Err(Refusal::TimedOut),
                Err(refusal) => return Err(refusal),
            }
            if let Some(place) = self.try_place(&choice, &wish.tried) {
                return Ok(waited(place));
            }
        }
    }

    fn grasp(self: &Rc<Self>, choice: &Choice, tried: &[u64]) -> Option<Place> {
        let backend = &choice.backend;
        let rng = &mut self.rng.borrow_mut();
        let mut pick = |left_out: &[u64]| match choice.bond.key {
            Some(key) => pick::instance_of(backend, left_out, key),
            None => pick::instance(backend, left_out, rng),
        };
        let willing = self.past_outliers(tried, &mut pick);
        let (endpoint, inside) = willing.or_else(|| pick(tried))?;
        backend.load.in_flight.fetch_add(1, Relaxed);
        let proxy = Rc::clone(self);
        Some(Place { endpoint, choice: choice.clone(), waited: None, proxy, inside: Some(inside) })
    }

    /// Reports an instance that refused a connection, which is asked last for a while.
    pub fn refused_by(&self, place: &Place) {
        let endpoint = place.endpoint.id;
        let signal = Signal::Unreachable { backend: place.backend().key.clone(), endpoint };
        let _ = self.signals.send(signal); // the next request that meets it says it again
        self.outliers.borrow_mut().refused(endpoint, self.ring.now());
        self.counters.outliers.fetch_add(1, Relaxed);
    }

    /// Calls `with` with `tried` and those who are to be asked last.
    fn past_outliers<T>(&self, tried: &[u64], with: impl FnOnce(&[u64]) -> T) -> T {
        let outliers = self.outliers.borrow();
        if outliers.is_empty() {
            return with(tried);
        }
        let avoided: Vec<_> = outliers.avoided(self.ring.now()).chain(tried.iter().copied()).collect();
        drop(outliers);
        with(&avoided)
    }

    async fn wait(
        self: &Rc<Self>,
        choice: &Choice,
        wish: &mut Wish<'_>,
        due: Tick,
    ) -> Result<Waited, Refusal> {
        let mut guest = self.sit_down(&choice.backend, wish.bytes)?;
        let mut choice = choice.clone();
        loop {
            if guest.is_first() {
                match self.again(&wish.ask, &choice)? {
                    Again::Same(now) => choice = now,
                    Again::Other(other) => return Ok(Waited::Elsewhere(other)),
                }
                guest.backend = Arc::clone(&choice.backend);
                if guest.may_take()
                    && let Some(place) = self.grasp(&choice, &wish.tried)
                {
                    return Ok(Waited::Place(place)); // the guest gets up and the next one is called
                }
                if choice.backend.when_empty == WhenEmpty::Refuse {
                    return Ok(Waited::Elsewhere(choice));
                }
            }
            let backend = &choice.backend;
            let retry = self.retry_in(&guest, backend, wish).map(|wait| self.ring.now() + wait);
            if by(&self.ring, earlier(Some(due), retry), guest.called()).await.is_err()
                && self.ring.now() >= due
            {
                let key = backend.key.clone();
                let refused = !wish.tried.is_empty();
                return Err(if refused { Refusal::Unreachable(key) } else { Refusal::Patience(key) });
            }
            if retry.is_some_and(|at| self.ring.now() >= at) {
                wish.tried.clear();
            }
        }
    }

    fn sit_down(self: &Rc<Self>, backend: &Arc<Backend>, bytes: usize) -> Result<Guest, Refusal> {
        let line = backend.load.line();
        let front = line.front(self.number, &self.ring.remote());
        let seat = self.room.borrow_mut().seat(&backend.key, bytes, line.turn(), &front);
        let ticket = seat.map_err(|_| Refusal::RoomFull)?;
        backend.load.waiting.fetch_add(1, Relaxed);
        // Pairs with the fence in `Proxy::place_freed`; the guest looks for a place after this.
        fence(SeqCst);
        let (backend, load) = (Arc::clone(backend), Arc::clone(&backend.load));
        Ok(Guest { proxy: Rc::clone(self), backend, load, ticket: Some(ticket) })
    }

    /// The backend as the current table has it. When its route no longer leads there, the request is
    /// chosen a new one; while it does, it stays with its first choice (SRV-REQ-10).
    fn again(&self, ask: &Ask<'_>, choice: &Choice) -> Result<Again, Refusal> {
        let backend = &choice.backend;
        let same = self.with_table(|table| {
            let splits = table.route_for(ask)?.way(ask);
            let mut leading = splits.iter().filter(|split| split.backend.key == backend.key);
            // Several shares may lead there, each with changes of its own.
            let first = leading.clone().next()?;
            let split = leading.find(|split| split.edits == choice.edits).unwrap_or(first);
            Some(Choice { bond: choice.bond.clone(), ..Choice::from(split) })
        });
        match same {
            Some(now) if Arc::ptr_eq(&now.backend.load, &backend.load) => Ok(Again::Same(now)),
            // Another of the same name, after this one was deleted: it has a line of its own.
            Some(now) => Ok(Again::Other(now)),
            None => self.choose(ask).map(Again::Other),
        }
    }

    /// Asks for an instance if that has still to be done; how long until something is worth another try.
    fn retry_in(&self, guest: &Guest, backend: &Backend, wish: &Wish<'_>) -> Option<Duration> {
        if !guest.is_first() {
            return None;
        }
        let asked = {
            let mut room = self.room.borrow_mut();
            let asked = room.is_asked(&backend.key)
                || self.signals.send(Signal::Demand { backend: backend.key.clone() });
            room.set_asked(&backend.key, asked);
            asked
        };
        if !asked {
            Some(DEMAND_RETRY)
        } else if wish.tried.is_empty() {
            None
        } else {
            Some(UNREACHABLE_RETRY)
        }
    }
}

enum Waited {
    Place(Place),
    /// The request goes there now.
    Elsewhere(Choice),
}

enum Again {
    Same(Choice),
    Other(Choice),
}

/// Someone in the waiting room; gets up when dropped.
struct Guest {
    proxy: Rc<Proxy>,
    /// As the last look had it.
    backend: Arc<Backend>,
    load: Arc<BackendLoad>,
    /// `None` only while it is dropped.
    ticket: Option<Ticket>,
}

impl Guest {
    fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| self.proxy.room.borrow().is_first(ticket))
    }

    /// Whether a place may be taken by the first guest of this core: nobody on another one has waited much longer, or
    /// there are places for all.
    fn may_take(&self) -> bool {
        let Backend { key, load, concurrency_max, .. } = &*self.backend;
        let room = self.proxy.room.borrow();
        let is_next = || room.front(key).is_some_and(|front| load.line().lets(front));
        *concurrency_max == 0 || is_next() || pick::has_places(&self.backend, load.waiting.load(Relaxed))
    }

    /// Resolves when a place may be free.
    fn called(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| match &self.ticket {
            Some(ticket) if !self.proxy.room.borrow_mut().take_call(ticket, cx.waker()) => Poll::Pending,
            _ => Poll::Ready(()),
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.load.waiting.fetch_sub(1, Relaxed);
        let was_first = self.is_first();
        let next = self.ticket.take().and_then(|ticket| self.proxy.room.borrow_mut().leave(ticket));
        if let Some(waker) = next {
            waker.wake();
        }
        // One on another core may have waited longer than the next one here, who then takes nothing.
        fence(SeqCst); // pairs with that in `Proxy::place_freed`
        if was_first && self.backend.concurrency_max != 0 && pick::has_places(&self.backend, 1) {
            self.proxy.place_freed(&self.backend);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use ring::Ring;
    use ring::sim::{Weather, World};

    use super::*;
    use crate::http::limits::HttpLimits;
    use crate::line::AHEAD_MAX;
    use crate::proxy::Parts;
    use crate::proxy::waiting::RoomLimits;
    use crate::publish::Tables;
    use crate::signal::Signals;
    use crate::table::{Protocol, Route, Table, Timeouts};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A host whose instances take `places` requests at a time, each.
    fn publish(tables: &Tables, host: &str, places: u32, load: &Arc<BackendLoad>, instances: usize) {
        let endpoints = (0..instances).map(|_| Arc::new(Endpoint::new(([127, 0, 0, 1], 1).into())));
        let backend = Backend {
            key: "default/app".into(),
            endpoints: endpoints.collect(),
            concurrency_max: places,
            when_empty: WhenEmpty::Wait { patience: PATIENCE },
            protocol: Protocol::Http1,
            trust: None,
            timeouts: Timeouts::NONE,
            load: Arc::clone(load),
        };
        let mut table = Table::default();
        table.hosts.insert(host, Arc::new(Route::of(vec![Split::new(1, Arc::new(backend))])));
        tables.publish(table);
    }

    fn core(ring: &Ring, tables: &Arc<Tables>) -> Rc<Proxy> {
        Proxy::new(Parts {
            ring: ring.clone(),
            tables: Arc::clone(tables),
            signals: Signals::new(|| {}),
            counters: Arc::default(),
            limits: HttpLimits::default(),
            targets: Arc::default(),
            room: RoomLimits::default(),
            seed: 1,
        })
    }

    /// Takes a place, notes who has it, and keeps it for a while.
    async fn visit(core: Rc<Proxy>, name: u32, served: Rc<RefCell<Vec<u32>>>) {
        let mut wish = Wish { ask: Ask::ours("app", "/"), bytes: 1, tried: Vec::new() };
        let choice = core.route(&wish.ask).unwrap();
        let place = core.place(choice, &mut wish).await.unwrap();
        served.borrow_mut().push(name);
        core.ring.sleep(Duration::from_millis(1)).await;
        drop(place);
    }

    /// Runs `script` with two cores on one ring, whose bells are heard.
    fn on_two_cores<F: Future<Output = ()>>(places: u32, script: impl FnOnce([Rc<Proxy>; 2]) -> F) {
        let ring = World::new(1, Weather::calm()).ring();
        let tables = Tables::new(Table::default());
        let cores = [core(&ring, &tables), core(&ring, &tables)];
        publish(&tables, "app", places, &Arc::default(), 1);
        let (heard, bell) = (cores.clone(), ring.clone());
        ring.spawn(async move {
            loop {
                bell.woken().await;
                heard.iter().for_each(|core| core.look());
            }
        });
        ring.block_on(script(cores));
        ring.shutdown();
    }

    /// SRV-REQ-08: a core that had guests of its own once gave them every place that became free, so that requests
    /// which another core had taken in waited for as long as it had guests.
    #[test]
    fn guests_leave_as_they_came_give_or_take_a_few_whatever_core_they_wait_on() {
        for places in [1, 3] {
            on_two_cores(places, async move |cores| {
                let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
                for name in 0..40 {
                    let core = Rc::clone(&cores[usize::from(name % 2 == 1)]);
                    ring.spawn(visit(core, name, Rc::clone(&served)));
                    ring.sleep(Duration::from_micros(10)).await;
                }
                while served.borrow().len() < 40 {
                    ring.sleep(Duration::from_millis(1)).await;
                }
                let served = served.borrow();
                for (place, name) in served.iter().enumerate() {
                    let overtook = served[..place].iter().filter(|before| *before > name).count() as u64;
                    assert!(overtook <= AHEAD_MAX, "{places} at a time: {served:?}");
                }
            });
        }
    }

    /// A newcomer whose core has no guests is behind those of other cores.
    #[test]
    fn who_comes_again_and_again_does_not_keep_who_waits_on_another_core_waiting() {
        on_two_cores(1, async |cores| {
            let (served, ring) = (Rc::<RefCell<Vec<u32>>>::default(), cores[0].ring.clone());
            let (eager, own) = (Rc::clone(&cores[0]), Rc::clone(&served));
            ring.spawn(async move {
                for name in 0..50 {
                    visit(Rc::clone(&eager), name, Rc::clone(&own)).await;
                }
            });
            ring.sleep(Duration::from_micros(100)).await;
            visit(Rc::clone(&cores[1]), 1_000, Rc::clone(&served)).await;
            assert!(served.borrow().len() as u64 <= 2 + AHEAD_MAX, "{served:?}");
        });
    }

    /// SRV-REQ-08: a neighbour that is called by its short name is waited for like any other. Its request was once chosen
    /// anew without end, because only its first choice had completed the name, and its core did nothing else any more.
    #[test]
    fn a_neighbour_that_sleeps_is_waited_for_by_its_short_name() {
        let ring = World::new(1, Weather::calm()).ring();
        let (tables, load) = (Tables::new(Table::default()), Arc::<BackendLoad>::default());
        let core = core(&ring, &tables);
        publish(&tables, "app.ns.svc", 1, &load, 0);
        let (known, caller) = (Arc::clone(&load), Rc::clone(&core));
        ring.spawn(async move {
            while known.waiting.load(Relaxed) == 0 {
                caller.ring.sleep(Duration::from_millis(1)).await;
            }
            publish(&tables, "app.ns.svc", 1, &known, 1);
            caller.look();
        });
        ring.block_on(async {
            let ask = Ask { domain: Some("ns.svc"), ..Ask::ours("app", "/") };
            let choice = core.route(&ask).unwrap();
            let mut wish = Wish { ask, bytes: 1, tried: Vec::new() };
            assert!(core.place(choice, &mut wish).await.is_ok());
        });
        assert_eq!(load.demand(), 0);
        ring.shutdown();
    }
}

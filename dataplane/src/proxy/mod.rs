//! The proxy of one core: from a client's request to an instance's answer.
//!
//! `connection` takes a client's requests one after the other; `exchange` carries one of them:
//! [`pick`] a backend and an instance, or wait for one ([`waiting`], `place`), send, answer, streaming
//! both ways. Reasons for an answer of our own are in [`refusal`](Refusal).

mod activity;
mod afresh;
mod answering;
mod beside;
mod bond;
mod connection;
mod exchange;
mod link;
pub mod mirror;
mod note;
pub mod outliers;
pub mod pick;
mod place;
mod refusal;
mod sending;
mod sheet;
mod streams;
mod timing;
mod tunnel;
pub mod waiting;
mod watch;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use fastrand::Rng;
use ring::{Ring, Tick};

pub use connection::{serve, serve_inside};
pub use place::{Choice, Place, Wish};
pub use refusal::Refusal;

use crate::access::{AccessLog, RequestLog};
use crate::counters::CoreCounters;
use crate::http::client::Client;
use crate::http::codec::{Name, Probe};
use crate::http::limits::HttpLimits;
use crate::http::roster::Roster;
use crate::http::spare::Spare;
use crate::inquiry::Question;
use crate::publish::{Reader, Tables};
use crate::signal::Signals;
use crate::spans;
use crate::table::{Ask, Backend, HTTPS_PORT, Route, Table, WhenEmpty, host_name};
use crate::target_policy::TargetPolicy;
use note::Note;
use outliers::Outliers;
use sheet::Sheets;
use waiting::{RoomLimits, WaitingRoom};

/// What every request on a core shares. Belongs to the core's thread.
pub struct Proxy {
    pub ring: Ring,
    pub client: Client,
    /// ... to instances that speak HTTP/2.
    pub h2_client: crate::h2::client::Client,
    /// Which addresses users may have requests sent to.
    pub targets: Arc<TargetPolicy>,
    pub limits: Rc<HttpLimits>,
    pub roster: Rc<Roster>,
    pub counters: Arc<CoreCounters>,
    /// Unset when nobody wants it.
    pub access: OnceCell<AccessLog>,
    /// The lines that requests are to have beside those, as the table has them.
    request_log: RefCell<Option<Arc<RequestLog>>>,
    /// Unset when nobody collects spans.
    pub spans: OnceCell<spans::Queue>,
    /// Clients are told what a request waited for (`Server-Timing`).
    pub tells_timing: Cell<bool>,
    sheets: Sheets,
    signals: Signals,
    reader: RefCell<Reader>,
    /// This core among those that read the tables.
    number: usize,
    room: RefCell<WaitingRoom>,
    /// The table whose arrival was last told to the waiting room.
    version_seen: Cell<u64>,
    rng: RefCell<Rng>,
    outliers: RefCell<Outliers>,
    /// Copies under way.
    mirrored: Cell<usize>,
    /// For connections with a request, and for deliveries.
    pub(crate) spare: Spare,
    /// When the log last had it that an instance is not trusted.
    distrust_told: Cell<Option<Tick>>,
    /// ... and that the target policy refused one.
    refusal_told: Cell<Option<Tick>>,
}

/// What a proxy is made from.
pub struct Parts {
    pub ring: Ring,
    pub tables: Arc<Tables>,
    pub signals: Signals,
    pub counters: Arc<CoreCounters>,
    pub limits: HttpLimits,
    pub targets: Arc<TargetPolicy>,
    pub room: RoomLimits,
    /// Where this core's chance comes from: the same seed picks the same way.
    pub seed: u64,
}

impl Proxy {
    #[must_use]
    pub fn new(parts: Parts) -> Rc<Self> {
        let number = parts.tables.add_bell(parts.ring.remote());
        Rc::new(Self {
            client: Client::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
            h2_client: crate::h2::client::Client::new(&parts.ring, &parts.limits, Arc::clone(&parts.targets)),
            targets: parts.targets,
            ring: parts.ring,
            limits: Rc::new(parts.limits),
            roster: Rc::default(),
            counters: parts.counters,
            access: OnceCell::new(),
            request_log: RefCell::new(parts.tables.load().request_log.clone()),
            tells_timing: Cell::new(true),
            sheets: Sheets::default(),
            signals: parts.signals,
            reader: RefCell::new(parts.tables.reader()),
            number,
            room: RefCell::new(WaitingRoom::new(parts.room)),
            outliers: RefCell::default(),
            distrust_told: Cell::default(),
            refusal_told: Cell::default(),
            spans: OnceCell::new(),
            spare: Spare::default(),
            version_seen: Cell::new(0),
            mirrored: Cell::new(0),
            rng: RefCell::new(Rng::with_seed(parts.seed)),
        })
    }

    /// Reads the current table; `read` must not call back into the proxy.
    pub fn with_table<T>(&self, read: impl FnOnce(&Table) -> T) -> T {
        read(self.reader.borrow_mut().load())
    }

    /// Chooses a backend for one request, and counts the request.
    pub fn route(&self, ask: &Ask<'_>) -> Result<Choice, Refusal> {
        self.choose(ask).and_then(|choice| set_out(ask, choice))
    }

    /// The same, and the note knows where it is to go and by which tag, even if it does not get there.
    fn route_noted(&self, ask: &Ask<'_>, note: &mut Note) -> Result<Choice, Refusal> {
        let choice = self.choose(ask)?;
        note.aim(&choice.backend, choice.tag(ask));
        set_out(ask, choice)
    }

    fn choose(&self, ask: &Ask<'_>) -> Result<Choice, Refusal> {
        self.with_table(|table| {
            let route = table.route_for(ask).ok_or_else(|| Refusal::UnknownHost(name(ask.host)))?;
            let splits = route.way(ask);
            if splits.is_empty() {
                return Err(Refusal::UnknownPath(name(ask.host)));
            }
            if let Some(answer) = probed(route, ask) {
                return Err(answer);
            }
            if ask.plain
                && !ask.inside
                && let Some(port) = route.redirect(splits)
                && ask.path != "*"
                // Looked up by who is sent on, or would be: what is known for each host when a table is made would have to be
                // made anew for as many hosts as one certificate is for.
                && table.certificates.find(Some(host_name(ask.host))).is_some()
            {
                return Err(only_by_https(ask, port));
            }
            let rng = &mut self.rng.borrow_mut();
            let bond = bond::bond(route, splits, ask, rng);
            let split = match bond.key {
                Some(key) => pick::split_of(splits, key),
                None => pick::split(splits, rng),
            };
            let choice = split.map(|split| Choice { bond, ..Choice::from(split) });
            choice.ok_or_else(|| Refusal::NoTraffic(name(ask.host)))
        })
    }

    /// Tells of the connections that are open now.
    pub(crate) fn tell(&self, question: Question) {
        question.answer(|most| self.sheets.tell(self.ring.now(), most));
    }

    /// Somebody rang: a new table, or a place that another core gave back. Everybody who waits first
    /// in a queue looks again.
    pub fn look(&self) {
        let version = self.with_table(|table| table.version);
        if self.version_seen.replace(version) != version {
            *self.request_log.borrow_mut() = self.with_table(|table| table.request_log.clone());
            self.room.borrow_mut().ask_again();
        }
        let called = self.room.borrow_mut().call_all();
        for waker in called {
            waker.wake();
        }
    }

    /// There may be a place in an instance of `backend`: calls whose turn it is.
    fn place_freed(&self, backend: &Backend) {
        // Pairs with the fence of a guest that sits down: either it sees the place, or we see it wait.
        fence(SeqCst);
        if backend.load.waiting.load(Relaxed) == 0 {
            return;
        }
        let line = backend.load.line();
        let is_ours = self.room.borrow().front(&backend.key).is_some_and(|front| line.lets(front));
        if !is_ours {
            if let Some(first) = line.first() {
                first.call();
            }
            return;
        }
        let called = self.room.borrow_mut().call(&backend.key);
        if let Some(waker) = called {
            waker.wake();
        }
    }
}

/// Where a client without TLS has to come again with it (X-KI-13).
fn only_by_https(ask: &Ask<'_>, port: u16) -> Refusal {
    let (host, path) = (host_name(ask.host), ask.path);
    let location = match port {
        HTTPS_PORT => format!("https://{host}{path}"),
        port => format!("https://{host}:{port}{path}"),
    };
    Refusal::HttpsOnly { location: location.into() }
}

/// What a probe is told, if this is one: the hash it brings, or `override` for that of the route
/// (X-KI-16).
fn probed(route: &Route, ask: &Ask<'_>) -> Option<Refusal> {
    let request = ask.request.filter(|request| request.head.probe == Probe::Route)?;
    Some(match request.values(Name::NetworkHash).next() {
        None => Refusal::ProbeWithoutHash,
        Some(b"override") => Refusal::Probed { hash: route.hash.as_deref().unwrap_or_default().into() },
        Some(own) => Refusal::Probed { hash: String::from_utf8_lossy(own).into() },
    })
}

/// Counts a request that is on its way; a probe is not.
fn set_out(ask: &Ask<'_>, choice: Choice) -> Result<Choice, Refusal> {
    if asks_for_health(ask) && matches!(choice.backend.when_empty, WhenEmpty::Wait { .. }) {
        return Err(Refusal::Well);
    }
    choice.backend.load.requests.fetch_add(1, Relaxed);
    Ok(choice)
}

/// Whether whoever stands before the instances answers in their place: a probe wakes nobody (X-QP-06). To backends
/// that are not ours it goes like any other request.
fn asks_for_health(ask: &Ask<'_>) -> bool {
    ask.request.is_some_and(|request| request.head.probe == Probe::Health)
}

/// A host for a message, of bounded length.
fn name(host: &str) -> Box<str> {
    host_name(host).chars().take(255).collect::<String>().into()
}

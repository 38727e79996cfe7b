//! `sluicegate run`: the composition root. Puts the rooms together, says `ready`, and drains.

mod access;
mod api;
mod arrival;
mod certificates;
mod cluster;
mod control;
mod control_config;
mod cores;
mod descriptors;
mod doors;
mod events_tls;
pub(super) mod folder;
mod hosts;
mod inside;
mod instances;
pub(super) mod log_names;
mod logging;
mod logs;
mod otlp;
mod outward;
mod preflight;
mod routes;
mod signals;
mod sockets;
mod takeover;
mod targets;
mod watchdog;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::Duration;

use ::control::expiry::Expiries;
use ::control::publish::Publisher;
use ::control::runtime::end_leftovers;
use anyhow::{Context, Result, anyhow};
use dataplane::core::{CoreLimits, Stop};
use dataplane::publish::Tables;
use dataplane::signal::Signals;
use dataplane::spans::Queue;
use dataplane::table::Table;
use dataplane::target_policy::TargetPolicy;
use dataplane::tls::{Certificates, Trust};
use tokio::sync::{Notify, oneshot};

use crate::admin::Health;
use crate::config::{Config, ServerTiming, Settings};
use arrival::Arrival;
use control::{AdminPort, Control, Parts, Reins};
use control_config::control_config;
use cores::{Cores, Shared};
use doors::Doors;
use events_tls::EventsTls;
use folder::Folder;
use inside::Inside;
use log_names::LogNames;
use logs::Logs;
use otlp::Exporter;
use preflight::Preflight;
use sockets::{Kept, Sockets};
use takeover::{Door, Estate, Request, Successor};

/// How long a start is silent while it waits.
const START_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Serves until told to stop; the answer is the process's exit status.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let (config, log) = match Config::decide(settings).and_then(|config| Ok((config, logging::start()?))) {
        Ok(both) => both,
        Err(why) => {
            complain!("error: {why}");
            return super::USAGE.into();
        }
    };
    for warning in &config.deprecations {
        tracing::warn!("{warning}");
    }
    dataplane::heap::set_bounds();
    let outcome = serve(config);
    if let Err(why) = &outcome {
        log.say(format!("error: {why:#}\n"));
    }
    log.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What the main thread waits for.
enum Event {
    /// SIGTERM or SIGINT.
    Told,
    /// SIGHUP.
    Reload,
    CoreEnded,
    /// Another process wants to take over.
    Asked(Request),
    /// It serves. To be kept until the end, which it waits for.
    Replaced(Successor),
    /// It had everything, and does not serve.
    Orphaned(anyhow::Error),
    /// The first table is there, or cannot be made.
    Synced(Result<()>),
}

fn serve(config: Config) -> Result<()> {
    let (say, hear) = mpsc::channel();
    let arrived = Arc::new(AtomicBool::new(false));
    signals::listen(say.clone(), Arc::clone(&arrived))?;
    let expiries = Arc::<Expiries>::default();
    let Preflight { certificates, trust, given, access, access_log: hand, api_socket } =
        preflight::run(&config, &expiries)?;
    let Arrival { folder, logs, sockets, predecessor } = arrival::arrive(&config, api_socket)?;
    arrived.store(true, Relaxed);
    let ready = sockets.ready_line()?;
    let events_tls = EventsTls::open(&config, &sockets)?;

    let tables = Tables::new(Table::default());
    let log_names = LogNames::new(&config.data, &tables);
    let publisher = publisher(&config, &tables, (certificates, trust), log_names.clone())?;
    let Inside { doors: inside, gateway } = inside::open(&config, &tables);
    let targets = targets::policy(&config, &sockets, gateway.as_ref().ok())?;
    let health = Arc::new(Health { targets, expiries, ..Health::default() });
    let ways = Arc::default();
    let (spans, exporter) = otlp::start(&config, &health)?.unzip();
    let (bell, signals) = signals();
    let (reins, steered) = control::reins();
    let shared = Shared::new(&tables, &signals, predecessor.is_some());
    let mut estate = estate(&config, (sockets.keep()?, folder), &shared, reins, &health);
    let Control { synced, admin, thread: control } = control::start(Parts {
        control: control_config(&config, &sockets, events_tls.as_ref(), &health, &ways)?,
        config: config.clone(),
        publisher: Arc::clone(&publisher),
        signals,
        bell,
        api: sockets.api,
        api_socket: sockets.api_socket,
        given: given.clone(),
        admin: sockets.admin,
        health: Arc::clone(&health),
        steered,
        events_tls: events_tls.clone(),
        gateway,
        beside: predecessor.is_some(),
        log_names,
    })?;
    if !await_objects(synced, (&hear, &say))? {
        estate.reins.stop.send_replace(true);
        return control.join().map_err(|_| panicked())?;
    }
    let Sockets { http, https, private, private_https, events, events_https, .. } = sockets;
    let doors = Doors { http, https, private, private_https, inside, events, events_https, events_tls };
    let targets = Arc::clone(&health.targets);
    let cores = start_cores(&config, &shared, doors, logs.finish()?, (access, spans, targets), say.clone())?;
    watchdog::start(&config, &cores, &tables, &health)?;
    drop((ways.set(cores.ways()), admin.send(Arc::new(cores.admin(tables, &health)))));
    open_door(&config, say.clone());
    announce(&ready)?;
    if let Some(predecessor) = predecessor {
        predecessor.dismiss(clear_up(config.data.clone(), Arc::clone(&shared.stop)))?;
    }

    let event = live((&config, &publisher), &mut estate, (&hand, &given), (&hear, &say))?;
    health.draining.store(true, Relaxed);
    if matches!(event, Event::Replaced(_)) {
        estate.reins.admin_port.send_replace(AdminPort::Closed);
    }
    let Estate { sockets, folder, reins, .. } = estate;
    drop(sockets); // or else the kernel would go on taking connections in
    let (outcome, successor) = end(event, &shared, hear, cores, (hand, exporter));
    reins.stop.send_replace(true);
    let _told = control.join().map_err(|_| panicked())?;
    drop((folder, successor));
    outcome
}

fn estate(
    config: &Config,
    (sockets, folder): (Kept, Folder),
    shared: &Shared,
    reins: Reins,
    health: &Arc<Health>,
) -> Estate {
    Estate {
        sockets,
        folder: Some(folder),
        cores: config.workers,
        stop: Arc::clone(&shared.stop),
        tables: Arc::clone(&shared.tables),
        successors: 0,
        reins,
        health: Arc::clone(health),
    }
}

fn panicked() -> anyhow::Error {
    anyhow!("the control thread panicked, see its message above")
}

/// Waits for the first table. `false`: the process is told to end before there is one. An API that does not answer must
/// not keep it from that.
fn await_objects(
    synced: oneshot::Receiver<Result<()>>,
    (hear, say): (&mpsc::Receiver<Event>, &mpsc::Sender<Event>),
) -> Result<bool> {
    let tell = say.clone();
    let wait = move || {
        let outcome = synced.blocking_recv().context("the control thread ended at its start").flatten();
        drop(tell.send(Event::Synced(outcome))); // nobody hears it when this process is ending anyway
    };
    std::thread::Builder::new().name("start".to_owned()).spawn(wait).context("no thread")?;
    let mut reloads = false;
    loop {
        match hear.recv_timeout(START_TOLD_EVERY) {
            Ok(Event::Synced(outcome)) => {
                if reloads {
                    drop(say.send(Event::Reload)); // to ourselves: what was read before the signal may be out of date
                }
                return outcome.map(|()| true);
            }
            Ok(Event::Told) => return Ok(false),
            Ok(event) => reloads |= matches!(event, Event::Reload),
            Err(_) => {
                tracing::info!("still waiting for the objects; nothing is served before they are there")
            }
        }
    }
}

/// Until there is a reason to leave.
fn live(
    (config, publisher): (&Config, &Publisher),
    estate: &mut Estate,
    (access, given): (&access::Hand, &api::Given),
    (hear, say): (&mpsc::Receiver<Event>, &mpsc::Sender<Event>),
) -> Result<Event> {
    loop {
        match hear.recv().context("nobody is left to tell anything")? {
            Event::Reload => {
                certificates::reload(config, publisher, &estate.health.expiries);
                access.reopen();
                given.reopen();
            }
            Event::Asked(request) => match estate.hand_over(request) {
                Ok(successor) => await_successor(successor, say.clone())?,
                Err(why) => estate.keep(&why, || open_door(config, say.clone())),
            },
            Event::Orphaned(why) => estate.outlive(&why, || open_door(config, say.clone())),
            event => return Ok(event),
        }
    }
}

fn await_successor(successor: Successor, say: mpsc::Sender<Event>) -> Result<()> {
    let wait = move || {
        let event = match successor.wait_until_up() {
            Ok(()) => Event::Replaced(successor),
            Err(why) => Event::Orphaned(why),
        };
        drop(say.send(event)); // nobody hears it when this process is ending anyway
    };
    std::thread::Builder::new().name("successor".to_owned()).spawn(wait).context("no thread").map(drop)
}

/// Ends the cores, and what only they need. A successor is to be kept for as long as this process has anything.
fn end(
    event: Event,
    shared: &Shared,
    hear: mpsc::Receiver<Event>,
    cores: Cores,
    (access, exporter): (access::Hand, Option<Exporter>),
) -> (Result<()>, Option<Successor>) {
    tracing::info!("draining: requests in flight end, nothing new is taken in");
    let by_itself = matches!(event, Event::CoreEnded);
    let successor = match event {
        Event::Replaced(successor) => {
            shared.stop.say_gently(&shared.tables);
            let (stop, tables) = (Arc::clone(&shared.stop), Arc::clone(&shared.tables));
            std::thread::spawn(move || {
                if hear.iter().any(|event| matches!(event, Event::Told)) {
                    stop.say(&tables); // somebody is in a hurry
                }
            });
            Some(successor)
        }
        _ => {
            shared.stop.say(&shared.tables);
            None
        }
    };
    let mut outcome = cores.join();
    if by_itself && outcome.is_ok() {
        outcome = Err(anyhow!("a core ended by itself"));
    }
    access.finish();
    if let Some(exporter) = exporter {
        exporter.finish();
    }
    (outcome, successor)
}

/// Lets successors knock. Without that only `--hot-restart` does not work.
fn open_door(config: &Config, say: mpsc::Sender<Event>) {
    let opened = Door::open(&config.data).and_then(|door| {
        door.watch(move |request| drop(say.send(Event::Asked(request)))) // nobody hears it when all is over
    });
    if let Err(why) = opened {
        tracing::warn!(why = format!("{why:#}"), "this process cannot be taken over");
    }
}

/// What is due when the process before this one has ended.
fn clear_up(data: PathBuf, stop: Arc<Stop>) -> impl FnOnce() + Send + 'static {
    move || {
        stop.set_beside(false);
        match end_leftovers(&data) {
            Ok(()) => tracing::info!("the process that was replaced has ended"),
            Err(why) => tracing::warn!(%why, "instances of the process before cannot be looked for"),
        }
    }
}

fn start_cores(
    config: &Config,
    shared: &Shared,
    doors: Doors,
    logs: Vec<Logs>,
    (access, spans, targets): (dataplane::access::Setup, Option<Queue>, Arc<TargetPolicy>),
    say: mpsc::Sender<Event>,
) -> Result<Cores> {
    let places = doors.places(&shared.tables, config.tls_min_version, logs)?;
    let tells_timing = config.server_timing == ServerTiming::Cold;
    let http = config.http_limits;
    let stall_timeout = config.stall_timeout();
    let mut limits = CoreLimits {
        http,
        access: Some(access),
        tells_timing,
        spans,
        stall_timeout,
        targets,
        ..CoreLimits::default()
    };
    limits.ring.sockets_max = descriptors::sockets_max();
    Cores::start(shared, &limits, places.into_iter(), move || {
        drop(say.send(Event::CoreEnded)); // nobody hears it when all is over
    })
}

fn signals() -> (Arc<Notify>, Signals) {
    let bell = Arc::new(Notify::new());
    let rung = Arc::clone(&bell);
    (bell, Signals::new(move || rung.notify_one()))
}

fn publisher(
    config: &Config,
    tables: &Arc<Tables>,
    (certificates, trust): (Certificates, Vec<Option<Arc<Trust>>>),
    log_names: LogNames,
) -> Result<Arc<Publisher>> {
    let tables = Arc::clone(tables);
    let publisher = Publisher::new(Arc::new(move |table| {
        tables.publish(table);
        log_names.changed();
    }));
    publisher.set_certificates(certificates);
    let publisher = Arc::new(publisher);
    routes::publish(&config.routes, trust, &publisher)?;
    Ok(publisher)
}

/// The line that tells a supervisor, a script or a test that everything listens, and where.
fn announce(ready: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}").and_then(|()| out.flush()).context("stdout is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGHUP is for what was read at the start too, which may take long.
    #[test]
    fn a_reload_that_comes_during_the_start_is_carried_out_after_it() {
        let (say, hear) = mpsc::channel();
        let (synced, waits) = oneshot::channel();
        say.send(Event::Reload).unwrap();
        synced.send(Ok(())).unwrap();
        assert!(await_objects(waits, (&hear, &say)).unwrap());
        assert!(matches!(hear.try_recv(), Ok(Event::Reload)));
    }
}

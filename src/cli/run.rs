//! `sluicegate run`: the composition root. Puts the rooms together, says `ready`, and drains.

mod access;
mod api;
mod certificates;
mod control;
mod cores;
mod doors;
mod events_tls;
pub(super) mod folder;
mod inside;
mod instances;
mod logging;
mod logs;
mod otlp;
mod outward;
mod sockets;
mod takeover;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::control::controllers::ControlConfig;
use ::control::controllers::duty;
use ::control::controllers::ingress::Listeners;
use ::control::publish::Publisher;
use ::control::runtime::end_leftovers;
use anyhow::{Context, Result, anyhow, bail};
use dataplane::core::{CoreLimits, Stop};
use dataplane::events::relay::Ways;
use dataplane::publish::Tables;
use dataplane::signal::Signals;
use dataplane::spans::Queue;
use dataplane::table::Table;
use dataplane::tls::Certificates;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use tokio::sync::{Notify, oneshot};

use crate::admin::Health;
use crate::config::{Config, ServerTiming, Settings};
use control::{Control, Parts, Reins};
use cores::{Cores, Shared};
use doors::Doors;
use events_tls::EventsTls;
use folder::Folder;
use inside::Inside;
use logs::{Logs, Opening};
use otlp::Exporter;
use sockets::{Kept, Sockets};
use takeover::{Door, Estate, Predecessor, Request, Successor};

/// How long a start is silent while it waits.
const START_TOLD_EVERY: Duration = Duration::from_secs(10);

/// Descriptors without which nothing starts: listeners, rings, logs and objects, and a few for connections.
const DESCRIPTORS_MIN: u64 = 48;
const DESCRIPTORS_PER_CORE: u64 = 16;

/// As shells have it: ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// Serves until told to stop; the answer is the process's exit status.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let (config, log) = match Config::decide(settings).and_then(|config| Ok((config, logging::start()?))) {
        Ok(both) => both,
        Err(why) => {
            eprintln!("error: {why}");
            return super::USAGE.into();
        }
    };
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
    dataplane::core::check_kernel()?;
    let arrived = Arc::new(AtomicBool::new(false));
    listen_to_signals(say.clone(), Arc::clone(&arrived))?;
    // What is wrong with the files must show before another process gives way.
    let (certificates, given) = (certificates::load(&config.certificates)?, api::Given::read(&config)?);
    let (access, hand) = access::start(&config)?;
    let Arrival { folder, logs, sockets, predecessor } = arrive(&config)?;
    arrived.store(true, Relaxed);
    let ready = sockets.ready_line()?;
    let events_tls = EventsTls::open(&config, &sockets)?;

    let tables = Tables::new(Table::default());
    let publisher = publisher(&config, &tables, certificates)?;
    let Inside { doors: inside, gateway } = inside::open(&config, &tables);
    let (health, ways) = (Arc::new(Health::default()), Arc::default());
    let (spans, exporter) = otlp::start(&config, &health)?.unzip();
    let (bell, signals) = signals();
    let (reins, steered) = control::reins();
    let shared = Shared::new(&tables, &signals, predecessor.is_some());
    let mut estate = estate(&config, (sockets.keep()?, folder), &shared, reins, &health);
    let first_instance = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64);
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
        first_instance,
        gateway,
        beside: predecessor.is_some(),
    })?;
    if !await_objects(synced, (&hear, &say))? {
        estate.reins.stop.send_replace(true);
        return control.join().map_err(|_| panicked())?;
    }
    let Sockets { http, https, private, private_https, events, events_https, .. } = sockets;
    let doors = Doors { http, https, private, private_https, inside, events, events_https, events_tls };
    let cores = start_cores(&config, &shared, doors, logs.finish()?, (access, spans), say.clone())?;
    drop((ways.set(cores.ways()), admin.send(Arc::new(cores.admin(tables, &health)))));
    open_door(&config, say.clone());
    announce(&ready)?;
    if let Some(predecessor) = predecessor {
        predecessor.dismiss(clear_up(config.data.clone(), first_instance, Arc::clone(&shared.stop)))?;
    }

    let event = live((&config, &publisher), &mut estate, (&hand, &given), (&hear, &say))?;
    health.draining.store(true, Relaxed);
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

/// How this process came to its folder and its sockets.
struct Arrival {
    folder: Folder,
    logs: Opening,
    sockets: Sockets,
    /// It serves requests until this one does.
    predecessor: Option<Predecessor>,
}

fn arrive(config: &Config) -> Result<Arrival> {
    raise_descriptor_limit(config.workers)?;
    if config.takeover
        && let Some((predecessor, inherited)) = takeover::begin(config)?
    {
        let sockets = Sockets::inherit(inherited, config)?;
        predecessor.wait_for_folder()?;
        let (folder, logs) = enter(config)?;
        return Ok(Arrival { folder, logs, sockets, predecessor: Some(predecessor) });
    }
    let (folder, logs) = enter(config)?;
    Ok(Arrival { folder, logs, sockets: Sockets::bind(config)?, predecessor: None })
}

/// Takes the data folder, and begins to open what waits for the disk longest.
fn enter(config: &Config) -> Result<(Folder, Opening)> {
    let folder = folder::take(&config.data)?;
    Ok((folder, Opening::begin(config)?))
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
                reload(config, publisher);
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

/// Lets successors knock. Without that only `--takeover` does not work.
fn open_door(config: &Config, say: mpsc::Sender<Event>) {
    let opened = Door::open(&config.data).and_then(|door| {
        door.watch(move |request| drop(say.send(Event::Asked(request)))) // nobody hears it when all is over
    });
    if let Err(why) = opened {
        tracing::warn!(why = format!("{why:#}"), "this process cannot be taken over");
    }
}

/// What is due when the process before this one has ended.
fn clear_up(data: PathBuf, first_instance: u64, stop: Arc<Stop>) -> impl FnOnce() + Send + 'static {
    move || {
        stop.set_beside(false);
        match end_leftovers(&data, first_instance) {
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
    (access, spans): (dataplane::access::Setup, Option<Queue>),
    say: mpsc::Sender<Event>,
) -> Result<Cores> {
    let places = doors.places(&shared.tables, config.tls_min_version, logs)?;
    let tells_timing = config.server_timing == ServerTiming::Cold;
    let limits = CoreLimits { access: Some(access), tells_timing, spans, ..CoreLimits::default() };
    Cores::start(shared, &limits, places.into_iter(), move || {
        drop(say.send(Event::CoreEnded)); // nobody hears it when all is over
    })
}

fn signals() -> (Arc<Notify>, Signals) {
    let bell = Arc::new(Notify::new());
    let rung = Arc::clone(&bell);
    (bell, Signals::new(move || rung.notify_one()))
}

fn publisher(config: &Config, tables: &Arc<Tables>, certificates: Certificates) -> Result<Arc<Publisher>> {
    let tables = Arc::clone(tables);
    let publisher = Publisher::new(Arc::new(move |table| {
        tables.publish(table);
    }));
    for rule in &config.routes {
        let trust = certificates::trust(rule)?;
        publisher.set_static_route(&rule.host, rule.protocol, trust, &rule.addresses);
    }
    publisher.set_certificates(certificates);
    Ok(Arc::new(publisher))
}

/// Reads the certificates again. If one of them is no good all stay as they are: half a reload is worse
/// than none.
fn reload(config: &Config, publisher: &Publisher) {
    match certificates::load(&config.certificates) {
        Ok(certificates) => {
            let count = certificates.len();
            publisher.set_certificates(certificates);
            tracing::info!(count, "certificates read again");
        }
        Err(why) => tracing::error!(why = format!("{why:#}"), "the certificates stay as they were"),
    }
}

fn control_config(
    config: &Config,
    sockets: &Sockets,
    events_tls: Option<&EventsTls>,
    health: &Health,
    ways: &Arc<OnceLock<Ways>>,
) -> Result<ControlConfig> {
    let events = outward::met_at(sockets.events[0].local_addr()?);
    Ok(ControlConfig {
        domain: config.domain.clone(),
        http_port: sockets.http[0].local_addr()?.port(),
        listeners: Listeners {
            public: Some(sockets.http[0].local_addr()?),
            private: sockets.private.first().map(std::net::TcpListener::local_addr).transpose()?,
            private_https: sockets
                .private_https
                .first()
                .map(std::net::TcpListener::local_addr)
                .transpose()?,
            https: sockets.https.first().map(std::net::TcpListener::local_addr).transpose()?,
        },
        events_url_base: format!("http://{events}"),
        events_tls: events_tls.map(EventsTls::told),
        shows_pods: config.kubeconfig.is_none(),
        holder: config.kubeconfig.is_some().then(duty::holder),
        images: config.images.iter().map(|rule| (rule.image.clone(), rule.command.clone())).collect(),
        instances: instances::rules(config),
        host_devices: config.host_devices,
        quotas: config.quotas.clone(),
        store: Weak::new(), // it is opened later
        pings: Arc::clone(&health.pings),
        ways: Arc::clone(ways),
    })
}

/// A proxied request holds a descriptor on either side; the usual soft limit of 1,024 is for programs that
/// use select(2), and the hard one is what the administrator allows.
fn raise_descriptor_limit(workers: usize) -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(why) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%why, "the limit of open files stays as it is");
    }
    let needed = DESCRIPTORS_MIN + DESCRIPTORS_PER_CORE * workers as u64;
    match getrlimit(Resource::Nofile).current {
        Some(allowed) if allowed < needed => {
            bail!(
                "this process may open {allowed} files, and needs {needed} to start on {workers} cores: raise the limit \
                 (ulimit -n, LimitNOFILE=) or start fewer --workers"
            )
        }
        _ => Ok(()),
    }
}

/// The line that tells a supervisor, a script or a test that everything listens, and where.
fn announce(ready: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}").and_then(|()| out.flush()).context("stdout is closed")
}

/// SIGHUP reloads. The first SIGTERM or SIGINT drains; a second SIGINT, or any signal after SIGTERM's drain began, ends
/// the process at once. Instances die with their parent. What has not arrived yet, and may be waiting for another process, has
/// nothing to drain.
fn listen_to_signals(say: mpsc::Sender<Event>, arrived: Arc<AtomicBool>) -> Result<()> {
    // A file that may not grow (`ulimit -f`) is an error of its write, not the end of the process; and whoever sends what other
    // servers open their logs anew at does not mean the end either.
    for signal in [SIGXFSZ, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default()).context("no signal handler")?;
    }
    let mut signals =
        signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).context("no signal handler")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut told = false;
            for signal in signals.forever() {
                if signal == SIGHUP {
                    drop(say.send(Event::Reload));
                    continue;
                }
                if signal == SIGINT && (told || !arrived.load(Relaxed)) {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                if !arrived.load(Relaxed) {
                    std::process::exit(0);
                }
                told = true;
                drop(say.send(Event::Told)); // a receiver that is gone is ending already
            }
        })
        .context("no thread for signals")?;
    Ok(())
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

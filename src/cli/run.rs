//! `sluicegate run`: the composition root. Puts the rooms together, says `ready`, and drains.

mod certificates;
mod control;
mod cores;
pub(super) mod folder;
mod logging;
mod logs;
mod sockets;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

use ::control::controllers::ControlConfig;
use ::control::controllers::ingress::Listeners;
use ::control::publish::Publisher;
use anyhow::{Context, Result, bail};
use dataplane::core::{Https, Stop};
use dataplane::publish::Tables;
use dataplane::signal::Signals;
use dataplane::table::Table;
use dataplane::tls::Terms;
use rustix::process::{Resource, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use tokio::sync::{Notify, watch};

use crate::admin::{Admin, Health};
use crate::config::{Config, Settings};
use control::{Control, Parts};
use cores::{Cores, Place, Shared};
use sockets::Sockets;

/// As shells have it: ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// Serves until told to stop; the answer is the process's exit status.
pub(crate) fn run(settings: Settings) -> ExitCode {
    let config = match Config::decide(settings).and_then(|config| logging::start().map(|()| config)) {
        Ok(config) => config,
        Err(why) => {
            eprintln!("error: {why}");
            return super::USAGE.into();
        }
    };
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the main thread waits for.
enum Event {
    /// SIGTERM or SIGINT.
    Told,
    /// SIGHUP.
    Reload,
    CoreEnded,
}

fn serve(config: Config) -> Result<()> {
    let (say, hear) = mpsc::channel();
    dataplane::core::check_kernel()?;
    listen_to_signals(say.clone())?;
    let folder = folder::take(&config.data)?;
    raise_descriptor_limit();
    let sockets = Sockets::bind(&config)?;
    let ready = sockets.ready_line()?;

    let tables = Tables::new(Table::default());
    let publisher = publisher(&config, &tables);
    publisher.set_certificates(certificates::load(&config.certificates)?);
    let bell = Arc::new(Notify::new());
    let signals = Signals::new({
        let bell = Arc::clone(&bell);
        move || bell.notify_one()
    });
    let health = Arc::new(Health::default());
    let (stop_control, stop) = watch::channel(false);
    let control = control::start(Parts {
        control: control_config(&config, &sockets)?,
        config: config.clone(),
        publisher: Arc::clone(&publisher),
        signals: signals.clone(),
        bell,
        api: sockets.api,
        admin: sockets.admin,
        health: Arc::clone(&health),
        stop,
    })?;
    let Control { synced, admin, thread: control } = control;
    synced.blocking_recv().context("the control thread ended at its start")??;

    let stop = Arc::new(Stop::default());
    let shared = Shared { tables: Arc::clone(&tables), signals, log: config.log.clone(), stop };
    let homes = logs::assign(&config.data, config.workers)?;
    let logs = homes.iter().map(|home| home.own.clone()).collect();
    let terms = Terms::new(&tables).context("TLS")?;
    let mut https = sockets.https.into_iter().map(|listener| Https { listener, terms: terms.clone() });
    let places = sockets.http.into_iter().zip(sockets.events).zip(homes);
    let mut private = sockets.private.into_iter();
    let places = places.map(|place| Place::new(place, https.next(), private.next()));
    let cores = Cores::start(&shared, places, move || {
        drop(say.send(Event::CoreEnded)); // nobody hears it when all is over
    })?;
    drop(admin.send(Arc::new(Admin {
        tables: Arc::clone(&tables),
        cores: cores.counters.clone(),
        health: Arc::clone(&health),
        logs,
        ways: cores.ways.clone(),
    })));
    announce(&ready)?;

    let event = last_event(&hear, || reload(&config, &publisher))?;
    tracing::info!("draining: requests in flight end, nothing new is taken in");
    health.draining.store(true, Relaxed);
    shared.stop.say(&tables);
    let outcome = cores.join();
    stop_control.send_replace(true);
    if control.join().is_err() {
        bail!("the control thread panicked; its message stands above");
    }
    drop(folder);
    match (event, outcome) {
        (Event::CoreEnded, Ok(())) => bail!("a core ended by itself"),
        (_, outcome) => outcome,
    }
}

/// Reloads when told to, until there is another word: the end.
fn last_event(hear: &mpsc::Receiver<Event>, reload: impl Fn()) -> Result<Event> {
    loop {
        match hear.recv().context("nobody is left to tell anything")? {
            Event::Reload => reload(),
            event => return Ok(event),
        }
    }
}

fn publisher(config: &Config, tables: &Arc<Tables>) -> Arc<Publisher> {
    let tables = Arc::clone(tables);
    let publisher = Publisher::new(Arc::new(move |table| {
        tables.publish(table);
    }));
    for rule in &config.routes {
        publisher.set_static_route(&rule.host, rule.protocol, &rule.addresses);
    }
    Arc::new(publisher)
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

fn control_config(config: &Config, sockets: &Sockets) -> Result<ControlConfig> {
    let events = sockets.events[0].local_addr()?;
    Ok(ControlConfig {
        domain: config.domain.clone(),
        http_port: sockets.http[0].local_addr()?.port(),
        listeners: Listeners {
            public: Some(sockets.http[0].local_addr()?),
            private: sockets.private.first().map(std::net::TcpListener::local_addr).transpose()?,
        },
        events_url_base: format!("http://{events}"),
        images: config.images.iter().map(|rule| (rule.image.clone(), rule.command.clone())).collect(),
        quotas: config.quotas.clone(),
    })
}

/// A proxied request holds a descriptor on either side; the usual soft limit of 1,024 is for programs that
/// use select(2), and the hard one is what the administrator allows.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(why) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%why, "the limit of open files stays as it is");
    }
}

/// The line that tells a supervisor, a script or a test that everything listens, and where.
fn announce(ready: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ready}").and_then(|()| out.flush()).context("stdout is closed")
}

/// SIGHUP reloads. The first SIGTERM or SIGINT drains; a second SIGINT, or any signal after SIGTERM's drain began, ends
/// the process at once. Instances die with their parent.
fn listen_to_signals(say: mpsc::Sender<Event>) -> Result<()> {
    // A file that may not grow (`ulimit -f`) is an error of its write, not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("no signal handler")?;
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
                if told && signal == SIGINT {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                told = true;
                drop(say.send(Event::Told)); // a receiver that is gone is ending already
            }
        })
        .context("no thread for signals")?;
    Ok(())
}

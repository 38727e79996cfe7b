//! The new process: asks for the sockets, waits for the rest, and says when it serves.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};

use super::{HANDOVER_MAX, Hello, Name, Offer, PROTOCOL, Up, WORD_MAX, Yours, socket_path, wire};
use crate::config::Config;

/// The process that is being replaced.
pub(in crate::cli::run) struct Predecessor {
    stream: UnixStream,
}

/// Sockets with what they are for.
type Inherited = Vec<(Name, OwnedFd)>;

/// Asks the process that runs on the data folder for its sockets. `None`: nobody runs there, so this is a start
/// like any other.
///
/// # Errors
/// It refuses, and goes on as before.
pub(in crate::cli::run) fn begin(config: &Config) -> Result<Option<(Predecessor, Inherited)>> {
    let Ok(folder) = File::open(&config.data) else { return Ok(None) };
    let connect = || loop {
        match UnixStream::connect(socket_path(&folder)) {
            Err(why) if why.kind() == ErrorKind::Interrupted => {} // a signal of ours
            outcome => return outcome,
        }
    };
    let stream = match connect() {
        Ok(stream) => stream,
        Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            tracing::info!("nobody is there to be replaced: starting as usual");
            return Ok(None);
        }
        Err(why) => return Err(why).context("--takeover: the running process cannot be reached"),
    };
    // It may be serving another request, and ends what it was told before it hears us.
    stream.set_read_timeout(Some(HANDOVER_MAX))?;
    stream.set_write_timeout(Some(WORD_MAX))?;
    wire::say(&stream, &hello(config))?;
    let names = match wire::hear(&stream)? {
        Offer::Sockets(names) => names,
        Offer::Refused(why) => bail!("--takeover: the running process refuses, and goes on: {why}"),
    };
    let take = |name| Ok((name, wire::take(&stream)?));
    let sockets = names.into_iter().map(take).collect::<Result<_>>()?;
    Ok(Some((Predecessor { stream }, sockets)))
}

fn hello(config: &Config) -> Hello {
    let mut addresses =
        vec![(Name::Http, config.http), (Name::Events, config.events), (Name::Admin, config.admin)];
    addresses.extend(config.https.map(|address| (Name::Https, address)));
    addresses.extend(config.private.map(|address| (Name::Private, address)));
    addresses.extend(config.private_https.map(|address| (Name::PrivateHttps, address)));
    addresses.extend(config.events_https.map(|address| (Name::EventsHttps, address)));
    if config.kubeconfig.is_none() {
        addresses.push((Name::Api, config.api));
    }
    Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        workers: config.workers,
        addresses,
    }
}

impl Predecessor {
    /// Waits until it has let go of store, logs and folder.
    pub(in crate::cli::run) fn wait_for_folder(&self) -> Result<()> {
        wire::hear::<Yours>(&self.stream)
            .map(drop)
            .context("--takeover: the running process did not let go of the data folder")
    }

    /// Says that this process serves, and calls `gone` when the other one has ended.
    pub(in crate::cli::run) fn dismiss(mut self, gone: impl FnOnce() + Send + 'static) -> Result<()> {
        wire::say(&self.stream, &Up)?;
        self.stream.set_read_timeout(None)?;
        std::thread::Builder::new().name("predecessor".to_owned()).spawn(move || {
            let mut byte = [0];
            while matches!(self.stream.read(&mut byte), Ok(1)) {}
            gone();
        })?;
        Ok(())
    }
}

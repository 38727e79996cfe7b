//! A runtime without processes, for tests: instances follow a script, in tokio's time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};

use runtime::{
    ExitCause, InstanceCredentials, InstanceExit, InstanceHandle, InstanceReporter, InstanceSpec, ProbeCheck,
    ProbeSpec, ResourceLimits, RestartPolicy, Runtime,
};

/// How an instance behaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstanceScript {
    pub(crate) ready_after: Option<Duration>,
    /// Counted from the start.
    pub(crate) crash_after: Option<Duration>,
    pub(crate) stop_takes: Duration,
}

impl InstanceScript {
    pub(crate) const READY_AT_ONCE: Self =
        Self { ready_after: Some(Duration::ZERO), crash_after: None, stop_takes: Duration::ZERO };
}

/// Runs scripts, and notes what it was asked for and when.
pub(crate) struct ScriptedRuntime {
    script: Box<dyn Fn(u64) -> InstanceScript + Send + Sync>,
    pub(crate) calls: Arc<Mutex<Vec<(Instant, ScriptedCall)>>>,
    pub(crate) living: Arc<AtomicU32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScriptedCall {
    Started(u64),
    Stopped(u64),
    Verified(u64),
    Frozen(u64),
    Thawed(u64),
    Refreshed,
    Forgotten(String),
}

enum ScriptedCommand {
    Stop,
    Verify,
    Freeze,
    Thaw,
}

impl ScriptedRuntime {
    /// `script` gives the behaviour of the instance with an id.
    pub(crate) fn new(script: impl Fn(u64) -> InstanceScript + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), calls: Arc::default(), living: Arc::default() })
    }

    pub(crate) fn living(&self) -> u32 {
        self.living.load(SeqCst)
    }

    /// When the notes that `wanted` picks were made.
    pub(crate) fn call_times(&self, wanted: impl Fn(&ScriptedCall) -> bool) -> Vec<Instant> {
        self.calls.lock().unwrap().iter().filter(|(_, note)| wanted(note)).map(|(at, _)| *at).collect()
    }

    pub(crate) fn starts(&self) -> Vec<Instant> {
        self.call_times(|note| matches!(note, ScriptedCall::Started(_)))
    }

    fn record(notes: &Mutex<Vec<(Instant, ScriptedCall)>>, note: ScriptedCall) {
        notes.lock().unwrap().push((Instant::now(), note));
    }
}

impl Runtime for ScriptedRuntime {
    fn start(
        &self,
        id: u64,
        _line: u64,
        _spec: Arc<InstanceSpec>,
        reporter: InstanceReporter,
    ) -> Box<dyn InstanceHandle> {
        Self::record(&self.calls, ScriptedCall::Started(id));
        self.living.fetch_add(1, SeqCst);
        let (orders, inbox) = mpsc::unbounded_channel();
        let (script, notes, living) = ((self.script)(id), Arc::clone(&self.calls), Arc::clone(&self.living));
        tokio::spawn(async move {
            let cause = play(id, script, &reporter, inbox, &notes).await;
            living.fetch_sub(1, SeqCst);
            reporter.exited(InstanceExit { cause, message: format!("instance {id} is over") });
        });
        Box::new(ScriptedHandle(orders))
    }

    fn refresh(&self, _spec: Arc<InstanceSpec>) {
        Self::record(&self.calls, ScriptedCall::Refreshed);
    }

    fn remove_revision(&self, namespace: &str, revision: &str) {
        Self::record(&self.calls, ScriptedCall::Forgotten(format!("{namespace}/{revision}")));
    }
}

async fn play(
    id: u64,
    script: InstanceScript,
    reporter: &InstanceReporter,
    mut orders: UnboundedReceiver<ScriptedCommand>,
    notes: &Mutex<Vec<(Instant, ScriptedCall)>>,
) -> ExitCause {
    let at = |after: Option<Duration>| async move {
        match after {
            Some(after) => sleep(after).await,
            None => std::future::pending().await,
        }
    };
    let (ready, crash) = (at(script.ready_after), at(script.crash_after));
    tokio::pin!(ready, crash);
    let mut is_announced = false;
    loop {
        tokio::select! {
            biased;
            () = &mut crash => return ExitCause::Exited(1),
            order = orders.recv() => match order {
                Some(ScriptedCommand::Verify) => {
                    ScriptedRuntime::record(notes, ScriptedCall::Verified(id));
                    sleep(Duration::from_millis(10)).await;
                    reporter.ready(address(id), None);
                }
                Some(ScriptedCommand::Freeze) => ScriptedRuntime::record(notes, ScriptedCall::Frozen(id)),
                Some(ScriptedCommand::Thaw) => ScriptedRuntime::record(notes, ScriptedCall::Thawed(id)),
                Some(ScriptedCommand::Stop) | None => {
                    ScriptedRuntime::record(notes, ScriptedCall::Stopped(id));
                    sleep(script.stop_takes).await;
                    return ExitCause::Signaled(15);
                }
            },
            () = &mut ready, if !is_announced => {
                is_announced = true;
                reporter.ready(address(id), None);
            }
        }
    }
}

fn address(id: u64) -> std::net::SocketAddr {
    ([127, 0, 0, 1], u16::try_from(id % 60_000).unwrap()).into()
}

struct ScriptedHandle(UnboundedSender<ScriptedCommand>);

impl InstanceHandle for ScriptedHandle {
    fn stop(&self) {
        let _ = self.0.send(ScriptedCommand::Stop);
    }

    fn verify(&self) {
        let _ = self.0.send(ScriptedCommand::Verify);
    }

    fn freeze(&self) {
        let _ = self.0.send(ScriptedCommand::Freeze);
    }

    fn thaw(&self) {
        let _ = self.0.send(ScriptedCommand::Thaw);
    }
}

/// An instance of `hello-00001` that runs `command`.
pub(crate) fn spec(command: &[&str]) -> InstanceSpec {
    InstanceSpec {
        pod: None,
        image: None,
        namespace: "default".into(),
        revision: "hello-00001".into(),
        service: "hello".into(),
        configuration: "hello-conf".into(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        port: 8080,
        other_ports: Vec::new(),
        working_dir: None,
        volumes: Vec::new(),
        mounts: Vec::new(),
        reload_volume: None,
        credentials: InstanceCredentials::default(),
        read_only_root: false,
        restart: RestartPolicy::default(),
        resources: ResourceLimits::default(),
        termination_message: None,
        startup: None,
        readiness: ProbeSpec::single(ProbeCheck::Tcp),
        liveness: None,
        detect_http2: false,
        startup_timeout: Duration::from_secs(10),
        termination_grace_period: Duration::from_secs(10),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
    }
}

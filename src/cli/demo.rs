//! `sluicegate demo`: the whole appliance once, with real processes behind real sockets.
//!
//! The demo is a client like any other: it starts this binary as a child, speaks to its sockets and reads
//! its metrics; it has no access that a user does not have.

mod appliance;
mod client;
mod scenario;

use std::process::ExitCode;
use std::time::Duration;

use appliance::DemoAppliance;
use client::DemoClient;

/// Runs the scenario, prints what happened, and stays up until Ctrl-C.
pub(crate) fn run() -> ExitCode {
    match play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            complain!("demo: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> anyhow::Result<()> {
    let appliance = DemoAppliance::start()?;
    let client = DemoClient::new(appliance.ready.clone());

    let outcome = scenario::tell(&client);
    if appliance.was_stopped() {
        return appliance.finish();
    }
    match outcome {
        // It continues even if the report cannot be printed.
        Ok(report) => drop(super::tell(&format!("{report}\n"))),
        Err(why) => {
            complain!("{}", appliance.log_tail());
            appliance.stop();
            appliance.finish()?;
            return Err(why);
        }
    }
    drop(super::tell(&format!("{}\n", what_to_try(&client))));
    appliance.finish()
}

fn what_to_try(client: &DemoClient) -> String {
    let ready = &client.ready;
    let me = std::env::current_exe().map_or_else(|_| "sluicegate".into(), |path| path.display().to_string());
    let http = ready.http;
    format!(
        "Open the console: http://{console}/\n\n\
         Try it (Ctrl-C ends it):\n\
         \x20 curl http://hello.default.localhost:{port}/\n\
         \x20 curl -H 'Host: green-hello.default.localhost' http://{http}/\n\
         \x20 curl -H 'Host: sleepy.default.localhost' http://{http}/        # asleep after 6 s: watch it wake\n\
         \x20 curl -i http://{events}/brokers/default/shop -H 'ce-specversion: 1.0' -H 'ce-id: 1' \\\n\
         \x20      -H 'ce-type: com.example.order' -H 'ce-source: /me' -H 'content-type: text/plain' -d hello\n\
         \x20 {me} kubeconfig --api {api} > kubeconfig && export KUBECONFIG=$PWD/kubeconfig\n\
         \x20 kubectl get ksvc,revisions,brokers,triggers\n\
         \x20 kubectl describe ksvc hello\n\
         \x20 curl http://{admin}/metrics\n",
        port = ready.http.port(),
        events = ready.events,
        api = ready.api,
        admin = ready.admin,
        console = ready.console,
    )
}

/// Polls every `step` until `question` returns a result or `limit` is over.
fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut question: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    const STEP: Duration = Duration::from_millis(50);
    let begin = std::time::Instant::now();
    loop {
        if let Some(answer) = question()? {
            return Ok(answer);
        }
        anyhow::ensure!(begin.elapsed() < limit, "{what}: not within {} s", limit.as_secs());
        #[allow(clippy::disallowed_methods, reason = "the demo is a client program with a thread of its own")]
        std::thread::sleep(STEP);
    }
}

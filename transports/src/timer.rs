//! An event every period.

use std::time::Duration;

use adapter::{Context, Error, Event, Intake};
use serde::Deserialize;

/// As the `timer` of upstream's IntegrationSource.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    /// Milliseconds.
    #[serde(default = "default_period")]
    period: u64,
    message: String,
    #[serde(default = "default_content_type")]
    content_type: String,
    /// The timer is idle after so many events. If the adapter ended, it would be started again and send them again.
    repeat_count: Option<u64>,
}

fn default_period() -> u64 {
    1000
}

fn default_content_type() -> String {
    "text/plain".to_owned()
}

pub(crate) struct TimerReceiver {
    config: Config,
    source: String,
    sent: u64,
}

impl adapter::Receiver for TimerReceiver {
    type Config = Config;
    type Token = ();

    fn new(config: Config, context: &Context) -> Result<Self, Error> {
        if config.period == 0 {
            return Err(Error::config("ADAPTER_RECEIVER: period: must be at least 1 ms"));
        }
        let source = format!("/apis/v1/namespaces/{}/integrationsources/{}", context.namespace, context.name);
        Ok(TimerReceiver { config, source, sent: 0 })
    }

    async fn receive(&mut self, intake: &mut Intake<()>) -> Result<(), Error> {
        intake.ready();
        let mut stop = intake.stop();
        let mut ticks = tokio::time::interval(Duration::from_millis(self.config.period));
        // A sink that was unavailable does not get the missed events all at once.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !intake.finished() {
            let is_done = self.config.repeat_count.is_some_and(|count| self.sent >= count);
            let (open, stopping) = (intake.has_room() && !is_done, intake.stopping());
            tokio::select! {
                ((), _) = intake.settled() => {}
                _ = ticks.tick(), if open => {
                    self.sent += 1;
                    let id = uuid::Uuid::new_v4().to_string();
                    let event = Event::new("dev.knative.connector.event.timer", self.source.as_str(), id)
                        .with("time", jiff::Timestamp::now().to_string())
                        .with_data(&self.config.content_type, self.config.message.clone());
                    intake.push(event, Some("timer"), ());
                }
                () = stop.wait(), if !stopping => {}
            }
        }
        Ok(())
    }
}

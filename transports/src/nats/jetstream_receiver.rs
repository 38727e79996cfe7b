//! A durable pull consumer. A message is acknowledged after the sink accepted it.

use std::sync::atomic::Ordering::Relaxed;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy as Policy, PullConsumer, pull};
use async_nats::jetstream::stream::Stream;

use super::*;

/// The server delivers a message again if it hears nothing for so long; messages in flight are kept alive at a third of it.
const ACK_WAIT: Duration = Duration::from_secs(30);
/// Messages of one pull request.
const PULL_MAX: usize = 256;
/// Time for the last acknowledgements to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

impl NatsReceiver {
    pub(super) async fn receive_jetstream(
        &self,
        client: async_nats::Client,
        name: &str,
        intake: &mut Intake<Token>,
    ) -> Result<(), Error> {
        let context = jetstream::new(client.clone());
        let failed = |error: &dyn std::fmt::Display| Error::connection(format!("JetStream stream {name}: {error}"));
        let stream = context.get_stream(name).await.map_err(|error| failed(&error))?;
        let consumer = self.consumer(&stream).await?;
        let mut messages = consumer
            .stream()
            .max_messages_per_batch(PULL_MAX)
            .heartbeat(Duration::from_secs(5))
            .messages()
            .await
            .map_err(|error| failed(&error))?;
        intake.ready();
        let mut stop = intake.stop();
        let mut alive = tokio::time::interval(ACK_WAIT / 3);
        while !intake.finished() {
            let (open, stopping) = (intake.has_room(), intake.stopping());
            tokio::select! {
                (token, outcome) = intake.settled() => settle(token, outcome).await?,
                message = messages.next(), if open => {
                    // The client has connected again by itself. What the server sent into the lost connection comes only after
                    // ACK_WAIT, behind newer messages: a new session reads it first.
                    if self.config.ordering == Ordering::Ordered && client.statistics().connects.load(Relaxed) > 1 {
                        return Err(failed(&"the connection was lost"));
                    }
                    let message = message.ok_or_else(|| failed(&"the subscription ended"))?.map_err(|error| failed(&error))?;
                    let sequence = message.info().map(|info| info.stream_sequence).map_err(|error| failed(&error))?;
                    let (message, acker) = message.split();
                    let event = event_of(&message, &self.source, || format!("{name}:{sequence}"))?;
                    intake.push(event, Some(message.subject.as_str()), Some(acker));
                }
                _ = alive.tick() => keep_alive(intake).await?,
                () = stop.wait(), if !stopping => {}
            }
        }
        // The process may end next, and the last acknowledgements are still in the buffer of the client.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, client.flush()).await;
        Ok(())
    }

    /// The durable consumer. In order, what was delivered and not acknowledged must come before anything new, but the server
    /// would wait for its acknowledgements to expire: a consumer that continues behind the last acknowledged message replaces it.
    async fn consumer(&self, stream: &Stream) -> Result<PullConsumer, Error> {
        let name = self.consumer.as_str();
        let failed = |error: &dyn std::fmt::Display| Error::connection(format!("JetStream consumer {name}: {error}"));
        let mut policy = match self.config.deliver_policy {
            DeliverPolicy::All => Policy::All,
            DeliverPolicy::New => Policy::New,
        };
        if let Ok(mut existing) = stream.get_consumer::<pull::Config>(name).await {
            let info = existing.info().await.map_err(|error| failed(&error))?.clone();
            let is_behind = info.num_ack_pending > 0 && self.config.ordering == Ordering::Ordered;
            if !is_behind {
                self.replacement_start.set(None);
                return Ok(existing);
            }
            self.replacement_start.set(Some(info.ack_floor.stream_sequence + 1));
            stream.delete_consumer(name).await.map_err(|error| failed(&error))?;
        }
        // It survives a failure between the two requests; `deliverPolicy` would skip or repeat messages then.
        if let Some(start_sequence) = self.replacement_start.get() {
            policy = Policy::ByStartSequence { start_sequence };
        }
        let config = pull::Config {
            durable_name: Some(name.to_owned()),
            deliver_policy: policy,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            filter_subject: self.config.subject.clone().unwrap_or_default(),
            max_ack_pending: i64::try_from(adapter::limits::WINDOW_EVENTS_MAX).unwrap_or(1000),
            ..pull::Config::default()
        };
        let created = stream.create_consumer(config).await.map_err(|error| failed(&error))?;
        self.replacement_start.set(None);
        Ok(created)
    }
}

async fn settle(token: Token, outcome: DeliveryResult) -> Result<(), Error> {
    let Some(acker) = token else { return Ok(()) };
    let kind = match outcome {
        DeliveryResult::Accepted => AckKind::Ack,
        DeliveryResult::Rejected { .. } => AckKind::Term,
        // The next session begins behind the last acknowledged message.
        DeliveryResult::Released { .. } => return Ok(()),
    };
    acker.ack_with(kind).await.map_err(|error| Error::connection(format!("acknowledge: {error}")))
}

/// Tells the server that messages in flight are still worked on.
async fn keep_alive(intake: &Intake<Token>) -> Result<(), Error> {
    for acker in intake.pending_tokens().flatten() {
        let sent = acker.ack_with(AckKind::Progress).await;
        sent.map_err(|error| Error::connection(format!("keep messages alive: {error}")))?;
    }
    Ok(())
}

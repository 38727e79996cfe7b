//! MQTT 3.1.1, which has neither properties nor reasons.

use adapter::Error;
use rumqttc::{Event, EventLoop, MqttOptions, Outgoing as Out, Packet, Publish, QoS, SubscribeReasonCode};
use tokio::sync::mpsc::UnboundedSender;

use super::*;

pub(super) fn options(connection: &MqttConnection, keeps_session: bool) -> Result<MqttOptions, Error> {
    let mut options = MqttOptions::new(connection.client_id.as_str(), connection.host.as_str(), connection.port());
    options.set_keep_alive(KEEP_ALIVE).set_manual_acks(true).set_clean_session(!keeps_session);
    options.set_max_packet_size(PACKET_BYTES_MAX as usize, PACKET_BYTES_MAX as usize);
    if let Some((user, password)) = connection.credentials()? {
        options.set_credentials(user, password);
    }
    if let Some(transport) = connection.transport()? {
        options.set_transport(transport);
    }
    Ok(options)
}

/// Drives the connection until it ends.
pub(super) async fn run(mut events: EventLoop, signals: UnboundedSender<Result<MqttSignal, Error>>) {
    loop {
        let signal = match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => MqttSignal::Connected,
            Ok(Event::Incoming(Packet::SubAck(ack))) => MqttSignal::Subscribed(
                ack.return_codes.iter().all(|code| matches!(code, SubscribeReasonCode::Success(_))),
            ),
            Ok(Event::Incoming(Packet::Publish(publish))) => MqttSignal::Message(Box::new(incoming(publish))),
            Ok(Event::Incoming(Packet::PubAck(ack))) => MqttSignal::Confirmed(ack.pkid, true),
            Ok(Event::Outgoing(Out::Publish(id))) => MqttSignal::Published(id),
            Ok(Event::Outgoing(Out::Disconnect)) => return,
            Ok(_) => continue,
            Err(error) => {
                let _ = signals.send(Err(Error::connection(format!("MQTT: {error}"))));
                return;
            }
        };
        if signals.send(Ok(signal)).is_err() {
            return;
        }
    }
}

fn incoming(publish: Publish) -> Incoming {
    Incoming {
        topic: publish.topic.clone(),
        payload: publish.payload.clone(),
        content_type: None,
        properties: Vec::new(),
        acknowledgement: (publish.qos != QoS::AtMostOnce).then_some(Acknowledgement::V311(publish)),
    }
}

//! MQTT 5.

use adapter::Error;
use rumqttc::Outgoing as Out;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason, Publish, SubscribeReasonCode};
use rumqttc::v5::{Event, EventLoop, MqttOptions};
use tokio::sync::mpsc::UnboundedSender;

use super::*;

pub(super) fn options(connection: &MqttConnection, keeps_session: bool) -> Result<MqttOptions, Error> {
    let mut options = MqttOptions::new(connection.client_id.as_str(), connection.host.as_str(), connection.port());
    options.set_keep_alive(KEEP_ALIVE).set_manual_acks(true).set_clean_start(!keeps_session);
    options.set_connection_timeout(CONNECT_TIMEOUT_SECONDS);
    options.set_session_expiry_interval(Some(if keeps_session { u32::MAX } else { 0 }));
    options.set_receive_maximum(Some(RECEIVE_MAXIMUM)).set_max_packet_size(Some(PACKET_BYTES_MAX));
    options.set_outgoing_inflight_upper_limit(SEND_MAXIMUM);
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
            Ok(Event::Incoming(Packet::PubAck(ack))) => {
                let good = matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers);
                MqttSignal::Confirmed(ack.pkid, good)
            }
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

fn incoming(mut publish: Publish) -> Incoming {
    let properties = publish.properties.take().unwrap_or_default();
    Incoming {
        topic: String::from_utf8_lossy(&publish.topic).into_owned(),
        payload: publish.payload.clone(),
        content_type: properties.content_type,
        properties: properties.user_properties,
        acknowledgement: (publish.qos != QoS::AtMostOnce).then_some(Acknowledgement::V5(publish)),
    }
}

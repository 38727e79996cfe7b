//! The list of controllers. A controller is one row here, and its own module.

use std::sync::Arc;

use crate::broker::BrokerController;
use crate::certificate::CertificateController;
use crate::channel::ChannelController;
use crate::config::ContextConfig;
use crate::configuration::ConfigurationController;
use crate::controller::Controller;
use crate::domain_mapping::DomainMappingController;
use crate::event_policy::EventPolicyController;
use crate::event_type::EventTypeController;
use crate::flows::{ParallelController, SequenceController};
use crate::in_memory_channel::InMemoryChannelController;
use crate::ingress::IngressController;
use crate::namespace::NamespaceController;
use crate::pods::PodsController;
use crate::revision::{RevisionConfig, RevisionController, ScalingController};
use crate::route::RouteController;
use crate::service::ServiceController;
use crate::sinks::AdapterSinkController;
use crate::sources::adapter::AdapterController;
use crate::sources::api_server::ApiServerController;
use crate::sources::binding::BindingController;
use crate::sources::container::ContainerController;
use crate::sources::ping::{PingConfig, PingController};
use crate::subscription::SubscriptionController;
use crate::trigger::TriggerController;
use types::sinks::adapter::AdapterSink;
use types::sinks::integration::IntegrationSink;
use types::sinks::kafka::KafkaSink;
use types::sinks::redis_stream::RedisStreamSink;
use types::sources::adapter::AdapterSource;
use types::sources::integration::IntegrationSource;
use types::sources::kafka::KafkaSource;
use types::sources::rabbitmq::RabbitmqSource;
use types::sources::redis_stream::RedisStreamSource;

/// All controllers, in the order in which a start restores what they served: Revisions before the Routes that send to
/// them, Routes before the DomainMappings that show them, Brokers before their Triggers.
pub(crate) fn controllers(
    config: &ContextConfig,
    revisions: RevisionConfig,
    pings: PingConfig,
) -> Vec<Box<dyn Controller>> {
    let mut list: Vec<Box<dyn Controller>> = vec![
        Box::new(ServiceController),
        Box::new(ConfigurationController),
        Box::new(RevisionController::new(revisions)),
        Box::new(ScalingController),
        Box::new(PodsController),
        Box::new(RouteController),
        Box::new(DomainMappingController),
        Box::new(CertificateController),
        Box::new(BrokerController),
        Box::new(TriggerController),
        Box::new(EventTypeController),
        Box::new(EventPolicyController),
        Box::new(ChannelController),
        Box::new(InMemoryChannelController),
        Box::new(SubscriptionController),
        Box::new(SequenceController),
        Box::new(ParallelController),
        Box::new(IngressController::default()),
        Box::new(NamespaceController::default()),
    ];
    // Of an API of our own: a cluster has controllers for sources.
    if config.leader_identity.is_none() {
        list.push(Box::new(ApiServerController::new(Arc::clone(&pings.relay))));
        list.push(Box::new(PingController::new(pings)));
        list.push(Box::new(ContainerController::default()));
        list.push(Box::new(AdapterController::<AdapterSource>::default()));
        list.push(Box::new(AdapterController::<IntegrationSource>::default()));
        list.push(Box::new(AdapterController::<RedisStreamSource>::default()));
        list.push(Box::new(AdapterController::<KafkaSource>::default()));
        list.push(Box::new(AdapterController::<RabbitmqSource>::default()));
        list.push(Box::new(AdapterSinkController::<AdapterSink>::default()));
        list.push(Box::new(AdapterSinkController::<KafkaSink>::default()));
        list.push(Box::new(AdapterSinkController::<RedisStreamSink>::default()));
        list.push(Box::new(AdapterSinkController::<IntegrationSink>::default()));
        list.push(Box::new(BindingController::default()));
    }
    list
}

//! Channel and Subscription: from manifests to a stream with its subscribers.

use std::collections::BTreeSet;

use dataplane::table::{ReplyTarget, RoutingTable, Subscriber};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluicegate_control::kinds::messaging::channel::Channel;
use sluicegate_control::kinds::messaging::in_memory_channel::InMemoryChannel;
use sluicegate_control::kinds::messaging::subscription::Subscription;
use sluicegate_control::kinds::shared::{ConditionStatus, HasConditions};

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane, on_one_thread, turn_over};

const PATH: &str = "/channels/default/c";

fn channel(spec: Value) -> Value {
    json!({"metadata": {"name": "c", "namespace": NS}, "spec": spec})
}

fn subscription(name: &str, kind: &str, spec: Value) -> Value {
    let channel = json!({"apiVersion": "messaging.knative.dev/v1", "kind": kind, "name": "c"});
    let mut whole = json!({"channel": channel});
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    json!({"metadata": {"name": name, "namespace": NS}, "spec": whole})
}

fn to(host: &str) -> Value {
    json!({"subscriber": {"uri": format!("http://{host}/")}})
}

/// Targets of the channel's readers, sorted.
fn readers(control_plane: &TestControlPlane) -> Vec<String> {
    let mut urls: Vec<_> = control_plane.table(|table| {
        let readers = table.streams.get(PATH).into_iter().flat_map(|stream| stream.subscribers.iter());
        readers.map(|reader| reader.target.url.to_string()).collect()
    });
    urls.sort();
    urls
}

fn reader<T>(control_plane: &TestControlPlane, look: impl FnOnce(&Subscriber) -> T) -> T {
    control_plane.table(|table| look(&table.streams[PATH].subscribers[0]))
}

async fn until_unknown(control_plane: &TestControlPlane, name: &str, reason: &str) -> Subscription {
    let wanted =
        |s: &Subscription| s.ready().is_some_and(|c| c.status == ConditionStatus::Unknown && c.reason == reason);
    control_plane.until(name, wanted).await
}

/// EV-CH-01, EV-CH-03, EV-SUB-02, EV-SUB-07, EV-SUB-18, EV-OBJ-18, EV-OBJ-24, EV-OBJ-31, EV-OBJ-32, AMB-37:
/// when Ready is seen the table has every reader, and the lists say so.
#[test]
fn a_channel_and_its_subscriptions_become_a_stream_with_readers() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Channel>(channel(json!({}))).await;
        for name in ["a", "b", "same"] {
            let host = if name == "same" { "a" } else { name };
            control_plane.create::<Subscription>(subscription(name, "Channel", to(host))).await;
        }
        for name in ["a", "b", "same"] {
            let ready = control_plane.until_ready::<Subscription>(name).await;
            control_plane.table(|table| {
                let readers = &table.streams[PATH].subscribers;
                let uid = ready.metadata.uid.as_deref().unwrap();
                let reader = readers.iter().find(|reader| &*reader.name == uid).unwrap();
                let uri = ready.status.as_ref().unwrap().physical_subscription.subscriber_uri.as_deref();
                assert_eq!(Some(&*reader.target.url), uri);
                assert_eq!((&reader.reply, reader.delivery.retries_max), (&ReplyTarget::Discard, 10));
            });
        }
        assert_eq!(readers(&control_plane), ["http://a/", "http://a/", "http://b/"]);

        let all = |c: &Channel| c.status.as_ref().is_some_and(|status| status.subscribers.len() == 3);
        let channel = control_plane.until::<Channel>("c", all).await;
        let status = channel.status.clone().unwrap();
        assert!(channel.is_ready());
        assert_eq!(status.address.unwrap().url.unwrap(), "http://127.0.0.1:8081/channels/default/c");
        assert!(
            status.subscribers.iter().all(|s| s.ready == ConditionStatus::True && s.observed_generation == Some(1))
        );
        assert_eq!(status.channel.unwrap().kind, "InMemoryChannel");
        let backing = control_plane.api::<InMemoryChannel>().get("c").await.unwrap();
        assert_eq!(backing.spec.subscribers.len(), 3);
        let name = control_plane.table(|table| table.streams[PATH].name.to_string());
        assert_eq!(name, format!("channel/default/c/{}", backing.metadata.uid.unwrap()));
    });
}

/// EV-SUB-01, EV-SUB-05, EV-SUB-06, AMB-20: a Subscription waits for its channel, and misses it.
#[test]
fn a_subscription_is_ready_just_as_long_as_its_channel_exists() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Subscription>(subscription("s", "Channel", to("a"))).await;
        let waiting = until_unknown(&control_plane, "s", "ChannelReferenceFailed").await;
        assert!(waiting.ready().unwrap().message.contains("Channel default/c"));
        control_plane.create::<Channel>(channel(json!({}))).await;
        control_plane.until_ready::<Subscription>("s").await;
        control_plane.delete::<Channel>("c").await;
        control_plane.until_gone::<InMemoryChannel>("c").await;
        until_unknown(&control_plane, "s", "ChannelReferenceFailed").await;
        control_plane.until_table("without the stream", |table| !table.streams.contains_key(PATH)).await;

        control_plane.create::<Channel>(channel(json!({}))).await;
        control_plane.until_ready::<Subscription>("s").await;
        assert_eq!(readers(&control_plane), ["http://a/"]);
    });
}

/// EV-SUB-03: an InMemoryChannel is read by its own name; a Channel's is not found under it as a Channel.
#[test]
fn an_in_memory_channel_is_subscribed_directly() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
        control_plane.create::<Subscription>(subscription("s", "InMemoryChannel", to("a"))).await;
        control_plane.create::<Subscription>(subscription("wrong", "Channel", to("b"))).await;
        control_plane.until_ready::<Subscription>("s").await;
        until_unknown(&control_plane, "wrong", "ChannelReferenceFailed").await;
        assert_eq!(readers(&control_plane), ["http://a/"]);
    });
}

/// EV-OBJ-19, COND-12: what a channel says of deliveries holds for its Subscriptions when it is Ready with it.
#[test]
fn ready_channel_has_published_its_subscriptions() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
        control_plane.create::<Subscription>(subscription("s", "InMemoryChannel", to("a"))).await;
        control_plane.until_ready::<Subscription>("s").await;
        for n in 0..40 {
            let delivery = json!({"retry": n, "deadLetterSink": {"uri": format!("http://s/{n}")}});
            let changed = control_plane.patch::<InMemoryChannel>("c", json!({"spec": {"delivery": delivery}})).await;
            let seen = |c: &InMemoryChannel| c.status.as_ref().and_then(|status| status.base.observed_generation);
            let is_seen = |c: &InMemoryChannel| seen(c) >= changed.metadata.generation;
            control_plane.until::<InMemoryChannel>("c", |c| is_seen(c) && c.is_ready()).await;
            reader(&control_plane, |reader| {
                assert_eq!(reader.delivery.retries_max, n);
                assert_eq!(&*reader.dead_letter.as_ref().unwrap().url, format!("http://s/{n}"));
            });
        }
        control_plane.until_ready::<Subscription>("s").await;
    });
}

/// EV-CH-09, EV-SUB-08, EV-OBJ-25, EV-OBJ-57, AMB-30: a dead letter sink that is nowhere keeps Channel and
/// Subscription from Ready; once it is there, both have it.
#[test]
fn the_channels_dead_letter_sink_is_its_subscriptions() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let sink = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "dead"}});
        let delivery = json!({"retry": 2, "deadLetterSink": sink});
        control_plane.create::<Channel>(channel(json!({"delivery": delivery}))).await;
        control_plane.create::<Subscription>(subscription("s", "Channel", to("a"))).await;
        control_plane.until_not_ready::<Channel>("c", "DeadLetterSinkResolveFailed").await;
        control_plane.until_not_ready::<Subscription>("s", "DeadLetterSinkResolveFailed").await;

        let dead = json!({"metadata": {"name": "dead", "namespace": NS}, "spec": {"ports": [{"port": 80}]}});
        control_plane.create::<k8s_openapi::api::core::v1::Service>(dead).await;
        let uri = Some("http://dead.default.svc.cluster.local".to_owned());
        let ready = control_plane.until_ready::<Subscription>("s").await.status.unwrap();
        assert_eq!(ready.physical_subscription.delivery.dead_letter_sink_uri, uri);
        let ready = control_plane.until_ready::<Channel>("c").await.status.unwrap();
        assert_eq!(ready.delivery.dead_letter_sink_uri, uri);
        reader(&control_plane, |reader| {
            let dead = reader.dead_letter.as_ref().map(|sink| sink.url.to_string());
            assert_eq!((dead, reader.delivery.retries_max), (uri, 2));
        });
    });
}

/// EV-SUB-10, EV-SUB-13, EV-SUB-17, EV-ADR-07, EV-ADR-09, EV-CH-05: changed in place, followed when the
/// target goes and comes, and the reader keeps its place meanwhile.
#[test]
fn a_reply_target_is_followed_and_changes_in_place() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Channel>(channel(json!({}))).await;
        let reference = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "replies"});
        let mut spec = to("a");
        spec["reply"] = json!({"ref": reference});
        control_plane.create::<Subscription>(subscription("s", "Channel", spec)).await;
        control_plane.until_not_ready::<Subscription>("s", "ReplyResolveFailed").await;
        assert!(readers(&control_plane).is_empty());

        let replies = json!({"metadata": {"name": "replies", "namespace": NS}});
        control_plane.create::<Channel>(replies).await;
        control_plane.until_ready::<Subscription>("s").await;
        reader(&control_plane, |reader| {
            let ReplyTarget::Send(target) = &reader.reply else { panic!("{:?}", reader.reply) };
            assert_eq!(&*target.url, "http://127.0.0.1:8081/channels/default/replies");
        });

        control_plane.delete::<Channel>("replies").await;
        let lost = control_plane.until_not_ready::<Subscription>("s", "ReplyResolveFailed").await;
        assert_eq!(lost.status.unwrap().physical_subscription.reply_uri, None);
        assert_eq!(readers(&control_plane), ["http://a/"]);

        let only_reply = json!({"spec": {"subscriber": null, "reply": {"ref": null, "uri": "http://r/"}}});
        control_plane.patch::<Subscription>("s", only_reply).await;
        control_plane.until::<Subscription>("s", |s| s.metadata.generation == Some(2) && s.is_ready()).await;
        assert_eq!(readers(&control_plane), ["http://r/"]);
        reader(&control_plane, |reader| assert_eq!(reader.reply, ReplyTarget::Unasked));
    });
}

/// EV-SUB-20: a deleted Subscription reads no more, and is off the lists.
#[test]
fn a_deleted_subscription_leaves_the_channel() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Channel>(channel(json!({}))).await;
        for name in ["a", "b"] {
            control_plane.create::<Subscription>(subscription(name, "Channel", to(name))).await;
            control_plane.until_ready::<Subscription>(name).await;
        }
        control_plane.delete::<Subscription>("a").await;
        let one = |c: &Channel| c.status.as_ref().is_some_and(|status| status.subscribers.len() == 1);
        control_plane.until::<Channel>("c", one).await;
        assert_eq!(readers(&control_plane), ["http://b/"]);
        let backing = control_plane.api::<InMemoryChannel>().get("c").await.unwrap();
        assert_eq!(backing.spec.subscribers[0].name.as_deref(), Some("b"));
    });
}

/// EV-SUB-20: whatever is in progress when a Subscription and its channel are deleted, a new channel of the name has no
/// reader of the old one's.
#[test]
fn a_new_channel_has_no_reader_of_the_one_before() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        for turns in 0..40 {
            control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
            control_plane.create::<Subscription>(subscription("s", "InMemoryChannel", to("old"))).await;
            turn_over(turns).await;
            control_plane.delete::<InMemoryChannel>("c").await;
            control_plane.delete::<Subscription>("s").await;
        }
        control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
        control_plane.until_ready::<InMemoryChannel>("c").await;
        let is_empty = |table: &RoutingTable| table.streams.get(PATH).is_some_and(|one| one.subscribers.is_empty());
        control_plane.until_table("of a channel without readers", is_empty).await;
    });
}

/// EV-SUB-20: ... also when others write the channel meanwhile.
#[test]
fn a_deleted_subscription_reads_no_more_while_others_write_its_channel() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
        control_plane.until_ready::<InMemoryChannel>("c").await;
        for turns in 0..40 {
            control_plane.create::<Subscription>(subscription("s", "InMemoryChannel", to("old"))).await;
            for turn in 0..turns {
                let note = json!({"metadata": {"annotations": {"note": format!("{turns}-{turn}")}}});
                control_plane.patch::<InMemoryChannel>("c", note).await;
            }
            control_plane.delete::<Subscription>("s").await;
        }
        let is_empty = |table: &RoutingTable| table.streams.get(PATH).is_some_and(|one| one.subscribers.is_empty());
        control_plane.until_table("of a channel without readers", is_empty).await;
    });
}

/// EV-OBJ-22: a foreign template is reported, and a backing channel of another owner is left alone.
#[test]
fn what_a_channel_cannot_have_is_shown() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let template = json!({"apiVersion": "messaging.knative.dev/v1beta1", "kind": "KafkaChannel"});
        control_plane.create::<Channel>(channel(json!({"channelTemplate": template}))).await;
        let shown = control_plane.until_not_ready::<Channel>("c", "ChannelTemplateNotServed").await;
        assert!(shown.ready().unwrap().message.contains("KafkaChannel"));
        assert_eq!(shown.status.unwrap().base.observed_generation, Some(1));

        let named = |name: &str| json!({"metadata": {"name": name, "namespace": NS}});
        control_plane.create::<InMemoryChannel>(named("mine")).await;
        control_plane.create::<Channel>(named("mine")).await;
        control_plane.until_not_ready::<Channel>("mine", "NotOwned").await;
        control_plane.until_ready::<InMemoryChannel>("mine").await;
    });
}

/// SRV-OWN-02, SRV-OWN-03: a name that becomes free is taken, and what is removed is not shown as its own any more.
#[test]
fn a_channel_takes_its_backing_channels_name_when_that_becomes_free() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<InMemoryChannel>(channel(json!({}))).await;
        control_plane.create::<Channel>(channel(json!({}))).await;
        control_plane.until_not_ready::<Channel>("c", "NotOwned").await;
        control_plane.delete::<InMemoryChannel>("c").await;
        control_plane.until_ready::<Channel>("c").await;

        control_plane.patch::<InMemoryChannel>("c", json!({"metadata": {"ownerReferences": null}})).await;
        control_plane.until_not_ready::<Channel>("c", "NotOwned").await;
    });
}

/// COND-10, AMB-01: what the API rejects in an InMemoryChannel, it rejects in one of a template; that is reported.
#[test]
fn template_of_invalid_channel_is_reported() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        for (name, spec, reason, expected) in [
            ("retry", json!({"delivery": {"retry": -1}}), "ChildRejected", "retry"),
            ("delay", json!({"delivery": {"backoffDelay": "1s"}}), "ChildRejected", "backoffDelay"),
            ("sink", json!({"delivery": {"deadLetterSink": {}}}), "ChildRejected", "deadLetterSink"),
            ("bogus", json!({"bogus": 1}), "ChannelTemplateNotServed", "bogus"),
            ("deep", json!({"delivery": {"bogus": 1}}), "ChannelTemplateNotServed", "delivery.bogus"),
        ] {
            let template = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "spec": spec});
            let mut object = channel(json!({"channelTemplate": template}));
            object["metadata"]["name"] = name.into();
            control_plane.create::<Channel>(object).await;
            let shown = control_plane.until_not_ready::<Channel>(name, reason).await;
            assert!(shown.ready().unwrap().message.contains(expected), "{:?}", shown.ready());
        }
    });
}

/// X-DLV-10: deliveries and counters name the Subscription by its own namespace, whosever channel it reads.
#[test]
fn a_subscription_of_another_namespace_has_its_own_name() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let maps: Api<ConfigMap> = Api::namespaced(control_plane.client.clone(), "knative-eventing");
        let on = Patch::Merge(json!({"data": {"cross-namespace-event-links": "enabled"}}));
        maps.patch("config-features", &PatchParams::default(), &on).await.unwrap();
        control_plane.create::<Channel>(channel(json!({}))).await;
        control_plane.until_ready::<Channel>("c").await;
        for ns in ["na", "nb"] {
            let spaces: Api<Namespace> = Api::all(control_plane.client.clone());
            let space = serde_json::from_value(json!({"metadata": {"name": ns}})).unwrap();
            spaces.create(&PostParams::default(), &space).await.unwrap();
            let mut object = subscription("s", "Channel", to(ns));
            object["metadata"]["namespace"] = ns.into();
            object["spec"]["channel"]["namespace"] = NS.into();
            let api: Api<Subscription> = Api::namespaced(control_plane.client.clone(), ns);
            api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        }
        let labels = |table: &RoutingTable| {
            let readers = table.streams.get(PATH).into_iter().flat_map(|stream| stream.subscribers.iter());
            readers.map(|reader| reader.label.to_string()).collect::<BTreeSet<_>>()
        };
        let own = BTreeSet::from(["na/s", "nb/s"].map(str::to_owned));
        control_plane.until_table("with both by their own names", |table| labels(table) == own).await;
    });
}

/// SRV-OWN-02: what others note on a channel's backing channel stays there; what the Channel says of it is the Channel's.
#[test]
fn labels_and_annotations_of_others_stay_on_a_backing_channel() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let mut object = channel(json!({}));
        object["metadata"]["annotations"] = json!({"sluicegate.dev/durability": "none"});
        control_plane.create::<Channel>(object).await;
        control_plane.until_ready::<Channel>("c").await;
        let notes = json!({"labels": {"team": "a"}, "annotations": {"note": "b"}});
        control_plane.patch::<InMemoryChannel>("c", json!({"metadata": notes})).await;
        control_plane
            .patch::<Channel>("c", json!({"metadata": {"annotations": {"sluicegate.dev/durability": null}}}))
            .await;
        let durability = |one: &InMemoryChannel| {
            one.metadata.annotations.as_ref().unwrap().contains_key("sluicegate.dev/durability")
        };
        let backing = control_plane.until::<InMemoryChannel>("c", |one| !durability(one)).await;
        let (labels, annotations) = (backing.metadata.labels, backing.metadata.annotations);
        assert_eq!(labels.unwrap_or_default().get("team").map(String::as_str), Some("a"));
        assert_eq!(annotations.unwrap().get("note").map(String::as_str), Some("b"));
    });
}

/// APP-16: the first table after a restart has the readers, one whose subscriber is lost included.
#[test]
fn the_first_table_after_a_restart_has_every_reader() {
    let dir = tempfile::TempDir::new().unwrap();
    // A runtime each, because a process that ends takes all of its tasks with it.
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.create::<Channel>(channel(json!({}))).await;
        let core = json!({"metadata": {"name": "core", "namespace": NS}, "spec": {"ports": [{"port": 80}]}});
        control_plane.create::<k8s_openapi::api::core::v1::Service>(core).await;
        let reference = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "core"}});
        control_plane.create::<Subscription>(subscription("lost", "Channel", json!({"subscriber": reference}))).await;
        control_plane.create::<Subscription>(subscription("s", "Channel", to("a"))).await;
        control_plane.until_ready::<Subscription>("lost").await;
        control_plane.until_ready::<Subscription>("s").await;
        control_plane.delete::<k8s_openapi::api::core::v1::Service>("core").await;
        control_plane.until_not_ready::<Subscription>("lost", "SubscriberResolveFailed").await;
        control_plane.close().await;
    });
    on_one_thread(async {
        let control_plane = TestControlPlane::open(dir.path()).await;
        control_plane.first_table(|table| assert_eq!(table.streams[PATH].subscribers.len(), 2));
        control_plane.close().await;
    });
}

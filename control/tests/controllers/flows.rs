//! Sequence, Parallel and EventType: from manifests to children and statuses.

use dataplane::table::ReplyTarget;
use serde_json::{Value, json};
use sluicegate_control::kinds::eventing::broker::Broker;
use sluicegate_control::kinds::eventing::event_type::EventType;
use sluicegate_control::kinds::flows::parallel::Parallel;
use sluicegate_control::kinds::flows::sequence::Sequence;
use sluicegate_control::kinds::messaging::in_memory_channel::InMemoryChannel;
use sluicegate_control::kinds::messaging::subscription::Subscription;
use sluicegate_control::kinds::shared::{ConditionStatus, HasConditions};

use crate::control_plane::{NS, TestControlPlane, in_a_control_plane};

fn flow(spec: Value) -> Value {
    json!({"metadata": {"name": "f", "namespace": NS}, "spec": spec})
}

/// Stream, target and reply target of every reader in the table, sorted.
fn edges(control_plane: &TestControlPlane) -> Vec<[String; 3]> {
    let mut edges: Vec<_> = control_plane.table(|table| {
        let readers = table.streams.iter().flat_map(|(path, stream)| {
            stream.subscribers.iter().map(move |reader| {
                let reply = match &reader.reply {
                    ReplyTarget::Send(target) => target.path.to_string(),
                    _ => String::new(),
                };
                [path.to_string(), reader.target.path.to_string(), reply]
            })
        });
        readers.collect()
    });
    edges.sort();
    edges
}

/// X-FLW-01: flows may be made of Channels, as upstream's own tests make them.
#[test]
fn a_flow_may_be_made_of_channels() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let template = json!({"apiVersion": "messaging.knative.dev/v1", "kind": "Channel"});
        let steps = json!([{"uri": "http://s/a"}]);
        control_plane.create::<Sequence>(flow(json!({"channelTemplate": template, "steps": steps}))).await;
        control_plane.until_ready::<Sequence>("f").await;
        assert_eq!(edges(&control_plane), [["/channels/default/f-kn-sequence-0", "/a", ""].map(String::from)]);

        let branches = json!([{"filter": {"uri": "http://s/f"}, "subscriber": {"uri": "http://s/b"}}]);
        let parallel = json!({"metadata": {"name": "p", "namespace": NS},
            "spec": {"channelTemplate": template, "branches": branches}});
        control_plane.create::<Parallel>(parallel).await;
        let ready = control_plane.until_ready::<Parallel>("p").await;
        assert_eq!(ready.spec.channel_template.unwrap().kind, "Channel", "it stays what its author wrote");
    });
}

#[test]
fn a_sequence_is_a_chain_that_grows_and_shrinks_with_its_steps() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let steps = json!([{"uri": "http://s/a"}, {"uri": "http://s/b"}]);
        control_plane.create::<Sequence>(flow(json!({"steps": steps, "reply": {"uri": "http://s/r"}}))).await;
        let ready = control_plane.until_ready::<Sequence>("f").await.status.unwrap();
        let entry = "http://127.0.0.1:8081/channels/default/f-kn-sequence-0";
        assert_eq!(ready.address.unwrap().url.as_deref(), Some(entry));
        assert_eq!((ready.channel_statuses.len(), ready.subscription_statuses.len()), (2, 2));
        let [first, second] = [0, 1].map(|n| format!("/channels/default/f-kn-sequence-{n}"));
        assert_eq!(
            edges(&control_plane),
            [[first.clone(), "/a".into(), second.clone()], [second, "/b".into(), "/r".into()],]
        );

        control_plane.patch::<Sequence>("f", json!({"spec": {"steps": [{"uri": "http://s/c"}]}})).await;
        control_plane.until_gone::<InMemoryChannel>("f-kn-sequence-1").await;
        control_plane.until_gone::<Subscription>("f-kn-sequence-1").await;
        control_plane.until::<Sequence>("f", |f| f.metadata.generation == Some(2) && f.is_ready()).await;
        let shorter =
            |control_plane: &TestControlPlane| edges(control_plane) == [[first.clone(), "/c".into(), "/r".into()]];
        control_plane.until::<Sequence>("f", |_| shorter(&control_plane)).await;

        control_plane.delete::<Sequence>("f").await;
        control_plane.until_gone::<InMemoryChannel>("f-kn-sequence-0").await;
        control_plane.until_gone::<Subscription>("f-kn-sequence-0").await;
    });
}

/// EV-RTE-20: a step's events go to the same place as before until the steps behind it are all ready, so that no
/// event comes to a channel without subscribers.
#[test]
fn a_sequence_is_led_on_to_new_steps_when_they_are_ready() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let step = |path: &str| json!({"uri": format!("http://s/{path}")});
        let missing = json!({"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "late"}});
        let spec = json!({"steps": [step("a")], "reply": {"uri": "http://s/r"}});
        control_plane.create::<Sequence>(flow(spec)).await;
        control_plane.until_ready::<Sequence>("f").await;
        let [first, second, third] = [0, 1, 2].map(|n| format!("/channels/default/f-kn-sequence-{n}"));
        let before = [first.clone(), "/a".into(), "/r".into()];

        control_plane.patch::<Sequence>("f", json!({"spec": {"steps": [step("a"), step("b"), missing]}})).await;
        control_plane.until_ready::<Subscription>("f-kn-sequence-1").await;
        control_plane.until_not_ready::<Sequence>("f", "SubscriptionsNotReady").await;
        assert_eq!(edges(&control_plane), [before, [second.clone(), "/b".into(), third.clone()]]);

        control_plane.create::<Broker>(json!({"metadata": {"name": "late", "namespace": NS}, "spec": {}})).await;
        control_plane.until_ready::<Sequence>("f").await;
        assert_eq!(
            edges(&control_plane),
            [
                [first, "/a".into(), second.clone()],
                [second, "/b".into(), third.clone()],
                [third, "/brokers/default/late".into(), "/r".into()],
            ]
        );
    });
}

#[test]
fn a_parallel_has_a_filter_before_and_a_reply_behind_each_branch() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let branches = json!([
            {"filter": {"uri": "http://s/only"}, "subscriber": {"uri": "http://s/a"}},
            {"subscriber": {"uri": "http://s/b"}, "reply": {"uri": "http://s/own"}},
        ]);
        control_plane.create::<Parallel>(flow(json!({"branches": branches, "reply": {"uri": "http://s/r"}}))).await;
        let ready = control_plane.until_ready::<Parallel>("f").await.status.unwrap();
        let url = ready.address.unwrap().url.unwrap();
        assert_eq!(url, "http://127.0.0.1:8081/channels/default/f-kn-parallel");
        assert_eq!(ready.branch_statuses.len(), 2);
        let [ingress, first, second] = ["", "-0", "-1"].map(|end| format!("/channels/default/f-kn-parallel{end}"));
        let mut wanted = [
            [ingress.clone(), "/only".into(), first.clone()],
            [first, "/a".into(), "/r".into()],
            [ingress, second.clone(), String::new()],
            [second, "/b".into(), "/own".into()],
        ];
        wanted.sort();
        assert_eq!(edges(&control_plane), wanted);
    });
}

/// COND-06, COND-10: a channel of the same name with another owner is neither subscribed nor sent to, and the
/// condition names it; when it is gone the flow is completed.
#[test]
fn flow_does_not_subscribe_to_channel_of_another_owner() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let strange = json!({"metadata": {"name": "f-kn-sequence-1", "namespace": NS}});
        control_plane.create::<InMemoryChannel>(strange).await;
        let steps = json!([{"uri": "http://s/a"}, {"uri": "http://s/b"}]);
        control_plane.create::<Sequence>(flow(json!({"steps": steps}))).await;
        let refused = control_plane.until_not_ready::<Sequence>("f", "NotOwned").await;
        let reported = &refused.condition("SubscriptionsReady").unwrap();
        assert_eq!(reported.status, ConditionStatus::False);
        assert!(reported.message.contains("InMemoryChannel \"f-kn-sequence-1\""), "{}", reported.message);
        assert!(control_plane.api::<Subscription>().list(&Default::default()).await.unwrap().items.is_empty());

        control_plane.delete::<InMemoryChannel>("f-kn-sequence-1").await;
        control_plane.until_ready::<Sequence>("f").await;
        assert_eq!(edges(&control_plane).len(), 2);
    });
}

/// COND-01, COND-10: the status reports a name that is too long for the flow's children.
#[test]
fn a_flow_whose_children_would_have_too_long_a_name_says_so() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        let name = "f".repeat(245);
        let named = |spec: Value| json!({"metadata": {"name": name, "namespace": NS}, "spec": spec});
        control_plane.create::<Sequence>(named(json!({"steps": [{"uri": "http://s/a"}]}))).await;
        let refused = control_plane.until_not_ready::<Sequence>(&name, "ChildRejected").await;
        let reported = &refused.ready().unwrap().message;
        assert!(reported.contains(&format!("{name}-kn-sequence-0")), "{reported}");
        let branches = json!([{"subscriber": {"uri": "http://s/a"}}]);
        control_plane.create::<Parallel>(named(json!({"branches": branches}))).await;
        control_plane.until_not_ready::<Parallel>(&name, "ChildRejected").await;
    });
}

#[test]
fn an_event_type_is_ready_while_what_it_refers_to_exists() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<EventType>(flow(json!({"type": "t", "broker": "b"}))).await;
        control_plane.until_not_ready::<EventType>("f", "ReferenceDoesNotExist").await;
        control_plane.create::<Broker>(json!({"metadata": {"name": "b", "namespace": NS}})).await;
        control_plane.until_ready::<EventType>("f").await;
        control_plane.delete::<Broker>("b").await;
        control_plane.until_not_ready::<EventType>("f", "ReferenceDoesNotExist").await;
    });
}

/// SRV-OWN-02: others may note something on what a flow is made of.
#[test]
fn labels_and_annotations_of_others_stay_on_the_parts_of_a_flow() {
    in_a_control_plane(async |control_plane: TestControlPlane| {
        control_plane.create::<Sequence>(flow(json!({"steps": [{"uri": "http://s/a"}]}))).await;
        control_plane.until_ready::<Sequence>("f").await;
        let (part, notes) = ("f-kn-sequence-0", json!({"labels": {"team": "a"}, "annotations": {"note": "b"}}));
        control_plane.patch::<Subscription>(part, json!({"metadata": notes})).await;
        control_plane.patch::<InMemoryChannel>(part, json!({"metadata": notes})).await;
        control_plane.patch::<Sequence>("f", json!({"spec": {"steps": [{"uri": "http://s/b"}]}})).await;
        let second = |s: &Subscription| s.metadata.generation == Some(2);
        let subscription = control_plane.until::<Subscription>(part, second).await;
        control_plane.until::<Sequence>("f", |f| f.metadata.generation == Some(2) && f.is_ready()).await;
        let channel = control_plane.api::<InMemoryChannel>().get(part).await.unwrap();
        for meta in [subscription.metadata, channel.metadata] {
            assert_eq!(meta.labels.unwrap_or_default().get("team").map(String::as_str), Some("a"));
            assert_eq!(meta.annotations.unwrap_or_default().get("note").map(String::as_str), Some("b"));
        }
    });
}

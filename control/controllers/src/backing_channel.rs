//! The channel that carries the events of a Channel, or of a step of a flow, from its template.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use types::messaging::channel::{ChannelSpec, ChannelTemplate};
use types::messaging::in_memory_channel::InMemoryChannelSpec;
use types::messaging::{SUBSCRIBABLE, SUBSCRIBABLE_VERSION};
use types::object_reader::read;

/// The message if a followed cluster has no kind for backing channels.
pub(crate) const KIND_NOT_SERVED: &str = "The cluster does not have the kind InMemoryChannel of messaging.knative.dev/v1: \
    install its CustomResourceDefinition; it needs no controller of its own.";

/// The backing channel of a Channel with that spec.
pub(crate) fn backing_of(channel: &ChannelSpec) -> Result<InMemoryChannelSpec, String> {
    let backing = backing_spec(channel.channel_template.as_ref())?;
    Ok(InMemoryChannelSpec { delivery: channel.delivery.clone().or(backing.delivery), ..backing })
}

/// What a flow's template makes. Where it names Channels, that is what they would be backed by, by the template `given` if
/// theirs is left out: a flow's channels are reached through the flow alone, and need no second name.
pub(crate) fn flow_channel_spec(
    template: Option<&ChannelTemplate>,
    given: impl FnOnce() -> ChannelTemplate,
) -> Result<InMemoryChannelSpec, String> {
    match template {
        Some(template) if template.creates_channels() => {
            let mut channel: ChannelSpec = parse_strict(template.spec.as_ref(), "a Channel")?;
            channel.channel_template.get_or_insert_with(given);
            backing_of(&channel)
        }
        template => backing_spec(template),
    }
}

/// The backing channel of a template, without subscribers.
pub(crate) fn backing_spec(template: Option<&ChannelTemplate>) -> Result<InMemoryChannelSpec, String> {
    let Some(template) = template else { return Err("channelTemplate is missing".to_owned()) };
    if !template.is_ours() {
        return Err(format!("{} {} is not served here", template.api_version, template.kind));
    }
    let spec: InMemoryChannelSpec = parse_strict(template.spec.as_ref(), "an InMemoryChannel")?;
    Ok(InMemoryChannelSpec { subscribers: Vec::new(), ..spec })
}

/// A template's spec with nothing in it that the kind does not know (AMB-01).
pub(crate) fn parse_strict<S: DeserializeOwned + Default>(spec: Option<&Value>, kind: &str) -> Result<S, String> {
    let Some(spec) = spec else { return Ok(S::default()) };
    let mut unknown = Vec::new();
    let read = read::<S>(spec, &mut unknown).map_err(|why| why.to_string());
    let read = read.and_then(|spec| match unknown.first() {
        Some(field) => Err(format!("unknown field \"{field}\"")),
        None => Ok(spec),
    });
    read.map_err(|why| format!("the template's spec is not the spec of {kind}: {why}"))
}

/// The annotation that every channel is filled with; a child without it would differ forever.
#[must_use]
pub(crate) fn subscribable() -> BTreeMap<String, String> {
    [(SUBSCRIBABLE.to_owned(), SUBSCRIBABLE_VERSION.to_owned())].into()
}

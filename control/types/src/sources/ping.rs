//! PingSource: sends an event of fixed content at the times of a schedule.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::tz::TimeZone;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::cron::CronSchedule;
use super::{AGE, CloudEventOverrides, SINK, SINK_PROVIDED, SOURCE, SourceStatus};
use crate::delivery;
use crate::field_errors::FieldErrors;
use crate::kind;
use crate::kind_registry::{KindEntry, KindMeta, RequestContext, ResourceStrategy, VersionConversion};
use crate::printer_column::{READY, REASON, column};
use crate::settings::Settings;
use crate::shared::{Destination, namespace};

/// The type of the events.
pub const TYPE: &str = "dev.knative.sources.ping";
pub const DEPLOYED: &str = "Deployed";
pub const OIDC_IDENTITY_CREATED: &str = "OIDCIdentityCreated";
const EVERY_MINUTE: &str = "* * * * *";

kind! {
    /// `sources.knative.dev/v1` PingSource.
    PingSource { spec: PingSourceSpec, status: SourceStatus }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PingSourceSpec {
    /// Where events go.
    pub sink: Destination,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ce_overrides: Option<CloudEventOverrides>,
    /// When events are sent, as in a crontab: minute, hour, day, month, day of the week; seconds may be before.
    pub schedule: String,
    /// The time zone of the schedule; UTC by default.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub timezone: String,
    /// The media type of the data.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    /// The data, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// The data, in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data_base64: String,
}

/// The same under the name that older clients use. `kn` up to 1.16 does.
pub(super) fn v1beta2() -> KindEntry {
    const META: KindMeta = KindMeta { version: "v1beta2", ..PingSource::META };
    static TRANSLATION: VersionConversion =
        VersionConversion { stored: &PingSource::META, to_stored: |_| {}, complete: |_| {}, from_stored: |_| {} };
    KindEntry::of::<PingSource>()
        .version::<PingSource>(&META, &TRANSLATION)
        .deprecated("sources.knative.dev/v1beta2 PingSource is deprecated; use sources.knative.dev/v1 PingSource")
}

/// Whether a text is a valid header value.
#[must_use]
pub fn is_header_value(text: &str) -> bool {
    let fits = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    fits && !text.trim().is_empty()
}

impl PingSourceSpec {
    /// The media type, if one is given that can be in a header.
    #[must_use]
    pub fn media(&self) -> Option<&str> {
        Some(&*self.content_type).filter(|media| is_header_value(media))
    }

    /// The schedule, and the time zone that it goes by: that of its prefix `CRON_TZ=ZONE` or `TZ=ZONE`, or the field's.
    ///
    /// # Errors
    /// The field that is wrong, and why.
    pub fn clock(&self) -> Result<(CronSchedule, TimeZone), (&'static str, String)> {
        let schedule = self.schedule.trim_start();
        let prefixed = ["CRON_TZ=", "TZ="].iter().find_map(|prefix| schedule.strip_prefix(prefix));
        // As upstream, which puts the field before the schedule: of two zones the second is no schedule.
        let (zone, rest) = match prefixed.filter(|_| self.timezone.is_empty()) {
            Some(prefixed) => prefixed.split_once(' ').unwrap_or((prefixed, "")),
            None => (self.timezone.as_str(), schedule),
        };
        let rest =
            CronSchedule::parse(rest).map_err(|why| ("schedule", format!("invalid value: {}: {why}", self.schedule)));
        let zone = match zone {
            "" => Ok(TimeZone::UTC),
            zone => TimeZone::get(zone)
                .map_err(|_| ("timezone", format!("invalid value: provided bad location {zone}: no such time zone"))),
        };
        Ok((rest?, zone?))
    }
}

/// The events that it sends.
const EVENT_TYPES: &str =
    r#"[{"type":"dev.knative.sources.ping","description":"CloudEvent type for fixed payload on a schedule"}]"#;

source! { PingSource { conditions: [SINK_PROVIDED, DEPLOYED, OIDC_IDENTITY_CREATED] } }

impl ResourceStrategy for PingSource {
    const META: KindMeta = KindMeta {
        kind: "PingSource",
        plural: "pingsources",
        singular: "pingsource",
        columns: &[SINK, column("Schedule", ".spec.schedule"), AGE, READY, REASON],
        event_types: Some(EVENT_TYPES),
        ..SOURCE
    };

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn set_defaults(&mut self, _: Option<&Self>, _: &RequestContext) {
        if self.spec.schedule.is_empty() {
            self.spec.schedule = EVERY_MINUTE.to_owned();
        }
        let home = namespace(&self.metadata).to_owned();
        delivery::default_destination(&mut self.spec.sink, &home);
    }

    fn validate(&self, _: Option<&Self>, problems: &mut FieldErrors) {
        let spec = &self.spec;
        super::validate(&spec.sink, spec.ce_overrides.as_ref(), problems);
        if spec.media().is_none() && !spec.content_type.is_empty() {
            let why = format!("invalid value: {:?}: it is not a valid header value", spec.content_type);
            problems.add("spec.contentType", why);
        }
        if let Err((field, why)) = spec.clock() {
            problems.add(format!("spec.{field}"), why);
        }
        if !spec.data.is_empty() && !spec.data_base64.is_empty() {
            return problems.add("spec", "expected exactly one, got both: data, dataBase64");
        }
        let is_json = spec.content_type == "application/json";
        if is_json && !spec.data.is_empty() && serde_json::from_str::<Map<String, Value>>(&spec.data).is_err() {
            problems.add("spec.data", format!("invalid value: {}: has to be a JSON object", spec.data));
        }
        match STANDARD.decode(&spec.data_base64) {
            Err(why) => problems.add("spec.dataBase64", format!("invalid value: {why}")),
            Ok(bytes)
                if is_json && !bytes.is_empty() && serde_json::from_slice::<Map<String, Value>>(&bytes).is_err() =>
            {
                problems.add("spec.dataBase64", "invalid value: has to be a JSON object");
            }
            Ok(_) => {}
        }
    }

    fn validate_settings(&self, _: Option<&Self>, settings: &Settings, problems: &mut FieldErrors) {
        super::validate_by(&self.spec.sink, settings, problems);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, timezone: &str) -> Result<String, &'static str> {
        let spec = PingSourceSpec { schedule: schedule.into(), timezone: timezone.into(), ..PingSourceSpec::default() };
        let (schedule, zone) = spec.clock().map_err(|(field, _)| field)?;
        let after = "2026-01-01T00:00:00Z".parse().unwrap();
        Ok(schedule.next(after, &zone).unwrap().to_string())
    }

    /// As upstream's parser of schedules reads them.
    #[test]
    fn schedule_may_begin_with_its_time_zone() {
        for (schedule, timezone, expected) in [
            ("0 12 * * *", "", Ok("2026-01-01T12:00:00Z")),
            ("0 12 * * *", "Asia/Tokyo", Ok("2026-01-01T03:00:00Z")),
            ("CRON_TZ=Asia/Tokyo 0 12 * * *", "", Ok("2026-01-01T03:00:00Z")),
            ("TZ=Asia/Tokyo  0 12 * * *", "", Ok("2026-01-01T03:00:00Z")),
            ("CRON_TZ=Asia/Tokyo @daily", "", Ok("2026-01-01T15:00:00Z")),
            ("CRON_TZ=Nowhere/City 0 12 * * *", "", Err("timezone")),
            ("CRON_TZ=Asia/Tokyo", "", Err("schedule")),
            ("CRON_TZ=Asia/Tokyo 0 12 * * *", "UTC", Err("schedule")),
            ("0 12 * * *", "Nowhere/City", Err("timezone")),
        ] {
            assert_eq!(next(schedule, timezone), expected.map(str::to_owned), "{schedule} {timezone}");
        }
    }
}

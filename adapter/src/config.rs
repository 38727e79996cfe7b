//! The environment of an adapter, parsed once.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::limits::FILE_BYTES_MAX;
use crate::sink_config::SinkConfig;

/// What a transport can read besides its own section.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// `NAME` of the object that the adapter serves.
    pub name: String,
    pub namespace: String,
    /// `ADAPTER_STATE`: a directory that outlives the adapter.
    pub state: Option<PathBuf>,
    /// The requested quality of service. `None`: 1, or 0 where the transport has no acknowledgements.
    pub qos: Option<u8>,
}

/// A section and the variable that it came from.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    origin: String,
    value: Value,
}

impl Section {
    /// Parses the section. An error names the variable and the path of the field.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_path_to_error::deserialize(self.value.clone()).map_err(|error| {
            let path = error.path().to_string();
            let path = if path == "." { String::new() } else { format!(" {path}:") };
            Error::config(format!("{}:{path} {}", self.origin, error.inner()))
        })
    }
}

#[derive(Debug, Clone)]
pub(crate) enum SenderSection {
    Absent,
    Http(Box<SinkConfig>),
    Transport(Section),
}

#[derive(Debug, Clone)]
pub(crate) struct AdapterSettings {
    /// `None`: events come as HTTP requests on `$PORT`.
    pub(crate) receiver: Option<Section>,
    pub(crate) sender: SenderSection,
    pub(crate) context: Context,
    pub(crate) overrides: Vec<(String, String)>,
    pub(crate) port: Option<u16>,
    /// `ADAPTER_LISTEN`: the address of the listener on `$PORT`.
    pub(crate) listen: IpAddr,
}

/// The environment as a function, so that tests need no process.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(crate) fn read(environment: Environment<'_>) -> Result<AdapterSettings, Error> {
    let settings = read_optional(environment)?;
    if matches!(settings.sender, SenderSection::Absent) {
        return Err(Error::config("no sink: set ADAPTER_SENDER, or K_SINK to the URL that takes the events"));
    }
    Ok(settings)
}

/// The same for an adapter that may have no sink.
pub(crate) fn read_optional(environment: Environment<'_>) -> Result<AdapterSettings, Error> {
    let variable = |name: &str| environment(name).filter(|value| !value.trim().is_empty());
    let document = variable("ADAPTER_CONFIG").map(|path| document(&path)).transpose()?;
    let section = |key: &str, name: &str| -> Result<Option<Section>, Error> {
        if let Some((origin, value)) =
            document.as_ref().and_then(|(path, map)| Some((format!("ADAPTER_CONFIG {path}: {key}"), map.get(key)?)))
        {
            return Ok(Some(Section { origin, value: value.clone() }));
        }
        let Some(text) = variable(name) else { return Ok(None) };
        let value: Value =
            serde_json::from_str(&text).map_err(|error| Error::config(format!("{name} is not valid JSON: {error}")))?;
        Ok((!value.is_null()).then(|| Section { origin: name.to_owned(), value }))
    };
    let mut receiver = section("source", "ADAPTER_RECEIVER")?;
    let mut sender = section("sink", "ADAPTER_SENDER")?;
    let mut qos = None;
    for section in [&mut receiver, &mut sender].into_iter().flatten() {
        qos = qos.max(take_qos(section)?);
    }
    let sink = variable("K_SINK");
    let sender = match sender {
        Some(section) => sender_section(section)?,
        None => match sink {
            Some(uri) => SenderSection::Http(Box::new(SinkConfig::new(uri))),
            None => SenderSection::Absent,
        },
    };
    if receiver.is_none() && matches!(sender, SenderSection::Http(_)) {
        return Err(Error::config(
            "no source: set ADAPTER_RECEIVER to the configuration of the transport, as a JSON object",
        ));
    }
    let mut settings = AdapterSettings {
        receiver,
        sender,
        context: Context {
            name: variable("NAME").unwrap_or_else(|| "adapter".to_owned()),
            namespace: variable("NAMESPACE").unwrap_or_else(|| "default".to_owned()),
            state: variable("ADAPTER_STATE").map(PathBuf::from),
            qos,
        },
        overrides: overrides(
            document.as_ref().and_then(|(_, map)| map.get("ceOverrides")),
            variable("K_CE_OVERRIDES"),
        )?,
        port: variable("PORT")
            .map(|port| port.parse().map_err(|_| Error::config(format!("PORT: {port:?} is not a port number"))))
            .transpose()?,
        listen: match variable("ADAPTER_LISTEN") {
            Some(text) => {
                text.parse().map_err(|_| Error::config(format!("ADAPTER_LISTEN: {text:?} is not an IP address")))?
            }
            None => Ipv4Addr::LOCALHOST.into(),
        },
    };
    if let (SenderSection::Http(sink), Some(ca)) = (&mut settings.sender, variable("K_CA_CERTS")) {
        sink.ca_certs.get_or_insert(ca);
    }
    Ok(settings)
}

fn document(path: &str) -> Result<(String, Map<String, Value>), Error> {
    let size =
        std::fs::metadata(path).map_err(|error| Error::config(format!("ADAPTER_CONFIG: read {path}: {error}")))?.len();
    if size > FILE_BYTES_MAX {
        return Err(Error::config(format!("ADAPTER_CONFIG: {path} is {size} bytes, limit {FILE_BYTES_MAX}")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::config(format!("ADAPTER_CONFIG: read {path}: {error}")))?;
    let map = serde_json::from_str(&text)
        .map_err(|error| Error::config(format!("ADAPTER_CONFIG: {path} is not a JSON object: {error}")))?;
    Ok((path.to_owned(), map))
}

/// `qos` is shared by all transports, so it is not part of their typed configuration.
fn take_qos(section: &mut Section) -> Result<Option<u8>, Error> {
    let Some(qos) = section.value.as_object_mut().and_then(|map| map.remove("qos")) else { return Ok(None) };
    match qos.as_u64() {
        Some(qos @ 0..=2) => Ok(Some(qos as u8)),
        _ => Err(Error::config(format!("{}: qos: {qos} is not 0, 1 or 2", section.origin))),
    }
}

/// A text is the URL of the sink, an object with `sinkUri` too; anything else belongs to the transport.
fn sender_section(section: Section) -> Result<SenderSection, Error> {
    if let Value::String(uri) = &section.value {
        return Ok(SenderSection::Http(Box::new(SinkConfig::new(uri.clone()))));
    }
    if section.value.get("sinkUri").is_some() {
        return Ok(SenderSection::Http(Box::new(section.parse()?)));
    }
    Ok(SenderSection::Transport(section))
}

/// Extensions of `ceOverrides`, as the object or as its JSON text.
fn overrides(document: Option<&Value>, variable: Option<String>) -> Result<Vec<(String, String)>, Error> {
    let value = match (document, variable) {
        (Some(value), _) => value.clone(),
        (None, Some(text)) => serde_json::from_str(&text)
            .map_err(|error| Error::config(format!("K_CE_OVERRIDES is not valid JSON: {error}")))?,
        (None, None) => return Ok(Vec::new()),
    };
    let Some(extensions) = value.get("extensions").and_then(Value::as_object) else { return Ok(Vec::new()) };
    let mut overrides = Vec::new();
    for (name, value) in extensions {
        // The API allows capital letters in an override; attribute names have none.
        let name = name.to_ascii_lowercase();
        if !crate::event::is_attribute_name(&name) {
            return Err(Error::config(format!("K_CE_OVERRIDES: extensions: {name:?} is not letters and digits")));
        }
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        overrides.push((name, text));
    }
    Ok(overrides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    fn settings(variables: &[(&str, &str)]) -> Result<AdapterSettings, Error> {
        read(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its parser is of interest")]
    struct Server {
        port: u16,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its parser is of interest")]
    struct Transport {
        servers: Vec<Server>,
    }

    /// TRN-08, TRN-26.
    #[test]
    fn wrong_field_is_named_with_its_path() {
        for (json, wanted) in [
            (
                r#"{"servers":[{"port":"x"}]}"#,
                "ADAPTER_RECEIVER: servers[0].port: invalid type: string \"x\", expected u16",
            ),
            (r#"{"servers":[],"sever":1}"#, "ADAPTER_RECEIVER: sever: unknown field `sever`, expected `servers`"),
            ("{}", "ADAPTER_RECEIVER: missing field `servers`"),
        ] {
            let settings = settings(&[("ADAPTER_RECEIVER", json), ("K_SINK", "http://sink")]).unwrap();
            let error = settings.receiver.unwrap().parse::<Transport>().unwrap_err();
            assert_eq!(error.message, wanted);
        }
    }

    /// TRN-02, TRN-08.
    #[test]
    fn broken_json_names_variable_and_place() {
        let error = settings(&[("ADAPTER_RECEIVER", "{\"a\":"), ("K_SINK", "http://sink")]).unwrap_err();
        assert_eq!(error.message, "ADAPTER_RECEIVER is not valid JSON: EOF while parsing a value at line 1 column 5");
        let error = settings(&[("ADAPTER_RECEIVER", "{\"qos\":3}"), ("K_SINK", "http://sink")]).unwrap_err();
        assert_eq!(error.message, "ADAPTER_RECEIVER: qos: 3 is not 0, 1 or 2");
    }

    /// TRN-04, TRN-13.
    #[test]
    fn sink_is_a_text_or_an_object() {
        for sink in [r#""http://sink/""#, r#"{"sinkUri":"http://sink/"}"#] {
            let settings = settings(&[("ADAPTER_RECEIVER", "{}"), ("ADAPTER_SENDER", sink)]).unwrap();
            let SenderSection::Http(sink) = settings.sender else { panic!("not an HTTP sink") };
            assert_eq!(sink.sink_uri, "http://sink/");
        }
    }

    /// SRC-17, SRC-19.
    #[test]
    fn overrides_are_read_key_by_key() {
        let variables = [
            ("ADAPTER_RECEIVER", "{}"),
            ("K_SINK", "http://s"),
            ("K_CE_OVERRIDES", r#"{"extensions":{"a":"1","b":"2"}}"#),
        ];
        let wanted = vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        assert_eq!(settings(&variables).unwrap().overrides, wanted);
    }

    #[test]
    fn capital_letters_of_an_override_become_small() {
        let overrides = |extensions: &str| {
            let text = format!("{{\"extensions\":{extensions}}}");
            settings(&[("ADAPTER_RECEIVER", "{}"), ("K_SINK", "http://s"), ("K_CE_OVERRIDES", &text)])
        };
        let wanted = vec![("mykey".to_owned(), "1".to_owned())];
        assert_eq!(overrides(r#"{"myKey":"1"}"#).unwrap().overrides, wanted);
        assert!(overrides(r#"{"my-key":"1"}"#).is_err());
    }
}

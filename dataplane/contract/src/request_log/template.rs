//! The operator's template for lines of the request log: the subset of Go templates that Knative's request log uses
//! (X-OBS-04).
//!
//! `{{.Request.Method}}`, `{{js .Request.UserAgent}}` or `{{.Request.UserAgent | js}}`, with `{{-` and `-}}`. An
//! unknown field is rejected by name, instead of being empty in every line.

/// Largest template, in bytes: every line is as long.
pub const TEMPLATE_BYTES_MAX: usize = 16 << 10;

/// A template, as a list of parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogTemplate {
    pieces: Vec<TemplatePart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePart {
    Text(Box<str>),
    Field {
        field: LogField,
        /// Escaped for a JSON or JavaScript string.
        js: bool,
    },
}

/// A field of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogField {
    Method,
    RequestUri,
    Host,
    Proto,
    ContentLength,
    RemoteAddr,
    /// The value of a request header; see [`LogTemplate::headers`].
    Header(Box<str>),
    Code,
    Size,
    Latency,
    Name,
    Namespace,
    Service,
    Configuration,
    PodName,
    PodIp,
    TraceId,
}

const FIELDS: [(&str, LogField); 16] = [
    (".Request.Method", LogField::Method),
    (".Request.RequestURI", LogField::RequestUri),
    (".Request.URL", LogField::RequestUri),
    (".Request.Host", LogField::Host),
    (".Request.Proto", LogField::Proto),
    (".Request.ContentLength", LogField::ContentLength),
    (".Request.RemoteAddr", LogField::RemoteAddr),
    (".Response.Code", LogField::Code),
    (".Response.Size", LogField::Size),
    (".Response.Latency", LogField::Latency),
    (".Revision.Name", LogField::Name),
    (".Revision.Namespace", LogField::Namespace),
    (".Revision.Service", LogField::Service),
    (".Revision.Configuration", LogField::Configuration),
    (".Revision.PodName", LogField::PodName),
    (".Revision.PodIP", LogField::PodIp),
];

/// Why a template is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("an action {{{{…}}}} is not closed")]
    Open,
    #[error("{{{{{0}}}}} is not a known field")]
    Unknown(String),
    #[error("it contains a line break: each request has one line")]
    Lines,
    #[error("it has more than {TEMPLATE_BYTES_MAX} bytes")]
    TooLong,
}

impl LogTemplate {
    /// # Errors
    ///
    /// The text is not a valid template.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let text = text.trim_end_matches('\n');
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::TooLong);
        }
        if text.contains(['\n', '\r']) {
            return Err(TemplateError::Lines);
        }
        let (mut pieces, mut rest, mut trims) = (Vec::new(), text, false);
        while let Some((before, action)) = rest.split_once("{{") {
            let (action, after) = action.split_once("}}").ok_or(TemplateError::Open)?;
            let (opens, action) = match action.strip_prefix("- ") {
                Some(action) => (true, action),
                None => (false, action),
            };
            let before = if trims { before.trim_start() } else { before };
            let before = if opens { before.trim_end() } else { before };
            let (closes, action) = match action.strip_suffix(" -") {
                Some(action) => (true, action),
                None => (false, action),
            };
            pieces.extend(text_piece(before));
            pieces.push(field(action.trim())?);
            (rest, trims) = (after, closes);
        }
        pieces.extend(text_piece(if trims { rest.trim_start() } else { rest }));
        Ok(Self { pieces })
    }

    pub fn pieces(&self) -> &[TemplatePart] {
        &self.pieces
    }

    /// The request headers in the template, in order; a repeated one is repeated.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePart::Field { field: LogField::Header(name), .. } => Some(&**name),
            _ => None,
        })
    }
}

fn text_piece(text: &str) -> Option<TemplatePart> {
    (!text.is_empty()).then(|| TemplatePart::Text(text.into()))
}

/// One action: a field, plain or with `js`.
fn field(action: &str) -> Result<TemplatePart, TemplateError> {
    let unknown = || TemplateError::Unknown(action.to_owned());
    let plain = match action.strip_prefix("js ") {
        Some(rest) => (rest, true),
        None => match action.split_once('|') {
            Some((value, function)) if function.trim() == "js" => (value, true),
            Some(_) => return Err(unknown()),
            None => (action, false),
        },
    };
    let (name, js) = (plain.0.trim(), plain.1);
    let name = name.strip_prefix('(').and_then(|name| name.strip_suffix(')')).unwrap_or(name).trim();
    let known = FIELDS.into_iter().find(|(known, _)| *known == name).map(|(_, field)| field);
    let field = match name {
        ".Request.UserAgent" => LogField::Header("User-Agent".into()),
        ".Request.Referer" => LogField::Header("Referer".into()),
        ".TraceID" => LogField::TraceId,
        _ => known.or_else(|| header(name)).ok_or_else(unknown)?,
    };
    Ok(TemplatePart::Field { field, js })
}

/// `.Request.Header.Get "Name"`
fn header(call: &str) -> Option<LogField> {
    let name = call.strip_prefix(".Request.Header.Get")?.trim();
    let quoted = |mark: char| name.strip_prefix(mark)?.strip_suffix(mark);
    let name = quoted('"').or_else(|| quoted('`'))?;
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_name.then(|| LogField::Header(name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let template = LogTemplate::parse(text).unwrap();
        let described = |piece: &TemplatePart| match piece {
            TemplatePart::Text(text) => format!("{text:?}"),
            TemplatePart::Field { field, js } => format!("{field:?}{}", if *js { " js" } else { "" }),
        };
        template.pieces.iter().map(described).collect()
    }

    /// X-OBS-04
    #[test]
    fn action_is_parsed_as_a_field() {
        for (text, wanted) in [
            ("", &[][..]),
            ("a\n", &["\"a\""]),
            ("{{.Request.Method}} {{ .Response.Code }}", &["Method", "\" \"", "Code"]),
            ("\"{{js .Request.RequestURI}}\"", &["\"\\\"\"", "RequestUri js", "\"\\\"\""]),
            ("{{.Request.UserAgent | js}}", &["Header(\"User-Agent\") js"]),
            ("a {{- .TraceID -}} b", &["\"a\"", "TraceId", "\"b\""]),
            ("{{.Request.Header.Get \"X-One\"}}", &["Header(\"X-One\")"]),
            ("{{js (.Request.Header.Get `X-One`)}}", &["Header(\"X-One\") js"]),
            ("{{.Revision.PodIP}}{{.Revision.Service}}", &["PodIp", "Service"]),
        ] {
            assert_eq!(read(text), wanted, "{text}");
        }
        let template = LogTemplate::parse("{{.Request.Referer}}{{.Request.Host}}{{.Request.UserAgent}}").unwrap();
        assert_eq!(template.headers().collect::<Vec<_>>(), ["Referer", "User-Agent"]);
    }

    /// X-OBS-04: an unknown field is rejected by name, and not left empty in every line.
    #[test]
    fn unknown_field_is_rejected_by_name() {
        let unknown = |action: &str| TemplateError::Unknown(action.to_owned());
        for (text, why) in [
            ("{{.Request.Method", TemplateError::Open),
            ("{{.Request.Body}}", unknown(".Request.Body")),
            ("{{if .TraceID}}x{{end}}", unknown("if .TraceID")),
            ("{{.Request.Method | html}}", unknown(".Request.Method | html")),
            ("{{.Request.Header.Get \"a b\"}}", unknown(".Request.Header.Get \"a b\"")),
            ("{{}}", unknown("")),
            ("a\nb", TemplateError::Lines),
            (&"x".repeat(TEMPLATE_BYTES_MAX + 1), TemplateError::TooLong),
        ] {
            assert_eq!(LogTemplate::parse(text), Err(why.clone()), "{text}");
        }
        assert_eq!(unknown(".X").to_string(), "{{.X}} is not a known field");
        assert_eq!(TemplateError::Open.to_string(), "an action {{…}} is not closed");
    }
}

//! The request log as tables carry it (X-OBS-04).

mod template;

pub use template::{LogField, LogTemplate, TEMPLATE_BYTES_MAX, TemplateError, TemplatePart};

/// The template of the lines, and which requests have one.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestLog {
    pub template: LogTemplate,
    /// Probes have lines too.
    pub with_probes: bool,
}

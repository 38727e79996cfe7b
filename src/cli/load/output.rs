//! Where a report goes, and in which format.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context as _;
use load::{Report, report};

use crate::cli::tell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportFormat {
    Text,
    Json,
    Csv,
    Html,
}

impl ReportFormat {
    fn render(self, report: &Report) -> String {
        match self {
            Self::Text => report::to_text(report),
            Self::Json => format!("{:#}\n", report::to_json(report)),
            Self::Csv => report::to_csv(report),
            Self::Html => report::to_html(report),
        }
    }
}

/// `FORMAT[:FILE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportOutput {
    format: ReportFormat,
    /// `None`: stdout.
    file: Option<PathBuf>,
}

impl FromStr for ReportOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once(':').map_or((text, None), |(format, file)| (format, Some(file)));
        let format = match format {
            "text" => ReportFormat::Text,
            "json" => ReportFormat::Json,
            "csv" => ReportFormat::Csv,
            "html" => ReportFormat::Html,
            other => return Err(format!("{other:?} is not text, json, csv or html")),
        };
        if file == Some("") {
            return Err("the file is missing after the colon".to_owned());
        }
        Ok(Self { format, file: file.map(PathBuf::from) })
    }
}

/// A format with its open file.
pub(super) struct ReportWriter {
    format: ReportFormat,
    file: Option<(PathBuf, File)>,
}

impl ReportWriter {
    /// Text on stdout.
    pub(super) fn text() -> Self {
        Self { format: ReportFormat::Text, file: None }
    }

    pub(super) fn open(output: &ReportOutput) -> anyhow::Result<Self> {
        let file = match &output.file {
            None => None,
            Some(path) => {
                let opened = File::create(path).with_context(|| format!("write the report to {}", path.display()))?;
                Some((path.clone(), opened))
            }
        };
        Ok(Self { format: output.format, file })
    }

    pub(super) fn write(self, report: &Report) -> anyhow::Result<()> {
        let text = self.format.render(report);
        match self.file {
            None => tell(&text),
            Some((path, mut file)) => {
                file.write_all(text.as_bytes()).with_context(|| format!("write the report to {}", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_format_with_optional_file() {
        let json = ReportOutput { format: ReportFormat::Json, file: None };
        assert_eq!("json".parse(), Ok(json));
        let html = ReportOutput { format: ReportFormat::Html, file: Some("a:b.html".into()) };
        assert_eq!("html:a:b.html".parse(), Ok(html));
        for bad in ["", "pdf", "html:", ":a"] {
            assert!(bad.parse::<ReportOutput>().is_err(), "{bad:?}");
        }
    }
}
